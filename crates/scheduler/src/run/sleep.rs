//! Falling asleep: the end of a run that has caught up with a followed source, or that its `trigger` repeats.

use std::time::Duration;

use couch::Seq;
use jobs::{Accepted, Finish, Op};
use replication::engine::{self, Ahead};
use replication::id::Identity;
use replication::params::{Replication, Trigger};
use serde_json::Value;
use store::Transaction;

use super::Work;
use super::end::End;
use crate::data::{Asleep, Behind, JobData, JobState, Kind, Wake};
use crate::fault::ServiceError;
use crate::keys;
use crate::outcome::Reason;
use crate::remote::delayed_ms;
use crate::service::Replications;
use crate::testing::{self, Bug};
use crate::wake::{ASLEEP_MS, after_ms};

/// How often the source of a triggered replication is asked for changes while its server is not followed.
const POLL_PAUSE: Duration = Duration::from_mins(1);

/// What a sleep may become.
enum Next {
    Sleep {
        due_ms: i64,
    },
    /// There is something to copy.
    Run,
}

/// What a claimed job does.
pub(super) enum Woken {
    /// It does not run.
    Ends(End),
    /// It runs; why, if it has a trigger.
    Runs(Option<Reason>),
}

impl Work<'_> {
    /// Lets a run that is idle end and sleep until its source changes. `None` if the source has changes, or is not
    /// followed any more: then the run goes on.
    pub(super) async fn sleep_idle(
        &self,
        replication: &Replication,
        seq: Option<&Seq>,
        data: &mut JobData,
    ) -> Result<Option<End>, ServiceError> {
        let Some(seq) = seq else {
            return Ok(None);
        };
        if !self.watch_source(replication, seq, None, data).await? {
            return Ok(None);
        }
        if self.has_more(replication, seq, 1, data).await {
            self.stay_awake(data).await?;
            return Ok(None);
        }
        Ok(Some(End::Sleep { due_ms: ASLEEP_MS }))
    }

    /// The end of a run that its trigger repeats.
    pub(super) async fn sleep_until_triggered(
        &self,
        replication: &Replication,
        trigger: &Trigger,
        seq: &Seq,
        data: &mut JobData,
    ) -> Result<End, ServiceError> {
        let due_ms = match self.triggered(replication, trigger, seq, data).await? {
            Next::Sleep { due_ms } => due_ms,
            Next::Run => {
                if let Some(asleep) = &mut data.asleep {
                    asleep.wake.seq = Value::Null;
                }
                let start_ms = data.last_start.saturating_mul(1000);
                let earliest_ms = after_ms(start_ms, trigger.min_interval);
                let (op, job) = (self.runner.replications.0.jobs.op(), &self.accepted.job.id);
                delayed_ms(&op, job, Some(trigger)).max(earliest_ms)
            }
        };
        Ok(End::Sleep { due_ms })
    }

    /// Whether a claimed job, which may be a sleeper, runs. Changes that a feed reported need no further look, unless there
    /// must be several.
    pub(super) async fn woken(
        &self,
        replication: &Replication,
        data: &mut JobData,
    ) -> Result<Woken, ServiceError> {
        let Some(trigger) = replication.options.trigger else {
            return Ok(Woken::Runs(None));
        };
        let runs = |reason| Ok(Woken::Runs(Some(reason)));
        let Some(asleep) = &data.asleep else {
            return runs(match data.error_count {
                0 => Reason::Start,
                _ => Reason::Retry,
            });
        };
        let now_ms = self.runner.now_ms();
        let last_ms = data.last_start.saturating_mul(1000);
        let is_time = |every| after_ms(last_ms, every) <= now_ms;
        let reported = self.accepted.asked_ms.is_some() && trigger.min_changes <= 1;
        if reported {
            return runs(Reason::Change);
        }
        if !trigger.changes || trigger.every.is_some_and(is_time) {
            return runs(Reason::Time);
        }
        let seq = asleep.seq();
        match self.triggered(replication, &trigger, &seq, data).await? {
            Next::Run => runs(Reason::Change),
            Next::Sleep { due_ms } => Ok(Woken::Ends(End::Sleep { due_ms })),
        }
    }

    async fn triggered(
        &self,
        replication: &Replication,
        trigger: &Trigger,
        seq: &Seq,
        data: &mut JobData,
    ) -> Result<Next, ServiceError> {
        let followed = self
            .watch_source(replication, seq, Some(trigger), data)
            .await?;
        let start_ms = data.last_start.saturating_mul(1000);
        let mut due_ms = match trigger.every {
            Some(every) => after_ms(start_ms, every),
            None => ASLEEP_MS,
        };
        if trigger.changes {
            let count = trigger.min_changes.max(1);
            if self.has_more(replication, seq, count, data).await {
                return Ok(Next::Run);
            }
            if !followed {
                let poll_ms = after_ms(self.runner.now_ms(), POLL_PAUSE.max(trigger.delay));
                due_ms = due_ms.min(poll_ms.max(after_ms(start_ms, trigger.min_interval)));
            }
        }
        Ok(Next::Sleep { due_ms })
    }

    /// Whether a source has so many changes after a sequence. If not, its last sequence becomes that of the sleep.
    async fn has_more(
        &self,
        replication: &Replication,
        seq: &Seq,
        count: u64,
        data: &mut JobData,
    ) -> bool {
        if testing::has(Bug::MissesChangesWhenIdle) {
            return false;
        }
        let of = (&self.runner.network, &self.runner.settings());
        match Box::pin(engine::ahead(of, replication, seq, count)).await {
            Ahead::More => true,
            Ahead::Fewer(last) => {
                if let Some(asleep) = &mut data.asleep {
                    asleep.wake.seq = value(&last);
                }
                false
            }
        }
    }

    /// Writes the row that wakes the job while the job is held. Returns whether its server is followed. If not, only a
    /// triggered replication sleeps, whose row counts once the server is followed.
    async fn watch_source(
        &self,
        replication: &Replication,
        seq: &Seq,
        trigger: Option<&Trigger>,
        data: &mut JobData,
    ) -> Result<bool, ServiceError> {
        let by_clock = trigger.is_some_and(|trigger| !trigger.changes);
        let source = replication.source.server().filter(|_| !by_clock);
        let source = source.map(|(server, name)| (server.url_text().to_owned(), name));
        let asleep = Asleep {
            watches: source,
            polls: false,
            seq: value(seq),
            wake: wake(seq, trigger, data.last_start),
        };
        let mut new = data.clone();
        (new.idle, new.unreachable) = (true, None);
        let replications = &self.runner.replications;
        let op = replications.0.jobs.op();
        let (old, new, asleep) = (&data.asleep, &new, &asleep);
        let slept = (replications.0.jobs.store())
            .transact("fall_asleep", |tx| async move {
                let followed = match &asleep.watches {
                    Some((server, _)) => replications.following_in(&tx, server).await?.is_some(),
                    None => false,
                };
                if !followed && trigger.is_none() {
                    return Ok(None);
                }
                let asleep = Asleep {
                    polls: asleep.watches.is_some() && !followed,
                    ..asleep.clone()
                };
                let (jobs, job) = (&replications.0.jobs, &self.accepted.job);
                let mut new = new.clone();
                new.asleep = Some(asleep.clone());
                let held = jobs
                    .update_in(&tx, &op, job, Some(new.encode().into()))
                    .await?;
                if !held.repeated {
                    replications.seals_job_in(&tx, &new).await?;
                    if let Some(old) = old {
                        old.end_in(&tx, &job.id);
                    }
                    if !jobs.planted().is(jobs::Bug::WakeWrittenLate) {
                        asleep.begin_in(&tx, &job.id);
                    }
                }
                Ok::<_, ServiceError>(Some(asleep))
            })
            .await?;
        let Some(asleep) = slept else {
            return Ok(false);
        };
        let followed = asleep.watches.is_some() && !asleep.polls;
        (data.idle, data.unreachable, data.asleep) = (true, None, Some(asleep));
        Ok(followed)
    }

    /// Takes the row back: the run goes on.
    async fn stay_awake(&self, data: &mut JobData) -> Result<(), ServiceError> {
        let Some(asleep) = data.asleep.take() else {
            return Ok(());
        };
        data.idle = false;
        data.behind = Some(Behind::since_ms(self.runner.now_ms()));
        let replications = &self.runner.replications;
        let op = replications.0.jobs.op();
        let (jobs, new, asleep) = (&replications.0.jobs, &*data, &asleep);
        (replications.0.jobs.store())
            .transact("stay_awake", |tx| async move {
                let job = &self.accepted.job;
                let held = jobs
                    .update_in(&tx, &op, job, Some(new.encode().into()))
                    .await?;
                if !held.repeated {
                    replications.seals_job_in(&tx, new).await?;
                    asleep.end_in(&tx, &job.id);
                }
                Ok::<_, ServiceError>(())
            })
            .await
    }
}

