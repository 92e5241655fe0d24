//! Passwords for the user names in URLs, from a file in Spiegel's format: `{"HOST": {"USER": "PASSWORD"}}`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use couch::{Basic, Endpoint, Secret};
use serde::Deserialize;
use url::Url;

/// Passwords by host, with or without a port, and user.
#[derive(Clone, Debug, Default)]
pub struct Passwords(HashMap<String, HashMap<String, Secret>>);

/// The current passwords, shared by clones.
#[derive(Clone, Debug, Default)]
pub struct PasswordCell(Arc<RwLock<Arc<Passwords>>>);

/// A file of passwords that cannot be used. Messages contain nothing from the file.
#[derive(Debug, thiserror::Error)]
pub enum InvalidPasswords {
    #[error(
        "cannot read the passwords in {0}; check that the file exists and that the node may read it"
    )]
    Unreadable(String, #[source] std::io::Error),
    #[error(
        "the passwords in {file} are not of the form {{\"HOST\": {{\"USER\": \"PASSWORD\"}}}}: line {line}, column {column}"
    )]
    Malformed {
        file: String,
        line: usize,
        column: usize,
    },
}

impl Passwords {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, InvalidPasswords> {
        let file = || path.display().to_string();
        let text =
            std::fs::read(path).map_err(|error| InvalidPasswords::Unreadable(file(), error))?;
        // The error of serde_json may quote a value.
        Self::parse(&text).map_err(|error| InvalidPasswords::Malformed {
            file: file(),
            line: error.line(),
            column: error.column(),
        })
    }

    fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct File(HashMap<String, HashMap<String, String>>);
        let hosts = serde_json::from_slice::<File>(text)?.0.into_iter();
        let users = |users: HashMap<String, String>| {
            let users = users.into_iter();
            users
                .map(|(user, password)| (user, Secret::from(password)))
                .collect()
        };
        let lower = |(host, of_host): (String, _)| (host.to_ascii_lowercase(), users(of_host));
        Ok(Self(hosts.map(lower).collect()))
    }

    /// The password of a user at the server of a URL. An entry with a port takes precedence.
    pub fn find(&self, url: &Url, user: &str) -> Option<&Secret> {
        let host = url.host_str()?;
        let with_port = url
            .port_or_known_default()
            .map(|port| format!("{host}:{port}"));
        let hosts = [with_port.as_deref(), Some(host)].into_iter().flatten();
        let mut users = hosts.filter_map(|host| self.0.get(host));
        users.find_map(|users| users.get(user))
    }

    /// Gives the user of an endpoint a password, unless it has one.
    pub(crate) fn complete(&self, endpoint: &mut Endpoint) {
        let user = endpoint
            .basic()
            .filter(|basic| basic.password.expose().is_empty());
        let found = user.and_then(|user| {
            let url = Url::parse(endpoint.url_text()).ok()?;
            let password = self.find(&url, &user.username)?.clone();
            let username = user.username.clone();
            Some(Basic { username, password })
        });
        if let Some(basic) = found {
            *endpoint = endpoint.clone().with_basic(basic);
        }
    }
}

impl PasswordCell {
    pub fn new(passwords: Passwords) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(passwords))))
    }

    /// Replaces the passwords for calls and runs that start later.
    pub fn set(&self, passwords: Passwords) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(passwords);
    }

    pub fn get(&self) -> Arc<Passwords> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_file_is_not_quoted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), r#"{"a": {"b": 12345}}"#).unwrap();
        let error = Passwords::load(file.path()).unwrap_err().to_string();
        assert!(
            error.ends_with("line 1, column 17") && !error.contains("12345"),
            "{error}"
        );
        let missing = Passwords::load(Path::new("/nonexistent")).unwrap_err();
        assert!(missing.to_string().contains("/nonexistent"));
        let cell = PasswordCell::new(Passwords::parse(br#"{"a": {"b": "old"}}"#).unwrap());
        assert!(!format!("{cell:?}").contains("old"));
        cell.set(Passwords::default());
        assert!(cell.get().0.is_empty());
    }
}
