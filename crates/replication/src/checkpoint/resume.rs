//! What a job keeps between runs, so that a repeated run takes few requests.
//!
//! ```text
//!   cold: opens both databases, reads both checkpoints, copies, writes both checkpoints
//!    │ ▲
//!    │ └───────────────────────────────────────────────────────────────────────┐
//!    │ ends without an error: the job keeps which checkpoints there are        │ a checkpoint is another one, or
//!    ▼                                                                         │ missing; or the run before failed
//!   warm: reads both checkpoints, copies ──────────────────────────────────────┘
//!    │
//!    ├─ too much was read since the checkpoints were written: writes both
//!    └─ otherwise: leaves them, and the next run reads the changes after them again
//! ```
//!
//! **Invariant:** every run starts from the checkpoints, which it reads; what the job keeps is never a position. A
//! database that was deleted, recreated, or restored from any backup is therefore detected as by a cold run, and so is a
//! checkpoint that was deleted or moved by another replicator. What was copied since the checkpoints is checked at the
//! target again and not relied on. That costs less than writing them after every run.
//!
//! Checkpoints are compared after reading them. That a write conflicts would not be enough: CouchDB 2 and later accept
//! any revision of a `_local` document.

use std::time::Duration;

use couch::Seq;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::writer::{Checkpointer, Side};
use super::{Log, number};

/// Changes that repeated runs may read, in total, before the checkpoints are written: about as expensive as writing.
const READ_MAX: u64 = 100;
/// The same once the checkpoints are older than `checkpoint_interval`.
const READ_MAX_OLD: u64 = 10;
/// Updates since the checkpoints, estimated from sequences, that a filtering source may examine again in each run.
const PASSED_MAX: u64 = 1_000;

/// What a job keeps from one run for the next. Its loss, or an old one, costs only requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The session that wrote the checkpoints.
    session: String,
    /// When it did, in milliseconds since 1970.
    written_ms: i64,
    /// `None` if only the target has a checkpoint.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    source: Option<Known>,
    target: Known,
    #[serde(flatten)]
    pub(crate) since: Since,
}

/// A side's checkpoint, and the instance of its database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    rev: String,
    started: String,
}

/// The work since the checkpoints were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Since {
    /// Changes read, counted every time.
    pub(crate) read: u64,
    /// Revisions checked at the target, counted once.
    pub(crate) checked: u64,
    /// Whether the feed should include documents.
    pub(crate) feed_docs: bool,
}

impl Resume {
    /// The instances of source and target, if these are still the checkpoints.
    pub(crate) fn started(
        &self,
        source_log: &Log,
        target_log: &Log,
    ) -> Option<(Option<&str>, &str)> {
        let is = |known: &Known, log: &Log| {
            log.session_id().and_then(Value::as_str) == Some(&self.session)
                && log.get("_rev").and_then(Value::as_str) == Some(&known.rev)
        };
        let source_is = self
            .source
            .as_ref()
            .is_none_or(|known| is(known, source_log));
        let source = self.source.as_ref().map(|known| &*known.started);
        (source_is && is(&self.target, target_log)).then_some((source, &*self.target.started))
    }

    pub(crate) fn has_source(&self) -> bool {
        self.source.is_some()
    }

    /// Whether the checkpoints may stay as they are when a run has read so many changes.
    pub(crate) fn defers(&self, read: u64, interval: Duration, now: Timestamp) -> bool {
        let age_ms = now.as_millisecond().saturating_sub(self.written_ms);
        let is_old = u128::try_from(age_ms).is_ok_and(|age| age >= interval.as_millis());
        self.since.read + read <= if is_old { READ_MAX_OLD } else { READ_MAX }
    }
}

/// Whether `to` is so far ahead that a filtering source should not have to start at `from` again.
pub(crate) fn is_far(from: &Seq, to: &Seq) -> bool {
    number(from)
        .zip(number(to))
        .is_none_or(|(from, to)| to.saturating_sub(from) > PASSED_MAX)
}

impl Checkpointer {
    /// What the job should keep. `None` if the checkpoints differ, or there are none.
    pub(crate) fn resume(&self, before: Option<&Resume>, since: Since) -> Option<Resume> {
        let session = self.target.log.session_id()?.as_str()?.to_owned();
        let known = |side: &Side| {
            let rev = side.log.get("_rev")?.as_str()?.to_owned();
            let is_same = side.log.session_id()?.as_str()? == session;
            let started = side.instance_start_time.clone();
            is_same.then_some(Known { rev, started })
        };
        let written = self.written.map(Timestamp::as_millisecond);
        Some(Resume {
            source: if self.both {
                Some(known(&self.source)?)
            } else {
                None
            },
            target: known(&self.target)?,
            // Without a time they count as old.
            written_ms: written
                .or(before.map(|before| before.written_ms))
                .unwrap_or(0),
            since,
            session,
        })
    }
}
