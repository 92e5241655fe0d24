//! Answers.

use std::convert::Infallible;

use axum::body::Body;
use bytes::Bytes;
use futures::Stream;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LOCATION,
};
use http::{HeaderName, HeaderValue, Response, StatusCode};

use crate::refusal::Refusal;
use crate::render;
use crate::request::Request;

pub(crate) type Reply = Response<Body>;

/// A JSON answer. Like CouchDB's, it ends with a newline.
pub(crate) fn json(status: StatusCode, json: impl Into<Vec<u8>>) -> Reply {
    let mut json = json.into();
    json.push(b'\n');
    build(status, "application/json", Body::from(json))
}

pub(crate) fn ok(status: StatusCode) -> Reply {
    json(status, "{\"ok\":true}")
}

/// A JSON answer in chunks, without a length.
pub(crate) fn stream<S>(content_type: &str, pieces: S) -> Reply
where
    S: Stream<Item = Bytes> + Send + 'static,
{
    let pieces = futures::StreamExt::map(pieces, Ok::<_, Infallible>);
    build(StatusCode::OK, content_type, Body::from_stream(pieces))
}

/// An answer whose pieces are all known.
pub(crate) fn pieces(
    status: StatusCode,
    content_type: &str,
    pieces: Vec<Bytes>,
    chunked: bool,
) -> Reply {
    let length: usize = pieces.iter().map(Bytes::len).sum();
    let stream = futures::stream::iter(pieces.into_iter().map(Ok::<_, Infallible>));
    let mut reply = build(status, content_type, Body::from_stream(stream));
    if !chunked {
        reply.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    reply
}

pub(crate) fn build(status: StatusCode, content_type: &str, body: Body) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    set(&mut reply, &CONTENT_TYPE, content_type);
    reply
}

/// Sets a header; invalid values are left out.
pub(crate) fn set(reply: &mut Reply, name: &HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        reply.headers_mut().insert(name, value);
    }
}

pub(crate) fn with(mut reply: Reply, name: &HeaderName, value: &str) -> Reply {
    set(&mut reply, name, value);
    reply
}

pub(crate) fn with_location(reply: Reply, location: &str) -> Reply {
    with(reply, &LOCATION, location)
}

/// The answer, or 304 if the client has it already.
pub(crate) fn with_etag(request: &Request, etag: &str, answer: impl FnOnce() -> Reply) -> Reply {
    let known = request.header(&IF_NONE_MATCH).unwrap_or_default();
    let mut known = known.split(", ").flat_map(|part| part.split(','));
    if known.any(|known| known.trim().trim_start_matches("W/") == etag) {
        let mut reply = Response::new(Body::empty());
        *reply.status_mut() = StatusCode::NOT_MODIFIED;
        return with(reply, &ETAG, etag);
    }
    with(answer(), &ETAG, etag)
}

/// Adds the headers that all JSON answers have.
pub(crate) fn complete(reply: &mut Reply) {
    let headers = reply.headers_mut();
    if headers
        .get(CONTENT_TYPE)
        .is_some_and(|value| value == "application/json")
    {
        headers
            .entry(CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("must-revalidate"));
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        let mut body = Vec::new();
        error_members(&mut body, b"{", &refusal);
        let reply = json(refusal.status, body);
        match refusal.allow {
            Some(allow) => with(reply, &ALLOW, allow),
            None => reply,
        }
    }
}

/// Appends `error` and `reason` after `start`, and ends the object.
pub(crate) fn error_members(out: &mut Vec<u8>, start: &[u8], refusal: &Refusal) {
    out.extend_from_slice(start);
    out.extend_from_slice(b"\"error\":");
    render::string(out, &refusal.error);
    out.extend_from_slice(b",\"reason\":");
    render::string(out, &refusal.reason);
    out.push(b'}');
}
