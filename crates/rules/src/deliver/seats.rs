//! The seats of a node, one for each call in progress.
//!
//! If calls have to wait, a free seat goes to the endpoint with the fewest seats; among equals, to the one whose last
//! seat was given the longest ago. Some are reserved for endpoints without seats, which then need not wait for slow calls.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// One seat in this many is reserved for endpoints without seats.
const RESERVED: usize = 8;

pub(super) struct Seats {
    reserved: usize,
    state: Mutex<State>,
}

struct State {
    free: usize,
    /// How many seats have been given.
    given: u64,
    /// In order of arrival.
    line: Vec<Waiting>,
}

struct Waiting {
    share: Arc<Share>,
    seat: oneshot::Sender<Taken>,
}

/// The seats of one endpoint. Changes only while the state is locked.
#[derive(Default)]
pub(super) struct Share {
    seats: AtomicUsize,
    /// The number of the last one.
    last: AtomicU64,
}

/// A seat. Dropping it frees it.
pub(super) struct Taken {
    seats: Arc<Seats>,
    share: Arc<Share>,
}

impl Seats {
    pub(super) fn new(max: usize) -> Self {
        Self {
            reserved: max / RESERVED,
            state: Mutex::new(State {
                free: max,
                given: 0,
                line: Vec::new(),
            }),
        }
    }

    pub(super) fn free(&self) -> usize {
        self.state().free
    }

    /// Waits for a seat.
    pub(super) async fn take(self: &Arc<Self>, share: &Arc<Share>) -> Taken {
        let (seat, taken) = oneshot::channel();
        self.state().line.push(Waiting {
            share: Arc::clone(share),
            seat,
        });
        self.give();
        taken.await.expect("those in the line are given a seat")
    }

    /// Gives free seats to those whose turn it is.
    fn give(self: &Arc<Self>) {
        loop {
            let next = self.state().next(self.reserved);
            let Some(Waiting { share, seat }) = next else {
                return;
            };
            let seats = Arc::clone(self);
            // If the call was given up just now, this frees the seat.
            drop(seat.send(Taken { seats, share }));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes a seat for the next in line.
    fn next(&mut self, reserved: usize) -> Option<Waiting> {
        if self.free == 0 {
            return None;
        }
        self.line.retain(|waiting| !waiting.seat.is_closed());
        let turns = self.line.iter().enumerate().map(|(place, waiting)| {
            let Share { seats, last } = &*waiting.share;
            let turn = (seats.load(Ordering::Relaxed), last.load(Ordering::Relaxed));
            (turn, place)
        });
        let ((has, _), place) = turns.min()?;
        if has > 0 && self.free <= reserved {
            return None;
        }
        let next = self.line.remove(place);
        (self.free, self.given) = (self.free - 1, self.given + 1);
        next.share.seats.store(has + 1, Ordering::Relaxed);
        next.share.last.store(self.given, Ordering::Relaxed);
        Some(next)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut state = self.seats.state();
        state.free += 1;
        self.share.seats.fetch_sub(1, Ordering::Relaxed);
        drop(state);
        self.seats.give();
    }
}
