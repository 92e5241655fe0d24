//! Errors, by what the caller does next.

use store::AsStoreError;

use crate::Unreadable;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Other keys are needed.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error("the store failed")]
    Store(#[from] store::Error),
}

impl Error {
    pub(crate) fn corrupt(what: &str) -> Self {
        Self::Store(store::Error::Corrupt {
            message: format!("keys: {what}"),
            source: None,
        })
    }
}

impl AsStoreError for Error {
    fn as_store_error(&self) -> Option<&store::Error> {
        match self {
            Self::Store(error) => Some(error),
            Self::Unreadable(_) => None,
        }
    }
}
