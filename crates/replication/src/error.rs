//! Why a run ended without being done, for its user, and for the scheduler that decides what to do next.

use document::mango::TooExpensive;
use serde_json::{Value, json};

/// A run that failed. Every variant has CouchDB's tag; none holds credentials.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The lock was lost: somebody else runs this replication now, so nothing more may be written.
    #[error("the lock on the replication was lost")]
    Halted,
    /// An endpoint wants other credentials. Waiting does not help.
    #[error("unauthorized to access or create database {url}")]
    Unauthorized {
        /// The endpoint.
        url: String,
    },
    /// An endpoint does not let us in.
    #[error("{url}")]
    Forbidden {
        /// The endpoint.
        url: String,
    },
    /// A database is not there.
    #[error("could not open {url}")]
    DbNotFound {
        /// The endpoint.
        url: String,
    },
    /// The filter function cannot be had; it may appear later.
    #[error("{0}")]
    FilterFetch(String),
    /// Whether a document passes the selector takes too long to find out. Another node would find the same.
    #[error("document `{id}`: {cause}")]
    FilterTooExpensive {
        /// The document.
        id: String,
        /// Advice.
        #[source]
        cause: TooExpensive,
    },
    /// A step failed on one exchange with a server.
    #[error("{cause}")]
    Step {
        step: Step,
        /// The exchange.
        #[source]
        cause: couch::Error,
    },
    /// The target does not take a document, and the replication may not go on without it.
    #[error("{0}")]
    DocWrite(String),
    /// The source announces a revision and does not have it, or the target lacks attachments that it should have.
    #[error("revision {rev} of document `{id}` is missing")]
    Missing {
        /// The document.
        id: String,
        rev: String,
    },
    /// A database is not the one that it was.
    #[error("{0}")]
    Checkpoint(String),
    /// A checkpoint could not be written.
    #[error("{what}: {cause}")]
    CheckpointWrite {
        what: String,
        /// Why.
        #[source]
        cause: couch::Error,
    },
    /// Nothing moved for so long while there was something to do.
    #[error("no progress for {seconds} s with changes pending")]
    NoProgress {
        /// How long.
        seconds: u64,
    },
}

/// What a run was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Open,
    /// Reading the changes feed.
    Changes,
    /// Asking the target what it lacks.
    RevsDiff,
    /// Reading documents in bulk.
    BulkGet,
    /// Reading one document.
    OpenRevs,
    /// Writing documents in bulk.
    BulkDocs,
    PutDoc,
    /// Reading or writing checkpoints.
    Checkpoint,
}

impl Error {
    /// Names a failed exchange by what was going on. The few causes that mean the same anywhere have their own tags.
    pub(crate) fn at(step: Step) -> impl FnOnce(couch::Error) -> Self {
        move |cause| Self::Step { step, cause }
    }

    /// The same for opening an endpoint.
    pub(crate) fn opening(url: &str, cause: couch::Error) -> Self {
        let url = url.to_owned();
        match cause {
            couch::Error::Unauthorized(_) => Self::Unauthorized { url },
            couch::Error::Forbidden(_) => Self::Forbidden { url },
            couch::Error::NotFound(_) => Self::DbNotFound { url },
            cause => Self::Step {
                step: Step::Open,
                cause,
            },
        }
    }

    pub(crate) fn checkpoint(what: String, cause: couch::Error) -> Self {
        Self::CheckpointWrite { what, cause }
    }

    /// CouchDB's name for the error.
    pub fn tag(&self) -> &'static str {
        match self {
            Self::Halted => "halt",
            Self::Unauthorized { .. } => "unauthorized",
            Self::Forbidden { .. } => "forbidden",
            Self::DbNotFound { .. } => "db_not_found",
            Self::FilterFetch(_) => "filter_fetch_error",
            Self::FilterTooExpensive { .. } => TooExpensive::NAME,
            Self::DocWrite(_) => "doc_write_failed",
            Self::Missing { .. } => "open_doc_revs_failed",
            Self::CheckpointWrite {
                cause: couch::Error::MaxBackoff { .. },
                ..
            } => "max_backoff",
            Self::Checkpoint(_) | Self::CheckpointWrite { .. } => "checkpoint_commit_failure",
            Self::NoProgress { .. } => "no_progress",
            Self::Step { step, cause } => match cause {
                couch::Error::MaxBackoff { .. } => "max_backoff",
                couch::Error::Auth { .. } => "replication_auth_error",
                couch::Error::Unresolvable { .. } => "nxdomain",
                couch::Error::Failed { .. } if *step != Step::Open => "http_request_failed",
                couch::Error::Egress { .. } => "egress_not_allowed",
                _ => step.tag(cause),
            },
        }
    }

    /// What happened, in a sentence.
    pub fn reason(&self) -> String {
        match self {
            // CouchDB's form for a failed start: `503 GET https://host/db/`.
            Self::Step {
                step: Step::Open,
                cause,
            } => match cause.answer() {
                Some(answer) => format!("{} {}", answer.status, answer.request),
                None => cause.to_string(),
            },
            other => other.to_string(),
        }
    }

    /// Whether one more checkpoint would fail, too, or must not be tried.
    pub(crate) fn is_about_checkpoints(&self) -> bool {
        matches!(
            self,
            Self::Halted | Self::Checkpoint(_) | Self::CheckpointWrite { .. }
        )
    }

    /// Whether the server asked for a long pause (`max_backoff`).
    pub fn is_max_backoff(&self) -> bool {
        self.tag() == "max_backoff"
    }

    /// The error as job information shows it.
    pub fn to_info(&self) -> Value {
        json!({"error": self.tag(), "reason": self.reason()})
    }
}

impl Step {
    fn tag(self, cause: &couch::Error) -> &'static str {
        match self {
            Self::Open if cause.status().is_some() => "http_error_code",
            Self::Open => "http_request_failed",
            Self::Changes => "changes_req_failed",
            Self::RevsDiff => "revs_diff_failed",
            Self::BulkGet => "bulk_get_failed",
            Self::OpenRevs => "open_doc_revs_failed",
            Self::BulkDocs => "bulk_docs_failed",
            Self::PutDoc => "doc_write_failed",
            Self::Checkpoint => "checkpoint_commit_failure",
        }
    }
}
