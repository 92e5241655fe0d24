//! `POST /_replicate`: starts, cancels and waits for transient replications.

use std::sync::{Mutex, PoisonError};

use document::json::Json;
use jobs::{JobId, Notice, NotifierHandle, Op, State};
use serde_json::{Map, Value};
use store::Transaction;

use super::owner::{OUTLIVED, Rank};
use crate::data::{JobData, JobState, Origin, job_text};
use crate::fault::ServiceError;
use crate::service::Replications;
use replication::id::{ReplicationId, transient_job_id};
use replication::params::{Grant, Invalid, Replication, Request};

const COLLISION: &str = "Persistent replication collision";
pub(crate) const RULED: &str =
    "A rule asks for this replication: change the rule, or set `enabled` to false in it.";
const NOT_ADMIN: &str = "You are not a server admin.";

/// The client that sends a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// `None` for an anonymous administrator.
    pub name: Option<String>,
    pub is_admin: bool,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Started {
    /// The job runs or will run; [`Replications::wait`] waits for it.
    Job {
        /// Its id, for `X-Couch-Replication-Job`.
        job: String,
        /// Whether the client gets its answer as soon as the job runs.
        continuous: bool,
    },
    /// The job is gone: `{"ok":true,"_local_id":…}`.
    Cancelled {
        /// The replication id, or the job id if it never had one.
        local_id: String,
    },
}

/// The response to a waiting client.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// 202: the continuous replication runs.
    Running {
        local_id: String,
    },
    /// 200: the result, without `ok`.
    Completed {
        /// `session_id`, `history` and so on.
        result: Map<String, Value>,
    },
    Failed(Failure),
    /// 404: the job was cancelled.
    Removed,
}

/// A failed replication, as in an HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub status: u16,
    pub error: String,
    pub reason: String,
}

impl Failure {
    fn of(info: Option<&Value>) -> Self {
        let part = |name| info?.get(name)?.as_str();
        let (error, reason) = match (part("error"), part("reason")) {
            (Some(error), Some(reason)) => (error, reason),
            (Some(text), None) | (None, Some(text)) => ("error", text),
            (None, None) => ("error", "unknown"),
        };
        let (status, error) = match error {
            "unauthorized" => (401, error),
            "forbidden" => (403, error),
            "filter_fetch_error" => (404, "not_found"),
            "invalid_replication" => (400, error),
            _ => (500, error),
        };
        Self {
            status,
            error: error.to_owned(),
            reason: reason.to_owned(),
        }
    }
}

impl Replications {
    /// [`Self::request_granted`] without plain names.
    pub async fn request(&self, body: &Json, caller: &Caller) -> Result<Started, ServiceError> {
        self.request_granted(body, caller, None).await
    }

    /// Executes the body of a `POST /_replicate` without waiting for the job. An equal request returns the same job.
    /// Plain database names use the caller's `grant`.
    pub async fn request_granted(
        &self,
        body: &Json,
        caller: &Caller,
        grant: Option<&Grant>,
    ) -> Result<Started, ServiceError> {
        let rank = if caller.is_admin {
            Rank::ServerAdmin
        } else {
            Rank::Member
        };
        let grant = Grant::of(body, grant, rank.reach());
        let grant = grant.as_ref();
        let wanted = match Replication::from_request(body, grant, &self.defaults())? {
            Request::CancelId(id) => return self.cancel_job(&id, caller, false).await,
            Request::Cancel(wanted) => {
                let id = ReplicationId::from_client(&self.transient_id(&wanted, caller));
                return self.cancel_job(&id, caller, false).await;
            }
            Request::Start(wanted) => wanted,
        };
        let endless = wanted.options.continuous || wanted.options.trigger.is_some();
        if endless && grant.is_some_and(Grant::expires) {
            return Err(Invalid::new(OUTLIVED).into());
        }
        self.check_privileges(&wanted, rank)?;
        let id = self.transient_id(&wanted, caller);
        let op = self.0.jobs.op();
        let wanted = &*wanted;
        let job = (self.0.jobs.store())
            .transact("start_transient", |tx| {
                let id = &id;
                async move { (self.start_in(&tx, &op, id, (body, grant), wanted, caller)).await }
            })
            .await?;
        Ok(Started::Job {
            job: job_text(&job),
            continuous: endless,
        })
    }

    fn transient_id(&self, wanted: &Replication, caller: &Caller) -> String {
        transient_job_id(wanted, &self.0.service, caller.name.as_deref())
    }

    async fn start_in(
        &self,
        tx: &Transaction,
        op: &Op,
        id: &str,
        asked: (&Json, Option<&Grant>),
        wanted: &Replication,
        caller: &Caller,
    ) -> Result<JobId, ServiceError> {
        let job = self.find_in(tx, id).await?;
        if let Some((info, old)) = self.job_in(tx, &job).await? {
            authorize(&old, caller)?;
            let old = old.replication(&self.0.sealer, &job, &self.defaults());
            let same = matches!(old, Ok(Ok(old)) if old == *wanted);
            if same && info.state != State::Finished {
                return Ok(job);
            }
            self.drop_job_in(tx, op, &job).await?;
        }
        let origin = Origin::Request {
            user: caller.name.clone(),
        };
        let mut data = JobData::new(&self.0.sealer, &job, origin, asked, Ok(wanted), op.now_ms);
        data.paused = false;
        self.put_job_in(tx, op, &job, &data).await?;
        Ok(job)
    }

