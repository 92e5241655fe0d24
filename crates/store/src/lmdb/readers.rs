//! A pool of LMDB read transactions that all see the same state of the tree.
//!
//! A read takes one for its duration, so any number of snapshots needs only about as many as there are
//! threads. The pool has several slots, one preferred by each thread, to avoid contention.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use heed::{RoTxn, WithoutTls};

use crate::{Error, Result};

pub(super) type Reader = RoTxn<'static, WithoutTls>;

const SLOTS: usize = 16;
/// How long a read waits before it tries again. It is usually notified sooner.
const PATIENCE: Duration = Duration::from_millis(1);

pub(super) struct Readers {
    slots: [Slot; SLOTS],
    waiting: Mutex<()>,
    /// The number of waiting reads, so that returning a reader needs a system call only if there are any.
    waiters: AtomicUsize,
    returned: Condvar,
}

/// `None` once the pool is closed. Slots do not share cache lines.
#[repr(align(64))]
struct Slot(Mutex<Option<Vec<Reader>>>);

impl Readers {
    pub(super) fn new(first: Reader) -> Self {
        let readers = Self {
            slots: std::array::from_fn(|_| Slot(Mutex::new(Some(Vec::new())))),
            waiting: Mutex::new(()),
            waiters: AtomicUsize::new(0),
            returned: Condvar::new(),
        };
        readers.give_back(first);
        readers
    }

    /// Takes a reader; `another` creates one, which is possible until the tree changes.
    pub(super) fn take(&self, another: impl Fn() -> Option<Reader>) -> Result<Reader> {
        let own = own_slot();
        loop {
            if let Some(reader) = self.lock(own).as_mut().ok_or(Error::TooOld)?.pop() {
                return Ok(reader);
            }
            if let Some(reader) = another() {
                return Ok(reader);
            }
            // The tree has changed, so only existing readers see this state.
            for slot in 0..SLOTS {
                if let Some(reader) = self.lock(slot).as_mut().and_then(Vec::pop) {
                    return Ok(reader);
                }
            }
            self.waiters.fetch_add(1, Ordering::Relaxed);
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.returned.wait_timeout(waiting, PATIENCE));
            self.waiters.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn give_back(&self, reader: Reader) {
        let mut slot = self.lock(own_slot());
        let closed = match slot.as_mut() {
            Some(idle) => {
                idle.push(reader);
                None
            }
            None => Some(reader),
        };
        drop(slot);
        drop(closed);
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.returned.notify_one();
        }
    }

    /// Ends all readers; those in use end when they are returned.
    pub(super) fn close(&self) {
        for slot in 0..SLOTS {
            let idle = self.lock(slot).take();
            drop(idle);
        }
    }

    fn lock(&self, slot: usize) -> MutexGuard<'_, Option<Vec<Reader>>> {
        let Slot(idle) = &self.slots[slot];
        idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn own_slot() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SLOT: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SLOTS;
    }
    SLOT.with(|slot| *slot)
}
