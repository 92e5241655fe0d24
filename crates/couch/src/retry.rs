//! Retries of failed requests.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::Failure;

const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_mins(5);

#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryPolicy {
    /// Repetitions after the first attempt.
    pub(crate) retries: u32,
    /// No repetition begins later than this after the first failure, so that a request that fails
    /// slowly is not taken for a healthy one.
    pub(crate) window: Duration,
}

/// The attempts at one request.
pub(crate) struct Retry {
    policy: RetryPolicy,
    attempts: u32,
    wait: Duration,
    first_failure: Option<Instant>,
}

impl Retry {
    pub(crate) fn new(policy: RetryPolicy) -> Self {
        Self {
            policy,
            attempts: 0,
            wait: FIRST_WAIT,
            first_failure: None,
        }
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Records a failed attempt; returns how long to wait before the next, or the failure
    /// when there is none.
    pub(crate) fn after(&mut self, failure: Failure, now: Instant) -> Result<Duration, Failure> {
        self.attempts += 1;
        let late = self
            .first_failure
            .is_some_and(|first| now.saturating_duration_since(first) > self.policy.window);
        if self.attempts > self.policy.retries || late {
            return Err(failure);
        }
        self.first_failure.get_or_insert(now);
        let wait = self.wait;
        self.wait = (wait * 2).min(LONGEST_WAIT);
        Ok(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(retries: u32, window_ms: u64, each_attempt: Duration) -> Vec<u64> {
        let window = Duration::from_millis(window_ms);
        let mut retry = Retry::new(RetryPolicy { retries, window });
        let mut now = Instant::now();
        let mut waits = Vec::new();
        loop {
            now += each_attempt;
            match retry.after(Failure::Connection(String::new()), now) {
                Ok(wait) => {
                    waits.push(u64::try_from(wait.as_millis()).unwrap());
                    now += wait;
                }
                Err(_) => return waits,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waits_double_up_to_five_minutes() {
        assert_eq!(
            waits(5, 60_000, Duration::ZERO),
            [250, 500, 1000, 2000, 4000]
        );
        assert_eq!(waits(0, 60_000, Duration::ZERO), [0; 0]);
        let long = waits(14, u64::MAX, Duration::ZERO);
        assert_eq!(long[10..], [256_000, 300_000, 300_000, 300_000]);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_failures_end_with_the_window() {
        assert_eq!(waits(100, 60_000, Duration::from_secs(30)), [250, 500]);
    }
}
