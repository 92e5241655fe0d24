//! Reads one job: its state, its data, its history.

use std::sync::Arc;

use bytes::Bytes;
use store::{RangeOptions, Transaction};

use crate::model::header::{Blob, Header, Place};
use crate::{
    Attempt, Class, End, Error, JobId, JobType, Jobs, LimitName, Outcome, RETURNED, Result, State,
    Tenant,
};

/// A job without its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobInfo {
    /// Its id.
    pub id: JobId,
    /// Its state.
    pub state: State,
    /// When it is due, or was last due; 0 is as soon as possible.
    pub due_ms: i64,
    /// When it was first added.
    pub created_ms: i64,
    /// The number of its runs.
    pub attempts: u32,
    /// Runs in a row that ended with a silent holder, or failed and put the job back.
    pub stalls: u32,
    /// When a running job will run again after this run, if its holder or a creator has requested it.
    pub next_due_ms: Option<i64>,
    /// When signals want a running job to run again after this run, if there were any.
    pub signal_ms: Option<i64>,
    /// Arrival time of the first [signal](crate::Signal) that no run covers, if there is one.
    pub asked_ms: Option<i64>,
    /// Its priority.
    pub class: Class,
    /// Whose job it is, if it was said.
    pub tenant: Option<Tenant>,
    /// The limit that it waits for, if it is due and there is no slot for it.
    pub waits_for: Option<LimitName>,
    /// Whether it has slots of its limits.
    pub has_slots: bool,
    /// When it finished or died, if it has.
    pub finished_ms: Option<i64>,
    /// When it expires, if it does.
    pub expires_ms: Option<i64>,
    /// The current run, else the last one.
    pub last: Option<Attempt>,
    /// The size of its data in bytes.
    pub data_bytes: usize,
}

impl JobInfo {
    pub(crate) fn of(id: JobId, header: &Header) -> Self {
        let (finished_ms, expires_ms) = match header.place {
            Place::Finished { at_ms, expires_ms } => {
                (Some(at_ms), (expires_ms != i64::MAX).then_some(expires_ms))
            }
            Place::Dead { at_ms } => (Some(at_ms), None),
            _ => (None, None),
        };
        Self {
            id,
            state: header.state(),
            due_ms: header.due_ms,
            created_ms: header.created_ms,
            attempts: header.attempts,
            stalls: header.stalls,
            next_due_ms: header.next.as_ref().map(|next| next.due_ms),
            signal_ms: header.signal_ms(),
            asked_ms: header.asked_ms(),
            class: header.class(),
            tenant: header.tenant().cloned().map(Tenant),
            waits_for: match header.place {
                Place::Waiting(which, _) => header.limit(which).cloned().map(LimitName),
                _ => None,
            },
            has_slots: !header.taken().is_empty(),
            finished_ms,
            expires_ms,
            last: header.last.clone(),
            data_bytes: header.data.len as usize,
        }
    }

    /// How the last run ended, if it began after `before` runs: for a caller that requested a run when there had been so
    /// many, and waits for one that takes account of what was there then. `None` while it goes on, and after a run that
    /// tells nothing, because its holder went silent or gave the job back unused: then another one follows.
    ///
    /// A dead job may never have such a run.
    pub fn ended_after(&self, before: u32) -> Option<&End> {
        let end = self.last.as_ref()?.end.as_ref()?;
        let is_void = end.outcome == Outcome::Stalled || end.reason.as_deref() == Some(RETURNED);
        (self.attempts > before && !is_void).then_some(end)
    }
}

impl Jobs {
    /// A job and its data, or `None` if it does not exist.
    pub async fn get(&self, ty: &JobType, id: &JobId) -> Result<Option<(JobInfo, Bytes)>> {
        self.read("get", |tx| async move { self.get_in(&tx, ty, id).await })
            .await
    }

    /// [`Self::get`] in the caller's transaction.
    pub async fn get_in(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
    ) -> Result<Option<(JobInfo, Bytes)>> {
        let Some(header) = self.header(tx, ty, id).await? else {
            return Ok(None);
        };
        let data = self.read_blob(tx, ty, id, &header.data).await?;
        Ok(Some((JobInfo::of(id.clone(), &header), data)))
    }

    /// The data of a running job's next run, if it has newer data.
    pub async fn next_data_in(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
    ) -> Result<Option<Bytes>> {
        let header = self.header(tx, ty, id).await?;
        let next = header.as_deref().and_then(|header| header.next.as_ref());
        match next.and_then(|next| next.data.as_ref()) {
            Some(data) => self.read_blob(tx, ty, id, data).await.map(Some),
            None => Ok(None),
        }
    }

