//! The handle a transaction body works with.

mod range_read;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use bytes::Bytes;

use crate::call::Attempt;
use crate::counting::Counting;
use crate::faults::{CommitFate, FaultState};
use crate::fdb::FdbTransaction;
use crate::limits::check_key;
use crate::local::LocalTransaction;
use crate::pending::{Pending, Stamp, split_template};
use crate::range::Page;
use crate::watch::{WatchFault, WatchPermit};
use crate::{Error, KeyRange, RangeOptions, Result, Watch};

pub use range_read::RangeRead;

/// One attempt of a transaction: an owned handle, cheap to clone, valid until its body returns.
///
/// Writes return no error; a write that exceeds a limit fails the next read or the commit.
#[derive(Debug, Clone)]
pub struct Transaction(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) attempt: Attempt,
    pub(crate) kind: Kind,
    pub(crate) faults: Option<Arc<FaultState>>,
    counting: Option<Counting>,
    pub(crate) watches: Arc<AtomicUsize>,
    stamp: CommitStamp,
    /// Whether no part of the body is [alone](Transaction::alone).
    alone: AtomicBool,
    /// How many reads matched a [`crate::Weaken`].
    weakened: AtomicU32,
    /// Keys read, for a [`crate::ReadLog`].
    reads: Mutex<Vec<Bytes>>,
}

#[derive(Debug)]
#[cfg_attr(
    not(feature = "fdb"),
    expect(clippy::large_enum_variant, reason = "there is but one variant")
)]
pub(crate) enum Kind {
    Local(LocalTransaction),
    Fdb(FdbTransaction),
}

impl Kind {
    fn write(&self, write: impl FnOnce(&mut Pending) -> Result<()>) {
        match self {
            Self::Local(tx) => tx.write(write),
            Self::Fdb(tx) => tx.write(write),
        }
    }
}

/// A part of a body that ends when this is dropped: see [`Transaction::alone`].
#[derive(Debug)]
#[must_use]
pub struct Alone<'a>(&'a AtomicBool);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Transaction {
    pub(crate) fn new(
        attempt: Attempt,
        kind: Kind,
        faults: Option<Arc<FaultState>>,
        counting: Option<Counting>,
        watches: Arc<AtomicUsize>,
    ) -> Self {
        Self(Arc::new(Inner {
            attempt,
            kind,
            faults,
            counting,
            watches,
            stamp: CommitStamp::default(),
            alone: AtomicBool::new(true),
            weakened: AtomicU32::new(0),
            reads: Mutex::default(),
        }))
    }

