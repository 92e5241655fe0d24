//! One side of a replication: URL, credentials, headers, proxy and TLS.
//!
//! An [`Endpoint`] is always in normal form: the URL has its trailing slash, Basic credentials are
//! out of URL and headers, headers are sorted. Two endpoints are equal exactly when CouchDB takes
//! them for the same, and what replication ids hash is available as the user spelled it.

mod auth;
mod headers;
mod invalid;
mod named;
mod proxy;
mod text;
mod tls;

use std::fmt;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use url::Url;

pub use auth::{AuthMethod, ClientCredentials, IamKey};
pub use invalid::InvalidEndpoint;
pub use named::NamedSecret;
pub use proxy::{Proxy, ProxyScheme};
pub use tls::TlsOverrides;

use crate::egress::Reach;
use crate::secret::{Basic, Secret, spellings};
use headers::{Author, Headers};
use invalid::URL_BYTES_MAX;
use text::{Split, with_trailing_slash};

/// The headers of every request, which the user's own may replace.
pub const DEFAULT_HEADERS: [(&str, &str); 2] =
    [("Accept", "application/json"), ("User-Agent", USER_AGENT)];

pub const USER_AGENT: &str = concat!("CouchDB-Replicator/", env!("CARGO_PKG_VERSION"));

/// The schemes that the configuration allows (`valid_endpoint_protocols`,
/// `valid_proxy_protocols`).
#[derive(Debug, Clone)]
pub struct Schemes {
    /// `http` and `https` unless narrowed.
    pub endpoint: Vec<String>,
    /// `http`, `https` and `socks5` unless narrowed.
    pub proxy: Vec<ProxyScheme>,
}

impl Default for Schemes {
    fn default() -> Self {
        Self {
            endpoint: vec!["http".to_owned(), "https".to_owned()],
            proxy: vec![ProxyScheme::Http, ProxyScheme::Https, ProxyScheme::Socks5],
        }
    }
}

/// A normalised endpoint. `Display` and `Debug` show its URL without credentials: a query or fragment may hold some, so neither
/// is shown.
#[derive(Clone, PartialEq)]
pub struct Endpoint {
    /// Without userinfo, query and fragment, which may hold credentials.
    shown: String,
    /// Without userinfo.
    spelled: Secret,
    host: String,
    port: Option<u16>,
    path: String,
    url: Url,
    headers: Headers,
    basic: Option<Basic>,
    /// Members of `auth` besides `basic`, as given: unknown ones count for equality.
    auth: Map<String, Value>,
    method: Option<AuthMethod>,
    proxy: Option<Proxy>,
    tls: TlsOverrides,
    reach: Reach,
}

impl Eq for Endpoint {}

impl Endpoint {
    /// Reads `source` or `target` of a replication document, in string or object form, with the
    /// proxy that the document names for it (an empty text is none).
    pub fn parse(
        value: &Value,
        proxy: Option<&str>,
        schemes: &Schemes,
    ) -> Result<Self, InvalidEndpoint> {
        let proxy = match proxy {
            None | Some("") => None,
            Some(text) => Some(Proxy::parse(text, &schemes.proxy)?),
        };
        match value {
            Value::Null => Err(InvalidEndpoint::Missing),
            Value::String(url) if !url.starts_with("http://") && !url.starts_with("https://") => {
                Err(InvalidEndpoint::Local)
            }
            Value::String(url) => Self::build(url, &Map::new(), proxy, schemes),
            Value::Object(members) => match members.get("url") {
                Some(Value::String(url)) => Self::build(url, members, proxy, schemes),
                _ => Err(InvalidEndpoint::Url),
            },
            _ => Err(InvalidEndpoint::Url),
        }
    }

    /// Parses a bare URL, for command lines and tests.
    pub fn from_url(url: &str) -> Result<Self, InvalidEndpoint> {
        Self::parse(&Value::String(url.to_owned()), None, &Schemes::default())
    }

    fn build(
        url: &str,
        members: &Map<String, Value>,
        proxy: Option<Proxy>,
        schemes: &Schemes,
    ) -> Result<Self, InvalidEndpoint> {
        let spelled = with_trailing_slash(url);
        if spelled.len() > URL_BYTES_MAX {
            return Err(InvalidEndpoint::LongUrl);
        }
        let split = Split::of(&spelled).ok_or(InvalidEndpoint::Url)?;
        let known = matches!(split.scheme, "http" | "https");
        if !known || !schemes.endpoint.iter().any(|scheme| scheme == split.scheme) {
            return Err(InvalidEndpoint::Url);
        }
        let text = split.without_userinfo();
        let parsed = Url::parse(&text).map_err(|_| InvalidEndpoint::Url)?;
        if !parsed.has_host() || !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(InvalidEndpoint::Url);
        }

