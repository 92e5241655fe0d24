//! One attempt of a transaction on a backend of this host: a snapshot taken at the first read, and
//! the pending writes over it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::time::Instant;

use crate::limits::TRANSACTION_AGE_MAX;
use crate::lmdb::{Lmdb, LmdbSnapshot};
use crate::memory::{Memory, MemorySnapshot};
use crate::pending::{CommitRequest, Pending, Read, Stamp, add};
use crate::range::Page;
use crate::watch::Slot;
use crate::{Error, KeyRange, Result};

/// Where the rows are.
#[derive(Debug, Clone)]
pub(crate) enum LocalBackend {
    Memory(Arc<Memory>),
    Lmdb(Arc<Lmdb>),
}

#[derive(Debug)]
enum LocalSnapshot {
    Memory(MemorySnapshot),
    Lmdb(LmdbSnapshot),
}

/// One attempt. The lock is never held across an await.
#[derive(Debug)]
pub(crate) struct LocalTransaction {
    backend: LocalBackend,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    snapshot: Option<(LocalSnapshot, Instant)>,
    pending: Pending,
    /// Planned watches, armed by the commit.
    watches: Vec<Arc<Slot>>,
    /// The first write that broke a limit; the commit reports it.
    broken: Option<Error>,
    done: bool,
}

impl LocalTransaction {
    pub(crate) fn new(backend: LocalBackend) -> Self {
        Self {
            backend,
            state: Mutex::default(),
        }
    }

    pub(crate) fn read_version(&self) -> Result<u64> {
        let mut state = self.usable()?;
        let snapshot = state.snapshot(&self.backend)?;
        if let LocalSnapshot::Lmdb(snapshot) = snapshot {
            snapshot.see_version();
        }
        Ok(snapshot.version())
    }

    pub(crate) fn get(&self, key: &[u8], conflict: bool) -> Result<Option<Bytes>> {
        self.usable()?.get(&self.backend, key, conflict)
    }

    pub(crate) fn page(
        &self,
        range: &KeyRange,
        limit: Option<usize>,
        reverse: bool,
        conflict: bool,
    ) -> Result<Page> {
        let mut state = self.usable()?;
        let base = state.snapshot(&self.backend)?.page(range, limit, reverse)?;
        let (page, seen) = state.pending.overlay(base, range, limit, reverse)?;
        if conflict {
            state.pending.add_read(seen)?;
        }
        Ok(page)
    }

    /// Does a write now, or remembers for the commit why it cannot be done.
    pub(crate) fn write(&self, write: impl FnOnce(&mut Pending) -> Result<()>) {
        let mut state = self.lock();
        if state.broken.is_some() {
            return;
        }
        if state.done {
            state.broken = Some(OVER);
            return;
        }
        state.broken = write(&mut state.pending).err();
    }

