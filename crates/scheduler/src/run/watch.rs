//! During a run: stores its progress for readers, and lets no checkpoint through without the lock.

use std::sync::atomic::Ordering;
use std::time::Duration;

use jobs::Op;
use store::Transaction;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Servers, Work, timestamp};
use crate::data::{Behind, JobData};
use crate::fault::ServiceError;
use crate::history::Counting;
use crate::keys;
use crate::live::{Live, show_failed_doc};
use crate::testing::{self, Bug};
use crate::wake::after_ms;
use replication::engine::{Gate, Halt, Phase, Progress, StartedFrom, show_seq};

/// A change of phase is stored this soon after the last update.
const PHASE_PAUSE: Duration = Duration::from_secs(1);
/// After an error of the store.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

impl Work<'_> {
    /// Checks the lock before each checkpoint; the last one of a removed job needs none. A store that does not respond is asked
    /// again; if that takes too long, missed heartbeats end the run.
    pub(super) fn gate(&self) -> Gate {
        let (jobs, job) = (
            self.runner.replications.0.jobs.clone(),
            self.accepted.job.clone(),
        );
        let (lost, leave) = (self.stops.lost.clone(), self.leave.clone());
        Gate::new(move |_| {
            let (jobs, job) = (jobs.clone(), job.clone());
            let (lost, leave) = (lost.clone(), leave.clone());
            async move {
                while !leave.is_cancelled() {
                    match jobs.update(&job, None).await {
                        Ok(_) => break,
                        Err(jobs::Error::Halt) if testing::has(Bug::IgnoresLock) => break,
                        Err(jobs::Error::Halt) => {
                            lost.cancel();
                            leave.cancelled().await;
                        }
                        Err(error) => {
                            tracing::warn!(job.id = %job.id, error = %wire::chain(&error), "cannot check the lock before a checkpoint");
                            sleep(RETRY_PAUSE).await;
                        }
                    }
                }
                Ok::<(), Halt>(())
            }
        })
    }

    /// Stores progress until the run has ended; true when the lock was lost.
    pub(super) async fn watch(
        &self,
        mut progress: watch::Receiver<Progress>,
        mut servers: Servers,
        data: &mut JobData,
        counting: &Counting<'_>,
    ) -> bool {
        let mut saved_at = Instant::now();
        let mut phase = Phase::Starting;
        self.stops.shown.caught_up.store(false, Ordering::Relaxed);
        loop {
            let is_new = tokio::select! {
                biased;
                () = servers.changed() => true,
                () = self.lags(data.behind) => true,
                changed = progress.changed() => match changed {
                    Ok(()) => false,
                    Err(_) => return false,
                },
            };
            let options = self.runner.replications.options();
            let pause = Duration::from_secs(options.stats_update_interval_sec);
            let due = saved_at + pause;
            // A change of phase is stored early.
            let mut phases = progress.clone();
            let changed = async { drop(phases.wait_for(|now| now.phase != phase).await) };
            tokio::select! {
                biased;
                () = std::future::ready(()), if is_new => {}
                () = servers.changed() => {}
                () = sleep_until(due) => {}
                () = changed => sleep_until(due.min(saved_at + PHASE_PAUSE)).await,
            }
            let now = progress.borrow_and_update().clone();
            counting.count(&now);
            if now.phase == Phase::Ended {
                return false;
            }
            phase = now.phase;
            saved_at = Instant::now();
            self.stops.shown.set_behind(now.behind_since);
            let healed = self.heal(data);
            let idle = now.phase == Phase::CaughtUp;
            self.stops.shown.caught_up.store(idle, Ordering::Relaxed);
            if idle || now.through_seq != now.start_seq {
                self.stops.shown.set_moved();
            }
            let before = (data.idle, data.unreachable.clone(), data.behind);
            data.behind = self.behind(data, idle);
            (data.idle, data.unreachable) = (idle, servers.outage());
            let is_new = before != (data.idle, data.unreachable.clone(), data.behind);
            match self
                .save_progress(&now, (healed || is_new).then_some(&*data))
                .await
            {
                Ok(()) => {}
                Err(error) if error.is_halt() => return true,
                Err(error) => {
                    let id = &self.accepted.job.id;
                    tracing::warn!(job.id = %id, error = %wire::chain(&error), "cannot save progress");
                    // Retried with the next update.
                    (data.idle, data.unreachable, data.behind) = before;
                }
            }
        }
    }

    /// How long the replication has been behind its source, now that it is idle or not.
    fn behind(&self, data: &JobData, idle: bool) -> Option<Behind> {
        let now_ms = self.runner.now_ms();
        match data.behind {
            _ if idle => None,
            Some(behind) => {
                let lags = || self.lags_at_ms(behind).is_some_and(|at_ms| at_ms <= now_ms);
                let lagging = behind.lagging || lags();
                Some(Behind { lagging, ..behind })
            }
            // It had caught up. One that runs once never has.
            None => data.idle.then(|| Behind::since_ms(now_ms)),
        }
    }

    /// When a replication begins to lag that does not catch up until then.
    fn lags_at_ms(&self, behind: Behind) -> Option<i64> {
        let after = Duration::from_secs(self.runner.replications.options().lagging_after_sec);
        let since_ms = behind.since.saturating_mul(1000);
        (!after.is_zero()).then(|| after_ms(since_ms, after))
    }

    /// Completes when a replication begins to lag.
    async fn lags(&self, behind: Option<Behind>) {
        let behind = behind.filter(|behind| !behind.lagging);
        let Some(at_ms) = behind.and_then(|behind| self.lags_at_ms(behind)) else {
            return std::future::pending().await;
        };
        let wait_ms = at_ms.saturating_sub(self.runner.now_ms());
        sleep(Duration::from_millis(u64::try_from(wait_ms).unwrap_or(0))).await;
    }

    /// Clears the errors of a run that has lasted long enough to be healthy. True if there were any.
    pub(super) fn heal(&self, data: &mut JobData) -> bool {
        let now = self.runner.now_ms().div_euclid(1000);
        let threshold = self.runner.replications.options().health_threshold_sec;
        let lasted = u64::try_from(now.saturating_sub(data.last_start)).unwrap_or(0);
        let healed = data.last_start > 0 && lasted > threshold;
        let had_errors = data.error_count > 0 || data.last_error.is_some();
        if healed {
            (data.error_count, data.last_error) = (0, None);
        }
        healed && had_errors
    }

    pub(super) async fn save_progress(
        &self,
        now: &Progress,
        data: Option<&JobData>,
    ) -> Result<(), ServiceError> {
        let jobs = &self.runner.replications.0.jobs;
        let op = jobs.op();
        // A run that begins has nothing to say yet, and continues what the row has.
        let live = (now.phase != Phase::Starting).then(|| live(now, op.now_ms).encode());
        let live = live.as_deref();
        let (replications, job) = (&self.runner.replications, &self.accepted.job);
        let held = (jobs.store())
            .transact("keep_progress", |tx| async move {
                let mut before = None;
                if let Some(data) = data {
                    replications.seals_job_in(&tx, data).await?;
                    before = replications.before_in(&tx, job).await?;
                }
                let new = data.map(|data| data.encode().into());
                let held = jobs.update_in(&tx, &op, job, new).await?;
                if let Some(data) = data.filter(|_| !held.repeated) {
                    (replications.events_in(&tx, &op, job, before.as_ref(), data)).await?;
                }
                if let Some(live) = live {
                    tx.set(&keys::live(&job.id), live);
                }
                Ok::<_, ServiceError>(held)
            })
            .await?;
        if held.again {
            self.stops.again.cancel();
        }
        Ok(())
    }

    /// The last progress of a run, written with its end.
    pub(super) fn save_progress_in(&self, tx: &Transaction, op: &Op, last: &Progress) {
        if last.phase != Phase::Starting {
            let live = live(last, op.now_ms);
            tx.set(&keys::live(&self.accepted.job.id), &live.encode());
        }
    }
}

fn live(now: &Progress, now_ms: i64) -> Live {
    let failures = now.failures.iter().map(show_failed_doc);
    let from = match now.started_from {
        StartedFrom::Zero => "none",
        StartedFrom::Checkpoint => "checkpoint",
        StartedFrom::SinceSeq => "since_seq",
    };
    Live {
        info: now.to_info(timestamp(now_ms)),
        updated: now_ms.div_euclid(1000),
        start_seq: now.start_seq.as_ref().map(|seq| show_seq(Some(seq))),
        started_from: Some(from.to_owned()),
        failures: failures.collect(),
    }
}
