//! The jobs that follow sources, and who runs them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use couch::Network;
use jobs::{
    Add, Failure, Finish, Holder, JobId, JobType, Jobs, Query, Retry, Signal, State, Task,
    TypeConfig, Worker, WorkerOptions,
};
use scheduler::ServiceError;
use serde_json::{Value, json};
use store::Transaction;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::follower::{Follower, stop_following};
use super::options::{FeedKind, Source};
use super::position::Position;
use super::reactions::RuleBook;
use crate::keys;

/// The type of the jobs that follow sources. A job's id is the name of its source.
pub const FEEDS: &str = "feeds";
/// After this silence another node follows the source.
const TIMEOUT_MS: u64 = 10_000;
/// A source that no node knows is forgotten after this time.
const UNKNOWN_MAX_MS: i64 = 300_000;
/// Before a job whose source this node does not know is offered again.
const UNKNOWN_PAUSE_MS: i64 = 5_000;
/// Between two attempts to follow a source, and the maximum after several that failed soon.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// A source that was followed for this long did not fail soon.
const LASTED_MIN: Duration = Duration::from_mins(1);
/// How often a node checks that its sources have jobs.
const CHECK_PAUSE: Duration = Duration::from_mins(1);
/// Sources in a listing.
const LISTED_MAX: usize = 1000;

/// Follows sources on a node. One node at a time follows each.
pub struct Followers {
    book: RuleBook,
    network: Network,
    sources: BTreeMap<String, Source>,
    holder: Holder,
}

impl Followers {
    pub fn new(book: RuleBook, network: Network, holder: Holder, sources: Vec<Source>) -> Self {
        let sources = sources
            .into_iter()
            .map(|source| (source.name().to_owned(), source));
        Self {
            book,
            network,
            sources: sources.collect(),
            holder,
        }
    }

    /// Registers the type of the jobs, which [`jobs::Maintenance`] must serve.
    pub async fn register(jobs: &Jobs) -> jobs::Result<JobType> {
        let ty = JobType::new(FEEDS)?;
        let config = TypeConfig::new(TIMEOUT_MS);
        jobs.set_type(&ty, config).await?;
        Ok(ty)
    }

    /// Follows sources until the token is cancelled.
    pub async fn run(self, token: CancellationToken) {
        let jobs = self.book.replications.jobs().clone();
        let ty = JobType::new(FEEDS).expect("the type has a valid name");
        let options = WorkerOptions {
            concurrency: self.sources.len() + 1,
            retry: Retry {
                retries_max: None,
                delay: RETRY_PAUSES.0,
                delay_max: RETRY_PAUSES.1,
                ..Retry::default()
            },
            // A feed has no end.
            drain: Duration::ZERO,
        };
        let worker = Worker::new(jobs.clone(), ty.clone(), self.holder.clone(), options);
        let shared = Arc::new(self);
        let checking = {
            let shared = Arc::clone(&shared);
            async move {
                loop {
                    if let Err(error) = shared.add_jobs(&jobs, &ty).await {
                        tracing::warn!(error = %wire::chain(&error), "cannot create the jobs of sources");
                    }
                    if let Err(error) = shared.book.listeners.remove_left().await {
                        tracing::warn!(error = %wire::chain(&error), "cannot remove the jobs of deleted rules");
                    }
                    sleep(CHECK_PAUSE).await;
                }
            }
        };
        let work = worker.run(token, move |task| {
            let shared = Arc::clone(&shared);
            async move { shared.follow(task).await }
        });
        tokio::select! {
            () = work => {}
            () = checking => {}
        }
    }

    async fn add_jobs(&self, jobs: &Jobs, ty: &JobType) -> jobs::Result<()> {
        for name in self.sources.keys() {
            let id = JobId::new(name.clone())?;
            // Its data says how far it was read, and must not be replaced.
            if jobs.get(ty, &id).await?.is_none() {
                let add = Add::new(id, jobs::encode(&Position::default())?);
                jobs.signal(ty, Signal::from(add)).await?;
            }
        }
        Ok(())
    }

    async fn follow(&self, task: Task<Position>) -> Result<Finish, Failure> {
        let name = String::from_utf8_lossy(task.job().id.as_bytes()).into_owned();
        match self.sources.get(&name) {
            Some(source) => {
                self.leave(&task.data.server).await?;
                let began = Instant::now();
                let follower = Follower::new(&self.book, &self.network, source, &task);
                let ended = Box::pin(follower.run()).await;
                forgive(ended, began.elapsed(), || task.again_in(RETRY_PAUSES.0))
            }
            None => Ok(self.forget(&name, &task).await?),
        }
    }

