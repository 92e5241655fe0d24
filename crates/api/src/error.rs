//! Error responses: `CouchDB`'s `{"error", "reason"}`, in one table. `reason` is for the client. The cause is logged,
//! once, when the response is made.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use document::json;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde_json::json;

use crate::auth::AuthError;

type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// A header that some statuses need.
#[derive(Debug, Clone, Copy)]
enum Header {
    None,
    Allow(&'static str),
    RetryAfter(u64),
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("{status} {kind}: {reason}")]
pub struct Error {
    status: StatusCode,
    kind: Cow<'static, str>,
    reason: Cow<'static, str>,
    header: Header,
    #[source]
    cause: Option<Cause>,
}

impl Error {
    /// Any status; use the named constructors below where they fit.
    pub fn new(
        status: StatusCode,
        kind: impl Into<Cow<'static, str>>,
        reason: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            kind: kind.into(),
            reason: reason.into(),
            header: Header::None,
            cause: None,
        }
    }

    /// 400: malformed request.
    pub fn bad_request(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    /// 400: invalid JSON.
    pub(crate) fn not_json() -> Self {
        Self::bad_request("invalid UTF-8 JSON")
    }

    /// 400: the body is JSON, but no object.
    pub(crate) fn not_object() -> Self {
        Self::bad_request("Request body must be a JSON object")
    }

    /// 400: invalid query parameter.
    pub fn query(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "query_parse_error", reason)
    }

    /// 401: not authenticated, or not as the right user.
    pub fn unauthorized(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", reason)
    }

    pub fn forbidden(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    pub fn not_found(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", reason)
    }

    /// 405, with the supported methods.
    pub fn method_not_allowed(allow: &'static str) -> Self {
        let reason = format!("Only {allow} allowed");
        let mut error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", reason);
        error.header = Header::Allow(allow);
        error
    }

    pub fn conflict() -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "conflict",
            "Document update conflict.",
        )
    }

    /// 412: it already exists.
    pub fn file_exists() -> Self {
        let reason = "The database could not be created, the file already exists.";
        Self::new(StatusCode::PRECONDITION_FAILED, "file_exists", reason)
    }

    pub fn too_large(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason)
    }

    pub fn content_type() -> Self {
        let reason = "Content-Type must be application/json";
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "bad_content_type",
            reason,
        )
    }

    /// 500. The client gets no details.
    pub fn internal(cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        let reason = "Internal error; see the log of this service.";
        let mut error = Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal_server_error",
            reason,
        );
        error.cause = Some(Arc::new(cause));
        error
    }

    /// 501: `CouchDB` supports it, this service does not.
    pub fn not_implemented(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", reason)
    }

    /// 502. The details are only logged, since they name internal hosts.
    pub fn bad_gateway(cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        let reason = "The CouchDB cluster behind this service does not respond.";
        let mut error = Self::new(StatusCode::BAD_GATEWAY, "bad_gateway", reason);
        error.cause = Some(Arc::new(cause));
        error
    }

    /// 503: overload.
    pub fn busy(reason: impl Into<Cow<'static, str>>) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let mut busy = Self::new(status, "service_unavailable", reason);
        busy.header = Header::RetryAfter(1);
        busy
    }

    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// `error` and `reason`, as in a row of a bulk response.
    pub fn to_json(&self) -> serde_json::Value {
        let mut json = json!({"error": self.kind, "reason": self.reason});
        // CouchDB has no such member; it is left out where there is nothing to add.
        if let Some(hint) = self.hint() {
            json["hint"] = hint.into();
        }
        json
    }

    /// What to do about an invalid replication.
    fn hint(&self) -> Option<&'static str> {
        if self.status != StatusCode::FORBIDDEN && self.status != StatusCode::BAD_REQUEST {
            return None;
        }
        ["local_endpoints_not_supported", "endpoint", "egress"]
            .iter()
            .find(|word| self.reason.contains(**word))
            .and_then(|_| scheduler::hint("", &self.reason))
    }

    /// Logs what the client is not told.
    pub(crate) fn log(&self) {
        // 501 is not a failure, and rejected requests are counted in metrics: under a flood, they would fill the log.
        let is_meant = self.status == StatusCode::NOT_IMPLEMENTED
            || matches!(self.header, Header::RetryAfter(_));
        if self.status.is_server_error() && !is_meant {
            let cause = std::error::Error::source(self).map(wire::chain);
            let cause = cause.unwrap_or_default();
            tracing::error!(
                status = self.status.as_u16(),
                error = &*self.kind,
                cause,
                "request failed"
            );
        }
    }

    /// The response. Logs what the client is not told.
    pub fn into_response(self) -> Response<Body> {
        self.log();
        let mut response = Response::new(Body::from(format!("{}\n", self.to_json())));
        *response.status_mut() = self.status;
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        let no_cache = HeaderValue::from_static("must-revalidate");
        response.headers_mut().insert(CACHE_CONTROL, no_cache);
        let headers = response.headers_mut();
        match self.header {
            Header::None => None,
            Header::Allow(methods) => headers.insert(ALLOW, HeaderValue::from_static(methods)),
            Header::RetryAfter(seconds) => headers.insert(RETRY_AFTER, HeaderValue::from(seconds)),
        };
        response
    }
}

