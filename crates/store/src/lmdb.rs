//! The embedded store: one directory, shared by any number of processes on one host.
//!
//! An LMDB tree, always synced, holds the store at some version. A redo log holds what was committed
//! since, which every process also keeps in memory as layers above the tree:
//!
//! ```text
//!            control page ─ version (published) · durable · in tree
//!                                 │                          │
//!   log   ───────[record][record][record]┄┄┄          tree   │
//!                └──── layers ───┘                    └──────┘
//! ```
//! **Commit.** One thread per process takes all waiting commits. Under the commit lock it applies
//! what other processes have written, checks the conflict ranges of each commit against everything
//! written after its snapshot, appends one record, and publishes the new version. A second thread
//! syncs the log and then replies to the callers; many share one sync. See [`commit`].
//!
//! **Read.** A snapshot is the published version: the layers up to that version, over a state of the
//! tree that is not newer. Rows may be read before they are durable, but a read-only transaction
//! returns only after what it saw is durable. See [`view`].
//!
//! **Checkpoint.** One process at a time moves the layers into the tree, in one synced transaction
//! that also sets the position in the log. Then the layers are dropped and the segments recycled. See
//! [`upkeep`].
//!
//! **Recovery.** The tree, then the log from the tree's position as far as checksums match. A log that
//! ends before an acknowledged commit is corrupt, and opening fails. See [`log`] and [`open`].
//!
//! A killed process leaves locks, which the kernel releases, and at worst an unpublished record, which
//! the next commit overwrites. A process that was stopped until the log was recycled starts over from
//! the tree, and its transactions are too old.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use self::commit::{QUEUE_COMMITS, Syncer, Waiting, answered, run_commits, spawn};
use self::directory::Directory;
use self::engine::{Engine, Tuning};
pub use self::tree::Space;
use self::upkeep::Upkeep;
pub(crate) use self::view::LmdbSnapshot;
use crate::call::{Answer, Until};
use crate::pending::{CommitRequest, Stamp};
use crate::watch::Slot;
use crate::{Durability, Error, OpenOptions, Result};

mod checksum;
mod commit;
mod control;
mod core;
mod damage_signal;
mod directory;
mod engine;
mod failure;
mod layer;
mod log;
mod meta;
mod open;
mod range_versions;
mod readers;
mod record;
mod stack;
mod tree;
mod upkeep;
mod view;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod trace;

/// A process must not open an LMDB file twice, so all handles on a directory share one store. The
/// inner lock is held while the store is opened or closed.
static STORES: Mutex<BTreeMap<PathBuf, Arc<Shared>>> = Mutex::new(BTreeMap::new());

type Shared = Mutex<Weak<Lmdb>>;

/// Whether a directory has a store.
pub(crate) fn is_there(path: &Path) -> bool {
    directory::has_format(path)
}

/// An open store. Dropping the last handle makes a checkpoint and ends the threads.
#[derive(Debug)]
pub(crate) struct Lmdb {
    running: Option<Running>,
    options: OpenOptions,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Running {
    engine: Arc<Engine>,
    queue: Option<mpsc::Sender<Waiting>>,
    syncer: Arc<Syncer>,
    upkeep: Arc<Upkeep>,
    committing: Vec<JoinHandle<()>>,
    syncing: Vec<JoinHandle<()>>,
    keeping: Vec<JoinHandle<()>>,
}

impl Lmdb {
    /// Opens the store in a directory, which is created if it does not exist. Blocks.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Arc<Self>> {
        Self::open_tuned(path, options, Tuning::default())
    }

    fn open_tuned(path: &Path, options: &OpenOptions, tuning: Tuning) -> Result<Arc<Self>> {
        if path.as_os_str().is_empty() {
            return Err(Error::open("lmdb: needs a directory, as in lmdb:./data"));
        }
        let directory = Directory::prepare(path)?;
        let shared = {
            let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
            let path = directory.path().to_owned();
            Arc::clone(stores.entry(path).or_default())
        };
        let mut opening = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = opening.upgrade() {
            drop(opening);
            return open.shared_with(options, directory.path());
        }
        let running = Running::start(open::open(directory, options, tuning)?, options)?;
        let lmdb = Arc::new(Self {
            running: Some(running),
            options: options.clone(),
            shared: Arc::clone(&shared),
        });
        *opening = Arc::downgrade(&lmdb);
        drop(opening);
        Ok(lmdb)
    }

    fn shared_with(self: Arc<Self>, options: &OpenOptions, path: &Path) -> Result<Arc<Self>> {
        let formats = self.options.formats;
        if self.options
            == (OpenOptions {
                formats,
                ..options.clone()
            })
        {
            return Ok(self);
        }
        Err(Error::open(format!(
            "{} is open in this process with other options",
            path.display()
        )))
    }

    pub(crate) fn snapshot(&self) -> Result<LmdbSnapshot> {
        self.running()?.engine.snapshot()
    }

    /// The newest value of a key, for watches.
    pub(crate) fn latest(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.snapshot()?.get(key)
    }

