//! Events of databases (`_db_updates`): the latest of each kind and database.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{PoisonError, RwLock};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
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

/// How unreliable `_db_updates` is: probabilities per 1,000 events.
#[derive(Clone, Copy, Debug, Default)]
pub struct FeedFaults {
    /// The event is lost, as when CouchDB's buffer of them is.
    pub lose: u32,
    /// The event of another database is reported again after it.
    pub repeat: u32,
    /// The event is reported after the next one.
    pub reorder: u32,
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
    faults: Option<(FeedFaults, StdRng)>,
    /// To be reported after the next event.
    held: Option<(Kind, String)>,
}

impl State {
    fn add(&mut self, kind: Kind, database: String) {
        self.seq += 1;
        let before = self.latest.insert((kind, database.clone()), self.seq);
        if let Some(before) = before {
            self.by_seq.remove(&before);
        }
        self.by_seq.insert(self.seq, (kind, database));
    }

    fn add_faulty(&mut self, kind: Kind, database: &str) {
        let event = (kind, database.to_owned());
        let Some((faults, rng)) = &mut self.faults else {
            return self.add(event.0, event.1);
        };
        let mut happens = |per_mille| rng.random_range(0..1000) < per_mille;
        let (lost, repeats) = (happens(faults.lose), happens(faults.repeat));
        let late = self.held.is_none() && happens(faults.reorder);
        let first = self.by_seq.first_key_value();
        let repeated = first.map(|(_, event)| event.clone()).filter(|_| repeats);
        let held = self.held.take();
        if late {
            self.held = Some(event);
        } else if !lost {
            self.add(event.0, event.1);
        }
        for (kind, database) in held.into_iter().chain(repeated) {
            self.add(kind, database);
        }
    }
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
        state.add_faulty(kind, database);
        self.updates.send_replace(state.seq);
    }

    pub(crate) fn set_faults(&self, seed: u64, faults: FeedFaults) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.faults = Some((faults, StdRng::seed_from_u64(seed)));
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
