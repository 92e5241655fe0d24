//! `POST /_remotes/_start`: runs of replications of a remote that users ask for, with many others.

use std::time::Duration;

use docstore::InstanceId;
use futures::future::try_join_all;
use jobs::{Add, Class, JobId, JobInfo, Op, Signal, State};
use store::{AsStoreError as _, Call, Transaction};
use tokio::time::{Instant, sleep};

use super::control::is_paused;
use crate::data::{JobData, JobState, Kind, Origin, RemoteId};
use crate::fault::ServiceError;
use crate::keys;
use crate::remote::delayed_ms;
use crate::service::Replications;

/// Jobs per transaction.
const JOBS_MAX: usize = 100;
/// Bytes of their data per transaction.
const BYTES_MAX: usize = 1_000_000;
/// After so many conflicts, a transaction is tried with fewer jobs.
const CONFLICTS_MAX: u32 = 3;
/// Between two looks at a job whose end is awaited.
const LOOK_PAUSE: Duration = Duration::from_millis(250);

/// A replication that was asked to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub job: JobId,
    /// When the job was created: the next one of its id counts its runs anew.
    created_ms: i64,
    /// The number of its run that has everything that was there before.
    run: u32,
}

/// A replication of a remote that may be asked to run.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub database: &'a str,
    pub target: &'a str,
    /// The key of one of the remote's URLs.
    pub url: &'a str,
}

/// What lets a job run.
enum Start {
    /// It waits for its next try.
    Nothing,
    Signal(Signal),
    Revive(Add),
}

/// How runs ended that were waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    pub completed: u64,
    pub failed: u64,
}

impl Replications {
    /// Asks for a run of each replication of a remote that `admits` accepts, after the remote's delay or, with `now`, at
    /// once. Those that do nothing run after all others; those that wait or run keep their priority. After an error some
    /// were asked and others not. What an earlier revision of the remote asked for does not run again.
    pub async fn start_remote(
        &self,
        of: RemoteId<'_>,
        admits: impl Fn(Candidate<'_>) -> bool,
        now: bool,
    ) -> Result<Vec<Asked>, ServiceError> {
        let mut pages = self.pages_of_rule(of.instance, of.doc_id, true)?;
        let mut asked = Vec::new();
        while let Some(page) = pages.next().await? {
            let mut found = Vec::new();
            for listed in page {
                let bytes = listed.data.unwrap_or_default();
                let data = JobData::decode(&bytes)?;
                if data.is_current_of(of) && admits(data.candidate()) {
                    found.push((listed.info.id, bytes.len()));
                }
            }
            asked.extend(self.start_all(&found, now).await?);
        }
        self.0.kept.outdate();
        Ok(asked)
    }

    /// Asks for runs of jobs, given with the size of their data, in few transactions.
    async fn start_all(
        &self,
        mut rest: &[(JobId, usize)],
        now: bool,
    ) -> Result<Vec<Asked>, ServiceError> {
        let jobs = &self.0.jobs;
        let (mut asked, mut max) = (Vec::new(), JOBS_MAX);
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(fitting(rest, max));
            let op = jobs.op();
            let start =
                |tx: Transaction| async move { self.start_batch_in(&tx, &op, batch, now).await };
            let call = Call::new("start_remote");
            let call = if batch.len() > 1 {
                call.contention_max(CONFLICTS_MAX)
            } else {
                call
            };
            match Box::pin(jobs.store().transact(call, start)).await {
                Ok(started) => {
                    asked.extend(started);
                    rest = later;
                }
                // Runs change their jobs all the time. What an earlier try may have started is started once more.
                Err(error) if batch.len() > 1 && is_crowded(&error) => max = batch.len() / 2,
                Err(error) => return Err(error),
            }
        }
        Ok(asked)
    }

    async fn start_batch_in(
        &self,
        tx: &Transaction,
        op: &Op,
        batch: &[(JobId, usize)],
        now: bool,
    ) -> Result<Vec<Asked>, ServiceError> {
        // They wait for the store together: one after the other, they would not end in time on a slow one.
        let starts = batch.iter().map(|(job, _)| self.ask_in(tx, op, job, now));
        let (mut asked, mut signals, mut adds) = (Vec::new(), Vec::new(), Vec::new());
        for (one, start) in try_join_all(starts).await?.into_iter().flatten() {
            asked.push(one);
            match start {
                Start::Nothing => {}
                Start::Signal(signal) => signals.push(signal),
                Start::Revive(add) => adds.push(add),
            }
        }
        let (jobs, ty) = (&self.0.jobs, &self.0.ty);
        jobs.signal_many_in(tx, op, ty, &signals).await?;
        let bits = op.bits.wrapping_add(1);
        jobs.add_many_in(tx, &Op { bits, ..*op }, ty, &adds).await?;
        Ok(asked)
    }

