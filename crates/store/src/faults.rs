//! Seeded faults around a store, for simulation: what a cluster does on a bad day, under a paused
//! clock and from one seed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::watch::WatchFault;
use crate::{Error, Result};

/// How often what goes wrong. Frequencies are between 0 and 1; the default is a faultless store.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Everything random follows from it.
    pub seed: u64,
    /// A commit is refused although nobody interfered.
    pub conflict: f64,
    /// A commit is applied and its answer lost.
    pub unknown_applied: f64,
    /// A commit is not applied and its answer lost.
    pub unknown_lost: f64,
    /// A read says that the snapshot is gone.
    pub too_old: f64,
    /// A read or commit finds the store unreachable.
    pub unavailable: f64,
    /// A read or commit takes up to `delay_max`.
    pub delay: f64,
    /// The longest delay.
    pub delay_max: Duration,
    /// A watch never fires.
    pub watch_lost: f64,
    /// A watch fires for nothing within ten seconds.
    pub watch_spurious: f64,
    /// One deliberate mistake, to show that a suite finds it.
    pub weaken: Option<Weaken>,
}

/// Turns one conflicting read of one transaction into a snapshot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weaken {
    /// The transaction's name.
    pub transaction: &'static str,
    /// Which of its reads, from 0; `None` takes them all.
    pub nth_read: Option<u32>,
}

/// Switches faults while a simulation runs.
#[derive(Debug, Clone)]
pub struct FaultControl(Arc<FaultState>);

impl FaultControl {
    /// Cuts the store handle off, or lets it come back.
    pub fn set_outage(&self, outage: bool) {
        self.0.outage.store(outage, Ordering::Relaxed);
    }

    /// Fills the store up, as seen by this handle, or makes room: what writes is refused.
    pub fn set_full(&self, full: bool) {
        self.0.full.store(full, Ordering::Relaxed);
    }

    /// Stops and starts random faults; a simulation ends with a quiet time in which all must heal.
    pub fn set_quiet(&self, quiet: bool) {
        self.0.quiet.store(quiet, Ordering::Relaxed);
    }

    /// Decides what becomes of the next commit that writes, once, and returns what was decided for
    /// it before and has not come about.
    pub fn set_next_commit(&self, fate: CommitFate) -> CommitFate {
        std::mem::replace(&mut self.0.next_commit(), fate)
    }
}

#[derive(Debug)]
pub(crate) struct FaultState {
    faults: Faults,
    rng: Mutex<SmallRng>,
    outage: AtomicBool,
    full: AtomicBool,
    quiet: AtomicBool,
    next_commit: Mutex<CommitFate>,
}

/// What becomes of a commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CommitFate {
    /// What the store makes of it.
    #[default]
    Normal,
    /// It is refused although nobody interfered.
    Conflict,
    /// It is applied and its answer lost.
    UnknownApplied,
    /// It is not applied and its answer lost.
    UnknownLost,
}

impl FaultState {
    pub(crate) fn new(faults: Faults) -> Arc<Self> {
        let rng = Mutex::new(SmallRng::seed_from_u64(faults.seed));
        Arc::new(Self {
            faults,
            rng,
            outage: AtomicBool::new(false),
            full: AtomicBool::new(false),
            quiet: AtomicBool::new(false),
            next_commit: Mutex::default(),
        })
    }

    pub(crate) fn control(self: &Arc<Self>) -> FaultControl {
        FaultControl(Arc::clone(self))
    }

    pub(crate) async fn before_read(&self) -> Result<()> {
        self.delay().await;
        self.reachable()?;
        if self.happens(self.faults.too_old) {
            return Err(Error::TooOld);
        }
        Ok(())
    }

    /// A commit without writes asks the store nothing: its fate is always known.
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

    pub(crate) fn weakens(&self, transaction: &str, nth_read: u32) -> bool {
        self.faults.weaken.is_some_and(|weaken| {
            weaken.transaction == transaction && weaken.nth_read.is_none_or(|nth| nth == nth_read)
        })
    }

    async fn delay(&self) {
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
