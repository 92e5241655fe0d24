//! Passwords by host and user: Spiegel's file.

use std::collections::BTreeMap;

use url::Url;

use super::call::Hidden;

/// `{"host": {"user": "password"}}`. A host may have a port, which Spiegel never looks up.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(transparent)]
pub struct Passwords(BTreeMap<String, BTreeMap<String, Hidden>>);

impl Passwords {
    /// The password of the user who stands in a URL without a password.
    pub fn of(&self, url: &Url) -> Option<&Hidden> {
        if url.password().is_some() {
            return None;
        }
        let host = url.host_str()?;
        let with_port = format!("{host}:{}", url.port_or_known_default()?);
        let users = [&*with_port, host]
            .into_iter()
            .find_map(|host| self.0.get(host))?;
        let user = percent_encoding::percent_decode_str(url.username());
        users.get(&*user.decode_utf8_lossy())
    }

    /// The URL with the password of its user, if there is one; otherwise as it is.
    pub fn add_to(&self, text: &str) -> String {
        let Ok(mut url) = Url::parse(text) else {
            return text.to_owned();
        };
        let Some(Hidden(password)) = self.of(&url) else {
            return text.to_owned();
        };
        // A URL with a user can have a password.
        let _ = url.set_password(Some(password));
        url.into()
    }
}
