//! `POST /_remotes/_start`: runs of replications of a remote that users ask for, with many others.

use std::collections::VecDeque;
use std::time::Duration;

use docstore::InstanceId;
use jobs::{Class, JobId, JobInfo, Op, Signal, State};
use store::Transaction;
use tokio::time::sleep;

use super::control::is_paused;
use super::ruled::of_rule;
use crate::data::{JobData, JobState, Kind, Origin};
use crate::fault::ServiceError;
use crate::keys;
use crate::remote::delayed_ms;
use crate::service::Replications;

/// Jobs per page of a listing.
const PAGE: usize = 100;
/// Between two looks at a job whose end is awaited.
const LOOK_PAUSE: Duration = Duration::from_millis(250);

/// A replication that was asked to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub job: JobId,
    /// The number of its run that has everything that was there before.
    run: u32,
}

/// How runs ended that were waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    pub completed: u64,
    pub failed: u64,
}

impl Replications {
    /// Asks for a run of each replication of a remote whose database and target `admits`, after the remote's delay or, with
    /// `now`, at once. Those that do nothing run after all others; those that wait or run keep their priority. After an
    /// error some were asked and others not.
    pub async fn start_remote(
        &self,
        (instance, doc_id): (InstanceId, &str),
        admits: impl Fn(&str, &str) -> bool,
        now: bool,
    ) -> Result<Vec<Asked>, ServiceError> {
        let query = of_rule(instance, doc_id)?;
        let (jobs, mut cursor, mut asked) = (&self.0.jobs, None, Vec::new());
        loop {
            let page = jobs.list(&self.0.ty, &query, cursor.as_ref(), PAGE).await?;
            for listed in &page.jobs {
                let data = JobData::decode(listed.data.as_deref().unwrap_or_default())?;
                if !data.is_of(instance, doc_id) || !data.admitted(&admits) {
                    continue;
                }
                let (op, id) = (jobs.op(), &listed.info.id);
                let start = |tx: Transaction| async move { self.ask_in(&tx, &op, id, now).await };
                asked.extend(jobs.store().transact("start_remote", start).await?);
            }
            cursor = page.cursor;
            if cursor.is_none() {
                self.0.kept.outdate();
                return Ok(asked);
            }
        }
    }

    /// `None` for one that is gone or paused.
    async fn ask_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &JobId,
        now: bool,
    ) -> Result<Option<Asked>, ServiceError> {
        let Some((info, data)) = self.job_in(tx, job).await? else {
            return Ok(None);
        };
        if data.spec.is_none() || is_paused(&info, &data) {
            return Ok(None);
        }
        let due_ms = if now {
            0
        } else {
            let wanted = data.replication(&self.0.sealer, job, &self.defaults())?;
            let trigger = wanted.ok().and_then(|wanted| wanted.options.trigger);
            delayed_ms(op, job, trigger.as_ref())
        };
        let runs = info.state == State::Running;
        let run = info.attempts.saturating_add(1 + u32::from(runs));
        if runs || (waits(&info, &data) && !(now && data.state == JobState::Crashing)) {
            let signal = Signal::new(job.clone()).due_ms(due_ms);
            let (jobs, ty) = (&self.0.jobs, &self.0.ty);
            jobs.signal_many_in(tx, op, ty, &[signal]).await?;
        } else {
            self.revive_in(tx, op, job, data, due_ms).await?;
        }
        let job = job.clone();
        Ok(Some(Asked { job, run }))
    }

    /// Lets a job run that sleeps, has ended or waits after a failure.
    async fn revive_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &JobId,
        mut data: JobData,
        due_ms: i64,
    ) -> Result<(), ServiceError> {
        let now = op.now_ms.div_euclid(1000);
        data.wake_in(tx, job);
        data.state = JobState::Pending;
        (data.info, data.last_error, data.error_count) = (None, None, 0);
        data.last_updated = now;
        data.note(now, &[(Kind::Pending, None)], self.options().max_history);
        if let Some(id) = &data.rep_id {
            tx.clear(&keys::duplicate(id, job));
        }
        let add = self.job_of(job, &data).due_ms(due_ms);
        self.put_in(tx, op, &data, add.class(Class::Bulk)).await
    }

    /// A job that ran with many others is as any other from its next run on.
    pub(crate) async fn end_bulk_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &JobId,
        data: &JobData,
        due_ms: i64,
    ) -> Result<(), ServiceError> {
        let bits = op.bits.wrapping_add(1);
        let add = self.job_of(job, data).due_ms(due_ms);
        self.put_in(tx, &Op { bits, ..*op }, data, add).await
    }

    /// Waits until these runs have ended, one after the other. `ended` has those that have, also if this is dropped.
    pub async fn wait_for_runs(
        &self,
        asked: &mut VecDeque<Asked>,
        ended: &mut Ended,
    ) -> Result<(), ServiceError> {
        let (jobs, ty) = (&self.0.jobs, &self.0.ty);
        while let Some(first) = asked.front() {
            let found = jobs.get(ty, &first.job).await?;
            let is_over =
                |info: &JobInfo| info.state != State::Running && info.attempts >= first.run;
            match found {
                Some((info, _)) if !is_over(&info) => {
                    sleep(LOOK_PAUSE).await;
                    continue;
                }
                Some((_, data)) => match JobData::decode(&data)?.state {
                    JobState::Crashing | JobState::Failed => ended.failed += 1,
                    JobState::Pending | JobState::Running | JobState::Completed => {
                        ended.completed += 1;
                    }
                },
                // Its database or its remote is gone.
                None => ended.completed += 1,
            }
            asked.pop_front();
        }
        Ok(())
    }
}

/// Whether a pending job will run soon without being asked: it does not sleep, or its source has changed.
fn waits(info: &JobInfo, data: &JobData) -> bool {
    info.state == State::Pending && (data.asleep.is_none() || info.asked_ms.is_some())
}

impl JobData {
    /// Whether it belongs to this rule.
    pub(crate) fn is_of(&self, of: InstanceId, rule: &str) -> bool {
        matches!(&self.origin, Origin::Rule { instance, doc_id, .. }
            if doc_id == rule && *instance == of.to_string())
    }

    fn admitted(&self, admits: impl Fn(&str, &str) -> bool) -> bool {
        let database = match &self.origin {
            Origin::Rule { database, .. } => database.as_deref(),
            Origin::Document { .. } | Origin::Request { .. } => None,
        };
        let target = self.shown.target.as_deref();
        admits(database.unwrap_or_default(), target.unwrap_or_default())
    }
}
