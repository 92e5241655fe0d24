//! The transaction that starts a run: takes the replication id and marks the job as running.

use jobs::{JobId, Op, State};
use store::Transaction;

use super::Work;
use crate::create::Fate;
use crate::data::{JobData, JobState, Kind};
use crate::fault::ServiceError;
use crate::keys;
use crate::live::Seed;
use crate::service::Replications;
use crate::writeback::{self, Patch};
use replication::id::Identity;

/// The result of starting a run.
pub(super) enum Begun {
    /// The run may copy, and continues this.
    Run(Seed),
    /// A creator requested another run meanwhile.
    Again,
    /// Another job owns the replication id.
    Duplicate,
    /// The rule that asked for it was edited.
    Edited,
    /// The rule that asked for it has gone.
    Gone,
    /// The run of a removed job may still write a checkpoint, or to the target.
    Later,
}

/// Another job that owns the replication id and is running or waiting to run.
pub(super) struct Rival {
    pub(super) job: JobId,
    pub(super) is_transient: bool,
}

impl Replications {
    /// The job that keeps this one from running for a replication id. An owner that failed, ended or does not exist any
    /// more does not.
    pub(super) async fn rival_in(
        &self,
        tx: &Transaction,
        replication_id: &str,
        job: &JobId,
    ) -> Result<Option<Rival>, ServiceError> {
        let Some(other) = self.owner_in(tx, replication_id).await? else {
            return Ok(None);
        };
        if other == *job {
            return Ok(None);
        }
        let Some((info, data)) = self.job_in(tx, &other).await? else {
            return Ok(None);
        };
        let works = matches!(data.state, JobState::Pending | JobState::Running);
        // The row may be left over from a deleted job of that id.
        let is_its = data.rep_id.as_deref() == Some(replication_id);
        if info.state == State::Finished || !works || !is_its {
            return Ok(None);
        }
        Ok(Some(Rival {
            job: other,
            is_transient: data.is_transient(),
        }))
    }
}

impl Work<'_> {
    pub(super) async fn begin(
        &self,
        data: &mut JobData,
        identity: &Identity,
    ) -> Result<Begun, ServiceError> {
        let replications = &self.runner.replications;
        let op = replications.0.jobs.op();
        let mut begun = data.clone();
        begun.pid = Some(self.pid());
        begun.node = Some(self.runner.node.to_string());
        let (old, new) = (&*data, &self.begun(begun, identity, op.now_ms));
        let answer = (replications.0.jobs.store())
            .transact("begin_run", |tx| async move {
                self.begin_in(&tx, &op, old, new, identity).await
            })
            .await?;
        if matches!(answer, Begun::Run(_)) {
            *data = new.clone();
            let pid = data.pid.clone().unwrap_or_default();
            drop(self.begun.set((identity.replication.to_string(), pid)));
        }
        Ok(answer)
    }

    /// The data of the job while it runs.
    fn begun(&self, mut data: JobData, identity: &Identity, now_ms: i64) -> JobData {
        let now = now_ms.div_euclid(1000);
        let id = identity.replication.to_string();
        if data.rep_id.as_ref().is_some_and(|old| *old != id) {
            data.history.clear();
        }
        data.rep_id = Some(id);
        data.base_id = Some(identity.base.to_string());
        data.state = JobState::Running;
        (data.idle, data.unreachable, data.asleep) = (false, None, None);
        (data.info, data.result) = (None, None);
        (data.last_start, data.last_updated) = (now, now);
        data.note(
            now,
            &[(Kind::Started, None)],
            self.runner.replications.options().max_history,
        );
        data
    }

    async fn begin_in(
        &self,
        tx: &Transaction,
        op: &Op,
        old: &JobData,
        new: &JobData,
        identity: &Identity,
    ) -> Result<Begun, ServiceError> {
        let replications = &self.runner.replications;
        let (jobs, job) = (&replications.0.jobs, &self.accepted.job);
        let id = identity.replication.as_str();
        let info = jobs.info_in(tx, &replications.0.ty, &job.id).await?;
        if info.is_some_and(|info| info.next_due_ms.is_some()) {
            return Ok(Begun::Again);
        }
        match replications.rule_fate_in(tx, &new.origin).await? {
            Fate::Unchanged => {}
            Fate::Edited => return Ok(Begun::Edited),
            Fate::Gone => return Ok(Begun::Gone),
        }
        if replications.rival_in(tx, id, &job.id).await?.is_some() {
            return Ok(Begun::Duplicate);
        }
        let bytes = new.encode();
        let target = self.accepted.limits.key.as_ref();
        if replications
            .is_leaving_in(tx, id, target, job.timeout(), op.now_ms)
            .await?
        {
            return Ok(Begun::Later);
        }
        let held = jobs.update_in(tx, op, job, Some(bytes.into())).await?;
        if !held.repeated {
            replications.seals_job_in(tx, new).await?;
            if let Some(asleep) = &old.asleep {
                asleep.end_in(tx, &job.id);
            }
            if let Some(before) = old.rep_id.as_deref().filter(|before| *before != id) {
                tx.clear(&keys::duplicate(before, &job.id));
                replications.disown_in(tx, op, before, &job.id).await?;
            }
            tx.clear(&keys::active(old.rep_id.as_deref(), &job.id));
            tx.set(&keys::active(Some(id), &job.id), b"");
            tx.clear(&keys::duplicate(id, &job.id));
            tx.set(&keys::owner(id), job.id.as_bytes());
            tx.clear(&keys::leaving(id));
            if let Some(target) = target {
                tx.clear(&keys::leaving(&target.to_string()));
            }
            writeback::write_in(replications, tx, op, &new.origin, &Patch::Started).await?;
        }
        let seed = self.seed_in(tx, old.rep_id.as_deref(), identity).await?;
        Ok(Begun::Run(seed))
    }
}
