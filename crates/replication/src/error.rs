//! Why a run failed, for its user, and for the scheduler that decides what to do next.

use document::mango::TooExpensive;
use serde_json::{Value, json};

/// A failed run. Every variant has CouchDB's tag; none contains credentials.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The lock was lost: another node runs this replication now, so nothing more may be written.
    #[error("the lock on the replication was lost")]
    Halted,
    /// An endpoint needs other credentials. Retrying does not help.
    #[error("unauthorized to access or create database {url}")]
    Unauthorized { url: String },
    /// An endpoint denies access.
    #[error("{url}")]
    Forbidden { url: String },
    /// A database does not exist.
    #[error("could not open {url}")]
    DbNotFound { url: String },
    /// The filter function cannot be read; it may appear later.
    #[error("{0}")]
    FilterFetch(String),
    /// Matching a document against the selector takes too long. It would on any node.
    #[error("document `{id}`: {cause}")]
    FilterTooExpensive {
        id: String,
        /// What to change.
        #[source]
        cause: TooExpensive,
    },
    /// A request to a server failed.
    #[error("{cause}")]
    Step {
        step: Step,
        #[source]
        cause: couch::Error,
    },
    /// The target rejects a document, and the replication must not continue without it.
    #[error("{0}")]
    DocWrite(String),
    /// The source lacks a revision that it announced, or the target lacks attachments that it should have.
    #[error("revision {rev} of document `{id}` is missing")]
    Missing { id: String, rev: String },
    /// A database was recreated.
    #[error("{0}")]
    Checkpoint(String),
    /// A checkpoint could not be written.
    #[error("{what}: {cause}")]
    CheckpointWrite {
        what: String,
        #[source]
        cause: couch::Error,
    },
    /// The rights of the source could not be copied to the target.
    #[error(
        "cannot {what}: {cause}; use an administrator of that database, or set `copy_security` to false"
    )]
    Security {
        what: String,
        #[source]
        cause: couch::Error,
    },
    /// There was no progress for too long while changes were pending.
    #[error("no progress for {seconds} s with changes pending")]
    NoProgress { seconds: u64 },
}

/// A step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Open,
    Changes,
    /// Asking the target what it lacks.
    RevsDiff,
    BulkGet,
    OpenRevs,
    BulkDocs,
    PutDoc,
    Checkpoint,
}

impl Error {
    /// Wraps a failed request with its step. The few causes that have the same meaning in any step have their own tags.
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

    /// CouchDB's `error`.
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
            Self::Security { .. } => "security_not_copied",
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

    /// CouchDB's `reason`.
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

    /// Whether another checkpoint would fail, too, or must not be tried.
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

    /// The error as shown in job information.
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
