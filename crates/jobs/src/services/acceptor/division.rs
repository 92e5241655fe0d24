//! Acceptors of several nodes that all have free workers get about the same number of jobs.
//!
//! Without this, one of them can get nearly all, for two reasons. When a scheduled job falls due, all sleeping acceptors
//! claim it, and the one whose timers are a fraction of a millisecond early always wins. And a claim takes the jobs that
//! the ends of runs in its transaction have made ready, although a sleeper was woken for them.
//!
//! So an acceptor that has won lets the others go first for a few milliseconds the next time, and an acceptor that ends
//! runs leaves half of what that makes ready to those that it has woken. Neither happens while no other acceptor sleeps,
//! or to workers of other processes, which divide the work by asking for it.

use std::time::Duration;

use crate::{Jobs, Op};

/// How long the one that won last waits, in half milliseconds. Timers are as coarse as a millisecond.
const WON: u32 = 8;
/// How long an acceptor does not claim after it has left jobs to those that it woke.
pub(super) const LEFT: Duration = Duration::from_millis(10);

/// What an acceptor took lately.
#[derive(Debug, Default)]
pub(super) struct Division {
    won: u32,
    /// It was woken by the clock, as others may have been.
    races: bool,
}

impl Division {
    /// A job falls due of which all know: how long to let others go first.
    pub(super) fn race(&mut self, jobs: &Jobs) -> Duration {
        self.races = true;
        let any = jobs.entropy().up_to(Duration::from_millis(1));
        any + Duration::from_micros(500) * self.won
    }

    /// The next claim has found jobs, or none.
    pub(super) fn claimed(&mut self, jobs: usize) {
        if std::mem::take(&mut self.races) {
            self.won = if jobs > 0 { WON } else { self.won / 2 };
        }
    }
}

/// Whether to leave to others what the ends of runs make ready. The same in all attempts of a transaction.
pub(super) fn leaves(op: &Op) -> bool {
    op.seed().is_multiple_of(2)
}