    /// Removes the transient job of this replication id or job id, and stops its run.
    pub async fn cancel(
        &self,
        id: &ReplicationId,
        caller: &Caller,
    ) -> Result<Started, ServiceError> {
        self.cancel_job(id, caller, true).await
    }

    /// `finished`: whether the result of a finished job is removed as well, or counts as missing, as it does in CouchDB.
    async fn cancel_job(
        &self,
        id: &ReplicationId,
        caller: &Caller,
        finished: bool,
    ) -> Result<Started, ServiceError> {
        let op = self.0.jobs.op();
        // The id of a job that an earlier try of this transaction may have removed.
        let before: &Mutex<Option<String>> = &Mutex::new(None);
        let local_id = (self.0.jobs.store())
            .transact("cancel", |tx| async move {
                let job = self.find_in(&tx, id.as_str()).await?;
                let memo = || before.lock().unwrap_or_else(PoisonError::into_inner);
                let found = self.job_in(&tx, &job).await?;
                let wanted = found.filter(|(info, _)| finished || info.state != State::Finished);
                let Some((_, data)) = wanted else {
                    let removed = memo().clone().filter(|_| tx.maybe_committed());
                    return removed.ok_or(ServiceError::Missing);
                };
                authorize(&data, caller)?;
                self.drop_job_in(&tx, &op, &job).await?;
                let local_id = data.rep_id.unwrap_or_else(|| job_text(&job));
                *memo() = Some(local_id.clone());
                Ok(local_id)
            })
            .await?;
        Ok(Started::Cancelled { local_id })
    }

    /// Resolves a replication id or job id from a client.
    pub async fn find(&self, id: &ReplicationId) -> Result<JobId, ServiceError> {
        (self.0.jobs.store())
            .transact("find_job", |tx| async move {
                self.find_in(&tx, id.as_str()).await
            })
            .await
    }

    /// The job that owns this replication id, else the job of this id, which may not exist.
    pub(crate) async fn find_in(&self, tx: &Transaction, id: &str) -> Result<JobId, ServiceError> {
        let too_long = id.len() > jobs::ID_BYTES_MAX;
        if too_long {
            return Err(ServiceError::Missing);
        }
        match self.owner_in(tx, id).await? {
            Some(job) => Ok(job),
            None => Ok(JobId::new(id.to_owned())?),
        }
    }

    /// Waits until a continuous job runs, or any other has ended. Has no time limit; dropping the future stops no job.
    pub async fn wait(&self, follow: &NotifierHandle, job: &str) -> Result<Answer, ServiceError> {
        let job = JobId::new(job.to_owned())?;
        let mut followed = match follow.subscribe(&job).await {
            Ok(followed) => followed,
            Err(jobs::Error::NotFound) => return Ok(Answer::Removed),
            Err(jobs::Error::Stopped) => return Err(ServiceError::Stopped),
            Err(error) => return Err(error.into()),
        };
        let mut notice = Some(followed.now().clone());
        loop {
            match notice {
                Some(Notice::Job(info, data)) => {
                    let data = JobData::decode(&data)?;
                    if let Some(answer) = answer(info.state, data) {
                        return Ok(answer);
                    }
                }
                Some(Notice::Removed) => return Ok(Answer::Removed),
                Some(Notice::TypeCleared | Notice::Stopped) | None => {
                    return Err(ServiceError::Stopped);
                }
            }
            notice = followed.next().await;
        }
    }
}

/// Whether a caller may replace or remove a transient job.
fn authorize(data: &JobData, caller: &Caller) -> Result<(), ServiceError> {
    match &data.origin {
        Origin::Document { .. } => Err(ServiceError::Unauthorized(COLLISION)),
        Origin::Rule { .. } => Err(ServiceError::Forbidden(RULED)),
        Origin::Request { user } if *user == caller.name || caller.is_admin => Ok(()),
        Origin::Request { .. } => Err(ServiceError::Unauthorized(NOT_ADMIN)),
    }
}

/// The response for a job in this state; `None` to keep waiting.
fn answer(state: State, data: JobData) -> Option<Answer> {
    match (state, data.state) {
        // A claimed job whose data has another state has not started yet.
        (State::Running, JobState::Running) if data.shown.is_endless() => Some(Answer::Running {
            local_id: data.rep_id.unwrap_or_default(),
        }),
        (State::Pending, JobState::Running) if data.asleep.is_some() => Some(Answer::Running {
            local_id: data.rep_id.unwrap_or_default(),
        }),
        (State::Finished, JobState::Completed) => Some(Answer::Completed {
            result: data.result.unwrap_or_default(),
        }),
        (State::Finished, _) => Some(Answer::Failed(Failure::of(data.info.as_ref()))),
        _ => None,
    }
}
