//! Permits of running jobs; a node has `max_jobs` of them. A parked job has none, and waits in a queue for one when its
//! source has changed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{oneshot, watch};

/// The permits of a node. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Permits(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    free: watch::Sender<usize>,
}

#[derive(Debug)]
struct State {
    max: usize,
    taken: usize,
    waiting: VecDeque<oneshot::Sender<Permit>>,
}

/// Released on drop.
#[derive(Debug)]
pub(crate) struct Permit(Permits);

impl Permits {
    pub(crate) fn new(max: usize) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                max,
                taken: 0,
                waiting: VecDeque::new(),
            }),
            free: watch::Sender::new(max),
        }))
    }

    pub(crate) fn set_max(&self, max: usize) {
        self.state().max = max;
        self.grant_waiting();
    }

    pub(crate) fn taken(&self) -> usize {
        self.state().taken
    }

    /// Permits available to new jobs: waiting parked jobs come first.
    pub(crate) fn free(&self) -> watch::Receiver<usize> {
        self.0.free.subscribe()
    }

    /// Takes a permit, even above the limit.
    pub(crate) fn take(&self) -> Permit {
        self.state().taken += 1;
        self.show();
        Permit(self.clone())
    }

    /// Waits for a permit, in order of the calls.
    pub(crate) async fn wait(&self) -> Permit {
        let (sender, receiver) = oneshot::channel();
        self.state().waiting.push_back(sender);
        self.grant_waiting();
        match receiver.await {
            Ok(permit) => permit,
            // Senders are dropped only after use.
            Err(_) => self.take(),
        }
    }

    fn grant_waiting(&self) {
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
            // If the receiver is gone, the permit is dropped and thereby released.
            drop(next.send(Permit(self.clone())));
        }
        self.show();
    }

    fn show(&self) {
        let free = {
            let state = self.state();
            state.max.saturating_sub(state.taken + state.waiting.len())
        };
        let changes = |old: &mut usize| std::mem::replace(old, free) != free;
        self.0.free.send_if_modified(changes);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        (self.0.state.lock()).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.state().taken -= 1;
        self.0.grant_waiting();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn free(permits: &Permits) -> usize {
        *permits.free().borrow()
    }

    #[tokio::test]
    async fn permits_are_given_in_order() {
        let permits = Permits::new(1);
        let first = permits.take();
        assert_eq!((permits.taken(), free(&permits)), (1, 0));
        let mut second = Box::pin(permits.wait());
        let mut third = Box::pin(permits.wait());
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        drop(first);
        assert!((&mut third).now_or_never().is_none());
        let second = second.now_or_never().expect("a permit");
        assert_eq!((permits.taken(), free(&permits)), (1, 0));
        drop(second);
        let third = third.now_or_never().expect("a permit");
        drop(third);
        assert_eq!((permits.taken(), free(&permits)), (0, 1));
    }

    #[tokio::test]
    async fn a_dropped_waiter_takes_no_permit() {
        let permits = Permits::new(1);
        let first = permits.take();
        let mut gone = Box::pin(permits.wait());
        assert!((&mut gone).now_or_never().is_none());
        drop(gone);
        let mut waiting = Box::pin(permits.wait());
        assert!((&mut waiting).now_or_never().is_none());
        drop(first);
        // It was granted its permit, and is dropped before it takes it.
        drop(waiting);
        assert_eq!((permits.taken(), free(&permits)), (0, 1));
    }

    #[tokio::test]
    async fn the_limit_may_change() {
        let permits = Permits::new(0);
        let mut waiting = Box::pin(permits.wait());
        assert!((&mut waiting).now_or_never().is_none());
        permits.set_max(2);
        let _seat = waiting.now_or_never().expect("a permit");
        let _more = [permits.take(), permits.take()];
        assert_eq!((permits.taken(), free(&permits)), (3, 0));
    }
}
