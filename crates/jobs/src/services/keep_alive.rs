//! Keeps a job's lock while the job runs.
//!
//! Heartbeats are not urgent, so those of a process are sent together: all become due at a shared tick, and the first
//! that can wait no longer takes all waiting ones into one transaction, or several if that conflicts. Ten thousand idle
//! jobs wake the process once a second, for a few transactions.

use std::time::Duration;

use futures::future::try_join_all;
use store::{Call, Transaction};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::operations::heartbeats::{Beat, Waiting};
use crate::operations::tenants::settle::Charges;
use crate::testing::planted::Bug;
use crate::{Accepted, Error, Held, Job, Jobs, Op, Result};

impl Jobs {
    /// Sends heartbeats for a job at the pace of its type's timeout until the job is lost: returns [`Error::Halt`] when
    /// it may have another holder, or when no heartbeat has succeeded for so long that it may have one soon. The run
    /// then has a quarter of the timeout to stop. Each answer is passed to `observe`.
    ///
    /// A write with [`update`](Self::update) or [`run_again`](Self::run_again) through this handle is a heartbeat, too:
    /// a worker that writes often enough sends no others.
    ///
    /// Race it with the work: `tokio::select! { done = work => …, lost = jobs.keep_alive(…) => … }`.
    pub async fn keep_alive(&self, accepted: &Accepted, mut observe: impl FnMut(Held)) -> Error {
        let keeping = self.heartbeats().keep(accepted.job.lock);
        let (mut answered, mut failed) = (accepted.claimed_at, false);
        let first = accepted.job.timeout();
        loop {
            let timeout = if self.planted().is(Bug::KeepsFirstPace) {
                first
            } else {
                accepted.job.timeout()
            };
            let lost = answered + timeout / 4 * 3;
            let now = Instant::now();
            let next = if failed {
                now + timeout / 20 + self.entropy().up_to(timeout / 20)
            } else {
                now.max(answered + timeout / 5 + self.entropy().up_to(timeout / 10))
            };
            let tick = self.heartbeats().tick(next, timeout);
            sleep_until(tick.min(lost)).await;
            if let Some((at, held)) = keeping.updated().filter(|(at, _)| *at > answered) {
                (answered, failed) = (at, false);
                observe(held);
                continue;
            }
            let sent = Instant::now();
            if sent >= lost {
                accepted.job.run.lost.cancel();
                return Error::Halt;
            }
            let max_delay = (timeout / 12).min((lost - sent) / 4);
            let beat = async {
                if failed {
                    // This job may cause the conflict, so it is not sent with others again.
                    self.beat_alone(&accepted.job, lost).await
                } else {
                    self.beat(&accepted.job, max_delay, lost).await
                }
            };
            match timeout_at(lost, beat).await {
                Ok(Beat::Held(held, at)) => {
                    (answered, failed) = (at, false);
                    if held.again {
                        accepted.job.run.again.cancel();
                    }
                    observe(held);
                }
                Ok(Beat::Lost) | Err(_) => {
                    accepted.job.run.lost.cancel();
                    return Error::Halt;
                }
                Ok(Beat::Failed) => failed = true,
            }
        }
    }

    async fn beat(&self, job: &Job, max_delay: Duration, lost: Instant) -> Beat {
        let (answer, mut receiver) = oneshot::channel();
        let job = job.clone();
        let together = if let Some(all) = self.heartbeats().join(Waiting { job, answer }) {
            all
        } else {
            tokio::select! {
                biased;
                beat = &mut receiver => return beat.unwrap_or(Beat::Failed),
                () = sleep(max_delay) => self.heartbeats().take(),
            }
        };
        if !together.is_empty() {
            // Boxed, so that waiting heartbeats keep no memory for it.
            Box::pin(self.beat_together(together, lost)).await;
        }
        // Without an answer, the task that sent this heartbeat was stopped.
        receiver.await.unwrap_or(Beat::Failed)
    }

    async fn beat_together(&self, mut all: Vec<Waiting>, lost: Instant) {
        all.retain(|waiting| !waiting.answer.is_closed());
        let (beating, mut answers): (Vec<_>, Vec<_>) = (all.into_iter().enumerate())
            .map(|(n, waiting)| ((n, waiting.job), Some(waiting.answer)))
            .unzip();
        let op = &self.op();
        let work = |tx, part| async move { self.beats_in(&tx, op, part).await };
        let done = |part: &[(usize, Job)], beats: Result<Vec<Beat>>| {
            let beats = beats.unwrap_or_else(|error| {
                tracing::warn!(jobs = part.len(), error = %error.chain(), "cannot send heartbeats");
                vec![Beat::Failed; part.len()]
            });
            for ((n, _), beat) in part.iter().zip(beats) {
                // A caller that is gone needs no answer.
                let _ = answers[*n].take().map(|answer| answer.send(beat));
            }
        };
        let batch = &self.heartbeats().batch;
        batch.each(self, keep(lost), &beating, work, done).await;
    }

    async fn beat_alone(&self, job: &Job, lost: Instant) -> Beat {
        let op = &self.op();
        let beat = (self.store()).transact(keep(lost), |tx| async move {
            Ok(self.beats_in(&tx, op, &[(0, job.clone())]).await?[0])
        });
        beat.await.unwrap_or_else(|error: Error| {
            tracing::warn!(job.id = %job.id, error = %error.chain(), "cannot send a heartbeat");
            Beat::Failed
        })
    }

    async fn beats_in(
        &self,
        tx: &Transaction,
        op: &Op,
        jobs: &[(usize, Job)],
    ) -> Result<Vec<Beat>> {
        let mut charges = Charges::new();
        let beats = jobs.iter().map(|(_, job)| self.beat_in(tx, op, job));
        let beats = try_join_all(beats)
            .await?
            .into_iter()
            .map(|(beat, of_job)| {
                for (tenant, ms) in of_job {
                    *charges.entry(tenant).or_default() += ms;
                }
                beat
            });
        let beats = beats.collect();
        // Each tenant once, however many of its jobs run here.
        self.charge_all(tx, charges).await?;
        Ok(beats)
    }

    async fn beat_in(&self, tx: &Transaction, op: &Op, job: &Job) -> Result<(Beat, Charges)> {
        match self.keep_uncharged_in(tx, op, job).await {
            Ok((held, charges)) => Ok((Beat::Held(held, Instant::now()), charges)),
            Err(Error::Halt) => Ok((Beat::Lost, Charges::new())),
            Err(error) => Err(error),
        }
    }
}

fn keep(lost: Instant) -> Call {
    Call::new("keep").deadline(lost.saturating_duration_since(Instant::now()))
}
