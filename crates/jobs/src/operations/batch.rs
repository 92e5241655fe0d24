//! Transactions of the background services on many jobs, sized by what succeeds.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use store::{AsStoreError, Call, Transaction};

use crate::testing::planted::Bug;
use crate::{Error, Jobs, Result};

/// Concurrent transactions of a service.
const AT_ONCE: usize = 4;
/// Retries of a transaction on a single job after a conflict, before it is left to the next turn: others
/// may wait for the end of the batch.
const SINGLE_RETRIES: u32 = 3;

/// The number of jobs per transaction of a service. Halved when one conflicts or takes too long, and
/// increased by an eighth with each success at this size.
#[derive(Debug)]
pub(crate) struct Batch {
    size: AtomicUsize,
    max: usize,
}

impl Batch {
    pub(crate) const fn new(max: usize) -> Self {
        Self {
            size: AtomicUsize::new(max),
            max,
        }
    }

    /// Runs `work` on all `items` and passes the result of each part to `done`. A part that fails is
    /// divided, down to single items, so that one bad item does not fail the others.
    ///
    /// `work` must recognise what an earlier transaction may have committed without
    /// [`Transaction::maybe_committed`]: the halves of a part are new transactions.
    pub(crate) async fn each<'a, T: Sync, R, Fut>(
        &self,
        jobs: &Jobs,
        call: Call,
        items: &'a [T],
        work: impl Fn(Transaction, &'a [T]) -> Fut,
        mut done: impl FnMut(&'a [T], Result<R>),
    ) where
        Fut: Future<Output = Result<R>>,
    {
        let (mut waiting, mut running) = (vec![items], FuturesUnordered::new());
        let splits = !jobs.planted().is(Bug::BatchNeverSplits);
        loop {
            while running.len() < AT_ONCE
                && let Some(part) = waiting.pop()
            {
                let (part, rest) = part.split_at(part.len().min(self.size()));
                if !rest.is_empty() {
                    waiting.push(rest);
                }
                let single = part.len() == 1;
                let call = if splits {
                    call.contention_max(if single { SINGLE_RETRIES } else { 0 })
                } else {
                    call
                };
                let work = &work;
                running.push(async move {
                    let ended = jobs.store().transact(call, |tx| work(tx, part)).await;
                    (part, ended)
                });
            }
            let Some((part, ended)) = running.next().await else {
                return;
            };
            match ended {
                Err(error) if splits && part.len() > 1 && self.shrinks(part.len(), &error) => {
                    let (first, second) = part.split_at(part.len() / 2);
                    waiting.extend([second, first]);
                }
                ended => {
                    if ended.is_ok() {
                        self.grow(part.len());
                    }
                    done(part, ended);
                }
            }
        }
    }

    fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    /// Whether smaller parts may succeed after this error. Others, such as a hook's failure for one job,
    /// do not reduce the size of later parts.
    fn shrinks(&self, tried: usize, error: &Error) -> bool {
        use store::Error as Store;
        match error.as_store_error() {
            Some(Store::Unavailable { .. } | Store::Full { .. }) => return false,
            Some(Store::Conflict | Store::TooOld | Store::TooLarge { .. }) => {
                self.size.fetch_min((tried / 2).max(1), Ordering::Relaxed);
            }
            _ => {}
        }
        true
    }

    fn grow(&self, done: usize) {
        let size = self.size();
        if done >= size {
            let grown = (size + size / 8 + 1).min(self.max);
            self.size.store(grown, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_halve_and_grow_back() {
        let batch = Batch::new(100);
        for size in [50, 25, 12] {
            assert!(batch.shrinks(batch.size(), &Error::Store(store::Error::TooOld)));
            assert_eq!(batch.size(), size);
        }
        assert!(batch.shrinks(12, &Error::Invalid("a hook failed")));
        batch.grow(11);
        assert_eq!(batch.size(), 12, "smaller parts prove nothing");
        for size in [14, 16, 19] {
            batch.grow(batch.size());
            assert_eq!(batch.size(), size);
        }
        for _ in 0..100 {
            batch.grow(batch.size());
        }
        assert_eq!(batch.size(), 100);
    }
}
