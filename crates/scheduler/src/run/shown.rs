//! The state that a run shows to its node, and detection of runs that block their thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;

/// A run that blocks its thread for this long is stuck.
pub(crate) const STUCK: Duration = Duration::from_secs(30);

/// The state that a run shows to its node.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// Whether it waits for changes without a permit.
    pub(super) parked: AtomicBool,
    /// Whether it has a permit, but nothing to copy.
    pub(super) caught_up: AtomicBool,
    /// Whether it has come further since then, or has caught up: the next run would not have to begin with the same.
    moved: AtomicBool,
    /// Since when it runs: since it was claimed, or since it was last parked.
    running_since_ms: AtomicU64,
    /// Since when it has been behind its source, in milliseconds; 0 if it is not.
    behind_since_ms: AtomicI64,
    /// Since when the current poll runs; 0 between polls.
    poll_began_ms: AtomicU64,
    stuck_reported: AtomicBool,
}

impl Shown {
    /// It was claimed, or goes on after it was parked.
    pub(crate) fn begin_running(&self) {
        self.moved.store(false, Ordering::Relaxed);
        self.running_since_ms.store(now_ms(), Ordering::Relaxed);
    }

    pub(crate) fn running_since_ms(&self) -> u64 {
        self.running_since_ms.load(Ordering::Relaxed)
    }

    pub(super) fn set_moved(&self) {
        self.moved.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_moved(&self) -> bool {
        self.moved.load(Ordering::Relaxed)
    }

    /// For how long it has run.
    pub(crate) fn running_for(&self) -> Duration {
        Duration::from_millis(now_ms().saturating_sub(self.running_since_ms()))
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.parked.load(Ordering::Relaxed)
    }

    pub(crate) fn is_caught_up(&self) -> bool {
        self.caught_up.load(Ordering::Relaxed)
    }

    /// Whether it has become stuck since the last call.
    pub(crate) fn is_newly_stuck(&self) -> bool {
        let began_ms = self.poll_began_ms.load(Ordering::Relaxed);
        let lasts_ms = now_ms().saturating_sub(began_ms);
        began_ms > 0
            && Duration::from_millis(lasts_ms) > STUCK
            && !self.stuck_reported.swap(true, Ordering::Relaxed)
    }

    /// How far it is behind its source.
    pub(crate) fn lag(&self, now_ms: i64) -> Duration {
        let since_ms = match self.behind_since_ms.load(Ordering::Relaxed) {
            0 => now_ms,
            since_ms => since_ms,
        };
        Duration::from_millis(u64::try_from(now_ms.saturating_sub(since_ms)).unwrap_or(0))
    }

    pub(super) fn set_behind(&self, since: Option<Timestamp>) {
        let since_ms = since.map_or(0, Timestamp::as_millisecond);
        self.behind_since_ms.store(since_ms, Ordering::Relaxed);
    }
}

/// Polls a run, and records how long the poll lasts.
pub(crate) async fn watched<F: Future>(run: F, shown: Arc<Shown>) -> F::Output {
    let mut run = std::pin::pin!(run);
    std::future::poll_fn(|cx| {
        shown.poll_began_ms.store(now_ms(), Ordering::Relaxed);
        let polled = run.as_mut().poll(cx);
        shown.poll_began_ms.store(0, Ordering::Relaxed);
        polled
    })
    .await
}

/// Milliseconds of a monotonic clock.
fn now_ms() -> u64 {
    static BEGAN: std::sync::OnceLock<tokio::time::Instant> = std::sync::OnceLock::new();
    let began = BEGAN.get_or_init(tokio::time::Instant::now);
    // 0 means that no poll is running.
    u64::try_from(began.elapsed().as_millis())
        .unwrap_or(u64::MAX)
        .max(1)
}
