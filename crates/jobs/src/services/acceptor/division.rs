//! Acceptors of several nodes that all have free workers get about the same number of jobs.
//!
//! Without this, one of them can get nearly all, for two reasons. When a scheduled job falls due, all acceptors claim it, and
//! the one whose store or clock is a little faster always wins; the others' claims conflict with its own. And a claim takes
//! the jobs that the ends of runs in its transaction have made ready, although a sleeper was woken for them.
//!
//! So acceptors that sleep, or did lately, divide scheduled jobs by their ids: each job belongs to one of them, and the others
//! leave it alone for several times as long as a claim takes. And an acceptor that ends runs leaves half of what that makes ready
//! to those that it has woken. Without another that sleeps nothing is divided, nor for workers of other processes, which divide
//! the work by asking for it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::Op;
use crate::model::clock::millis;
use crate::operations::division::Division;

/// How long an acceptor that was seen asleep is believed to want jobs.
const WANTS: Duration = Duration::from_secs(5);
/// How long jobs of others are left to them.
const LEFT_CLAIMS: i64 = 4;
const LEFT_MIN_MS: i64 = 5;
const LEFT_MAX_MS: i64 = 250;
/// How long an acceptor does not claim after it has left jobs to those that it woke.
pub(super) const LEFT: Duration = Duration::from_millis(10);

/// Acceptors of the type, perhaps this one too, and when they were last seen asleep.
#[derive(Debug, Default)]
pub(super) struct Others {
    asleep: BTreeMap<u64, Instant>,
    /// The time of the longest claim lately, a little less after each.
    claim: Duration,
}

impl Others {
    pub(super) fn seen(&mut self, acceptors: Vec<u64>) {
        let now = Instant::now();
        self.asleep
            .extend(acceptors.into_iter().map(|number| (number, now)));
    }

    pub(super) fn claimed_in(&mut self, time: Duration) {
        self.claim = time.max(self.claim * 15 / 16);
    }

    /// Which jobs an acceptor leaves to the others, and for how long.
    pub(super) fn division(&mut self, own: u64) -> Division {
        self.asleep.retain(|_, at| at.elapsed() < WANTS);
        Division {
            own,
            others: self.asleep.keys().copied().collect(),
            left_ms: (LEFT_CLAIMS * millis(self.claim)).clamp(LEFT_MIN_MS, LEFT_MAX_MS),
        }
    }
}

/// Whether to leave to others what the ends of runs make ready. The same in all attempts of a transaction.
pub(super) fn leaves(op: &Op) -> bool {
    op.seed().is_multiple_of(2)
}
