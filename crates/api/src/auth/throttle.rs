//! Slows down password guessing: after some failures for a name from an address, for a name, or from an address, further
//! attempts have to wait, twice as long after each further failure. An attempt counts as a failure when it begins, so
//! concurrent guesses do not all pass before the first is counted. Keys are hashes, so anonymous callers cannot fill
//! memory with long names.
//!
//! A name alone waits only after many failures, and one address counts only a few of them: otherwise anyone could keep a
//! user out by guessing.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::hmac;
use tokio::time::Instant;

use super::AuthError;

/// Free failures for a name from an address: people mistype. No more of them count for the name.
const PAIR_FREE: u32 = 5;
/// Free failures per name, from all addresses.
const NAME_FREE: u32 = 100;
/// Free failures per address, which several people may share.
const ADDRESS_FREE: u32 = 20;
const WAIT: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_mins(5);
/// All failures are forgotten after this much time without one.
const FORGIVEN: Duration = Duration::from_mins(15);
/// Entries take about 50 bytes each.
const ENTRIES_MAX: usize = 100_000;

type Key = [u8; 16];

#[derive(Clone)]
pub struct Throttle(Arc<Inner>);

struct Inner {
    /// Keys the hashes, so clients cannot cause collisions.
    key: hmac::Key,
    failures: Mutex<HashMap<Key, Failures>>,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
}

impl Failures {
    fn wait_until(&self, free: u32) -> Instant {
        let excess = self.count.saturating_sub(free);
        if excess == 0 {
            return self.last;
        }
        self.last + WAIT.saturating_mul(1 << (excess - 1).min(16)).min(WAIT_MAX)
    }
}

/// A login attempt. It counts as failed unless [`Attempt::succeed`] is called.
#[must_use]
#[derive(Debug)]
pub struct Attempt {
    throttle: Throttle,
    keys: Keys,
    /// Whether it counts for the name.
    of_name: bool,
}

#[derive(Debug, Clone, Copy)]
struct Keys {
    pair: Key,
    name: Key,
    address: Key,
}

impl Throttle {
    /// `random` is the secret of this process.
    pub fn new(random: [u8; 32]) -> Self {
        Self(Arc::new(Inner {
            key: hmac::Key::new(hmac::HMAC_SHA256, &random),
            failures: Mutex::default(),
        }))
    }

    /// Starts an attempt, or fails if the name or address has to wait.
    pub fn attempt(&self, name: &str, address: IpAddr) -> Result<Attempt, AuthError> {
        let now = Instant::now();
        let keys = self.keys(name, address);
        let mut failures = self.lock();
        let until = [
            (keys.pair, PAIR_FREE),
            (keys.name, NAME_FREE),
            (keys.address, ADDRESS_FREE),
        ];
        let until = until
            .iter()
            .filter_map(|(key, free)| Some(failures.get(key)?.wait_until(*free)))
            .max();
        if let Some(until) = until.filter(|until| *until > now) {
            let seconds = (until - now).as_secs() + 1;
            return Err(AuthError::Throttled { seconds });
        }
        make_room(&mut failures, now);
        let of_pair = fail(&mut failures, keys.pair, now);
        fail(&mut failures, keys.address, now);
        let is_guessed = failures
            .get(&keys.name)
            .is_some_and(|failure| failure.count >= NAME_FREE);
        let of_name = of_pair <= PAIR_FREE || is_guessed;
        if of_name {
            fail(&mut failures, keys.name, now);
        }
        drop(failures);
        Ok(Attempt {
            throttle: self.clone(),
            keys,
            of_name,
        })
    }

    fn keys(&self, name: &str, address: IpAddr) -> Keys {
        let address = self.address(address);
        Keys {
            pair: self.key(b'p', &[&address[..], name.as_bytes()].concat()),
            name: self.key(b'n', name.as_bytes()),
            address,
        }
    }

    fn address(&self, address: IpAddr) -> Key {
        match address.to_canonical() {
            IpAddr::V4(address) => self.key(b'4', &address.octets()),
            // Providers assign each customer a network of this size.
            IpAddr::V6(address) => self.key(b'6', &address.octets()[..8]),
        }
    }

