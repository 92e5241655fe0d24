//! Opening a store by its URL.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::time::timeout;

use crate::faults::FaultState;
use crate::fdb::Fdb;
use crate::lmdb::Lmdb;
use crate::local::{LocalBackend, LocalTransaction};
use crate::memory::Memory;
use crate::metadata::{self, Metadata};
use crate::stats::{Counters, Stats};
use crate::transaction::{Attempt, Kind};
use crate::{Call, Error, FaultControl, Faults, Priority, Result, Transaction, TransactionStats};

/// How long an opened store may take for its first answer.
const OPEN_DEADLINE: Duration = Duration::from_secs(10);

/// A handle on a store, cheap to clone.
#[derive(Debug, Clone)]
pub struct Store(Arc<Inner>);

/// How a store is opened. All of it is about the embedded store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOptions {
    /// What a commit survives. Sync by default.
    pub durability: Durability,
    /// How large the embedded store may become: address space, not disk or memory. 64 GiB by
    /// default. Processes that share a store give the same.
    pub map_size_bytes: u64,
}

/// What an acknowledged commit of the embedded store survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Everything, a power cut included.
    Sync,
    /// The end of every process. A power cut takes away what was committed in the last fraction of a
    /// second: whole transactions, the newest ones.
    Relaxed,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            durability: Durability::Sync,
            map_size_bytes: 64 << 30,
        }
    }
}

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
    Lmdb(Arc<Lmdb>),
    Fdb(Arc<Fdb>),
}

impl Store {
    /// Opens the store that `url` names, with the defaults: `lmdb:DIRECTORY`, `fdb:CLUSTER_FILE` or
    /// `memory:`.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, &OpenOptions::default()).await
    }

    /// Opens the store that `url` names.
    pub async fn open_with(url: &str, options: &OpenOptions) -> Result<Self> {
        let backend = Backend::open(url, options).await?;
        let opening = Self::assemble(backend.clone(), Metadata { incarnation: 0 });
        // Whoever opens a store waits to hear whether it is there.
        let call = Call::new("open").deadline(OPEN_DEADLINE);
        let metadata = opening.transact(call, Metadata::read_or_create).await?;
        Ok(Self::assemble(backend, metadata))
    }

    /// Opens an empty store, or what an import left that broke off, and marks it as being filled.
    pub(crate) async fn open_for_import(url: &str) -> Result<Self> {
        let backend = Backend::open(url, &OpenOptions::default()).await?;
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

    /// Does now what the store would do in the background within seconds, so that what is measured
    /// next does not pay for what was written before.
    pub async fn settle(&self) -> Result<()> {
        let Backend::Lmdb(lmdb) = &self.0.backend else {
            return Ok(());
        };
        let lmdb = Arc::clone(lmdb);
        let settling = tokio::task::spawn_blocking(move || lmdb.checkpoint());
        (settling.await).unwrap_or_else(|error| Err(Error::unavailable(error.to_string())))
    }

    /// Checks what the backend keeps of rows beside them. Nothing to do where the backend does so itself.
    pub(crate) async fn verify(&self) -> Result<()> {
        let Backend::Lmdb(lmdb) = &self.0.backend else {
            return Ok(());
        };
        let lmdb = Arc::clone(lmdb);
        let verifying = tokio::task::spawn_blocking(move || lmdb.verify());
        (verifying.await).unwrap_or_else(|error| Err(Error::unavailable(error.to_string())))
    }

    /// Commits a write that makes no difference, to find out whether the store takes writes: a full
    /// disk, or a cluster without a quorum, may still answer reads. Fails after `patience`.
    pub async fn probe(&self, patience: Duration) -> Result<()> {
        let call = Call {
            deadline: patience,
            ..Call::new("probe")
        };
        let probing = self.transact(call, |tx| async move {
            metadata::touch(&tx);
            Ok::<_, Error>(())
        });
        let late = || Error::unavailable(format!("no commit within {patience:?}"));
        timeout(patience, probing)
            .await
            .unwrap_or_else(|_| Err(late()))
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
            Backend::Lmdb(lmdb) => {
                Kind::Local(LocalTransaction::new(LocalBackend::Lmdb(Arc::clone(lmdb))))
            }
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
    async fn open(url: &str, options: &OpenOptions) -> Result<Self> {
        match url.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory(Arc::default())),
            Some(("lmdb", directory)) => {
                let (directory, options) = (PathBuf::from(directory), options.clone());
                let opening = tokio::task::spawn_blocking(move || Lmdb::open(&directory, &options));
                match opening.await {
                    Ok(opened) => opened.map(Self::Lmdb),
                    Err(error) => Err(Error::open(format!("opening {url:?} broke off: {error}"))),
                }
            }
            Some(("fdb", location)) => Ok(Self::Fdb(Arc::new(Fdb::open(location)?))),
            _ => Err(Error::open(format!(
                "{url:?} names no store; use lmdb:DIRECTORY, fdb:CLUSTER_FILE or memory:"
            ))),
        }
    }
}
