//! A span of versions in memory: what the log holds and the tree does not have yet.
//!
//! A layer keeps every version of its rows, so that snapshots at different versions read the same
//! layer, and the committer adds to it while they do. A range that was cleared is one entry, however
//! many rows of the tree it hides. A key's state is decided by the newest of its row and the range
//! clears over it; within one version the row was written after the clear.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;

use super::record::Op;
use super::skyline::Skyline;
use crate::KeyRange;

/// How many cleared ranges one part of a read looks at.
const CLEARED_MAX: usize = if cfg!(test) { 2 } else { 256 };

#[derive(Debug, Default)]
pub(super) struct Layer {
    content: RwLock<Content>,
    /// The newest version in the layer.
    last: AtomicU64,
    /// Something was written, so that readers have to look.
    written: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Content {
    rows: BTreeMap<Bytes, Row>,
    cleared: Skyline,
    /// Explicit write conflicts, which change nothing.
    touched: Skyline,
}

#[derive(Debug)]
struct Row {
    newest: State,
    older: Vec<State>,
}

/// What a key was from a version on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    pub(super) version: u64,
    /// `None`: there is no such row.
    pub(super) value: Option<Bytes>,
}

impl Layer {
    pub(super) fn new(last: u64) -> Self {
        Self {
            content: RwLock::default(),
            last: AtomicU64::new(last),
            written: AtomicBool::new(false),
        }
    }

    pub(super) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    pub(super) fn is_empty(&self) -> bool {
        let content = self.read();
        content.rows.is_empty() && content.cleared.is_empty() && content.touched.is_empty()
    }

    /// Does one write. Versions never fall, and only the owner of the core writes.
    pub(super) fn apply(&self, version: u64, op: &Op) {
        let mut content = self.write();
        match op {
            Op::Put { key, value } => content.put(key, version, Some(value.clone())),
            Op::Clear { key } => content.put(key, version, None),
            Op::ClearRange { range } => content.clear_range(range, version),
            Op::Touch { range } => content.touched.insert(range, version),
        }
        self.last.store(version, Ordering::Release);
        self.written.store(true, Ordering::Release);
    }

    /// Takes back what is newer than `version`, which nobody has been shown.
    pub(super) fn forget_after(&self, version: u64) {
        let mut content = self.write();
        content.rows.retain(|_, row| row.forget_after(version));
        content.cleared.forget_after(version);
        content.touched.forget_after(version);
        self.last.store(version, Ordering::Release);
    }

    /// What the layer says about a key; `None` when it says nothing.
    pub(super) fn get(&self, key: &[u8], at: u64) -> Option<State> {
        if !self.written.load(Ordering::Acquire) {
            return None;
        }
        let content = self.read();
        let row = content.rows.get(key).and_then(|row| row.at(at));
        let cleared = content.cleared.over(key, at);
        match (row, cleared) {
            (Some(row), Some(cleared)) if row.version < cleared => Some(State::cleared(cleared)),
            (Some(row), _) => Some(row.clone()),
            (None, cleared) => cleared.map(State::cleared),
        }
    }

    /// True when something in `range` was written after `version`.
    pub(super) fn is_newer(&self, range: &KeyRange, version: u64) -> bool {
        if self.last() <= version || range.is_empty() {
            return false;
        }
        let content = self.read();
        content.cleared.is_newer(range, version)
            || content.touched.is_newer(range, version)
            || (content.rows)
                .range::<[u8], _>(bounds(range))
                .any(|(_, row)| row.newest.version > version)
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Content> {
        self.content.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Content> {
        self.content.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content {
    /// The newest state of all rows, in order.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&Bytes, &State)> {
        self.rows.iter().map(|(key, row)| (key, &row.newest))
    }

    /// The ranges that were cleared, in order, each with the newest version of that.
    pub(super) fn cleared(&self) -> impl Iterator<Item = (KeyRange, u64)> {
        self.cleared.newest()
    }

    /// The states at a version of the keys of a range, in one direction.
    pub(super) fn states(
        &self,
        range: &KeyRange,
        at: u64,
        reverse: bool,
    ) -> impl Iterator<Item = (&Bytes, &State)> {
        let empty = range.is_empty() || self.rows.is_empty();
        let mut rows = (!empty).then(|| self.rows.range::<[u8], _>(bounds(range)));
        std::iter::from_fn(move || {
            let rows = rows.as_mut()?;
            if reverse {
                rows.next_back()
            } else {
                rows.next()
            }
        })
        .filter_map(move |(key, row)| Some((key, row.at(at)?)))
    }

    /// The newest version up to `at` at which a range over a key was cleared.
    pub(super) fn cleared_at(&self, key: &[u8], at: u64) -> Option<u64> {
        self.cleared.over(key, at)
    }

    /// Adds the first parts of a range that were cleared up to `at`, each with the newest version of
    /// that, and returns the part of the range that has no others.
    pub(super) fn first_cleared(
        &self,
        range: &KeyRange,
        at: u64,
        reverse: bool,
        found: &mut Vec<(KeyRange, u64)>,
    ) -> KeyRange {
        let before = found.len();
        let mut parts = self.cleared.parts(range, at);
        while let Some(part) = if reverse {
            parts.next_back()
        } else {
            parts.next()
        } {
            found.push(part);
            if found.len() - before == CLEARED_MAX {
                let last = &found[found.len() - 1].0;
                return if reverse {
                    KeyRange::new(last.begin.clone(), range.end.clone())
                } else {
                    KeyRange::new(range.begin.clone(), last.end.clone())
                };
            }
        }
        range.clone()
    }

    /// True when the newest state of a key is what a range clear made of it.
    pub(super) fn is_cleared(&self, key: &[u8], since: u64) -> bool {
        self.cleared.over(key, u64::MAX) > Some(since)
    }

    fn put(&mut self, key: &Bytes, version: u64, value: Option<Bytes>) {
        let state = State { version, value };
        match self.rows.get_mut(key) {
            Some(row) if row.newest.version == version => row.newest = state,
            Some(row) => row.older.push(std::mem::replace(&mut row.newest, state)),
            None => {
                let (newest, older) = (state, Vec::new());
                self.rows.insert(key.clone(), Row { newest, older });
            }
        }
    }

    fn clear_range(&mut self, range: &KeyRange, version: u64) {
        if range.is_empty() {
            return;
        }
        // What the same transaction has written before is gone; a row at the clear's version would
        // count as written after it.
        let mut gone = Vec::new();
        for (key, row) in self.rows.range_mut::<[u8], _>(bounds(range)) {
            if row.newest.version == version {
                match row.older.pop() {
                    Some(state) => row.newest = state,
                    None => gone.push(key.clone()),
                }
            }
        }
        for key in gone {
            self.rows.remove(&key);
        }
        self.cleared.insert(range, version);
    }
}

impl Row {
    fn at(&self, version: u64) -> Option<&State> {
        if self.newest.version <= version {
            return Some(&self.newest);
        }
        let newer = self.older.partition_point(|state| state.version <= version);
        newer.checked_sub(1).map(|last| &self.older[last])
    }

    /// False when nothing is left.
    fn forget_after(&mut self, version: u64) -> bool {
        while self.newest.version > version {
            match self.older.pop() {
                Some(state) => self.newest = state,
                None => return false,
            }
        }
        true
    }
}

impl State {
    fn cleared(version: u64) -> Self {
        let value = None;
        Self { version, value }
    }
}

fn bounds(range: &KeyRange) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Included(&range.begin), Bound::Excluded(&range.end))
}
