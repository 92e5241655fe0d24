//! The state that the threads of a process share: reading, committing, syncing, and moving the log
//! into the tree.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use super::control::{Control, Fullness};
use super::core::Core;
use super::directory::{Directory, LockFile};
use super::failure;
use super::log::{Found, Log};
use super::record::{Op, RecordWriter};
use super::tree::{Mark, Tree};
use super::view::{LmdbSnapshot, View};
use crate::pending::{CommitRequest, Mutation, Stamp};
use crate::watch::Watches;
use crate::{Error, Result, chain};

/// What a row takes in the tree besides its key and value: a checksum and LMDB's own structures.
const ROW_OVERHEAD_BYTES: usize = 24;

/// Rows that are removed while the top layer is locked.
const SWEEP: usize = if cfg!(test) { 2 } else { 256 };

/// Sizes and intervals; only tests change them.
#[derive(Debug, Clone)]
pub(super) struct Tuning {
    /// Large enough for any transaction, so that all segments have the same size.
    pub(super) segment_bytes: u64,
    /// How much log triggers a checkpoint.
    pub(super) checkpoint_bytes: u64,
    /// The time between checkpoints.
    pub(super) checkpoint_interval: Duration,
    /// With relaxed durability, the time between syncs.
    pub(super) relaxed_interval: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            segment_bytes: 16 << 20,
            checkpoint_bytes: 16 << 20,
            checkpoint_interval: Duration::from_secs(1),
            relaxed_interval: Duration::from_millis(200),
        }
    }
}

#[derive(Debug)]
pub(super) struct Engine {
    pub(super) directory: Directory,
    pub(super) tuning: Tuning,
    pub(super) control: Control,
    pub(super) log: Log,
    pub(super) tree: Arc<Tree>,
    pub(super) commit_lock: LockFile,
    pub(super) checkpoint_lock: LockFile,
    /// Held shared while the store is open.
    pub(super) _open_lock: LockFile,
    pub(super) watches: Watches,
    pub(super) core: Mutex<Core>,
    /// The newest view, replaced only while `core` is locked.
    pub(super) view: RwLock<Arc<View>>,
    /// The first segment that may have unsynced records.
    pub(super) unsynced: AtomicU64,
    /// Why the store has stopped.
    pub(super) stopped: OnceLock<Error>,
}

impl Engine {
    pub(super) fn snapshot(&self) -> Result<LmdbSnapshot> {
        let published = self.control.version();
        let mut view = self.view();
        if view.version < published {
            self.catch_up(&mut self.core())?;
            view = self.view();
        }
        Ok(LmdbSnapshot::new(view))
    }

    pub(super) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies what other processes have committed.
    pub(super) fn catch_up(&self, core: &mut Core) -> Result<()> {
        let target = self.control.version();
        if core.version >= target {
            return Ok(());
        }
        while core.version < target {
            let found = (self.log.read(core.position)).map_err(|error| {
                failure::file_error("reading the log", self.directory.path(), error)
            })?;
            match found {
                Found::Record(record, next) if record.first_version() == core.version + 1 => {
                    for (version, ops) in (core.version + 1..).zip(&record.commits) {
                        core.replay(version, ops);
                        self.wake(ops);
                    }
                    core.position = next;
                }
                // This process was stopped until the log was recycled; the tree includes its records.
                _ if self.control.in_tree() > core.version => {
                    core.restart(self.tree.state()?);
                    self.watches.wake_where(|_| true);
                }
                _ => {
                    return Err(self.stop(Error::corrupt(format!(
                        "the redo log in {} cannot be read behind version {}, although version \
                         {target} is committed",
                        self.directory.path().display(),
                        core.version
                    ))));
                }
            }
        }
        self.install(core);
        Ok(())
    }

