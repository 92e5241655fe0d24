//! Read transactions of LMDB that all see the same state of the tree.
//!
//! A read takes one for its duration, so there are about as many as threads and any number of
//! snapshots. Each thread has its usual place to take one from, so that threads seldom meet.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use heed::{RoTxn, WithoutTls};

use crate::{Error, Result};

pub(super) type Reader = RoTxn<'static, WithoutTls>;

const PLACES: usize = 16;
/// How long a read waits before it looks for itself again. It is woken sooner.
const PATIENCE: Duration = Duration::from_millis(1);

pub(super) struct Readers {
    places: [Place; PLACES],
    waiting: Mutex<()>,
    /// How many wait: waking nobody would be a system call in every read.
    waiters: AtomicUsize,
    returned: Condvar,
}

/// `None` once they are given up. Places do not share a cache line.
#[repr(align(64))]
struct Place(Mutex<Option<Vec<Reader>>>);

impl Readers {
    pub(super) fn new(first: Reader) -> Self {
        let readers = Self {
            places: std::array::from_fn(|_| Place(Mutex::new(Some(Vec::new())))),
            waiting: Mutex::new(()),
            waiters: AtomicUsize::new(0),
            returned: Condvar::new(),
        };
        readers.give_back(first);
        readers
    }

    /// Takes a reader; `another` makes one more, as long as it can see the same state.
    pub(super) fn take(&self, another: impl Fn() -> Option<Reader>) -> Result<Reader> {
        let usual = usual_place();
        loop {
            if let Some(reader) = self.lock(usual).as_mut().ok_or(Error::TooOld)?.pop() {
                return Ok(reader);
            }
            if let Some(reader) = another() {
                return Ok(reader);
            }
            // The tree has changed: those there are must do.
            for place in 0..PLACES {
                if let Some(reader) = self.lock(place).as_mut().and_then(Vec::pop) {
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
        let mut place = self.lock(usual_place());
        let closed = match place.as_mut() {
            Some(idle) => {
                idle.push(reader);
                None
            }
            None => Some(reader),
        };
        drop(place);
        drop(closed);
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.returned.notify_one();
        }
    }

    /// Ends all readers, those in use when they come back.
    pub(super) fn close(&self) {
        for place in 0..PLACES {
            let idle = self.lock(place).take();
            drop(idle);
        }
    }

    fn lock(&self, place: usize) -> MutexGuard<'_, Option<Vec<Reader>>> {
        let Place(idle) = &self.places[place];
        idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn usual_place() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static PLACE: usize = THREADS.fetch_add(1, Ordering::Relaxed) % PLACES;
    }
    PLACE.with(|place| *place)
}
