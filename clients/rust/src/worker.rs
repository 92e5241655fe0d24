//! A worker: claims jobs, runs a handler for each, sends heartbeats, and ends the runs.

use std::error::Error as StdError;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::types::{Beaten, Claimed, Claims};
use crate::{Client, Error, Result};

/// How long one request for a job waits.
const WAIT: Duration = Duration::from_mins(1);
/// Between heartbeats with progress, and between tries to reach the service.
const PROGRESS: Duration = Duration::from_secs(1);
const UNREACHABLE: Duration = Duration::from_secs(5);
const BEATS_MAX: usize = 500;

/// Settings of a worker.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// Its name, for operators.
    pub name: String,
    /// Maximum number of concurrent runs.
    pub concurrency: usize,
    /// How long runs may continue when the worker is stopped; then they are dropped, and their jobs run again.
    pub drain: Duration,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self { name: format!("rust:{}", std::process::id()), concurrency: 16, drain: Duration::from_secs(10) }
    }
}

/// A job during its run.
#[derive(Debug)]
pub struct Task<T> {
    /// The decoded data of the job.
    pub data: T,
    pub id: String,
    pub attempt: u32,
    /// Failures and silent workers in a row before this run.
    pub failures: u32,
    /// What an earlier attempt reported last, or null.
    pub progress: Value,
    held: Arc<Held>,
}

impl<T> Task<T> {
    /// Stores progress, any JSON, with the next heartbeat: within about a second.
    pub fn report(&self, progress: impl Into<Value>) {
        *lock(&self.held.report) = Some(progress.into());
    }
}

/// How a run ends.
#[derive(Debug, Clone, PartialEq)]
pub enum Finish {
    /// The job is finished, with this result.
    Done(Value),
    /// It runs again after this delay, which is no failure.
    Again(Duration),
}

impl Finish {
    pub fn done() -> Self {
        Self::Done(Value::Null)
    }
}

/// Why a run failed. `?` turns any error into one that is retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Retry the job later, as its type says.
    Retry(String),
    /// The job cannot succeed: it is dead.
    Dead(String),
}

impl<E: StdError> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            reason = format!("{reason}: {error}");
            cause = error.source();
        }
        Self::Retry(reason)
    }
}

/// A job that this worker holds.
#[derive(Debug)]
struct Held {
    id: String,
    lock: String,
    /// Progress to be sent.
    report: Mutex<Option<Value>>,
    /// Another worker may have it after this time.
    until: Mutex<Instant>,
    lost: CancellationToken,
}

/// One per process and type.
#[derive(Debug)]
pub struct Worker {
    client: Client,
    ty: String,
    options: WorkerOptions,
}

type Ended = std::result::Result<Finish, Failure>;
type Handler = Box<dyn Fn(Claimed, Arc<Held>) -> Pin<Box<dyn Future<Output = Ended> + Send>> + Send + Sync>;

struct Shared {
    worker: Worker,
    handler: Handler,
    /// Stops claiming jobs.
    stop: CancellationToken,
    /// Drops runs that are still in progress.
    drop: CancellationToken,
    held: Mutex<Vec<Arc<Held>>>,
    timeout_ms: AtomicU64,
}

impl Worker {
    pub fn new(client: Client, ty: &str, options: WorkerOptions) -> Self {
        Self { client, ty: ty.to_owned(), options }
    }

