//! Slows down who guesses passwords: after a few failures a name and an address have to wait, twice
//! as long after each further one.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::AuthError;

/// Failures that cost nothing: people mistype.
const FREE: u32 = 5;
const WAIT: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_mins(5);
/// A quiet time after which all is forgotten.
const FORGIVEN: Duration = Duration::from_mins(15);
const KEYS_MAX: usize = 100_000;

/// Failed logins by key: a user's name, or an address.
#[derive(Debug, Default)]
pub struct Throttle(Mutex<HashMap<String, Failures>>);

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
}

impl Failures {
    fn wait_until(&self) -> Instant {
        let excess = self.count.saturating_sub(FREE);
        if excess == 0 {
            return self.last;
        }
        self.last + WAIT.saturating_mul(1 << (excess - 1).min(16)).min(WAIT_MAX)
    }
}

impl Throttle {
    /// Refuses when one of the keys has to wait.
    pub fn check(&self, keys: &[&str]) -> Result<(), AuthError> {
        let now = Instant::now();
        let failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let until = keys
            .iter()
            .filter_map(|key| failures.get(*key))
            .map(Failures::wait_until)
            .max();
        match until {
            Some(until) if until > now => Err(AuthError::Throttled {
                seconds: (until - now).as_secs() + 1,
            }),
            _ => Ok(()),
        }
    }

    /// Counts a failure, or forgets all of them after a success.
    pub fn record(&self, keys: &[&str], success: bool) {
        let now = Instant::now();
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if success {
            for key in keys {
                failures.remove(*key);
            }
            return;
        }
        if failures.len() >= KEYS_MAX {
            failures.retain(|_, failure| now - failure.last < FORGIVEN);
        }
        for key in keys {
            let failure = failures.entry((*key).to_owned()).or_insert(Failures {
                count: 0,
                last: now,
            });
            if now - failure.last >= FORGIVEN {
                failure.count = 0;
            }
            failure.count += 1;
            failure.last = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::{AuthError, Throttle};

    #[tokio::test(start_paused = true)]
    async fn guessing_gets_slower_and_is_forgiven() {
        let throttle = Throttle::default();
        for _ in 0..5 {
            throttle.record(&["anna", "10.0.0.1"], false);
            assert_eq!(throttle.check(&["anna"]), Ok(()));
        }
        throttle.record(&["anna", "10.0.0.1"], false);
        assert_eq!(
            throttle.check(&["anna"]),
            Err(AuthError::Throttled { seconds: 2 })
        );
        assert_eq!(
            throttle.check(&["bert", "10.0.0.1"]),
            Err(AuthError::Throttled { seconds: 2 })
        );
        assert_eq!(throttle.check(&["bert", "10.0.0.2"]), Ok(()));
        advance(Duration::from_secs(1)).await;
        assert_eq!(throttle.check(&["anna"]), Ok(()));
        throttle.record(&["anna"], false);
        assert_eq!(
            throttle.check(&["anna"]),
            Err(AuthError::Throttled { seconds: 3 })
        );
        throttle.record(&["anna"], true);
        assert_eq!(throttle.check(&["anna"]), Ok(()));
        for _ in 0..40 {
            throttle.record(&["anna"], false);
        }
        assert_eq!(
            throttle.check(&["anna"]),
            Err(AuthError::Throttled { seconds: 301 })
        );
        advance(Duration::from_mins(15)).await;
        throttle.record(&["anna"], false);
        assert_eq!(throttle.check(&["anna"]), Ok(()));
    }
}