        let mut auth = match members.get("auth") {
            None => Map::new(),
            Some(Value::Object(auth)) => auth.clone(),
            Some(_) => return Err(InvalidEndpoint::Auth),
        };
        let auth_basic = auth.remove("basic").as_ref().and_then(auth::basic);
        let (headers, header_basic) = headers::take(members.get("headers"), Author::User)?;
        let endpoint = Self {
            host: split.host.to_owned(),
            port: split.port,
            path: split.path(),
            url: parsed,
            headers,
            basic: auth_basic.or_else(|| split.credentials()).or(header_basic),
            method: AuthMethod::parse(&auth)?,
            auth,
            proxy,
            tls: TlsOverrides::parse(members.get("tls"))?,
            reach: Reach::default(),
            shown: split.shown(),
            spelled: text.into(),
        };
        let others = endpoint.basic.is_some()
            || endpoint.method.is_some()
            || endpoint.secret_ref().is_some()
            || (endpoint.headers.iter())
                .any(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        if others && headers::has_session(&endpoint.headers) {
            return Err(InvalidEndpoint::TwoCredentials);
        }
        Ok(endpoint)
    }

    /// The URL without credentials, query and fragment, otherwise as the user spelled it.
    pub fn url_text(&self) -> &str {
        &self.shown
    }

    /// The URL without userinfo as the user spelled it, **with its query**, which may hold credentials: part of old
    /// replication ids.
    pub fn id_url(&self) -> &str {
        self.spelled.expose()
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &str {
        self.url.scheme()
    }

    /// The host as the user spelled it, an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, if the user spelled one.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Path and query as the user spelled them, from the first `/` on. The query may hold credentials: part of replication
    /// ids, which are hashes.
    pub fn id_path(&self) -> &str {
        &self.path
    }

    /// The user name of the Basic credentials: part of replication ids.
    pub fn username(&self) -> Option<&str> {
        self.basic.as_ref().map(|basic| basic.username.as_str())
    }

    /// Basic credentials from the URL, `headers` or `auth`.
    pub fn basic(&self) -> Option<&Basic> {
        self.basic.as_ref()
    }

    /// The same endpoint with other Basic credentials.
    #[must_use]
    pub fn with_basic(self, basic: Basic) -> Self {
        let basic = Some(basic);
        Self { basic, ..self }
    }

    /// How requests are authenticated when not by Basic credentials.
    pub fn auth_method(&self) -> Option<&AuthMethod> {
        self.method.as_ref()
    }

    /// The user's own headers, sorted by name, without Basic credentials.
    pub fn headers(&self) -> &[(String, Secret)] {
        &self.headers
    }

    /// The headers that replication ids hash: the user's own, minus those that say what every
    /// request has anyway.
    pub fn id_headers(&self) -> impl Iterator<Item = (&str, &Secret)> {
        self.headers
            .iter()
            .map(|(name, value)| (name.as_str(), value))
            .filter(|(name, value)| !DEFAULT_HEADERS.contains(&(name, value.expose())))
    }

    /// The proxy through which the endpoint is reached.
    pub fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }

    /// What its author may reach without a rule.
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// The same endpoint, for an author with this reach.
    #[must_use]
    pub fn reaching(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }

    pub fn tls(&self) -> &TlsOverrides {
        &self.tls
    }

    /// The name of a secret in the service's secret store that holds the rest of `auth`. It
    /// has to be resolved by [`Endpoint::with_secret`] before the endpoint is opened.
    pub fn secret_ref(&self) -> Option<&str> {
        self.auth.get("secret_ref").and_then(Value::as_str)
    }

    /// The same endpoint with `auth.secret_ref` replaced by the members of that secret, if it may be sent there.
    pub fn with_secret(&self, secret: &NamedSecret) -> Result<Self, InvalidEndpoint> {
        if !secret.allows(self) {
            return Err(InvalidEndpoint::SecretOrigin);
        }
        let mut resolved = self.clone();
        resolved.auth.remove("secret_ref");
        resolved.add_auth(&secret.auth)?;
        Ok(resolved)
    }

    fn add_auth(&mut self, auth: &Map<String, Value>) -> Result<(), InvalidEndpoint> {
        for (name, value) in auth {
            match name.as_str() {
                "basic" => self.basic = Some(auth::basic(value).ok_or(AUTH_BASIC)?),
                _ => drop(self.auth.insert(name.clone(), value.clone())),
            }
        }
        self.method = AuthMethod::parse(&self.auth)?;
        Ok(())
    }

