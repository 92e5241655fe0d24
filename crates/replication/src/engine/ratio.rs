//! Moving averages that decide whether an attempt is worth its request.

use std::time::Duration;

use tokio::time::Instant;

/// The recent share of failed attempts.
#[derive(Debug)]
pub(super) struct Ratio {
    value: f64,
    /// Weight of the newest observation.
    decay: f64,
    /// Attempts are made while the average is at most this.
    limit: f64,
    last: Instant,
}

/// After this time, an attempt is made whatever the average is.
const RETRY: Duration = Duration::from_secs(37);

impl Ratio {
    pub(super) fn new(value: f64, decay: f64, limit: f64, now: Instant) -> Self {
        Self {
            value,
            decay,
            limit,
            last: now,
        }
    }

    pub(super) fn is_worthwhile(&self, now: Instant) -> bool {
        self.value <= self.limit || now.duration_since(self.last) > RETRY
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of a batch are small")]
    pub(super) fn observe(&mut self, successes: usize, attempts: usize, now: Instant) {
        self.last = now;
        let failed = match attempts {
            0 => 0.0,
            attempts => attempts.saturating_sub(successes) as f64 / attempts as f64,
        };
        self.value += self.decay * (failed - self.value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converges_and_recovers() {
        let now = Instant::now();
        let mut ratio = Ratio::new(0.0, 0.25, 0.5, now);
        assert!(ratio.is_worthwhile(now));
        (0..20).for_each(|_| ratio.observe(0, 10, now));
        assert!(ratio.value > 0.9 && !ratio.is_worthwhile(now));
        assert!(!ratio.is_worthwhile(now + Duration::from_secs(37)));
        assert!(ratio.is_worthwhile(now + Duration::from_secs(38)));
        (0..20).for_each(|_| ratio.observe(5, 10, now));
        assert!((ratio.value - 0.5).abs() < 0.01);
        (0..20).for_each(|_| ratio.observe(10, 10, now));
        assert!(ratio.value < 0.1 && ratio.is_worthwhile(now));
        ratio.observe(0, 0, now);
        assert!(ratio.value < 0.1);
    }
}
