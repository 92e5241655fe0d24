//! Seeded fault injection around a store, for simulations under a paused clock.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::call::Attempt;
use crate::watch::WatchFault;
use crate::{Error, Result};

/// How often a stalled handle looks whether it goes on.
const STALLED_PAUSE: Duration = Duration::from_millis(50);

/// The frequencies of faults, from 0 to 1. There are none by default.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// The seed of all random decisions.
    pub seed: u64,
    /// A commit fails with a conflict that did not happen.
    pub conflict: f64,
    /// A commit is applied, but its outcome is reported as unknown.
    pub unknown_applied: f64,
    /// A commit is not applied, and its outcome is reported as unknown.
    pub unknown_lost: f64,
    /// A read fails because the snapshot is too old.
    pub too_old: f64,
    /// A read or commit fails because the store is unavailable.
    pub unavailable: f64,
    /// A read or commit takes up to `delay_max`.
    pub delay: f64,
    /// The longest delay.
    pub delay_max: Duration,
    /// How long every read takes, besides `delay`.
    pub read_latency: Duration,
    /// A watch never fires.
    pub watch_lost: f64,
    /// A watch fires without a change within ten seconds.
    pub watch_spurious: f64,
    /// A planted bug, to prove that a suite finds it.
    pub weaken: Option<Weaken>,
    /// Records the reads of every transaction that writes.
    pub log: Option<ReadLog>,
}

/// A planted bug: turns conflicting reads of one transaction into snapshot reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weaken {
    /// The transaction's name.
    pub transaction: &'static str,
    /// Only reads of keys and ranges that begin with this.
    pub prefix: &'static [u8],
    /// Only in attempts after one with an unknown outcome.
    pub unsure: bool,
    /// Which of those reads.
    pub reads: Weakened,
}

/// Which of several reads stop conflicting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weakened {
    /// Every read.
    All,
    /// The first read.
    First,
    /// All reads but the first.
    Later,
}

impl Weaken {
    /// Weakens all reads of a transaction.
    pub const fn all(transaction: &'static str) -> Self {
        Self {
            transaction,
            prefix: &[],
            unsure: false,
            reads: Weakened::All,
        }
    }

    fn takes(self, attempt: &Attempt, key: &[u8], before: &AtomicU32) -> bool {
        if attempt.name != self.transaction
            || !key.starts_with(self.prefix)
            || (self.unsure && !attempt.maybe_committed)
        {
            return false;
        }
        let first = before.fetch_add(1, Ordering::Relaxed) == 0;
        match self.reads {
            Weakened::All => true,
            Weakened::First => first,
            Weakened::Later => !first,
        }
    }
}

/// The conflicting reads of transactions.
#[derive(Debug, Clone, Default)]
pub struct ReadLog(Arc<Mutex<Vec<Reads>>>);

/// The reads of one attempt that wrote.
#[derive(Debug, Clone)]
pub struct Reads {
    /// The transaction's name.
    pub transaction: &'static str,
    /// An earlier attempt may have been committed.
    pub maybe_committed: bool,
    /// The keys, and the first keys of the ranges.
    pub keys: Vec<Bytes>,
}

impl ReadLog {
    /// The reads since the last call.
    pub fn take(&self) -> Vec<Reads> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Switches faults while a simulation runs.
#[derive(Debug, Clone)]
pub struct FaultControl(Arc<FaultState>);

impl FaultControl {
    /// Makes the store unavailable to this handle, or available again.
    pub fn set_outage(&self, outage: bool) {
        self.0.outage.store(outage, Ordering::Relaxed);
    }

    /// Lets reads and commits of this handle wait until it is called again, as in a process that is stopped.
    pub fn set_stalled(&self, stalled: bool) {
        self.0.stalled.store(stalled, Ordering::Relaxed);
    }

    /// Makes the store full for this handle: commits that write fail.
    pub fn set_full(&self, full: bool) {
        self.0.full.store(full, Ordering::Relaxed);
    }

    /// Stops or resumes random faults, as at the end of a simulation, when everything must recover.
    pub fn set_quiet(&self, quiet: bool) {
        self.0.quiet.store(quiet, Ordering::Relaxed);
    }

