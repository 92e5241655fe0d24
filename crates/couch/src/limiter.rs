//! CouchDB's additive-increase, multiplicative-decrease limiter of requests to one server.
//!
//! Each key (an endpoint and a method, or a host) has an interval in milliseconds that every
//! request waits before it is sent. A 429 stretches the interval, every other response shrinks it,
//! as does time without requests. Keys without a recent 429 have no entry and cost nothing.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{DATE, RETRY_AFTER};
use tokio::time::Instant;

use crate::types::millis;

const BASE_INTERVAL_MS: u64 = 20;
const BACKOFF_FACTOR: f64 = 1.2;
/// A run gives up on a key that reaches this interval, until the key is forgotten.
pub(crate) const MAX_INTERVAL_MS: u64 = 25_000;
const SENSITIVITY_WINDOW_MS: u64 = 80;
const TIME_DECAY_FACTOR: u64 = 2;
const TIME_DECAY_THRESHOLD_MS: u64 = 1000;
const SWEEP_PERIOD_MS: u64 = 2 * MAX_INTERVAL_MS;
/// A key is forgotten this long after its last response, or when the time is over that the server asked for. Then a request
/// is sent even if the key was given up.
const KEPT: Duration = Duration::from_millis(MAX_INTERVAL_MS);
/// The longest `Retry-After` that is heeded.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);

/// The intervals of all keys of a node.
pub(crate) struct RateLimiter<K> {
    entries: Mutex<Entries<K>>,
    /// Avoids the lock while no key is limited.
    count: AtomicUsize,
}

struct Entries<K> {
    by_key: HashMap<K, Entry>,
    last_sweep: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Entry {
    interval_ms: u64,
    updated: Instant,
    /// When it is forgotten.
    until: Instant,
}

impl<K: Hash + Eq> RateLimiter<K> {
    pub(crate) fn new() -> Self {
        let entries = Entries {
            by_key: HashMap::new(),
            last_sweep: None,
        };
        Self {
            entries: Mutex::new(entries),
            count: AtomicUsize::new(0),
        }
    }

    /// How long a request to `key` has to wait; `None` if the key is given up for now.
    pub(crate) fn delay(&self, key: &K, now: Instant) -> Option<Duration> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Some(Duration::ZERO);
        }
        self.with(|entries| {
            // Without requests, nothing else would remove a key that is given up.
            entries.sweep(now);
            let Some(entry) = entries.by_key.get(key) else {
                return Some(Duration::ZERO);
            };
            if entry.until <= now {
                entries.by_key.remove(key);
                return Some(Duration::ZERO);
            }
            let interval_ms = entry.interval_ms;
            (interval_ms < MAX_INTERVAL_MS).then(|| Duration::from_millis(interval_ms))
        })
    }

    #[cfg(test)]
    fn interval_ms(&self, key: &K) -> u64 {
        if self.count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.with(|entries| entries.by_key.get(key).map_or(0, |entry| entry.interval_ms))
    }

    /// A request was answered other than by 429.
    pub(crate) fn success(&self, key: &K, now: Instant) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.with(|entries| {
            let Some(entry) = entries.by_key.get_mut(key) else {
                return;
            };
            let elapsed_ms = millis(now.saturating_duration_since(entry.updated));
            if elapsed_ms <= SENSITIVITY_WINDOW_MS {
                return;
            }
            let decayed_ms = time_decay(elapsed_ms, entry.interval_ms);
            let interval_ms = decayed_ms.saturating_sub(step(decayed_ms));
            if interval_ms == 0 {
                entries.by_key.remove(key);
            } else {
                *entry = Entry {
                    interval_ms: interval_ms.max(BASE_INTERVAL_MS),
                    updated: now,
                    until: now + KEPT,
                };
            }
        });
    }

    /// A request was answered by 429, or by 503 with `Retry-After`; `retry_after` is what the
    /// server asked for.
    pub(crate) fn failure(&self, key: K, retry_after: Option<Duration>, now: Instant) {
        self.with(|entries| {
            entries.sweep(now);
            let entry = entries.by_key.get(&key).copied();
            let old_ms = entry.map_or(0, |entry| entry.interval_ms);
            let too_soon = entry.is_some_and(|entry| {
                millis(now.saturating_duration_since(entry.updated)) <= SENSITIVITY_WINDOW_MS
            });
            let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
            let stretched_ms = if too_soon { old_ms } else { stretch(old_ms) };
            let interval_ms = stretched_ms.max(millis(asked).min(MAX_INTERVAL_MS));
            let until = now + asked.max(KEPT);
            let updated = match entry {
                Some(entry) if too_soon && interval_ms == old_ms => entry.updated,
                _ => now,
            };
            let entry = Entry {
                interval_ms,
                updated,
                until: entry.map_or(until, |entry| entry.until.max(until)),
            };
            entries.by_key.insert(key, entry);
        });
    }

    fn with<R>(&self, work: impl FnOnce(&mut Entries<K>) -> R) -> R {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut entries);
        self.count.store(entries.by_key.len(), Ordering::Relaxed);
        result
    }
}

