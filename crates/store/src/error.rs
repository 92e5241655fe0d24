//! What can go wrong, by what the caller does next.

use std::fmt;
use std::sync::Arc;

/// The cause of an error, shared because one failed group commit answers many transactions.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// Why a transaction did not do what was asked.
///
/// [`Store::transact`](crate::Store::transact) retries what [`Error::is_retryable`] names, until its
/// deadline or retry limit; then the caller gets the last error, or [`Error::MaybeCommitted`] when
/// any attempt ended so.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Retry: another transaction changed what this one read.
    #[error("another transaction changed what this one read")]
    Conflict,
    /// Retry the same transaction, which has to recognise its own earlier success.
    #[error("the store did not say whether the transaction was committed")]
    MaybeCommitted,
    /// Retry, with less work in one transaction.
    #[error("the transaction outlived its {} second snapshot", crate::limits::TRANSACTION_AGE_MAX.as_secs())]
    TooOld,
    /// Retry later: the store cannot be reached, or did not answer in time.
    #[error("the store is unavailable: {message}")]
    Unavailable {
        /// What did not answer, and what to do about it.
        message: String,
        /// What the backend said.
        #[source]
        source: Option<Cause>,
    },
    /// Make it smaller: retrying is of no use.
    #[error("{limit} of {size} bytes is {} over the limit of {max}", size - max)]
    TooLarge {
        /// Which limit.
        limit: Limit,
        /// The size that was asked for.
        size: usize,
        /// The largest size allowed.
        max: usize,
    },
    /// Poll instead of watching.
    #[error("the store has {max} watches, its most")]
    TooManyWatches {
        /// How many watches a store handle has at most.
        max: usize,
    },
    /// Make room, as the message says; everything committed is intact.
    #[error("the store is full: {message}")]
    Full {
        /// What is full and how to give it room.
        message: String,
        /// What the backend said.
        #[source]
        source: Option<Cause>,
    },
    /// Fix the program: the call breaks the contract.
    #[error("misuse of the store: {0}")]
    Misuse(&'static str),
    /// Fix the configuration or the environment, as the message says.
    #[error("{message}")]
    Open {
        /// What was asked for, why it cannot be had, and what to do.
        message: String,
        /// What the backend said.
        #[source]
        source: Option<Cause>,
    },
    /// Stop: what is stored is not what was written.
    #[error("the store is corrupt: {message}")]
    Corrupt {
        /// What was found where.
        message: String,
        /// What the backend said.
        #[source]
        source: Option<Cause>,
    },
}

impl Error {
    /// True when the same transaction may succeed if it is run again.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Conflict | Self::MaybeCommitted | Self::TooOld | Self::Unavailable { .. }
        )
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable {
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn open(message: impl Into<String>) -> Self {
        Self::Open {
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::Corrupt {
            message: message.into(),
            source: None,
        }
    }

    /// The label of the error in metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::MaybeCommitted => "maybe_committed",
            Self::TooOld => "too_old",
            Self::Unavailable { .. } => "unavailable",
            Self::TooLarge { .. } => "too_large",
            Self::TooManyWatches { .. } => "too_many_watches",
            Self::Full { .. } => "full",
            Self::Misuse(_) => "misuse",
            Self::Open { .. } => "open",
            Self::Corrupt { .. } => "corrupt",
        }
    }
}

/// What has a largest size; see [`crate::limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// One key.
    Key,
    /// One value.
    Value,
    /// All that one transaction writes and has to be checked against.
    Transaction,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "key",
            Self::Value => "value",
            Self::Transaction => "transaction",
        })
    }
}

/// How the retry loop finds the store's error inside a layer's own error type.
///
/// A trait rather than a walk along `source()`, which a transparent wrapper would hide.
pub trait AsStoreError {
    /// The store's error, if that is what this error is about.
    fn as_store_error(&self) -> Option<&Error>;
}

impl AsStoreError for Error {
    fn as_store_error(&self) -> Option<&Error> {
        Some(self)
    }
}
