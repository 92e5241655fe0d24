//! Secrets in the configuration, which endpoints reference by `auth.secret_ref`.

use std::fmt;

use serde_json::{Map, Value};
use url::{Origin, Url};

use super::Endpoint;

const NO_ORIGINS: &str = "must have `origins`, a list of the servers that it may be sent to, as \
                          `origins = [\"https://couch.example.com:6984\"]`";
const BAD_ORIGIN: &str =
    "has an entry in `origins` that is not SCHEME://HOST or SCHEME://HOST:PORT with http or https";

/// Members of `auth`, and the only servers they may be sent to.
#[derive(Clone)]
pub struct NamedSecret {
    origins: Vec<Origin>,
    pub(super) auth: Map<String, Value>,
}

impl NamedSecret {
    /// Parses `origins` and the members of `auth` next to it. The error is for the operator and contains no value.
    pub fn parse(members: &Map<String, Value>) -> Result<Self, &'static str> {
        let mut auth = members.clone();
        let origins = match auth.remove("origins") {
            Some(Value::Array(origins)) if !origins.is_empty() => origins,
            _ => return Err(NO_ORIGINS),
        };
        let origins = origins.iter().map(|text| parse_origin(text.as_str()?));
        let origins: Option<_> = origins.collect();
        Ok(Self {
            origins: origins.ok_or(BAD_ORIGIN)?,
            auth,
        })
    }

    /// Whether it may be sent to an endpoint's server.
    pub fn allows(&self, endpoint: &Endpoint) -> bool {
        self.origins.contains(&endpoint.base().origin())
    }

    /// The members, if they may be sent to the server of a URL.
    pub fn members_for(&self, url: &Url) -> Option<&Map<String, Value>> {
        self.origins.contains(&url.origin()).then_some(&self.auth)
    }
}

/// Parses an origin, which may have no path, query or credentials.
fn parse_origin(text: &str) -> Option<Origin> {
    let url = Url::parse(text).ok()?;
    let is_bare = matches!(url.scheme(), "http" | "https")
        && url.path() == "/"
        && url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none();
    is_bare.then(|| url.origin())
}

impl fmt::Debug for NamedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedSecret")
            .field("origins", &self.origins)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(value: &Value) -> Result<NamedSecret, &'static str> {
        NamedSecret::parse(value.as_object().unwrap())
    }

    #[test]
    fn a_secret_goes_to_its_origins_only() {
        let secret = json!({
            "basic": {"username": "u", "password": "hunter2"},
            "origins": ["https://a.example", "http://b.example:5984/"],
        });
        let secret = parse(&secret).unwrap();
        assert!(!format!("{secret:?}").contains("hunter2"));
        for (url, allowed) in [
            ("https://a.example/db", true),
            ("https://A.example:443/db", true),
            ("http://b.example:5984/db", true),
            ("http://a.example/db", false),
            ("https://a.example:444/db", false),
            ("https://a.example.evil/db", false),
            ("https://x.a.example/db", false),
            ("http://b.example/db", false),
        ] {
            let endpoint = json!({"url": url, "auth": {"secret_ref": "s"}});
            let endpoint = Endpoint::parse(&endpoint, None, &super::super::Schemes::default());
            let endpoint = endpoint.unwrap();
            assert_eq!(secret.allows(&endpoint), allowed, "{url}");
            let resolved = endpoint.with_secret(&secret);
            assert_eq!(resolved.is_ok(), allowed, "{url}");
        }
    }

    #[test]
    fn origins_are_required_and_bare() {
        for value in [
            json!({}),
            json!({"origins": []}),
            json!({"origins": "http://a"}),
        ] {
            assert_eq!(parse(&value).unwrap_err(), NO_ORIGINS, "{value}");
        }
        for origin in [
            json!(7),
            json!("a.example"),
            json!("*"),
            json!("ftp://a"),
            json!("http://a/db"),
            json!("http://u:p@a"),
            json!("http://a?x"),
        ] {
            let value = json!({"origins": [origin]});
            assert_eq!(parse(&value).unwrap_err(), BAD_ORIGIN, "{value}");
        }
    }
}
