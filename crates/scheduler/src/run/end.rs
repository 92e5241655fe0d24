//! How runs end: each end is one transaction on the job, its document, and the rows of its replication id.

use jobs::{Class, Finish, Op};
use serde_json::{Map, Value};
use store::Transaction;

use super::{Work, text_info};
use crate::data::{JobData, JobState, Kind, Origin, error_text, job_text};
use crate::fault::ServiceError;
use crate::keys;
use crate::outcome::Outcome;
use crate::service::PARKED_MS;
use crate::testing::{self, Bug};
use crate::writeback::{self, Patch};
use replication::Error;
use replication::engine::{Phase, Progress};
use replication::id::Identity;

/// Figures that mean nothing after the run.
const MOMENTARY: [&str; 4] = [
    "lag_seconds",
    "last_progress_time",
    "docs_per_second",
    "bytes_per_second",
];

/// Why a run ended.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// The lock was lost.
    Halted,
    /// Everything was copied.
    Complete {
        result: Map<String, Value>,
        progress: Box<Progress>,
    },
    /// To be run again; not a failure.
    Reschedule {
        due_ms: i64,
    },
    /// It has caught up, and sleeps until it is woken or due.
    Sleep {
        due_ms: i64,
    },
    /// It failed, and is retried later.
    Crash(Value),
    Fail(Value),
    /// Its rule has gone; the job goes with it.
    Gone,
    /// Another job has the same replication id.
    Duplicate {
        identity: Box<Identity>,
    },
    /// One of the others, with the last progress of the run.
    After(Box<End>, Box<Progress>),
}

impl End {
    pub(super) fn of_error(error: &Error) -> Self {
        match error {
            Error::Halted => Self::Halted,
            error if error.is_max_backoff() => Self::Crash(text_info("max_backoff")),
            // It would fail on any node, and block each in turn.
            error @ Error::FilterTooExpensive { .. } => Self::Fail(error.to_info()),
            error => Self::Crash(error.to_info()),
        }
    }

    /// The same end, with the last progress of the run.
    pub(super) fn with(self, last: Progress) -> Self {
        let is_new = last.phase != Phase::Starting || last.resume.is_some();
        if !is_new || matches!(self, Self::Halted) {
            return self;
        }
        Self::After(Box::new(self), Box::new(last))
    }
}

/// An end, as written to queue and document.
struct Plan {
    data: JobData,
    finish: Finish,
    patch: Option<Patch>,
    /// The replication id, if another job owns it.
    duplicate_of: Option<String>,
    outcome: Outcome,
}

