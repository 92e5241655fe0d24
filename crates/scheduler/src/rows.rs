//! A job and its rows in this crate's tables, which change together.
//!
//! A job is in the listing of active jobs exactly while it is not finished. The row that maps a replication id to its
//! owner is removed with the owner; the first job that failed as a duplicate then runs again.

use docstore::{Db, Document};
use document::json::Json;
use document::offload::offload;
use jobs::{Add, JobId, JobInfo, Op, Retention, State};
use seal::{key_of, sealing_in};
use store::{RangeOptions, Transaction};

use crate::data::{JobData, JobState, Kind};
use crate::fault::ServiceError;
use crate::keys;
use crate::service::{PARKED_MS, Replications};
use crate::strip;
use crate::testing::{self, Bug};
use replication::params::Grant;

/// Maximum duplicates read when the owner of their replication id goes.
const RELEASED_MAX: usize = 16;

impl Replications {
    /// A job and its data.
    pub(crate) async fn job_in(
        &self,
        tx: &Transaction,
        job: &JobId,
    ) -> Result<Option<(JobInfo, JobData)>, ServiceError> {
        let Some((info, data)) = self.0.jobs.get_in(tx, &self.0.ty, job).await? else {
            return Ok(None);
        };
        let data = offload(data.len(), move || JobData::decode(&data)).await?;
        Ok(Some((info, data)))
    }

