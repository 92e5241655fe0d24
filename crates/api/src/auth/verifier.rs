//! Checks passwords without a slow hash for every request. Recently verified passwords are cached, concurrent checks of
//! the same password share one hash, and unknown users and weak hashes take as long as others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::hmac;
use futures::FutureExt as _;
use tokio::time::Instant;

use super::hashing::{Hashing, Lane};
use super::password::PasswordHash;
use super::throttle::Attempt;
use super::{AuthError, equal};
use crate::once::Once;

/// How long a verified password is cached after its last use.
const REMEMBERED: Duration = Duration::from_mins(10);
const REMEMBERED_MAX: usize = 10_000;

type Digest = [u8; 32];

#[derive(Clone)]
pub struct Verifier(Arc<Inner>);

struct Inner {
    /// Keys the digests of passwords; never leaves the process.
    key: hmac::Key,
    /// Checked in place of an unknown user's hash.
    unknown_user: PasswordHash,
    hashing: Hashing,
    remembered: Mutex<HashMap<PasswordHash, (Digest, Instant)>>,
    /// Checks by the digest of hash and password.
    checks: Once<bool>,
}

#[derive(Clone, Copy)]
pub struct Question<'a> {
    pub name: &'a str,
    /// `None` for an unknown user.
    pub hash: Option<&'a PasswordHash>,
    pub password: &'a str,
    pub lane: Lane,
}

impl Verifier {
    /// `random` is the secret of this process.
    pub fn new(random: [u8; 32]) -> Self {
        Self(Arc::new(Inner {
            key: hmac::Key::new(hmac::HMAC_SHA256, &random),
            unknown_user: PasswordHash::unmatched(wire::hex(&random[..16])),
            hashing: Hashing::default(),
            remembered: Mutex::default(),
            checks: Once::default(),
        }))
    }

    pub fn hashing(&self) -> &Hashing {
        &self.0.hashing
    }

    /// True if the password matches the hash. `admit` is called before hashing, unless another request is already
    /// waiting for the same check.
    pub async fn verify(
        &self,
        question: Question<'_>,
        admit: impl FnOnce() -> Result<Attempt, AuthError>,
    ) -> Result<bool, AuthError> {
        let Question {
            name,
            hash,
            password,
            lane,
        } = question;
        let candidate = hash.unwrap_or(&self.0.unknown_user).clone();
        let key = self.digest(&[name, &candidate.to_config(), password]);
        let begin = || {
            let ticket = self.0.hashing.enter(lane)?;
            let attempt = admit()?;
            let (verifier, is_known) = (self.clone(), hash.is_some());
            let (digest, password) = (self.digest(&[password]), password.to_owned());
            let check = async move {
                let hashed = candidate.clone();
                let judge = move || hashed.verify_evenly(&password);
                let right = verifier.0.hashing.run(ticket, judge).await;
                let right = right.unwrap_or(false) && is_known;
                if right {
                    verifier.remember(candidate, digest);
                    attempt.succeed();
                }
                right
            };
            Ok(check.boxed())
        };
        Ok(self.0.checks.join(key, begin)?.await)
    }

    /// True if the password was verified recently.
    pub fn remembers(&self, hash: &PasswordHash, password: &str) -> bool {
        let digest = self.digest(&[password]);
        let (mut remembered, now) = (lock(&self.0.remembered), Instant::now());
        let known = remembered.get_mut(hash);
        let Some((known, until)) = known.filter(|(_, until)| *until > now) else {
            return false;
        };
        let same = equal(known, &digest);
        if same {
            *until = now + REMEMBERED;
        }
        same
    }

    fn remember(&self, hash: PasswordHash, digest: Digest) {
        let mut remembered = lock(&self.0.remembered);
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(hash, (digest, Instant::now() + REMEMBERED));
    }

    fn digest(&self, texts: &[&str]) -> Digest {
        let mut hash = hmac::Context::with_key(&self.0.key);
        for text in texts {
            hash.update(&(text.len() as u64).to_be_bytes());
            hash.update(text.as_bytes());
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(hash.sign().as_ref());
        digest
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifier").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::{Lane, PasswordHash, Question, Verifier, lock};
    use crate::auth::throttle::Throttle;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    async fn verify(verifier: &Verifier, hash: Option<&PasswordHash>, password: &str) -> bool {
        let throttle = Throttle::new([1; 32]);
        let question = Question {
            name: "anna",
            hash,
            password,
            lane: Lane::Others,
        };
        let admit = || throttle.attempt("anna", HERE);
        verifier.verify(question, admit).await.unwrap()
    }

    #[tokio::test]
    async fn a_right_password_is_remembered_and_a_wrong_one_is_not() {
        let verifier = Verifier::new([7; 32]);
        let hash = PasswordHash::make("correct horse", [1; 16], 1000);
        assert!(!verify(&verifier, Some(&hash), "battery").await);
        assert!(!verifier.remembers(&hash, "correct horse"));
        assert!(verify(&verifier, Some(&hash), "correct horse").await);
        assert_eq!(lock(&verifier.0.remembered).len(), 1);
        assert!(verifier.remembers(&hash, "correct horse"));
        assert!(!verifier.remembers(&hash, "battery"));
        assert!(!verify(&verifier, Some(&hash), "battery").await);
        let changed = PasswordHash::make("new", [2; 16], 1000);
        assert!(!verify(&verifier, Some(&changed), "correct horse").await);
        assert!(!verify(&verifier, None, "").await);
        assert!(verifier.0.checks.is_idle());
    }
}
