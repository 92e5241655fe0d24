//! The store at one version: a state of the tree, and the layers above it up to the version.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;

use super::stack::Stack;
use crate::range::Page;
use crate::{Error, KeyRange, RangeOptions, Result};

/// The shared part of all snapshots of one version.
#[derive(Debug)]
pub(super) struct View {
    pub(super) version: u64,
    /// The log segment of the version's record.
    pub(super) segment: u64,
    /// `None` after the view was closed because of its age.
    stack: RwLock<Option<Arc<Stack>>>,
}

/// The rows at one version.
#[derive(Debug)]
pub(crate) struct LmdbSnapshot {
    pub(super) view: Arc<View>,
    /// The newest version that a read has depended on.
    seen: AtomicU64,
}

impl View {
    pub(super) fn new(version: u64, segment: u64, stack: Arc<Stack>) -> Self {
        let stack = RwLock::new(Some(stack));
        Self {
            version,
            segment,
            stack,
        }
    }

    /// Frees what only this view keeps. Later reads fail as too old.
    pub(super) fn close(&self) {
        let mut stack = self.stack.write().unwrap_or_else(PoisonError::into_inner);
        let closed = stack.take();
        drop(stack);
        drop(closed);
    }

    fn read<T>(&self, read: impl FnOnce(&Stack) -> Result<T>) -> Result<T> {
        let stack = self.stack.read().unwrap_or_else(PoisonError::into_inner);
        read(stack.as_ref().ok_or(Error::TooOld)?)
    }
}

impl LmdbSnapshot {
    pub(super) fn new(view: Arc<View>) -> Self {
        let seen = AtomicU64::new(0);
        Self { view, seen }
    }

    pub(crate) fn version(&self) -> u64 {
        self.view.version
    }

    /// The version that must be durable before the transaction's result is returned.
    pub(super) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// The transaction depends on the version itself.
    pub(crate) fn see_version(&self) {
        self.see(self.version());
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let state = self.view.read(|stack| stack.get(key, self.view.version))?;
        self.see(state.version);
        Ok(state.value)
    }

    pub(crate) fn page(&self, range: &KeyRange, options: RangeOptions) -> Result<Page> {
        let at = self.view.version;
        let (page, seen) = (self.view).read(|stack| stack.page(range, at, options))?;
        self.see(seen);
        Ok(page)
    }

    fn see(&self, version: u64) {
        if version > self.seen() {
            self.seen.fetch_max(version, Ordering::Relaxed);
        }
    }
}
