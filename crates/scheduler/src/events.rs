//! Tells the program when a replication begins to fail and when it has recovered, in the transaction in which it does.

use std::fmt;

use futures::future::BoxFuture;
use jobs::{Job, Op};
use store::Transaction;

use crate::data::{JobData, JobState, Origin, job_text};
use crate::fault::ServiceError;
use crate::service::Replications;

/// What happened to a replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It has failed for the first time in a row, and is retried, or it is not retried any more.
    Failed,
    /// It works again: it has completed, or has run long enough.
    Recovered,
}

/// An event, without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    /// As `_scheduler` shows it.
    pub state: JobState,
    pub job: String,
    /// The replication id, if it is known.
    pub replication: Option<String>,
    /// Database and id of its document, if it has one.
    pub document: Option<(String, String)>,
    pub source: Option<String>,
    pub target: Option<String>,
    /// Why it failed.
    pub reason: Option<String>,
}

/// The program's handler of events.
pub trait Events: fmt::Debug + Send + Sync {
    /// In the transaction of the event. `op` is new for each event, and the same when the transaction is repeated.
    fn on_event_in<'a>(
        &'a self,
        tx: &'a Transaction,
        op: &'a Op,
        event: Event,
    ) -> BoxFuture<'a, jobs::Result<()>>;
}

impl EventKind {
    /// Its name outside of the program.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "replication.failed",
            Self::Recovered => "replication.recovered",
        }
    }

    /// What has happened when a job's data changes.
    fn of(before: &JobData, after: &JobData) -> Option<Self> {
        let is = |data: &JobData, state| data.state == state;
        if is(after, JobState::Failed) {
            return (!is(before, JobState::Failed)).then_some(Self::Failed);
        }
        match (before.error_count, after.error_count) {
            (0, 1..) => Some(Self::Failed),
            (1.., 0) => Some(Self::Recovered),
            _ => None,
        }
    }
}

impl Replications {
    /// The stored data of a job, if events depend on it. Before the transaction changes it.
    pub(crate) async fn before_in(
        &self,
        tx: &Transaction,
        job: &Job,
    ) -> Result<Option<JobData>, ServiceError> {
        if self.0.events.is_none() {
            return Ok(None);
        }
        let stored = self.0.jobs.get_in(tx, &self.0.ty, &job.id).await?;
        Ok(stored.and_then(|(_, data)| JobData::decode(&data).ok()))
    }

    /// Tells what the transaction has done to a job.
    pub(crate) async fn events_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &Job,
        before: Option<&JobData>,
        after: &JobData,
    ) -> Result<(), ServiceError> {
        let (Some(events), Some(before)) = (&self.0.events, before) else {
            return Ok(());
        };
        let Some(kind) = EventKind::of(before, after) else {
            return Ok(());
        };
        let event = Event {
            kind,
            state: after.state,
            job: job_text(&job.id),
            replication: after.rep_id.clone(),
            document: match &after.origin {
                Origin::Document { db, doc_id, .. } | Origin::Rule { db, doc_id, .. } => {
                    Some((db.clone(), doc_id.clone()))
                }
                Origin::Request { .. } => None,
            },
            source: after.shown.source.clone(),
            target: after.shown.target.clone(),
            reason: (kind == EventKind::Failed).then(|| after.error_text()),
        };
        Ok(events.on_event_in(tx, op, event).await?)
    }
}