    /// Checks, appends and publishes a group of commits, in order.
    pub(super) fn commit(&self, group: Vec<CommitRequest>) -> Result<Vec<Result<Stamp>>> {
        self.check()?;
        let fail = |error| failure::file_error("writing the log", self.directory.path(), error);
        // The lock of all processes comes first: a thread that waits for it must not block readers.
        let locked = self.commit_lock.lock().map_err(fail)?;
        let mut core = self.core();
        self.catch_up(&mut core)?;
        let before = core.version;
        let mut version = before;
        let mut writer = RecordWriter::new();
        let mut written = Vec::new();
        let mut results = Vec::with_capacity(group.len());
        for request in group {
            let result =
                (self.check_room(&core, &request)).and_then(|()| core.admit(request, version + 1));
            results.push(match result {
                Ok((stamp, ops)) => {
                    version += 1;
                    writer.push(&ops);
                    written.extend(ops);
                    Ok(stamp)
                }
                Err(error) => Err(error),
            });
        }
        if version == before {
            return Ok(results);
        }
        let durable = self.control.durable();
        match self.log.append(core.position, writer, version, durable) {
            Ok(next) => core.position = next,
            Err(error) => {
                core.roll_back(before);
                return Err(fail(error));
            }
        }
        // The view comes before the version: a reader that sees the version finds it in the view and
        // does not read the log.
        core.version = version;
        self.install(&mut core);
        self.control.publish(version);
        drop(core);
        drop(locked);
        self.wake(&written);
        Ok(results)
    }

    /// Makes everything that is published durable.
    pub(super) fn sync(&self) -> Result<()> {
        self.check()?;
        let view = self.view();
        let (version, segment) = (view.version, view.segment);
        drop(view);
        if self.control.durable() >= version {
            return Ok(());
        }
        let first = self.unsynced.load(Ordering::Acquire);
        if let Err(error) = self.log.sync(first, segment) {
            return Err(self.stop(Error::Corrupt {
                message: format!(
                    "the redo log in {} could not be synced, so the last commits may be lost; stop \
                     every process of this store, check the disk, and start again",
                    self.directory.path().display()
                ),
                source: Some(Arc::new(error)),
            }));
        }
        // Only after the sync: other processes and start-up rely on it.
        self.unsynced.fetch_max(segment, Ordering::AcqRel);
        self.control.set_durable(version);
        Ok(())
    }

    /// Switches to the newest state of the tree.
    pub(super) fn follow_tree(&self) -> Result<()> {
        let mut core = self.core();
        self.catch_up(&mut core)?;
        while core.tree().version < self.control.in_tree() {
            let state = self.tree.state()?;
            // Another process may have moved more of the log into the tree than this one has read.
            self.catch_up(&mut core)?;
            if state.mark.version > core.version {
                continue;
            }
            core.rebase(state);
            self.install(&mut core);
        }
        Ok(())
    }

    /// Moves the layers into the tree. The caller holds the checkpoint lock.
    pub(super) fn checkpoint(&self) -> Result<()> {
        self.check()?;
        self.follow_tree()?;
        let (layers, since, mark) = {
            let mut core = self.core();
            let mark = Mark {
                version: core.version,
                position: core.position,
            };
            if mark.version == core.tree().version {
                return Ok(());
            }
            let layers = core.freeze();
            self.install(&mut core);
            (layers, core.tree().version, mark)
        };
        // The mark points into the log, so the log up to there has to survive a power cut, too.
        self.sync()?;
        if let Err(error) = self.tree.merge(&layers, since, mark) {
            return Err(self.cannot_merge(error));
        }
        self.control.set_fullness(if self.tree.has_room()? {
            Fullness::Room
        } else {
            Fullness::Map
        });
        self.control.set_in_tree(mark.version);
        self.follow_tree()
    }

    /// How many rows [`Self::sweep`] might remove.
    pub(super) fn dead(&self) -> usize {
        let core = self.core();
        core.stack.layers.last().map_or(0, |top| top.dead())
    }

    /// Removes the rows of deleted keys that are in memory only. The caller holds the checkpoint lock: a process that moved
    /// the log into the tree meanwhile might do so up to a version in which such a key is there. The next to do so reads
    /// the log to its end before.
    pub(super) fn sweep(&self) -> Result<()> {
        self.check()?;
        self.follow_tree()?;
        let mark = self.tree.mark()?;
        let (stack, until) = {
            let mut core = self.core();
            // A process that was killed may have left a newer tree without saying so.
            if mark.is_none_or(|mark| mark.version != core.tree().version) {
                return Ok(());
            }
            // A transaction that has found no row is told so once that is durable.
            let until = core.forget_until(self.control.durable());
            (Arc::clone(&core.stack), until)
        };
        let Some((top, below)) = stack.layers.split_last() else {
            return Ok(());
        };
        loop {
            let mut keys = top.take_dead(until, SWEEP);
            if keys.is_empty() {
                return Ok(());
            }
            keys.retain(|key| !below.iter().any(|layer| layer.has(key)));
            let gone = stack.tree.without(keys)?;
            top.sweep(&gone, until);
        }
    }

