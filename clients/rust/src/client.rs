//! Requests. They can be repeated, so they are, if the service cannot be reached. Only tokens are made once.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::{Method, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::{Beat, Beats, Claims, Ended, Error, JobInfo, NewJob, Page, Result, Retried};

/// Before each further try, in milliseconds.
const PAUSES_MS: [u64; 4] = [0, 100, 500, 2_000];
/// How long a try may take, besides what a request waits for.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A part that no answer has.
const NOTHING: &str = "/";

/// A client, cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    servers: Arc<[Url]>,
    /// The server that answered last.
    at: Arc<AtomicUsize>,
    token: Option<String>,
    key: Option<String>,
    /// How long a try may take.
    timeout: Duration,
}

impl Client {
    /// `http://user:password@host:port`
    pub fn new(url: &str) -> Result<Self> {
        Self::with(&[url], None)
    }

    /// Of several frontends, the next is used when one fails. With an API token, unless a URL has a user.
    pub fn with(urls: &[&str], token: Option<&str>) -> Result<Self> {
        let servers = urls.iter().map(|text| {
            let url = Url::parse(text).ok().filter(|url| url.has_host() && matches!(url.scheme(), "http" | "https"));
            url.ok_or_else(|| Error::Url((*text).to_owned()))
        });
        let servers: Arc<[Url]> = servers.collect::<Result<_>>()?;
        if servers.is_empty() {
            return Err(Error::Url(String::new()));
        }
        let http = reqwest::Client::builder().build().map_err(Error::Unreachable)?;
        Ok(Self { http, servers, at: Arc::default(), token: token.map(str::to_owned), key: None, timeout: TIMEOUT })
    }

    /// The same client, whose requests have this `Idempotency-Key`: jobs that were added with it are not added again.
    #[must_use]
    pub fn keyed(&self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self.clone() }
    }

    /// The same client, which tries the next frontend if there is no answer in this time.
    pub(crate) fn within(&self, timeout: Duration) -> Self {
        Self { timeout: self.timeout.min(timeout), ..self.clone() }
    }

    /// Makes a job type, or replaces all its settings.
    pub async fn put_type(&self, ty: &str, settings: &Value) -> Result<()> {
        self.part(Method::PUT, &["_jobs", ty], settings, NOTHING).await
    }

    /// Adds a job and returns its id.
    pub async fn enqueue<T: Serialize>(&self, ty: &str, job: &NewJob<T>) -> Result<String> {
        self.part(Method::POST, &["_jobs", ty], &serde_json::to_value(job)?, "/id").await
    }

    /// Adds up to 500 jobs. Each has its own answer: `ok`, or `error` and `reason`.
    pub async fn enqueue_many<T: Serialize>(&self, ty: &str, jobs: &[NewJob<T>]) -> Result<Vec<Value>> {
        let body = json!({"jobs": serde_json::to_value(jobs)?});
        self.part(Method::POST, &["_jobs", ty], &body, "/results").await
    }

    /// Claims up to 500 jobs, and waits up to 60 s for the first.
    pub async fn claim(&self, ty: &str, worker: &str, count: usize, wait: Duration) -> Result<Claims> {
        self.finish(ty, &[], worker, count, wait).await
    }

    /// Ends runs and, unless `count` is 0, claims so many jobs in the same transaction.
    pub async fn finish(&self, ty: &str, ends: &[Ended], worker: &str, count: usize, wait: Duration) -> Result<Claims> {
        let body = json!({"jobs": ends, "claim": count, "worker": worker, "wait_sec": wait.as_secs_f64()});
        let client = Self { timeout: self.timeout + wait, ..self.clone() };
        client.ask(Method::POST, &["_jobs", ty, "_finish"], &body).await
    }

    /// Sends heartbeats. The answer has one for each.
    pub async fn beat(&self, ty: &str, jobs: &[Beat]) -> Result<Beats> {
        self.ask(Method::POST, &["_jobs", ty, "_beat"], &json!({"jobs": jobs})).await
    }

    /// Returns a job when it is finished or dead, or as it is when the time is over; up to 60 s.
    pub async fn wait(&self, ty: &str, id: &str, time: Duration) -> Result<JobInfo> {
        let query = [("timeout_sec", time.as_secs_f64().to_string())];
        let client = Self { timeout: self.timeout + time, ..self.clone() };
        parse(&client.send(Method::GET, &["_jobs", ty, id, "_wait"], &query, &Value::Null).await?, "")
    }

    /// A page of jobs. The query may have `state`, `limit`, `after` and `data`.
    pub async fn list(&self, ty: &str, query: &[(&str, String)]) -> Result<Page> {
        parse(&self.send(Method::GET, &["_jobs", ty], query, &Value::Null).await?, "")
    }

    /// Makes all dead jobs pending, or those with this error.
    pub async fn retry_dead(&self, ty: &str, error: Option<&str>) -> Result<Retried> {
        let body = error.map_or(json!({"state": "dead"}), |error| json!({"state": "dead", "error": error}));
        self.ask(Method::POST, &["_jobs", ty, "_retry"], &body).await
    }

    /// Makes or replaces a schedule, and returns when it occurs next.
    pub async fn put_schedule(&self, name: &str, schedule: &Value) -> Result<String> {
        self.part(Method::PUT, &["_schedules", name], schedule, "/next").await
    }

    /// A page of schedules, and `next`. The query may have `limit` and `after`.
    pub async fn schedules(&self, query: &[(&str, String)]) -> Result<Value> {
        parse(&self.send(Method::GET, &["_schedules"], query, &Value::Null).await?, "")
    }

    /// Makes an API token, and returns its text, which is shown only this time: `{"name", "rights", "types"?, "expires_sec"?}`.
    pub async fn make_token(&self, token: &Value) -> Result<String> {
        self.part(Method::POST, &["_tokens"], token, "/token").await
    }

    /// Makes any other request: `path` has its segments, and a body of `null` is none.
    pub async fn ask<T: DeserializeOwned>(&self, method: Method, path: &[&str], body: &Value) -> Result<T> {
        self.part(method, path, body, "").await
    }

    async fn part<T: DeserializeOwned>(&self, method: Method, path: &[&str], body: &Value, part: &str) -> Result<T> {
        parse(&self.send(method, path, &[], body).await?, part)
    }

    async fn send(&self, method: Method, path: &[&str], query: &[(&str, String)], body: &Value) -> Result<Vec<u8>> {
        if let Some(part) = path.iter().find(|part| matches!(**part, "" | "." | "..")) {
            return Err(Error::Path((*part).to_owned()));
        }
        let key = self.key.clone().unwrap_or_else(|| format!("{:016x}{:016x}", random(), random()));
        // A token whose text was lost cannot be made again.
        let tries = if path == ["_tokens"] && method == Method::POST { 0 } else { PAUSES_MS.len() };
        let mut pauses_ms = PAUSES_MS.into_iter().take(tries);
        loop {
            let at = self.at.load(Ordering::Relaxed);
            let mut url = self.servers[at % self.servers.len()].clone();
            if let Ok(mut segments) = url.path_segments_mut() {
                segments.pop_if_empty().extend(path);
            }
            let request = self.http.request(method.clone(), url).query(query).timeout(self.timeout);
            let request = request.header("content-type", "application/json").header("idempotency-key", &key);
            let request = if let Some(token) = &self.token { request.bearer_auth(token) } else { request };
            let request = if body.is_null() { request } else { request.json(body) };
            let answer = read(request.send().await).await;
            if !answer.as_ref().is_err_and(Error::is_passing) {
                return answer;
            }
            // Unless another request has moved on from this one already.
            let _ = self.at.compare_exchange(at, at.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
            let Some(pause_ms) = pauses_ms.next() else { return answer };
            tokio::time::sleep(Duration::from_millis(pause_ms / 2 + random() % (pause_ms / 2 + 1))).await;
        }
    }
}

