//! JSON web tokens, as `CouchDB`'s `[jwt_keys]` and `[jwt_auth]` configure them.
//!
//! A key is named `hmac:<kid>`, `rsa:<kid>` or `ec:<kid>`; `<kid>` is `_default` for tokens without one. The kind of
//! the key decides which algorithms are accepted, never the token alone.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::Value;

use super::{AuthError, Identity, SECRET_BYTES_MIN};

const INVALID: AuthError = AuthError::Unauthorized("Invalid or expired token.");
const MALFORMED: AuthError = AuthError::BadRequest("Malformed token");

/// The configured keys, and the claims that tokens need.
pub struct Jwt {
    keys: BTreeMap<(Kind, String), DecodingKey>,
    /// Required claims, and the required values of some.
    required: Vec<(String, Option<String>)>,
    /// Path of the claim that lists the roles.
    roles: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Hmac,
    Rsa,
    Ec,
}

/// An invalid key. Contains its name, never the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("jwt_keys: {name:?} {problem}")]
pub struct KeyError {
    name: String,
    problem: &'static str,
}

impl Jwt {
    /// `roles` is the name or path of a claim, separated by dots (`\.` is a dot in a name).
    pub fn new(
        keys: &BTreeMap<String, String>,
        required: Vec<(String, Option<String>)>,
        roles: &str,
    ) -> Result<Self, KeyError> {
        let mut parsed = BTreeMap::new();
        for (name, key) in keys {
            let (kind, decoding) = parse_key(name, key).map_err(|problem| KeyError {
                name: name.clone(),
                problem,
            })?;
            parsed.insert(kind, decoding);
        }
        Ok(Self {
            keys: parsed,
            required,
            roles: split_path(roles),
        })
    }

    /// True if there are no keys, so that all tokens are rejected.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The identity that a token proves.
    pub fn identity(&self, token: &str, now_s: u64) -> Result<Identity, AuthError> {
        let header = decode_header(token).map_err(|_| MALFORMED)?;
        if header.crit.is_some() {
            // RFC 7515: critical extensions that are not understood must not be ignored.
            return Err(AuthError::Unauthorized(
                "Token has critical extensions, and none is supported.",
            ));
        }
        let kind = match header.alg {
            Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => Kind::Hmac,
            Algorithm::RS256 | Algorithm::RS384 | Algorithm::RS512 => Kind::Rsa,
            Algorithm::ES256 | Algorithm::ES384 => Kind::Ec,
            _ => return Err(AuthError::Unauthorized("Unsupported token algorithm.")),
        };
        let key_id = header.kid.unwrap_or_else(|| "_default".to_owned());
        let key = self
            .keys
            .get(&(kind, key_id))
            .ok_or(AuthError::Unauthorized("Unknown token key."))?;
        let mut validation = Validation::new(header.alg);
        // Expiry is checked below, against the caller's clock.
        validation.validate_exp = false;
        validation.validate_aud = false;
        validation.required_spec_claims.clear();
        let claims = decode::<Value>(token, key, &validation)
            .map_err(|_| INVALID)?
            .claims;
        self.check(&claims, now_s)?;
        let name = claims.get("sub").and_then(Value::as_str);
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Err(AuthError::Unauthorized("Token missing sub claim."));
        };
        Ok(Identity {
            name: Some(name.to_owned()),
            roles: self.roles(&claims)?,
        })
    }

    fn check(&self, claims: &Value, now_s: u64) -> Result<(), AuthError> {
        let seconds = |claim: &str| match claims.get(claim) {
            None => Ok(None),
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "fractions do not matter, and the past is the past"
            )]
            Some(time) => time.as_f64().map(|time| Some(time as u64)).ok_or(MALFORMED),
        };
        if seconds("exp")?.is_some_and(|exp| exp <= now_s)
            || seconds("nbf")?.is_some_and(|nbf| nbf > now_s)
        {
            return Err(INVALID);
        }
        for (claim, wanted) in &self.required {
            let found = claims.get(claim).filter(|found| !found.is_null());
            let right = match (found, wanted) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(found), Some(wanted)) => found.as_str() == Some(wanted),
            };
            if !right {
                return Err(AuthError::Unauthorized("Token lacks a required claim."));
            }
        }
        Ok(())
    }

    fn roles(&self, claims: &Value) -> Result<Vec<String>, AuthError> {
        let found = self
            .roles
            .iter()
            .try_fold(claims, |value, step| value.get(step));
        match found {
            None => Ok(Vec::new()),
            Some(Value::String(list)) => {
                let roles = list
                    .split(',')
                    .map(str::trim)
                    .filter(|role| !role.is_empty());
                Ok(roles.map(str::to_owned).collect())
            }
            Some(Value::Array(list)) => {
                let role = |role: &Value| role.as_str().map(str::to_owned).ok_or(MALFORMED);
                list.iter().map(role).collect()
            }
            Some(_) => Err(MALFORMED),
        }
    }
}

