//! Tells the program when a replication begins to fail or to lag and when it has recovered, in the transaction in which it does.

use std::fmt;

use futures::future::BoxFuture;
use jobs::{Job, Op};
use store::Transaction;

use crate::data::{JobData, JobState, Origin, iso, job_text};
use crate::fault::ServiceError;
use crate::service::Replications;

/// What happened to a replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It has failed for the first time in a row, and is retried, or it is not retried any more.
    Failed,
    /// It does not fail, but has not caught up with its source for too long.
    Lagging,
    /// It works again: it has completed, or has run long enough, and does not lag.
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
    /// Why it failed, or since when it lags.
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
    pub const ALL: [Self; 3] = [Self::Failed, Self::Lagging, Self::Recovered];

    /// Its name outside of the program.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "replication.failed",
            Self::Lagging => "replication.lagging",
            Self::Recovered => "replication.recovered",
        }
    }

    /// For documentation.
    pub fn summary(self) -> &'static str {
        match self {
            Self::Failed => "A replication has begun to fail, or is not retried any more",
            Self::Lagging => "A replication has not caught up with its source for too long",
            Self::Recovered => "A replication works again",
        }
    }

    /// What has happened when a job's data changes.
    fn of(before: &JobData, after: &JobData) -> Option<Self> {
        let is = |data: &JobData, state| data.state == state;
        if is(after, JobState::Failed) {
            return (!is(before, JobState::Failed)).then_some(Self::Failed);
        }
        let (was, is) = (Self::trouble(before), Self::trouble(after));
        (was != is).then(|| is.unwrap_or(Self::Recovered))
    }

    /// What a replication suffers from. One that fails is behind, too, but users know already.
    fn trouble(data: &JobData) -> Option<Self> {
        if data.error_count > 0 {
            return Some(Self::Failed);
        }
        data.behind
            .is_some_and(|behind| behind.lagging)
            .then_some(Self::Lagging)
    }

    /// More about it, for users.
    fn reason(self, data: &JobData) -> Option<String> {
        match self {
            Self::Failed => Some(data.error_text()),
            Self::Lagging => {
                (data.behind).map(|behind| format!("has not caught up since {}", iso(behind.since)))
            }
            Self::Recovered => None,
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
            reason: kind.reason(after),
        };
        Ok(events.on_event_in(tx, op, event).await?)
    }
}

#[cfg(test)]
mod tests {
    use document::json::Json;
    use replication::params::Invalid;

    use super::*;
    use crate::data::Behind;
    use seal::Sealer;

    fn data(state: JobState, error_count: u32, lagging: Option<bool>) -> JobData {
        let job = "j".try_into().unwrap();
        let (origin, body) = (Origin::Request { user: None }, Json::parse("{}").unwrap());
        let invalid = Invalid::new("");
        JobData {
            state,
            error_count,
            behind: lagging.map(|lagging| Behind { since: 0, lagging }),
            ..JobData::new(
                &Sealer::plain(),
                &job,
                origin,
                (&body, None),
                Err(&invalid),
                0,
            )
        }
    }

    #[test]
    fn events_are_changes_of_a_replications_trouble() {
        let running = |errors, lagging| data(JobState::Running, errors, lagging);
        let (well, behind) = (running(0, None), running(0, Some(false)));
        let (lagging, failing) = (running(0, Some(true)), running(1, Some(true)));
        let failed = data(JobState::Failed, 2, None);
        let (failed_event, lagging_event) = (Some(EventKind::Failed), Some(EventKind::Lagging));
        let recovered = Some(EventKind::Recovered);
        for (before, after, event) in [
            (&well, &behind, None),
            (&behind, &lagging, lagging_event),
            (&lagging, &lagging, None),
            (&lagging, &well, recovered),
            (&lagging, &failing, failed_event),
            // It works again, but is still behind.
            (&failing, &lagging, lagging_event),
            (&failing, &behind, recovered),
            (&failing, &failed, failed_event),
            (&failed, &failed, None),
            (&failed, &well, recovered),
        ] {
            assert_eq!(EventKind::of(before, after), event, "{before:?} {after:?}");
        }
    }
}
