//! The number of concurrent batches.
//!
//! More batches are faster until one of the servers is busy; beyond that, they only cost memory and cause time-outs.
//! That point is found by trying: the number changes one step at a time in the direction that last increased
//! throughput.

use tokio::time::Instant;

/// The initial number: CouchDB's number of workers.
const FIRST: usize = 4;

#[derive(Debug)]
pub(super) struct Concurrency {
    limit: usize,
    max: usize,
    step_up: bool,
    /// Work per second in the last window.
    rate: f64,
    since: Instant,
    work: u64,
    batches: usize,
    /// Whether the limit delayed a batch in this window; otherwise the window says nothing.
    saturated: bool,
}

impl Concurrency {
    pub(super) fn new(max: usize, now: Instant) -> Self {
        Self {
            limit: max.min(FIRST),
            max: max.max(1),
            step_up: true,
            rate: 0.0,
            since: now,
            work: 0,
            batches: 0,
            saturated: false,
        }
    }

    /// Whether another batch may start while `running` are in progress.
    pub(super) fn admits(&mut self, running: usize) -> bool {
        let admitted = running < self.limit;
        self.saturated |= !admitted;
        admitted
    }

    /// Records a finished batch and its amount of work.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a rate needs no more than 52 bits"
    )]
    pub(super) fn finished(&mut self, work: u64, now: Instant) {
        self.work += work;
        self.batches += 1;
        if self.batches < 4 * self.limit {
            return;
        }
        let elapsed = now.duration_since(self.since).as_secs_f64().max(1e-6);
        let rate = self.work as f64 / elapsed;
        if self.saturated {
            if rate < self.rate * 0.97 {
                self.step_up = !self.step_up;
            }
            self.rate = rate;
            let next = if self.step_up {
                self.limit + 1
            } else {
                self.limit.saturating_sub(1)
            };
            self.limit = next.clamp(1, self.max);
        }
        (self.since, self.work, self.batches, self.saturated) = (now, 0, 0, false);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Runs against a server with a given speed at each number of batches.
    fn settle(speed: impl Fn(usize) -> u64, max: usize) -> Vec<usize> {
        let mut now = Instant::now();
        let mut concurrency = Concurrency::new(max, now);
        let mut seen = Vec::new();
        for _ in 0..400 {
            assert!(!concurrency.admits(concurrency.limit));
            now += Duration::from_micros(1_000_000 / speed(concurrency.limit));
            concurrency.finished(1, now);
            seen.push(concurrency.limit);
        }
        seen.split_off(300)
    }

    #[test]
    fn finds_the_best_number() {
        let limits = settle(|running| 100 * running as u64, 8);
        assert!(limits.iter().all(|limit| *limit >= 7), "{limits:?}");
        let limits = settle(
            |running| {
                if running <= 4 {
                    100 * running as u64
                } else {
                    500 - 50 * running as u64
                }
            },
            9,
        );
        assert!(
            limits.iter().all(|limit| (3..=5).contains(limit)),
            "{limits:?}"
        );
        assert!(settle(|_| 100, 1).iter().all(|limit| *limit == 1));
    }

    #[test]
    fn a_slow_feed_says_nothing() {
        let now = Instant::now();
        let mut concurrency = Concurrency::new(8, now);
        for second in 0..100 {
            assert!(concurrency.admits(0));
            concurrency.finished(1, now + Duration::from_secs(second));
        }
        assert_eq!(concurrency.limit, FIRST);
    }
}
