//! What every response gets: headers, and a line in the access log.

use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use http::header::{CONTENT_LENGTH, SERVER, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::cors;
use crate::client::Client;
use crate::reply::{Reply, set};
use crate::state::Shared;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-couch-request-id");
const BODY_TIME: HeaderName = HeaderName::from_static("x-couchdb-body-time");
const ID_BYTES_MAX: usize = 64;

/// What is kept of a request until its response.
pub(super) struct Seen {
    pub(super) method: Method,
    origin: Option<HeaderValue>,
    client: Client,
    pub(super) id: String,
}

impl Seen {
    pub(super) fn of(parts: &Parts, client: Client, id: String) -> Self {
        Self {
            method: parts.method.clone(),
            // A copy: a clone would keep the buffer that the connection was read into.
            origin: parts.headers.get(http::header::ORIGIN).and_then(copied),
            client,
            id,
        }
    }
}

fn copied(value: &HeaderValue) -> Option<HeaderValue> {
    HeaderValue::from_bytes(value.as_bytes()).ok()
}

/// The request id from the client or a proxy if it is well-formed, otherwise a new one.
pub(super) fn request_id(headers: &HeaderMap, bits: u128) -> String {
    let plain = |id: &&str| {
        (1..=ID_BYTES_MAX).contains(&id.len())
            && id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    match given.filter(plain) {
        Some(given) => given.to_owned(),
        None => format!("{:010x}", bits >> 88),
    }
}

pub(super) fn finish(shared: &Shared, seen: &Seen, mut reply: Reply) -> Reply {
    let version = concat!(
        "CouchDB/",
        crate::couchdb_version!(),
        " (Davenport/",
        env!("CARGO_PKG_VERSION"),
        ")"
    );
    reply
        .headers_mut()
        .insert(SERVER, HeaderValue::from_static(version));
    let nosniff = HeaderValue::from_static("nosniff");
    reply.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, nosniff);
    set(&mut reply, REQUEST_ID, &seen.id);
    reply
        .headers_mut()
        .entry(BODY_TIME)
        .or_insert(HeaderValue::from_static("0"));
    if let Some(origin) = &seen.origin {
        cors::allow(&shared.options.cors, origin, reply.headers_mut());
    }
    if seen.method == Method::HEAD {
        if let Some(length) = reply.body().size_hint().exact() {
            reply
                .headers_mut()
                .insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        *reply.body_mut() = Body::empty();
    }
    reply
}

pub(super) fn log(seen: &Seen, user: Option<&str>, reply: &Reply, took: Duration) {
    tracing::info!(
        target: "api::access",
        client = %seen.client.address,
        user,
        status = reply.status().as_u16(),
        bytes = reply.body().size_hint().exact(),
        ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        "request",
    );
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::request_id;

    #[test]
    fn plain_ids_are_kept() {
        let given = |id: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-couch-request-id", HeaderValue::from_str(id).unwrap());
            request_id(&headers, 0xab << 88)
        };
        assert_eq!(given("trace-7.a_b"), "trace-7.a_b");
        for odd in ["", "a b", "a\"", &"x".repeat(65)] {
            assert_eq!(given(odd), "00000000ab", "{odd}");
        }
        assert_eq!(request_id(&HeaderMap::new(), u128::MAX), "ffffffffff");
    }
}
