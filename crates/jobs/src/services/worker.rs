//! A worker: runs a handler for each job of a type.
//!
//! It claims jobs, decodes their data, sends heartbeats, stops the run of a removed job, retries failed jobs,
//! dead-letters those not to be retried, and puts its jobs back when the process stops.

use std::error::Error as StdError;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::model::clock::millis;
use crate::services::pause::Pause;
use crate::{
    Accepted, Acceptor, AcceptorHandle, Entropy, Error, Finish, Held, Holder, Job, JobId, JobType,
    Jobs, Result,
};

/// How long one request for a job waits.
const ACCEPT_WAIT: Duration = Duration::from_mins(1);

/// Settings of a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerOptions {
    /// Maximum number of concurrent runs.
    pub concurrency: usize,
    /// When failed jobs are retried.
    pub retry: Retry,
    /// How long runs may continue when the worker is stopped; then they are dropped, and their jobs run again.
    pub drain: Duration,
}

/// When a failed job is retried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// A job that fails more often in a row is a [dead letter](crate::State::Dead); `None` for no limit.
    pub retries_max: Option<u32>,
    /// The delay after the first failure; doubles with each further one.
    pub delay: Duration,
    /// The maximum delay.
    pub delay_max: Duration,
    /// The fraction, from 0 to 1, by which a delay may be shorter, so that jobs that failed together are retried apart.
    pub jitter: f64,
}

/// A job during its run.
#[derive(Debug)]
pub struct Task<T> {
    /// The decoded data of the job.
    pub data: T,
    /// The job's id.
    pub id: JobId,
    /// Failures and silent holders in a row before this run.
    pub failures: u32,
    jobs: Jobs,
    job: Job,
}

/// Why a run failed. `?` turns any error into one that is retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Retry the job later.
    Retry(String),
    /// The job cannot succeed: keep it as a [dead letter](crate::State::Dead).
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

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            concurrency: 16,
            retry: Retry::default(),
            drain: Duration::from_secs(10),
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            retries_max: Some(20),
            delay: Duration::from_secs(5),
            delay_max: Duration::from_hours(1),
            jitter: 0.2,
        }
    }
}

impl Retry {
    /// The delay after this many failures in a row; `None` if there were too many.
    fn wait(&self, failures: u32, entropy: &Entropy) -> Option<Duration> {
        if self.retries_max.is_some_and(|max| failures > max) {
            return None;
        }
        let doubled = 1_u32 << failures.saturating_sub(1).min(31);
        let wait = self.delay.saturating_mul(doubled).min(self.delay_max);
        Some(wait.saturating_sub(entropy.up_to(wait.mul_f64(self.jitter.clamp(0.0, 1.0)))))
    }
}

impl<T> Task<T> {
    /// The job, for calls in the handler's own transactions and for its interrupts.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The queue.
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Another run was requested, perhaps with newer data: this one may end early.
    pub fn superseded(&self) -> bool {
        self.job.again().is_cancelled()
    }

    /// The run ends, and another one follows after this delay.
    pub fn again_in(&self, delay: Duration) -> Finish {
        Finish::again(self.jobs.clock().now_ms().saturating_add(millis(delay)))
    }
}

impl<T: Serialize> Task<T> {
    /// Stores the current data, for readers of the job and for the next run in case this one fails.
    pub async fn save(&self) -> Result<Held> {
        let data = encode(&self.data)?;
        self.jobs.update(&self.job, Some(data)).await
    }
}

/// Encodes data of a job for workers.
pub fn encode<T: Serialize>(data: &T) -> Result<Bytes> {
    serde_json::to_vec(data)
        .map(Bytes::from)
        .map_err(|_| Error::Invalid("the data of a job cannot be written as JSON"))
}

/// Decodes data of a job of workers.
pub fn decode<T: DeserializeOwned>(data: &[u8]) -> Result<T> {
    serde_json::from_slice(data)
        .map_err(|_| Error::Invalid("the data of a job cannot be read as JSON"))
}

/// One per process and type.
#[derive(Debug)]
pub struct Worker {
    jobs: Jobs,
    ty: JobType,
    holder: Holder,
    options: WorkerOptions,
}

/// State shared by the tasks of a worker.
struct Shared<H> {
    jobs: Jobs,
    acceptor: AcceptorHandle,
    retry: Retry,
    handler: H,
    /// Stops claiming jobs.
    stop: CancellationToken,
    /// Drops runs that are still in progress.
    drop: CancellationToken,
}

impl Worker {
    /// A worker that claims jobs of a type as `holder`. Some node of the fleet must run
    /// [`Maintenance`](crate::Maintenance) to recover the jobs of dead workers.
    pub fn new(jobs: Jobs, ty: JobType, holder: Holder, options: WorkerOptions) -> Self {
        Self {
            jobs,
            ty,
            holder,
            options,
        }
    }