    pub fn has_credentials(&self) -> bool {
        self.basic.is_some()
            || self.method.is_some()
            || self.secret_ref().is_some()
            || headers::prove(&self.headers)
    }

    /// The same endpoint with `headers` and `auth` that the service adds on behalf of a caller, including those that users
    /// may not set, such as the headers of a trusted proxy.
    pub fn with_rights(&self, rights: &Map<String, Value>) -> Result<Self, InvalidEndpoint> {
        let mut resolved = self.clone();
        let (headers, basic) = headers::take(rights.get("headers"), Author::Service)?;
        resolved.headers.extend(headers);
        resolved.headers.sort_by(|(a, _), (b, _)| a.cmp(b));
        resolved.basic = basic.or(resolved.basic);
        if let Some(auth) = rights.get("auth").and_then(Value::as_object) {
            resolved.add_auth(auth)?;
        }
        Ok(resolved)
    }

    /// Whether it uses something that only a server administrator may use: other TLS
    /// rules, a token file of the node, or a secret of the configuration.
    pub fn is_privileged(&self) -> bool {
        self.tls != TlsOverrides::default()
            || matches!(self.method, Some(AuthMethod::JwtFile(_)))
            || self.auth.contains_key("secret_ref")
    }

    /// The secrets in query and fragment that a server could repeat.
    pub(crate) fn query_secrets(&self) -> Vec<Secret> {
        let Some((_, query)) = self.spelled.expose().split_once(['?', '#']) else {
            return Vec::new();
        };
        let values = query.split(['&', ';', '#', '?']).map(|pair| {
            let (_, value) = pair.split_once('=').unwrap_or(("", pair));
            value
        });
        let mut found = vec![Secret::from(query)];
        found.extend(self.url.query().map(Secret::from));
        let normal = self.url.query().unwrap_or_default();
        let normal = normal.split('&').filter_map(|pair| pair.split_once('='));
        for value in values.chain(normal.map(|(_, value)| value)) {
            let decoded = percent_decode_str(value).decode_utf8_lossy();
            let spaced = value.replace('+', " ");
            let spaced = percent_decode_str(&spaced).decode_utf8_lossy();
            found.extend([Secret::from(value)]);
            found.extend(spellings(&Secret::from(&*decoded)));
            found.extend(spellings(&Secret::from(&*spaced)));
        }
        found.sort_by(|a, b| {
            let (a, b) = (a.expose(), b.expose());
            b.len().cmp(&a.len()).then_with(|| a.cmp(b))
        });
        found.dedup();
        found
    }

    /// The server of a database, with the same credentials, and the name of the database there.
    pub fn server(&self) -> Option<(Self, String)> {
        let mut url = self.url.clone();
        let mut segments = url.path_segments()?.filter(|segment| !segment.is_empty());
        let name = percent_decode_str(segments.next_back()?);
        let name = name.decode_utf8().ok()?.into_owned();
        url.path_segments_mut().ok()?.pop_if_empty().pop().push("");
        url.set_query(None);
        url.set_fragment(None);
        Some((self.moved(url), name))
    }

    /// A database of this server, with the same credentials.
    pub fn database(&self, name: &str) -> Option<Self> {
        let mut url = self.url.clone();
        url.path_segments_mut().ok()?.pop_if_empty();
        let server = url.path().len();
        url.path_segments_mut().ok()?.push(name).push("");
        // In a path, CouchDB decodes `+` to a space.
        let path = url.path().to_owned();
        if let Some((server, database)) = path.split_at_checked(server) {
            url.set_path(&[server, &database.replace('+', "%2B")].concat());
        }
        url.set_query(None);
        url.set_fragment(None);
        Some(self.moved(url))
    }

    /// The same endpoint, with its URL spelled as that of [`Endpoint::server`]: the host in lower case, no default port.
    #[must_use]
    pub fn normalized(self) -> Self {
        let mut url = self.url.clone();
        url.set_query(None);
        url.set_fragment(None);
        Self {
            shown: url.into(),
            ..self
        }
    }

    fn moved(&self, url: Url) -> Self {
        Self {
            shown: url.as_str().to_owned(),
            spelled: url.as_str().into(),
            path: url.path().to_owned(),
            url,
            ..self.clone()
        }
    }

    /// The URL that requests are made from.
    pub(crate) fn base(&self) -> &Url {
        &self.url
    }
}

const AUTH_BASIC: InvalidEndpoint = InvalidEndpoint::AuthMember("basic");

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.shown).finish()
    }
}

#[cfg(test)]
mod tests;
