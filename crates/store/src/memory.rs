//! The executable specification: every version of every row in a `BTreeMap`, real conflict
//! detection, nothing durable.
//!
//! A row is a list of (version, value), newest last; `None` is a deletion. A snapshot reads the
//! newest entry up to its version. A commit conflicts if a commit after its snapshot wrote to a range
//! that it read. Versions that no live snapshot can see are dropped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::limits::PAGE_BYTES;
use crate::pending::{CommitRequest, Mutation, Stamp, add, rest_after};
use crate::range::{Page, directed};
use crate::watch::Watches;
use crate::{Error, KeyRange, KeyValue, RangeOptions, Result};

#[derive(Debug, Default)]
pub(crate) struct Memory {
    state: Mutex<State>,
    pub(crate) watches: Watches,
}

#[derive(Debug, Default)]
struct State {
    version: u64,
    rows: BTreeMap<Bytes, Vec<(u64, Option<Bytes>)>>,
    /// Commits that a live snapshot has not seen, oldest first.
    commits: VecDeque<Committed>,
    /// The number of snapshots at each version.
    live: BTreeMap<u64, usize>,
}

#[derive(Debug)]
struct Committed {
    version: u64,
    writes: Vec<KeyRange>,
    keys: Vec<Bytes>,
}

/// The rows as they were at one version.
#[derive(Debug)]
pub(crate) struct MemorySnapshot {
    memory: Arc<Memory>,
    version: u64,
}

impl Memory {
    pub(crate) fn snapshot(self: &Arc<Self>) -> MemorySnapshot {
        let mut state = self.lock();
        let version = state.version;
        *state.live.entry(version).or_default() += 1;
        MemorySnapshot {
            memory: Arc::clone(self),
            version,
        }
    }

    pub(crate) fn commit(&self, request: CommitRequest) -> Result<Stamp> {
        let (stamp, keys) = self.lock().commit(request)?;
        self.watches.wake(&keys);
        Ok(stamp)
    }

    /// The newest value of a key, for watches.
    pub(crate) fn latest(&self, key: &[u8]) -> Option<Bytes> {
        let state = self.lock();
        state.value(key, state.version)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics halfway through a change, so a poisoned lock still guards a consistent state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn commit(&mut self, request: CommitRequest) -> Result<(Stamp, Vec<Bytes>)> {
        if let Some(read_version) = request.read_version {
            let unseen = (self.commits.iter().rev())
                .take_while(|commit| commit.version > read_version)
                .flat_map(|commit| &commit.writes);
            if conflict(request.reads, unseen) {
                return Err(Error::Conflict);
            }
        }
        self.version += 1;
        let mut stamp = [0; 10];
        stamp[..8].copy_from_slice(&self.version.to_be_bytes());
        let (mut writes, mut keys) = (request.writes, Vec::new());
        for mutation in request.mutations {
            let mutation = mutation.resolve(&stamp);
            writes.push(mutation.range());
            self.apply(mutation, &mut keys);
        }
        self.commits.push_back(Committed {
            version: self.version,
            writes,
            keys: keys.clone(),
        });
        self.forget();
        Ok((stamp, keys))
    }

    fn apply(&mut self, mutation: Mutation, keys: &mut Vec<Bytes>) {
        let mut put = |key: Bytes, value: Option<Bytes>| {
            keys.push(key.clone());
            let versions = self.rows.entry(key).or_default();
            versions.push((self.version, value));
        };
        match mutation {
            Mutation::Set { key, value } => put(key, Some(value)),
            Mutation::Clear { key } => put(key, None),
            Mutation::Add { key, delta } => {
                let sum = add(self.value(&key, self.version).as_deref(), delta);
                self.apply(Mutation::Set { key, value: sum }, keys);
            }
            Mutation::ClearRange { range } => {
                let cleared: Vec<Bytes> = (self.rows.range(range.begin..range.end))
                    .filter(|(_, versions)| visible(versions, self.version).is_some())
                    .map(|(key, _)| key.clone())
                    .collect();
                for key in cleared {
                    self.apply(Mutation::Clear { key }, keys);
                }
            }
            Mutation::StampedKey { .. } | Mutation::StampedValue { .. } => {
                unreachable!("resolve has filled in the stamps")
            }
        }
    }

    fn value(&self, key: &[u8], version: u64) -> Option<Bytes> {
        visible(self.rows.get(key)?, version)
    }

    /// Drops the versions that no present or future snapshot can see.
    fn forget(&mut self) {
        let floor = self.live.keys().next().copied().unwrap_or(self.version);
        while let Some(commit) = self.commits.front().filter(|c| c.version <= floor) {
            for key in &commit.keys {
                let Some(versions) = self.rows.get_mut(key) else {
                    continue;
                };
                let newer = versions.partition_point(|(version, _)| *version <= floor);
                // Of the versions older than every snapshot, keep the newest unless it is a deletion.
                let deleted = newer > 0 && versions[newer - 1].1.is_none();
                versions.drain(
                    ..if deleted {
                        newer
                    } else {
                        newer.saturating_sub(1)
                    },
                );
                if versions.is_empty() {
                    self.rows.remove(key);
                }
            }
            self.commits.pop_front();
        }
    }
}

impl MemorySnapshot {
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.memory.lock().value(key, self.version)
    }