/// Requests without a body: each with its arguments, the part of the answer that it returns, and its path.
macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*) -> $answer:ty: $method:ident $part:tt of $path:expr;)*) => {
        impl Client {$(
            $(#[$doc])*
            pub async fn $name(&self, $($arg: &str),*) -> Result<$answer> {
                self.part(Method::$method, &$path, &Value::Null, $part).await
            }
        )*}
    };
}

requests! {
    /// All types, each as [`type_info`](Client::type_info) has it.
    types() -> Vec<Value>: GET "/types" of ["_jobs"];
    /// A type with its settings and numbers.
    type_info(ty) -> Value: GET "" of ["_jobs", ty, "_type"];
    get(ty, id) -> JobInfo: GET "" of ["_jobs", ty, id];
    remove(ty, id) -> (): DELETE NOTHING of ["_jobs", ty, id];
    /// Makes a dead job pending.
    retry(ty, id) -> (): POST NOTHING of ["_jobs", ty, id, "_retry"];
    pause(ty) -> (): POST NOTHING of ["_jobs", ty, "_pause"];
    resume(ty) -> (): POST NOTHING of ["_jobs", ty, "_resume"];
    schedule(name) -> Value: GET "" of ["_schedules", name];
    /// Adds a job of a schedule now, and returns its id.
    run_schedule(name) -> String: POST "/id" of ["_schedules", name, "_run"];
    remove_schedule(name) -> (): DELETE NOTHING of ["_schedules", name];
    tokens() -> Vec<Value>: GET "/tokens" of ["_tokens"];
    revoke_token(name) -> (): DELETE NOTHING of ["_tokens", name];
}

impl Error {
    /// Whether the same request may be answered later.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Refused { status: 408 | 429 | 500.., .. } | Self::Unreachable(_))
    }

    /// Whether another frontend, or this one in a moment, may answer.
    fn is_passing(&self) -> bool {
        matches!(self, Self::Refused { status: 502..=504, .. } | Self::Unreachable(_))
    }
}

/// A part of an answer, named by a JSON pointer.
fn parse<T: DeserializeOwned>(text: &[u8], part: &str) -> Result<T> {
    if part.is_empty() {
        return Ok(serde_json::from_slice(text)?);
    }
    let answer: Value = serde_json::from_slice(text)?;
    Ok(T::deserialize(answer.pointer(part).unwrap_or(&Value::Null))?)
}

async fn read(response: reqwest::Result<Response>) -> Result<Vec<u8>> {
    let response = response.map_err(Error::Unreachable)?;
    let (status, headers) = (response.status(), response.headers());
    let after = headers.get("retry-after").and_then(|after| after.to_str().ok()?.parse().ok());
    let text = response.bytes().await.map_err(Error::Unreachable)?;
    if status.is_success() && serde_json::from_slice::<&RawValue>(&text).is_ok() {
        return Ok(text.into());
    }
    // Others than the service answer without JSON.
    let answer: Value = serde_json::from_slice(&text).unwrap_or_default();
    let member = |name: &str| answer[name].as_str().map(str::to_owned);
    Err(Error::Refused {
        status: status.as_u16().max(400),
        error: member("error").unwrap_or_else(|| "unexpected_response".to_owned()),
        reason: member("reason").unwrap_or_else(|| String::from_utf8_lossy(&text).chars().take(200).collect()),
        retry_after: after.map(Duration::from_secs),
    })
}

/// Random enough for pauses and keys.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests;
