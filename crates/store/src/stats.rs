//! Statistics of transactions by name, kept for benchmarks and tests and reported to the `metrics`
//! facade.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::Error;

/// Calls of `transact`, by transaction and outcome.
const TRANSACTIONS: &str = "davenport_store_transactions_total";
/// Attempts; many per transaction mean contention.
const ATTEMPTS: &str = "davenport_store_attempts_total";
/// Attempts that were retried, by transaction and reason.
const RETRIES: &str = "davenport_store_retries_total";
/// Seconds from the call to its result.
const SECONDS: &str = "davenport_store_transaction_seconds";
/// Bytes committed, as [`crate::limits`] counts them.
const BYTES: &str = "davenport_store_bytes_total";

/// Statistics of the transactions of one name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransactionStats {
    /// Calls that ended, with or without an error.
    pub calls: u64,
    /// Attempts of all calls.
    pub attempts: u64,
    /// Attempts that ended in a conflict.
    pub conflicts: u64,
    /// Attempts with an unknown outcome.
    pub maybe_committed: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Bytes committed.
    pub bytes: u64,
    /// Total microseconds from calls to results.
    pub micros: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    calls: AtomicU64,
    attempts: AtomicU64,
    conflicts: AtomicU64,
    maybe_committed: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    micros: AtomicU64,
}

/// The counters of one store handle, by transaction name.
#[derive(Debug, Default)]
pub(crate) struct Stats(RwLock<BTreeMap<&'static str, Arc<Counters>>>);

impl Stats {
    pub(crate) fn of(&self, name: &'static str) -> Arc<Counters> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(counters) = known.get(name) {
            return Arc::clone(counters);
        }
        drop(known);
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(name).or_default())
    }

    pub(crate) fn all(&self) -> BTreeMap<&'static str, TransactionStats> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.iter()
            .map(|(name, counters)| (*name, counters.read()))
            .collect()
    }
}

impl Counters {
    pub(crate) fn attempt(&self, name: &'static str) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        metrics::counter!(ATTEMPTS, "transaction" => name).increment(1);
    }

    pub(crate) fn retry(&self, name: &'static str, error: &Error) {
        match error {
            Error::Conflict => drop(self.conflicts.fetch_add(1, Ordering::Relaxed)),
            Error::MaybeCommitted => drop(self.maybe_committed.fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
        metrics::counter!(RETRIES, "transaction" => name, "reason" => error.label()).increment(1);
    }

    pub(crate) fn end(&self, name: &'static str, outcome: &'static str, took: Duration) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if outcome != "committed" {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        metrics::counter!(TRANSACTIONS, "transaction" => name, "outcome" => outcome).increment(1);
        metrics::histogram!(SECONDS, "transaction" => name).record(took);
    }

    pub(crate) fn bytes(&self, name: &'static str, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        metrics::counter!(BYTES, "transaction" => name).increment(bytes as u64);
    }

    fn read(&self) -> TransactionStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TransactionStats {
            calls: read(&self.calls),
            attempts: read(&self.attempts),
            conflicts: read(&self.conflicts),
            maybe_committed: read(&self.maybe_committed),
            errors: read(&self.errors),
            bytes: read(&self.bytes),
            micros: read(&self.micros),
        }
    }
}
