//! Authenticates the headers of a request.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderValue};
use queue::Scope;
use serde_json::Value;

use super::cookie::Sessions;
use super::hashing::Lane;
use super::jwt::Jwt;
use super::password::PasswordHash;
use super::throttle::Throttle;
use super::verifier::{Question, Verifier};
use super::{ADMIN_ROLE, AuthError, Identity, SECRET_BYTES_MIN, WRONG, proxy};
use crate::options::InvalidOption;

/// A configured administrator or a `_users` document.
#[derive(Debug, Clone)]
pub struct User {
    /// Users without one cannot log in with a password.
    pub password: Option<PasswordHash>,
    pub roles: Vec<String>,
}

impl User {
    pub fn from_document(document: &Value) -> Self {
        let roles = document.get("roles").and_then(Value::as_array);
        Self {
            password: PasswordHash::from_user(document),
            roles: (roles.into_iter().flatten().filter_map(Value::as_str))
                // Write access to user documents must not allow creating administrators.
                .filter(|role| !role.starts_with('_'))
                .map(str::to_owned)
                .collect(),
        }
    }

    fn salt(&self) -> &str {
        self.password
            .as_ref()
            .map(PasswordHash::salt)
            .unwrap_or_default()
    }
}

/// Finds users that are not configured administrators.
pub trait Users: Sync {
    /// The error of the source, or an authentication error.
    type Error: From<AuthError> + Send;

    fn find(&self, name: &str) -> impl Future<Output = Result<Option<User>, Self::Error>> + Send;

    /// Replaces a weak hash, now that the password is known. If that fails, the weak hash stays in use.
    fn strengthen(
        &self,
        name: &str,
        weak: &PasswordHash,
        password: &str,
    ) -> impl Future<Output = ()> + Send;
}

/// How a caller was authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    None,
    Password,
    /// An `AuthSession` cookie. Browsers send it automatically, so such requests can be forged.
    Cookie,
    Token,
    /// Headers that a proxy adds to whatever a browser sends, so such requests can be forged, too.
    Proxy,
    /// An API token, which is for `/_jobs` only.
    ApiToken,
}

impl Method {
    /// `CouchDB`'s name of the handler, shown by `GET /_session`.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Password => Some("default"),
            Self::Cookie => Some("cookie"),
            Self::Token => Some("jwt"),
            Self::Proxy => Some("proxy"),
            Self::ApiToken => Some("token"),
        }
    }
}

/// A caller, how it was authenticated, and cookies to set.
#[derive(Debug, Clone)]
pub struct Proven {
    pub identity: Identity,
    pub method: Method,
    /// What an API token allows.
    pub scope: Option<Scope>,
    /// A renewed `AuthSession` cookie.
    pub cookie: Option<String>,
    /// Cookies set by the cluster that authenticated the caller.
    pub set_cookies: Vec<HeaderValue>,
}

impl Proven {
    pub fn anonymous() -> Self {
        Self {
            identity: Identity::default(),
            method: Method::None,
            scope: None,
            cookie: None,
            set_cookies: Vec::new(),
        }
    }

    pub(crate) fn by(method: Method, identity: Identity) -> Self {
        Self {
            identity,
            method,
            ..Self::anonymous()
        }
    }
}

/// Administrators by name. They can be replaced at run time.
#[derive(Debug, Default)]
pub struct Admins(RwLock<BTreeMap<String, PasswordHash>>);

impl Admins {
    /// Replaces all administrators.
    pub fn set(&self, admins: BTreeMap<String, PasswordHash>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = admins;
    }

    fn get(&self, name: &str) -> Option<PasswordHash> {
        let admins = self.0.read().unwrap_or_else(PoisonError::into_inner);
        admins.get(name).cloned()
    }
}

impl From<BTreeMap<String, PasswordHash>> for Admins {
    fn from(admins: BTreeMap<String, PasswordHash>) -> Self {
        Self(RwLock::new(admins))
    }
}

#[derive(Debug)]
pub struct Authenticator {
    pub admins: Admins,
    pub sessions: Sessions,
    /// Without keys, tokens are not accepted.
    pub jwt: Jwt,
    /// Secrets of trusted proxies. Without any, proxies are not trusted.
    pub proxy_secrets: Vec<Vec<u8>>,
    pub verifier: Verifier,
    pub throttle: Throttle,
    /// Whether weak hashes are replaced when users log in.
    pub upgrade_hashes: bool,
}

impl Authenticator {
    /// Checks that the signing secrets are long enough.
    pub(crate) fn validate(&self) -> Result<(), InvalidOption> {
        let is_short = |secret: &Vec<u8>| secret.len() < SECRET_BYTES_MIN;
        let problem = "must be secrets of at least 16 bytes";
        if self.proxy_secrets.iter().any(is_short) {
            let name = "proxy_secrets";
            return Err(InvalidOption { name, problem });
        }
        let signing = self.sessions.secrets();
        if signing.is_empty() || signing.iter().any(is_short) {
            let name = "session secrets";
            return Err(InvalidOption { name, problem });
        }
        Ok(())
    }

