//! The store at one version: a state of the tree, and the layers above it up to the version.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;

use super::layer::{Layer, State};
use super::merge::Wanted;
use super::tree::TreeState;
use crate::range::Page;
use crate::{Error, KeyRange, Result};

/// A state of the tree and the layers above it. The tree is at a version between the first that the
/// layers have whole and any that is read.
#[derive(Debug)]
pub(super) struct Stack {
    pub(super) tree: Arc<TreeState>,
    /// Oldest first; the last one grows.
    pub(super) layers: Vec<Arc<Layer>>,
}

/// What all snapshots of one version share.
#[derive(Debug)]
pub(super) struct View {
    pub(super) version: u64,
    /// The segment of the log that the version ends in.
    pub(super) segment: u64,
    /// `None` once the view is so old that it was given up.
    stack: RwLock<Option<Arc<Stack>>>,
}

/// The rows as they were at one version.
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

    /// Gives the view up: what it alone has kept is freed, and later reads find it too old.
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

    /// The version that must be durable before anyone is told what was read.
    pub(super) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// The reader is told the version itself.
    pub(crate) fn see_version(&self) {
        self.see(self.version());
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let state = self.view.read(|stack| stack.get(key, self.view.version))?;
        self.see(state.version);
        Ok(state.value)
    }

    pub(crate) fn page(
        &self,
        range: &KeyRange,
        limit: Option<usize>,
        reverse: bool,
    ) -> Result<Page> {
        let at = self.view.version;
        let (page, seen) = (self.view).read(|stack| stack.page(range, at, limit, reverse))?;
        self.see(seen);
        Ok(page)
    }

    fn see(&self, version: u64) {
        if version > self.seen() {
            self.seen.fetch_max(version, Ordering::Relaxed);
        }
    }
}

impl Stack {
    /// The state of a key; that of a row of the tree has no version.
    pub(super) fn get(&self, key: &[u8], at: u64) -> Result<State> {
        for layer in self.layers.iter().rev() {
            if let Some(state) = layer.get(key, at) {
                return Ok(state);
            }
        }
        let (version, value) = (0, self.tree.get(key)?);
        Ok(State { version, value })
    }

    /// A page, and the newest version that it depends on.
    fn page(
        &self,
        range: &KeyRange,
        at: u64,
        limit: Option<usize>,
        reverse: bool,
    ) -> Result<(Page, u64)> {
        let (mut range, mut seen) = (range.clone(), 0);
        let mut wanted = Wanted::new(at, limit, reverse);
        loop {
            let (page, newest) = self.part(&range, wanted)?;
            seen = seen.max(newest);
            match page.rest {
                Some(rest) if page.rows.is_empty() => range = rest,
                rest => return Ok((Page { rest, ..page }, seen)),
            }
            wanted = wanted.more();
        }
    }
}
