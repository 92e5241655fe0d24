//! `CouchDB`'s `AuthSession` cookie: `base64url(name ":" hex(seconds) ":" HMAC)`, signed with the
//! secret of the service and the user's salt, so that a changed password ends all sessions.

use std::time::Duration;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::AuthError;

const MALFORMED: AuthError =
    AuthError::BadRequest("Malformed AuthSession cookie. Please clear your cookies.");

pub struct Sessions {
    /// The first signs; all are accepted, so that secrets can be rotated.
    secrets: Vec<Vec<u8>>,
    timeout: Duration,
}

/// A parsed cookie. It is not verified yet, since that needs the user's salt.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The claimed user name.
    pub name: String,
    signed: Vec<u8>,
    made_s: u64,
    signature: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// Whether to renew the cookie with this response.
    pub renew: bool,
}

impl Sessions {
    /// The first secret signs.
    pub fn new(secrets: Vec<Vec<u8>>, timeout: Duration) -> Self {
        Self { secrets, timeout }
    }

    pub(crate) fn secrets(&self) -> &[Vec<u8>] {
        &self.secrets
    }

    /// How long a session lasts without a request.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    pub fn issue(&self, name: &str, salt: &str, now_s: u64) -> String {
        let mut value = signed(name, now_s);
        let secret = self.secrets.first().map(Vec::as_slice).unwrap_or_default();
        let signature = hmac::sign(&key(secret, salt), &value);
        value.push(b':');
        value.extend(signature.as_ref());
        URL_SAFE_NO_PAD.encode(value)
    }

    /// Parses a cookie without verifying it.
    pub fn parse(&self, cookie: &str) -> Result<Claim, AuthError> {
        let value =
            (URL_SAFE_NO_PAD.decode(cookie.trim_end_matches('='))).map_err(|_| MALFORMED)?;
        let mut parts = value.splitn(3, |byte| *byte == b':');
        let (Some(name), Some(time), Some(signature)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(MALFORMED);
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| MALFORMED);
        let made_s = u64::from_str_radix(&text(time)?, 16).map_err(|_| MALFORMED)?;
        Ok(Claim {
            name: text(name)?,
            signed: value[..name.len() + 1 + time.len()].to_vec(),
            made_s,
            signature: signature.to_vec(),
        })
    }

    /// Verifies a claim. Fails if the cookie has expired, is from the future, or has a wrong signature.
    pub fn check(&self, claim: &Claim, salt: &str, now_s: u64) -> Option<Session> {
        let timeout_s = self.timeout.as_secs();
        let left_s = (claim.made_s.saturating_add(timeout_s)).checked_sub(now_s)?;
        // Another node's clock may be slightly ahead, but not by the length of a session.
        if left_s == 0 || left_s > 2 * timeout_s {
            return None;
        }
        let signer = (self.secrets.iter()).position(|secret| {
            hmac::verify(&key(secret, salt), &claim.signed, &claim.signature).is_ok()
        })?;
        let renew = signer > 0 || left_s * 10 < timeout_s * 9;
        Some(Session { renew })
    }
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

fn signed(name: &str, made_s: u64) -> Vec<u8> {
    format!("{name}:{made_s:X}").into_bytes()
}

fn key(secret: &[u8], salt: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, &[secret, salt.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Session, Sessions};

    const NOW: u64 = 1_700_000_000;

    fn sessions(secrets: &[&str]) -> Sessions {
        let secrets = secrets.iter().map(|secret| secret.as_bytes().to_vec());
        Sessions::new(secrets.collect(), Duration::from_mins(10))
    }

    #[test]
    fn a_session_holds_and_is_renewed() {
        let sessions = sessions(&["secret"]);
        let cookie = sessions.issue("anna", "salt", NOW);
        let claim = sessions.parse(&cookie).unwrap();
        assert_eq!(claim.name, "anna");
        assert_eq!(
            sessions.check(&claim, "salt", NOW + 10),
            Some(Session { renew: false })
        );
        assert_eq!(
            sessions.check(&claim, "salt", NOW + 61),
            Some(Session { renew: true })
        );
        assert_eq!(sessions.check(&claim, "salt", NOW + 600), None);
        assert_eq!(sessions.check(&claim, "salt", NOW - 601), None);
    }

    #[test]
    fn another_salt_or_secret_ends_it() {
        let cookie = sessions(&["old"]).issue("anna", "salt", NOW);
        let rotated = sessions(&["new", "old"]);
        let claim = rotated.parse(&cookie).unwrap();
        assert_eq!(
            rotated.check(&claim, "salt", NOW),
            Some(Session { renew: true })
        );
        assert_eq!(rotated.check(&claim, "other salt", NOW), None);
        assert_eq!(sessions(&["new"]).check(&claim, "salt", NOW), None);
    }

    #[test]
    fn a_changed_cookie_is_not_believed() {
        let sessions = sessions(&["secret"]);
        let cookie = sessions.issue("anna", "salt", NOW);
        for at in 0..cookie.len() {
            let mut bytes = cookie.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            if let Ok(claim) = sessions.parse(&changed) {
                let held = sessions.check(&claim, "salt", NOW).is_some();
                // The last character has unused bits.
                assert!(!held || at == cookie.len() - 1, "changed at {at}");
            }
        }
        for junk in ["", "!", "YW5uYQ", "YW5uYTp6eg"] {
            assert!(sessions.parse(junk).is_err());
        }
    }
}
