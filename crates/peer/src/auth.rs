//! Authentication: passwords, sessions, users.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use http::header::{AUTHORIZATION, COOKIE};
use serde_json::Value;
use sha2::Sha256;

use crate::functions::UserContext;
use crate::refusal::Refusal;
use crate::request::Request;
use crate::server::Server;

/// Few, because this server protects nothing and has to be fast.
const ITERATIONS: u32 = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Password {
    salt: String,
    iterations: u32,
    key: String,
}

impl Password {
    pub(crate) fn new(password: &str, salt: String) -> Self {
        let key = derive(password, &salt, ITERATIONS);
        Self {
            salt,
            iterations: ITERATIONS,
            key,
        }
    }

    fn matches(&self, password: &str) -> bool {
        derive(password, &self.salt, self.iterations) == self.key
    }

    fn of_user(user: &Value) -> Option<Self> {
        let text = |name: &str| user[name].as_str().map(str::to_owned);
        let iterations = user["iterations"]
            .as_u64()
            .and_then(|count| u32::try_from(count).ok())?;
        Some(Self {
            salt: text("salt")?,
            iterations,
            key: text("derived_key")?,
        })
    }
}

/// PBKDF2 with HMAC-SHA256, one block, in hexadecimal.
fn derive(password: &str, salt: &str, iterations: u32) -> String {
    let mut block = hmac(password.as_bytes(), &[salt.as_bytes(), &[0, 0, 0, 1]]);
    let mut key = block;
    for _ in 1..iterations {
        block = hmac(password.as_bytes(), &[&block]);
        key.iter_mut()
            .zip(block)
            .for_each(|(key, byte)| *key ^= byte);
    }
    wire::hex(&key)
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any key will do");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// The administrators, and the key of sessions.
#[derive(Debug)]
pub(crate) struct Auth {
    admins: RwLock<BTreeMap<String, Password>>,
    /// Signs cookies; replacing it ends all sessions.
    secret: RwLock<[u8; 32]>,
}

/// The user who sent a request, and a new cookie if the session is to be extended.
#[derive(Debug, Default)]
pub(crate) struct Authenticated {
    pub(crate) user: UserContext,
    pub(crate) handler: Option<&'static str>,
    pub(crate) cookie: Option<String>,
}

impl Auth {
    pub(crate) fn new(secret: [u8; 32]) -> Self {
        Self {
            admins: RwLock::default(),
            secret: RwLock::new(secret),
        }
    }

    pub(crate) fn set_admin(&self, name: &str, password: Option<Password>) -> Option<Password> {
        let mut admins = self.admins.write().unwrap_or_else(PoisonError::into_inner);
        match password {
            Some(password) => admins.insert(name.to_owned(), password),
            None => admins.remove(name),
        }
    }

    pub(crate) fn admins(&self) -> Vec<String> {
        self.admins
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .keys()
            .cloned()
            .collect()
    }

    pub(crate) fn end_sessions(&self, secret: [u8; 32]) {
        *self.secret.write().unwrap_or_else(PoisonError::into_inner) = secret;
    }

    /// CouchDB's admin party: without administrators, every request has their rights.
    pub(crate) fn is_party(&self) -> bool {
        self.admins
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }

    fn sign(&self, salt: &str, session: &str) -> [u8; 32] {
        let secret = self.secret.read().unwrap_or_else(PoisonError::into_inner);
        hmac(
            &[&secret[..], salt.as_bytes()].concat(),
            &[session.as_bytes()],
        )
    }
}

impl Server {
    pub(crate) fn authenticate(&self, request: &Request) -> Result<Authenticated, Refusal> {
        if let Some(authenticated) = self.authenticate_cookie(request)? {
            return Ok(authenticated);
        }
        let header = request
            .header(&AUTHORIZATION)
            .and_then(|header| header.strip_prefix("Basic "));
        if let Some((name, password)) = header.map(parse_basic).transpose()?.flatten() {
            let user = self.check_password(&name, &password);
            let user =
                user.ok_or_else(|| Refusal::unauthorized("Name or password is incorrect."))?;
            return Ok(Authenticated {
                user,
                handler: Some("default"),
                cookie: None,
            });
        }
        let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
        let login = path == ["_session"] && request.method == http::Method::POST;
        if self.options.require_valid_user && !login {
            return Err(Refusal::unauthorized("Authentication required."));
        }
        let user = if self.auth.is_party() {
            UserContext::admin()
        } else {
            UserContext::default()
        };
        Ok(Authenticated {
            user,
            ..Authenticated::default()
        })
    }

    fn authenticate_cookie(&self, request: &Request) -> Result<Option<Authenticated>, Refusal> {
        let headers = request
            .headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|value| value.to_str().ok());
        let mut cookies = headers.flat_map(|header| header.split(';')).map(str::trim);
        let session = cookies.find_map(|cookie| cookie.strip_prefix("AuthSession="));
        let Some(session) = session
            .map(|session| session.trim_matches('"'))
            .filter(|text| !text.is_empty())
        else {
            return Ok(None);
        };
        let malformed =
            || Refusal::bad_request("Malformed AuthSession cookie. Please clear your cookies.");
        let bytes = URL_SAFE_NO_PAD
            .decode(session.trim_end_matches('='))
            .map_err(|_| malformed())?;
        let mut parts = bytes.splitn(3, |byte| *byte == b':');
        let mut text = || parts.next().and_then(|part| std::str::from_utf8(part).ok());
        let (name, time) = (text().ok_or_else(malformed)?, text().ok_or_else(malformed)?);
        let signature = parts.next().ok_or_else(malformed)?;
        let Ok(began) = i64::from_str_radix(time, 16) else {
            return Ok(None);
        };
        let timeout = i64::try_from(self.options.session.as_secs()).unwrap_or(i64::MAX);
        let left = began
            .saturating_add(timeout)
            .saturating_sub(self.clock.seconds());
        let Some((user, password)) = self.find_user(name) else {
            return Ok(None);
        };
        if left <= 0 || signature != self.auth.sign(&password.salt, &format!("{name}:{time}")) {
            return Ok(None);
        }
        // A session in use is extended once a tenth of its time has passed.
        let renewed = (left.saturating_mul(10) < timeout.saturating_mul(9))
            .then(|| self.cookie(name, &password));
        Ok(Some(Authenticated {
            user,
            handler: Some("cookie"),
            cookie: renewed,
        }))
    }

    /// The user with this name and password.
    pub(crate) fn check_password(&self, name: &str, password: &str) -> Option<UserContext> {
        let (user, known) = self.find_user(name)?;
        known.matches(password).then_some(user)
    }

    /// The value of `Set-Cookie` that starts a session.
    pub(crate) fn begin_session(&self, name: &str) -> Option<String> {
        let (_, password) = self.find_user(name)?;
        Some(self.cookie(name, &password))
    }

    fn cookie(&self, name: &str, password: &Password) -> String {
        let session = format!("{name}:{:X}", self.clock.seconds());
        let signature = self.auth.sign(&password.salt, &session);
        let value = URL_SAFE_NO_PAD.encode([session.as_bytes(), b":", &signature].concat());
        self.cookie_header(&value)
    }

    pub(crate) fn cookie_header(&self, value: &str) -> String {
        let seconds = self.options.session.as_secs();
        let expires = self
            .clock
            .http_date(i64::try_from(seconds).unwrap_or(i64::MAX));
        format!(
            "AuthSession={value}; Version=1; Expires={expires}; Max-Age={seconds}; Path=/; HttpOnly"
        )
    }

    fn find_user(&self, name: &str) -> Option<(UserContext, Password)> {
        let admins = self
            .auth
            .admins
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(password) = admins.get(name) {
            let user = UserContext {
                name: Some(name.to_owned()),
                roles: vec!["_admin".to_owned()],
            };
            return Some((user, password.clone()));
        }
        drop(admins);
        let users = self.database("_users").ok()?;
        let state = users.read();
        let winner = state
            .document(&format!("org.couchdb.user:{name}"))?
            .winner();
        let version = winner.value.filter(|_| !winner.deleted)?;
        let user: Value = serde_json::from_str(&version.body).ok()?;
        let roles = user["roles"].as_array().into_iter().flatten();
        let roles = roles
            .filter_map(|role| role.as_str().map(str::to_owned))
            .collect();
        Some((
            UserContext {
                name: Some(name.to_owned()),
                roles,
            },
            Password::of_user(&user)?,
        ))
    }
}

/// Replaces the password in a document of `_users` by the derived key.
pub(crate) fn hide_password(body: &str, salt: String) -> Option<String> {
    let mut user: serde_json::Map<String, Value> = serde_json::from_str(body).ok()?;
    let password = Password::new(user.get("password")?.as_str()?, salt);
    user.shift_remove("password");
    user.insert("password_scheme".to_owned(), "pbkdf2".into());
    user.insert("pbkdf2_prf".to_owned(), "sha256".into());
    user.insert("salt".to_owned(), password.salt.into());
    user.insert("iterations".to_owned(), password.iterations.into());
    user.insert("derived_key".to_owned(), password.key.into());
    serde_json::to_string(&user).ok()
}

/// Name and password; `None` for the empty pair, which logs out.
fn parse_basic(encoded: &str) -> Result<Option<(String, String)>, Refusal> {
    let invalid = || Refusal::bad_request("Authorization header has invalid base64 value");
    let decoded = STANDARD.decode(encoded.trim()).map_err(|_| invalid())?;
    let decoded = String::from_utf8_lossy(&decoded);
    Ok(match decoded.split_once(':') {
        None | Some(("_", "_")) => None,
        Some((name, password)) => Some((name.to_owned(), password.to_owned())),
    })
}
