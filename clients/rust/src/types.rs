//! What requests and responses have.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// A job to be added. Members that are `None` have the defaults of `POST /_jobs/TYPE`.
#[derive(Debug, Clone, Serialize)]
pub struct NewJob<T> {
    pub data: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_sec: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// RFC 3339.
    pub due: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// `urgent`, `normal` or `bulk`.
    pub class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// `replace`, `keep` or `earliest`.
    pub on_exists: Option<String>,
}

impl<T> NewJob<T> {
    pub fn new(data: T) -> Self {
        let (id, delay_sec, due, class) = (None, None, None, None);
        Self { data, id, delay_sec, due, class, tenant: None, key: None, on_exists: None }
    }
}

/// A job as readers see it. Listings have data, progress, result and error only if asked for them.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct JobInfo {
    pub id: String,
    /// `pending`, `running`, `finished` or `dead`.
    pub state: String,
    pub due: String,
    pub attempt: u32,
    pub failures: u32,
    pub worker: Option<String>,
    pub reason: Option<String>,
    pub data: Value,
    pub progress: Value,
    pub result: Value,
    pub error: Value,
    pub attempts: Vec<Value>,
    /// Why data, progress, result and error are missing, if they cannot be read.
    pub unreadable: Option<String>,
}

/// A page of a listing; pass `next` as `after`.
#[derive(Debug, Clone, Deserialize)]
pub struct Page {
    pub jobs: Vec<JobInfo>,
    pub next: Option<String>,
}

/// How many dead jobs were made pending, and whether the service goes on with the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Retried {
    pub count: u64,
    #[serde(default)]
    pub running: bool,
}

/// A claimed job.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "RawClaimed")]
pub struct Claimed {
    pub id: String,
    pub lock: String,
    pub attempt: u32,
    pub failures: u32,
    pub data: Value,
    pub progress: Value,
    /// Why data and progress are missing: other clients can send JSON that [`Value`] cannot hold, such as `1e400`.
    pub unreadable: Option<String>,
}

#[derive(Deserialize)]
struct RawClaimed {
    id: String,
    lock: String,
    attempt: u32,
    failures: u32,
    data: Box<RawValue>,
    progress: Option<Box<RawValue>>,
}

impl From<RawClaimed> for Claimed {
    fn from(raw: RawClaimed) -> Self {
        let RawClaimed { id, lock, attempt, failures, data, progress } = raw;
        let progress = progress.map_or(Ok(Value::Null), |progress| serde_json::from_str(progress.get()));
        let parts = serde_json::from_str(data.get()).and_then(|data| Ok((data, progress?)));
        let unreadable = parts.as_ref().err().map(ToString::to_string);
        let (data, progress) = parts.unwrap_or_default();
        Self { id, lock, attempt, failures, data, progress, unreadable }
    }
}

/// The answer to a claim, and to the end of runs.
#[derive(Debug, Clone, Deserialize)]
pub struct Claims {
    pub jobs: Vec<Claimed>,
    /// A worker that is silent for longer loses its jobs.
    pub timeout_sec: f64,
    /// For each end of a run: `ok`, `repeated` or `halt`.
    #[serde(default)]
    pub results: Vec<Answer>,
}

/// The answer to heartbeats.
#[derive(Debug, Clone, Deserialize)]
pub struct Beats {
    /// For each heartbeat.
    pub jobs: Vec<Answer>,
    /// A worker that is silent for longer loses its jobs. Older versions of the service omit it.
    pub timeout_sec: Option<f64>,
}

/// The answer for one job; to a heartbeat it is `held`, `halt` or `again`.
#[derive(Debug, Clone, Deserialize)]
pub struct Answer {
    pub status: String,
    /// Why the progress of a heartbeat was refused.
    pub error: Option<String>,
    pub reason: Option<String>,
}

impl Answer {
    /// Fails if the job is lost, or the progress was refused.
    pub(crate) fn accepted(&self) -> Result<()> {
        if self.status == "halt" {
            return Err(Error::Halt);
        }
        let Self { error: Some(error), reason, .. } = self else { return Ok(()) };
        let (error, reason) = (error.clone(), reason.clone().unwrap_or_default());
        Err(Error::Refused { status: 400, error, reason, retry_after: None })
    }
}

/// A heartbeat.
#[derive(Debug, Clone, Serialize)]
pub struct Beat {
    pub id: String,
    pub lock: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Value>,
}

/// The end of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Ended {
    pub id: String,
    pub lock: String,
    #[serde(flatten)]
    pub finish: Finish,
}

/// How a run ends.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finish {
    pub(crate) outcome: &'static str,
    pub(crate) result: Value,
    pub(crate) error: Option<String>,
    pub(crate) delay_sec: Option<f64>,
    pub(crate) retry: Option<bool>,
}

/// Why a run failed. `?` turns any error into one that is retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Retry the job later, as its type says.
    Retry(String),
    /// The job cannot succeed: it is dead.
    Dead(String),
}

/// The answer to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Another run follows, with newer data.
    pub again: bool,
}

/// Settings of a worker.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// Maximum number of concurrent runs, at least 1.
    pub concurrency: usize,
    /// How long runs may continue when the worker is stopped; then they are dropped, and their jobs run again.
    pub drain: Duration,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self { concurrency: 16, drain: Duration::from_secs(10) }
    }
}

impl WorkerOptions {
    pub(crate) fn slots(&self) -> Result<usize> {
        if self.concurrency > 0 { Ok(self.concurrency) } else { Err(Error::Concurrency) }
    }
}

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The service refused the request; `reason` says what to do.
    #[error("{status} {error}: {reason}")]
    Refused {
        status: u16,
        error: String,
        reason: String,
        /// When to try again, if the queue is full.
        retry_after: Option<Duration>,
    },
    #[error("cannot reach the service")]
    Unreachable(#[source] reqwest::Error),
    #[error("`{0}` is not the URL of a service: it must begin with http:// or https://")]
    Url(String),
    /// URL normalization removes such a segment, so the request would address something else.
    #[error("`{0}` cannot be an id or a name: it is lost in URLs")]
    Path(String),
    #[error("the response or the data is not of the expected type")]
    Json(#[from] serde_json::Error),
    #[error("concurrency must be at least 1, not 0")]
    Concurrency,
    #[error("the job is no longer this worker's")]
    Halt,
}
