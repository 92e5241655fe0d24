//! Errors, by what the caller does next.

use std::fmt;
use std::io;
use std::sync::Arc;

use url::Url;

use crate::egress::blocked::Blocked;

/// A failed exchange with a server. Nothing here holds credentials: addresses are shown without
/// userinfo and query, and known secrets are redacted in the texts that servers send.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// 401, after the session or token was renewed: report, don't repeat.
    #[error("unauthorized: {0}")]
    Unauthorized(Box<Answer>),
    /// 403: report; for a single document, count it and continue.
    #[error("forbidden: {0}")]
    Forbidden(Box<Answer>),
    /// 404: the database, document or function does not exist.
    #[error("not found: {0}")]
    NotFound(Box<Answer>),
    /// 409: read again, then decide.
    #[error("conflict: {0}")]
    Conflict(Box<Answer>),
    /// 412 `missing_stub`: send the attachments that the target turns out not to have.
    #[error("missing stub: {0}")]
    MissingStub(Box<Answer>),
    /// 413: split the request, or give up on the document.
    #[error("too large: {0}")]
    TooLarge(Box<Answer>),
    /// Any other 3xx or 4xx: the request will be refused again.
    #[error("refused: {0}")]
    Refused(Box<Answer>),
    /// The server answered with success, but invalidly: truncated, not
    /// JSON, out of bounds, in another order. Repeating may help.
    #[error("bad answer to {request}: {problem}")]
    BadAnswer { request: Request, problem: String },
    /// The connection was lost while a response streamed in: continue from the last position.
    #[error("answer to {request} was cut off: {cause}")]
    Interrupted { request: Request, cause: Failure },
    /// No response within the retries of the request (`http_request_failed`): end the run, try again
    /// later.
    #[error("no answer to {request} in {attempts} attempts: {cause}")]
    Failed {
        request: Request,
        attempts: u32,
        cause: Failure,
    },
    /// The name of the host does not resolve (`nxdomain`).
    #[error("could not resolve {host}")]
    Unresolvable { host: String },
    /// The server keeps answering 429 (`max_backoff`): end the run, try again later.
    #[error("{request} is delayed: the server is limiting requests")]
    MaxBackoff { request: Request },
    /// The egress policy forbids the address: an operator has to allow it.
    #[error("egress to {host} is not allowed: {cause}")]
    Egress { host: String, cause: Blocked },
    /// A session or token could not be obtained (`replication_auth_error`).
    #[error("{tag} at {request}: {reason}")]
    Auth {
        /// `session_request_unauthorized`, `session_request_failed`, …
        tag: &'static str,
        /// The login or token request.
        request: Request,
        reason: String,
    },
    /// Certificates, proxies or tokens of the configuration or endpoint are invalid.
    #[error("{0}")]
    Config(String),
}

impl Error {
    /// The response that caused the error, if there is one.
    pub fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Unauthorized(answer)
            | Self::Forbidden(answer)
            | Self::NotFound(answer)
            | Self::Conflict(answer)
            | Self::MissingStub(answer)
            | Self::TooLarge(answer)
            | Self::Refused(answer) => Some(answer),
            Self::Interrupted { cause, .. } | Self::Failed { cause, .. } => match cause {
                Failure::Status(answer) | Failure::Limited(answer) | Failure::Expired(answer) => {
                    Some(answer)
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the server has refused the request, or does not know it: it would refuse it again.
    pub fn is_refusal(&self) -> bool {
        (self.status()).is_some_and(|status| (400..500).contains(&status))
            || matches!(self, Self::BadAnswer { .. } | Self::Auth { .. })
    }

    /// Whether the database does not exist. Only CouchDB's own `not_found` counts: a proxy may answer 404, too.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::NotFound(answer) if answer.error.as_deref() == Some("not_found"))
    }

    /// The status of that response.
    pub fn status(&self) -> Option<u16> {
        self.answer().map(|answer| answer.status)
    }

    pub fn request(&self) -> Option<&Request> {
        match self {
            Self::BadAnswer { request, .. }
            | Self::Interrupted { request, .. }
            | Self::Failed { request, .. }
            | Self::MaxBackoff { request }
            | Self::Auth { request, .. } => Some(request),
            _ => self.answer().map(|answer| &answer.request),
        }
    }

    /// The error for a status below 500 that is not success.
    pub(crate) fn from_answer(answer: Answer) -> Self {
        let answer = Box::new(answer);
        match answer.status {
            401 => Self::Unauthorized(answer),
            403 => Self::Forbidden(answer),
            404 => Self::NotFound(answer),
            409 => Self::Conflict(answer),
            412 if answer.error.as_deref() == Some("missing_stub") => Self::MissingStub(answer),
            413 => Self::TooLarge(answer),
            _ => Self::Refused(answer),
        }
    }
}

/// Method and URL of a request, without credentials and query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    pub method: &'static str,
    /// Scheme, host and path.
    pub url: String,
}