    fn key(&self, kind: u8, text: &[u8]) -> Key {
        let mut hash = hmac::Context::with_key(&self.0.key);
        hash.update(&[kind]);
        hash.update(text);
        let mut key = [0; 16];
        key.copy_from_slice(&hash.sign().as_ref()[..16]);
        key
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Failures>> {
        let failures = self.0.failures.lock();
        failures.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a failure, and returns their number.
fn fail(failures: &mut HashMap<Key, Failures>, key: Key, now: Instant) -> u32 {
    let failure = failures.entry(key).or_insert(Failures {
        count: 0,
        last: now,
    });
    if now - failure.last >= FORGIVEN {
        failure.count = 0;
    }
    failure.count = failure.count.saturating_add(1);
    failure.last = now;
    failure.count
}

/// Removes expired entries, then the older half if that is not enough.
fn make_room(failures: &mut HashMap<Key, Failures>, now: Instant) {
    if failures.len() + 3 <= ENTRIES_MAX {
        return;
    }
    failures.retain(|_, failure| now - failure.last < FORGIVEN);
    if failures.len() > ENTRIES_MAX / 2 {
        let mut times: Vec<Instant> = failures.values().map(|failure| failure.last).collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        let mut spare = ENTRIES_MAX / 2;
        failures.retain(|_, failure| {
            let kept = failure.last >= *median && spare > 0;
            spare -= usize::from(kept);
            kept
        });
    }
}

impl Attempt {
    /// Forgets the failures for the name from the address, but only this one of the name, and two of the address:
    /// otherwise a user's logins would reset the count of guesses at the name, and a caller could log in to an account of
    /// their own while guessing at others.
    pub fn succeed(self) {
        let mut failures = self.throttle.lock();
        failures.remove(&self.keys.pair);
        let name = u32::from(self.of_name);
        for (key, less) in [(self.keys.name, name), (self.keys.address, 2)] {
            if let Some(failure) = failures.get_mut(&key) {
                failure.count = failure.count.saturating_sub(less);
            }
        }
    }
}

impl std::fmt::Debug for Throttle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Throttle")
            .field("entries", &self.lock().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use std::time::Duration;

    use tokio::time::advance;

    use super::{AuthError, ENTRIES_MAX, Throttle};

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    /// How long an attempt has to wait; it fails if it does not have to.
    fn wait(throttle: &Throttle, name: &str, address: IpAddr) -> u64 {
        match throttle.attempt(name, address) {
            Err(AuthError::Throttled { seconds }) => seconds,
            attempt => attempt.map(|_| 0).unwrap(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn guessing_gets_slower_and_is_forgiven() {
        let throttle = Throttle::new([1; 32]);
        for _ in 0..6 {
            assert_eq!(wait(&throttle, "anna", ip(9)), 0);
        }
        assert_eq!(wait(&throttle, "anna", ip(9)), 2);
        assert_eq!(wait(&throttle, "bert", ip(9)), 0);
        advance(Duration::from_secs(1)).await;
        assert_eq!(wait(&throttle, "anna", ip(9)), 0);
        assert_eq!(wait(&throttle, "anna", ip(9)), 3);
        advance(Duration::from_secs(2)).await;
        throttle.attempt("anna", ip(9)).unwrap().succeed();
        for _ in 0..400 {
            advance(Duration::from_mins(5)).await;
            assert_eq!(wait(&throttle, "anna", ip(9)), 0);
        }
        assert_eq!(wait(&throttle, "anna", ip(9)), 301);
        // However long that goes on, the user is not kept out elsewhere.
        assert_eq!(wait(&throttle, "anna", ip(10)), 0);
        advance(Duration::from_mins(15)).await;
        assert_eq!(wait(&throttle, "anna", ip(9)), 0);
        assert_eq!(wait(&throttle, "anna", ip(9)), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_many_addresses_guess_at_waits() {
        let throttle = Throttle::new([1; 32]);
        for n in 0..20 {
            for _ in 0..5 {
                assert_eq!(wait(&throttle, "anna", ip(n)), 0);
            }
        }
        assert_eq!(wait(&throttle, "anna", ip(20)), 0);
        assert_eq!(wait(&throttle, "anna", ip(21)), 2);
        assert_eq!(wait(&throttle, "bert", ip(21)), 0);
        advance(Duration::from_secs(1)).await;
        // A login of the user does not reset it.
        throttle.attempt("anna", ip(22)).unwrap().succeed();
        assert_eq!(wait(&throttle, "anna", ip(22)), 2);
        advance(Duration::from_secs(1)).await;
        // Every failure counts now.
        assert_eq!(wait(&throttle, "anna", ip(1)), 0);
        assert_eq!(wait(&throttle, "anna", ip(23)), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_guesses_at_many_names_waits() {
        let throttle = Throttle::new([1; 32]);
        for n in 0..21 {
            assert_eq!(wait(&throttle, &format!("user {n}"), ip(1)), 0);
        }
        assert_eq!(wait(&throttle, "another", ip(1)), 2);
        assert_eq!(wait(&throttle, "another", ip(2)), 0);
        advance(Duration::from_secs(1)).await;
        // A login to the caller's own account resets only one guess.
        throttle.attempt("mine", ip(1)).unwrap().succeed();
        assert_eq!(wait(&throttle, "another", ip(1)), 0);
        assert_eq!(wait(&throttle, "another", ip(1)), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_no_address_and_a_network_is_one_caller() {
        let throttle = Throttle::new([1; 32]);
        for _ in 0..6 {
            assert_eq!(wait(&throttle, "10.0.0.1", ip(2)), 0);
        }
        assert_eq!(wait(&throttle, "anna", ip(1)), 0);
        let mapped = Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped();
        assert_eq!(throttle.address(mapped.into()), throttle.address(ip(1)));
        let v6 = |net, host| Ipv6Addr::new(0x2001, 0xdb8, 0, net, 0, 0, 0, host).into();
        assert_eq!(throttle.address(v6(1, 1)), throttle.address(v6(1, 2)));
        assert_ne!(throttle.address(v6(1, 1)), throttle.address(v6(2, 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_is_bounded_and_keeps_what_is_new() {
        let throttle = Throttle::new([1; 32]);
        let long = "x".repeat(10_000);
        for n in 0..ENTRIES_MAX {
            let [.., a, b, c] = u32::try_from(n).unwrap().to_be_bytes();
            let address = Ipv4Addr::new(11, a, b, c).into();
            assert_eq!(wait(&throttle, &format!("{n}{long}"), address), 0);
            advance(Duration::from_micros(1)).await;
        }
        let entries = throttle.lock().len();
        assert!(
            (ENTRIES_MAX / 4..=ENTRIES_MAX).contains(&entries),
            "{entries}"
        );
        for _ in 0..6 {
            assert_eq!(wait(&throttle, "anna", ip(1)), 0);
        }
        assert_eq!(wait(&throttle, "anna", ip(1)), 2);
    }
}