    /// Adds a job that does not exist yet.
    pub(crate) async fn put_job_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &JobId,
        data: &JobData,
    ) -> Result<(), ServiceError> {
        let add = self.job_of(job, data);
        self.put_in(tx, op, data, add).await
    }

    /// A job with this data, to run as soon as possible.
    pub(crate) fn job_of(&self, job: &JobId, data: &JobData) -> Add {
        let retention = if data.is_transient() {
            // The service removes it in time, with all its rows. If no service runs, the queue removes the job, and a
            // later service removes the rows.
            let age_s = self.options().transient_job_max_age_sec;
            Retention::Ms(age_s.saturating_add(3600).saturating_mul(1000))
        } else {
            Retention::Forever
        };
        let due_ms = if data.paused { PARKED_MS } else { 0 };
        Add::new(job.clone(), data.encode())
            .due_ms(due_ms)
            .retention(retention)
            .tenant(data.tenant())
            .limits(self.options().limits_of_job(data))
    }

    /// Adds a job, or revives one with new data.
    pub(crate) async fn put_in(
        &self,
        tx: &Transaction,
        op: &Op,
        data: &JobData,
        add: Add,
    ) -> Result<(), ServiceError> {
        self.seals_job_in(tx, data).await?;
        tx.set(&keys::active(data.rep_id.as_deref(), &add.id), b"");
        self.0.jobs.add_in(tx, op, &self.0.ty, add).await?;
        Ok(())
    }

    /// Removes a job with all its rows and returns its data, if it existed.
    pub(crate) async fn drop_job_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &JobId,
    ) -> Result<Option<JobData>, ServiceError> {
        let Some((info, data)) = self.job_in(tx, job).await? else {
            return Ok(None);
        };
        if let Some(asleep) = &data.asleep {
            asleep.end_in(tx, job);
        }
        if let Some(at_ms) = info.finished_ms {
            tx.clear(&keys::result(at_ms, job));
        }
        (self.drop_rows_in(tx, op, job, data.rep_id.as_deref())).await?;
        self.leave_in(tx, op, &info, &data);
        self.0.jobs.remove_in(tx, op, &self.0.ty, job).await?;
        Ok(Some(data))
    }

    /// Removes the rows of a job that is being removed, or already was.
    pub(crate) async fn drop_rows_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &JobId,
        replication_id: Option<&str>,
    ) -> Result<(), ServiceError> {
        tx.clear(&keys::live(job));
        tx.clear(&keys::suspect(job));
        tx.clear(&keys::active(replication_id, job));
        if let Some(id) = replication_id {
            tx.clear(&keys::duplicate(id, job));
            self.disown_in(tx, op, id, job).await?;
        }
        Ok(())
    }

    /// The job that may copy for a replication id.
    pub(crate) async fn owner_in(
        &self,
        tx: &Transaction,
        replication_id: &str,
    ) -> Result<Option<JobId>, ServiceError> {
        let row = tx.get(&keys::owner(replication_id)).await?;
        Ok(row.map(JobId::new).transpose()?)
    }

    /// Gives up a replication id if the job owns it, and lets a duplicate run.
    pub(crate) async fn disown_in(
        &self,
        tx: &Transaction,
        op: &Op,
        replication_id: &str,
        job: &JobId,
    ) -> Result<(), ServiceError> {
        if self.owner_in(tx, replication_id).await?.as_ref() != Some(job) {
            return Ok(());
        }
        tx.clear(&keys::owner(replication_id));
        self.release_in(tx, op, replication_id).await
    }

    /// Reruns the first job that failed as a duplicate. The others then wait for that one.
    pub(crate) async fn release_in(
        &self,
        tx: &Transaction,
        op: &Op,
        replication_id: &str,
    ) -> Result<(), ServiceError> {
        if testing::has(Bug::ReleasesNoDuplicate) {
            return Ok(());
        }
        let range = keys::duplicates(replication_id);
        let rows = tx
            .get_range(range, RangeOptions::limit(RELEASED_MAX))
            .collect();
        for row in rows.await? {
            tx.clear(&row.key);
            let job = keys::last_job(&row.key)?;
            let Some((info, mut data)) = self.job_in(tx, &job).await? else {
                continue;
            };
            if info.state != State::Finished || data.state != JobState::Failed {
                continue;
            }
            data.state = JobState::Pending;
            data.info = None;
            let now = op.now_ms.div_euclid(1000);
            data.last_updated = now;
            data.note(now, &[(Kind::Pending, None)], self.options().max_history);
            tx.set(&keys::active(data.rep_id.as_deref(), &job), b"");
            let (jobs, ty) = (&self.0.jobs, &self.0.ty);
            jobs.resubmit_in(tx, op, ty, &job, Some(0), Some(data.encode().into()))
                .await?;
            break;
        }
        Ok(())
    }

    /// Opens a stored body, a large one on another thread: a transaction must not block the runtime.
    pub(crate) async fn open_body<T: Send + 'static>(
        &self,
        db: &Db,
        document: &Document,
        read: impl FnOnce(Json, Option<Grant>) -> T + Send + 'static,
    ) -> Result<T, ServiceError> {
        let (replications, db) = (self.clone(), db.clone());
        let (id, stored) = (document.id.clone(), document.body.clone());
        offload(stored.len(), move || {
            let opened = strip::open_granted(&replications.0.sealer, &db, &id, &stored);
            let (body, grant) = opened?;
            Ok(read(body, grant))
        })
        .await
    }

    /// Must be called in each transaction that writes job data that it did not read.
    pub(crate) async fn seals_job_in(
        &self,
        tx: &Transaction,
        data: &JobData,
    ) -> Result<(), ServiceError> {
        self.seals_in(tx, data.sealed().and_then(key_of)).await
    }

    /// Must be called in each transaction that writes this body.
    pub async fn seals_body_in(&self, tx: &Transaction, stored: &str) -> Result<(), ServiceError> {
        if !strip::is_sealed(stored) {
            return Ok(());
        }
        let body = stored.to_owned();
        let sealed = offload(stored.len(), move || strip::sealed(&body)).await;
        self.seals_in(tx, sealed.as_deref().and_then(key_of)).await
    }

    /// Must be called in each transaction that writes a value sealed with this key.
    pub(crate) async fn seals_in(
        &self,
        tx: &Transaction,
        key: Option<&str>,
    ) -> Result<(), ServiceError> {
        match key {
            Some(key) => Ok(sealing_in(tx, &self.0.sealer, key).await?),
            None => Ok(()),
        }
    }
}
