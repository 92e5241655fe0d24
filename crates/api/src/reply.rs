//! Making answers.

use axum::body::Body;
use bytes::Bytes;
use futures::TryStream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IntoHeaderName, LOCATION};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

use crate::Error;

/// An answer.
pub(crate) type Reply = Response<Body>;

/// JSON text, with the line end that CouchDB has too.
pub(crate) fn text(status: StatusCode, json: impl Into<String>) -> Reply {
    let mut json = json.into();
    json.push('\n');
    body(status, "application/json", Body::from(json))
}

/// Anything that makes JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    text(
        status,
        serde_json::to_string(value).expect("answers can be written"),
    )
}

/// 200, with JSON.
pub(crate) fn ok(value: &impl Serialize) -> Reply {
    json(StatusCode::OK, value)
}

pub(crate) fn body(status: StatusCode, content_type: &'static str, body: Body) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    set(&mut reply, CONTENT_TYPE, content_type);
    set(&mut reply, CACHE_CONTROL, "must-revalidate");
    reply
}

/// 200, with JSON that comes piece by piece.
pub(crate) fn stream<S>(content_type: &'static str, pieces: S) -> Reply
where
    S: TryStream<Ok = Bytes, Error = Error> + Send + 'static,
{
    body(StatusCode::OK, content_type, Body::from_stream(pieces))
}

/// Sets a header. What no header can hold is left out: a name that a client chose, perhaps.
pub(crate) fn set(reply: &mut Reply, name: impl IntoHeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        reply.headers_mut().insert(name, value);
    }
}

/// With the revision of what was read or written.
pub(crate) fn with_etag(mut reply: Reply, rev: &str) -> Reply {
    set(&mut reply, ETAG, &format!("\"{rev}\""));
    reply
}

/// With where to find what was made.
pub(crate) fn with_location(mut reply: Reply, url: &str) -> Reply {
    set(&mut reply, LOCATION, url);
    reply
}