    /// Authenticates the caller of a request.
    pub async fn authenticate<U: Users>(
        &self,
        headers: &HeaderMap,
        address: IpAddr,
        now_s: u64,
        users: &U,
    ) -> Result<Proven, U::Error> {
        if let Some((name, password)) = basic(headers)? {
            let identity = self.login(&name, &password, address, users).await?;
            return Ok(Proven::by(Method::Password, identity));
        }
        if let Some(token) = bearer(headers).filter(|_| !self.jwt.is_empty()) {
            let identity = self.jwt.identity(token, now_s)?;
            return Ok(Proven::by(Method::Token, identity));
        }
        if let Some(identity) = self.vouched_for(headers) {
            return Ok(Proven::by(Method::Proxy, identity));
        }
        match session_cookie(headers) {
            Some(cookie) => self.resume(cookie, now_s, users).await,
            None => Ok(Proven::anonymous()),
        }
    }

    /// Authenticates a configured administrator by name and password; `None` if the request names none.
    pub async fn authenticate_admin<U: Users>(
        &self,
        headers: &HeaderMap,
        address: IpAddr,
        users: &U,
    ) -> Result<Option<Proven>, U::Error> {
        let given = basic(headers).ok().flatten();
        let Some((name, password)) = given.filter(|(name, _)| self.admins.get(name).is_some())
        else {
            return Ok(None);
        };
        let identity = self.login(&name, &password, address, users).await?;
        Ok(Some(Proven::by(Method::Password, identity)))
    }

    /// Checks name and password. The error does not say which of the two is wrong.
    pub async fn login<U: Users>(
        &self,
        name: &str,
        password: &str,
        address: IpAddr,
        users: &U,
    ) -> Result<Identity, U::Error> {
        let user = self.user(name, users).await?;
        let hash = user.as_ref().and_then(|user| user.password.as_ref());
        let is_admin = self.admins.get(name).is_some();
        // Guesses at a name must not lock out its user, and that user's requests must not reset the
        // count of guesses: a remembered password bypasses the throttle.
        let remembered = hash.is_some_and(|hash| self.verifier.remembers(hash, password));
        let lane = if is_admin { Lane::Admins } else { Lane::Others };
        let question = Question {
            name,
            hash,
            password,
            lane,
        };
        let admit = || self.throttle.attempt(name, address);
        let right = remembered || self.verifier.verify(question, admit).await?;
        if let Some(weak) = hash.filter(|hash| right && !remembered && hash.is_weak())
            && self.upgrade_hashes
            && !is_admin
        {
            users.strengthen(name, weak, password).await;
        }
        match user.filter(|_| right) {
            Some(user) => Ok(Identity {
                name: Some(name.to_owned()),
                roles: user.roles,
            }),
            None => Err(WRONG.into()),
        }
    }

    /// A cookie for a caller who has logged in.
    pub async fn issue_cookie<U: Users>(
        &self,
        name: &str,
        now_s: u64,
        users: &U,
    ) -> Result<Option<String>, U::Error> {
        let user = self.user(name, users).await?;
        Ok(user.map(|user| self.sessions.issue(name, user.salt(), now_s)))
    }

    async fn resume<U: Users>(
        &self,
        cookie: &str,
        now_s: u64,
        users: &U,
    ) -> Result<Proven, U::Error> {
        let claim = self.sessions.parse(cookie)?;
        let Some(user) = self.user(&claim.name, users).await? else {
            return Ok(Proven::anonymous());
        };
        let Some(session) = self.sessions.check(&claim, user.salt(), now_s) else {
            return Ok(Proven::anonymous());
        };
        let renewed = || self.sessions.issue(&claim.name, user.salt(), now_s);
        let cookie = session.renew.then(renewed);
        let identity = Identity {
            name: Some(claim.name),
            roles: user.roles,
        };
        Ok(Proven {
            cookie,
            ..Proven::by(Method::Cookie, identity)
        })
    }

    async fn user<U: Users>(&self, name: &str, users: &U) -> Result<Option<User>, U::Error> {
        match self.admins.get(name) {
            Some(hash) => Ok(Some(User {
                password: Some(hash),
                roles: vec![ADMIN_ROLE.to_owned()],
            })),
            None => users.find(name).await,
        }
    }

    fn vouched_for(&self, headers: &HeaderMap) -> Option<Identity> {
        let text = |name| headers.get(name)?.to_str().ok();
        let name = text(proxy::NAME_HEADER)?;
        let (roles, token) = (text(proxy::ROLES_HEADER), text(proxy::TOKEN_HEADER));
        proxy::identity(&self.proxy_secrets, name, roles, token)
    }
}

/// Name and password of the `Authorization` header. The password is everything after the first colon.
fn basic(headers: &HeaderMap) -> Result<Option<(String, String)>, AuthError> {
    let Some(encoded) = scheme(headers, "basic") else {
        return Ok(None);
    };
    let decoded = STANDARD
        .decode(encoded)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    match decoded.as_deref().and_then(|pair| pair.split_once(':')) {
        // As in CouchDB, an empty pair is anonymous and not a wrong password.
        Some(("", "")) => Ok(None),
        Some((name, password)) => Ok(Some((name.to_owned(), password.to_owned()))),
        None => Err(WRONG),
    }
}

pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    scheme(headers, "bearer")
}

fn scheme<'a>(headers: &'a HeaderMap, wanted: &str) -> Option<&'a str> {
    let (scheme, rest) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case(wanted).then(|| rest.trim())
}

fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok());
    cookies
        .flat_map(|line| line.split(';'))
        .filter_map(|cookie| cookie.trim().strip_prefix("AuthSession="))
        .find(|value| !value.is_empty())
}

#[cfg(test)]
mod tests;
