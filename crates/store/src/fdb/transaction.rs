//! One attempt of a transaction on a cluster.
//!
//! Reads are snapshot reads of the cluster at one version, with the pending writes on top. The commit
//! takes the client's transaction out of the handle, so that the handle cannot be used afterwards, and
//! passes conflict ranges, writes and watches to it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use foundationdb::options::StreamingMode;
use foundationdb::{FdbResult, KeySelector, RangeOption};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::Fdb;
use super::commit::{ClientFuture, Commit, PlannedWatch};
use crate::error::TRANSACTION_ENDED;
use crate::limits::{PAGE_BYTES, TRANSACTION_AGE_MAX};
use crate::pending::{Pending, Read, Stamp, add, rest_after};
use crate::range::Page;
use crate::watch::NOT_COMMITTED;
use crate::{Error, KeyRange, KeyValue, RangeOptions, Result};

/// The lock is never held across an await.
pub(crate) struct FdbTransaction {
    fdb: Arc<Fdb>,
    read_timeout: Duration,
    state: Mutex<State>,
}

struct State {
    /// `None` after the commit has taken it.
    client: Option<foundationdb::Transaction>,
    pending: Pending,
    watches: Vec<PlannedWatch>,
    /// The first write that exceeded a limit; the next read or the commit reports it.
    broken: Option<Error>,
    snapshot: Snapshot,
}

#[derive(Default)]
struct Snapshot {
    /// When the first request was sent.
    since: Option<Instant>,
    /// A request was answered, so the client has fixed the version, which `version` may not know yet.
    settled: bool,
    version: Option<u64>,
    /// A request for the version that has not been awaited: dropping it would cancel it.
    asked: Option<ClientFuture<i64>>,
}

impl FdbTransaction {
    pub(super) fn new(
        fdb: Arc<Fdb>,
        client: foundationdb::Transaction,
        read_timeout: Duration,
    ) -> Self {
        Self {
            fdb,
            read_timeout,
            state: Mutex::new(State {
                client: Some(client),
                pending: Pending::default(),
                watches: Vec::new(),
                broken: None,
                snapshot: Snapshot::default(),
            }),
        }
    }

    pub(crate) async fn read_version(&self) -> Result<u64> {
        let asked = {
            let mut state = self.usable()?;
            if let Some(version) = state.snapshot.version {
                return Ok(version);
            }
            state.begin_reading()?.get_read_version()
        };
        let version = self.answer(asked).await?.cast_unsigned();
        let mut state = self.lock();
        state.snapshot.version = Some(version);
        state.pending.settle_stamps(version);
        Ok(version)
    }

    pub(crate) async fn get(&self, key: &[u8], conflict: bool) -> Result<Option<Bytes>> {
        self.settle_stamps().await?;
        let (asked, delta) = {
            let mut state = self.usable()?;
            let delta = match state.pending.read(key)? {
                Read::Known(value) => return Ok(value),
                Read::Snapshot(delta) => delta,
            };
            let asked = state.begin_reading()?.get(&self.fdb.prefix.add(key), true);
            if conflict {
                state.pending.add_read(KeyRange::key(key))?;
            }
            (asked, delta)
        };
        let old = self.answer(asked).await?;
        Ok(match delta {
            Some(delta) => Some(add(old.as_deref(), delta)),
            None => old.as_deref().map(Bytes::copy_from_slice),
        })
    }

    pub(crate) async fn page(
        &self,
        range: &KeyRange,
        options: RangeOptions,
        conflict: bool,
    ) -> Result<Page> {
        range.check()?;
        self.settle_stamps().await?;
        let base = self.base_page(range, options).await?;
        let mut state = self.usable()?;
        let (page, seen) = state.pending.overlay(base, range, options)?;
        if conflict {
            state.pending.add_read(seen)?;
        }
        Ok(page)
    }

    /// A page without the transaction's own writes.
    async fn base_page(&self, range: &KeyRange, options: RangeOptions) -> Result<Page> {
        let RangeOptions { limit, reverse } = options;
        let mut page = Page {
            rows: Vec::new(),
            rest: None,
        };
        if range.is_empty() {
            // An empty read must fix the version like any other.
            self.read_version().await?;
            return Ok(page);
        }
        let (begin, end) = self.fdb.prefix.add_range(range);
        let option = RangeOption {
            limit,
            target_bytes: PAGE_BYTES,
            mode: StreamingMode::Exact,
            reverse,
            ..RangeOption::from((
                KeySelector::first_greater_or_equal(begin),
                KeySelector::first_greater_or_equal(end),
            ))
        };
        let asked = self.usable()?.begin_reading()?.get_range(&option, 1, true);
        let rows = self.answer(asked).await?;
        page.rows.reserve_exact(rows.len());
        for row in &rows {
            page.rows.push(KeyValue {
                key: Bytes::copy_from_slice(self.fdb.prefix.strip(row.key())?),
                value: Bytes::copy_from_slice(row.value()),
            });
        }
        if rows.more() {
            page.rest = match page.rows.last() {
                Some(last) => rest_after(range, &last.key, reverse),
                None => Some(range.clone()),
            };
        }
        Ok(page)
    }