    /// A job without its data, or `None` if it does not exist.
    pub async fn info(&self, ty: &JobType, id: &JobId) -> Result<Option<JobInfo>> {
        self.read("info", |tx| async move { self.info_in(&tx, ty, id).await })
            .await
    }

    /// [`Self::info`] in the caller's transaction.
    pub async fn info_in(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
    ) -> Result<Option<JobInfo>> {
        let header = self.header(tx, ty, id).await?;
        Ok(header.map(|header| JobInfo::of(id.clone(), &header)))
    }

    /// The last runs of a job, oldest first: up to ten and the current one.
    pub async fn history(&self, ty: &JobType, id: &JobId) -> Result<Vec<Attempt>> {
        self.read(
            "history",
            |tx| async move { self.history_in(&tx, ty, id).await },
        )
        .await
    }

    /// [`Self::history`] in the caller's transaction.
    pub async fn history_in(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
    ) -> Result<Vec<Attempt>> {
        let header = self.header(tx, ty, id).await?.ok_or(Error::NotFound)?;
        let range = self.keys().attempts(ty, id);
        let rows = tx.get_range(range, RangeOptions::default()).collect();
        let mut attempts = Vec::new();
        for row in rows.await? {
            attempts.push(Attempt::decode(row.value)?);
        }
        attempts.extend(header.last.clone());
        Ok(attempts)
    }

    /// The bytes of a blob. Chunks are read by snapshot: replacing them writes the header, which
    /// callers that need consistency have read.
    pub(crate) async fn read_blob(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
        blob: &Blob,
    ) -> Result<Bytes> {
        self.try_blob(tx, ty, id, blob).await?
    }

    /// The bytes of a blob, or the error of decoding it.
    pub(crate) async fn try_blob(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
        blob: &Blob,
    ) -> Result<Result<Bytes>> {
        if let Some(bytes) = &blob.bytes {
            return Ok(Ok(bytes.clone()));
        }
        let length = blob.len as usize;
        let mut bytes = Vec::with_capacity(length);
        let range = self.keys().chunks(ty, id, blob.slot);
        let mut rows = tx.snapshot().get_range(range, RangeOptions::default());
        while let Some(row) = rows.next().await? {
            bytes.extend_from_slice(&row.value);
        }
        if bytes.len() != length {
            return Ok(Err(Error::corrupt(format!(
                "job {id} has {} of {length} bytes of data",
                bytes.len()
            ))));
        }
        Ok(Ok(bytes.into()))
    }

    /// The data of a job, by its header.
    pub(crate) async fn data_of(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
        header: &Arc<Header>,
    ) -> Result<Bytes> {
        self.read_blob(tx, ty, id, &header.data).await
    }
}

#[cfg(test)]
mod tests {
    use store::Store;

    use crate::{Add, Clock, Entropy, Finish, Holder, JobId, JobType, Jobs, Outcome, TypeConfig};

    /// One that began before the request does not count, and neither does one of which nothing is known.
    #[tokio::test]
    async fn a_run_that_was_requested_has_ended() {
        let store = Store::open("memory:").await.unwrap();
        let jobs = Jobs::new(store, Clock::standing(1_000), Entropy::seeded(1));
        let ty = JobType::new("t").unwrap();
        jobs.set_type(&ty, TypeConfig::new(60_000)).await.unwrap();
        let (id, holder) = (JobId::new("a").unwrap(), Holder::new("h").unwrap());
        let info = async || jobs.info(&ty, &id).await.unwrap().unwrap();
        let add = Add::new(id.clone(), "");
        jobs.add(&ty, add.clone()).await.unwrap();
        assert_eq!(info().await.ended_after(0), None);
        for (before, finish, outcome) in [
            (0, Finish::returned(0), None),
            (1, Finish::again(0), Some(Outcome::Again)),
            (2, Finish::done(), Some(Outcome::Done)),
            (3, Finish::dead("no"), Some(Outcome::Failed)),
        ] {
            jobs.add(&ty, add.clone()).await.unwrap();
            let accepted = jobs.accept(&ty, &holder, 1).await.unwrap();
            assert_eq!(info().await.ended_after(before), None);
            let _ = jobs.finish(&accepted.jobs[0].job, finish).await.unwrap();
            let info = info().await;
            let ended = |before| info.ended_after(before).map(|end| end.outcome);
            assert_eq!((ended(before), ended(before + 1)), (outcome, None));
        }
        let mut stalled = info().await;
        let end = stalled.last.as_mut().unwrap().end.as_mut().unwrap();
        end.outcome = Outcome::Stalled;
        assert_eq!(stalled.ended_after(0), None);
    }
}
