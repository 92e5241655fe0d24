//! Plain database names in place of URLs: `"source": "mail"`, or `"source": {"url": "mail"}`.
//!
//! The body keeps the name. The resolved server and credentials, a [`Grant`], are stored apart from the body, sealed,
//! and never shown: they are the caller's own credentials, which are not in the document.

use couch::{Endpoint, Reach, Schemes};
use document::json::Json;
use serde_json::{Map, Value};
use url::{Position, Url};

use super::invalid::Invalid;

const PROXIED: &str = "a plain name in `source` or `target` is reached directly, because a proxy would see the credentials that are \
                       added to it: leave `proxy` out, or set only `source_proxy` or `target_proxy` of the other side";

/// What the service adds to what a body says: the rights of plain names, and what its author may reach.
#[derive(Clone, Default, PartialEq)]
pub struct Grant {
    names: Option<Names>,
    reach: Reach,
    expires: bool,
}

/// Where plain names are, and the rights they are used with.
#[derive(Clone, PartialEq)]
struct Names {
    base: String,
    /// Hosts with ports whose URLs mean databases at `base`, too.
    own: Vec<String>,
    rights: Map<String, Value>,
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grant")
            .field("base", &self.names.as_ref().map(|names| &names.base))
            .field("reach", &self.reach)
            .finish_non_exhaustive()
    }
}

impl Grant {
    /// Databases of the server at `base`, with `headers` and `auth` of an endpoint. If it `expires`, it can be used for
    /// replications that end, but not for documents.
    pub fn new(base: &str, rights: Map<String, Value>, expires: bool) -> Self {
        let names = Names {
            base: base.trim_end_matches('/').to_owned(),
            own: Vec::new(),
            rights,
        };
        Self {
            names: Some(names),
            reach: Reach::Public,
            expires,
        }
    }

    /// URLs with these hosts, as a `Host` header has them, are those of databases of that server, too.
    #[must_use]
    pub fn with_own(mut self, hosts: impl IntoIterator<Item = String>) -> Self {
        if let Some(names) = &mut self.names {
            names
                .own
                .extend(hosts.into_iter().map(|host| host.to_ascii_lowercase()));
        }
        self
    }

    /// What a body of an author with this reach is granted, of `names` no more than the body needs; `None` for nothing.
    pub fn of(body: &Json, names: Option<&Self>, reach: Reach) -> Option<Self> {
        let Some(Self {
            names: Some(names),
            expires,
            ..
        }) = names
        else {
            return Self::reaching(reach);
        };
        let endpoints = ["source", "target"].into_iter();
        let endpoints = endpoints.filter_map(|member| body.get(member));
        let local = endpoints.filter_map(|json| Some((json, names.url(json)?)));
        let local: Vec<_> = local.collect();
        if local.is_empty() {
            return Self::reaching(reach);
        }
        let lends = local.iter().any(|(json, url)| {
            let endpoint = Endpoint::parse(&at(json, url), None, &Schemes::default());
            endpoint.is_ok_and(|endpoint| !endpoint.has_credentials())
        });
        let mut names = names.clone();
        if !lends {
            names.rights.clear();
        }
        Some(Self {
            expires: *expires && lends,
            names: Some(names),
            reach,
        })
    }

    fn reaching(reach: Reach) -> Option<Self> {
        (reach != Reach::Public).then(|| Self {
            reach,
            ..Self::default()
        })
    }

    /// Whether what it is made of is good for a while only.
    pub fn expires(&self) -> bool {
        self.expires
    }

    /// Whether it has rights, which are secret.
    pub fn has_rights(&self) -> bool {
        (self.names.as_ref()).is_some_and(|names| !names.rights.is_empty())
    }

    /// What [`Self::from_json`] reads.
    pub fn to_json(&self) -> Json {
        let private = (self.reach == Reach::Private).then_some(("private", Value::Bool(true)));
        let names = self.names.iter().flat_map(|names| {
            let base = Value::String(names.base.clone());
            let rights = Value::Object(names.rights.clone());
            [
                ("base", base),
                ("own", names.own.clone().into()),
                ("rights", rights),
            ]
        });
        let members = names.chain(private);
        let members = members.map(|(name, value)| (name.to_owned(), Json::from(&value)));
        Json::Object(members.collect())
    }

    /// Parses the result of [`Self::to_json`].
    pub fn from_json(json: &Json) -> Option<Self> {
        json.as_object()?;
        let names = match json.get("base") {
            None => None,
            Some(base) => Some(Names {
                base: base.as_str()?.to_owned(),
                own: (json
                    .get("own")
                    .and_then(Json::as_array)
                    .unwrap_or_default()
                    .iter())
                .filter_map(|host| host.as_str().map(str::to_owned))
                .collect(),
                rights: json.get("rights")?.to_value().as_object()?.clone(),
            }),
        };
        let is_private = json.get("private").and_then(Json::as_bool) == Some(true);
        Some(Self {
            names,
            reach: if is_private {
                Reach::Private
            } else {
                Reach::Public
            },
            expires: false,
        })
    }
}

