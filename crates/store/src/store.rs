//! Opening a store by its URL.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::time::timeout;

use crate::call::Attempt;
use crate::faults::FaultState;
use crate::fdb::Fdb;
use crate::lmdb::Lmdb;
use crate::local::{LocalBackend, LocalTransaction};
use crate::metadata::{self, Metadata};
use crate::stats::{Counters, Stats};
use crate::transaction::Kind;
use crate::{
    Call, Error, FaultControl, Faults, OpenOptions, Priority, Result, Transaction, TransactionStats,
};

/// How long opening waits for the store to answer.
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
    Local(LocalBackend),
    Fdb(Arc<Fdb>),
}

impl Store {
    /// Opens a store with default options: `lmdb:DIRECTORY`, `fdb:CLUSTER_FILE` or `memory:`.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, &OpenOptions::default()).await
    }

    /// Opens a store with these options.
    pub async fn open_with(url: &str, options: &OpenOptions) -> Result<Self> {
        let backend = Backend::open(url, options).await?;
        let opening = Self::assemble(backend.clone(), Metadata { incarnation: 0 });
        let call = Call::new("open").deadline(OPEN_DEADLINE);
        let metadata = opening.transact(call, Metadata::read_or_create).await?;
        Ok(Self::assemble(backend, metadata))
    }

    /// Opens a store that is empty or has an unfinished import, and marks it as being imported into.
    pub(crate) async fn open_for_import(url: &str) -> Result<Self> {
        let backend = Backend::open(url, &OpenOptions::default()).await?;
        let store = Self::assemble(backend, Metadata { incarnation: 0 });
        store.transact("open", Metadata::begin_import).await?;
        Ok(store)
    }

    /// Another handle on the same data that injects faults: a node of a simulated fleet.
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

    /// The number to put before versionstamps in keys; an import increments it.
    pub fn incarnation(&self) -> u32 {
        self.0.metadata.incarnation
    }

    /// Finishes background work of earlier writes, so that a benchmark does not measure it.
    pub async fn settle(&self) -> Result<()> {
        self.with_lmdb(Lmdb::checkpoint).await
    }

    /// Verifies the checksums of the embedded store.
    pub(crate) async fn verify(&self) -> Result<()> {
        self.with_lmdb(Lmdb::verify).await
    }

    /// Runs a blocking operation of the embedded store; does nothing for other backends.
    async fn with_lmdb(&self, run: fn(&Lmdb) -> Result<()>) -> Result<()> {
        let Backend::Local(LocalBackend::Lmdb(lmdb)) = &self.0.backend else {
            return Ok(());
        };
        let lmdb = Arc::clone(lmdb);
        let running = tokio::task::spawn_blocking(move || run(&lmdb));
        (running.await).unwrap_or_else(|error| Err(Error::unavailable(error.to_string())))
    }

    /// Commits a write without effect, to test whether the store accepts writes: with a full disk or
    /// without a quorum, reads may still succeed. Fails after `patience`.
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

    /// The statistics of this handle, by transaction name.
    pub fn stats(&self) -> BTreeMap<&'static str, TransactionStats> {
        self.0.stats.all()
    }

    pub(crate) fn stats_of(&self, name: &'static str) -> Arc<Counters> {
        self.0.stats.of(name)
    }

    pub(crate) fn begin(&self, attempt: Attempt, priority: Priority) -> Result<Transaction> {
        let kind = match &self.0.backend {
            Backend::Local(local) => Kind::Local(LocalTransaction::new(local.clone())),
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
            Some(("memory", "")) => Ok(Self::Local(LocalBackend::Memory(Arc::default()))),
            Some(("lmdb", directory)) => {
                let (directory, options) = (PathBuf::from(directory), options.clone());
                let opening = tokio::task::spawn_blocking(move || Lmdb::open(&directory, &options));
                match opening.await {
                    Ok(opened) => Ok(Self::Local(LocalBackend::Lmdb(opened?))),
                    Err(error) => Err(Error::open(format!(
                        "opening {url:?} was interrupted: {error}"
                    ))),
                }
            }
            Some(("fdb", location)) => Ok(Self::Fdb(Arc::new(Fdb::open(location)?))),
            _ => Err(Error::open(format!(
                "{url:?} use lmdb:DIRECTORY, fdb:CLUSTER_FILE or memory:"
            ))),
        }
    }
}