    /// Commits. With sync durability and [`Until::Durable`], returns when the commit survives a power cut.
    pub(crate) async fn commit(
        &self,
        request: CommitRequest,
        snapshot: Option<LmdbSnapshot>,
        until: &Until,
    ) -> Result<Option<Stamp>> {
        let running = self.running()?;
        if request.is_read_only() {
            let unsettled = match until {
                Until::Visible => None,
                Until::Durable | Until::Ahead(_) => running.unsettled(snapshot),
            };
            return match (unsettled, until) {
                (None, _) => Ok(None),
                (Some(answer), Until::Ahead(ahead)) => {
                    ahead.leave(answer);
                    Ok(None)
                }
                (Some(answer), _) => answer.await.unwrap_or(Err(CLOSED)),
            };
        }
        let (reply, answer) = oneshot::channel();
        let (visible, durable) = match until {
            Until::Visible => (Some(reply), None),
            Until::Durable => (None, Some(reply)),
            Until::Ahead(ahead) => {
                let (durable, synced) = oneshot::channel();
                ahead.leave(synced);
                (Some(reply), Some(durable))
            }
        };
        let waiting = Waiting {
            request,
            snapshot,
            visible,
            durable,
        };
        let Some(queue) = &running.queue else {
            return Err(CLOSED);
        };
        queue.send(waiting).await.map_err(|_| CLOSED)?;
        answered(answer).await
    }

    /// Moves the log into the tree. Blocks.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        upkeep::checkpoint(&self.running()?.engine)
    }

    /// Verifies the whole tree. Blocks.
    pub(crate) fn verify(&self) -> Result<()> {
        self.running()?.engine.tree.verify()
    }

    /// How much of the map is in use. Blocks.
    pub(crate) fn space(&self) -> Result<Space> {
        self.running()?.engine.tree.space()
    }

    pub(crate) fn arm(&self, slot: &Arc<Slot>) -> Result<()> {
        let running = self.running()?;
        running.engine.watches.arm(slot);
        running.upkeep.watch();
        Ok(())
    }

    fn running(&self) -> Result<&Running> {
        self.running.as_ref().ok_or(CLOSED)
    }
}

const CLOSED: Error = Error::Misuse("the store is closed");

impl Drop for Lmdb {
    fn drop(&mut self) {
        // The lock makes the next open of this directory wait until it is closed.
        let closing = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.running.take());
        drop(closing);
    }
}

impl Running {
    fn start(engine: Arc<Engine>, options: &OpenOptions) -> Result<Self> {
        let relaxed = match options.durability {
            Durability::Sync => None,
            Durability::Relaxed => Some(engine.tuning.relaxed_interval),
        };
        let (queue, commits) = mpsc::channel(QUEUE_COMMITS);
        let mut running = Self {
            engine,
            queue: Some(queue),
            syncer: Arc::new(Syncer::new(relaxed)),
            upkeep: Arc::default(),
            committing: Vec::new(),
            syncing: Vec::new(),
            keeping: Vec::new(),
        };
        let parts = || {
            let Self {
                engine,
                syncer,
                upkeep,
                ..
            } = &running;
            (Arc::clone(engine), Arc::clone(syncer), Arc::clone(upkeep))
        };
        let (engine, syncer, upkeep) = parts();
        let committing = spawn("store-commit", move || {
            run_commits(&engine, commits, &syncer, &upkeep);
        });
        let (engine, syncer, _) = parts();
        let syncing = spawn("store-sync", move || syncer.run(&engine));
        let (engine, _, upkeep) = parts();
        let following = spawn("store-follow", move || upkeep.run_follow(&engine));
        let (engine, _, upkeep) = parts();
        let merging = spawn("store-tree", move || upkeep.run_checkpoints(&engine));
        // If a thread cannot be started, dropping `running` ends the others.
        let mut failed = None;
        for (list, thread) in [
            (&mut running.committing, committing),
            (&mut running.syncing, syncing),
            (&mut running.keeping, following),
        ] {
            match thread {
                Ok(thread) => list.push(thread),
                Err(error) => failed = Some(error),
            }
        }
        match merging {
            Ok(thread) => running.keeping.push(thread),
            Err(error) => failed = Some(error),
        }
        failed.map_or(Ok(running), Err)
    }

    /// Tells when what a transaction saw is durable; `None` if it is.
    fn unsettled(&self, snapshot: Option<LmdbSnapshot>) -> Option<Answer> {
        let seen = snapshot.map_or(0, |snapshot| snapshot.seen());
        if self.syncer.is_relaxed() || self.engine.control.durable() >= seen {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        self.syncer.add(vec![(Some(reply), None)]);
        Some(answer)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Commits wait for syncs, and the last checkpoint includes them: end the threads in this order.
        self.queue = None;
        join(&mut self.committing);
        self.syncer.close();
        join(&mut self.syncing);
        self.upkeep.close();
        join(&mut self.keeping);
        self.engine.watches.wake_where(|_| true);
        self.engine.close();
    }
}

fn join(threads: &mut Vec<JoinHandle<()>>) {
    for thread in threads.drain(..) {
        if thread.join().is_err() {
            tracing::error!("a thread of the store has panicked");
        }
    }
}
