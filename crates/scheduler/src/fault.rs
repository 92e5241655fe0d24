//! Why the service did not do what was asked, by what the caller does next.

use store::AsStoreError;

use crate::seal::Unreadable;
use replication::params::Invalid;

/// What whoever serves HTTP has to tell apart. Texts are CouchDB's `reason`s where it has one; none holds credentials.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ServiceError {
    /// The body describes no replication: 403 `forbidden` for a document, 400 `bad_request` for a request.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// 403 `forbidden`.
    #[error("{0}")]
    Forbidden(&'static str),
    /// The egress policy refuses an address: 403 `forbidden`.
    #[error("{0}")]
    Egress(String),
    /// 401 `unauthorized`.
    #[error("{0}")]
    Unauthorized(&'static str),
    /// There is no such job: 404 `not_found`.
    #[error("missing")]
    Missing,
    /// The process stops, or does not follow jobs: 503.
    #[error("the service was stopped")]
    Stopped,
    /// Credentials cannot be read: a key is missing, or somebody changed what was stored. For the operator: 500.
    #[error("read what was sealed")]
    Unreadable(#[from] Unreadable),
    /// The database's answer.
    #[error(transparent)]
    Docs(#[from] docstore::Error),
    /// The queue's answer.
    #[error(transparent)]
    Jobs(#[from] jobs::Error),
    /// The store would not; retryable errors were retried in vain.
    #[error("use the store")]
    Store(#[from] store::Error),
}

impl ServiceError {
    pub(crate) fn corrupt(what: &str) -> Self {
        Self::Store(store::Error::Corrupt {
            message: format!("replicator: {what}"),
            source: None,
        })
    }

    /// The lock on the job was lost.
    pub(crate) fn is_halt(&self) -> bool {
        matches!(self, Self::Jobs(jobs::Error::Halt))
    }
}

impl AsStoreError for ServiceError {
    fn as_store_error(&self) -> Option<&store::Error> {
        match self {
            Self::Store(error) => Some(error),
            Self::Docs(error) => error.as_store_error(),
            Self::Jobs(error) => error.as_store_error(),
            _ => None,
        }
    }
}
