//! One action on many replications.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use jobs::JobId;
use tokio::time::Instant;

use crate::create::{Caller, RULED};
use crate::data::Origin;
use crate::fault::ServiceError;
use crate::service::Replications;
use crate::snapshot::Row;
use crate::view::{TableQuery, has_replications};
use replication::id::ReplicationId;

/// Actions at a time.
const CONCURRENT: usize = 16;
/// One request acts for so long; what is left is for the next.
const TIME_MAX: Duration = Duration::from_secs(20);

/// What to do with replications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Restart,
    Pause,
    Resume,
    /// Deletes the document, or cancels the request. Refused for replications of rules, which would ask for them again.
    Delete,
}

/// Which replications.
#[derive(Clone, Debug)]
pub enum Chosen {
    /// By the keys of their rows.
    Keys(Vec<String>),
    /// All that a listing has, whatever its page.
    Matching(TableQuery),
}

/// What became of it.
#[derive(Debug, Default)]
pub struct Acted {
    pub done: u64,
    /// By key.
    pub failed: Vec<(String, ServiceError)>,
    /// There was no time for these.
    pub left: u64,
}

struct Target {
    key: String,
    has_job: bool,
    document: Option<(String, String)>,
}

impl Target {
    fn of(row: &Row) -> Self {
        Self {
            key: row.key.clone(),
            has_job: row.has_job,
            document: row.database.clone().zip(row.doc_id.clone()),
        }
    }
}

impl Replications {
    /// Acts on all that were chosen, as an administrator, for as long as a request may take.
    pub async fn act(&self, action: Action, chosen: &Chosen) -> Result<Acted, ServiceError> {
        let snapshot = self.snapshot().await?;
        let targets: Vec<_> = match chosen {
            Chosen::Matching(query) => snapshot.matching(query).map(Target::of).collect(),
            Chosen::Keys(keys) => {
                let unknown = |key: &str| Target {
                    key: key.to_owned(),
                    has_job: true,
                    document: None,
                };
                let target =
                    |key: &String| (snapshot.row(key)).map_or_else(|| unknown(key), Target::of);
                keys.iter().map(target).collect()
            }
        };
        drop(snapshot);
        let deadline = Instant::now() + TIME_MAX;
        let mut acted = Acted::default();
        let mut doing = stream::iter(targets)
            .map(|target| async move {
                if Instant::now() > deadline {
                    return (target.key, None);
                }
                let done = self.act_on(action, &target).await;
                (target.key, Some(done))
            })
            .buffer_unordered(CONCURRENT);
        while let Some((key, done)) = doing.next().await {
            match done {
                None => acted.left += 1,
                Some(Ok(())) => acted.done += 1,
                Some(Err(error)) => acted.failed.push((key, error)),
            }
        }
        self.0.kept.outdate();
        Ok(acted)
    }

    async fn act_on(&self, action: Action, target: &Target) -> Result<(), ServiceError> {
        let job = JobId::new(target.key.clone())?;
        let is_ruled = |(db, _): &(String, _)| !has_replications(db);
        if action == Action::Delete && target.document.as_ref().is_some_and(is_ruled) {
            return Err(ServiceError::Forbidden(RULED));
        }
        let origin = match &target.document {
            Some((db, doc_id)) => {
                let db = self.0.docs.open(&self.0.docs.name(db)?).await?;
                Some(Origin::document(&db, doc_id))
            }
            None => None,
        };
        match (action, origin) {
            (Action::Restart, Some(origin)) if !target.has_job => {
                self.restart_document(&origin).await
            }
            (Action::Restart, _) => self.restart(&job).await,
            (Action::Delete, Some(origin)) => self.delete_document(&origin).await,
            (Action::Delete, None) => {
                let admin = Caller {
                    name: None,
                    is_admin: true,
                };
                let id = ReplicationId::from_client(&target.key);
                self.cancel(&id, &admin).await.map(|_| ())
            }
            // It has ended.
            (Action::Pause | Action::Resume, _) if !target.has_job => Ok(()),
            (Action::Pause, _) => self.set_paused(&job, true).await,
            (Action::Resume, _) => self.set_paused(&job, false).await,
        }
    }
}
