//! Shares work between all callers that want it at the same time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};

/// Above this many entries, those without callers are removed.
const ENTRIES_MAX: usize = 1_000;

type Work<T> = BoxFuture<'static, T>;

/// Work in progress by a keyed digest of its purpose, so that no credentials are kept.
pub(crate) struct Once<T: Clone>(Mutex<HashMap<[u8; 32], WeakShared<Work<T>>>>);

impl<T: Clone> Default for Once<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Once<T> {
    /// The work in progress for a key, or else a future made by `begin`. All callers poll it together: it continues
    /// when the first of them goes away, and ends with the last. Completed work is not shared.
    pub(crate) fn join<E>(
        &self,
        key: [u8; 32],
        begin: impl FnOnce() -> Result<Work<T>, E>,
    ) -> Result<Shared<Work<T>>, E> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = entries.get(&key).and_then(WeakShared::upgrade);
        if let Some(work) = open.filter(|work| work.peek().is_none()) {
            return Ok(work);
        }
        let work = begin()?.shared();
        if entries.len() >= ENTRIES_MAX {
            entries.retain(|_, work| work.upgrade().is_some());
        }
        entries.extend(work.downgrade().map(|weak| (key, weak)));
        Ok(work)
    }

    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        let entries = self.0.lock().unwrap();
        entries.values().all(|work| work.upgrade().is_none())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn callers_at_the_same_time_share_the_work_and_later_ones_do_not() {
        let once = Once::default();
        let (begun, go_on) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
        let ask = |key| {
            let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
            let work = async move {
                let nth = begun.fetch_add(1, Ordering::Relaxed);
                go_on.notified().await;
                nth
            };
            once.join(key, || Ok::<_, Infallible>(work.boxed()))
                .unwrap()
        };
        let (first, second) = (ask([1; 32]), ask([1; 32]));
        assert!(first.clone().now_or_never().is_none());
        // The first caller goes away.
        drop(first);
        go_on.notify_one();
        assert_eq!(second.clone().await, 0);
        go_on.notify_one();
        assert_eq!(
            ask([1; 32]).await,
            1,
            "what is done is not handed out again"
        );
        drop(second);
        let refused = once.join([2; 32], || Err::<Work<u32>, _>("full"));
        assert_eq!(refused.err(), Some("full"));
        assert!(once.is_idle());
    }

    #[test]
    fn entries_without_callers_are_removed() {
        let once = Once::default();
        let ask = |n: usize| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&n.to_be_bytes());
            let never = std::future::pending::<u32>().boxed();
            once.join(key, || Ok::<_, Infallible>(never)).unwrap()
        };
        let _kept = ask(0);
        for n in 1..=ENTRIES_MAX {
            drop(ask(n));
        }
        assert_eq!(once.0.lock().unwrap().len(), 2);
    }
}
