//! Parses requests as CouchDB does.

use axum::body::Body;
use bytes::Bytes;
use document::rev::Rev;
use futures::StreamExt as _;
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, IF_MATCH};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method};
use wire::Collected;
use wire::gzip::{GzipError, gunzip};

use crate::functions::UserContext;
use crate::refusal::Refusal;

/// A request whose head is parsed.
#[derive(Debug)]
pub(crate) struct Request {
    /// `HEAD` counts as `GET`.
    pub(crate) method: Method,
    /// Decoded, without empty segments.
    pub(crate) path: Vec<String>,
    pub(crate) raw_path: String,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) headers: HeaderMap,
    pub(crate) user: UserContext,
    pub(crate) body_bytes_max: usize,
    body: Option<Body>,
}

impl Request {
    pub(crate) fn new(parts: &Parts, body: Body) -> Result<Self, Refusal> {
        let raw_path = parts.uri.path().to_owned();
        let query = parts.uri.query().unwrap_or_default();
        check_encoding(&raw_path)?;
        check_encoding(query)?;
        let path = raw_path
            .split('/')
            .filter(|part| !part.is_empty())
            .map(unquote)
            .collect();
        let query = url::form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        let method = if parts.method == Method::HEAD {
            Method::GET
        } else {
            parts.method.clone()
        };
        Ok(Self {
            method,
            path,
            raw_path,
            query,
            headers: parts.headers.clone(),
            user: UserContext::default(),
            body_bytes_max: usize::MAX,
            body: Some(body),
        })
    }

    pub(crate) fn param(&self, name: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Whether a query parameter is `true`.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.param(name) == Some("true")
    }

    pub(crate) fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Whether the client accepts this media type.
    pub(crate) fn accepts(&self, content_type: &str) -> bool {
        wire::accepts(self.header(&ACCEPT).unwrap_or("*/*"), content_type)
    }

    pub(crate) fn check_json(&self) -> Result<(), Refusal> {
        let declared = self.header(&CONTENT_TYPE).unwrap_or_default();
        if declared.split(';').next() == Some("application/json") {
            return Ok(());
        }
        Err(Refusal::content_type(
            "Content-Type must be application/json",
        ))
    }

    /// Whether the headers announce a body.
    pub(crate) fn has_body(&self) -> bool {
        match self.header(&CONTENT_LENGTH) {
            Some(length) => length != "0",
            None => self.headers.contains_key(http::header::TRANSFER_ENCODING),
        }
    }

    pub(crate) async fn body(&mut self) -> Result<Bytes, Refusal> {
        let declared = self
            .header(&CONTENT_LENGTH)
            .and_then(|length| length.parse::<usize>().ok());
        let too_large = |_| Refusal::request_too_large();
        let mut whole = Collected::sized(declared, self.body_bytes_max).map_err(too_large)?;
        let body = self.body.take().unwrap_or_else(Body::empty);
        let mut chunks = body.into_data_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| Refusal::bad_request("request body ended early"))?;
            whole.push(chunk).map_err(too_large)?;
        }
        Ok(whole.finish())
    }

    /// The body as JSON text, uncompressed.
    pub(crate) async fn json_body(&mut self) -> Result<String, Refusal> {
        let body = self.body().await?;
        let body = match self.header(&CONTENT_ENCODING).unwrap_or("identity") {
            "identity" => Vec::from(body),
            "gzip" => gunzip(body, self.body_bytes_max).map_err(|error| match error {
                GzipError::TooLarge(_) => Refusal::request_too_large(),
                GzipError::Damaged(_) => {
                    Refusal::bad_request("Request body is not properly gzipped.")
                }
            })?,
            other => {
                return Err(Refusal::content_type(format!(
                    "{other} is not a supported content encoding."
                )));
            }
        };
        String::from_utf8(body).map_err(|_| Refusal::bad_request("invalid UTF-8 JSON"))
    }

    /// The body as a JSON object's text.
    pub(crate) async fn json_object(&mut self) -> Result<String, Refusal> {
        let json = self.json_body().await?;
        let valid = serde_json::from_str::<&serde_json::value::RawValue>(&json).is_ok();
        match json.trim_start().starts_with('{') {
            _ if !valid => Err(Refusal::bad_request("invalid UTF-8 JSON")),
            true => Ok(json),
            false => Err(Refusal::bad_request("Request body must be a JSON object")),
        }
    }

    /// The revision in `If-Match`, which must agree with one given otherwise.
    pub(crate) fn match_rev(&self, explicit: Option<Rev>) -> Result<Option<Rev>, Refusal> {
        let etag = self
            .header(&IF_MATCH)
            .map(|etag| etag.trim_matches('"').parse::<Rev>())
            .transpose()?;
        match (explicit, etag) {
            (Some(explicit), Some(etag)) if explicit != etag => Err(Refusal::bad_request(
                "Document rev and etag have different values",
            )),
            (explicit, etag) => Ok(explicit.or(etag)),
        }
    }

    /// The absolute URL of a path on this server.
    pub(crate) fn absolute(&self, parts: &[&str]) -> String {
        let host = self.header(&HOST).unwrap_or("localhost");
        parts.iter().fold(format!("http://{host}"), |url, part| {
            url + "/" + &wire::quote(part)
        })
    }
}

/// Checks that two hexadecimal digits follow every `%`.
fn check_encoding(text: &str) -> Result<(), Refusal> {
    let bytes = text.as_bytes();
    let hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    let good = (0..bytes.len())
        .filter(|&at| bytes[at] == b'%')
        .all(|at| hex(at + 1) && hex(at + 2));
    if good {
        Ok(())
    } else {
        Err(Refusal::bad_request("invalid_url_encoding"))
    }
}

/// Decodes a path segment, in which `+` is a space, as in queries.
fn unquote(part: &str) -> String {
    let pair = format!("={}", part.replace('&', "%26"));
    let mut decoded = url::form_urlencoded::parse(pair.as_bytes());
    decoded
        .next()
        .map(|(_, value)| value.into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        assert_eq!(unquote("a%2Fb+c%2Bd%C3%A9&e"), "a/b c+dé&e");
        assert!(check_encoding("a%2Fb").is_ok());
        for bad in ["%", "%2", "a%zz", "%%41"] {
            assert!(check_encoding(bad).is_err(), "{bad}");
        }
    }
}
