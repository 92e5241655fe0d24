//! Keeping a job while it is worked on.
//!
//! Heart-beats are not urgent, so those of a process go out together: all begin at a tick that they share, and the first whose
//! patience ends takes all that wait into one transaction. Ten thousand jobs that wait for something wake the process once a
//! second, for a few transactions.

use std::time::Duration;

use store::Call;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::operations::heartbeats::{Beat, Waiting};
use crate::testing::planted::Bug;
use crate::{Accepted, Error, Held, Job, Jobs, Result};

impl Jobs {
    /// Sends heart-beats for a job at the pace that its type asks for, until the job is lost: returns
    /// [`Error::Halt`] when somebody else may have it, or when no heart-beat has got through for so
    /// long that somebody else may have it soon. Whoever works on the job then has a quarter of the
    /// timeout to stop. Each answer is shown to `told`.
    ///
    /// To be raced with the work: `tokio::select! { done = work => …, lost = jobs.keep_alive(…) => … }`.
    pub async fn keep_alive(&self, accepted: &Accepted, mut told: impl FnMut(Held)) -> Error {
        let mut heard = accepted.claimed_at;
        let first = accepted.job.timeout();
        loop {
            let timeout = if self.planted().is(Bug::KeepsFirstPace) {
                first
            } else {
                accepted.job.timeout()
            };
            let lost = heard + timeout / 4 * 3;
            let wait = timeout / 5 + self.entropy().up_to(timeout / 10);
            let tick = self.heartbeats().tick(Instant::now() + wait, timeout);
            sleep_until(tick.min(lost)).await;
            // It says that the job was held at this time or later.
            let sent = Instant::now();
            if sent >= lost {
                accepted.job.run.lost.cancel();
                return Error::Halt;
            }
            let patience = (timeout / 12).min((lost - sent) / 4);
            let beat = self.beat(&accepted.job, patience, lost);
            match timeout_at(lost, beat).await {
                Ok(Beat::Held(held)) => {
                    heard = sent;
                    accepted.job.run.heard(&Ok(held));
                    told(held);
                }
                Ok(Beat::Lost) | Err(_) => {
                    accepted.job.run.lost.cancel();
                    return Error::Halt;
                }
                Ok(Beat::Failed) => {}
            }
        }
    }

    async fn beat(&self, job: &Job, patience: Duration, lost: Instant) -> Beat {
        let (answer, mut told) = oneshot::channel();
        let job = job.clone();
        let together = if let Some(all) = self.heartbeats().join(Waiting { job, answer }) {
            all
        } else {
            tokio::select! {
                biased;
                beat = &mut told => return beat.unwrap_or(Beat::Failed),
                () = sleep(patience) => self.heartbeats().take(),
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
