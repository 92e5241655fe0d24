//! Opening a store by its URL.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::time::timeout;

use crate::call::Attempt;
use crate::counting::{Counting, Part};
use crate::faults::FaultState;
use crate::fdb::Fdb;
use crate::lmdb::{self, Lmdb, Space};
use crate::local::{LocalBackend, LocalTransaction};
use crate::metadata::{self, Metadata};
use crate::stats::{Counters, Stats};
use crate::transaction::Kind;
use crate::{
    Call, Error, FaultControl, Faults, Formats, OpenOptions, Priority, Result, Transaction,
    TransactionStats,
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
    counting: Option<Counting>,
    metadata: Metadata,
    /// The formats that this build reads.
    build: Formats,
    /// The format in which rows are written.
    format: Arc<AtomicU16>,
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

    /// Whether [`open`](Self::open) finds a store, rather than making one. True for an `fdb:` URL: its cluster is not asked.
    pub fn is_there(url: &str) -> bool {
        match url.split_once(':') {
            Some(("lmdb", directory)) => lmdb::is_there(Path::new(directory)),
            Some(("memory", _)) => false,
            _ => true,
        }
    }

    /// Opens a store with these options.
    pub async fn open_with(url: &str, options: &OpenOptions) -> Result<Self> {
        let backend = Backend::open(url, options).await?;
        let build = options.formats;
        let opening = Self::opening(backend.clone());
        let call = Call::new("open").deadline(OPEN_DEADLINE);
        let metadata = opening
            .transact(call, |tx| Metadata::read_or_create(tx, build))
            .await?;
        Ok(Self::assemble(backend, metadata, build))
    }

    /// Opens a store that is empty or has an unfinished import, and marks it as being imported into.
    pub(crate) async fn open_for_import(url: &str) -> Result<Self> {
        let backend = Backend::open(url, &OpenOptions::default()).await?;
        let store = Self::opening(backend);
        store.transact("open", Metadata::begin_import).await?;
        Ok(store)
    }

    /// Another handle on the same data that injects faults: a node of a simulated fleet.
    #[must_use]
    pub fn with_faults(&self, faults: Faults) -> (Self, FaultControl) {
        let rng = SmallRng::seed_from_u64(faults.seed ^ 0x6a17_7e12);
        let faults = FaultState::new(faults);
        let control = faults.control();
        let counting = self.0.counting.clone();
        (self.another(Some(faults), counting, rng), control)
    }

    /// Another handle on the same data that counts what it reads and writes, by the part of the key
    /// that `part` returns.
    #[must_use]
    pub fn counted(&self, part: Part) -> (Self, Counting) {
        let counting = Counting::new(part);
        let rng = SmallRng::from_rng(&mut rand::rng());
        let faults = self.0.faults.clone();
        (self.another(faults, Some(counting.clone()), rng), counting)
    }

    /// A handle on the same data, as another build has it.
    #[cfg(test)]
    pub(crate) fn as_build(&self, build: Formats) -> Self {
        Self::assemble(self.0.backend.clone(), self.0.metadata, build)
    }

    /// What opening the store again would say.
    #[cfg(test)]
    pub(crate) async fn reopen(&self) -> Result<()> {
        let build = self.0.build;
        let open = self.transact("open", |tx| Metadata::read_or_create(tx, build));
        open.await.map(drop)
    }

    fn another(
        &self,
        faults: Option<Arc<FaultState>>,
        counting: Option<Counting>,
        rng: SmallRng,
    ) -> Self {
        Self(Arc::new(Inner {
            backend: self.0.backend.clone(),
            faults,
            counting,
            metadata: self.0.metadata,
            build: self.0.build,
            format: Arc::clone(&self.0.format),
            stats: Stats::default(),
            watches: Arc::default(),
            rng: Mutex::new(rng),
        }))
    }

    /// A handle whose record is not known yet.
    fn opening(backend: Backend) -> Self {
        let formats = Formats::default();
        let incarnation = 0;
        let metadata = Metadata {
            incarnation,
            formats,
        };
        Self::assemble(backend, metadata, formats)
    }

    fn assemble(backend: Backend, metadata: Metadata, build: Formats) -> Self {
        Self(Arc::new(Inner {
            backend,
            faults: None,
            counting: None,
            metadata,
            build,
            format: Arc::new(AtomicU16::new(metadata.formats.newest)),
            stats: Stats::default(),
            watches: Arc::default(),
            rng: Mutex::new(SmallRng::from_rng(&mut rand::rng())),
        }))
    }

    /// The number to put before versionstamps in keys; an import increments it.
    pub fn incarnation(&self) -> u32 {
        self.0.metadata.incarnation
    }

    /// The format in which rows are to be written: a newer one, of those that this build reads, once
    /// every [node](crate::nodes) reads it.
    pub fn format(&self) -> u16 {
        self.0.format.load(Ordering::Relaxed)
    }

    pub(crate) fn set_format(&self, format: u16) {
        self.0.format.store(format, Ordering::Relaxed);
    }

    /// The formats that this build reads.
    pub(crate) fn build(&self) -> Formats {
        self.0.build
    }

    /// The formats of the rows, as far as this handle knows.
    pub(crate) fn formats(&self) -> Formats {
        Formats {
            newest: self.format(),
            ..self.0.metadata.formats
        }
    }

    /// Finishes background work of earlier writes, so that a benchmark does not measure it.
    pub async fn settle(&self) -> Result<()> {
        self.with_lmdb(Lmdb::checkpoint).await.map(drop)
    }

    /// Verifies the checksums of the embedded store.
    pub(crate) async fn verify(&self) -> Result<()> {
        self.with_lmdb(Lmdb::verify).await.map(drop)
    }

    /// How much of its map the embedded store uses; `None` for other backends.
    pub async fn space(&self) -> Result<Option<Space>> {
        self.with_lmdb(Lmdb::space).await
    }

    /// Runs a blocking operation of the embedded store; does nothing for other backends.
    async fn with_lmdb<T: Send + 'static>(&self, run: fn(&Lmdb) -> Result<T>) -> Result<Option<T>> {
        let Backend::Local(LocalBackend::Lmdb(lmdb)) = &self.0.backend else {
            return Ok(None);
        };
        let lmdb = Arc::clone(lmdb);
        let running = tokio::task::spawn_blocking(move || run(&lmdb).map(Some));
        (running.await).unwrap_or_else(|error| Err(Error::unavailable(error.to_string())))
    }

    /// Commits a write without effect, to test whether the store accepts writes: with a full disk or
    /// without a quorum, reads may still succeed. Fails after `time_limit`.
    pub async fn probe(&self, time_limit: Duration) -> Result<()> {
        let call = Call {
            deadline: time_limit,
            ..Call::new("probe")
        };
        let probing = self.transact(call, |tx| async move {
            metadata::touch(&tx);
            Ok::<_, Error>(())
        });
        let late = || Error::unavailable(format!("no commit within {time_limit:?}"));
        timeout(time_limit, probing)
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
        Ok(Transaction::new(
            attempt,
            kind,
            self.0.faults.clone(),
            self.0.counting.clone(),
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
