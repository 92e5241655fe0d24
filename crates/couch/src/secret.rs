//! Text that must never be shown.

use std::fmt;
use std::sync::Arc;

use http::HeaderValue;

use crate::error::Error;

/// A password, token, key or header value. `Debug` prints `***`, there is no `Display` and no
/// serialisation: the only way to the text is [`Secret::expose`], which is easy to search for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(Arc<str>);

impl Secret {
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the request it is meant for.
    pub fn expose(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

/// A user name with its password.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Basic {
    /// The user name; part of replication ids, so not a secret.
    pub username: String,
    pub password: Secret,
}

impl Basic {
    /// The value of an `Authorization` (or `Proxy-Authorization`) header.
    pub(crate) fn header(&self) -> Secret {
        use base64::Engine as _;
        let pair = format!("{}:{}", self.username, self.password.expose());
        let encoded = base64::engine::general_purpose::STANDARD.encode(pair);
        Secret::from(format!("Basic {encoded}"))
    }

    /// All texts in requests that reveal the password.
    pub(crate) fn spellings(&self) -> Vec<Secret> {
        let header = self.header();
        let encoded = header.expose().trim_start_matches("Basic ");
        let mut all = vec![Secret::from(encoded)];
        all.extend(spellings(&self.password));
        all
    }

    /// Splits `user:password` at the first colon; `None` without a colon.
    pub(crate) fn split(pair: &str) -> Option<Self> {
        let (username, password) = pair.split_once(':')?;
        Some(Self {
            username: username.to_owned(),
            password: Secret::from(password),
        })
    }
}

/// A secret as a server may repeat it: form-encoded, JSON-escaped, and verbatim. The longer ones come first, because
/// redacting a shorter one first would leave pieces of them.
pub(crate) fn spellings(secret: &Secret) -> [Secret; 3] {
    let form: String = url::form_urlencoded::byte_serialize(secret.expose().as_bytes()).collect();
    let json = serde_json::Value::from(secret.expose()).to_string();
    let json = &json[1..json.len() - 1];
    [Secret::from(form), Secret::from(json), secret.clone()]
}

/// Shorter secrets are not redacted: they would be found everywhere.
const BLOTTED_BYTES_MIN: usize = 3;

/// Redacts secrets in a server's text: a server may repeat what it was sent.
pub(crate) fn redact<'a>(mut text: String, secrets: impl IntoIterator<Item = &'a str>) -> String {
    for secret in secrets {
        if secret.len() >= BLOTTED_BYTES_MIN && text.contains(secret) {
            text = text.replace(secret, "***");
        }
    }
    text
}

/// A header value that debug output hides and HTTP/2 does not index.
pub(crate) fn sensitive(value: &Secret) -> Result<HeaderValue, Error> {
    let mut value = HeaderValue::from_str(value.expose()).map_err(|_| {
        Error::Config("credentials contain characters that are not allowed in a header".to_owned())
    })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_prints_no_text() {
        let basic = Basic::split("adm:pa:ss").unwrap();
        assert_eq!(basic.password.expose(), "pa:ss");
        assert_eq!(
            format!("{basic:?}"),
            r#"Basic { username: "adm", password: *** }"#
        );
        assert_eq!(basic.header().expose(), "Basic YWRtOnBhOnNz");
        assert!(Basic::split("junk").is_none());
    }

    #[test]
    fn reflected_secrets_are_redacted() {
        let text = || "you sent hunter2 and a".to_owned();
        assert_eq!(redact(text(), ["hunter2", "a", ""]), "you sent *** and a");
        assert_eq!(redact(text(), []), text());
    }
}