impl<K> Entries<K> {
    /// Drops keys that were not used for a while.
    fn sweep(&mut self, now: Instant) {
        let last = *self.last_sweep.get_or_insert(now);
        if millis(now.saturating_duration_since(last)) < SWEEP_PERIOD_MS {
            return;
        }
        self.last_sweep = Some(now);
        self.by_key.retain(|_, entry| entry.until > now);
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "intervals are at most 25,000"
)]
fn stretch(interval_ms: u64) -> u64 {
    let stretched = interval_ms.max(BASE_INTERVAL_MS) as f64 * BACKOFF_FACTOR;
    (stretched.round() as u64).min(MAX_INTERVAL_MS)
}

fn time_decay(elapsed_ms: u64, interval_ms: u64) -> u64 {
    if elapsed_ms > TIME_DECAY_THRESHOLD_MS {
        interval_ms.saturating_sub(TIME_DECAY_FACTOR.saturating_mul(elapsed_ms))
    } else {
        interval_ms
    }
}

/// Large intervals shrink faster, or a key at the limit would never recover.
fn step(interval_ms: u64) -> u64 {
    match interval_ms {
        10_001.. => BASE_INTERVAL_MS * 50,
        1_001.. => BASE_INTERVAL_MS * 5,
        101.. => BASE_INTERVAL_MS * 2,
        _ => BASE_INTERVAL_MS,
    }
}

/// Reads `Retry-After`: seconds, or a date, which is compared with the response's `Date`, or with our clock if that is
/// missing or invalid.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    #[expect(clippy::disallowed_methods, reason = "dates need the wall clock")]
    retry_after_at(headers, SystemTime::now)
}