    /// What becomes of a source that this node does not know: others may, while a change of configuration is under way.
    async fn forget(&self, name: &str, task: &Task<Position>) -> Result<Finish, ServiceError> {
        let now_ms = task.jobs().clock().now_ms();
        let since_ms = task.data.unknown_since_ms.unwrap_or(now_ms);
        if now_ms.saturating_sub(since_ms) < UNKNOWN_MAX_MS {
            let position = Position {
                unknown_since_ms: Some(since_ms),
                ..task.data.clone()
            };
            return Ok(Finish::again(now_ms + UNKNOWN_PAUSE_MS).data(jobs::encode(&position)?));
        }
        tracing::warn!(
            source = name,
            "a source is no longer in any node's configuration; stopped following it"
        );
        let (jobs, job) = (task.jobs(), task.job());
        self.book.listeners.forget_source(name).await?;
        let server = &task.data.server;
        if self.leave(server).await? {
            let forget = |tx: Transaction| async move {
                tx.clear_range(keys::all_seeded(server));
                tx.clear_range(keys::all_seen(server));
                tx.clear_range(keys::all_there(server));
                Ok::<_, ServiceError>(())
            };
            jobs.store().transact("forget_source", forget).await?;
        }
        jobs.remove(&JobType::new(FEEDS)?, &job.id).await?;
        Ok(Finish::done())
    }

    /// Lets nothing sleep on a server that a source had, unless one has it still, perhaps another. Returns whether none has.
    async fn leave(&self, server: &str) -> Result<bool, ServiceError> {
        let mut sources = self.sources.values();
        let is_left = !sources.any(|source| source.server().url_text() == server);
        if is_left && !server.is_empty() {
            stop_following(&self.book.replications, server).await?;
        }
        Ok(is_left)
    }
}

/// Following has no end but by a failure. One after a long time is not counted: failures of months must not add up.
fn forgive(
    ended: Result<Finish, Failure>,
    lasted: Duration,
    again: impl FnOnce() -> Finish,
) -> Result<Finish, Failure> {
    match ended {
        Err(Failure::Retry(reason)) if lasted >= LASTED_MIN => Ok(Finish {
            reason: Some(reason),
            ..again()
        }),
        ended => ended,
    }
}

/// `GET /_sources`: how each source is followed.
pub async fn list(jobs: &Jobs) -> jobs::Result<Vec<Value>> {
    let ty = JobType::new(FEEDS)?;
    let query = Query {
        data: true,
        ..Query::default()
    };
    let page = jobs.list(&ty, &query, None, LISTED_MAX).await?;
    let shown = page.jobs.into_iter().map(|listed| {
        let position: Position =
            serde_json::from_slice(&listed.data.unwrap_or_default()).unwrap_or_default();
        let is_held = listed.info.state == State::Running;
        let node = listed.info.last.as_ref().filter(|_| is_held);
        let is_followed = is_held && position.feed.is_some() && position.unknown_since_ms.is_none();
        json!({
            "name": String::from_utf8_lossy(listed.info.id.as_bytes()),
            "server": position.server,
            "followed": is_followed,
            "feed": position.feed.map(FeedKind::as_str),
            "reason": position.reason,
            "node": node.map(|attempt| attempt.holder.to_string()),
            "since": position.since,
            "updated": time(position.at_ms),
            "updates": position.updates,
            "woken": position.woken,
            "missed": position.missed,
        })
    });
    Ok(shown.collect())
}

fn time(ms: i64) -> Option<String> {
    let time = jiff::Timestamp::from_millisecond(ms)
        .ok()
        .filter(|_| ms > 0);
    time.map(|time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_after_a_long_time_are_not_counted() {
        let failed = || Err(Failure::Retry("a conflict".to_owned()));
        let again = || Finish::again(5);
        let soon = forgive(failed(), Duration::from_secs(59), again);
        assert_eq!(soon, failed());
        let late = forgive(failed(), Duration::from_mins(1), again).unwrap();
        assert_eq!((late.again_ms, late.failed), (Some(5), false));
        assert_eq!(late.reason.as_deref(), Some("a conflict"));
    }
}