    /// Runs until the token is cancelled and all runs have ended.
    ///
    /// If its job is removed or lost, the handler is dropped. Its own transactions take effect exactly once if they
    /// call [`Jobs::update_in`] or [`Jobs::finish_in`]; everything else at least once.
    pub async fn run<T, H, Fut>(self, token: CancellationToken, handler: H)
    where
        T: DeserializeOwned + Send + 'static,
        H: Fn(Task<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = std::result::Result<Finish, Failure>> + Send + 'static,
    {
        let (service, acceptor) = Acceptor::new(self.jobs.clone(), self.ty, self.holder);
        let (accepting, dropping) = (CancellationToken::new(), CancellationToken::new());
        let service = service.run(accepting.clone());
        let shared = Arc::new(Shared {
            jobs: self.jobs,
            acceptor,
            retry: self.options.retry,
            handler,
            stop: token.clone(),
            drop: dropping.clone(),
        });
        let mut tasks = JoinSet::new();
        for _ in 0..self.options.concurrency.max(1) {
            let shared = Arc::clone(&shared);
            tasks.spawn(async move { shared.work().await });
        }
        drop(shared);
        let work = async {
            let ended = async { while tasks.join_next().await.is_some() {} };
            tokio::pin!(ended);
            let drained = async {
                token.cancelled().await;
                sleep(self.options.drain).await;
            };
            tokio::select! {
                () = &mut ended => {}
                () = drained => {
                    dropping.cancel();
                    ended.await;
                }
            }
            accepting.cancel();
        };
        tokio::join!(work, service);
    }
}

impl<H> Shared<H> {
    /// Runs one job after another; ending a run and claiming the next job are one transaction.
    async fn work<T, Fut>(&self)
    where
        T: DeserializeOwned,
        H: Fn(Task<T>) -> Fut,
        Fut: Future<Output = std::result::Result<Finish, Failure>>,
    {
        let mut pause = Pause::new(self.jobs.entropy(), self.jobs.planted());
        let mut accepted = Ok(Vec::new());
        loop {
            let mut ended = None;
            match accepted {
                Ok(jobs) => {
                    pause.reset();
                    for one in jobs {
                        ended = self.run(one).await;
                    }
                }
                Err(Error::Stopped) => return,
                Err(error) => {
                    tracing::warn!(error = %error.chain(), "cannot claim a job");
                    pause.wait(&self.stop).await;
                }
            }
            let end = async {
                if let Some((job, finish)) = ended {
                    self.end(&job, finish).await;
                }
            };
            let next = async {
                tokio::select! {
                    biased;
                    () = self.stop.cancelled() => None,
                    accepted = self.acceptor.accept(1, ACCEPT_WAIT) => Some(accepted),
                }
            };
            match tokio::join!(end, next).1 {
                Some(next) => accepted = next,
                None => return,
            }
        }
    }

    async fn end(&self, job: &Job, finish: Finish) {
        match self.acceptor.finish(job, finish).await {
            Ok(_) => {}
            Err(Error::Halt) => tracing::info!(job.id = %job.id, "the job was lost"),
            // The job runs again once its heartbeats are missed.
            Err(error) => {
                tracing::warn!(job.id = %job.id, error = %error.chain(), "cannot end a run");
            }
        }
    }

    /// Runs a job; returns how to end it, unless it was lost.
    async fn run<T, Fut>(&self, accepted: Accepted) -> Option<(Job, Finish)>
    where
        T: DeserializeOwned,
        H: Fn(Task<T>) -> Fut,
        Fut: Future<Output = std::result::Result<Finish, Failure>>,
    {
        let job = accepted.job.clone();
        let result = match serde_json::from_slice(&accepted.data) {
            Ok(data) => {
                let task = Task {
                    data,
                    id: job.id.clone(),
                    failures: accepted.stalls,
                    jobs: self.jobs.clone(),
                    job: job.clone(),
                };
                let run = async { (self.handler)(task).await };
                tokio::select! {
                    biased;
                    () = job.lost().cancelled() => return None,
                    _ = self.jobs.keep_alive(&accepted, |_| {}) => return None,
                    () = self.drop.cancelled() => {
                        let finish = Finish {
                            reason: Some("its worker was stopped".into()),
                            ..Finish::again(0)
                        };
                        return Some((job, finish));
                    }
                    result = AssertUnwindSafe(run).catch_unwind() => result.unwrap_or_else(|_| {
                        Err(Failure::Retry("its handler panicked".into()))
                    }),
                }
            }
            Err(error) => Err(Failure::Dead(format!("its data cannot be read: {error}"))),
        };
        let finish = result.unwrap_or_else(|failure| self.failed(accepted.stalls, failure));
        Some((job, finish))
    }

    fn failed(&self, failures: u32, failure: Failure) -> Finish {
        let (reason, wait) = match failure {
            Failure::Dead(reason) => (reason, None),
            Failure::Retry(reason) => {
                let wait = self.retry.wait(failures + 1, self.jobs.entropy());
                (reason, wait)
            }
        };
        let again_ms = wait.map(|wait| self.jobs.clock().now_ms().saturating_add(millis(wait)));
        Finish {
            again_ms,
            ..Finish::dead(reason)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_limit() {
        let retry = Retry {
            retries_max: Some(4),
            delay: Duration::from_secs(1),
            delay_max: Duration::from_secs(6),
            jitter: 0.0,
        };
        let entropy = Entropy::seeded(1);
        let waits: Vec<_> = (1..=5)
            .map(|failures| retry.wait(failures, &entropy))
            .collect();
        let expected = [Some(1), Some(2), Some(4), Some(6), None];
        assert_eq!(waits, expected.map(|wait| wait.map(Duration::from_secs)));
        let some = Retry {
            jitter: 0.5,
            ..retry
        };
        let wait = some.wait(1, &entropy).unwrap();
        assert!(
            wait >= Duration::from_millis(500) && wait < Duration::from_secs(1),
            "{wait:?}"
        );
    }
}