    /// The value of `key`, as the transaction sees it: its snapshot and its own writes.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.read_key(key, true).await
    }

    /// The rows of a range, as the transaction sees them, page by page.
    pub fn get_range(&self, range: impl Into<KeyRange>, options: RangeOptions) -> RangeRead {
        RangeRead::new(self.clone(), range.into(), options, true)
    }

    /// Reads that add no conflict ranges.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.clone())
    }

    /// Sets `key` to `value`.
    pub fn set(&self, key: &[u8], value: &[u8]) {
        self.0.kind.write(|pending| {
            check_key(key)?;
            pending.set(key, value)
        });
    }

    /// Sets a reserved key.
    pub(crate) fn set_own(&self, key: &[u8], value: &[u8]) {
        self.0.kind.write(|pending| pending.set(key, value));
    }

    /// Removes a reserved key.
    pub(crate) fn clear_own(&self, key: &[u8]) {
        self.0.kind.write(|pending| pending.clear(key));
    }

    /// Removes `key`.
    pub fn clear(&self, key: &[u8]) {
        self.0.kind.write(|pending| {
            check_key(key)?;
            pending.clear(key)
        });
    }

    /// Removes every key in `range`.
    pub fn clear_range(&self, range: impl Into<KeyRange>) {
        let range = range.into();
        self.0.kind.write(|pending| {
            check_range(&range)?;
            pending.clear_range(range)
        });
    }

    /// Adds `delta` to the eight-byte little endian number at `key` without reading it, so that
    /// concurrent additions do not conflict. A missing number counts as zero.
    ///
    /// Not idempotent: guard it with a read, see [`Self::maybe_committed`].
    pub fn add(&self, key: &[u8], delta: i64) {
        self.0.kind.write(|pending| {
            check_key(key)?;
            pending.add(key, delta)
        });
    }

    /// Sets a key into which the commit writes its ten-byte versionstamp. `key` ends with the
    /// four-byte little endian offset of the stamp, as in `tuple::pack_with_versionstamp`.
    pub fn set_versionstamped_key(&self, key: &[u8], value: &[u8]) {
        let template =
            split_template(key).and_then(|(key, offset)| check_key(key).map(|()| (key, offset)));
        match (&self.0.kind, template) {
            (Kind::Local(tx), Ok((key, offset))) => tx.write_stamped_key(key, offset, value),
            (Kind::Fdb(tx), Ok((key, offset))) => tx.write_stamped_key(key, offset, value),
            (kind, Err(error)) => kind.write(|_| Err(error)),
        }
    }

    /// Sets `key` to a value into which the commit writes its ten-byte versionstamp. `value` ends
    /// with the four-byte little endian offset of the stamp.
    pub fn set_versionstamped_value(&self, key: &[u8], value: &[u8]) {
        self.0.kind.write(|pending| {
            check_key(key)?;
            let (value, offset) = split_template(value)?;
            pending.set_stamped_value(key, value, offset)
        });
    }

    /// A watch that the commit arms; it fires when `key` no longer has the value seen here.
    ///
    /// It conflicts with concurrent writes of the key, as a read does.
    pub async fn watch(&self, key: &[u8]) -> Result<Watch> {
        self.before_read().await?;
        let permit = WatchPermit::take(&self.0.watches)?;
        let fault = match &self.0.faults {
            Some(faults) => faults.watch(),
            None => WatchFault::None,
        };
        self.note_read(key);
        match &self.0.kind {
            Kind::Local(tx) => Ok(Watch::local(tx.watch(key)?, fault, permit)),
            Kind::Fdb(tx) => Ok(Watch::remote(tx.watch(key).await?, fault, permit)),
        }
    }

    /// Conflicts with concurrent writes in `range`, as if it had been read.
    pub fn add_read_conflict_range(&self, range: impl Into<KeyRange>) {
        let range = range.into();
        if !self.counts_as_conflict(&range.begin) {
            return;
        }
        match &self.0.kind {
            Kind::Local(tx) => {
                // Only writes after the read version conflict, so it has to be fixed now.
                let version = tx.read_version();
                tx.write(|pending| version.and_then(|_| pending.add_read(range)));
            }
            Kind::Fdb(tx) => tx.add_read_conflict_range(range),
        }
    }

    /// Conflicts with concurrent reads in `range`, as if it had been written.
    pub fn add_write_conflict_range(&self, range: impl Into<KeyRange>) {
        self.0.kind.write(|pending| pending.add_write(range.into()));
    }

    /// The version of the transaction's snapshot. Later commits have higher versions.
    pub async fn read_version(&self) -> Result<u64> {
        self.before_read().await?;
        match &self.0.kind {
            Kind::Local(tx) => tx.read_version(),
            Kind::Fdb(tx) => tx.read_version().await,
        }
    }

    /// The version of the snapshot, if only commits raise it.
    pub(crate) fn embedded_version(&self) -> Result<Option<u64>> {
        match &self.0.kind {
            Kind::Local(tx) => tx.read_version().map(Some),
            Kind::Fdb(_) => Ok(None),
        }
    }

    /// Gives the versionstamp of this attempt after its commit.
    pub fn commit_stamp(&self) -> CommitStamp {
        self.0.stamp.clone()
    }

    /// The size of the transaction so far, as [`crate::limits`] counts it.
    pub fn approximate_size(&self) -> usize {
        match &self.0.kind {
            Kind::Local(tx) => tx.size(),
            Kind::Fdb(tx) => tx.size(),
        }
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempt.number
    }

    /// True if an earlier attempt of this call may have been committed.
    ///
    /// A pure body that reads the keys it writes finds its own success and does nothing twice. Bodies
    /// that cannot find it that way use this.
    pub fn maybe_committed(&self) -> bool {
        self.0.attempt.maybe_committed
    }

    /// For a part of a body that reads what it then writes. Such parts must follow each other, so that each sees what those
    /// before it have written. In debug builds, panics if the last one has not ended.
    pub fn alone(&self) -> Alone<'_> {
        let alone = self.0.alone.swap(false, Ordering::Relaxed);
        debug_assert!(alone, "two parts of \"{}\" run at once", self.name());
        Alone(&self.0.alone)
    }

    /// Alive for as long as the call may make another attempt.
    pub fn call(&self) -> Weak<()> {
        Arc::downgrade(&self.0.attempt.call)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.0.attempt.name
    }

    /// The part of a commit that cannot end with an unknown outcome.
    pub(crate) async fn prepare(&self) -> Result<()> {
        match &self.0.kind {
            Kind::Local(_) => Ok(()),
            Kind::Fdb(tx) => tx.prepare().await,
        }
    }

    pub(crate) async fn commit(&self) -> Result<()> {
        let Some(counting) = &self.0.counting else {
            return self.try_commit().await;
        };
        let (mut writes, mut reads) = (Vec::new(), Vec::new());
        self.0.kind.write(|pending| {
            let (written, read) = pending.traffic();
            (writes, reads) = (written.to_vec(), read.to_vec());
            Ok(())
        });
        let committed = self.try_commit().await;
        match &committed {
            Ok(()) => counting.written(&writes),
            Err(Error::Conflict) => counting.conflict(&reads),
            Err(_) => {}
        }
        committed
    }

    async fn try_commit(&self) -> Result<()> {
        let fate = match &self.0.faults {
            Some(faults) => {
                if !self.is_read_only() {
                    faults.log_reads(&self.0.attempt, std::mem::take(&mut *self.0.reads()));
                }
                faults.before_commit(self.is_read_only()).await?
            }
            None => CommitFate::Normal,
        };
        match fate {
            CommitFate::Conflict => return Err(Error::Conflict),
            CommitFate::UnknownLost => return Err(Error::MaybeCommitted),
            CommitFate::UnknownLate => {
                let late = self.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(CommitFate::LATE).await;
                    late.apply().await.map(drop)
                });
                return Err(Error::MaybeCommitted);
            }
            CommitFate::Normal | CommitFate::UnknownApplied => {}
        }
        let stamp = self.apply().await?;
        if fate == CommitFate::UnknownApplied {
            return Err(Error::MaybeCommitted);
        }
        if let Some(stamp) = stamp {
            // It cannot be set already: an attempt commits once.
            let _ = self.0.stamp.0.set(stamp);
        }
        Ok(())
    }

    async fn apply(&self) -> Result<Option<Stamp>> {
        match &self.0.kind {
            Kind::Local(tx) => tx.commit(&self.0.attempt.until).await,
            Kind::Fdb(tx) => tx.commit().await,
        }
    }

    /// Ends without writing. Once this returns, what was read is durable.
    pub(crate) async fn abandon(&self) -> Result<()> {
        match &self.0.kind {
            Kind::Local(tx) => tx.abandon().await,
            // FoundationDB makes commits durable before they can be read.
            Kind::Fdb(_) => Ok(()),
        }
    }

    fn is_read_only(&self) -> bool {
        match &self.0.kind {
            Kind::Local(tx) => tx.is_read_only(),
            Kind::Fdb(tx) => tx.is_read_only(),
        }
    }

    async fn read_key(&self, key: &[u8], conflict: bool) -> Result<Option<Bytes>> {
        self.before_read().await?;
        let conflict = conflict && self.counts_as_conflict(key);
        let value = match &self.0.kind {
            Kind::Local(tx) => tx.get(key, conflict),
            Kind::Fdb(tx) => tx.get(key, conflict).await,
        }?;
        if let Some(counting) = &self.0.counting {
            counting.read(key, key.len() + value.as_ref().map_or(0, Bytes::len));
        }
        Ok(value)
    }

    pub(crate) async fn read_page(
        &self,
        range: &KeyRange,
        options: RangeOptions,
        conflict: bool,
    ) -> Result<Page> {
        self.before_read().await?;
        let conflict = conflict && self.counts_as_conflict(&range.begin);
        let page = match &self.0.kind {
            Kind::Local(tx) => tx.page(range, options, conflict),
            Kind::Fdb(tx) => tx.page(range, options, conflict).await,
        }?;
        if let Some(counting) = &self.0.counting {
            let bytes = (page.rows.iter()).map(|row| row.key.len() + row.value.len());
            counting.read(&range.begin, bytes.sum());
        }
        Ok(page)
    }

    async fn before_read(&self) -> Result<()> {
        if let Some(faults) = &self.0.faults {
            return faults.before_read().await;
        }
        // Local reads never wait, but a long body must let other tasks run.
        tokio::task::consume_budget().await;
        Ok(())
    }

    /// Records a conflicting read; false for one that a test has turned into a snapshot read.
    fn counts_as_conflict(&self, key: &[u8]) -> bool {
        self.note_read(key);
        let Inner {
            faults,
            attempt,
            weakened,
            ..
        } = &*self.0;
        !(faults.as_ref()).is_some_and(|faults| faults.weakens(attempt, key, weakened))
    }

    fn note_read(&self, key: &[u8]) {
        if (self.0.faults.as_ref()).is_some_and(|faults| faults.logs_reads()) {
            self.0.reads().push(Bytes::copy_from_slice(key));
        }
    }
}

