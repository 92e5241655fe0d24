//! Wall time and random bits: handles that a simulation can replace.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

/// Wall time in milliseconds since 1970. It decides when scheduled jobs are due and is shown to
/// users, but never decides whether a holder is alive.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System,
    Simulated(Arc<Simulated>),
    Standing(Arc<AtomicI64>),
}

#[derive(Debug)]
struct Simulated {
    start: Instant,
    start_ms: i64,
    skew_ms: AtomicI64,
}

impl Clock {
    /// The clock of this machine.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that starts at `start_ms` and follows tokio's, paused or not.
    pub fn simulated(start_ms: i64) -> Self {
        Self(Source::Simulated(Arc::new(Simulated {
            start: Instant::now(),
            start_ms,
            skew_ms: AtomicI64::new(0),
        })))
    }

    /// A clock that returns `now_ms` until it is [set](Self::set_ms).
    pub fn standing(now_ms: i64) -> Self {
        Self(Source::Standing(Arc::new(AtomicI64::new(now_ms))))
    }

    /// Sets a standing clock; has no effect on others.
    pub fn set_ms(&self, now_ms: i64) {
        if let Source::Standing(clock) = &self.0 {
            clock.store(now_ms, Ordering::Relaxed);
        }
    }

    /// Sets the error of a simulated clock; has no effect on the machine's.
    pub fn set_skew_ms(&self, skew_ms: i64) {
        if let Source::Simulated(simulated) = &self.0 {
            simulated.skew_ms.store(skew_ms, Ordering::Relaxed);
        }
    }

    /// Milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        match &self.0 {
            Source::System => system_ms(),
            Source::Simulated(clock) => clock
                .start_ms
                .saturating_add(millis(clock.start.elapsed()))
                .saturating_add(clock.skew_ms.load(Ordering::Relaxed)),
            Source::Standing(now_ms) => now_ms.load(Ordering::Relaxed),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the queue's loops read the machine's clock"
)]
fn system_ms() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => millis(since),
        Err(before) => -millis(before.duration()),
    }
}

/// A duration in milliseconds, to be added to times of jobs. Saturates at the largest number.
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Random bits for locks, so cryptographically strong, and for jitter.
#[derive(Debug, Clone)]
pub struct Entropy(Arc<Mutex<StdRng>>);

impl Entropy {
    /// Seeded by the operating system.
    pub fn from_os() -> Self {
        Self(Arc::new(Mutex::new(StdRng::from_rng(&mut rand::rng()))))
    }

    /// Seeded by a number, which determines all random values.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    /// 128 random bits.
    pub fn bits(&self) -> u128 {
        self.with(RngExt::random)
    }

    /// A random duration from 0 to `longest`.
    pub fn up_to(&self, longest: Duration) -> Duration {
        longest.mul_f64(self.with(RngExt::random::<f64>))
    }

    fn with<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The time and random bits of a call, drawn before its transaction so that a retry is the same
/// transaction.
#[derive(Debug, Clone, Copy)]
pub struct Op {
    /// The caller's wall time.
    pub now_ms: i64,
    /// Identifies the call: 128 unique bits.
    pub bits: u128,
}

impl Op {
    /// That of the call that makes the changes from the `nth` on, where several calls share what one identifies.
    #[must_use]
    pub const fn nth(&self, nth: usize) -> Self {
        Self {
            now_ms: self.now_ms,
            bits: self.bits.wrapping_add(nth as u128),
        }
    }

    /// The id of the `nth` change that the call makes, as stored in rows.
    pub(crate) fn id(&self, nth: usize) -> u64 {
        let low = self.bits & u128::from(u64::MAX);
        u64::try_from(low).unwrap_or(0).wrapping_add(nth as u64)
    }

    /// Random bits for choices that do not affect the stored result.
    pub(crate) fn seed(&self) -> u64 {
        u64::try_from(self.bits >> 64).unwrap_or(0)
    }
}
