use axum::body::Body;
use bytes::Bytes;
use futures::TryStream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IntoHeaderName, LOCATION};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

use crate::Error;

pub(crate) type Reply = Response<Body>;

/// JSON text, with a line break as in CouchDB.
pub(crate) fn text(status: StatusCode, json: impl Into<String>) -> Reply {
    let mut json = json.into();
    json.push('\n');
    body(status, "application/json", Body::from(json))
}

pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    text(
        status,
        serde_json::to_string(value).expect("answers can be written"),
    )
}

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

/// 200, with streamed JSON.
pub(crate) fn stream<S>(content_type: &'static str, pieces: S) -> Reply
where
    S: TryStream<Ok = Bytes, Error = Error> + Send + 'static,
{
    body(StatusCode::OK, content_type, Body::from_stream(pieces))
}

/// Sets a header. Values that headers cannot contain, such as a name that a client chose, are left out.
pub(crate) fn set(reply: &mut Reply, name: impl IntoHeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        reply.headers_mut().insert(name, value);
    }
}

/// Sets the `ETag` to a revision.
pub(crate) fn with_etag(mut reply: Reply, rev: &str) -> Reply {
    set(&mut reply, ETAG, &format!("\"{rev}\""));
    reply
}

/// Sets `Location`.
pub(crate) fn with_location(mut reply: Reply, url: &str) -> Reply {
    set(&mut reply, LOCATION, url);
    reply
}
