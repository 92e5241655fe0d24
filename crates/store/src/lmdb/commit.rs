//! The threads of the commit path. One appends all waiting commits to the log as a group; the other
//! syncs the log and replies. While one group is synced, the next is appended.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::engine::Engine;
use super::upkeep::Upkeep;
use super::view::LmdbSnapshot;
use crate::pending::{CommitRequest, Mutation, Stamp};
use crate::{Error, Result};

/// Receives the stamp, or `None` if the transaction only read.
pub(super) type Reply = oneshot::Sender<Result<Option<Stamp>>>;

/// A commit on its way to the log.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: CommitRequest,
    /// Retains the history that conflict detection needs.
    pub(super) snapshot: Option<LmdbSnapshot>,
    /// Answered when the commit is published, or with the error that kept it from being published.
    pub(super) visible: Option<Reply>,
    /// Answered when the commit is durable, and without `visible` also with that error.
    pub(super) durable: Option<Reply>,
}

impl Waiting {
    /// Whether the caller has stopped waiting.
    fn is_cancelled(&self) -> bool {
        let first = self.visible.as_ref().or(self.durable.as_ref());
        first.is_some_and(Reply::is_closed)
    }
}

/// A commit that waits for the sync. There is no reply if the caller has its answer already.
type Durable = (Option<Reply>, Option<Stamp>);

/// The most queued commits; further ones wait.
pub(super) const QUEUE_COMMITS: usize = 4096;
const GROUP_COMMITS_MAX: usize = 1024;
/// A group of this size takes no more commits. One transaction may be ten times as large.
const GROUP_BYTES: usize = 1 << 20;

/// Runs the commit thread until the queue is closed and empty.
pub(super) fn run_commits(
    engine: &Engine,
    mut queue: mpsc::Receiver<Waiting>,
    syncer: &Syncer,
    upkeep: &Upkeep,
) {
    while let Some(first) = queue.blocking_recv() {
        let mut bytes = request_bytes(&first.request);
        let mut group = vec![first];
        while bytes < GROUP_BYTES
            && group.len() < GROUP_COMMITS_MAX
            && let Ok(next) = queue.try_recv()
        {
            bytes += request_bytes(&next.request);
            group.push(next);
        }
        commit_group(engine, group, syncer, upkeep);
    }
}

fn commit_group(engine: &Engine, mut group: Vec<Waiting>, syncer: &Syncer, upkeep: &Upkeep) {
    // Skip commits that were cancelled.
    group.retain(|waiting| !waiting.is_cancelled());
    let (mut requests, mut replies, mut snapshots) = (Vec::new(), Vec::new(), Vec::new());
    for waiting in group {
        requests.push(waiting.request);
        replies.push((waiting.visible, waiting.durable));
        snapshots.push(waiting.snapshot);
    }
    let committed = (upkeep.wait_for_room(engine)).and_then(|()| engine.commit(requests));
    drop(snapshots);
    match committed {
        Ok(results) => {
            let mut line = Vec::with_capacity(replies.len());
            for ((visible, durable), result) in replies.into_iter().zip(results) {
                match result {
                    Ok(stamp) => {
                        if let Some(reply) = visible {
                            answer(reply, Ok(Some(stamp)));
                        }
                        line.push((durable, Some(stamp)));
                    }
                    Err(error) => refuse(visible.or(durable), error),
                }
            }
            if !line.is_empty() {
                syncer.add(line);
            }
        }
        Err(error) => {
            for (visible, durable) in replies {
                refuse(visible.or(durable), error.clone());
            }
        }
    }
}

fn request_bytes(request: &CommitRequest) -> usize {
    let mutations = request.mutations.iter().map(|mutation| match mutation {
        Mutation::Set { key, value }
        | Mutation::StampedKey { key, value, .. }
        | Mutation::StampedValue { key, value, .. } => key.len() + value.len(),
        Mutation::Clear { key } | Mutation::Add { key, .. } => key.len(),
        Mutation::ClearRange { range } => range.begin.len() + range.end.len(),
    });
    let writes = (request.writes.iter()).map(|range| range.begin.len() + range.end.len());
    mutations.chain(writes).sum()
}

/// The queue of commits that wait for the sync.
#[derive(Debug)]
pub(super) struct Syncer {
    queue: Mutex<Queue>,
    more: Condvar,
    /// With relaxed durability, commits do not wait, and the log is synced at this interval.
    relaxed: Option<Duration>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Durable>,
    closed: bool,
}

impl Syncer {
    pub(super) fn new(relaxed: Option<Duration>) -> Self {
        Self {
            queue: Mutex::default(),
            more: Condvar::new(),
            relaxed,
        }
    }

    pub(super) fn is_relaxed(&self) -> bool {
        self.relaxed.is_some()
    }

    /// Replies after the next sync, or at once with relaxed durability.
    pub(super) fn add(&self, waiting: Vec<Durable>) {
        if self.is_relaxed() {
            for (reply, stamp) in waiting {
                if let Some(reply) = reply {
                    answer(reply, Ok(stamp));
                }
            }
            return;
        }
        self.lock().waiting.extend(waiting);
        self.more.notify_one();
    }

    /// Ends the sync thread after the last reply.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.more.notify_one();
    }

    /// Runs the sync thread.
    pub(super) fn run(&self, engine: &Engine) {
        while let Some(waiting) = self.next() {
            let result = engine.sync();
            for (reply, stamp) in waiting {
                let told = match (&result, stamp) {
                    (Ok(()), stamp) => Ok(stamp),
                    // The record is in the log and may be replayed.
                    (Err(_), Some(_)) => Err(Error::MaybeCommitted),
                    (Err(error), None) => Err(error.clone()),
                };
                if let Some(reply) = reply {
                    answer(reply, told);
                }
            }
        }
    }

    /// Waits for commits to sync, or for the interval of relaxed durability. `None` at the end.
    fn next(&self) -> Option<Vec<Durable>> {
        let mut line = self.lock();
        loop {
            if !line.waiting.is_empty() {
                return Some(std::mem::take(&mut line.waiting));
            }
            if line.closed {
                return None;
            }
            let Some(interval) = self.relaxed else {
                line = (self.more.wait(line)).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let waited = self.more.wait_timeout(line, interval);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            line = woken;
            if timeout.timed_out() {
                return Some(Vec::new());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refuse(reply: Option<Reply>, error: Error) {
    if let Some(reply) = reply {
        answer(reply, Err(error));
    }
}

fn answer(reply: Reply, told: Result<Option<Stamp>>) {
    // The caller may have cancelled.
    let _ = reply.send(told);
}

/// Waits for the answer to a commit.
pub(super) async fn answered(
    answer: oneshot::Receiver<Result<Option<Stamp>>>,
) -> Result<Option<Stamp>> {
    // A thread that panicked may have written the commit.
    answer.await.unwrap_or(Err(Error::MaybeCommitted))
}

pub(super) fn spawn(
    name: &'static str,
    run: impl FnOnce() + Send + 'static,
) -> Result<std::thread::JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(|error| Error::Open {
        message: format!("the thread {name} could not be started"),
        source: Some(Arc::new(error)),
    })
}
