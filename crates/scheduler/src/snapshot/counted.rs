//! The numbers of remotes as last read, for all who ask within a short time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use docstore::InstanceId;
use serde_json::Value;
use tokio::time::Instant;

use super::lasts;
use crate::data::RemoteId;

/// Remotes, and their earlier revisions, whose numbers are kept.
const SLOTS_MAX: usize = 2_000;

/// The numbers of a remote.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) counts: Value,
    version: u64,
    made: Instant,
    took: Duration,
}

type Slot = Arc<tokio::sync::Mutex<Option<Counted>>>;
/// The database, the document and its revision.
type Key = (InstanceId, String, String);

#[derive(Debug, Default)]
pub(crate) struct Counts(Mutex<BTreeMap<Key, Slot>>);

impl Counted {
    pub(crate) fn new(counts: Value, version: u64, began: Instant) -> Self {
        Self {
            counts,
            version,
            made: Instant::now(),
            took: began.elapsed(),
        }
    }

    pub(crate) fn is_fresh(&self, version: u64) -> bool {
        self.version == version && lasts(self.made, self.took)
    }
}

impl Counts {
    pub(crate) fn slot(&self, of: &RemoteId<'_>) -> Slot {
        let key = (of.instance, of.doc_id.to_owned(), of.rev.to_owned());
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= SLOTS_MAX && !slots.contains_key(&key) {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        Arc::clone(slots.entry(key).or_default())
    }
}
