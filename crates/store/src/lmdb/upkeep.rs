//! Background work: following the commits of other processes, freeing what old snapshots held, moving
//! the log into the tree, removing rows of deleted keys that need not go there, and recycling log segments.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::engine::Engine;
use super::failure;
use crate::limits::TRANSACTION_AGE_MAX;
use crate::{Error, Result, chain};

/// How often to check for commits of other processes: while there are watches, and otherwise.
const WATCH_INTERVAL: Duration = Duration::from_millis(5);
const IDLE_INTERVAL: Duration = Duration::from_millis(100);
const STALE_READERS_INTERVAL: Duration = Duration::from_mins(1);
/// How often to remove rows of deleted keys, and from how many on.
const SWEEP_INTERVAL: Duration = Duration::from_millis(10);
const DEAD_MIN: usize = 64;
/// The pause after a checkpoint that failed.
const FAILED_PAUSE: Duration = Duration::from_secs(1);
/// How many times the size of a checkpoint may be in the log before commits are delayed, and before
/// they are rejected.
const BACKLOG_WAIT: u64 = 8;
const BACKLOG_MAX: u64 = 32;

/// Wakes and ends the background threads.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    state: Mutex<State>,
    /// A watch was armed, or the store is closed.
    watch: Condvar,
    /// A checkpoint is due, or the store is closed.
    checkpoint: Condvar,
    /// A checkpoint has succeeded or failed.
    tried: Condvar,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    requested: bool,
}

