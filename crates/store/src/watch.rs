//! Watches: a single notification that a key no longer has the value the transaction saw.
//!
//! A watch is created in a transaction and armed by its commit. It may fire without a change and may
//! miss a value that was replaced and restored, so waiters read the key again, and also poll.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;

use crate::limits::WATCHES_MAX;
use crate::{Error, Result};

/// A pending notification about one key; dropping it cancels it.
#[must_use = "a watch that is dropped never fires"]
pub struct Watch {
    source: Source,
    fault: WatchFault,
    _permit: WatchPermit,
}

enum Source {
    Local(Arc<Slot>),
    Remote(Pin<Box<dyn Future<Output = Result<()>> + Send + Sync>>),
}

pub(crate) const NOT_COMMITTED: Error =
    Error::Misuse("the transaction of the watch was not committed");

/// A fault that a simulation injects into a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchFault {
    None,
    Lost,
    Spurious(Duration),
}

impl Watch {
    /// Waits until the key has changed since the transaction that made the watch.
    ///
    /// After an error, changes go unnoticed: read the key again.
    pub async fn changed(self) -> Result<()> {
        let Self { source, fault, .. } = self;
        let fired = async {
            match source {
                Source::Local(slot) => slot.fired().await,
                Source::Remote(future) => future.await,
            }
        };
        match fault {
            WatchFault::None => fired.await,
            WatchFault::Lost => std::future::pending().await,
            WatchFault::Spurious(delay) => {
                tokio::time::timeout(delay, fired).await.unwrap_or(Ok(()))
            }
        }
    }

    pub(crate) fn local(slot: Arc<Slot>, fault: WatchFault, permit: WatchPermit) -> Self {
        Self {
            source: Source::Local(slot),
            fault,
            _permit: permit,
        }
    }

    pub(crate) fn remote(
        fired: impl Future<Output = Result<()>> + Send + Sync + 'static,
        fault: WatchFault,
        permit: WatchPermit,
    ) -> Self {
        Self {
            source: Source::Remote(Box::pin(fired)),
            fault,
            _permit: permit,
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// Counts against the watch limit of a store handle.
pub(crate) struct WatchPermit(Arc<AtomicUsize>);

impl WatchPermit {
    pub(crate) fn take(count: &Arc<AtomicUsize>) -> Result<Self> {
        let permit = Self(Arc::clone(count));
        // Dropping the permit takes back the increment, after an error too.
        if count.fetch_add(1, Ordering::Relaxed) >= WATCHES_MAX {
            return Err(Error::TooManyWatches { max: WATCHES_MAX });
        }
        Ok(permit)
    }
}

impl Drop for WatchPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One watch of the local backends.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) key: Bytes,
    /// The value that the transaction saw.
    pub(crate) seen: Option<Bytes>,
    notify: Notify,
    cancelled: AtomicBool,
}

impl Slot {
    pub(crate) fn new(key: Bytes, seen: Option<Bytes>) -> Arc<Self> {
        Arc::new(Self {
            key,
            seen,
            notify: Notify::new(),
            cancelled: AtomicBool::new(false),
        })
    }

    pub(crate) fn fire(&self) {
        self.notify.notify_one();
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.notify.notify_one();
    }

    async fn fired(&self) -> Result<()> {
        self.notify.notified().await;
        if self.cancelled.load(Ordering::Acquire) {
            return Err(NOT_COMMITTED);
        }
        Ok(())
    }
}

/// The armed watches of a local backend.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    slots: Mutex<HashMap<Bytes, Vec<Weak<Slot>>>>,
}

impl Watches {
    /// Arms a watch. The caller must then compare the key's newest value with the one seen: a change
    /// before the call does not fire the watch.
    pub(crate) fn arm(&self, slot: &Arc<Slot>) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() > 2 * WATCHES_MAX {
            slots.retain(|_, same_key| same_key.iter().any(|slot| slot.strong_count() > 0));
        }
        let same_key = slots.entry(slot.key.clone()).or_default();
        same_key.retain(|other| other.strong_count() > 0);
        same_key.push(Arc::downgrade(slot));
    }

    /// Fires the watches of keys that a commit wrote.
    pub(crate) fn wake(&self, keys: &[Bytes]) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.is_empty() {
            return;
        }
        for slot in keys.iter().filter_map(|key| slots.remove(key)).flatten() {
            if let Some(slot) = slot.upgrade() {
                slot.fire();
            }
        }
    }

    /// Fires the watches of all keys for which `written` is true.
    pub(crate) fn wake_where(&self, mut written: impl FnMut(&[u8]) -> bool) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, same_key) in slots.extract_if(|key, _| written(key)) {
            for slot in same_key.iter().filter_map(Weak::upgrade) {
                slot.fire();
            }
        }
    }

    /// True if there are waiters.
    pub(crate) fn any(&self) -> bool {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|_, same_key| same_key.iter().any(|slot| slot.strong_count() > 0));
        !slots.is_empty()
    }
}
