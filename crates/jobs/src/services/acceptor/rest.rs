//! What an acceptor does between two claims.

use std::time::Duration;

use store::Watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::handle::Wanted;
use super::{Acceptor, division};
use crate::Accepted;
use crate::model::clock::millis;
use crate::operations::effects::POLL_MS;
use crate::services::type_watcher::changed_or_never;
use crate::testing::planted::Bug;

/// Time until a sleeper's first polls, woken or not; [`POLL_MS`] after that.
const POLLS: [Duration; 2] = [Duration::from_millis(30), Duration::from_millis(300)];

/// What an acceptor does between two claims.
pub(super) enum Rest {
    /// Waits until the next job falls due or the row changes. Without a watch, because the store has none left, it polls.
    Asleep {
        next_due_ms: Option<i64>,
        watch: Option<Watch>,
    },
    /// Leaves jobs to those that it has woken for them.
    Left,
}

/// What ended a sleep.
enum Woken {
    Stop,
    Poll,
    Returned(Vec<Accepted>),
    Requested,
}

impl Acceptor {
    /// Waits until there may be work. False when the service is stopped.
    pub(super) async fn rest(&mut self, token: &CancellationToken, rest: Rest) -> bool {
        let (until, watch) = match rest {
            Rest::Asleep { next_due_ms, watch } => {
                self.next_due_ms = next_due_ms;
                let until = self.next_poll(next_due_ms, watch.is_some());
                (until, watch)
            }
            Rest::Left => (Instant::now() + division::LEFT, None),
        };
        let changed = changed_or_never(watch);
        tokio::pin!(changed);
        loop {
            let woken = tokio::select! {
                biased;
                () = token.cancelled() => Woken::Stop,
                Some(jobs) = self.returned.recv() => Woken::Returned(jobs),
                () = &mut changed => Woken::Poll,
                () = sleep_until(until) => Woken::Poll,
                Some(request) = self.requests.recv() => {
                    self.enqueue(request);
                    Woken::Requested
                }
            };
            match woken {
                Woken::Stop => return false,
                Woken::Requested => {
                    self.gather();
                    if self.waiting.iter().any(Wanted::is_poll) {
                        break;
                    }
                    self.end_runs().await;
                }
                Woken::Returned(jobs) => self.give_back(jobs).await,
                Woken::Poll => break,
            }
        }
        self.gather();
        if self.waiting.is_empty() {
            // It may have been woken for a job that no worker here waits for any more.
            self.remove_sleeper().await;
        }
        true
    }

    /// When to poll if nothing happens before.
    fn next_poll(&mut self, next_due_ms: Option<i64>, watched: bool) -> Instant {
        let poll = Duration::from_millis(POLL_MS.unsigned_abs());
        let first = POLLS.get(self.polls).copied();
        self.polls += 1;
        let mut wait = first.unwrap_or(if watched { poll } else { poll / 5 });
        wait = wait / 2 + self.jobs.entropy().up_to(wait / 2);
        if self.jobs.planted().is(Bug::WakesNoSleeper) {
            wait = Duration::from_hours(24);
        }
        if let Some(due_ms) = next_due_ms {
            let until_due = due_ms.saturating_sub(self.jobs.clock().now_ms()).max(0);
            wait = wait.min(Duration::from_millis(until_due.unsigned_abs()));
        }
        debug_assert!(millis(wait) >= 0, "a wait is not negative");
        Instant::now() + wait
    }
}
