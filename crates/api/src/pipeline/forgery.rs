//! Cross-site request forgery: browsers send the session cookie automatically, and a proxy that logs users in adds its
//! headers to whatever a browser sends. A request that changes something with a cookie or such headers, or that asks for
//! a cookie, must come from this service, a trusted origin, or one that CORS allows to send credentials. Browsers say so
//! in `Origin`. A request without `Origin` does not come from a modern browser's script or form, but must not be
//! something an old browser's form can send either: the body must be declared as JSON.

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, ORIGIN, TRANSFER_ENCODING};
use http::{HeaderName, Method};

use super::cors;
use crate::Error;
use crate::auth::authenticator::Method as Proof;
use crate::call::Call;
use crate::route::{DbPart, Route};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

pub(super) fn check(call: &Call) -> Result<(), Error> {
    let logs_in = call.route == Route::Session;
    let is_automatic = matches!(call.proven.method, Proof::Cookie | Proof::Proxy);
    if call.method == Method::GET || !(is_automatic || logs_in) {
        return Ok(());
    }
    let refuse = || Err(Error::forbidden("The request comes from another site."));
    match call.headers.get(ORIGIN) {
        Some(origin) => {
            let trusted = |text: &str| {
                let trusted = &call.options().trusted_origins;
                is_own(call, text) || trusted.iter().any(|known| known.eq_ignore_ascii_case(text))
            };
            let cors = &call.options().cors;
            let shared = cors.credentials && cors::allows(cors, origin);
            if !shared && !origin.to_str().is_ok_and(trusted) {
                return refuse();
            }
        }
        None => match call.header(&FETCH_SITE) {
            None | Some("same-origin" | "none") => {}
            Some(_) => return refuse(),
        },
    }
    let has_body = match call.header(&CONTENT_LENGTH) {
        Some(length) => length != "0",
        None => call.headers.contains_key(TRANSFER_ENCODING),
    };
    // Attachments have any type; forms cannot send their method.
    let form = call.method == Method::POST
        && !logs_in
        && (has_body || call.headers.contains_key(CONTENT_TYPE));
    let harmless = matches!(
        call.route,
        Route::DbPart(_, DbPart::EnsureFullCommit | DbPart::Compact)
    );
    if form && !harmless {
        return call.check_json();
    }
    Ok(())
}

/// Whether an origin is this service, under the name that the client uses. The scheme may differ:
/// a proxy may terminate TLS.
fn is_own(call: &Call, origin: &str) -> bool {
    let Some((_, authority)) = origin.split_once("://") else {
        return false;
    };
    call.header(&HOST)
        .is_some_and(|host| host.eq_ignore_ascii_case(authority))
}