impl Names {
    /// The URL of a database of this server: of a plain name, or of a URL that clients use for it.
    fn url(&self, endpoint: &Json) -> Option<String> {
        if let Some(name) = name(endpoint) {
            return Some(format!("{}/{}", self.base, escaped(name)));
        }
        let url = Url::parse(text(endpoint)?).ok()?;
        let (host, port) = (url.host_str()?, url.port_or_known_default()?);
        let is_own = self.own.iter().any(|own| {
            let spelled = [host.to_owned(), format!("{host}:{port}")];
            *own == spelled[1] || (url.port().is_none() && *own == spelled[0])
        });
        let path = url.path().trim_matches('/');
        // Those databases are the service's, and not the server's.
        let last = path.rsplit('/').next()?.to_ascii_lowercase();
        let is_ours = last.rsplit("%2f").next() == Some("_replicator");
        if !is_own || path.is_empty() || is_ours {
            return None;
        }
        let (scheme, rest) = self.base.split_once("://")?;
        let credentials = &url[Position::BeforeUsername..Position::BeforeHost];
        Some(format!("{scheme}://{credentials}{rest}/{path}"))
    }

    /// The endpoint at a URL of this server. Credentials that it has are used in place of the caller's.
    fn endpoint(&self, json: &Json, url: &str, schemes: &Schemes) -> Result<Endpoint, Invalid> {
        let endpoint = Endpoint::parse(&at(json, url), None, schemes)?;
        if endpoint.has_credentials() {
            return Ok(endpoint);
        }
        Ok(endpoint.with_rights(&self.rights)?)
    }
}

/// The endpoint with another URL.
fn at(endpoint: &Json, url: &str) -> Value {
    let url = Value::String(url.to_owned());
    match endpoint.to_value() {
        Value::Object(mut members) => {
            members.insert("url".to_owned(), url);
            Value::Object(members)
        }
        _ => url,
    }
}

/// Reads `source` or `target`.
pub(super) fn endpoint(
    json: &Json,
    grant: Option<&Grant>,
    proxy: Option<&str>,
    schemes: &Schemes,
) -> Result<Endpoint, Invalid> {
    let names = grant.and_then(|grant| grant.names.as_ref());
    let local = names.and_then(|names| Some((names, names.url(json)?)));
    let endpoint = match local {
        Some(_) if proxy.is_some() => return Err(Invalid::new(PROXIED)),
        Some((names, url)) => names.endpoint(json, &url, schemes)?,
        None => Endpoint::parse(&json.to_value(), proxy, schemes)?,
    };
    Ok(endpoint.reaching(grant.map(|grant| grant.reach).unwrap_or_default()))
}

fn text(endpoint: &Json) -> Option<&str> {
    match endpoint {
        Json::Object(_) => endpoint.get("url")?.as_str(),
        _ => endpoint.as_str(),
    }
}

/// A name in place of a URL. Only valid database names count: anything else, such as a URL without its scheme, may
/// contain a password.
fn name(endpoint: &Json) -> Option<&str> {
    let text = text(endpoint)?;
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
    fn urls_of_the_frontend_are_those_of_the_server() {
        let grant = grant().with_own(["Front.example:5985".to_owned(), "front.example".to_owned()]);
        let read = |source: Value| {
            let body = Json::from(&json!({"source": source, "target": "http://t/"}));
            let granted = Grant::of(&body, Some(&grant), Reach::Public);
            let stored = granted.as_ref().map(Grant::to_json);
            let granted = stored.as_ref().and_then(Grant::from_json);
            let read = Replication::granted(&body, granted.as_ref(), &Defaults::default());
            (read.unwrap().source, granted)
        };
        for (url, meant) in [
            ("http://front.example:5985/mail", "http://db:5984/mail/"),
            ("https://front.example/a%2Fb/", "http://db:5984/a%2Fb/"),
            (
                "http://front.example:5986/mail",
                "http://front.example:5986/mail/",
            ),
            ("http://front.example/", "http://front.example/"),
            (
                "http://front.example/_replicator",
                "http://front.example/_replicator/",
            ),
            (
                "http://front.example/a%2f_replicator",
                "http://front.example/a%2f_replicator/",
            ),
            (
                "http://front.example/a/_replicator/",
                "http://front.example/a/_replicator/",
            ),
        ] {
            let (endpoint, granted) = read(json!({ "url": url }));
            assert_eq!(endpoint.url_text(), meant, "{url}");
            let lent = granted.is_some_and(|granted| granted.has_rights());
            assert_eq!(
                (lent, endpoint.username()),
                (meant.contains("db:"), lent.then_some("a")),
                "{url}"
            );
        }
        // Credentials of its own are no loan.
        let basic = json!({"url": "http://front.example/mail", "headers": {"Authorization": "Basic am9lOng="}});
        for own in [json!("http://joe:x@front.example/mail"), basic] {
            let (endpoint, granted) = read(own);
            assert_eq!(endpoint.url_text(), "http://db:5984/mail/");
            assert_eq!(endpoint.username(), Some("joe"));
            assert!(!granted.unwrap().has_rights());
        }
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
            assert_eq!(
                Grant::of(&body, Some(&grant()), Reach::Public),
                None,
                "{value}"
            );
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
        let body = Json::from(&json!({"source": "http://s/", "target": "http://t/"}));
        assert_eq!(Grant::of(&body, Some(&grant), Reach::Public), None);
        let private = Grant::of(&body, Some(&grant), Reach::Private).unwrap();
        assert!(!private.has_rights());
        assert_eq!(Grant::from_json(&private.to_json()), Some(private));
        assert!(!format!("{grant:?}").contains("YTpz"));
        assert_eq!(Grant::from_json(&Json::Null), None);
    }
}