    pub(crate) fn page(&self, range: &KeyRange, options: RangeOptions) -> Page {
        let RangeOptions { limit, reverse } = options;
        let mut page = Page {
            rows: Vec::new(),
            rest: None,
        };
        if range.is_empty() {
            return page;
        }
        let state = self.memory.lock();
        let mut bytes = 0;
        let rows = state.rows.range(range.begin.clone()..range.end.clone());
        for (key, versions) in directed(rows, reverse) {
            let Some(value) = visible(versions, self.version) else {
                continue;
            };
            bytes += key.len() + value.len();
            let key = key.clone();
            page.rows.push(KeyValue { key, value });
            if bytes >= PAGE_BYTES || limit.is_some_and(|limit| page.rows.len() >= limit) {
                let last = &page.rows[page.rows.len() - 1].key;
                page.rest = rest_after(range, last, reverse);
                break;
            }
        }
        page
    }
}

impl Drop for MemorySnapshot {
    fn drop(&mut self) {
        let mut state = self.memory.lock();
        if let Some(count) = state.live.get_mut(&self.version) {
            *count -= 1;
            if *count == 0 {
                state.live.remove(&self.version);
            }
        }
    }
}

/// Whether a read and a write have a key in common.
fn conflict<'a>(mut reads: Vec<KeyRange>, writes: impl Iterator<Item = &'a KeyRange>) -> bool {
    reads.retain(|read| !read.is_empty());
    reads.sort_unstable_by(|a, b| a.begin.cmp(&b.begin));
    // Where the reads so far end, so that one search finds the last of those that begin before a write ends.
    let mut last = Bytes::new();
    for read in &mut reads {
        last = last.max(read.end.clone());
        read.end = last.clone();
    }
    let mut writes = writes.filter(|write| !write.is_empty());
    writes.any(|write| {
        let before = reads.partition_point(|read| read.begin < write.end);
        before > 0 && write.begin < reads[before - 1].end
    })
}

fn visible(versions: &[(u64, Option<Bytes>)], version: u64) -> Option<Bytes> {
    let newest = versions.iter().rev().find(|(v, _)| *v <= version)?;
    newest.1.clone()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compared with looking at each pair.
        #[test]
        fn conflicts_are_found(
            reads in prop::collection::vec((0u8..20, 0u8..4), 0..6),
            writes in prop::collection::vec((0u8..20, 0u8..4), 0..3),
        ) {
            let range = |(begin, length): (u8, u8)| KeyRange::new(vec![begin], vec![begin + length]);
            let reads: Vec<_> = reads.into_iter().map(range).collect();
            let writes: Vec<_> = writes.into_iter().map(range).collect();
            let pairs = reads.iter().any(|read| writes.iter().any(|write| read.intersects(write)));
            prop_assert_eq!(conflict(reads, writes.iter()), pairs);
        }
    }
}
