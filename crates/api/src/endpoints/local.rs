//! Plain names in place of URLs: databases of the server that the configuration names, with the rights of the caller.
//!
//! A replication goes on after the request that asked for it, so it takes along what the caller has proven itself with, as a
//! [`Grant`]: kept apart from the document or request, sealed, and shown to no reader.
//!
//! Nothing can be derived from a document's owner instead: the cluster knows no other service that may speak for its users. So
//! only what the cluster itself can take back is kept for longer than a request: a password, which ends with the user or when it
//! is changed, and a token without an end, which ends with its key. A session's cookie, a token that expires and the word of a
//! trusted proxy are good for a replication that ends. The proxy's token is the reason why the last is among them: it signs the
//! name alone, never expires, and nobody can take it or the roles beside it back.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, COOKIE};
use replication::params::Grant;
use serde_json::{Map, Value, json};

use crate::auth::authenticator::Method;
use crate::call::Call;
use crate::upstream::PROOFS;

/// What plain names mean for a caller; `None` when the configuration names no server.
pub(crate) fn grant(call: &Call) -> Option<Grant> {
    let options = call.shared.replications.options();
    let base = match &call.shared.upstream {
        Some(upstream) if options.local_endpoint_base_url.is_empty() => upstream.base(),
        _ => &options.local_endpoint_base_url,
    };
    let (rights, expires) = rights(call);
    (!base.is_empty()).then(|| Grant::new(base, rights, expires))
}

/// What the caller has proven itself with, as members of an endpoint, and whether that is good for this request only.
fn rights(call: &Call) -> (Map<String, Value>, bool) {
    let text = |value: &http::HeaderValue| value.to_str().ok().map(str::to_owned);
    let given = call.header(&AUTHORIZATION).unwrap_or_default();
    let (rights, expires) = match call.proven.method {
        Method::None => (json!({}), false),
        Method::Password => (json!({"headers": {"Authorization": given}}), false),
        Method::Token => {
            let token = given.split_once(' ').map_or("", |(_, token)| token.trim());
            (json!({"auth": {"bearer": token}}), expires(token))
        }
        Method::Cookie => {
            let cookies = call.headers.get_all(COOKIE).iter().filter_map(text);
            let cookies = cookies.collect::<Vec<_>>().join("; ");
            (json!({"headers": {"Cookie": cookies}}), true)
        }
        Method::Proxy => {
            let given = PROOFS[2..].iter().filter_map(|name| {
                let value = text(call.headers.get(name)?)?;
                Some((name.as_str().to_owned(), Value::String(value)))
            });
            (json!({"headers": given.collect::<Map<_, _>>()}), true)
        }
    };
    match rights {
        Value::Object(rights) => (rights, expires),
        _ => (Map::new(), expires),
    }
}

/// Whether a token says when it ends. Somebody else has verified it.
fn expires(token: &str) -> bool {
    let claims = token.split('.').nth(1);
    let claims = claims.and_then(|claims| BASE64_URL_SAFE_NO_PAD.decode(claims).ok());
    let claims = claims.and_then(|claims| serde_json::from_slice::<Value>(&claims).ok());
    claims.is_none_or(|claims| claims.get("exp").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_say_whether_they_end() {
        let token = |claims: &str| format!("h.{}.s", BASE64_URL_SAFE_NO_PAD.encode(claims));
        assert!(expires(&token(r#"{"sub":"anna","exp":1}"#)));
        assert!(!expires(&token(r#"{"sub":"anna"}"#)));
        assert!(expires("opaque"));
    }
}
