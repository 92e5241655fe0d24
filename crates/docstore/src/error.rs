//! Errors, one variant for each way to react.

use document::doc::Invalid;
use document::mango::TooExpensive;
use store::AsStoreError;

/// Why an operation failed. Messages are CouchDB's `reason`s where it has one.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The database does not exist, or was deleted and created again since it was opened (404 `not_found`).
    #[error("Database does not exist.")]
    NoDatabase,
    /// A database of this name exists (412 `file_exists`).
    #[error("The database could not be created, the file already exists.")]
    DatabaseExists,
    /// The name is not allowed (400 `illegal_database_name`).
    #[error(
        "Name: '{0}'. Only lowercase characters (a-z), digits (0-9), and any of the characters _, $, (, ), +, -, and / are allowed. Must begin with a letter."
    )]
    IllegalName(String),
    /// The document or revision does not exist (404 `not_found`).
    #[error("missing")]
    Missing,
    /// The document was deleted (404 `not_found`).
    #[error("deleted")]
    Deleted,
    /// Read the document again and use its current revision (409 `conflict`).
    #[error("Document update conflict.")]
    Conflict,
    /// The document is invalid (400, see [`Invalid::name`]).
    #[error("{0}")]
    Invalid(#[from] Invalid),
    /// Make it smaller (413 `document_too_large`).
    #[error("{id}: {what} of {bytes} bytes is over the limit of {bytes_max}")]
    TooLarge {
        id: String,
        what: &'static str,
        bytes: usize,
        bytes_max: usize,
    },
    /// Send the attachment's data: the edited revision has no attachment of this name (412 `missing_stub`).
    #[error("Invalid attachment stub in {id} for {name}")]
    MissingStub { id: String, name: String },
    /// Send attachments within the document (501 `not_implemented`).
    #[error("attachments are accepted only within documents, as base64 or stubs")]
    Follows,
    /// The sequence is malformed (400 `bad_request`).
    #[error("Malformed sequence supplied in 'since' parameter.")]
    BadSeq,
    /// The query is invalid (400).
    #[error("{reason}")]
    BadQuery {
        /// The value of `error` in the answer.
        error: &'static str,
        reason: String,
    },
    /// The store failed; retryable errors were retried.
    #[error("the store failed")]
    Store(#[from] store::Error),
}

impl Error {
    pub(crate) fn corrupt(what: &'static str) -> Self {
        Self::Store(store::Error::Corrupt {
            message: format!("docstore: {what}"),
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

impl From<TooExpensive> for Error {
    fn from(error: TooExpensive) -> Self {
        Self::BadQuery {
            error: TooExpensive::NAME,
            reason: error.to_string(),
        }
    }
}

impl From<document::Error> for Error {
    fn from(error: document::Error) -> Self {
        match error {
            document::Error::InvalidRev => Self::Invalid(INVALID_REV),
            document::Error::Corrupt(what) => Self::corrupt(what),
        }
    }
}

pub(crate) const INVALID_REV: Invalid = Invalid::Request("Invalid rev format");

/// The result of operations without a hook.
pub type Result<T, E = Error> = std::result::Result<T, E>;