impl Replications {
    /// Ends the run of a claimed job as if it had started, had caught up with its source at a sequence, and had fallen
    /// asleep. For benchmarks, which fill stores with sleepers.
    pub async fn lull_in(
        &self,
        tx: &Transaction,
        op: &Op,
        accepted: &Accepted,
        seq: &Seq,
    ) -> Result<(), ServiceError> {
        let (job, now) = (&accepted.job, op.now_ms.div_euclid(1000));
        let mut data = JobData::decode(&accepted.data)?;
        let parsed = data.replication(&self.0.sealer, &job.id, &self.defaults())?;
        let replication = parsed
            .map_err(|_| ServiceError::corrupt("the replication of a job cannot be decoded"))?;
        let identity = Identity::of(&replication, &self.0.service, None);
        let id = identity.replication.to_string();
        let source = replication.source.server();
        let asleep = Asleep {
            watches: source.map(|(server, name)| (server.url_text().to_owned(), name)),
            seq: value(seq),
            wake: wake(seq, None, now),
            polls: false,
        };
        data.note(now, &[(Kind::Started, None)], self.options().max_history);
        let data = JobData {
            state: JobState::Running,
            idle: true,
            rep_id: Some(id.clone()),
            base_id: Some(identity.base.to_string()),
            last_start: now,
            last_updated: now,
            asleep: Some(asleep.clone()),
            ..data
        };
        let finish = Finish::again(ASLEEP_MS).data(data.encode());
        if !self.0.jobs.finish_in(tx, op, job, finish).await?.repeated {
            self.seals_job_in(tx, &data).await?;
            asleep.begin_in(tx, &job.id);
            tx.clear(&keys::active(None, &job.id));
            tx.set(&keys::active(Some(&id), &job.id), b"");
            tx.set(&keys::owner(&id), job.id.as_bytes());
        }
        Ok(())
    }
}

/// The row of a sleeper whose last run began at a time, in seconds.
fn wake(seq: &Seq, trigger: Option<&Trigger>, last_start: i64) -> Wake {
    let mut wake = Wake {
        seq: value(seq),
        listed: None,
        delay_ms: 0,
        random_ms: 0,
        not_before_ms: 0,
    };
    if let Some(trigger) = trigger {
        wake.delay_ms = after_ms(0, trigger.delay);
        wake.random_ms = after_ms(0, trigger.random_delay);
        if !trigger.min_interval.is_zero() {
            wake.not_before_ms = after_ms(last_start.saturating_mul(1000), trigger.min_interval);
        }
    }
    wake
}

fn value(seq: &Seq) -> Value {
    serde_json::from_str(seq.as_json()).unwrap_or_default()
}
