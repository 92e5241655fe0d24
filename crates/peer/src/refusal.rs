//! CouchDB's errors: a status, an `error` and a `reason`.

use std::borrow::Cow;

use document::doc::Invalid;
use http::StatusCode;

type Text = Cow<'static, str>;

/// A refused request, or a refused document within one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {error}: {reason}")]
pub struct Refusal {
    pub status: StatusCode,
    pub error: Text,
    pub reason: Text,
    /// The allowed methods, for status 405.
    pub allow: Option<&'static str>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, error: impl Into<Text>, reason: impl Into<Text>) -> Self {
        Self {
            status,
            error: error.into(),
            reason: reason.into(),
            allow: None,
        }
    }

    pub(crate) fn bad_request(reason: impl Into<Text>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    pub(crate) fn query_parse(reason: impl Into<Text>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "query_parse_error", reason)
    }

    pub(crate) fn unauthorized(reason: impl Into<Text>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", reason)
    }

    pub(crate) fn forbidden(reason: impl Into<Text>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    pub(crate) fn not_found(reason: impl Into<Text>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", reason)
    }

    pub(crate) fn missing() -> Self {
        Self::not_found("missing")
    }

    pub(crate) fn deleted() -> Self {
        Self::not_found("deleted")
    }

    pub(crate) fn no_database() -> Self {
        Self::not_found("Database does not exist.")
    }

    /// The revision to add an attachment to does not exist.
    pub(crate) fn missing_rev() -> Self {
        Self::new(StatusCode::CONFLICT, "not_found", "missing_rev")
    }

    pub(crate) fn conflict() -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "conflict",
            "Document update conflict.",
        )
    }

    pub(crate) fn database_exists() -> Self {
        let reason = "The database could not be created, the file already exists.";
        Self::new(StatusCode::PRECONDITION_FAILED, "file_exists", reason)
    }

    pub(crate) fn database_name(name: &str) -> Self {
        let reason = format!(
            "Name: '{name}'. Only lowercase characters (a-z), digits (0-9), and any of the characters _, $, (, ), +, -, and / \
             are allowed. Must begin with a letter."
        );
        Self::new(StatusCode::BAD_REQUEST, "illegal_database_name", reason)
    }

    pub(crate) fn missing_stub(id: &str, name: &str) -> Self {
        let reason = format!("Invalid attachment stub in {id} for {name}");
        Self::new(StatusCode::PRECONDITION_FAILED, "missing_stub", reason)
    }

    pub(crate) fn request_too_large() -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            "the request entity is too large",
        )
    }

    pub(crate) fn document_too_large(id: &str) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "document_too_large",
            id.to_owned(),
        )
    }

    pub(crate) fn attachment_too_large(name: &str) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "attachment_too_large",
            name.to_owned(),
        )
    }

    pub(crate) fn content_type(reason: impl Into<Text>) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "bad_content_type",
            reason,
        )
    }

    pub(crate) fn range() -> Self {
        let reason = "Requested range not satisfiable";
        Self::new(
            StatusCode::RANGE_NOT_SATISFIABLE,
            "requested_range_not_satisfiable",
            reason,
        )
    }

    pub(crate) fn method(allow: &'static str) -> Self {
        let reason = format!("Only {allow} allowed");
        let refusal = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", reason);
        Self {
            allow: Some(allow),
            ..refusal
        }
    }

    pub(crate) fn internal(error: impl Into<Text>, reason: impl Into<Text>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error, reason)
    }
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Self {
        Self::new(StatusCode::BAD_REQUEST, invalid.name(), invalid.to_string())
    }
}

impl From<document::Error> for Refusal {
    fn from(error: document::Error) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<document::revtree::Conflict> for Refusal {
    fn from(_: document::revtree::Conflict) -> Self {
        Self::conflict()
    }
}