impl std::fmt::Debug for Jwt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwt")
            .field("keys", &self.keys.keys())
            .finish_non_exhaustive()
    }
}

fn parse_key(name: &str, key: &str) -> Result<((Kind, String), DecodingKey), &'static str> {
    let (kind, key_id) = name.split_once(':').ok_or("is not of the form kind:kid")?;
    // Configuration files write line breaks in PEM as \n.
    let pem = key.replace("\\n", "\n");
    let (kind, decoding) = match kind {
        "hmac" => {
            let secret = STANDARD.decode(key).map_err(|_| "is not base64")?;
            if secret.len() < SECRET_BYTES_MIN {
                return Err(
                    "is shorter than 16 bytes and can be guessed: use the output of `openssl rand -base64 32`",
                );
            }
            (Kind::Hmac, DecodingKey::from_secret(&secret))
        }
        "rsa" => (
            Kind::Rsa,
            DecodingKey::from_rsa_pem(pem.as_bytes())
                .map_err(|_| "is not the PEM of an RSA public key")?,
        ),
        "ec" => (
            Kind::Ec,
            DecodingKey::from_ec_pem(pem.as_bytes())
                .map_err(|_| "is not the PEM of an EC public key")?,
        ),
        _ => return Err("is of an unknown kind; use hmac, rsa or ec"),
    };
    Ok(((kind, key_id.to_owned()), decoding))
}

/// Splits at dots that are not escaped by a backslash.
fn split_path(path: &str) -> Vec<String> {
    let mut steps = vec![String::new()];
    let mut chars = path.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('\\', Some('.')) => {
                chars.next();
                push(&mut steps, '.');
            }
            ('.', _) => steps.push(String::new()),
            (c, _) => push(&mut steps, c),
        }
    }
    steps
}

