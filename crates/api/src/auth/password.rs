//! Password hashes in `CouchDB`'s forms.
//!
//! | form | made by |
//! |---|---|
//! | `-pbkdf2:sha256-<key>,<salt>,<iterations>` | `CouchDB` 3.4, and this service |
//! | `-pbkdf2-<key>,<salt>,<iterations>` | `CouchDB` 1.3 to 3.3, SHA-1 |
//! | `-hashed-<sha1>,<salt>` | `CouchDB` 1.2, plain SHA-1; accepted, and replaced at the next login |
//!
//! Documents of `_users` have the same values in separate fields.

use std::num::NonZeroU32;

use aws_lc_rs::{digest, pbkdf2};
use serde_json::Value;
use wire::{hex, unhex};

use super::equal;

/// Iterations of new hashes: OWASP's recommendation for SHA-256.
pub const ITERATIONS: u32 = 600_000;
/// Limits the cost of a login that a user document can cause.
pub const ITERATIONS_MAX: u32 = 1_000_000;

#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PasswordHash {
    scheme: Scheme,
    key: Vec<u8>,
    salt: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Scheme {
    Pbkdf2Sha256(u32),
    Pbkdf2Sha1(u32),
    Simple,
}

impl std::fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PasswordHash({:?})", self.scheme)
    }
}

impl PasswordHash {
    /// `salt` must be random.
    pub fn make(password: &str, salt: [u8; 16], iterations: u32) -> Self {
        let (salt, scheme) = (hex(&salt), Scheme::Pbkdf2Sha256(iterations));
        let key = scheme.derive(password, &salt);
        Self { scheme, key, salt }
    }

    /// Parses the form used in `[admins]`; `None` for a plain text password.
    pub fn from_config(text: &str) -> Option<Self> {
        let (scheme, rest) = if let Some(rest) = text.strip_prefix("-pbkdf2:sha256-") {
            ("sha256", rest)
        } else if let Some(rest) = text.strip_prefix("-pbkdf2-") {
            ("sha", rest)
        } else if let Some(rest) = text.strip_prefix("-pbkdf2:sha-") {
            ("sha", rest)
        } else {
            ("simple", text.strip_prefix("-hashed-")?)
        };
        let mut parts = rest.split(',');
        let (key, salt) = (parts.next()?, parts.next()?);
        let scheme = Scheme::named(scheme, || parts.next()?.parse().ok())?;
        Self::checked(scheme, key, salt)
    }

    /// Parses the fields of a `_users` document.
    pub fn from_user(document: &Value) -> Option<Self> {
        let text = |field: &str| document.get(field)?.as_str();
        let salt = text("salt")?;
        if text("password_scheme") != Some("pbkdf2") {
            return Self::checked(Scheme::Simple, text("password_sha")?, salt);
        }
        let prf = text("pbkdf2_prf").unwrap_or("sha");
        let iterations = || u32::try_from(document.get("iterations")?.as_u64()?).ok();
        Self::checked(Scheme::named(prf, iterations)?, text("derived_key")?, salt)
    }

    /// Matches no password, and takes as long to check as a real hash.
    pub(crate) fn unmatched(salt: String) -> Self {
        Self {
            scheme: Scheme::Pbkdf2Sha256(ITERATIONS),
            key: Vec::new(),
            salt,
        }
    }

    /// Whether a text looks like a hash but is malformed. Treated as a plain password, it would let in anyone who reads
    /// the configuration.
    pub fn is_unusable(text: &str) -> bool {
        ["-pbkdf2", "-hashed-"]
            .iter()
            .any(|form| text.starts_with(form))
            && Self::from_config(text).is_none()
    }

    /// The form used in `[admins]`.
    pub fn to_config(&self) -> String {
        let (key, salt) = (hex(&self.key), &self.salt);
        match self.scheme {
            Scheme::Pbkdf2Sha256(n) => format!("-pbkdf2:sha256-{key},{salt},{n}"),
            Scheme::Pbkdf2Sha1(n) => format!("-pbkdf2-{key},{salt},{n}"),
            Scheme::Simple => format!("-hashed-{key},{salt}"),
        }
    }

    /// The salt, which is also part of the key that signs the user's cookies.
    pub fn salt(&self) -> &str {
        &self.salt
    }

    /// Whether a login should store a stronger hash.
    pub fn is_weak(&self) -> bool {
        !matches!(self.scheme, Scheme::Pbkdf2Sha256(n) if n >= ITERATIONS)
    }

    /// Slow on purpose: run it where blocking is allowed. A weak hash takes as long as others if the password is wrong:
    /// otherwise the time would tell which names are users.
    pub(crate) fn verify_evenly(&self, password: &str) -> bool {
        if self.verify(password) {
            return true;
        }
        let rest = self.scheme.rest();
        if rest > 0 {
            Scheme::Pbkdf2Sha256(rest).derive(password, &self.salt);
        }
        false
    }

    /// Slow on purpose: run it where blocking is allowed.
    pub fn verify(&self, password: &str) -> bool {
        equal(&self.scheme.derive(password, &self.salt), &self.key)
    }

    fn checked(scheme: Scheme, key: &str, salt: &str) -> Option<Self> {
        let (key, salt) = (unhex(key)?, salt.to_owned());
        let whole = match scheme {
            Scheme::Pbkdf2Sha256(n) => key.len() == 32 && (1..=ITERATIONS_MAX).contains(&n),
            Scheme::Pbkdf2Sha1(n) => key.len() == 20 && (1..=ITERATIONS_MAX).contains(&n),
            Scheme::Simple => key.len() == 20,
        };
        whole.then_some(Self { scheme, key, salt })
    }
}

