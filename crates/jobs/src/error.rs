//! Errors, by what the caller does next.

use store::AsStoreError;

use crate::JobType;

/// Why an operation on the queue failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Stop working on the job: its lock is no longer yours. The job was removed, finished, or
    /// recovered because its heartbeats stopped, and may have another holder.
    ///
    /// Inside a transaction, abort it: pass the error on with `?`.
    #[error("the job is no longer held under this lock")]
    Halt,
    /// The job does not exist.
    #[error("no such job")]
    NotFound,
    /// Register the type first, with [`Jobs::set_type`](crate::Jobs::set_type).
    #[error("job type {0} is not registered")]
    NoTypeTimeout(JobType),
    /// Nothing was changed. Retrying does not help: make it smaller.
    #[error("{what} of {size} bytes is {} over the limit of {max}", size - max)]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The size requested.
        size: usize,
        /// The largest size allowed.
        max: usize,
    },
    /// Fix the argument.
    #[error("{0}")]
    Invalid(&'static str),
    /// The service was stopped before it answered.
    #[error("the service was stopped")]
    Stopped,
    /// The store failed, after retries of retryable errors.
    #[error("the store failed")]
    Store(#[from] store::Error),
}

impl Error {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.as_store_error()
            .is_some_and(store::Error::is_retryable)
    }

    /// The error and its causes, for logs.
    pub(crate) fn chain(&self) -> impl std::fmt::Display {
        store::chain(self)
    }

    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::Store(store::Error::Corrupt {
            message: message.into(),
            source: None,
        })
    }
}

impl AsStoreError for Error {
    fn as_store_error(&self) -> Option<&store::Error> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}
