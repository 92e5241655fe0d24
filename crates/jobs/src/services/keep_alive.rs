//! Keeping a job while it is worked on.
//!
//! Heart-beats are not urgent, so those of a process go out together: all begin at a tick that they share, and the first whose
//! patience ends takes all that wait into one transaction. Ten thousand jobs that wait for something wake the process once a
//! second, for a few transactions.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use store::Call;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::{Accepted, Error, Held, Job, Jobs, Result};

/// Heart-beats in one transaction at most.
const TOGETHER_MAX: usize = 100;

/// Ticks in the timeout of a type.
const TICKS: u32 = 64;

/// The heart-beats that wait for others to go out with.
#[derive(Debug)]
pub(crate) struct Beats {
    waiting: Mutex<Vec<Waiting>>,
    /// The first tick.
    began: Instant,
}

impl Default for Beats {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            began: Instant::now(),
        }
    }
}

#[derive(Debug)]
struct Waiting {
    job: Job,
    answer: oneshot::Sender<Beat>,
}

/// What became of a heart-beat.
#[derive(Debug, Clone, Copy)]
enum Beat {
    Held(Held),
    Lost,
    /// It may be tried again.
    Failed,
}

impl Beats {
    /// Adds one; all that wait, if they fill a transaction now.
    fn join(&self, waiting: Waiting) -> Option<Vec<Waiting>> {
        let mut all = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(waiting);
        (all.len() >= TOGETHER_MAX).then(|| std::mem::take(&mut *all))
    }

    fn take(&self) -> Vec<Waiting> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The next tick at a time or after it.
    fn tick(&self, at: Instant, timeout: Duration) -> Instant {
        let every = (timeout / TICKS).as_nanos().max(1);
        let since = at.saturating_duration_since(self.began).as_nanos();
        let rest = u64::try_from((every - since % every) % every);
        at + Duration::from_nanos(rest.unwrap_or(0))
    }
}

impl Jobs {
    /// Sends heart-beats for a job of a type with this timeout, until the job is lost: returns
    /// [`Error::Halt`] when somebody else may have it, or when no heart-beat has got through for so
    /// long that somebody else may have it soon. Whoever works on the job then has a quarter of the
    /// timeout to stop. Each answer is shown to `told`.
    ///
    /// To be raced with the work: `tokio::select! { done = work => …, lost = jobs.keep_alive(…) => … }`.
    pub async fn keep_alive(
        &self,
        accepted: &Accepted,
        timeout: Duration,
        mut told: impl FnMut(Held),
    ) -> Error {
        let mut heard = accepted.claimed_at;
        loop {
            let lost = heard + timeout / 4 * 3;
            let wait = timeout / 5 + self.entropy().up_to(timeout / 10);
            let tick = self.beats().tick(Instant::now() + wait, timeout);
            sleep_until(tick.min(lost)).await;
            // It says that the job was held at this time or later.
            let sent = Instant::now();
            if sent >= lost {
                return Error::Halt;
            }
            let patience = (timeout / 12).min((lost - sent) / 4);
            let beat = self.beat(&accepted.job, patience, lost);
            match timeout_at(lost, beat).await {
                Ok(Beat::Held(held)) => {
                    heard = sent;
                    told(held);
                }
                Ok(Beat::Lost) | Err(_) => return Error::Halt,
                Ok(Beat::Failed) => {}
            }
        }
    }

    async fn beat(&self, job: &Job, patience: Duration, lost: Instant) -> Beat {
        let (answer, mut told) = oneshot::channel();
        let job = job.clone();
        let together = if let Some(all) = self.beats().join(Waiting { job, answer }) {
            all
        } else {
            tokio::select! {
                biased;
                beat = &mut told => return beat.unwrap_or(Beat::Failed),
                () = sleep(patience) => self.beats().take(),
            }
        };
        if !together.is_empty() {
            // Boxed, so that those who only wait keep no room for it.
            Box::pin(self.beat_together(together, lost)).await;
        }
        // Without an answer somebody else took it along and was stopped.
        told.await.unwrap_or(Beat::Failed)
    }

    async fn beat_together(&self, mut all: Vec<Waiting>, lost: Instant) {
        all.retain(|waiting| !waiting.answer.is_closed());
        let (op, beating) = (self.op(), &all);
        let call = Call::new("keep").deadline(lost.saturating_duration_since(Instant::now()));
        let beats: Result<Vec<Beat>> = (self.store())
            .transact(call, |tx| async move {
                let mut beats = Vec::with_capacity(beating.len());
                for Waiting { job, .. } in beating {
                    beats.push(match self.keep_in(&tx, &op, job).await {
                        Ok(held) => Beat::Held(held),
                        Err(Error::Halt) => Beat::Lost,
                        Err(error) => return Err(error),
                    });
                }
                Ok(beats)
            })
            .await;
        let beats = beats.unwrap_or_else(|error| {
            tracing::warn!(jobs = all.len(), error = %error.chain(), "send heart-beats");
            vec![Beat::Failed; all.len()]
        });
        for (waiting, beat) in all.into_iter().zip(beats) {
            // Who has gone away meanwhile needs no answer.
            let _ = waiting.answer.send(beat);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ticks_are_shared() {
        let beats = Beats::default();
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