    /// `None` for one that is gone or paused.
    async fn ask_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &JobId,
        now: bool,
    ) -> Result<Option<(Asked, Start)>, ServiceError> {
        let Some((info, data)) = self.job_in(tx, job).await? else {
            return Ok(None);
        };
        if data.spec.is_none() || is_paused(&info, &data) {
            return Ok(None);
        }
        let asked = Asked {
            job: job.clone(),
            created_ms: info.created_ms,
            run: info.attempts.saturating_add(1),
        };
        let retries = info.state == State::Pending && data.state == JobState::Crashing;
        if retries && !now {
            return Ok(Some((asked, Start::Nothing)));
        }
        let due_ms = if now {
            0
        } else {
            let wanted = data.replication(&self.0.sealer, job, &self.defaults())?;
            let trigger = wanted.ok().and_then(|wanted| wanted.options.trigger);
            delayed_ms(op, job, trigger.as_ref())
        };
        let start = if info.state == State::Running || (waits(&info, &data) && !retries) {
            Start::Signal(Signal::new(job.clone()).due_ms(due_ms))
        } else {
            Start::Revive(self.revived_in(tx, op, job, data, due_ms).await?)
        };
        Ok(Some((asked, start)))
    }

    /// Lets a job run that sleeps, has ended or waits after a failure, once it is added.
    async fn revived_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &JobId,
        mut data: JobData,
        due_ms: i64,
    ) -> Result<Add, ServiceError> {
        let now = op.now_ms.div_euclid(1000);
        data.wake_in(tx, job);
        data.state = JobState::Pending;
        (data.info, data.last_error, data.error_count) = (None, None, 0);
        data.last_updated = now;
        data.note(now, &[(Kind::Pending, None)], self.options().max_history);
        if let Some(id) = &data.rep_id {
            tx.clear(&keys::duplicate(id, job));
        }
        self.seals_job_in(tx, &data).await?;
        tx.set(&keys::active(data.rep_id.as_deref(), job), b"");
        Ok(self.job_of(job, &data).due_ms(due_ms).class(Class::Bulk))
    }

    /// A job that ran with many others is as any other from its next run on, at the earliest of these times.
    pub(crate) async fn end_bulk_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &JobId,
        data: &JobData,
        due_ms: [Option<i64>; 2],
    ) -> Result<(), ServiceError> {
        let bits = op.bits.wrapping_add(1);
        let due_ms = due_ms.into_iter().flatten().min().unwrap_or_default();
        let add = self.job_of(job, data).due_ms(due_ms);
        self.put_in(tx, &Op { bits, ..*op }, data, add).await
    }

    /// Waits until these runs have ended. `ended` has those that have, also if this is dropped.
    pub async fn wait_for_runs(
        &self,
        asked: &mut Vec<Asked>,
        ended: &mut Ended,
    ) -> Result<(), ServiceError> {
        let (jobs, ty) = (&self.0.jobs, &self.0.ty);
        loop {
            let (began, mut nth) = (Instant::now(), 0);
            while let Some(one) = asked.get_mut(nth) {
                let completed = match jobs.get(ty, &one.job).await? {
                    Some((info, data)) => one.ended(&info, &JobData::decode(&data)?),
                    // Its database or its remote is gone.
                    None => Some(true),
                };
                let Some(completed) = completed else {
                    nth += 1;
                    continue;
                };
                ended.completed += u64::from(completed);
                ended.failed += u64::from(!completed);
                asked.swap_remove(nth);
            }
            if asked.is_empty() {
                return Ok(());
            }
            // With very many, looking takes up to a fifth of the time.
            sleep(LOOK_PAUSE.max(4 * began.elapsed())).await;
        }
    }
}

impl Asked {
    /// Whether its run has completed, if it has ended. One that was put back without having copied everything has not: the
    /// next one does.
    fn ended(&mut self, info: &JobInfo, data: &JobData) -> Option<bool> {
        if info.created_ms != self.created_ms {
            (self.created_ms, self.run) = (info.created_ms, 1);
        }
        if info.ended_after(self.run - 1).is_none() {
            // No run follows the last retry.
            return (info.state == State::Dead).then_some(false);
        }
        match data.state {
            JobState::Failed | JobState::Crashing => Some(false),
            JobState::Completed => Some(true),
            _ if data.asleep.is_some() => Some(true),
            _ => {
                self.run = info.attempts.saturating_add(1);
                None
            }
        }
    }
}

/// How many of these jobs one transaction may start.
fn fitting(jobs: &[(JobId, usize)], max: usize) -> usize {
    let mut bytes = 0;
    let fits = |(_, size): &&(JobId, usize)| {
        bytes += size;
        bytes <= BYTES_MAX
    };
    jobs.iter().take(max).take_while(fits).count().max(1)
}

/// Whether fewer jobs at once may succeed.
fn is_crowded(error: &ServiceError) -> bool {
    let too_large = matches!(error.as_store_error(), Some(store::Error::TooLarge { .. }));
    too_large || error.is_contended()
}

/// Whether a pending job will run soon without being asked: it does not sleep, or its source has changed, perhaps during its
/// last run.
fn waits(info: &JobInfo, data: &JobData) -> bool {
    let sleeps = (data.asleep.as_ref()).is_some_and(|asleep| !asleep.wake.seq.is_null());
    info.state == State::Pending && (!sleeps || info.asked_ms.is_some())
}

impl JobData {
    /// Whether it belongs to this rule.
    pub(crate) fn is_of(&self, of: InstanceId, rule: &str) -> bool {
        matches!(&self.origin, Origin::Rule { instance, doc_id, .. }
            if doc_id == rule && *instance == of.to_string())
    }

    /// Whether this revision of the remote asked for it.
    pub(crate) fn is_current_of(&self, of: RemoteId<'_>) -> bool {
        let is_current = matches!(&self.origin, Origin::Rule { rev, .. } if rev == of.rev);
        is_current && self.is_of(of.instance, of.doc_id)
    }

    fn candidate(&self) -> Candidate<'_> {
        let (database, remote) = match &self.origin {
            Origin::Rule {
                database, remote, ..
            } => (database.as_deref(), remote.as_deref()),
            Origin::Document { .. } | Origin::Request { .. } => (None, None),
        };
        Candidate {
            database: database.unwrap_or_default(),
            target: self.shown.target.as_deref().unwrap_or_default(),
            url: remote.map_or("", |remote| &remote.url),
        }
    }
}

#[cfg(test)]
mod tests;
