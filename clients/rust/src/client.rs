//! Requests. All of them can be repeated, so they are, if the service cannot be reached.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::{Method, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{JobInfo, NewJob, Page};

/// Before each further try, in milliseconds.
const PAUSES_MS: [u64; 4] = [0, 100, 500, 2_000];
/// How long the service may take to answer, besides what a request waits for.
const TIMEOUT: Duration = Duration::from_secs(30);

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
    #[error("the response or the data is not of the expected type")]
    Json(#[from] serde_json::Error),
}

/// A client, cheap to clone.
#[derive(Debug, Clone)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    http: reqwest::Client,
    servers: Vec<Url>,
    token: Option<String>,
    /// The server that answered last.
    at: AtomicUsize,
}

impl Client {
    /// `http://user:password@host:port`
    pub fn new(url: &str) -> Result<Self> {
        Self::with(&[url], None)
    }

    /// Of several frontends, the next is used when one fails. With an API token, unless a URL has a user.
    pub fn with(urls: &[&str], token: Option<&str>) -> Result<Self> {
        let servers = urls.iter().map(|text| {
            let url = Url::parse(text).ok();
            let url = url.filter(|url| url.has_host() && matches!(url.scheme(), "http" | "https"));
            url.ok_or_else(|| Error::Url((*text).to_owned()))
        });
        let servers: Vec<Url> = servers.collect::<Result<_>>()?;
        if servers.is_empty() {
            return Err(Error::Url(String::new()));
        }
        Ok(Self(Arc::new(Inner {
            http: reqwest::Client::builder().build().map_err(Error::Unreachable)?,
            servers,
            token: token.map(str::to_owned),
            at: AtomicUsize::default(),
        })))
    }

    /// Makes a job type, or replaces all its settings.
    pub async fn put_type(&self, ty: &str, settings: &Value) -> Result<()> {
        self.ask(Method::PUT, &["_jobs", ty], settings).await.map(|_: Value| ())
    }

    /// A type with its settings and numbers.
    pub async fn type_info(&self, ty: &str) -> Result<Value> {
        self.ask(Method::GET, &["_jobs", ty, "_type"], &Value::Null).await
    }

    /// Adds a job and returns its id.
    pub async fn enqueue<T: Serialize>(&self, ty: &str, job: &NewJob<T>) -> Result<String> {
        self.member(Method::POST, &["_jobs", ty], &job.given()?, "id").await
    }

    /// Adds up to 500 jobs. Each has its own answer: `ok`, or `error` and `reason`.
    pub async fn enqueue_many<T: Serialize>(&self, ty: &str, jobs: &[NewJob<T>]) -> Result<Vec<Value>> {
        let jobs = jobs.iter().map(NewJob::given).collect::<Result<Vec<_>>>()?;
        self.member(Method::POST, &["_jobs", ty], &json!({"jobs": jobs}), "results").await
    }

    pub async fn get(&self, ty: &str, id: &str) -> Result<JobInfo> {
        self.ask(Method::GET, &["_jobs", ty, id], &Value::Null).await
    }

    /// Returns a job when it is finished or dead, or as it is when the time is over; up to 60 s.
    pub async fn wait(&self, ty: &str, id: &str, time: Duration) -> Result<JobInfo> {
        let query = [("timeout_sec", time.as_secs_f64().to_string())];
        let path = &["_jobs", ty, id, "_wait"];
        self.send(Method::GET, path, &query, &Value::Null, time).await
    }

    /// A page of jobs. The query may have `state`, `limit`, `after` and `data`.
    pub async fn list(&self, ty: &str, query: &[(&str, String)]) -> Result<Page> {
        let none = Duration::ZERO;
        self.send(Method::GET, &["_jobs", ty], query, &Value::Null, none).await
    }

    pub async fn remove(&self, ty: &str, id: &str) -> Result<()> {
        self.call(Method::DELETE, &["_jobs", ty, id]).await
    }

    /// Makes a dead job pending.
    pub async fn retry(&self, ty: &str, id: &str) -> Result<()> {
        self.call(Method::POST, &["_jobs", ty, id, "_retry"]).await
    }

    /// Makes all dead jobs pending, or those with this error.
    pub async fn retry_dead(&self, ty: &str, error: Option<&str>) -> Result<u64> {
        let body = error.map_or(json!({"state": "dead"}), |error| json!({"state": "dead", "error": error}));
        self.member(Method::POST, &["_jobs", ty, "_retry"], &body, "count").await
    }