    /// Runs until the token is cancelled and all runs have ended, or the service refuses to give jobs.
    ///
    /// If its job is removed or lost, the handler is dropped.
    pub async fn run<T, H, Fut>(self, token: CancellationToken, handler: H) -> Result<()>
    where
        T: DeserializeOwned + Send + 'static,
        H: Fn(Task<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = std::result::Result<Finish, Failure>> + Send + 'static,
    {
        let (concurrency, drain) = (self.options.concurrency.max(1), self.options.drain);
        let (stop, drop) = (token.child_token(), CancellationToken::new());
        let (held, timeout_ms) = (Mutex::default(), AtomicU64::new(30_000));
        let handler: Handler = Box::new(move |claimed, held| match serde_json::from_value(claimed.data) {
            Ok(data) => {
                let Claimed { id, attempt, failures, progress, .. } = claimed;
                Box::pin(handler(Task { data, id, attempt, failures, progress, held }))
            }
            Err(error) => Box::pin(async move { Err(Failure::Dead(format!("its data cannot be read: {error}"))) }),
        });
        let shared = Arc::new(Shared { worker: self, handler, stop, drop, held, timeout_ms });
        let mut slots: JoinSet<_> = (0..concurrency).map(|_| Arc::clone(&shared).work()).collect();
        let mut ended = pin!(async {
            let mut refused = Ok(());
            while let Some(slot) = slots.join_next().await {
                if let Ok(Err(error)) = slot {
                    shared.stop.cancel();
                    refused = Err(error);
                }
            }
            refused
        });
        let drained = async {
            shared.stop.cancelled().await;
            sleep(drain).await;
        };
        tokio::select! {
            refused = &mut ended => return refused,
            () = shared.beats() => {}
            () = drained => {}
        }
        shared.drop.cancel();
        ended.await
    }
}

impl Shared {
    /// Runs one job after another; the end of one and the claim of the next are one request.
    async fn work(self: Arc<Self>) -> Result<()> {
        let mut ended = None;
        while let Some(claimed) = self.next(ended.take()).await? {
            let held = Arc::new(Held {
                id: claimed.id.clone(),
                lock: claimed.lock.clone(),
                report: Mutex::default(),
                until: Mutex::new(Instant::now() + self.timeout()),
                lost: CancellationToken::new(),
            });
            lock(&self.held).push(Arc::clone(&held));
            ended = self.run_one(claimed, &held).await;
            lock(&self.held).retain(|other| !Arc::ptr_eq(other, &held));
        }
        Ok(())
    }

    /// Ends a run and claims the next job; `None` once the worker is stopped.
    async fn next(&self, mut ended: Option<Value>) -> Result<Option<Claimed>> {
        let Worker { client, ty, options } = &self.worker;
        loop {
            let stopped = self.stop.is_cancelled();
            let (part, mut body) = match &ended {
                Some(end) => ("_finish", json!({"jobs": [end], "claim": 1})),
                None if stopped => return Ok(None),
                None => ("_claim", json!({"count": 1})),
            };
            (body["worker"], body["wait_sec"]) = (options.name.clone().into(), WAIT.as_secs().into());
            if stopped {
                body = json!({"jobs": [ended]});
            }
            let path = ["_jobs", ty, part];
            let asked = client.send::<Claims>(Method::POST, &path, &[], &body, WAIT);
            let answer = tokio::select! {
                // Whether the run has ended is unknown then; repeating its end does no harm.
                () = self.stop.cancelled(), if !stopped => continue,
                answer = asked => answer,
            };
            match answer {
                Ok(mut claims) => {
                    ended = None;
                    let timeout = Duration::try_from_secs_f64(claims.timeout_sec).unwrap_or(WAIT);
                    self.timeout_ms.store(timeout.as_millis().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
                    if let Some(claimed) = claims.jobs.pop() {
                        return Ok(Some(claimed));
                    }
                }
                Err(error @ Error::Refused { status, .. }) if status < 500 && !matches!(status, 408 | 429) => {
                    // Such as a result that is too large.
                    tracing::warn!(%error, "the service refused the end of a run, or to give jobs");
                    let Some(end) = ended.take() else { return Err(error) };
                    ended = (end["outcome"] != "failed").then(|| failed(end, &Failure::Retry(error.to_string())));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot claim a job");
                    if stopped {
                        return Ok(None);
                    }
                    let _ = timeout(UNREACHABLE, self.stop.cancelled()).await;
                }
            }
        }
    }

    /// Runs a job; returns how to end it, unless it was lost.
    async fn run_one(self: &Arc<Self>, claimed: Claimed, held: &Arc<Held>) -> Option<Value> {
        // A task of its own, so that a panic is a failure; it ends when this future is dropped.
        let (mut run, shared, task_held) = (JoinSet::new(), Arc::clone(self), Arc::clone(held));
        run.spawn(async move { (shared.handler)(claimed, task_held).await });
        let ended = tokio::select! {
            biased;
            () = held.lost.cancelled() => return None,
            () = self.drop.cancelled() => Ok(Finish::Again(Duration::ZERO)),
            ended = run.join_next() => match ended {
                Some(Ok(ended)) => ended,
                _ => Err(Failure::Retry("its handler panicked".into())),
            },
        };
        let end = json!({"id": held.id, "lock": held.lock});
        Some(match ended {
            Ok(Finish::Done(result)) => with(with(end, "outcome", "done".into()), "result", result),
            Ok(Finish::Again(delay)) => {
                with(with(end, "outcome", "again".into()), "delay_sec", delay.as_secs_f64().into())
            }
            Err(failure) => failed(end, &failure),
        })
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.load(Ordering::Relaxed))
    }

