//! Room for jobs that work. Those that wait for changes take none, and stand in line for it when there are some.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{oneshot, watch};

/// The seats of a node. All clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Slots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    room: watch::Sender<usize>,
}

#[derive(Debug)]
struct State {
    max: usize,
    taken: usize,
    waiting: VecDeque<oneshot::Sender<Seat>>,
}

/// Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Seat(Slots);

impl Slots {
    pub(crate) fn new(max: usize) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                max,
                taken: 0,
                waiting: VecDeque::new(),
            }),
            room: watch::Sender::new(max),
        }))
    }

    pub(crate) fn set_max(&self, max: usize) {
        self.state().max = max;
        self.seat_waiting();
    }

    pub(crate) fn taken(&self) -> usize {
        self.state().taken
    }

    /// How many are free, and how many will be: who waits for one comes first.
    pub(crate) fn room(&self) -> watch::Receiver<usize> {
        self.0.room.subscribe()
    }

    /// Takes a seat, also where there is none left.
    pub(crate) fn take(&self) -> Seat {
        self.state().taken += 1;
        self.show();
        Seat(self.clone())
    }

    /// A seat, when it is this one's turn.
    pub(crate) async fn wait(&self) -> Seat {
        let turn = {
            let mut state = self.state();
            let (seat, turn) = oneshot::channel();
            state.waiting.push_back(seat);
            turn
        };
        self.seat_waiting();
        match turn.await {
            Ok(seat) => seat,
            // Nobody drops a sender that it has not used.
            Err(_) => self.take(),
        }
    }

    fn seat_waiting(&self) {
        loop {
            let next = {
                let mut state = self.state();
                if state.taken >= state.max {
                    break;
                }
                let Some(next) = state.waiting.pop_front() else {
                    break;
                };
                if next.is_closed() {
                    continue;
                }
                state.taken += 1;
                next
            };
            // Whoever has gone away gives it back by that.
            drop(next.send(Seat(self.clone())));
        }
        self.show();
    }

    fn show(&self) {
        let room = {
            let state = self.state();
            state.max.saturating_sub(state.taken + state.waiting.len())
        };
        let changes = |old: &mut usize| std::mem::replace(old, room) != room;
        self.0.room.send_if_modified(changes);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        (self.0.state.lock()).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.state().taken -= 1;
        self.0.seat_waiting();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn room(slots: &Slots) -> usize {
        *slots.room().borrow()
    }

    #[tokio::test]
    async fn who_waits_is_seated_in_order() {
        let slots = Slots::new(1);
        let first = slots.take();
        assert_eq!((slots.taken(), room(&slots)), (1, 0));
        let mut second = Box::pin(slots.wait());
        let mut third = Box::pin(slots.wait());
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        drop(first);
        assert!((&mut third).now_or_never().is_none());
        let second = second.now_or_never().expect("seated");
        assert_eq!((slots.taken(), room(&slots)), (1, 0));
        drop(second);
        let third = third.now_or_never().expect("seated");
        drop(third);
        assert_eq!((slots.taken(), room(&slots)), (0, 1));
    }

    #[tokio::test]
    async fn who_went_away_takes_no_seat() {
        let slots = Slots::new(1);
        let first = slots.take();
        let mut gone = Box::pin(slots.wait());
        assert!((&mut gone).now_or_never().is_none());
        drop(gone);
        let mut seated = Box::pin(slots.wait());
        assert!((&mut seated).now_or_never().is_none());
        drop(first);
        // Seated, and gone before it has looked.
        drop(seated);
        assert_eq!((slots.taken(), room(&slots)), (0, 1));
    }

    #[tokio::test]
    async fn the_number_may_change() {
        let slots = Slots::new(0);
        let mut waiting = Box::pin(slots.wait());
        assert!((&mut waiting).now_or_never().is_none());
        slots.set_max(2);
        let _seat = waiting.now_or_never().expect("seated");
        let _more = [slots.take(), slots.take()];
        assert_eq!((slots.taken(), room(&slots)), (3, 0));
    }
}
