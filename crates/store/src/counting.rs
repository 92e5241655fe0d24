//! Counts what transactions read and write, by the beginning of their keys: which rows and tables
//! are hot. A handle counts only if it was asked to ([`Store::counted`](crate::Store::counted)).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::KeyRange;
use crate::pending::Mutation;

/// The part of a key under which it is counted.
pub type Part = fn(&[u8]) -> &[u8];

/// What transactions did below one prefix.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Keys and pages of ranges that were read, in every attempt; a page under its first key.
    pub reads: u64,
    /// The bytes of keys and values that were read.
    pub read_bytes: u64,
    /// Keys, and ranges under their first key, that committed transactions wrote.
    pub writes: u64,
    /// The bytes of keys and values that were written.
    pub written_bytes: u64,
    /// Attempts that ended in a conflict and had read here: one of them is what they conflicted over.
    pub conflicts: u64,
}

/// The counters of a handle, cheap to clone.
#[derive(Debug, Clone)]
pub struct Counting {
    part: Part,
    traffic: Arc<Mutex<BTreeMap<Bytes, Traffic>>>,
}

impl Counting {
    pub(crate) fn new(part: Part) -> Self {
        let traffic = Arc::default();
        Self { part, traffic }
    }

    /// What was counted since the last call, by prefix.
    pub fn take(&self) -> BTreeMap<Bytes, Traffic> {
        std::mem::take(&mut *self.traffic.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn read(&self, key: &[u8], bytes: usize) {
        self.count(key, |traffic| {
            traffic.reads += 1;
            traffic.read_bytes += bytes as u64;
        });
    }

    pub(crate) fn written(&self, mutations: &[Mutation]) {
        for mutation in mutations {
            let (key, bytes) = match mutation {
                Mutation::Set { key, value }
                | Mutation::StampedKey { key, value, .. }
                | Mutation::StampedValue { key, value, .. } => (key, value.len()),
                Mutation::Clear { key } => (key, 0),
                Mutation::Add { key, .. } => (key, size_of::<i64>()),
                Mutation::ClearRange { range } => (&range.begin, range.end.len()),
            };
            self.count(key, |traffic| {
                traffic.writes += 1;
                traffic.written_bytes += (key.len() + bytes) as u64;
            });
        }
    }

    pub(crate) fn conflict(&self, reads: &[KeyRange]) {
        let parts: BTreeSet<&[u8]> = (reads.iter())
            .map(|range| (self.part)(&range.begin))
            .collect();
        for part in parts {
            self.count(part, |traffic| traffic.conflicts += 1);
        }
    }

    fn count(&self, key: &[u8], count: impl FnOnce(&mut Traffic)) {
        let part = (self.part)(key);
        let mut all = self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(part) {
            Some(traffic) => count(traffic),
            None => count(all.entry(Bytes::copy_from_slice(part)).or_default()),
        }
    }
}
