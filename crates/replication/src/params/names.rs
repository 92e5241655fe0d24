//! Plain database names in place of URLs: `"source": "mail"`, or `"source": {"url": "mail"}`.
//!
//! The body keeps the name. The resolved server and credentials, a [`Grant`], are stored apart from the body, sealed,
//! and never shown: they are the caller's own credentials, which are not in the document.

use couch::{Endpoint, Schemes};
use document::json::Json;
use serde_json::{Map, Value};

use super::invalid::Invalid;

const PROXIED: &str = "a plain name in `source` or `target` is reached directly, because a proxy would see the credentials that are \
                       added to it: leave `proxy` out, or set only `source_proxy` or `target_proxy` of the other side";

/// The server of plain names, and the rights used on it.
#[derive(Clone, PartialEq)]
pub struct Grant {
    base: String,
    rights: Map<String, Value>,
    expires: bool,
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grant")
            .field("base", &self.base)
            .finish_non_exhaustive()
    }
}

impl Grant {
    /// Databases of the server at `base`, with `headers` and `auth` of an endpoint. If it `expires`, it can be used for
    /// replications that end, but not for documents.
    pub fn new(base: &str, rights: Map<String, Value>, expires: bool) -> Self {
        Self {
            base: base.trim_end_matches('/').to_owned(),
            rights,
            expires,
        }
    }

    /// Whether the credentials expire.
    pub fn expires(&self) -> bool {
        self.expires
    }

    pub fn to_json(&self) -> Json {
        let members = [
            ("base", Value::String(self.base.clone())),
            ("rights", Value::Object(self.rights.clone())),
        ];
        let members = members.map(|(name, value)| (name.to_owned(), Json::from(&value)));
        Json::Object(members.into())
    }

    /// Parses the result of [`Self::to_json`].
    pub fn from_json(json: &Json) -> Option<Self> {
        let rights = json.get("rights")?.to_value();
        Some(Self::new(
            json.get("base")?.as_str()?,
            rights.as_object()?.clone(),
            false,
        ))
    }

    /// The endpoint for a name. Credentials in the body replace the caller's.
    fn endpoint(
        &self,
        name: &str,
        mut value: Value,
        schemes: &Schemes,
    ) -> Result<Endpoint, Invalid> {
        let url = Value::String(format!("{}/{}", self.base, escaped(name)));
        match &mut value {
            Value::Object(members) => drop(members.insert("url".to_owned(), url)),
            other => *other = url,
        }
        let endpoint = Endpoint::parse(&value, None, schemes)?;
        if endpoint.has_credentials() {
            return Ok(endpoint);
        }
        Ok(endpoint.with_rights(&self.rights)?)
    }
}

/// Parses `source` or `target`.
pub(super) fn endpoint(
    json: &Json,
    grant: Option<&Grant>,
    proxy: Option<&str>,
    schemes: &Schemes,
) -> Result<Endpoint, Invalid> {
    match (grant, name(json)) {
        (Some(_), Some(_)) if proxy.is_some() => Err(Invalid::new(PROXIED)),
        (Some(grant), Some(name)) => grant.endpoint(name, json.to_value(), schemes),
        _ => Ok(Endpoint::parse(&json.to_value(), proxy, schemes)?),
    }
}

/// Whether a body has a plain name.
pub fn has_names(body: &Json) -> bool {
    let mut endpoints = ["source", "target"].into_iter();
    endpoints.any(|member| body.get(member).and_then(name).is_some())
}

