//! Errors, by what the caller does next. Their texts are for clients.

use jobs::{DATA_BYTES_MAX, JobType};
use seal::Unreadable;
use store::AsStoreError;

use crate::TypeName;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Fix the argument.
    #[error("{0}")]
    Invalid(String),
    /// Send less.
    #[error("{0}")]
    TooLarge(String),
    /// Make the type first.
    #[error("there is no job type `{0}`; an administrator can create it with `PUT /_jobs/{0}`")]
    NoType(TypeName),
    #[error("there is no such job; it was removed, has expired, or never existed")]
    NoJob,
    #[error("{0}")]
    NotFound(String),
    /// Not in this state.
    #[error("{0}")]
    Conflict(String),
    /// Send another key.
    #[error("this `Idempotency-Key` was used for another job; use a new key for each job")]
    KeyUsed,
    /// Try again later.
    #[error(
        "`{name}` has {max} pending jobs, its `max_pending`; add jobs when workers have caught up"
    )]
    Full { name: TypeName, max: u64 },
    /// Try again, with another node.
    #[error("the service is stopping; try again")]
    Stopped,
    #[error("the store failed")]
    Store(#[from] store::Error),
    /// Try again with another node, and give this one the keys of the others.
    #[error(
        "cannot read sealed data: {0}; give this node the key file of the others, or restore that key's line below the \
         first one: `davenport keys list` shows which keys are needed"
    )]
    Unreadable(#[from] Unreadable),
    /// Try again with another node, and give this one a key file.
    #[error(
        "`sealed` needs a key, and this node has none: set `keys.file` to the key file of the store's nodes, and restart it"
    )]
    NoKeys,
    /// A bug, or damage of the store.
    #[error("{0}")]
    Internal(String),
}

impl Error {
    pub(crate) fn corrupt(what: impl std::fmt::Display) -> Self {
        Self::Store(store::Error::Corrupt {
            message: what.to_string(),
            source: None,
        })
    }

    pub(crate) fn own_type(name: &TypeName) -> Self {
        Self::Invalid(format!(
            "`{name}` is a job type of the service itself; choose another name"
        ))
    }

    /// What a request for a type that does not exist is told.
    pub(crate) fn no_type(name: &TypeName) -> Self {
        match name.used_with() {
            Some(used_with) => Self::Invalid(format!(
                "`{name}` is a job type of the service itself: use {used_with} for its jobs, and another name for yours"
            )),
            None => Self::NoType(name.clone()),
        }
    }

    /// Whether another node may have the key.
    pub fn lacks_key(&self) -> bool {
        match self {
            Self::NoKeys => true,
            Self::Unreadable(error) => *error != Unreadable::Changed,
            _ => false,
        }
    }

    /// Whether it is about one job, which cannot be read or sealed.
    pub(crate) fn is_of_form(&self) -> bool {
        matches!(
            self,
            Self::NoKeys | Self::Unreadable(_) | Self::Store(store::Error::Corrupt { .. })
        )
    }

    /// The error as one line for people, with what is damaged.
    pub fn why(&self) -> String {
        match self {
            Self::Unreadable(error) => error.to_string(),
            Self::Store(store::Error::Corrupt { message, .. }) => message.clone(),
            error => error.to_string(),
        }
    }
}

impl From<seal::Error> for Error {
    fn from(error: seal::Error) -> Self {
        match error {
            seal::Error::Unreadable(error) => error.into(),
            seal::Error::Store(error) => error.into(),
        }
    }
}

impl From<jobs::Error> for Error {
    fn from(error: jobs::Error) -> Self {
        let of_type = |ty: &JobType| TypeName::of(ty);
        match error {
            jobs::Error::NotFound => Self::NoJob,
            jobs::Error::NoTypeTimeout(ty) => match of_type(&ty) {
                Some(name) => Self::NoType(name),
                None => Self::Internal(format!("the type {ty} is not registered")),
            },
            jobs::Error::TooLarge { what, max, .. } if max == DATA_BYTES_MAX => {
                Self::TooLarge(format!(
                    "{what}, progress, result and error together have more than 8 MiB; store large results elsewhere, and \
                 their address here"
                ))
            }
            error @ jobs::Error::TooLarge { .. } => Self::TooLarge(error.to_string()),
            jobs::Error::Invalid(reason) => Self::Invalid(reason.to_owned()),
            jobs::Error::Stopped => Self::Stopped,
            jobs::Error::Store(error) => Self::Store(error),
            // Answered for each job.
            error @ jobs::Error::Halt => Self::Internal(error.to_string()),
        }
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
