//! Heartbeats waiting to be sent together, see `services/keep_alive.rs`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use store::CommitStamp;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::model::ids::{Job, JobLock};
use crate::model::machine::Held;
use crate::operations::batch::Batch;

/// Maximum heartbeats per transaction.
const TOGETHER_MAX: usize = 100;
/// Ticks in the timeout of a type.
const TICKS: u32 = 64;

/// Heartbeats waiting to be sent with others.
#[derive(Debug)]
pub(crate) struct Heartbeats {
    waiting: Mutex<Vec<Waiting>>,
    /// The latest updates by holders of jobs that are kept alive.
    kept: Mutex<BTreeMap<JobLock, Kept>>,
    pub(crate) batch: Batch,
    /// The first tick.
    began: Instant,
}

/// The last committed update of a holder, and a later one that may not be committed.
#[derive(Debug, Default)]
struct Kept {
    committed: Option<(Instant, Held)>,
    pending: Option<(Instant, Held, CommitStamp)>,
}

impl Kept {
    fn committed(&mut self) -> Option<(Instant, Held)> {
        if let Some((at, held, _)) = self.pending.take_if(|(.., stamp)| stamp.get().is_some()) {
            self.committed = Some((at, held));
        }
        self.committed
    }
}

/// A job that is kept alive, until this is dropped.
#[derive(Debug)]
pub(crate) struct Keeping<'a> {
    beats: &'a Heartbeats,
    lock: JobLock,
}

impl Keeping<'_> {
    /// When the holder's last committed update was written, and its answer.
    pub(crate) fn updated(&self) -> Option<(Instant, Held)> {
        self.beats.kept().get_mut(&self.lock)?.committed()
    }
}

impl Drop for Keeping<'_> {
    fn drop(&mut self) {
        self.beats.kept().remove(&self.lock);
    }
}

impl Default for Heartbeats {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            kept: Mutex::default(),
            batch: Batch::new(TOGETHER_MAX),
            began: Instant::now(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) job: Job,
    pub(crate) answer: oneshot::Sender<Beat>,
}

/// The result of a heartbeat.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Beat {
    /// The job was held at this time or later.
    Held(Held, Instant),
    Lost,
    /// It may be retried.
    Failed,
}

impl Heartbeats {
    /// Adds a heartbeat; returns all waiting ones if they fill a transaction.
    pub(crate) fn join(&self, waiting: Waiting) -> Option<Vec<Waiting>> {
        let mut all = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(waiting);
        (all.len() >= TOGETHER_MAX).then(|| std::mem::take(&mut *all))
    }

    pub(crate) fn take(&self) -> Vec<Waiting> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<JobLock, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts this holder's updates as heartbeats from now on.
    pub(crate) fn keep(&self, lock: JobLock) -> Keeping<'_> {
        self.kept().insert(lock, Kept::default());
        Keeping { beats: self, lock }
    }

    /// Records an update by the holder, in a transaction with this stamp.
    pub(crate) fn update(&self, lock: JobLock, held: Held, stamp: CommitStamp) {
        if let Some(kept) = self.kept().get_mut(&lock) {
            kept.committed();
            kept.pending = Some((Instant::now(), held, stamp));
        }
    }

    /// The first tick at or after a time.
    pub(crate) fn tick(&self, at: Instant, timeout: Duration) -> Instant {
        let every = (timeout / TICKS).as_nanos().max(1);
        let since = at.saturating_duration_since(self.began).as_nanos();
        let rest = u64::try_from((every - since % every) % every);
        at + Duration::from_nanos(rest.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ticks_are_shared() {
        let beats = Heartbeats::default();
        let timeout = Duration::from_secs(64);
        for (ms, tick_ms) in [
            (0, 0),
            (1, 1_000),
            (999, 1_000),
            (1_000, 1_000),
            (1_001, 2_000),
        ] {
            let at = beats.began + Duration::from_millis(ms);
            let tick = beats.began + Duration::from_millis(tick_ms);
            assert_eq!(beats.tick(at, timeout), tick, "{ms} ms");
        }
        let at = beats.began + Duration::from_millis(1);
        assert_eq!(beats.tick(at, Duration::ZERO), at);
    }
}
