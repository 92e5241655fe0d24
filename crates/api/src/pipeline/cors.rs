//! Cross-origin requests (CORS).

use axum::body::Body;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::options::Cors;
use crate::reply::{Reply, set};

/// Headers that scripts may read in addition to the default ones.
const EXPOSED: &str = "content-type, accept-ranges, etag, location, retry-after, server, x-couch-request-id, \
                       x-couch-replication-job, x-couchdb-body-time";

/// Whether scripts of this origin may read responses.
pub(super) fn allows(cors: &Cors, origin: &HeaderValue) -> bool {
    let Ok(origin) = origin.to_str() else {
        return false;
    };
    (cors.origins.iter()).any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(origin))
}

/// The response to a preflight request; `None` if it is not one.
pub(super) fn preflight(cors: &Cors, headers: &HeaderMap) -> Option<Reply> {
    let origin = headers.get(ORIGIN)?;
    headers.get(ACCESS_CONTROL_REQUEST_METHOD)?;
    let mut reply = Response::new(Body::empty());
    *reply.status_mut() = StatusCode::NO_CONTENT;
    if allows(cors, origin) {
        set(
            &mut reply,
            ACCESS_CONTROL_ALLOW_METHODS,
            &cors.methods.join(", "),
        );
        set(
            &mut reply,
            ACCESS_CONTROL_ALLOW_HEADERS,
            &cors.headers.join(", "),
        );
        set(
            &mut reply,
            ACCESS_CONTROL_MAX_AGE,
            &cors.max_age.to_string(),
        );
    }
    Some(reply)
}

/// Lets scripts of an allowed origin read the response.
pub(super) fn allow(cors: &Cors, origin: &HeaderValue, headers: &mut HeaderMap) {
    if cors.origins.is_empty() {
        return;
    }
    headers.append(VARY, HeaderValue::from_static("Origin"));
    if !allows(cors, origin) {
        return;
    }
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(
        ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static(EXPOSED),
    );
    if cors.credentials {
        let credentials = HeaderValue::from_static("true");
        headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, credentials);
    }
}