fn retry_after_at(headers: &HeaderMap, now: impl FnOnce() -> SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    let sent = headers.get(DATE).and_then(|sent| sent.to_str().ok());
    let sent = sent.and_then(|sent| httpdate::parse_http_date(sent).ok());
    let sent = sent.unwrap_or_else(now);
    Some(until.duration_since(sent).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        limiter: RateLimiter<&'static str>,
        now: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            Self {
                limiter: RateLimiter::new(),
                now: Instant::now(),
            }
        }
        fn after(&mut self, ms: u64) -> &mut Self {
            self.now += Duration::from_millis(ms);
            self
        }
        fn failure(&mut self) -> u64 {
            self.limiter.failure("key", None, self.now);
            self.limiter.interval_ms(&"key")
        }
        fn success(&mut self) -> u64 {
            self.limiter.success(&"key", self.now);
            self.limiter.interval_ms(&"key")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn upstream_numbers() {
        let mut f = Fixture::new();
        assert_eq!(f.limiter.interval_ms(&"key"), 0);
        assert_eq!(f.success(), 0);
        assert_eq!(f.failure(), 24);
        assert_eq!(f.failure(), 24, "too soon after the first");
        assert_eq!(f.after(100).failure(), 29);

        let mut f = Fixture::new();
        assert_eq!(f.failure(), 24);
        assert_eq!(f.after(80).success(), 24, "within the window");
        assert_eq!(f.after(20).success(), 20);
        assert_eq!(f.after(100).success(), 0);
        assert_eq!(f.limiter.count.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn steps_decay_and_limit() {
        let mut f = Fixture::new();
        let mut failures = 0;
        while f.limiter.delay(&"key", f.now).is_some() {
            f.after(100).failure();
            failures += 1;
            assert!(failures < 100);
        }
        assert_eq!(f.limiter.interval_ms(&"key"), 25_000);
        assert_eq!(failures, 40);
        assert_eq!(f.after(100).success(), 24_000);
        assert!(f.limiter.delay(&"key", f.now).is_some());
        assert_eq!(f.after(7_001).success(), 24_000 - 14_002 - 100);
        assert_eq!(f.after(900).success(), 9_898 - 100);
        assert_eq!(f.after(60_000).success(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn retry_after_is_honoured() {
        let f = Fixture::new();
        f.limiter
            .failure("key", Some(Duration::from_secs(3)), f.now);
        assert_eq!(f.limiter.delay(&"key", f.now), Some(Duration::from_secs(3)));
        f.limiter
            .failure("key", Some(Duration::from_hours(1)), f.now);
        assert_eq!(
            f.limiter.delay(&"key", f.now),
            None,
            "longer than a run waits"
        );
        assert_eq!(
            f.limiter.delay(&"other", f.now),
            Some(Duration::ZERO),
            "keys are apart"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_given_up_is_tried_again() {
        let minute = Duration::from_mins(1);
        let ends = |asked: Option<Duration>, failures: u32| {
            let f = Fixture::new();
            let mut now = f.now;
            for _ in 0..failures {
                now += Duration::from_millis(100);
                f.limiter.failure("key", asked, now);
            }
            let delay = |after| f.limiter.delay(&"key", now + after);
            assert_eq!(delay(Duration::from_secs(24)), None);
            let tried = (1..100).find(|n| delay(minute * *n).is_some()).unwrap();
            assert_eq!(delay(Duration::ZERO), Some(Duration::ZERO), "forgotten");
            assert_eq!(f.limiter.count.load(Ordering::Relaxed), 0);
            tried
        };
        assert_eq!(ends(None, 40), 1);
        assert_eq!(ends(Some(minute * 3), 1), 3);
        assert_eq!(
            ends(Some(Duration::MAX), 1),
            60,
            "no server is lost for good"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_wait_counts() {
        let f = Fixture::new();
        let fails = |asked| {
            let asked = Some(Duration::from_secs(asked));
            f.limiter.failure("key", asked, f.now);
        };
        for asked in [30, 90, 30] {
            fails(asked);
        }
        let delay = |after| f.limiter.delay(&"key", f.now + Duration::from_secs(after));
        assert_eq!(delay(89), None);
        assert_eq!(delay(90), Some(Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn old_keys_are_swept() {
        let mut f = Fixture::new();
        f.failure();
        f.after(50_000);
        f.limiter.failure("other", None, f.now);
        assert_eq!(f.limiter.interval_ms(&"key"), 0);
        assert_eq!(f.limiter.interval_ms(&"other"), 24);
    }

    #[test]
    fn retry_after_forms() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let our_clock = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:07 GMT").unwrap();
        let read = |retry: &str, date: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", retry.parse().unwrap());
            if let Some(date) = date {
                headers.insert("date", date.parse().unwrap());
            }
            retry_after_at(&headers, || our_clock).map(|duration| duration.as_secs())
        };
        assert_eq!(read("7", None), Some(7));
        assert_eq!(read("Sun, 06 Nov 1994 08:50:37 GMT", Some(date)), Some(60));
        assert_eq!(read("Sun, 06 Nov 1994 08:40:37 GMT", Some(date)), Some(0));
        for date in [None, Some("now")] {
            assert_eq!(read("Sun, 06 Nov 1994 08:50:37 GMT", date), Some(90));
            assert_eq!(read("Sun, 06 Nov 1994 08:40:37 GMT", date), Some(0));
        }
        assert_eq!(read("soon", None), None);
    }
}
