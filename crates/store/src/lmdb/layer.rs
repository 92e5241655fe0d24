//! The writes of a span of versions, in memory: what is in the log and not yet in the tree.
//!
//! A layer keeps every version of its rows, so snapshots at different versions can read it while
//! commits add to it. A cleared range is one entry, however many rows of the tree it hides. The state
//! of a key is the newest of its row and the range clears that contain it; within one version, the row
//! was written after the clear.
//!
//! A row without a value hides one below. Where there is none, it is swept away: the rows of a queue live for
//! milliseconds, and a read of the first row would have to step over all that were there before.

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;

use super::range_versions::RangeVersions;
use super::record::Op;
use crate::KeyRange;
use crate::range::directed;

/// The most cleared ranges in one step of a read.
const CLEARED_MAX: usize = if cfg!(test) { 2 } else { 256 };

#[derive(Debug, Default)]
pub(super) struct Layer {
    content: RwLock<Content>,
    /// The newest version in the layer.
    last: AtomicU64,
    /// False while the layer is empty, so that reads can skip the lock.
    written: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Content {
    rows: BTreeMap<Bytes, Row>,
    /// Keys that were written and then cleared, oldest first, until they are looked at. Most of those that were only
    /// cleared are in the tree.
    dead: VecDeque<(u64, Bytes)>,
    cleared: RangeVersions,
    /// Explicit write conflicts.
    touched: RangeVersions,
}

#[derive(Debug)]
struct Row {
    newest: State,
    older: Vec<State>,
}

/// The value of a key since a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    pub(super) version: u64,
    /// `None` if the key was cleared.
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

    /// Applies a write. Versions must not decrease; only the holder of the core's lock writes.
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

    /// Removes what is newer than `version`, which has not been published.
    pub(super) fn roll_back(&self, version: u64) {
        let mut content = self.write();
        content.rows.retain(|_, row| row.roll_back(version));
        content.cleared.roll_back(version);
        content.touched.roll_back(version);
        self.last.store(version, Ordering::Release);
    }

    /// The state of a key; `None` if the layer does not contain it.
    pub(super) fn get(&self, key: &[u8], at: u64) -> Option<State> {
        if !self.written.load(Ordering::Acquire) {
            return None;
        }
        let content = self.read();
        let row = content.rows.get(key).and_then(|row| row.at(at));
        let cleared = content.cleared.newest_at(key, at);
        match (row, cleared) {
            (Some(row), Some(cleared)) if row.version < cleared => Some(State::cleared(cleared)),
            (Some(row), _) => Some(row.clone()),
            (None, cleared) => cleared.map(State::cleared),
        }
    }

    /// How many keys were written, cleared and not looked at.
    pub(super) fn dead(&self) -> usize {
        self.read().dead.len()
    }

    /// Up to `max` keys that were written and then cleared, up to a version. Each is returned once.
    pub(super) fn take_dead(&self, until: u64, max: usize) -> Vec<Bytes> {
        let mut content = self.write();
        let dead = content.dead.iter().take(max);
        let count = dead.take_while(|(version, _)| *version <= until).count();
        (content.dead.drain(..count)).map(|(_, key)| key).collect()
    }

    /// Removes the rows of these keys if they have had no value since a version or longer. Nothing below may have them,
    /// and no snapshot may be older.
    pub(super) fn sweep(&self, keys: &[Bytes], since: u64) {
        let mut content = self.write();
        for key in keys {
            let newest = content.rows.get(key).map(|row| &row.newest);
            if newest.is_some_and(|state| state.value.is_none() && state.version <= since) {
                content.rows.remove(key);
            }
        }
    }

    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.read().rows.contains_key(key)
    }

    /// True if something in one of these ranges was written after `version`.
    pub(super) fn is_newer(&self, ranges: &[KeyRange], version: u64) -> bool {
        if self.last() <= version {
            return false;
        }
        let content = self.read();
        (ranges.iter()).any(|range| !range.is_empty() && content.is_newer(range, version))
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Content> {
        self.content.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Content> {
        self.content.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content {
    /// The newest states of all rows that are in no range cleared since, in order.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&Bytes, &State)> {
        let mut cleared = self.cleared().peekable();
        let rows = self.rows.iter().map(|(key, row)| (key, &row.newest));
        rows.filter(move |(key, state)| {
            while cleared.next_if(|(range, _)| range.end <= **key).is_some() {}
            let newer = |(range, version): &(KeyRange, u64)| {
                range.begin <= **key && *version > state.version
            };
            !cleared.peek().is_some_and(newer)
        })
    }

    /// The cleared ranges in order, each with its newest version.
    pub(super) fn cleared(&self) -> impl Iterator<Item = (KeyRange, u64)> {
        self.cleared.newest()
    }

    /// The states of the keys in a range at a version.
    pub(super) fn states(
        &self,
        range: &KeyRange,
        at: u64,
        reverse: bool,
    ) -> impl Iterator<Item = (&Bytes, &State)> {
        let empty = range.is_empty() || self.rows.is_empty();
        let rows = (!empty).then(|| self.rows.range::<[u8], _>(bounds(range)));
        directed(rows.into_iter().flatten(), reverse)
            .filter_map(move |(key, row)| Some((key, row.at(at)?)))
    }

    /// The newest version up to `at` at which a range with this key was cleared.
    pub(super) fn cleared_at(&self, key: &[u8], at: u64) -> Option<u64> {
        self.cleared.newest_at(key, at)
    }

    /// Appends the first parts of a range that were cleared up to `at`, each with its newest version, and
    /// returns the part of the range that these cover.
    pub(super) fn first_cleared(
        &self,
        range: &KeyRange,
        at: u64,
        reverse: bool,
        found: &mut Vec<(KeyRange, u64)>,
    ) -> KeyRange {
        let before = found.len();
        for part in directed(self.cleared.parts(range, at), reverse) {
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

    fn is_newer(&self, range: &KeyRange, version: u64) -> bool {
        let is_newer = |row: &Row| row.newest.version > version;
        let row_is_newer = || {
            if let Some(key) = range.only_key() {
                return self.rows.get(key).is_some_and(is_newer);
            }
            let mut rows = self.rows.range::<[u8], _>(bounds(range));
            rows.any(|(_, row)| is_newer(row))
        };
        self.cleared.is_newer(range, version)
            || self.touched.is_newer(range, version)
            || row_is_newer()
    }

    fn put(&mut self, key: &Bytes, version: u64, value: Option<Bytes>) {
        let state = State { version, value };
        match self.rows.entry(key.clone()) {
            Entry::Occupied(mut row) => {
                let row = row.get_mut();
                if state.value.is_none() && row.newest.value.is_some() {
                    self.dead.push_back((version, key.clone()));
                }
                let old = std::mem::replace(&mut row.newest, state);
                if old.version < version {
                    row.older.push(old);
                }
            }
            Entry::Vacant(row) => {
                let (newest, older) = (state, Vec::new());
                row.insert(Row { newest, older });
            }
        }
    }

    fn clear_range(&mut self, range: &KeyRange, version: u64) {
        if range.is_empty() {
            return;
        }
        // Rows that the same transaction wrote before have to go: a row at the clear's version counts as
        // written after it.
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

    /// False if nothing is left.
    fn roll_back(&mut self, version: u64) -> bool {
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
