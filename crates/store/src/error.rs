//! Errors, one variant for each way to react.

use std::fmt;
use std::sync::Arc;

/// The cause of an error; shared, because a failed group commit fails many transactions.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// Why a transaction failed.
///
/// [`Store::transact`](crate::Store::transact) retries [retryable](Error::is_retryable) errors until
/// its deadline or retry limit. The caller then gets the last error, or [`Error::MaybeCommitted`] if
/// any attempt may have been committed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Retry: another transaction changed what this one read.
    #[error("another transaction changed what this one read")]
    Conflict,
    /// Retry the same transaction, which must recognise its own earlier success.
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
    /// Make it smaller; retrying does not help.
    #[error("{limit} of {size} bytes is {} over the limit of {max}", size - max)]
    TooLarge {
        /// The limit that was exceeded.
        limit: Limit,
        /// The actual size.
        size: usize,
        /// The largest size allowed.
        max: usize,
    },
    /// Poll instead of watching.
    #[error("too many watches: a store handle has at most {max}")]
    TooManyWatches {
        /// The most watches of a store handle.
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
        /// What failed, why, and what to do.
        message: String,
        /// What the backend said.
        #[source]
        source: Option<Cause>,
    },
    /// Stop: stored data is not what was written.
    #[error("the store is corrupt: {message}")]
    Corrupt {
        /// What is wrong and where.
        message: String,
        /// What the backend said.
        #[source]
        source: Option<Cause>,
    },
}

impl Error {
    /// True if the same transaction may succeed when it is run again.
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

    /// For metrics.
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

/// A handle was used after its transaction body returned.
pub(crate) const TRANSACTION_ENDED: Error =
    Error::Misuse("the transaction has ended: its handle was used after its body returned");

/// A size limit; see [`crate::limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// One key.
    Key,
    /// One value.
    Value,
    /// The writes and conflict ranges of one transaction.
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

/// An error and its causes on one line, for logs.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    let causes = causes.map(|cause| format!(": {cause}"));
    std::iter::once(error.to_string()).chain(causes).collect()
}

/// Finds the store's error inside a caller's error type, for the retry loop.
///
/// Walking along `source()` would miss errors behind `#[error(transparent)]`.
pub trait AsStoreError {
    /// The store's error, if this error wraps one.
    fn as_store_error(&self) -> Option<&Error>;
}

impl AsStoreError for Error {
    fn as_store_error(&self) -> Option<&Error> {
        Some(self)
    }
}
