//! Opening a store by its URL.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::faults::FaultState;
use crate::fdb::Fdb;
use crate::local::{LocalBackend, LocalTransaction};
use crate::memory::Memory;
use crate::metadata::Metadata;
use crate::stats::{Counters, Stats};
use crate::transaction::{Attempt, Kind};
use crate::{Call, Error, FaultControl, Faults, Priority, Result, Transaction, TransactionStats};

/// How long an opened store may take for its first answer.
const OPEN_DEADLINE: Duration = Duration::from_secs(10);

/// A handle on a store, cheap to clone.
#[derive(Debug, Clone)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    backend: Backend,
    faults: Option<Arc<FaultState>>,
    metadata: Metadata,
    stats: Stats,
    watches: Arc<AtomicUsize>,
    /// Jitter of the retry loop.
    rng: Mutex<SmallRng>,
}

#[derive(Debug, Clone)]
enum Backend {
    Memory(Arc<Memory>),
    Fdb(Arc<Fdb>),
}

impl Store {
    /// Opens the store that `url` names: `memory:`.
    pub async fn open(url: &str) -> Result<Self> {
        let backend = Backend::open(url)?;
        let opening = Self::assemble(backend.clone(), Metadata { incarnation: 0 });
        // Whoever opens a store waits to hear whether it is there.
        let call = Call::new("open").deadline(OPEN_DEADLINE);
        let metadata = opening.transact(call, Metadata::read_or_create).await?;
        Ok(Self::assemble(backend, metadata))
    }

    /// Opens an empty store, or what an import left that broke off, and marks it as being filled.
    pub(crate) async fn open_for_import(url: &str) -> Result<Self> {
        let backend = Backend::open(url)?;
        let store = Self::assemble(backend, Metadata { incarnation: 0 });
        store.transact("open", Metadata::begin_import).await?;
        Ok(store)
    }

    /// A second handle on the same rows, with faults of its own: a node of a simulated fleet.
    #[must_use]
    pub fn with_faults(&self, faults: Faults) -> (Self, FaultControl) {
        let rng = SmallRng::seed_from_u64(faults.seed ^ 0x6a17_7e12);
        let faults = FaultState::new(faults);
        let control = faults.control();
        let store = Self(Arc::new(Inner {
            backend: self.0.backend.clone(),
            faults: Some(faults),
            metadata: self.0.metadata,
            stats: Stats::default(),
            watches: Arc::default(),
            rng: Mutex::new(rng),
        }));
        (store, control)
    }

    fn assemble(backend: Backend, metadata: Metadata) -> Self {
        Self(Arc::new(Inner {
            backend,
            faults: None,
            metadata,
            stats: Stats::default(),
            watches: Arc::default(),
            rng: Mutex::new(SmallRng::from_rng(&mut rand::rng())),
        }))
    }

    /// The number to put in front of versionstamps in keys; an import raises it.
    pub fn incarnation(&self) -> u32 {
        self.0.metadata.incarnation
    }

    /// What each transaction has cost on this handle.
    pub fn stats(&self) -> BTreeMap<&'static str, TransactionStats> {
        self.0.stats.all()
    }

    pub(crate) fn stats_of(&self, name: &'static str) -> Arc<Counters> {
        self.0.stats.of(name)
    }

    pub(crate) fn begin(&self, attempt: Attempt, priority: Priority) -> Result<Transaction> {
        let kind = match &self.0.backend {
            Backend::Memory(memory) => Kind::Local(LocalTransaction::new(LocalBackend::Memory(
                Arc::clone(memory),
            ))),
            Backend::Fdb(fdb) => Kind::Fdb(fdb.begin(priority)?),
        };
        let faults = self.0.faults.clone();
        Ok(Transaction::new(
            attempt,
            kind,
            faults,
            Arc::clone(&self.0.watches),
        ))
    }

    /// A number between 0 and 1.
    pub(crate) fn jitter(&self) -> f64 {
        (self.0.rng.lock().unwrap_or_else(PoisonError::into_inner)).random()
    }
}

impl Backend {
    fn open(url: &str) -> Result<Self> {
        match url.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory(Arc::default())),
            Some(("fdb", location)) => Ok(Self::Fdb(Arc::new(Fdb::open(location)?))),
            _ => Err(Error::open(format!(
                "{url:?} names no store; use lmdb:DIRECTORY, fdb:CLUSTER_FILE or memory:"
            ))),
        }
    }
}