impl Scheme {
    /// The iterations that a new hash has more.
    fn rest(self) -> u32 {
        match self {
            Self::Pbkdf2Sha256(n) | Self::Pbkdf2Sha1(n) => ITERATIONS.saturating_sub(n),
            Self::Simple => ITERATIONS,
        }
    }

    fn named(prf: &str, iterations: impl FnOnce() -> Option<u32>) -> Option<Self> {
        match prf {
            "sha256" => Some(Self::Pbkdf2Sha256(iterations()?)),
            "sha" => Some(Self::Pbkdf2Sha1(iterations()?)),
            "simple" => Some(Self::Simple),
            _ => None,
        }
    }

    fn derive(self, password: &str, salt: &str) -> Vec<u8> {
        let (algorithm, iterations, length) = match self {
            Self::Pbkdf2Sha256(n) => (pbkdf2::PBKDF2_HMAC_SHA256, n, 32),
            Self::Pbkdf2Sha1(n) => (pbkdf2::PBKDF2_HMAC_SHA1, n, 20),
            Self::Simple => {
                let input = [password, salt].concat();
                let sha1 = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, input.as_bytes());
                return sha1.as_ref().to_vec();
            }
        };
        let iterations = NonZeroU32::new(iterations).unwrap_or(NonZeroU32::MIN);
        let mut key = vec![0; length];
        pbkdf2::derive(
            algorithm,
            iterations,
            salt.as_bytes(),
            password.as_bytes(),
            &mut key,
        );
        key
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ITERATIONS, ITERATIONS_MAX, PasswordHash, Scheme};

    /// RFC 6070, the second vector, in the form of `CouchDB` 1.3.
    const RFC_6070: &str = "-pbkdf2-ea6c014dc72d6f8ffcd56d1b41a3e8b1d6a2c0f5,salt,2";

    #[test]
    fn couchdbs_forms_are_read_and_written() {
        for text in [
            "-pbkdf2:sha256-ae4d0c95af6b46d32d0adff928f06dd02a303f8ef3c251dfd6e2d85a95474c43,salt,2",
            "-pbkdf2-ea6c014dc72d6f8ccd1ed92ace1d41f0d8de8957,salt,2",
            "-hashed-c88e9c67041a74e0357befdff93f87dde0904214,salt",
        ] {
            let hash = PasswordHash::from_config(text).unwrap();
            assert_eq!(hash.to_config(), text);
            assert!(hash.verify("password"), "{text}");
            assert!(!hash.verify("Password"));
            assert!(hash.is_weak());
            assert!(!format!("{hash:?}").contains("salt"));
        }
        let wrong_key = PasswordHash::from_config(RFC_6070).unwrap();
        assert!(!wrong_key.verify("password"));
    }

    #[test]
    fn what_is_no_hash_is_a_password() {
        for text in [
            "secret",
            "-pbkdf2-short,salt,10",
            "-pbkdf2:sha256-,salt,10",
            "-pbkdf2:sha512-00,salt,10",
            "-pbkdf2-ea6c014dc72d6f8ccd1ed92ace1d41f0d8de8957,salt,0",
            "-pbkdf2-ea6c014dc72d6f8ccd1ed92ace1d41f0d8de8957,salt,99999999",
        ] {
            assert_eq!(PasswordHash::from_config(text), None, "{text}");
        }
    }

    #[test]
    fn a_hash_that_cannot_be_used_is_no_password() {
        for (text, unusable) in [
            ("secret", false),
            ("-pbkdf2:sha256-00,salt,1000001", true),
            ("-hashed-00,salt", true),
            (RFC_6070, false),
        ] {
            assert_eq!(PasswordHash::is_unusable(text), unusable, "{text}");
        }
    }

    #[test]
    fn user_documents_are_read() {
        let modern = json!({
            "password_scheme": "pbkdf2", "pbkdf2_prf": "sha256", "iterations": 2, "salt": "salt",
            "derived_key": "ae4d0c95af6b46d32d0adff928f06dd02a303f8ef3c251dfd6e2d85a95474c43",
        });
        let old = json!({
            "password_scheme": "pbkdf2", "iterations": 2, "salt": "salt",
            "derived_key": "ea6c014dc72d6f8ccd1ed92ace1d41f0d8de8957",
        });
        let oldest = json!({
            "password_sha": "c88e9c67041a74e0357befdff93f87dde0904214", "salt": "salt",
        });
        for document in [modern, old, oldest] {
            assert!(
                PasswordHash::from_user(&document)
                    .unwrap()
                    .verify("password")
            );
        }
        assert_eq!(
            PasswordHash::from_user(&json!({"password_scheme": "pbkdf2"})),
            None
        );
    }

    #[test]
    fn wrong_passwords_cost_the_same_for_all_hashes() {
        for scheme in [
            Scheme::Pbkdf2Sha256(10),
            Scheme::Pbkdf2Sha256(ITERATIONS),
            Scheme::Pbkdf2Sha1(100_000),
        ] {
            let (Scheme::Pbkdf2Sha256(n) | Scheme::Pbkdf2Sha1(n)) = scheme else {
                panic!("no iterations");
            };
            assert_eq!(n + scheme.rest(), ITERATIONS);
        }
        assert_eq!(Scheme::Simple.rest(), ITERATIONS);
        assert_eq!(Scheme::Pbkdf2Sha256(ITERATIONS_MAX).rest(), 0);
        let weak = PasswordHash::make("correct", [1; 16], 10);
        assert!(weak.verify_evenly("correct") && !weak.verify_evenly("wrong"));
    }
}