    pub async fn pause(&self, ty: &str) -> Result<()> {
        self.call(Method::POST, &["_jobs", ty, "_pause"]).await
    }

    pub async fn resume(&self, ty: &str) -> Result<()> {
        self.call(Method::POST, &["_jobs", ty, "_resume"]).await
    }

    /// Makes or replaces a schedule, and returns when it occurs next.
    pub async fn put_schedule(&self, name: &str, schedule: &Value) -> Result<String> {
        self.member(Method::PUT, &["_schedules", name], schedule, "next").await
    }

    /// Makes an API token, and returns its text: `{"name", "rights", "types"?, "expires_sec"?}`.
    pub async fn make_token(&self, token: &Value) -> Result<String> {
        self.member(Method::POST, &["_tokens"], token, "token").await
    }

    /// Makes any other request: `path` has its segments, and a body of `null` is none.
    pub async fn ask<T: DeserializeOwned>(&self, method: Method, path: &[&str], body: &Value) -> Result<T> {
        self.send(method, path, &[], body, Duration::ZERO).await
    }

    /// One member of the answer.
    async fn member<T: DeserializeOwned>(&self, method: Method, path: &[&str], body: &Value, name: &str) -> Result<T> {
        let mut answer: Value = self.ask(method, path, body).await?;
        Ok(serde_json::from_value(answer[name].take())?)
    }

    async fn call(&self, method: Method, path: &[&str]) -> Result<()> {
        self.ask(method, path, &Value::Null).await.map(|_: Value| ())
    }

    /// Makes a request that may wait for so long.
    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: &Value,
        wait: Duration,
    ) -> Result<T> {
        let key = format!("{:016x}{:016x}", random(), random());
        for pause_ms in PAUSES_MS.into_iter().map(Some).chain([None]) {
            let at = self.0.at.load(Ordering::Relaxed);
            let mut url = self.0.servers[at % self.0.servers.len()].clone();
            if let Ok(mut segments) = url.path_segments_mut() {
                segments.pop_if_empty().extend(path);
            }
            let mut request = self.0.http.request(method.clone(), url);
            request = request.timeout(TIMEOUT + wait).query(query);
            request = request.header("content-type", "application/json");
            if let Some(token) = &self.0.token {
                request = request.bearer_auth(token);
            }
            if !body.is_null() {
                request = request.header("idempotency-key", &key).json(body);
            }
            let answered = match request.send().await {
                Ok(response) => read(response).await,
                Err(error) => Err(Error::Unreachable(error)),
            };
            match (answered, pause_ms) {
                (Ok(answer), _) => return Ok(serde_json::from_value(answer)?),
                (Err(error), Some(pause_ms)) if error.is_passing() => {
                    self.0.at.store(at.wrapping_add(1), Ordering::Relaxed);
                    let pause_ms = pause_ms / 2 + random() % (pause_ms / 2 + 1);
                    tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                }
                (Err(error), _) => return Err(error),
            }
        }
        unreachable!("the last try returns")
    }
}

impl Error {
    /// Whether another frontend, or this one in a moment, may answer.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Refused { status, .. } => matches!(status, 502..=504),
            Self::Unreachable(_) => true,
            Self::Url(_) | Self::Json(_) => false,
        }
    }
}

async fn read(response: reqwest::Response) -> Result<Value> {
    let (status, headers) = (response.status(), response.headers());
    let after = headers.get("retry-after").and_then(|after| after.to_str().ok()?.parse().ok());
    let text = response.bytes().await.map_err(Error::Unreachable)?;
    match serde_json::from_slice::<Value>(&text) {
        Ok(answer) if status.is_success() => Ok(answer),
        answer => {
            // Others than the service answer without JSON.
            let answer = answer.unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let member = |name: &str| answer[name].as_str().map(str::to_owned);
            let status = status.max(StatusCode::BAD_REQUEST);
            Err(Error::Refused {
                status: status.as_u16(),
                error: member("error").unwrap_or_else(|| "unexpected_response".to_owned()),
                reason: member("reason").unwrap_or_else(|| text.chars().take(200).collect()),
                retry_after: after.map(Duration::from_secs),
            })
        }
    }
}

/// Random enough for pauses and keys.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
