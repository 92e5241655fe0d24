//! One attempt of a transaction on memory or LMDB: a snapshot taken at the first read, with the
//! pending writes on top.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::time::Instant;

use crate::call::Until;
use crate::error::TRANSACTION_ENDED;
use crate::limits::TRANSACTION_AGE_MAX;
use crate::lmdb::{Lmdb, LmdbSnapshot};
use crate::memory::{Memory, MemorySnapshot};
use crate::pending::{CommitRequest, Pending, Read, Stamp, add};
use crate::range::Page;
use crate::watch::Slot;
use crate::{Error, KeyRange, RangeOptions, Result};

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

/// The lock is never held across an await.
#[derive(Debug)]
pub(crate) struct LocalTransaction {
    backend: LocalBackend,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    snapshot: Option<(LocalSnapshot, Instant)>,
    pending: Pending,
    /// Armed by the commit.
    watches: Vec<Arc<Slot>>,
    /// The first write that exceeded a limit; the next read or the commit reports it.
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
        options: RangeOptions,
        conflict: bool,
    ) -> Result<Page> {
        let mut state = self.usable()?;
        let base = state.snapshot(&self.backend)?.page(range, options)?;
        let (page, seen) = state.pending.overlay(base, range, options)?;
        if conflict {
            state.pending.add_read(seen)?;
        }
        Ok(page)
    }

    /// Applies a write; an error is reported by the next read or the commit.
    pub(crate) fn write(&self, write: impl FnOnce(&mut Pending) -> Result<()>) {
        let mut state = self.lock();
        if state.broken.is_some() {
            return;
        }
        if state.done {
            state.broken = Some(TRANSACTION_ENDED);
            return;
        }
        state.broken = write(&mut state.pending).err();
    }

    /// Keys stamped by earlier commits stay readable, so the read version has to be known.
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

    /// Commits and arms the watches. `None` if nothing was written.
    pub(crate) async fn commit(&self, until: &Until) -> Result<Option<Stamp>> {
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
        let stamp = self.backend.commit(request, snapshot, until).await?;
        watches.arm(&self.backend);
        Ok(stamp)
    }

    /// Ends without writing. Once this returns, what was read is durable.
    pub(crate) async fn abandon(&self) -> Result<()> {
        let snapshot = {
            let mut state = self.lock();
            state.done = true;
            state.snapshot.take().map(|(snapshot, _)| snapshot)
        };
        let nothing = Pending::default().take(None);
        self.backend
            .commit(nothing, snapshot, &Until::Durable)
            .await
            .map(|_| ())
    }

    fn usable(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        if state.done {
            return Err(TRANSACTION_ENDED);
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

impl State {
    fn snapshot(&mut self, backend: &LocalBackend) -> Result<&LocalSnapshot> {
        if self.snapshot.is_none() {
            self.snapshot = Some((backend.snapshot()?, Instant::now()));
        }
        match &self.snapshot {
            Some((snapshot, _)) => Ok(snapshot),
            None => Err(TRANSACTION_ENDED),
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

    /// The snapshot is kept until the commit is done: it retains the history that conflict detection
    /// needs.
    async fn commit(
        &self,
        request: CommitRequest,
        snapshot: Option<LocalSnapshot>,
        until: &Until,
    ) -> Result<Option<Stamp>> {
        match (self, snapshot) {
            (Self::Memory(_), _) if request.is_read_only() => Ok(None),
            (Self::Memory(memory), _snapshot) => memory.commit(request).map(Some),
            (Self::Lmdb(lmdb), Some(LocalSnapshot::Lmdb(snapshot))) => {
                lmdb.commit(request, Some(snapshot), until).await
            }
            (Self::Lmdb(lmdb), _) => lmdb.commit(request, None, until).await,
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

    fn page(&self, range: &KeyRange, options: RangeOptions) -> Result<Page> {
        range.check()?;
        match self {
            Self::Memory(snapshot) => Ok(snapshot.page(range, options)),
            Self::Lmdb(snapshot) => snapshot.page(range, options),
        }
    }
}

/// Watches to arm. If the commit fails or is dropped, their waiters get an error.
struct CancelOnDrop(Vec<Arc<Slot>>);

impl CancelOnDrop {
    fn arm(mut self, backend: &LocalBackend) {
        for slot in self.0.drain(..) {
            let armed = backend.arm(&slot);
            // The key may have changed after the snapshot and before the watch was armed.
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
