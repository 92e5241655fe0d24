//! Restarts, pauses and resumes jobs.

use docstore::{Db, Edit, EditMode, Revisions};
use document::json::Json;
use jobs::{JobId, JobInfo, Op, State};
use store::{AsStoreError as _, Transaction};

use crate::data::{JobData, JobState, Kind, Origin};
use crate::fault::ServiceError;
use crate::keys;
use crate::service::{PARKED_MS, Replications};
use crate::writeback;

const NO_REPLICATION: &str = "The document does not describe a replication; correct it first.";

impl Replications {
    /// Runs a job now and clears its errors: a running job stops after a checkpoint and starts over, a waiting job no
    /// longer waits, and a finished job runs again, its state removed from its document.
    pub async fn restart(&self, job: &JobId) -> Result<(), ServiceError> {
        let op = self.0.jobs.op();
        (self.0.jobs.store())
            .transact("restart", |tx| async move {
                self.restart_in(&tx, &op, job).await
            })
            .await
            .inspect(|()| self.0.kept.outdate())
    }

    /// Runs the replication of a document that has no job, as of one that had ended when it was written.
    pub(crate) async fn restart_document(&self, origin: &Origin) -> Result<(), ServiceError> {
        let op = self.0.jobs.op();
        (self.0.jobs.store())
            .transact("restart", |tx| async move {
                let patch = &writeback::Patch::Started;
                match writeback::edit_in(self, &tx, &op, origin, patch).await? {
                    Some((db, edit)) => self.put_document_in(&tx, &op, &db, &edit).await,
                    None => Ok(()),
                }
            })
            .await
    }

    /// Deletes a document, and with it its job.
    pub(crate) async fn delete_document(&self, origin: &Origin) -> Result<(), ServiceError> {
        let op = self.0.jobs.op();
        (self.0.jobs.store())
            .transact("delete_document", |tx| async move {
                // An earlier try of this transaction may have deleted it.
                let Some(read) = writeback::read_in(self, &tx, origin).await? else {
                    return Ok(());
                };
                let edit = Edit {
                    id: read.doc.id,
                    revisions: Some(Revisions::from(read.doc.rev)),
                    deleted: true,
                    body: "{}".to_owned(),
                    ..Edit::default()
                };
                self.put_document_in(&tx, &op, &read.db, &edit).await
            })
            .await
    }

    /// [`Self::restart`] in the caller's transaction.
    pub async fn restart_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &JobId,
    ) -> Result<(), ServiceError> {
        let Some((info, mut data)) = self.job_in(tx, job).await? else {
            return Err(ServiceError::Missing);
        };
        // It would fail again at once with the same error.
        if data.spec.is_none() {
            return Err(ServiceError::Forbidden(NO_REPLICATION));
        }
        if data.paused {
            return Ok(());
        }
        let (jobs, ty) = (&self.0.jobs, &self.0.ty);
        if info.state == State::Running {
            jobs.resubmit_in(tx, op, ty, job, Some(0), None).await?;
            return Ok(());
        }
        if info.state == State::Finished
            && let Origin::Document { .. } = data.origin
        {
            let patch = &writeback::Patch::Started;
            if let Some((db, edit)) = writeback::edit_in(self, tx, op, &data.origin, patch).await? {
                // The hook creates a new job.
                match self.put_document_in(tx, op, &db, &edit).await {
                    Err(error) if error.as_store_error().is_none() => {
                        tracing::warn!(db = %db.name(), doc.id = %edit.id, %error, "cannot restart a replication by rewriting its document");
                    }
                    put => return put,
                }
            }
        }
        let now = op.now_ms.div_euclid(1000);
        data.wake_in(tx, job);
        data.state = JobState::Pending;
        (data.info, data.last_error, data.error_count) = (None, None, 0);
        data.missing_since = None;
        data.behind = None;
        (data.result, data.last_updated) = (None, now);
        data.note(now, &[(Kind::Pending, None)], self.options().max_history);
        if let Some(id) = &data.rep_id {
            tx.clear(&keys::duplicate(id, job));
        }
        tx.set(&keys::active(data.rep_id.as_deref(), job), b"");
        let bytes = data.encode();
        jobs.resubmit_in(tx, op, ty, job, Some(0), Some(bytes.into()))
            .await?;
        Ok(())
    }

    /// Pauses a job after a checkpoint, or resumes it. Also sets or removes `paused` in its document.
    pub async fn set_paused(&self, job: &JobId, paused: bool) -> Result<(), ServiceError> {
        let op = self.0.jobs.op();
        (self.0.jobs.store())
            .transact("pause", |tx| async move {
                let Some((info, data)) = self.job_in(&tx, job).await? else {
                    return Err(ServiceError::Missing);
                };
                if info.state.is_over() || is_paused(&info, &data) == paused {
                    return Ok(());
                }
                match data.origin.clone() {
                    // The hook updates the job.
                    Origin::Document { .. } => {
                        self.pause_document_in(&tx, &op, &data.origin, paused).await
                    }
                    Origin::Request { .. } | Origin::Rule { .. } => {
                        self.set_paused_in(&tx, &op, job, data, paused).await
                    }
                }
            })
            .await
            .inspect(|()| self.0.kept.outdate())
    }

    async fn pause_document_in(
        &self,
        tx: &Transaction,
        op: &Op,
        origin: &Origin,
        paused: bool,
    ) -> Result<(), ServiceError> {
        let Some(read) = writeback::read_in(self, tx, origin).await? else {
            return Err(ServiceError::Missing);
        };
        let mut members = read.body.as_object().unwrap_or_default().to_vec();
        members.retain(|(name, _)| name != "paused");
        if paused {
            members.push(("paused".to_owned(), Json::Bool(true)));
        }
        let db = read.db.clone();
        let edit = writeback::edit(self, read, members);
        self.put_document_in(tx, op, &db, &edit).await
    }

    /// Changes a document and, through the hook, its job.
    async fn put_document_in(
        &self,
        tx: &Transaction,
        op: &Op,
        db: &Db,
        edit: &Edit,
    ) -> Result<(), ServiceError> {
        let hook = self.replicators_hook(*op);
        (self.0.docs)
            .put_in(tx, db, edit, EditMode::NewEdits, &hook)
            .await
            .map(|_| ())
    }

    /// Updates the queue. A running job stops after a checkpoint: its holder learns that another run is wanted.
    pub(crate) async fn set_paused_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &JobId,
        mut data: JobData,
        paused: bool,
    ) -> Result<(), ServiceError> {
        data.paused = paused;
        data.wake_in(tx, job);
        let now = op.now_ms.div_euclid(1000);
        (data.state, data.last_updated) = (JobState::Pending, now);
        (data.node, data.pid) = (None, None);
        (data.info, data.last_error, data.error_count) = (None, None, 0);
        data.behind = None;
        data.note(now, &[(Kind::Pending, None)], self.options().max_history);
        let due_ms = if paused { PARKED_MS } else { 0 };
        let (jobs, ty, bytes) = (&self.0.jobs, &self.0.ty, data.encode());
        jobs.resubmit_in(tx, op, ty, job, Some(due_ms), Some(bytes.into()))
            .await?;
        Ok(())
    }
}

/// Whether a job is paused, or will be once its current run has stopped.
pub(crate) fn is_paused(info: &JobInfo, data: &JobData) -> bool {
    info.next_due_ms
        .map_or(data.paused, |due_ms| due_ms == PARKED_MS)
}
