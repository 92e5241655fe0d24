//! Plain database names in place of URLs, on the configured server, with the rights of the caller. A replication
//! outlives the request that created it, so the caller's credentials are kept as a [`Grant`]: apart from the document,
//! sealed, and never shown. They cannot be derived from a document's owner, since the cluster does not let another
//! service act for its users. Only credentials that the cluster can revoke are kept longer than a request: passwords,
//! which end when they change or the user is deleted, and tokens without expiry, which end with their key. Session
//! cookies, expiring tokens and proxy headers are good for replications that end, and no longer. Proxy tokens are among
//! them because they sign only the name, never expire, and cannot be revoked, nor can the roles sent with them.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, COOKIE, HOST};
use replication::params::Grant;
use serde_json::{Map, Value, json};

use crate::auth::authenticator::Method;
use crate::call::Call;
use crate::forwarded::FORWARDED_HOST;
use crate::upstream::PROOFS;

/// How plain names resolve for a caller; `None` if no server is configured.
pub(crate) fn grant(call: &Call) -> Option<Grant> {
    let options = call.shared.replications.options();
    let (rights, expires) = rights(call);
    let base = &options.local_endpoint_base_url;
    match &call.shared.upstream {
        Some(upstream) if base.is_empty() => {
            Some(Grant::new(upstream.base(), rights, expires).with_own(hosts(call)))
        }
        _ => (!base.is_empty()).then(|| Grant::new(base, rights, expires)),
    }
}

/// The host names by which the caller addresses this service. A forged one grants no more than a plain name.
fn hosts(call: &Call) -> Vec<String> {
    let named = [HOST, FORWARDED_HOST];
    let named = named.iter().filter_map(|name| call.header(name));
    let mut hosts: Vec<String> = named.map(str::to_owned).collect();
    let is_local = |host: &&str| ["localhost", "127.0.0.1", "[::1]"].contains(host);
    for host in hosts.clone() {
        let (name, port) = host.rsplit_once(':').unwrap_or((&host, ""));
        if is_local(&name) && !port.is_empty() {
            hosts.extend(["localhost", "127.0.0.1", "[::1]"].map(|name| format!("{name}:{port}")));
        }
    }
    hosts
}

/// The caller's credentials as members of an endpoint, and whether they are good for this request only.
fn rights(call: &Call) -> (Map<String, Value>, bool) {
    let text = |value: &http::HeaderValue| value.to_str().ok().map(str::to_owned);
    let given = call.header(&AUTHORIZATION).unwrap_or_default();
    let (rights, expires) = match call.proven.method {
        // Tokens have no access to replications.
        Method::None | Method::ApiToken => (json!({}), false),
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

/// Whether a token has an expiry. It was verified elsewhere.
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
