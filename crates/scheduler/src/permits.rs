//! Permits of running jobs; a node has `max_jobs` of them. A parked job has none, and needs one when its source has changed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// How often a run that has caught up checks whether permits have become scarcer.
const CHECK: Duration = Duration::from_secs(1);

/// After none was free, permits are kept this long for jobs that wait in the queue.
const KEPT: Duration = Duration::from_secs(1);

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
    /// When one became free after none was.
    freed: Option<Instant>,
}

impl State {
    fn free(&self) -> usize {
        self.max.saturating_sub(self.taken)
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
                freed: None,
            }),
            free: watch::Sender::new(max),
            none_free: watch::Sender::new(max == 0),
        }))
    }

    pub(crate) fn set_max(&self, max: usize) {
        self.change(|state| state.max = max);
    }

    pub(crate) fn taken(&self) -> usize {
        self.state().taken
    }

    /// Permits available to jobs of the queue.
    pub(crate) fn free(&self) -> watch::Receiver<usize> {
        self.0.free.subscribe()
    }

    /// Takes a permit, even above the limit.
    pub(crate) fn take(&self) -> Permit {
        self.change(|state| state.taken += 1);
        Permit(self.clone())
    }

    /// Takes a permit for a parked job. `None` if jobs of the queue may be waiting for it.
    pub(crate) fn take_free(&self) -> Option<Permit> {
        let is_kept = |freed: Instant| freed.elapsed() < KEPT;
        let taken = self.change(|state| {
            let may_take = state.free() > 0 && !state.freed.is_some_and(is_kept);
            state.taken += usize::from(may_take);
            may_take
        });
        taken.then(|| Permit(self.clone()))
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

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = {
            let mut state = self.state();
            let none_free = state.free() == 0;
            let result = change(&mut state);
            if none_free && state.free() > 0 {
                state.freed = Some(Instant::now());
            }
            result
        };
        self.show();
        result
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
        self.0.change(|state| state.taken -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(permits: &Permits) -> usize {
        *permits.free().borrow()
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_of_the_queue_come_before_parked_ones() {
        let permits = Permits::new(2);
        let first = permits.take_free().expect("none was needed before");
        let second = permits.take();
        assert!(permits.take_free().is_none());
        drop(first);
        assert_eq!((permits.taken(), free(&permits)), (1, 1));
        assert!(permits.take_free().is_none(), "the queue may need it");
        tokio::time::advance(KEPT).await;
        let third = permits.take_free().expect("the queue did not need it");
        assert_eq!((permits.taken(), free(&permits)), (2, 0));
        drop((second, third));
        assert_eq!((permits.taken(), free(&permits)), (0, 2));
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

    #[tokio::test(start_paused = true)]
    async fn the_limit_may_change() {
        let permits = Permits::new(0);
        assert!(permits.take_free().is_none());
        permits.set_max(2);
        assert_eq!((permits.taken(), free(&permits)), (0, 2));
        assert!(permits.take_free().is_none(), "the queue comes first");
        let _more = [permits.take(), permits.take(), permits.take()];
        assert_eq!((permits.taken(), free(&permits)), (3, 0));
    }
}