    /// Frees what no snapshot needs, and closes views that were replaced longer than `age_max` ago.
    pub(super) fn forget(&self, age_max: Duration) {
        let mut core = self.core();
        let overdue = core.take_overdue(age_max);
        let forgotten = core.forget();
        drop(core);
        for view in overdue {
            view.close();
        }
        drop(forgotten);
    }

    /// Closes all snapshots, so that the tree can be closed.
    pub(super) fn close(&self) {
        let mut core = self.core();
        for view in core.take_overdue(Duration::ZERO) {
            view.close();
        }
        core.stack.tree.close();
        self.view().close();
    }

    /// Why the store has stopped, if it has.
    pub(super) fn check(&self) -> Result<()> {
        if let Some(error) = self.stopped.get() {
            return Err(error.clone());
        }
        if self.control.failed() {
            return Err(Error::corrupt(format!(
                "another process has stopped the store in {} after an error, which its log has: stop \
                 every process of this store, check the disk, and start again",
                self.directory.path().display()
            )));
        }
        Ok(())
    }

    fn wake(&self, ops: &[Op]) {
        let mut keys = Vec::new();
        for op in ops {
            match op {
                Op::Put { key, .. } | Op::Clear { key } => keys.push(key.clone()),
                Op::ClearRange { range } => self.watches.wake_where(|key| range.contains(key)),
                Op::Touch { .. } => {}
            }
        }
        self.watches.wake(&keys);
    }

    fn stop(&self, error: Error) -> Error {
        self.control.set_failed();
        let error = self.stopped.get_or_init(|| error).clone();
        tracing::error!(error = %chain(&error), "the store has stopped, and refuses all writes: restart all its processes");
        error
    }

    /// While the tree cannot grow, only commits are accepted after which its rows are no larger: what
    /// they write besides (a counter, say) fits into what they delete, and the pages that this takes
    /// meanwhile are a reserve.
    fn check_room(&self, core: &Core, request: &CommitRequest) -> Result<()> {
        match self.control.fullness() {
            Fullness::Room => Ok(()),
            _ if growth(core, &request.mutations)? <= 0 => Ok(()),
            Fullness::Map => Err(failure::map_full(
                self.directory.path(),
                self.control.map_bytes(),
            )),
            Fullness::Disk => Err(failure::disk_full(self.directory.path(), None)),
        }
    }

    fn cannot_merge(&self, error: Error) -> Error {
        match &error {
            Error::Full { source, .. } => {
                let disk = source.is_some();
                let fullness = if disk { Fullness::Disk } else { Fullness::Map };
                self.control.set_fullness(fullness);
                error
            }
            // The log still has everything; the next checkpoint tries again.
            Error::Unavailable { .. } => error,
            _ => self.stop(error),
        }
    }

    /// Makes the state of the core visible to new snapshots.
    fn install(&self, core: &mut Core) {
        let (segment, stack) = (core.position.segment, Arc::clone(&core.stack));
        let view = Arc::new(View::new(core.version, segment, stack));
        let mut newest = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *newest, view);
        drop(newest);
        core.retire(&old);
    }
}

/// By how many bytes rows grow, at most: what is deleted with a range is not counted.
fn growth(core: &Core, mutations: &[Mutation]) -> Result<i64> {
    let mut growth = 0_i64;
    for mutation in mutations {
        let (key, new) = match mutation {
            Mutation::ClearRange { .. } => continue,
            Mutation::Clear { key } => (key, None),
            Mutation::Add { key, .. } => (key, Some(size_of::<i64>())),
            Mutation::Set { key, value }
            | Mutation::StampedKey { key, value, .. }
            | Mutation::StampedValue { key, value, .. } => (key, Some(value.len())),
        };
        let old = core.stack.get(key, core.version)?.value;
        let bytes =
            |value: Option<usize>| value.map_or(0, |value| key.len() + value + ROW_OVERHEAD_BYTES);
        let (old, new) = (bytes(old.map(|value| value.len())), bytes(new));
        growth += i64::try_from(new).unwrap_or(i64::MAX) - i64::try_from(old).unwrap_or(0);
    }
    Ok(growth)
}
