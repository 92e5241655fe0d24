//! The retry loop. No other code retries transactions.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::call::{Ahead, Attempt, Until};
use crate::stats::Counters;
use crate::{AsStoreError, Call, Durable, Error, Store, Transaction};

/// The first and the longest pause after conflicts.
const CONTENTION_PAUSE: (Duration, Duration) =
    (Duration::from_millis(1), Duration::from_millis(200));
/// The first and the longest pause while the store is unavailable.
const OUTAGE_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

impl Store {
    /// Runs `body` in a transaction until it commits, and returns its value.
    ///
    /// `body` is retried after a [retryable](Error::is_retryable) error, so it must be pure: the same
    /// reads give the same writes. Any other error ends the call without writing. Dropping the future
    /// is safe: the transaction is then either committed as a whole or not at all.
    ///
    /// At the deadline or retry limit, the caller gets the last error, or [`Error::MaybeCommitted`]
    /// if any attempt may have been committed.
    pub async fn transact<T, E, Fut>(
        &self,
        call: impl Into<Call>,
        body: impl Fn(Transaction) -> Fut,
    ) -> Result<T, E>
    where
        E: From<Error> + AsStoreError,
        Fut: Future<Output = Result<T, E>>,
    {
        let call = call.into();
        let until = if call.durable {
            Until::Durable
        } else {
            Until::Visible
        };
        self.counted_retry(call, until, body).await
    }

    /// [`Self::transact`], but returns as soon as the writes are visible to others. The caller waits for [`Durable`]
    /// before it reports the result to anyone. On other stores than LMDB there is nothing left to wait for.
    pub async fn transact_ahead<T, E, Fut>(
        &self,
        call: impl Into<Call>,
        body: impl Fn(Transaction) -> Fut,
    ) -> Result<(T, Durable), E>
    where
        E: From<Error> + AsStoreError,
        Fut: Future<Output = Result<T, E>>,
    {
        let ahead = Ahead::default();
        let until = Until::Ahead(ahead.clone());
        let value = self.counted_retry(call.into(), until, body).await?;
        Ok((value, ahead.take()))
    }

    async fn counted_retry<T, E, Fut>(
        &self,
        call: Call,
        until: Until,
        body: impl Fn(Transaction) -> Fut,
    ) -> Result<T, E>
    where
        E: From<Error> + AsStoreError,
        Fut: Future<Output = Result<T, E>>,
    {
        let counters = self.stats_of(call.name);
        let started = Instant::now();
        let result = self.retry(call, until, &counters, started, body).await;
        let outcome = match &result {
            Ok(_) => "committed",
            Err(error) => error.as_store_error().map_or("aborted", Error::label),
        };
        counters.end(call.name, outcome, started.elapsed());
        result
    }

    async fn retry<T, E, Fut>(
        &self,
        call: Call,
        until: Until,
        counters: &Counters,
        started: Instant,
        body: impl Fn(Transaction) -> Fut,
    ) -> Result<T, E>
    where
        E: From<Error> + AsStoreError,
        Fut: Future<Output = Result<T, E>>,
    {
        let deadline = started + call.deadline;
        let mut attempt = Attempt {
            name: call.name,
            number: 1,
            maybe_committed: false,
            until,
            call: Arc::default(),
        };
        let (mut outage, mut contended) = (None, 0);
        loop {
            counters.attempt(call.name);
            let tx = self.begin(attempt.clone(), call.priority)?;
            let ends = async {
                let value = body(tx.clone()).await?;
                tx.prepare().await?;
                Ok(value)
            };
            let result = match timeout_at(deadline, ends).await {
                Ok(result) => result,
                // The error of the attempt before says more than a time-out.
                Err(_) => Err(outage.take().unwrap_or_else(|| {
                    E::from(Error::unavailable(format!(
                        "{} did not end within {:?}",
                        call.name, call.deadline
                    )))
                })),
            };
            let error = match result {
                Ok(value) => match commit(&tx, deadline, counters).await {
                    Ok(()) => return Ok(value),
                    Err(error) => E::from(error),
                },
                Err(error) => error,
            };
            let Some(reason) = error.as_store_error().filter(|e| e.is_retryable()) else {
                let error = settle(&tx, deadline, error).await;
                // An earlier attempt may have been committed before the store was full.
                let full = matches!(error.as_store_error(), Some(Error::Full { .. }));
                return Err(if full && attempt.maybe_committed {
                    E::from(Error::MaybeCommitted)
                } else {
                    error
                });
            };
            counters.retry(call.name, reason);
            attempt.maybe_committed |= matches!(reason, Error::MaybeCommitted);
            contended += u32::from(matches!(reason, Error::Conflict | Error::TooOld));
            let resume = Instant::now() + self.pause(reason, attempt.number);
            let over = attempt.number > call.retries_max || contended > call.contention_max;
            if over || resume >= deadline {
                return Err(if attempt.maybe_committed {
                    E::from(Error::MaybeCommitted)
                } else {
                    error
                });
            }
            tracing::debug!(transaction = call.name, attempt = attempt.number, %reason, "retrying");
            outage = matches!(reason, Error::Unavailable { .. }).then_some(error);
            sleep_until(resume).await;
            attempt.number += 1;
        }
    }

    /// Exponential back-off with full jitter.
    fn pause(&self, reason: &Error, attempt: u32) -> Duration {
        let (first, longest) = match reason {
            Error::Unavailable { .. } => OUTAGE_PAUSE,
            _ => CONTENTION_PAUSE,
        };
        let grown = first.saturating_mul(1 << attempt.saturating_sub(1).min(16));
        grown.min(longest).mul_f64(self.jitter())
    }
}

/// An error that ends the call may depend on what the body read, which must be durable first.
async fn settle<E>(tx: &Transaction, deadline: Instant, error: E) -> E
where
    E: From<Error> + AsStoreError,
{
    match timeout_at(deadline, tx.abandon()).await {
        Ok(Ok(())) => error,
        Ok(Err(unsettled)) => E::from(unsettled),
        Err(_) => E::from(Error::unavailable(format!(
            "what {} has read is not yet durable",
            tx.name()
        ))),
    }
}

async fn commit(tx: &Transaction, deadline: Instant, counters: &Counters) -> Result<(), Error> {
    let size = tx.approximate_size();
    let name = tx.name();
    match timeout_at(deadline, tx.commit()).await {
        Ok(Ok(())) => {
            counters.bytes(name, size);
            Ok(())
        }
        Ok(Err(error)) => Err(error),
        // The commit may still be applied.
        Err(_) => Err(Error::MaybeCommitted),
    }
}