impl From<AuthError> for Error {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::Unauthorized(reason) => Self::unauthorized(reason),
            AuthError::BadRequest(reason) => Self::bad_request(reason),
            AuthError::Busy => Self::busy(error.to_string()),
            AuthError::Throttled { seconds } => {
                let mut throttled = Self::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    "too_many_requests",
                    error.to_string(),
                );
                throttled.header = Header::RetryAfter(seconds);
                throttled
            }
        }
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::TooLarge { .. } => Self::too_large(error.to_string()),
            store::Error::Unavailable { .. }
            | store::Error::Conflict
            | store::Error::MaybeCommitted
            | store::Error::TooOld
            | store::Error::Full { .. } => {
                let reason = "The store is unavailable. Try again later.";
                let status = StatusCode::SERVICE_UNAVAILABLE;
                let mut unavailable = Self::new(status, "service_unavailable", reason);
                unavailable.cause = Some(Arc::new(error));
                unavailable
            }
            _ => Self::internal(error),
        }
    }
}

impl From<docstore::Error> for Error {
    fn from(error: docstore::Error) -> Self {
        let reason = error.to_string();
        match error {
            docstore::Error::NoDatabase | docstore::Error::Missing | docstore::Error::Deleted => {
                Self::not_found(reason)
            }
            docstore::Error::DatabaseExists => Self::file_exists(),
            docstore::Error::IllegalName(_) => {
                Self::new(StatusCode::BAD_REQUEST, "illegal_database_name", reason)
            }
            docstore::Error::Conflict => Self::conflict(),
            docstore::Error::Invalid(invalid) => {
                Self::new(StatusCode::BAD_REQUEST, invalid.name(), reason)
            }
            docstore::Error::TooLarge { id, what, .. } => {
                let kind = match what {
                    "body" => "document_too_large",
                    _ => "attachment_too_large",
                };
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, kind, id)
            }
            docstore::Error::MissingStub { .. } => {
                Self::new(StatusCode::PRECONDITION_FAILED, "missing_stub", reason)
            }
            docstore::Error::Follows => Self::not_implemented(reason),
            docstore::Error::BadSeq => Self::bad_request(reason),
            docstore::Error::BadQuery { error, reason } => {
                Self::new(StatusCode::BAD_REQUEST, error, reason)
            }
            docstore::Error::Store(error) => error.into(),
        }
    }
}

impl From<scheduler::ServiceError> for Error {
    /// As in a document, where an invalid replication is 403.
    fn from(error: scheduler::ServiceError) -> Self {
        use scheduler::ServiceError as Failed;
        match error {
            Failed::Invalid(invalid) => Self::forbidden(invalid.to_string()),
            Failed::Forbidden(reason) => Self::forbidden(reason),
            Failed::Egress(reason) => Self::forbidden(reason),
            Failed::Unauthorized(reason) => Self::unauthorized(reason),
            Failed::Missing | Failed::Jobs(jobs::Error::NotFound) => Self::not_found("missing"),
            Failed::Stopped => Self::busy("The service is stopping; try again."),
            Failed::Docs(error) => error.into(),
            Failed::Store(error) | Failed::Jobs(jobs::Error::Store(error)) => error.into(),
            error @ (Failed::Jobs(_) | Failed::Unreadable(_)) => Self::internal(error),
        }
    }
}

impl From<queue::Error> for Error {
    fn from(error: queue::Error) -> Self {
        use queue::Error as Failed;
        let reason = error.to_string();
        match error {
            Failed::Invalid(_) => Self::bad_request(reason),
            Failed::TooLarge(_) => Self::too_large(reason),
            Failed::NoType(_) | Failed::NoJob | Failed::NotFound(_) => Self::not_found(reason),
            Failed::Conflict(_) => Self::new(StatusCode::CONFLICT, "conflict", reason),
            Failed::KeyUsed => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unprocessable", reason),
            Failed::Full { .. } => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                let mut full = Self::new(status, "too_many_requests", reason);
                full.header = Header::RetryAfter(1);
                full
            }
            Failed::Stopped => Self::busy(reason),
            Failed::Store(error) => error.into(),
            // The operator has to act, and the text names keys only. Another node may have the key.
            Failed::Unreadable(_) | Failed::NoKeys => {
                let status = if error.lacks_key() {
                    StatusCode::SERVICE_UNAVAILABLE
                } else {
                    StatusCode::INTERNAL_SERVER_ERROR
                };
                let mut unreadable = Self::new(status, "unreadable", reason);
                unreadable.cause = Some(Arc::new(error));
                unreadable
            }
            Failed::Internal(_) => Self::internal(error),
        }
    }
}

impl From<json::Error> for Error {
    fn from(error: json::Error) -> Self {
        match error {
            json::Error::Syntax(_) => Self::not_json(),
            json::Error::TooDeep => Self::bad_request(error.to_string()),
            json::Error::TooManyValues => Self::too_large(error.to_string()),
        }
    }
}

impl From<document::doc::Invalid> for Error {
    fn from(invalid: document::doc::Invalid) -> Self {
        docstore::Error::from(invalid).into()
    }
}

impl store::AsStoreError for Error {
    /// An error response ends the transaction.
    fn as_store_error(&self) -> Option<&store::Error> {
        self.cause.as_ref()?.downcast_ref()
    }
}

#[cfg(test)]
mod tests {
    use seal::Unreadable;

    use super::*;

    /// A client then asks another node.
    #[test]
    fn a_node_that_lacks_a_key_is_unavailable() {
        let lacking: [queue::Error; 3] = [
            queue::Error::NoKeys,
            Unreadable::NoKey("a".into()).into(),
            Unreadable::OtherKey("a".into()).into(),
        ];
        for error in lacking {
            assert_eq!(Error::from(error).status(), StatusCode::SERVICE_UNAVAILABLE);
        }
        let damaged = queue::Error::from(Unreadable::Changed);
        assert_eq!(
            Error::from(damaged).status(),
            StatusCode::INTERNAL_SERVER_ERROR
        );
    }
}