/// A name in place of a URL. Only valid database names count: anything else, such as a URL without its scheme, may
/// contain a password.
fn name(endpoint: &Json) -> Option<&str> {
    let text = match endpoint {
        Json::Object(_) => endpoint.get("url")?.as_str()?,
        _ => endpoint.as_str()?,
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_$()+/-".contains(&byte);
    let is_name = text.bytes().all(is_plain)
        && text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    is_name.then_some(text)
}

/// The name as a path segment.
fn escaped(name: &str) -> String {
    use std::fmt::Write as _;
    name.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"_-".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::params::{Defaults, Replication};

    fn grant() -> Grant {
        let rights = json!({"headers": {"Authorization": "Basic YTpzZWNyZXQ="}});
        Grant::new(
            "http://db:5984/",
            rights.as_object().unwrap().clone(),
            false,
        )
    }

    fn source(source: &Value) -> Result<Endpoint, String> {
        let body = json!({"source": source, "target": "http://t/"});
        let read = Replication::granted(&Json::from(&body), Some(&grant()), &Defaults::default());
        read.map(|read| read.source)
            .map_err(|invalid| invalid.to_string())
    }

    #[test]
    fn names_become_urls_with_rights() {
        for value in [json!("a/b+(c)"), json!({"url": "a/b+(c)"})] {
            let body = Json::from(&json!({"source": value, "target": "http://t/"}));
            assert!(has_names(&body));
            let endpoint = source(&value).unwrap();
            assert_eq!(endpoint.url_text(), "http://db:5984/a%2Fb%2B%28c%29/");
            assert_eq!(endpoint.username(), Some("a"));
        }
        let own = json!({"url": "a", "auth": {"bearer": "mine"}, "headers": {"x": "1"}});
        let own = source(&own).unwrap();
        assert_eq!((own.username(), own.headers().len()), (None, 1));
        let more = source(&json!({"url": "a", "headers": {"x": "1"}})).unwrap();
        assert_eq!((more.username(), more.headers().len()), (Some("a"), 1));
        let forged = source(&json!({"url": "a", "headers": {"X-Auth-CouchDB-Roles": "_admin"}}));
        assert!(forged.unwrap_err().contains("x-auth-couchdb-roles"));
    }

    #[test]
    fn rights_do_not_pass_through_a_proxy_of_the_user() {
        let read = |body: Value| {
            let body = Json::from(&body);
            let read = Replication::granted(&body, Some(&grant()), &Defaults::default());
            read.map(drop).map_err(|invalid| invalid.to_string())
        };
        let (own, url) = (json!({"url": "a", "auth": {"bearer": "mine"}}), "http://t/");
        for proxy in ["http://evil", "https://evil", "socks5://evil"] {
            for (member, source, target) in [
                ("source_proxy", json!("a"), json!(url)),
                ("target_proxy", json!(url), json!("a")),
                ("proxy", json!("a"), json!(url)),
                ("source_proxy", json!({"url": "a", "auth": {}}), json!(url)),
                ("source_proxy", own.clone(), json!(url)),
            ] {
                let refused = read(json!({"source": source, "target": target, member: proxy}));
                assert_eq!(refused.unwrap_err(), PROXIED, "{member} {source}");
            }
        }
        let around = json!({"source": "a", "target": url, "target_proxy": "http://other"});
        assert_eq!(read(around), Ok(()));
    }

    #[test]
    fn what_may_be_a_url_is_no_name() {
        for value in [
            json!("http://s/"),
            json!({"url": "http://s/"}),
            json!("user:secret@src.example"),
            json!("src.example:5984"),
            json!(".."),
            json!(""),
            json!("a?x"),
            json!(7),
            json!({}),
        ] {
            let body = Json::from(&json!({"source": value, "target": "http://t/"}));
            assert!(!has_names(&body), "{value}");
        }
        assert_eq!(
            source(&json!("u:p@h")).unwrap_err(),
            "local_endpoints_not_supported"
        );
    }

    #[test]
    fn a_grant_is_read_back_and_not_printed() {
        let grant = grant();
        assert_eq!(Grant::from_json(&grant.to_json()), Some(grant.clone()));
        assert!(!format!("{grant:?}").contains("YTpz"));
        assert_eq!(Grant::from_json(&Json::Null), None);
    }
}
