//! The dashboard's static files.

mod files;

use axum::body::Body;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LOCATION,
    REFERRER_POLICY, X_FRAME_OPTIONS,
};
use http::{Response, StatusCode};

use crate::Error;
use crate::call::Call;
use crate::reply::{Reply, set};

/// Only scripts, styles and requests of this service, whatever a document contains.
const POLICY: &str = "default-src 'self'; script-src 'self'; base-uri 'none'; form-action 'self'; \
                      frame-ancestors 'none'; object-src 'none'";

/// `GET /_dashboard/` and the files below it.
pub(crate) fn file(call: &Call, name: &str) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    if name.is_empty() {
        // All addresses in the page are relative, so a proxy can serve it below another path.
        let mut reply = Response::new(Body::empty());
        *reply.status_mut() = StatusCode::FOUND;
        set(&mut reply, LOCATION, "_dashboard/");
        return Ok(reply);
    }
    let file = files::find(name).ok_or_else(|| Error::not_found("missing"))?;
    let known = call.header(&IF_NONE_MATCH).unwrap_or_default();
    let mut tags = known
        .split(',')
        .map(|tag| tag.trim().trim_start_matches("W/"));
    let mut reply = Response::new(Body::empty());
    if tags.any(|tag| tag == file.etag) {
        *reply.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        *reply.body_mut() = Body::from(file.text);
        set(&mut reply, CONTENT_TYPE, file.content_type);
    }
    set(&mut reply, ETAG, &file.etag);
    set(&mut reply, CACHE_CONTROL, "no-cache");
    set(&mut reply, CONTENT_SECURITY_POLICY, POLICY);
    set(&mut reply, REFERRER_POLICY, "no-referrer");
    set(&mut reply, X_FRAME_OPTIONS, "DENY");
    Ok(reply)
}
