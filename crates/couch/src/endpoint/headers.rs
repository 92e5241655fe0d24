//! The member `headers` of an endpoint.

use base64::Engine as _;
use serde_json::Value;

use super::invalid::{HEADERS_MAX, InvalidEndpoint};
use crate::secret::{Basic, Secret};

pub(super) type Headers = Vec<(String, Secret)>;

const CREDENTIALS: &str = "put credentials into `auth`";
const URL: &str = "the URL names the host";
const PROXY: &str = "put the credentials into the URL of the proxy";
const OURS: &str = "the replicator sets it where it is needed";
const TRUSTED: &str = "x-auth-couchdb-";

/// Headers that users may not set, and what to do instead. What a server trusts a proxy to send must not come from
/// a document, and framing headers must match the message.
const REFUSED: [(&str, &str); 16] = [
    ("x-auth-couchdb-username", CREDENTIALS),
    ("x-auth-couchdb-roles", CREDENTIALS),
    ("x-auth-couchdb-token", CREDENTIALS),
    ("host", URL),
    ("proxy-authorization", PROXY),
    ("proxy-authenticate", PROXY),
    ("connection", OURS),
    ("content-length", OURS),
    ("expect", OURS),
    ("keep-alive", OURS),
    ("proxy-connection", OURS),
    ("te", OURS),
    ("trailer", OURS),
    ("transfer-encoding", OURS),
    ("upgrade", OURS),
    ("http2-settings", OURS),
];

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Author {
    /// A user, in a document or request.
    User,
    /// The service, which passes on a caller's credentials.
    Service,
}

/// Sorted headers without a Basic `Authorization`, and the credentials that it held, if it could
/// be decoded.
pub(super) fn take(
    given: Option<&Value>,
    author: Author,
) -> Result<(Headers, Option<Basic>), InvalidEndpoint> {
    let given = match given {
        None => return Ok((Vec::new(), None)),
        Some(Value::Object(given)) => given,
        Some(_) => return Err(InvalidEndpoint::Headers),
    };
    if given.len() > HEADERS_MAX {
        return Err(InvalidEndpoint::TooManyHeaders);
    }
    let mut headers = Vec::with_capacity(given.len());
    let mut basic = None;
    for (name, value) in given {
        let value = value.as_str().ok_or(InvalidEndpoint::Header)?;
        http::HeaderName::from_bytes(name.as_bytes()).map_err(|_| InvalidEndpoint::Header)?;
        http::HeaderValue::from_str(value).map_err(|_| InvalidEndpoint::Header)?;
        if author == Author::User {
            check_name(name)?;
        }
        match basic_payload(name, value) {
            Some(payload) => basic = decode_basic(payload).or(basic),
            None => headers.push((name.clone(), Secret::from(value))),
        }
    }
    headers.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok((headers, basic))
}

fn check_name(name: &str) -> Result<(), InvalidEndpoint> {
    let name = name.to_ascii_lowercase();
    if let Some((name, instead)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
        return Err(InvalidEndpoint::RefusedHeader(name, instead));
    }
    if name.starts_with(TRUSTED) {
        return Err(InvalidEndpoint::RefusedHeader(
            "x-auth-couchdb-*",
            CREDENTIALS,
        ));
    }
    Ok(())
}

/// Whether they authenticate requests, other than by Basic credentials.
pub(super) fn prove(headers: &[(String, Secret)]) -> bool {
    let authorizes = |name: &str| name.eq_ignore_ascii_case("authorization");
    headers.iter().any(|(name, _)| authorizes(name)) || has_session(headers)
}

/// Whether they contain a session's cookie.
pub(super) fn has_session(headers: &[(String, Secret)]) -> bool {
    let cookies = headers
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("cookie"));
    cookies
        .flat_map(|(_, value)| value.expose().split(';'))
        .any(|cookie| cookie.trim_start().starts_with("AuthSession="))
}

fn basic_payload<'a>(name: &str, value: &'a str) -> Option<&'a str> {
    if !name.eq_ignore_ascii_case("authorization") {
        return None;
    }
    let (scheme, payload) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("basic").then_some(payload)
}

fn decode_basic(payload: &str) -> Option<Basic> {
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(payload.trim())
        .ok()?;
    Basic::split(std::str::from_utf8(&bytes).ok()?)
}
