//! Errors of the service, by what the caller does next.

use seal::Unreadable;
use store::AsStoreError;

use replication::params::Invalid;

/// The cases that an HTTP server must tell apart. Texts are CouchDB's `reason`s if it has one; none holds credentials.
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
    /// No such job: 404 `not_found`.
    #[error("missing")]
    Missing,
    /// The process is stopping, or does not follow jobs: 503.
    #[error("the service was stopped")]
    Stopped,
    /// Credentials cannot be opened: a key is missing, or the stored text was altered. For the operator: 500.
    #[error("cannot open sealed credentials")]
    Unreadable(#[from] Unreadable),
    #[error(transparent)]
    Docs(#[from] docstore::Error),
    #[error(transparent)]
    Jobs(#[from] jobs::Error),
    /// The store failed, after retries of retryable errors.
    #[error("the store failed")]
    Store(#[from] store::Error),
}

impl From<seal::Error> for ServiceError {
    fn from(error: seal::Error) -> Self {
        match error {
            seal::Error::Unreadable(error) => error.into(),
            seal::Error::Store(error) => error.into(),
        }
    }
}

impl ServiceError {
    pub(crate) fn corrupt(what: &str) -> Self {
        Self::Store(store::Error::Corrupt {
            message: format!("replicator: {what}"),
            source: None,
        })
    }

    /// Others change the same rows so often that a transaction about fewer jobs may succeed.
    pub fn is_contended(&self) -> bool {
        use store::Error as Store;
        matches!(
            self.as_store_error(),
            Some(Store::Conflict | Store::TooOld | Store::MaybeCommitted)
        )
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