impl Inner {
    fn reads(&self) -> std::sync::MutexGuard<'_, Vec<Bytes>> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_range(range: &KeyRange) -> Result<()> {
    if *range.end > *KeyRange::all().end {
        return Err(Error::Misuse("keys from 0xfe on are reserved"));
    }
    Ok(())
}

/// Reads that add no conflict ranges: what they return may have changed by the commit.
#[derive(Debug, Clone)]
pub struct Snapshot(Transaction);

impl Snapshot {
    /// Like [`Transaction::get`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.0.read_key(key, false).await
    }

    /// Like [`Transaction::get_range`].
    pub fn get_range(&self, range: impl Into<KeyRange>, options: RangeOptions) -> RangeRead {
        RangeRead::new(self.0.clone(), range.into(), options, false)
    }
}

/// The versionstamp of an attempt, available after its commit.
#[derive(Debug, Clone, Default)]
pub struct CommitStamp(Arc<OnceLock<Stamp>>);

impl CommitStamp {
    /// The ten bytes that the commit wrote into versionstamped keys and values. `None` before the
    /// commit and if nothing was written.
    pub fn get(&self) -> Option<[u8; 10]> {
        self.0.get().copied()
    }

    /// The committed version: the first eight bytes.
    pub fn version(&self) -> Option<u64> {
        let stamp = self.get()?;
        let (version, _) = stamp.split_first_chunk()?;
        Some(u64::from_be_bytes(*version))
    }
}
