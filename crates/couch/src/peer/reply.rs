//! A response whose head has arrived.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{Held, Peer};
use crate::body::BodyReader;
use crate::error::{Answer, Error, Failure, Request, printable};
use crate::exchange::Used;
use crate::net::Trouble;
use crate::secret::Secret;
use crate::types::text_of;

/// The most that is read of an error's body.
const ERROR_BYTES_MAX: usize = 16 * 1024;
const ERROR_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) request: Request,
    pub(crate) body: BodyReader,
    pub(crate) peer: Arc<Peer>,
    /// The credentials that the request carried.
    pub(super) sent: Option<Secret>,
    whole: Option<Bytes>,
    used: Used,
    held: Option<Held>,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: Option<serde_json::Value>,
    reason: Option<serde_json::Value>,
}

impl Reply {
    pub(super) fn new(
        peer: Arc<Peer>,
        request: Request,
        head: http::response::Parts,
        body: BodyReader,
        used: Used,
    ) -> Self {
        Self {
            status: head.status,
            headers: head.headers,
            request,
            body,
            peer,
            sent: None,
            whole: None,
            used,
            held: None,
        }
    }

    pub(super) fn holding(self, held: Held) -> Self {
        Self {
            held: Some(held),
            ..self
        }
    }

    /// Reads the whole body and releases the connection.
    pub(super) async fn buffer(&mut self) -> Result<(), Trouble> {
        let bytes_max = self.peer.options.answer_bytes_max;
        self.whole = Some(
            self.body
                .collect(bytes_max)
                .await
                .map_err(|failure| match failure {
                    // An invalid response that is complete would be invalid again.
                    Failure::BadAnswer(problem) => Trouble::Fatal(self.bad(problem)),
                    failure => {
                        self.peer.doubt(&failure);
                        Trouble::Retry(failure)
                    }
                })?,
        );
        self.held = None;
        Ok(())
    }

    /// Releases the connection after the body was read.
    pub(crate) fn release(&mut self) {
        self.held = None;
    }

    /// The whole body, after `fetch`.
    pub(crate) fn whole(&self) -> &[u8] {
        self.whole.as_deref().unwrap_or_default()
    }

    /// Turns every status but success into an error.
    pub(crate) async fn success(self) -> Result<Self, Error> {
        if self.status.is_success() {
            Ok(self)
        } else {
            Err(self.into_error().await)
        }
    }

    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(self.whole()).map_err(|error| self.not_json(&error))
    }

    /// The media type of the body.
    pub(crate) fn content_type(&self) -> &str {
        let value = self.headers.get(header::CONTENT_TYPE);
        value
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    /// Keeps the connection from being reused: the server may not have read the whole request.
    pub(crate) fn close(&self) {
        self.used.close();
    }

    /// The error of an invalid response. `problem` may quote it.
    pub(crate) fn bad(&self, problem: impl Into<String>) -> Error {
        Error::BadAnswer {
            request: self.request.clone(),
            problem: self.clean(problem.into()),
        }
    }

    pub(crate) fn not_json(&self, error: &serde_json::Error) -> Error {
        let problem = without_quote(&error.to_string());
        self.bad(format!("not the JSON that was expected: {problem}"))
    }

    /// The error of a response below 500 that is not success.
    pub(crate) async fn into_error(mut self) -> Error {
        if self.status == StatusCode::PAYLOAD_TOO_LARGE {
            self.used.close();
        }
        Error::from_answer(self.answer().await)
    }

    /// The failure of a response that asks for another attempt.
    pub(super) async fn into_failure(mut self) -> Failure {
        Failure::Status(Box::new(self.answer().await))
    }

    /// A server's text for a message. Secrets are redacted before it is cut, or a piece of one could be left.
    pub(crate) fn clean(&self, text: String) -> String {
        printable(&self.peer.redact(text, self.sent.as_ref()))
    }

    /// The failure of a response that asks to slow down.
    pub(super) async fn into_limited(mut self) -> Failure {
        Failure::Limited(Box::new(self.answer().await))
    }

    /// The failure of a response that refuses credentials, which are then renewed.
    pub(super) async fn into_expired(mut self) -> Failure {
        Failure::Expired(Box::new(self.answer().await))
    }

    async fn answer(&mut self) -> Answer {
        let body = match self.whole.take() {
            Some(whole) => whole,
            None => {
                self.body
                    .beginning(ERROR_BYTES_MAX, Instant::now() + ERROR_TIMEOUT)
                    .await
            }
        };
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok();
        let parsed = serde_json::from_slice::<ErrorBody>(&body).ok();
        let clean = |text: String| self.clean(text);
        let (error, reason) = parsed.map_or((None, None), |parsed| {
            (parsed.error.map(text_of), parsed.reason.map(text_of))
        });
        let is_told = error.is_some() || reason.is_some();
        let excerpt = if is_told {
            "".into()
        } else {
            String::from_utf8_lossy(&body)
        };
        Answer {
            request: self.request.clone(),
            status: self.status.as_u16(),
            error: error.map(clean),
            reason: reason.map(clean),
            excerpt: clean(excerpt.into_owned()),
            is_json,
        }
    }
}

/// A parser's message without the text of the response: that is escaped, so a secret in it would not be found.
fn without_quote(message: &str) -> String {
    match (message.find('"'), message.rfind('"')) {
        (Some(start), Some(end)) if start < end => {
            format!("{}…{}", &message[..=start], &message[end..])
        }
        _ => message.to_owned(),
    }
}
