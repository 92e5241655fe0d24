//! What one request asks.

use http::Method;
use http::header::{self, HeaderName, HeaderValue};
use tokio::sync::mpsc;

use crate::payload::Payload;

pub(crate) struct Call {
    pub(crate) method: Method,
    /// Relative to the endpoint, percent-encoded.
    pub(crate) path: String,
    /// Encoded, without the question mark.
    pub(crate) query: String,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) payload: Payload,
    /// Whether the response is a stream, whose total time is not limited.
    pub(crate) is_stream: bool,
}

impl Call {
    pub(crate) fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            query: String::new(),
            headers: Vec::new(),
            payload: Payload::Empty,
            is_stream: false,
        }
    }

    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    pub(crate) fn param(mut self, name: &str, value: &str) -> Self {
        if !self.query.is_empty() {
            self.query.push('&');
        }
        encode(name, &mut self.query);
        self.query.push('=');
        encode(value, &mut self.query);
        self
    }

    pub(crate) fn header(mut self, name: HeaderName, value: &'static str) -> Self {
        self.headers.push((name, HeaderValue::from_static(value)));
        self
    }

    pub(crate) fn json(self, payload: Payload) -> Self {
        Self { payload, ..self }.header(header::CONTENT_TYPE, "application/json")
    }

    pub(crate) fn stream(self) -> Self {
        Self {
            is_stream: true,
            ..self
        }
    }
}

pub(crate) fn encode(text: &str, into: &mut String) {
    use std::fmt::Write as _;
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            into.push(char::from(byte));
        } else {
            let _ = write!(into, "%{byte:02X}");
        }
    }
}

/// A body that can be sent only once.
pub(crate) struct StreamBody {
    pub(crate) chunks: mpsc::Receiver<bytes::Bytes>,
    pub(crate) length: u64,
}

/// The static name of a method.
pub(crate) fn name(method: &Method) -> &'static str {
    match *method {
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        _ => "GET",
    }
}
