//! Events of databases (`_db_updates`): the latest of each kind and database.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{PoisonError, RwLock};

use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Created,
    Updated,
    Deleted,
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Deleted => "deleted",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Events {
    state: RwLock<State>,
    updates: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    seq: u64,
    by_seq: BTreeMap<u64, (Kind, String)>,
    latest: HashMap<(Kind, String), u64>,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self {
            state: RwLock::default(),
            updates: watch::Sender::new(0),
        }
    }

    pub(crate) fn add(&self, kind: Kind, database: &str) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.seq += 1;
        let seq = state.seq;
        if let Some(before) = state.latest.insert((kind, database.to_owned()), seq) {
            state.by_seq.remove(&before);
        }
        state.by_seq.insert(seq, (kind, database.to_owned()));
        self.updates.send_replace(seq);
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.updates.subscribe()
    }

    pub(crate) fn seq(&self) -> u64 {
        *self.updates.borrow()
    }

    /// Events after `since`, up to `until`, in order.
    pub(crate) fn after(&self, since: u64, until: u64) -> Vec<(u64, Kind, String)> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let range = (Bound::Excluded(since), Bound::Included(until.max(since)));
        state
            .by_seq
            .range(range)
            .map(|(seq, (kind, name))| (*seq, *kind, name.clone()))
            .collect()
    }
}