    async fn beats(&self) {
        let mut beaten = Instant::now();
        loop {
            let pause = PROGRESS.min(self.timeout() / 6);
            sleep(pause).await;
            let due = beaten.elapsed() + pause >= self.timeout() / 3;
            if due {
                beaten = Instant::now();
            }
            let held = lock(&self.held).clone();
            let wanted = |held: &&Arc<Held>| due || lock(&held.report).is_some();
            let held: Vec<_> = held.iter().filter(wanted).cloned().collect();
            for part in held.chunks(BEATS_MAX) {
                self.beat(part).await;
            }
        }
    }

    async fn beat(&self, held: &[Arc<Held>]) {
        let (sent, allowed) = (Instant::now(), self.timeout());
        let jobs = held.iter().map(|job| {
            let beat = json!({"id": job.id, "lock": job.lock});
            let report = lock(&job.report).take();
            match report {
                Some(progress) => with(beat, "progress", progress),
                None => beat,
            }
        });
        let jobs: Vec<Value> = jobs.collect();
        let path = ["_jobs", &self.worker.ty, "_beat"];
        let body = json!({"jobs": jobs});
        let asked = self.worker.client.send::<Beats>(Method::POST, &path, &[], &body, Duration::ZERO);
        match timeout(allowed / 3, asked).await {
            Ok(Ok(answer)) => {
                for (job, beaten) in held.iter().zip(answer.jobs) {
                    if beaten.status == "halt" {
                        job.lost.cancel();
                    } else {
                        *lock(&job.until) = sent + allowed;
                    }
                }
            }
            Ok(Err(error)) => tracing::warn!(jobs = held.len(), %error, "heartbeats failed"),
            Err(_) => tracing::warn!(jobs = held.len(), "heartbeats were not answered in time"),
        }
        for job in held.iter().filter(|job| Instant::now() > *lock(&job.until)) {
            job.lost.cancel();
        }
    }
}

#[derive(serde::Deserialize)]
struct Beats {
    jobs: Vec<Beaten>,
}

fn failed(end: Value, failure: &Failure) -> Value {
    let base = |reason| json!({"id": end["id"], "lock": end["lock"], "outcome": "failed", "error": reason});
    match failure {
        Failure::Retry(reason) => base(reason),
        Failure::Dead(reason) => with(base(reason), "retry", false.into()),
    }
}

fn with(mut object: Value, name: &str, value: Value) -> Value {
    object[name] = value;
    object
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A token that SIGTERM or SIGINT cancels.
#[cfg(unix)]
pub fn stopped_by_signal() -> std::io::Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let token = CancellationToken::new();
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        stop.cancel();
    });
    Ok(token)
}
