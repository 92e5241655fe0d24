//! The clock and the random numbers of one server.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

/// The server's clock: real time at the start, advanced by the runtime's clock (which tests may pause), and skewed at will.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Duration,
    since: Instant,
    skew_seconds: AtomicI64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "a server owns its clock")]
        let started = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            started,
            since: Instant::now(),
            skew_seconds: AtomicI64::new(0),
        }
    }

    /// Seconds since 1970 by this server's clock.
    pub(crate) fn seconds(&self) -> i64 {
        let now = self.started + self.since.elapsed();
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        now.saturating_add(self.skew_seconds.load(Ordering::Relaxed))
    }

    /// The time `seconds` from now as an HTTP date.
    pub(crate) fn http_date(&self, seconds: i64) -> String {
        let timestamp =
            Timestamp::from_second(self.seconds().saturating_add(seconds)).unwrap_or_default();
        DateTimePrinter::new()
            .timestamp_to_rfc9110_string(&timestamp)
            .unwrap_or_default()
    }

    pub(crate) fn set_skew(&self, seconds: i64) {
        self.skew_seconds.store(seconds, Ordering::Relaxed);
    }
}

/// Pseudo-random numbers from the peer's seed.
#[derive(Debug)]
pub(crate) struct Chance(Mutex<StdRng>);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }

    pub(crate) fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0
            .lock()
            .expect("drawing numbers does not panic")
            .fill_bytes(&mut bytes);
        bytes
    }

    /// 32 hexadecimal digits.
    pub(crate) fn uuid(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.bytes()))
    }
}