    /// Sets the outcome of the next commit that writes, and returns an earlier setting that was not
    /// used.
    pub fn set_next_commit(&self, fate: CommitFate) -> CommitFate {
        std::mem::replace(&mut self.0.next_commit(), fate)
    }
}

#[derive(Debug)]
pub(crate) struct FaultState {
    faults: Faults,
    rng: Mutex<SmallRng>,
    outage: AtomicBool,
    stalled: AtomicBool,
    full: AtomicBool,
    quiet: AtomicBool,
    next_commit: Mutex<CommitFate>,
}

/// The outcome of a commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CommitFate {
    /// The store's own.
    #[default]
    Normal,
    /// A conflict, although there was none.
    Conflict,
    /// Applied, but reported as unknown.
    UnknownApplied,
    /// Not applied, and reported as unknown.
    UnknownLost,
    /// Reported as unknown, and applied after [`LATE`](Self::LATE) if nothing conflicts until then.
    UnknownLate,
}

impl CommitFate {
    /// How late a late commit is.
    pub const LATE: Duration = Duration::from_millis(100);
}

impl FaultState {
    pub(crate) fn new(faults: Faults) -> Arc<Self> {
        let rng = Mutex::new(SmallRng::seed_from_u64(faults.seed));
        Arc::new(Self {
            faults,
            rng,
            outage: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            full: AtomicBool::new(false),
            quiet: AtomicBool::new(false),
            next_commit: Mutex::default(),
        })
    }

    pub(crate) fn control(self: &Arc<Self>) -> FaultControl {
        FaultControl(Arc::clone(self))
    }

    pub(crate) async fn before_read(&self) -> Result<()> {
        if !self.faults.read_latency.is_zero() {
            tokio::time::sleep(self.faults.read_latency).await;
        }
        self.delay().await;
        self.reachable()?;
        if self.happens(self.faults.too_old) {
            return Err(Error::TooOld);
        }
        Ok(())
    }

    /// A commit without writes does not reach the store, so its outcome is always known.
    pub(crate) async fn before_commit(&self, read_only: bool) -> Result<CommitFate> {
        if read_only {
            return Ok(CommitFate::Normal);
        }
        self.delay().await;
        self.reachable()?;
        if self.full.load(Ordering::Relaxed) {
            return Err(Error::Full {
                message: "simulated".into(),
                source: None,
            });
        }
        let decided = std::mem::take(&mut *self.next_commit());
        Ok(if decided != CommitFate::Normal {
            decided
        } else if self.happens(self.faults.conflict) {
            CommitFate::Conflict
        } else if self.happens(self.faults.unknown_lost) {
            CommitFate::UnknownLost
        } else if self.happens(self.faults.unknown_applied) {
            CommitFate::UnknownApplied
        } else {
            CommitFate::Normal
        })
    }

    fn next_commit(&self) -> MutexGuard<'_, CommitFate> {
        self.next_commit
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn watch(&self) -> WatchFault {
        if self.happens(self.faults.watch_lost) {
            WatchFault::Lost
        } else if self.happens(self.faults.watch_spurious) {
            WatchFault::Spurious(self.up_to(Duration::from_secs(10)))
        } else {
            WatchFault::None
        }
    }

    /// Whether a [`Weaken`] turns a read into a snapshot read. `before` counts the reads it matches.
    pub(crate) fn weakens(&self, attempt: &Attempt, key: &[u8], before: &AtomicU32) -> bool {
        (self.faults.weaken).is_some_and(|weaken| weaken.takes(attempt, key, before))
    }

    pub(crate) fn logs_reads(&self) -> bool {
        self.faults.log.is_some()
    }

    pub(crate) fn log_reads(&self, attempt: &Attempt, keys: Vec<Bytes>) {
        if let Some(ReadLog(log)) = &self.faults.log {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            log.push(Reads {
                transaction: attempt.name,
                maybe_committed: attempt.maybe_committed,
                keys,
            });
        }
    }

    async fn delay(&self) {
        while self.stalled.load(Ordering::Relaxed) {
            tokio::time::sleep(STALLED_PAUSE).await;
        }
        if self.happens(self.faults.delay) {
            tokio::time::sleep(self.up_to(self.faults.delay_max)).await;
        } else {
            tokio::task::yield_now().await;
        }
    }

    fn reachable(&self) -> Result<()> {
        if self.outage.load(Ordering::Relaxed) || self.happens(self.faults.unavailable) {
            return Err(Error::unavailable("simulated outage"));
        }
        Ok(())
    }

    fn happens(&self, frequency: f64) -> bool {
        frequency > 0.0
            && !self.quiet.load(Ordering::Relaxed)
            && self.with_rng(|rng| rng.random_bool(frequency))
    }

    fn up_to(&self, longest: Duration) -> Duration {
        longest.mul_f64(self.with_rng(RngExt::random::<f64>))
    }

    fn with_rng<T>(&self, draw: impl FnOnce(&mut SmallRng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
