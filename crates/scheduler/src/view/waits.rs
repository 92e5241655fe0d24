//! What replications wait for.

use jobs::State;
use serde_json::Value;

use super::Seen;
use crate::data::{Asleep, iso};
use crate::limits;
use crate::wake::ASLEEP_MS;

impl Seen {
    /// The limit that a due replication waits for.
    pub(super) fn limit(&self) -> Option<(String, Value)> {
        let limit = limits::shown(self.info.waits_for.as_ref()?);
        Some(("waits_for".to_owned(), limit.into()))
    }

    /// Of a sleeping replication: when it ran last, when it runs next, and why it waits.
    pub(super) fn sleep(&self, asleep: &Asleep) -> Vec<(String, Value)> {
        // Until its run has ended, the time is that of this run.
        let is_over = self.info.state != State::Running;
        let due_ms = Some(self.info.due_ms).filter(|due_ms| is_over && *due_ms < ASLEEP_MS);
        let has_changed = self.info.asked_ms.is_some() || asleep.wake.seq.is_null();
        let waits_for = match (&asleep.watches, due_ms) {
            _ if has_changed => "its next run: its source has changed",
            _ if asleep.polls => "its next run: the server of the source is not followed",
            (Some(_), None) => "a change of the source",
            (Some(_), Some(_)) => "a change of the source, or its next run",
            (None, _) => "its next run",
        };
        let next_run = due_ms.map(|due_ms| iso(due_ms.div_euclid(1000)));
        vec![
            ("asleep".to_owned(), true.into()),
            ("last_run".to_owned(), iso(self.data.last_start).into()),
            ("next_run".to_owned(), next_run.into()),
            ("waits_for".to_owned(), waits_for.into()),
        ]
    }
}