impl Request {
    pub(crate) fn new(method: &'static str, url: &Url) -> Self {
        let mut shown = url.clone();
        shown.set_query(None);
        shown.set_fragment(None);
        Self {
            method,
            url: shown.into(),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.url)
    }
}

/// A response that was not success.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    pub request: Request,
    pub status: u16,
    /// `error` of a JSON body.
    pub error: Option<String>,
    /// `reason` of a JSON body.
    pub reason: Option<String>,
    /// The beginning of the body, when it has neither: at most 200 characters.
    pub excerpt: String,
    /// Whether the body was JSON at all.
    pub is_json: bool,
}

impl fmt::Display for Answer {
    /// `418 from GET https://host/db/_changes: <error>: <reason>`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}", self.status, self.request)?;
        match (&self.error, &self.reason) {
            (Some(error), Some(reason)) => write!(f, ": {error}: {reason}"),
            (Some(text), None) | (None, Some(text)) => write!(f, ": {text}"),
            (None, None) if self.excerpt.is_empty() => Ok(()),
            (None, None) => write!(f, ": {}", self.excerpt),
        }
    }
}

/// Why a request got no usable response.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// 408 or 5xx.
    #[error("{0}")]
    Status(Box<Answer>),
    /// 429, or 503 with `Retry-After`, to a request that cannot be repeated as it is. Not a failure:
    /// another request like it waits as long as the server asks.
    #[error("{0}")]
    Limited(Box<Answer>),
    /// 401 or 403 to a request that cannot be repeated as it is, with a session or token that is renewed
    /// before the next request: another request like it may be accepted.
    #[error("{0}")]
    Expired(Box<Answer>),
    /// The name of the host has no address.
    #[error("could not resolve {host}")]
    Unresolvable {
        /// The name.
        host: String,
    },
    #[error("no connection: {0}")]
    Connect(#[source] Arc<io::Error>),
    /// TLS failed; the tag says how (`unknown_ca`, `hostname_mismatch`, `certificate_expired`,
    /// `tls_alert`, …).
    #[error("{tag}: {source}")]
    Tls {
        /// The kind of failure.
        tag: &'static str,
        source: Arc<io::Error>,
    },
    /// The proxy refused the connection.
    #[error("proxy: {0}")]
    Proxy(String),
    #[error("nothing received for {idle_ms} ms")]
    ReadTimeout { idle_ms: u64 },
    #[error("nothing could be sent for {idle_ms} ms")]
    WriteTimeout { idle_ms: u64 },
    /// The whole request took longer than allowed.
    #[error("not done within {total_ms} ms")]
    RequestTimeout { total_ms: u64 },
    /// The connection was closed or broke the protocol.
    #[error("connection lost: {0}")]
    Connection(String),
    /// The response is invalid.
    #[error("{0}")]
    BadAnswer(String),
}

impl Failure {
    pub(crate) fn connect(error: io::Error) -> Self {
        Self::Connect(Arc::new(error))
    }

    pub(crate) fn tls(tag: &'static str, source: io::Error) -> Self {
        let source = Arc::new(source);
        Self::Tls { tag, source }
    }
}

/// The most characters shown of a server's text.
const SHOWN_CHARS_MAX: usize = 200;

/// The beginning of a server's text, without control characters.
pub(crate) fn printable(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    text.trim()
        .chars()
        .take(SHOWN_CHARS_MAX)
        .map(clean)
        .collect()
}