fn push(steps: &mut [String], c: char) {
    if let Some(last) = steps.last_mut() {
        last.push(c);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
    use serde_json::{Value, json};

    use super::{AuthError, Jwt, split_path};

    const NOW: u64 = 1_700_000_000;
    const SECRET: &str = "a secret of the tests";
    const OTHER_SECRET: &str = "another secret of the tests";

    fn jwt(required: &[(&str, Option<&str>)]) -> Jwt {
        let keys = BTreeMap::from([
            ("hmac:_default".to_owned(), STANDARD.encode(SECRET)),
            ("hmac:other".to_owned(), STANDARD.encode(OTHER_SECRET)),
        ]);
        let required = required
            .iter()
            .map(|(claim, value)| ((*claim).to_owned(), value.map(str::to_owned)));
        Jwt::new(&keys, required.collect(), "_couchdb\\.roles").unwrap()
    }

    fn token(kid: Option<&str>, secret: &str, claims: &Value) -> String {
        let mut header = Header::new(Algorithm::HS256);
        header.kid = kid.map(str::to_owned);
        encode(
            &header,
            claims,
            &EncodingKey::from_secret(secret.as_bytes()),
        )
        .unwrap()
    }

    #[test]
    fn a_signed_token_proves_name_and_roles() {
        let claims = json!({"sub": "anna", "exp": NOW + 60, "_couchdb.roles": ["a", "_admin"]});
        let jwt = jwt(&[("exp", None)]);
        let anna = jwt.identity(&token(None, SECRET, &claims), NOW).unwrap();
        assert_eq!(anna.name.as_deref(), Some("anna"));
        assert!(anna.is_admin());
        let listed = json!({"sub": "anna", "exp": NOW + 60, "_couchdb.roles": "a, b,"});
        let anna = jwt
            .identity(&token(Some("other"), OTHER_SECRET, &listed), NOW)
            .unwrap();
        assert_eq!(anna.roles, ["a", "b"]);
    }

    #[test]
    fn whatever_is_not_right_is_refused() {
        let good = json!({"sub": "anna", "exp": NOW + 60, "iss": "us"});
        let jwt = jwt(&[("exp", None), ("iss", Some("us"))]);
        jwt.identity(&token(None, SECRET, &good), NOW).unwrap();
        let refused = |token: &str| {
            let refused = matches!(jwt.identity(token, NOW), Err(AuthError::Unauthorized(_)));
            assert!(refused, "{token}");
        };
        for (kid, secret) in [
            (None, "wrong"),
            (Some("nobody"), SECRET),
            (Some("other"), SECRET),
        ] {
            refused(&token(kid, secret, &good));
        }
        for claims in [
            json!({"sub": "anna", "exp": NOW, "iss": "us"}),
            json!({"sub": "anna", "exp": NOW + 60, "nbf": NOW + 1, "iss": "us"}),
            json!({"sub": "anna", "iss": "us"}),
            json!({"sub": "anna", "exp": NOW + 60, "iss": "them"}),
            json!({"exp": NOW + 60, "iss": "us"}),
        ] {
            refused(&token(None, SECRET, &claims));
        }
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let unsigned = format!("{}.{}.", part(&json!({"alg": "none"})), part(&good));
        for junk in ["", "a.b.c", "x", &unsigned] {
            assert!(jwt.identity(junk, NOW).is_err(), "{junk}");
        }
    }

    #[test]
    fn critical_extensions_and_empty_names_are_refused() {
        let jwt = jwt(&[]);
        let mut header = Header::new(Algorithm::HS256);
        header.crit = Some(vec!["exp".to_owned()]);
        let key = EncodingKey::from_secret(SECRET.as_bytes());
        let critical = encode(&header, &json!({"sub": "anna"}), &key).unwrap();
        assert!(jwt.identity(&critical, NOW).is_err());
        let unnamed = token(None, SECRET, &json!({"sub": ""}));
        assert!(jwt.identity(&unnamed, NOW).is_err());
    }

    #[test]
    fn short_secrets_are_refused() {
        let key = |secret: &str| {
            let keys = [("hmac:_default".to_owned(), STANDARD.encode(secret))];
            Jwt::new(&keys.into(), Vec::new(), "roles")
        };
        for short in ["", "fifteen bytes.."] {
            let error = key(short).unwrap_err().to_string();
            assert!(
                error.contains("hmac:_default") && error.contains("16 bytes"),
                "{error}"
            );
        }
        key("sixteen bytes...").unwrap();
    }

    /// A public key must not verify as an HMAC secret, whatever algorithm the token names.
    #[test]
    fn kinds_of_keys_are_not_mixed_up() {
        let pem = "-----BEGIN PUBLIC KEY-----\\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEVucjUueT+KluciXVoa+AtUJ4tu2W\\nB5UpqN6XFjoOajuqoVTFd9CpuIrQadvcXnWsul9PgHDorRu11frVqYo+Tw==\\n-----END PUBLIC KEY-----";
        let keys = BTreeMap::from([("ec:_default".to_owned(), pem.to_owned())]);
        let Ok(jwt) = Jwt::new(&keys, Vec::new(), "roles") else {
            panic!("the key is not read");
        };
        let forged = token(None, &pem.replace("\\n", "\n"), &json!({"sub": "root"}));
        assert_eq!(
            jwt.identity(&forged, NOW),
            Err(AuthError::Unauthorized("Unknown token key."))
        );
    }

    #[test]
    fn bad_keys_are_named_and_not_shown() {
        for (name, key) in [
            ("hmac", "c2VjcmV0"),
            ("hmac:a", "!secret!"),
            ("rsa:a", "secret"),
            ("ec:a", "secret"),
            ("dsa:a", "secret"),
        ] {
            let error = Jwt::new(
                &BTreeMap::from([(name.to_owned(), key.to_owned())]),
                Vec::new(),
                "roles",
            )
            .unwrap_err();
            assert!(error.to_string().contains(name));
            assert!(!error.to_string().contains(key));
        }
    }

    #[test]
    fn paths_have_dots() {
        assert_eq!(split_path("a.b\\.c.d"), ["a", "b.c", "d"]);
        assert_eq!(split_path("_couchdb\\.roles"), ["_couchdb.roles"]);
    }

    /// No change to a token makes it prove another name.
    #[test]
    fn any_token() {
        let jwt = jwt(&[("exp", None)]);
        let claims = json!({"sub": "anna", "exp": NOW + 60});
        let good = token(None, SECRET, &claims);
        assert!(jwt.identity(&good, NOW).is_ok());
        let stolen = token(None, "wrong", &json!({"sub": "root", "exp": NOW + 60}));
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        let words = [".", "=", "e30", &none, "eyJhbGciOiJSUzI1NiJ9", "\u{0}"];
        testkit::fuzz(
            "jwt",
            &[good.as_bytes(), stolen.as_bytes()],
            &words,
            |token| {
                let Ok(token) = std::str::from_utf8(token) else {
                    return false;
                };
                match jwt.identity(token, NOW) {
                    Ok(identity) => {
                        assert_eq!(identity.name.as_deref(), Some("anna"));
                        true
                    }
                    Err(error) => error != super::MALFORMED,
                }
            },
        );
    }
}
