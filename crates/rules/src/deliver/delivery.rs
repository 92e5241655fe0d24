//! The data of a delivery's job: the call, and what its attempts led to.

use jobs::{Entropy, Finish};
use serde::{Deserialize, Serialize};

use crate::rule::call::{Attempt, Call, Outcome};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Delivery {
    pub(super) call: Call,
    /// Calls made.
    #[serde(default)]
    pub(super) attempts: u32,
    /// Failed calls in a row.
    #[serde(default)]
    pub(super) failures: u32,
    /// An operator has asked for it again.
    #[serde(default)]
    pub(super) replay: bool,
    #[serde(default)]
    pub(super) last: Option<Attempt>,
}

impl Delivery {
    pub(super) fn new(call: &Call) -> Self {
        Self {
            call: call.clone(),
            attempts: 0,
            failures: 0,
            replay: false,
            last: None,
        }
    }

    /// A newer call in its place, with its attempts.
    pub(super) fn replaced_by(self, call: Call) -> Self {
        let call = Call {
            hops: hops(self.call.hops, &call),
            target: None,
            ..call
        };
        Self { call, ..self }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a delivery has only text keys")
    }

    /// Ends the run of the job after an attempt. The second value is the outcome with `retry.limit` applied.
    pub(super) fn end(
        mut self,
        attempt: Attempt,
        outcome: Outcome,
        entropy: &Entropy,
    ) -> (Finish, Outcome) {
        let ended_ms = attempt.at_ms.saturating_add_unsigned(attempt.took_ms);
        let reason = attempt.summary();
        self.attempts = self.attempts.saturating_add(1);
        self.failures = match outcome {
            Outcome::Delivered => 0,
            Outcome::Failed(_) | Outcome::Dead => self.failures.saturating_add(1),
        };
        self.last = Some(attempt);
        let exhausted = self
            .call
            .retry
            .limit
            .is_some_and(|limit| self.failures > limit);
        let (finish, outcome) = match outcome {
            Outcome::Delivered => {
                let finish = Finish {
                    reason: Some(reason),
                    ..Finish::done()
                };
                (finish, outcome)
            }
            Outcome::Failed(retry_after) if !exhausted => {
                let wait = self.call.retry.delay(self.failures, entropy);
                let wait = wait.max(retry_after.unwrap_or_default());
                let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                let finish = Finish {
                    again_ms: Some(ended_ms.saturating_add_unsigned(wait_ms)),
                    ..Finish::failed(reason)
                };
                (finish, outcome)
            }
            Outcome::Failed(_) | Outcome::Dead => (Finish::dead(reason), Outcome::Dead),
        };
        (finish.data(self.encode()), outcome)
    }
}

/// The hops of a call that replaces one with so many. Debounced calls are about several changes: the one with the fewest
/// hops decides whether they are made.
pub(super) fn hops(before: u32, call: &Call) -> u32 {
    if call.debounce {
        before.min(call.hops)
    } else {
        call.hops
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::deliver::testing::call;
    use crate::rule::call::Retry;

    fn attempt(status: u16) -> Attempt {
        Attempt {
            at_ms: 1_000,
            took_ms: 20,
            status: Some(status),
            error: None,
            body: "body".into(),
        }
    }

    /// Seconds until a call is repeated that has failed this often before, or `None` if it is dead.
    fn wait(retry: Retry, failures: u32, retry_after: Option<u64>) -> Option<f64> {
        let call = Call {
            retry,
            ..call("http://a/")
        };
        let delivery = Delivery {
            failures,
            ..Delivery::new(&call)
        };
        let outcome = Outcome::of_status(503, retry_after.map(Duration::from_secs));
        let (finish, outcome) = delivery.end(attempt(500), outcome, &Entropy::seeded(1));
        assert_eq!(finish.dead, outcome == Outcome::Dead);
        assert!(finish.failed);
        assert_eq!(finish.reason.as_deref(), Some("500 in 20 ms"));
        #[expect(clippy::cast_precision_loss, reason = "it is small")]
        finish
            .again_ms
            .map(|at_ms| (at_ms - 1_020) as f64 / 1_000.0)
    }

    #[test]
    fn sp_t001_to_t005_delays_grow_up_to_a_limit() {
        let near = |wait: Option<f64>, expected: f64| {
            let wait = wait.unwrap();
            assert!(
                wait >= expected * 0.79 && wait <= expected * 1.21,
                "{wait} {expected}"
            );
        };
        let retry = Retry::default();
        for (failures, expected) in [
            (0, 5.0),
            (1, 10.0),
            (2, 20.0),
            (3, 40.0),
            (9, 2_560.0),
            (10, 3_600.0),
            (u32::MAX, 3_600.0),
        ] {
            near(wait(retry, failures, None), expected);
        }
        let linear = Retry {
            multiplier: 1.0,
            ..retry
        };
        near(wait(linear, 2, None), 5.0);
        let tripled = Retry {
            multiplier: 3.0,
            ..retry
        };
        near(wait(tripled, 4, None), 405.0);
        let at_once = Retry {
            delay_sec: 0.0,
            ..retry
        };
        for failures in 0..3 {
            assert_eq!(wait(at_once, failures, None), Some(0.0), "{failures}");
        }
        for failures in [3, 2_000, u32::MAX] {
            near(wait(at_once, failures, None), 1.0);
        }
        let never_later = Retry {
            max_delay_sec: 0.0,
            ..retry
        };
        near(wait(never_later, 3, None), 1.0);
        let nonsense = Retry {
            delay_sec: f64::NAN,
            multiplier: -1.0,
            max_delay_sec: f64::NAN,
            limit: None,
        };
        near(wait(nonsense, 3, None), 3_600.0);
    }

    #[test]
    fn sp_t002_to_t003_and_t033_a_limit_leads_to_dead_letters() {
        let retry = Retry {
            limit: Some(3),
            ..Retry::default()
        };
        for failures in 0..3 {
            assert!(wait(retry, failures, None).is_some(), "{failures}");
        }
        for failures in [3, 4] {
            assert_eq!(wait(retry, failures, None), None);
        }
        let never = Retry {
            limit: Some(0),
            ..retry
        };
        assert_eq!(wait(never, 0, None), None);
    }

    #[test]
    fn receivers_may_ask_for_a_longer_delay() {
        let retry = Retry::default();
        assert_eq!(wait(retry, 0, Some(120)), Some(120.0));
        assert_eq!(wait(retry, 0, Some(1_000_000)), Some(86_400.0));
        assert!(wait(retry, 3, Some(1)).unwrap() > 30.0);
        let asked = Some(Duration::from_secs(7));
        for (status, outcome) in [
            (200, Outcome::Delivered),
            (201, Outcome::Delivered),
            (204, Outcome::Delivered),
            (301, Outcome::Failed(None)),
            (307, Outcome::Failed(None)),
            (400, Outcome::Failed(None)),
            (404, Outcome::Failed(None)),
            (408, Outcome::Failed(asked)),
            (410, Outcome::Dead),
            (425, Outcome::Failed(asked)),
            (429, Outcome::Failed(asked)),
            (503, Outcome::Failed(asked)),
        ] {
            assert_eq!(Outcome::of_status(status, asked), outcome, "{status}");
        }
    }
}