    /// A stamped key can only be told from readable ones by the version that was read.
    pub(crate) fn write_stamped_key(&self, key: &[u8], offset: usize, value: &[u8]) {
        match self.read_version() {
            Ok(version) => {
                self.write(|pending| pending.set_stamped_key(key, offset, value, version));
            }
            Err(error) => self.write(|_| Err(error)),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.lock().pending.size()
    }

    /// True when the commit has nothing to apply.
    pub(crate) fn is_read_only(&self) -> bool {
        self.lock().pending.is_read_only()
    }

    pub(crate) fn watch(&self, key: &[u8]) -> Result<Arc<Slot>> {
        let mut state = self.usable()?;
        let seen = state.get(&self.backend, key, true)?;
        let slot = Slot::new(Bytes::copy_from_slice(key), seen);
        state.watches.push(Arc::clone(&slot));
        Ok(slot)
    }

    /// Commits and arms the watches. `None` when there was nothing to write.
    pub(crate) async fn commit(&self, durable: bool) -> Result<Option<Stamp>> {
        let (request, snapshot, watches) = {
            let mut state = self.usable()?;
            state.done = true;
            let snapshot = state.snapshot.take().map(|(snapshot, _)| snapshot);
            let request = state
                .pending
                .take(snapshot.as_ref().map(LocalSnapshot::version));
            let watches = std::mem::take(&mut state.watches);
            (request, snapshot, CancelOnDrop(watches))
        };
        let stamp = self.backend.commit(request, snapshot, durable).await?;
        watches.arm(&self.backend);
        Ok(stamp)
    }

    /// Ends without writing. What was read may be told: it is durable when this returns.
    pub(crate) async fn abandon(&self) -> Result<()> {
        let snapshot = {
            let mut state = self.lock();
            state.done = true;
            state.snapshot.take().map(|(snapshot, _)| snapshot)
        };
        let nothing = Pending::default().take(None);
        self.backend
            .commit(nothing, snapshot, true)
            .await
            .map(|_| ())
    }

    fn usable(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        if state.done {
            return Err(OVER);
        }
        if let Some((_, since)) = &state.snapshot
            && since.elapsed() >= TRANSACTION_AGE_MAX
        {
            return Err(Error::TooOld);
        }
        Ok(state)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) const OVER: Error =
    Error::Misuse("the transaction is over; its handle was kept beyond its body");

impl State {
    fn snapshot(&mut self, backend: &LocalBackend) -> Result<&LocalSnapshot> {
        if self.snapshot.is_none() {
            self.snapshot = Some((backend.snapshot()?, Instant::now()));
        }
        match &self.snapshot {
            Some((snapshot, _)) => Ok(snapshot),
            None => Err(OVER),
        }
    }

    fn get(&mut self, backend: &LocalBackend, key: &[u8], conflict: bool) -> Result<Option<Bytes>> {
        match self.pending.read(key)? {
            Read::Known(value) => Ok(value),
            Read::Snapshot(delta) => {
                let old = self.snapshot(backend)?.get(key)?;
                if conflict {
                    self.pending.add_read(KeyRange::key(key))?;
                }
                Ok(match delta {
                    Some(delta) => Some(add(old.as_deref(), delta)),
                    None => old,
                })
            }
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        for slot in &self.watches {
            slot.cancel();
        }
    }
}

impl LocalBackend {
    fn snapshot(&self) -> Result<LocalSnapshot> {
        match self {
            Self::Memory(memory) => Ok(LocalSnapshot::Memory(memory.snapshot())),
            Self::Lmdb(lmdb) => lmdb.snapshot().map(LocalSnapshot::Lmdb),
        }
    }

    /// `snapshot` is what the transaction has read: while it lives, so does what is needed to find
    /// conflicts with it.
    async fn commit(
        &self,
        request: CommitRequest,
        snapshot: Option<LocalSnapshot>,
        durable: bool,
    ) -> Result<Option<Stamp>> {
        match (self, snapshot) {
            (Self::Memory(_), _) if request.is_read_only() => Ok(None),
            (Self::Memory(memory), _snapshot) => memory.commit(request).map(Some),
            (Self::Lmdb(lmdb), Some(LocalSnapshot::Lmdb(snapshot))) => {
                lmdb.commit(request, Some(snapshot), durable).await
            }
            (Self::Lmdb(lmdb), _) => lmdb.commit(request, None, durable).await,
        }
    }

    fn arm(&self, slot: &Arc<Slot>) -> Result<()> {
        match self {
            Self::Memory(memory) => memory.watches.arm(slot),
            Self::Lmdb(lmdb) => lmdb.arm(slot)?,
        }
        Ok(())
    }

    fn latest(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self {
            Self::Memory(memory) => Ok(memory.latest(key)),
            Self::Lmdb(lmdb) => lmdb.latest(key),
        }
    }
}

impl LocalSnapshot {
    fn version(&self) -> u64 {
        match self {
            Self::Memory(snapshot) => snapshot.version(),
            Self::Lmdb(snapshot) => snapshot.version(),
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self {
            Self::Memory(snapshot) => Ok(snapshot.get(key)),
            Self::Lmdb(snapshot) => snapshot.get(key),
        }
    }

    fn page(&self, range: &KeyRange, limit: Option<usize>, reverse: bool) -> Result<Page> {
        range.check()?;
        match self {
            Self::Memory(snapshot) => Ok(snapshot.page(range, limit, reverse)),
            Self::Lmdb(snapshot) => snapshot.page(range, limit, reverse),
        }
    }
}

/// Planned watches: whoever waits for one hears of it when the commit fails or is cancelled.
struct CancelOnDrop(Vec<Arc<Slot>>);

impl CancelOnDrop {
    fn arm(mut self, backend: &LocalBackend) {
        for slot in self.0.drain(..) {
            let armed = backend.arm(&slot);
            // It may have changed between the snapshot and now.
            let now = armed.and_then(|()| backend.latest(&slot.key));
            if !matches!(now, Ok(now) if now == slot.seen) {
                slot.fire();
            }
        }
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        for slot in &self.0 {
            slot.cancel();
        }
    }
}