impl Work<'_> {
    pub(super) async fn end(&self, mut data: JobData, end: End) -> Result<Outcome, ServiceError> {
        let (end, last) = match end {
            End::After(end, last) => (*end, Some(last)),
            End::Complete { result, progress } => {
                let last = Some(progress.clone());
                (End::Complete { result, progress }, last)
            }
            end => (end, None),
        };
        if let Some(last) = &last {
            data.resume.clone_from(&last.resume);
        }
        let jobs = &self.runner.replications.0.jobs;
        let op = jobs.op();
        let random = self.runner.replications.entropy().bits();
        let (data, end, last) = (&data, &end, last.as_deref());
        let (outcome, due_ms) = (jobs.store())
            .transact("end_run", |tx| async move {
                self.end_in(&tx, &op, random, data, end, last).await
            })
            .await?;
        if let (Outcome::Crashed, Some(due_ms)) = (outcome, due_ms) {
            self.need_servers(data, due_ms.saturating_sub(op.now_ms));
        }
        if let Some(asleep) = &data.asleep
            && jobs.planted().is(jobs::Bug::WakeWrittenLate)
        {
            let late = |tx: Transaction| async move {
                asleep.begin_in(&tx, &self.accepted.job.id);
                Ok::<_, ServiceError>(())
            };
            jobs.store().transact("fall_asleep_late", late).await?;
        }
        crate::metrics::ended(outcome);
        if let Some(remote) = data.remote() {
            crate::metrics::remote_ended(&remote.name, outcome, last.is_some());
        }
        self.log_end(data, end, outcome);
        Ok(outcome)
    }

    fn log_end(&self, data: &JobData, end: &End, outcome: Outcome) {
        let id = &self.accepted.job.id;
        let reason = match (outcome, end) {
            (Outcome::Crashed | Outcome::Failed, End::Crash(info) | End::Fail(info)) => {
                error_text(info)
            }
            (Outcome::Failed, _) => "another job does the same".to_owned(),
            _ => {
                tracing::info!(job.id = %id, ended = ?outcome, "run ended");
                return;
            }
        };
        let (db, doc_id) = match &data.origin {
            Origin::Document { db, doc_id, .. } | Origin::Rule { db, doc_id, .. } => {
                (Some(db), Some(doc_id))
            }
            Origin::Request { .. } => (None, None),
        };
        let (source, target) = (&data.shown.source, &data.shown.target);
        if let Some(outage) = self.outage(data) {
            // The outage was logged once for the server.
            tracing::info!(job.id = %id, ended = ?outcome, server = outage.server, reason, "run ended by an outage");
            return;
        }
        tracing::warn!(job.id = %id, ended = ?outcome, db, doc.id = doc_id, reason, source, target, "run failed");
    }

    /// Returns when the job runs again, too.
    async fn end_in(
        &self,
        tx: &Transaction,
        op: &Op,
        random: u128,
        data: &JobData,
        end: &End,
        last: Option<&Progress>,
    ) -> Result<(Outcome, Option<i64>), ServiceError> {
        let replications = &self.runner.replications;
        let (jobs, job) = (&replications.0.jobs, &self.accepted.job);
        if matches!(end, End::Gone) || self.is_forgotten_in(tx, op, data, end).await? {
            replications.drop_job_in(tx, op, &job.id).await?;
            return Ok((Outcome::Halted, None));
        }
        let info = jobs.info_in(tx, &replications.0.ty, &job.id).await?;
        let is_bulk = info.as_ref().is_some_and(|info| info.class == Class::Bulk);
        let (signal_ms, next_due_ms) =
            info.map_or((None, None), |info| (info.signal_ms, info.next_due_ms));
        let plan = match (end, next_due_ms) {
            // A creator requested another run and decides when, whatever the result; never, if the job is to be paused.
            (_, Some(due_ms)) => self.reschedule(data, due_ms, op),
            (End::Duplicate { identity }, None) => {
                self.duplicate_in(tx, op, random, data, identity).await?
            }
            (end, None) => self.plan(op, random, data, end),
        };
        let old_id = data.rep_id.as_deref();
        let finish = Finish {
            limits: Some(replications.options().limits_of_job(&plan.data)),
            ..plan.finish.clone().data(plan.data.encode())
        };
        let (finished, ended) = (finish.again_ms.is_none(), (plan.outcome, finish.again_ms));
        let before = replications.before_in(tx, job).await?;
        let held = jobs.finish_in(tx, op, job, finish).await?;
        if held.repeated {
            return Ok(ended);
        }
        (replications.events_in(tx, op, job, before.as_ref(), &plan.data)).await?;
        replications.seals_job_in(tx, &plan.data).await?;
        match (&data.asleep, &plan.data.asleep) {
            (_, Some(_)) if jobs.planted().is(jobs::Bug::WakeWrittenLate) => {}
            (_, Some(asleep)) => asleep.begin_in(tx, &job.id),
            (Some(asleep), None) => asleep.end_in(tx, &job.id),
            (None, None) => {}
        }
        if self.accepted.stalls > 0 {
            tx.clear(&keys::suspect(&job.id));
        }
        (self.reschedule_in(tx, op, &plan, is_bulk, signal_ms)).await?;
        if let Some(last) = last {
            self.save_progress_in(tx, op, last);
        }
        if finished {
            self.give_up_in(tx, op, &plan.data).await?;
            if !testing::has(Bug::FinishedStaysListed) {
                tx.clear(&keys::active(old_id, &job.id));
            }
        } else if plan.data.rep_id.as_deref() != old_id {
            tx.clear(&keys::active(old_id, &job.id));
            tx.set(&keys::active(plan.data.rep_id.as_deref(), &job.id), b"");
        }
        if finished && data.is_transient() {
            let id = plan.data.rep_id.as_deref().unwrap_or_default();
            tx.set(&keys::result(op.now_ms, &job.id), id.as_bytes());
        }
        if let Some(id) = &plan.duplicate_of {
            tx.set(&keys::duplicate(id, &job.id), b"");
        }
        if let Some(patch) = &plan.patch
            && !testing::has(Bug::EndWithoutDocument)
        {
            writeback::write_in(replications, tx, op, &plan.data.origin, patch).await?;
        }
        Ok(ended)
    }

    /// Changes when, and in which class, a job that was put back runs again.
    async fn reschedule_in(
        &self,
        tx: &Transaction,
        op: &Op,
        plan: &Plan,
        is_bulk: bool,
        signal_ms: Option<i64>,
    ) -> Result<(), ServiceError> {
        let (replications, job) = (&self.runner.replications, &self.accepted.job.id);
        match (plan.outcome, plan.finish.again_ms) {
            (Outcome::Asleep, due_ms) if is_bulk => {
                let due_ms = [due_ms, signal_ms];
                (replications.end_bulk_in(tx, op, job, &plan.data, due_ms)).await
            }
            // Only a signal for a run at once shortens a back-off. The queue does not know that there is one: for that, the
            // run would have to end as failed, and the job would become a suspect.
            (Outcome::Crashed, Some(due_ms))
                if signal_ms.is_some_and(|signal_ms| (1..due_ms).contains(&signal_ms)) =>
            {
                let bits = op.bits.wrapping_add(1);
                let (jobs, ty, op) = (&replications.0.jobs, &replications.0.ty, Op { bits, ..*op });
                jobs.resubmit_in(tx, &op, ty, job, Some(due_ms), None)
                    .await?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Lets the next job run that has the same replication id.
    async fn give_up_in(
        &self,
        tx: &Transaction,
        op: &Op,
        data: &JobData,
    ) -> Result<(), ServiceError> {
        let replications = &self.runner.replications;
        let Some(id) = &data.rep_id else {
            return Ok(());
        };
        if replications.owner_in(tx, id).await?.as_ref() == Some(&self.accepted.job.id) {
            // The row stays, so that the job is found by its replication id; the next owner overwrites it.
            replications.release_in(tx, op, id).await?;
        }
        Ok(())
    }

    fn plan(&self, op: &Op, random: u128, data: &JobData, end: &End) -> Plan {
        match end {
            End::Complete { result, progress } => self.complete(data, op, result, progress),
            End::Reschedule { due_ms } => self.reschedule(data, *due_ms, op),
            End::Sleep { due_ms } => Self::sleep(data, *due_ms, op),
            End::Crash(info) => self.crash(data, op, random, info.clone()),
            End::Fail(info) => self.fail(data, op, info.clone()),
            // Unwrapped or handled before.
            End::After(end, _) => self.plan(op, random, data, end),
            End::Halted | End::Gone | End::Duplicate { .. } => self.reschedule(data, 0, op),
        }
    }

    fn complete(
        &self,
        data: &JobData,
        op: &Op,
        result: &Map<String, Value>,
        progress: &Progress,
    ) -> Plan {
        let mut data = Self::released(data, op);
        let mut stats = progress.to_info(super::timestamp(op.now_ms));
        for name in MOMENTARY {
            stats.remove(name);
        }
        if progress.stats.doc_write_failures > 0 {
            stats.insert("completed_with_failures".to_owned(), true.into());
        }
        data.state = JobState::Completed;
        data.info = Some(Value::Object(stats.clone()));
        data.result = Some(result.clone());
        (data.error_count, data.last_error, data.behind) = (0, None, None);
        data.missing_since = None;
        self.note(&mut data, op, &[(Kind::Stopped, None)]);
        let start_time = data.start_time;
        Plan {
            patch: Some(Patch::Completed { stats, start_time }),
            data,
            finish: Finish::done(),
            duplicate_of: None,
            outcome: Outcome::Completed,
        }
    }

    fn reschedule(&self, data: &JobData, due_ms: i64, op: &Op) -> Plan {
        let mut data = Self::released(data, op);
        data.state = JobState::Pending;
        (data.info, data.last_error) = (None, None);
        self.note(
            &mut data,
            op,
            &[(Kind::Stopped, None), (Kind::Pending, None)],
        );
        Plan {
            data,
            finish: Finish::again(due_ms),
            patch: None,
            duplicate_of: None,
            outcome: Outcome::Rescheduled,
        }
    }

    fn sleep(data: &JobData, due_ms: i64, op: &Op) -> Plan {
        let data = JobData {
            state: JobState::Running,
            idle: true,
            asleep: data.asleep.clone(),
            error_count: 0,
            last_error: None,
            missing_since: None,
            behind: None,
            ..Self::released(data, op)
        };
        Plan {
            data,
            finish: Finish::again(due_ms),
            patch: None,
            duplicate_of: None,
            outcome: Outcome::Asleep,
        }
    }

    fn crash(&self, data: &JobData, op: &Op, random: u128, info: Value) -> Plan {
        let tag = info
            .get("error")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        if data.is_transient() && tag != "max_backoff" {
            return self.fail(data, op, info);
        }
        let mut data = Self::released(data, op);
        if data.state == JobState::Running {
            self.heal(&mut data);
        }
        let now = op.now_ms.div_euclid(1000);
        data.missing_since = data.missing_after(&info, now);
        let remote = data.remote().cloned();
        if let Some(remote) = &remote
            && remote.gives_up(data.error_count.saturating_add(1))
        {
            let plan = self.fail(&data, op, info);
            let finish = Finish::dead(plan.data.error_text());
            return Plan { finish, ..plan };
        }
        data.state = JobState::Crashing;
        data.error_count = data.error_count.saturating_add(1);
        data.last_error = Some(tag);
        let reason = error_text(&info);
        data.info = Some(info);
        self.note(
            &mut data,
            op,
            &[(Kind::Crashed, Some(&reason)), (Kind::Pending, None)],
        );
        let options = self.runner.replications.options();
        let wait_ms = match &remote {
            Some(remote) => i64::try_from(remote.retry_ms).unwrap_or(i64::MAX),
            None => (options.backoff_s(data.error_count, random)).saturating_mul(1000),
        };
        let due_ms = if testing::has(Bug::NeverRetries) {
            PARKED_MS
        } else {
            let forgotten_ms = data.forgotten_ms(now).unwrap_or(i64::MAX);
            op.now_ms.saturating_add(wait_ms).min(forgotten_ms)
        };
        Plan {
            finish: Finish {
                reason: Some(data.error_text()),
                ..Finish::again(due_ms)
            },
            data,
            patch: None,
            duplicate_of: None,
            outcome: Outcome::Crashed,
        }
    }

    fn fail(&self, data: &JobData, op: &Op, info: Value) -> Plan {
        let mut data = Self::released(data, op);
        // A job created as failed has counted this already.
        if data.state != JobState::Failed {
            data.error_count = data.error_count.saturating_add(1);
            let reason = error_text(&info);
            self.note(&mut data, op, &[(Kind::Crashed, Some(&reason))]);
        }
        (data.state, data.behind) = (JobState::Failed, None);
        data.last_error = info.get("error").and_then(Value::as_str).map(str::to_owned);
        data.info = Some(info);
        let reason = data.error_text();
        Plan {
            data,
            finish: Finish::failed(reason.clone()),
            patch: Some(Patch::Failed { reason }),
            duplicate_of: None,
            outcome: Outcome::Failed,
        }
    }

    /// Checks again in this transaction that the rival exists: without it, the job need not fail.
    async fn duplicate_in(
        &self,
        tx: &Transaction,
        op: &Op,
        random: u128,
        data: &JobData,
        identity: &Identity,
    ) -> Result<Plan, ServiceError> {
        let id = identity.replication.as_str();
        let Some(rival) = self
            .runner
            .replications
            .rival_in(tx, id, &self.accepted.job.id)
            .await?
        else {
            return Ok(self.reschedule(data, 0, op));
        };
        let info = text_info(&format!("Duplicate job running: {}", job_text(&rival.job)));
        if rival.is_transient && !data.is_transient() {
            return Ok(self.crash(data, op, random, info));
        }
        let mut plan = self.fail(data, op, info);
        if !data.is_transient() {
            plan.data.rep_id = Some(id.to_owned());
            plan.data.base_id = Some(identity.base.to_string());
            plan.duplicate_of = Some(id.to_owned());
        }
        Ok(plan)
    }

    /// The data of a job that does not run any more.
    fn released(data: &JobData, op: &Op) -> JobData {
        let mut released = data.clone();
        (released.node, released.pid) = (None, None);
        (released.idle, released.unreachable, released.asleep) = (false, None, None);
        released.last_updated = op.now_ms.div_euclid(1000);
        released
    }

    fn note(&self, data: &mut JobData, op: &Op, events: &[(Kind, Option<&str>)]) {
        let max = self.runner.replications.options().max_history;
        data.note(op.now_ms.div_euclid(1000), events, max);
    }
}
