//! Permits of running jobs; a node has `max_jobs` of them. A parked job has none, and waits in a queue for one when its
//! source has changed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};

/// How often a run that has caught up checks whether permits have become scarcer.
const CHECK: Duration = Duration::from_secs(1);

/// The permits of a node. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Permits(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    free: watch::Sender<usize>,
    /// Separate from `free`, which changes with every run and would wake all runs that have caught up.
    none_free: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    max: usize,
    taken: usize,
    waiting: VecDeque<oneshot::Sender<Permit>>,
}

impl State {
    fn free(&self) -> usize {
        self.max.saturating_sub(self.taken + self.waiting.len())
    }
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
            none_free: watch::Sender::new(max == 0),
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

    /// Waits while a run that has caught up may keep its permit: `longest` times the share of permits that are free, or
    /// until none is. Such runs therefore end one by one instead of all at once when the last permit is taken.
    pub(crate) async fn patience(&self, longest: Duration) {
        let began = Instant::now();
        let mut none_free = self.0.none_free.subscribe();
        loop {
            let patience = longest.mul_f64(self.share_free());
            let left = patience.saturating_sub(began.elapsed());
            if left.is_zero() {
                return;
            }
            let scarce = none_free.wait_for(|none_free| *none_free);
            if timeout(left.min(CHECK), scarce).await.is_ok() {
                return;
            }
        }
    }

    fn share_free(&self) -> f64 {
        let (free, max) = {
            let state = self.state();
            (state.free(), state.max)
        };
        let number = |permits| f64::from(u32::try_from(permits).unwrap_or(u32::MAX));
        number(free) / number(max.max(1))
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

    /// Counts while holding the channel's lock, so that two threads cannot publish their counts in the wrong order.
    fn show(&self) {
        let free = || self.state().free();
        self.0.free.send_if_modified(|shown| {
            let free = free();
            std::mem::replace(shown, free) != free
        });
        self.0.none_free.send_if_modified(|shown| {
            let none_free = free() == 0;
            std::mem::replace(shown, none_free) != none_free
        });
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

    #[tokio::test(start_paused = true)]
    async fn runs_that_have_caught_up_end_sooner_with_fewer_free_permits() {
        let permits = Permits::new(4);
        let ends_after = async |began: Instant| {
            permits.patience(Duration::from_secs(8)).await;
            began.elapsed().as_secs()
        };
        let first = permits.take();
        assert_eq!(ends_after(Instant::now()).await, 6);
        let second = permits.take();
        assert_eq!(ends_after(Instant::now()).await, 4);
        let became_scarce = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            (permits.take(), permits.take())
        };
        let (ended, _others) = tokio::join!(ends_after(Instant::now()), became_scarce);
        assert_eq!(ended, 2, "without waiting for the next check");
        assert_eq!(ends_after(Instant::now()).await, 0);
        drop((first, second));
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
