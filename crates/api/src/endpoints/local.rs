//! Names in place of URLs: databases of the server that the configuration names, with the rights of the caller.
//!
//! A replication goes on after the request that asked for it, so it takes along what the caller has proven itself with:
//! name and password, a token, or the headers of a trusted proxy. They become part of the source or target, and are sealed
//! and hidden like any other credentials there. A session's cookie, or a token that expires, is good for a replication that
//! ends, as in `CouchDB`; one that goes on, or stands in a document, would outlive it and is refused.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use document::json::Json;
use http::header::{AUTHORIZATION, COOKIE};
use serde_json::Value;

use crate::auth::authenticator::Method;
use crate::call::Call;
use crate::reply::quote;
use crate::upstream::PROOFS;

const OUTLIVED: &str = "A session or token ends before this replication does: send name and password with the request, or \
                        give `source` and `target` as URLs with credentials of their own.";

/// What names are resolved to.
pub(crate) struct LocalEndpoints {
    base: String,
    /// Members of the endpoint.
    rights: Vec<(String, Json)>,
    /// The caller's credentials expire.
    expires: bool,
}

impl LocalEndpoints {
    /// `None` when the configuration names no server.
    pub(crate) fn of(call: &Call) -> Option<Self> {
        let options = call.shared.replications.options();
        let configured = options.local_endpoint_base_url.trim_end_matches('/');
        let base = match &call.shared.upstream {
            Some(upstream) if configured.is_empty() => upstream.base(),
            _ => configured,
        };
        if base.is_empty() {
            return None;
        }
        let (rights, expires) = rights(call);
        Some(Self {
            base: base.to_owned(),
            rights,
            expires,
        })
    }

    /// The body with URLs in place of names. A replication that `lasts` goes on when the caller's session is over.
    pub(crate) fn resolve(&self, body: Json, lasts: bool) -> Result<Json, &'static str> {
        let Json::Object(mut members) = body else {
            return Ok(body);
        };
        let endpoints = members
            .iter_mut()
            .filter(|(name, _)| matches!(name.as_str(), "source" | "target"));
        for (_, endpoint) in endpoints {
            let Some(name) = endpoint.as_str().filter(|name| is_database(name)) else {
                continue;
            };
            if lasts && self.expires {
                return Err(OUTLIVED);
            }
            let url = format!("{}/{}", self.base, quote(name));
            let mut resolved = vec![("url".to_owned(), Json::String(url))];
            resolved.extend(self.rights.iter().cloned());
            *endpoint = Json::Object(resolved);
        }
        Ok(Json::Object(members))
    }
}

/// Whether a body has a name to resolve.
pub(crate) fn has_names(body: &Json) -> bool {
    ["source", "target"]
        .into_iter()
        .filter_map(|member| body.get(member)?.as_str())
        .any(is_database)
}

/// What the caller has proven itself with, as members of an endpoint, and whether that expires.
fn rights(call: &Call) -> (Vec<(String, Json)>, bool) {
    let text = |value: &http::HeaderValue| value.to_str().ok().map(str::to_owned);
    let member = |name: &str, value| vec![(name.to_owned(), Json::Object(value))];
    let header = |name: &str, value: String| (name.to_owned(), Json::String(value));
    match call.proven.method {
        Method::None => (Vec::new(), false),
        Method::Password => {
            let given = call.header(&AUTHORIZATION).unwrap_or_default().to_owned();
            (
                member("headers", vec![header("Authorization", given)]),
                false,
            )
        }
        Method::Token => {
            let given = call.header(&AUTHORIZATION).unwrap_or_default();
            let token = given.split_once(' ').map_or("", |(_, token)| token.trim());
            let expires = expires(token);
            (
                member("auth", vec![header("bearer", token.to_owned())]),
                expires,
            )
        }
        Method::Cookie => {
            let cookies = call.headers.get_all(COOKIE).iter().filter_map(text);
            let cookies = cookies.collect::<Vec<_>>().join("; ");
            (member("headers", vec![header("Cookie", cookies)]), true)
        }
        Method::Proxy => {
            let given = PROOFS[2..].iter().filter_map(|name| {
                let value = text(call.headers.get(name)?)?;
                Some(header(name.as_str(), value))
            });
            (member("headers", given.collect()), false)
        }
    }
}

/// Whether a token says when it ends. Somebody else has verified it.
fn expires(token: &str) -> bool {
    let claims = token.split('.').nth(1);
    let claims = claims.and_then(|claims| BASE64_URL_SAFE_NO_PAD.decode(claims).ok());
    let claims = claims.and_then(|claims| serde_json::from_slice::<Value>(&claims).ok());
    claims.is_none_or(|claims| claims.get("exp").is_some())
}

/// A database's name, and no attempt at a URL.
fn is_database(name: &str) -> bool {
    !name.is_empty() && !name.contains("://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_urls_with_rights() {
        let rights = Json::parse(r#"{"Authorization":"Basic eA=="}"#).unwrap();
        let local = LocalEndpoints {
            base: "http://db:5984".to_owned(),
            rights: vec![("headers".to_owned(), rights)],
            expires: true,
        };
        let body = Json::parse(r#"{"source":"a/b","target":"http://t/","x":1}"#).unwrap();
        assert!(has_names(&body));
        let resolved = local.resolve(body.clone(), false).unwrap();
        assert_eq!(
            resolved.to_string(),
            r#"{"source":{"url":"http://db:5984/a%2Fb","headers":{"Authorization":"Basic eA=="}},"target":"http://t/","x":1}"#
        );
        assert_eq!(local.resolve(body, true), Err(OUTLIVED));
        let urls = Json::parse(r#"{"source":"http://s/","target":{"url":"a"}}"#).unwrap();
        assert!(!has_names(&urls));
        assert_eq!(local.resolve(urls.clone(), true).unwrap(), urls);
    }

    #[test]
    fn tokens_say_whether_they_end() {
        let token = |claims: &str| format!("h.{}.s", BASE64_URL_SAFE_NO_PAD.encode(claims));
        assert!(expires(&token(r#"{"sub":"anna","exp":1}"#)));
        assert!(!expires(&token(r#"{"sub":"anna"}"#)));
        assert!(expires("opaque"));
    }
}