impl Upkeep {
    /// Ends the threads, after a last checkpoint.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.watch.notify_all();
        self.checkpoint.notify_all();
        self.tried.notify_all();
    }

    /// Checks for commits more often from now on.
    pub(super) fn watch(&self) {
        self.watch.notify_one();
    }

    /// Wakes the checkpoint thread, and delays or rejects commits while it lags far behind.
    pub(super) fn wait_for_room(&self, engine: &Engine) -> Result<()> {
        let checkpoint = engine.tuning.checkpoint_bytes;
        let backlog = engine.core().backlog_bytes();
        if backlog < checkpoint {
            return Ok(());
        }
        let mut state = self.lock();
        state.requested = true;
        self.checkpoint.notify_one();
        if backlog >= BACKLOG_WAIT * checkpoint && !state.closed {
            drop((self.tried).wait_timeout(state, IDLE_INTERVAL));
        }
        if backlog >= BACKLOG_MAX * checkpoint {
            return Err(Error::unavailable(format!(
                "{backlog} bytes of log in {} are not in the tree yet; check for a stopped process of \
                 this store",
                engine.directory.path().display()
            )));
        }
        Ok(())
    }

    /// Runs the thread that follows other processes.
    pub(super) fn run_follow(&self, engine: &Engine) {
        let (mut forgotten, mut cleared) = (Instant::now(), Instant::now());
        let mut watching = false;
        loop {
            let pause = if watching {
                WATCH_INTERVAL
            } else {
                IDLE_INTERVAL
            };
            let state = self.lock();
            if state.closed {
                return;
            }
            drop(self.watch.wait_timeout(state, pause));
            watching = engine.watches.any();
            let behind = engine.view().version < engine.control.version();
            if behind && let Err(error) = engine.catch_up(&mut engine.core()) {
                tracing::warn!(error = %chain(&error), "following other processes failed");
            }
            if forgotten.elapsed() >= IDLE_INTERVAL {
                forgotten = Instant::now();
                if let Err(error) = engine.follow_tree() {
                    tracing::warn!(error = %chain(&error), "following the tree failed");
                }
                engine.forget(TRANSACTION_AGE_MAX);
            }
            if cleared.elapsed() >= STALE_READERS_INTERVAL {
                cleared = Instant::now();
                match engine.tree.clear_stale_readers() {
                    Ok(0) => {}
                    Ok(readers) => {
                        tracing::info!(readers, "freed the reader slots of dead processes");
                    }
                    Err(error) => {
                        tracing::warn!(error = %chain(&error), "freeing the reader slots of dead processes failed");
                    }
                }
            }
        }
    }

    /// Runs the thread that moves the log into the tree.
    pub(super) fn run_checkpoints(&self, engine: &Engine) {
        let mut last = Instant::now();
        loop {
            let mut state = self.lock();
            if !state.closed && !state.requested {
                let pause = if engine.dead() >= DEAD_MIN {
                    SWEEP_INTERVAL
                } else {
                    IDLE_INTERVAL
                };
                let waited = self.checkpoint.wait_timeout(state, pause);
                (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            }
            state.requested = false;
            let closed = state.closed;
            drop(state);
            let backlog = engine.core().backlog_bytes();
            if backlog == 0 {
                last = Instant::now();
            }
            let due = backlog >= engine.tuning.checkpoint_bytes
                || last.elapsed() >= engine.tuning.checkpoint_interval;
            let result = maintain(engine, backlog > 0 && (due || closed));
            self.tried.notify_all();
            match result {
                Ok(true) => last = Instant::now(),
                Ok(false) => {}
                Err(error) if closed => {
                    tracing::warn!(error = %chain(&error), "the last checkpoint failed; the log still has its commits");
                }
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "moving the log into the tree failed");
                    self.pause(FAILED_PAUSE);
                }
            }
            if closed {
                return;
            }
        }
    }

    fn pause(&self, pause: Duration) {
        let state = self.lock();
        if !state.closed {
            let waited = (self.checkpoint).wait_timeout_while(state, pause, |state| !state.closed);
            drop(waited);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a checkpoint, prepares segments, and removes rows of deleted keys, unless another process is doing so. True if a
/// checkpoint was made.
fn maintain(engine: &Engine, checkpoint: bool) -> Result<bool> {
    let fail = |error| no_room(engine, error);
    let wants_next = (engine.log.wants_next(engine.core().position)).map_err(fail)?;
    let sweeps = !checkpoint && engine.dead() >= DEAD_MIN;
    if !checkpoint && !wants_next && !sweeps {
        return Ok(false);
    }
    let Some(locked) = engine.checkpoint_lock.try_lock().map_err(fail)? else {
        return Ok(false);
    };
    if checkpoint {
        engine.checkpoint()?;
    }
    if sweeps {
        engine.sweep()?;
    }
    make_room(engine, wants_next)?;
    drop(locked);
    Ok(checkpoint)
}

fn no_room(engine: &Engine, error: io::Error) -> Error {
    failure::file_error("making room in the log", engine.directory.path(), error)
}

/// Makes a checkpoint now, after any checkpoint of another process.
pub(super) fn checkpoint(engine: &Engine) -> Result<()> {
    let fail = |error| no_room(engine, error);
    let locked = engine.checkpoint_lock.lock().map_err(fail)?;
    engine.checkpoint()?;
    engine.forget(TRANSACTION_AGE_MAX);
    drop(locked);
    Ok(())
}

/// Recycles segments that are in the tree, and prepares the next segment before it is needed.
pub(super) fn make_room(engine: &Engine, wants_next: bool) -> Result<()> {
    let fail = |error| no_room(engine, error);
    let in_tree = engine.core().tree().position.segment;
    let numbers = engine.log.numbers().map_err(fail)?;
    // Keep one more for processes that lag behind a little.
    for old in (numbers.into_iter()).filter(|number| number + 1 < in_tree) {
        let locked = engine.commit_lock.lock().map_err(fail)?;
        let mut core = engine.core();
        engine.catch_up(&mut core)?;
        let next = core.position.segment + 1;
        drop(core);
        engine.log.recycle(old, next).map_err(fail)?;
        drop(locked);
    }
    if !wants_next {
        return Ok(());
    }
    if !(engine.log.wants_next(engine.core().position)).map_err(fail)? {
        return Ok(());
    }
    engine.log.make_spare().map_err(fail)?;
    let locked = engine.commit_lock.lock().map_err(fail)?;
    let mut core = engine.core();
    engine.catch_up(&mut core)?;
    let next = core.position.segment + 1;
    drop(core);
    engine.log.place_spare(next).map_err(fail)?;
    drop(locked);
    Ok(())
}
