//! The members of an endpoint's `auth` object.
//!
//! | member | form |
//! |---|---|
//! | `basic` | `{"username", "password"}` |
//! | `bearer` | `{"token"}` or the token itself |
//! | `jwt` | `{"file"}`: a name in the node's `jwt_directory`, read again when it changes |
//! | `oauth2_client_credentials` | `{"token_url", "client_id", "client_secret", "scope"?, "audience"?}` |
//! | `iam` | `{"api_key", "token_url"?}` |
//! | `secret_ref` | name of a secret of the configuration that holds the above |

use serde_json::{Map, Value};
use url::Url;

use super::invalid::InvalidEndpoint;
use crate::secret::{Basic, Secret};

/// Where `iam` asks for tokens unless told otherwise.
const IAM_TOKEN_URL: &str = "https://iam.cloud.ibm.com/identity/token";

/// How requests are authenticated when not by Basic credentials or a session.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum AuthMethod {
    /// A token that does not change.
    Bearer(Secret),
    /// A token in a file of the node's token directory, by file name.
    JwtFile(String),
    ClientCredentials(ClientCredentials),
    /// An API key that is exchanged for tokens.
    Iam(IamKey),
}

/// Where and how OAuth2 tokens are asked for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ClientCredentials {
    pub token_url: Url,
    pub client_id: String,
    pub client_secret: Secret,
    /// Separated by spaces.
    pub scope: Option<String>,
    /// For servers that require one.
    pub audience: Option<String>,
}

/// An API key and where it is exchanged.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IamKey {
    pub token_url: Url,
    pub api_key: Secret,
}

impl AuthMethod {
    /// `None` without a known member. Two are an error, because it would be unclear which counts.
    pub(super) fn parse(auth: &Map<String, Value>) -> Result<Option<Self>, InvalidEndpoint> {
        let mut found = None;
        for (name, value) in auth {
            let (name, method) = match name.as_str() {
                "bearer" => ("bearer", bearer(value)),
                "jwt" => ("jwt", jwt_file(value)),
                "oauth2_client_credentials" => {
                    ("oauth2_client_credentials", client_credentials(value))
                }
                "iam" => ("iam", iam(value)),
                "secret_ref" if !value.is_string() => ("secret_ref", None),
                _ => continue,
            };
            let method = method.ok_or(InvalidEndpoint::AuthMember(name))?;
            if found.replace(method).is_some() {
                return Err(InvalidEndpoint::AuthMember(name));
            }
        }
        Ok(found)
    }

    /// Where tokens are fetched.
    pub(crate) fn token_url(&self) -> Option<&Url> {
        match self {
            Self::Bearer(_) | Self::JwtFile(_) => None,
            Self::ClientCredentials(client) => Some(&client.token_url),
            Self::Iam(key) => Some(&key.token_url),
        }
    }
}

/// `basic`, if both members are strings.
pub(super) fn basic(value: &Value) -> Option<Basic> {
    let username = value.get("username")?.as_str()?.to_owned();
    Some(Basic {
        username,
        password: text(value, "password")?.into(),
    })
}

fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name)?.as_str()
}

/// A token becomes a header, so its characters must be valid there.
fn bearer(value: &Value) -> Option<AuthMethod> {
    let token = value.as_str().or_else(|| text(value, "token"))?;
    let sendable = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    sendable.then(|| AuthMethod::Bearer(token.into()))
}

/// A plain file name: a path would let a document read any file of the node.
fn jwt_file(value: &Value) -> Option<AuthMethod> {
    let name = text(value, "file")?;
    let plain = !name.is_empty()
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    plain.then(|| AuthMethod::JwtFile(name.to_owned()))
}

fn client_credentials(value: &Value) -> Option<AuthMethod> {
    Some(AuthMethod::ClientCredentials(ClientCredentials {
        token_url: token_url(text(value, "token_url")?)?,
        client_id: text(value, "client_id")?.to_owned(),
        client_secret: text(value, "client_secret")?.into(),
        scope: optional_text(value, "scope").ok()?,
        audience: optional_text(value, "audience").ok()?,
    }))
}

fn iam(value: &Value) -> Option<AuthMethod> {
    let url = optional_text(value, "token_url").ok()?;
    Some(AuthMethod::Iam(IamKey {
        token_url: token_url(url.as_deref().unwrap_or(IAM_TOKEN_URL))?,
        api_key: text(value, "api_key")?.into(),
    }))
}

/// An optional member, which must be a string.
fn optional_text(value: &Value, name: &str) -> Result<Option<String>, ()> {
    match value.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(()),
    }
}

fn token_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let usable = matches!(url.scheme(), "http" | "https") && url.has_host();
    (usable && url.username().is_empty() && url.password().is_none()).then_some(url)
}