    /// Applies a write; an error is reported by the next read or the commit.
    pub(crate) fn write(&self, write: impl FnOnce(&mut Pending) -> Result<()>) {
        self.lock().write(|state| write(&mut state.pending));
    }

    /// Until the version is known, no key that matches the template can be read.
    pub(crate) fn write_stamped_key(&self, key: &[u8], offset: usize, value: &[u8]) {
        self.lock().write(|state| {
            state.ask_for_version()?;
            let version = state.snapshot.version.unwrap_or(0);
            state.pending.set_stamped_key(key, offset, value, version)
        });
    }

    pub(crate) fn add_read_conflict_range(&self, range: KeyRange) {
        self.lock().write(|state| {
            // Only writes after the read version conflict, so it has to be fixed now.
            state.ask_for_version()?;
            state.pending.add_read(range)
        });
    }

    pub(crate) fn size(&self) -> usize {
        self.lock().pending.size()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.lock().pending.is_read_only()
    }

    /// A watch of the current value, armed by the commit.
    pub(crate) async fn watch(
        &self,
        key: &[u8],
    ) -> Result<impl Future<Output = Result<()>> + Send + Sync + use<>> {
        self.get(key, true).await?;
        let (armed, fires) = oneshot::channel();
        let mut state = self.usable()?;
        let after = state.pending.mutations();
        state.watches.push(PlannedWatch {
            key: Bytes::copy_from_slice(key),
            after,
            armed,
        });
        let fdb = Arc::clone(&self.fdb);
        Ok(async move {
            let fires = fires.await.map_err(|_| NOT_COMMITTED)?;
            fires.await.map_err(|error| fdb.reading(error))
        })
    }

    /// Gets the read version that the commit needs. If the cluster does not answer here, the commit is
    /// known not to have happened.
    pub(crate) async fn prepare(&self) -> Result<()> {
        if self.usable()?.lacks_version() {
            self.read_version().await?;
        }
        Ok(())
    }

    /// Commits and arms the watches. `None` if nothing was written.
    pub(crate) async fn commit(&self) -> Result<Option<Stamp>> {
        let commit = self.usable()?.end()?;
        match commit {
            Some(commit) => commit.run(&self.fdb).await,
            None => Ok(None),
        }
    }

    /// Gets the read version if the transaction has stamped keys.
    async fn settle_stamps(&self) -> Result<()> {
        let waits = {
            let state = self.usable()?;
            state.snapshot.version.is_none() && state.pending.has_stamped_keys()
        };
        if waits {
            self.read_version().await?;
        }
        Ok(())
    }

    /// The answer to a read, with a time-out.
    async fn answer<T>(&self, asked: impl Future<Output = FdbResult<T>>) -> Result<T> {
        match timeout(self.read_timeout, asked).await {
            Ok(Ok(answer)) => {
                self.lock().snapshot.settled = true;
                Ok(answer)
            }
            Ok(Err(error)) => Err(self.fdb.reading(error)),
            Err(_) => Err(self.fdb.silent()),
        }
    }

    fn usable(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        if state.client.is_none() {
            return Err(TRANSACTION_ENDED);
        }
        if let Some(since) = state.snapshot.since
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
    fn write(&mut self, write: impl FnOnce(&mut Self) -> Result<()>) {
        if self.broken.is_some() {
            return;
        }
        self.broken = if self.client.is_none() {
            Some(TRANSACTION_ENDED)
        } else {
            write(self).err()
        };
    }

    /// The client's transaction, for the first or a later request.
    fn begin_reading(&mut self) -> Result<&foundationdb::Transaction> {
        self.snapshot.since.get_or_insert_with(Instant::now);
        self.client.as_ref().ok_or(TRANSACTION_ENDED)
    }

    /// True if there is something to commit and the read version is not fixed yet.
    fn lacks_version(&self) -> bool {
        let nothing = self.pending.is_read_only() && self.watches.is_empty();
        !nothing && !self.snapshot.settled
    }

    /// Takes what is to be committed, if anything.
    fn end(&mut self) -> Result<Option<Commit>> {
        let client = self.client.take().ok_or(TRANSACTION_ENDED)?;
        let watches = std::mem::take(&mut self.watches);
        if self.pending.is_read_only() && watches.is_empty() {
            return Ok(None);
        }
        let size = self.pending.size();
        Ok(Some(Commit {
            client,
            request: self.pending.take(None),
            watches,
            size,
        }))
    }

    /// Requests the version without waiting for it.
    fn ask_for_version(&mut self) -> Result<()> {
        if self.snapshot.since.is_none() {
            let asked = self.begin_reading()?.get_read_version();
            self.snapshot.asked = Some(Box::pin(asked));
        }
        Ok(())
    }
}

impl fmt::Debug for FdbTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FdbTransaction")
            .field("fdb", &self.fdb)
            .field("pending", &self.lock().pending)
            .finish_non_exhaustive()
    }
}
