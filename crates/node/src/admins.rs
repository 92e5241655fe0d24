//! The configured administrators, as password hashes.

use std::collections::BTreeMap;

use anyhow::Context;
use api::auth::password::{ITERATIONS, PasswordHash};
use aws_lc_rs::hmac;

use crate::config::Admins;
use crate::keys::KeyRing;

/// The hashes, and the names that had a plain text password.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hashed {
    pub admins: BTreeMap<String, PasswordHash>,
    /// Names that had a plain text password.
    pub plain: Vec<String>,
}

/// The names that have a plain text password.
pub fn plain(admins: &Admins) -> Vec<&str> {
    let plain = (admins.0.iter()).filter(|(_, given)| PasswordHash::from_config(given).is_none());
    plain.map(|(name, _)| name.as_str()).collect()
}

/// The key of all salts, derived from the key file: the same on all nodes, and not in the store.
pub(crate) fn secret(keys: &KeyRing) -> anyhow::Result<[u8; 32]> {
    let secrets = keys.derive("davenport administrators' salts");
    secrets
        .into_iter()
        .next()
        .context("the key file has no key")
}

/// Hashes plain text passwords on a blocking thread, and logs a warning for each.
pub(crate) async fn hash_all(
    admins: &Admins,
    secret: [u8; 32],
) -> anyhow::Result<BTreeMap<String, PasswordHash>> {
    let given = admins.clone();
    let hashing = tokio::task::spawn_blocking(move || hash(&given, &secret));
    let hashed = hashing.await.context("cannot hash passwords")?;
    for name in &hashed.plain {
        tracing::warn!(
            admin = name,
            "the password is given in plain text; replace it with the output of `davenport hash-password`"
        );
    }
    Ok(hashed.admins)
}

/// Hashes plain text passwords. Takes a fraction of a second each, so run it on a blocking thread. The salt is derived
/// from `secret`, name and password, because it is part of the key that signs cookies: all frontends must accept each
/// other's cookies.
pub fn hash(admins: &Admins, secret: &[u8; 32]) -> Hashed {
    let mut hashed = Hashed::default();
    for (name, password) in &admins.0 {
        let hash = PasswordHash::from_config(password).unwrap_or_else(|| {
            hashed.plain.push(name.clone());
            PasswordHash::make(password, salt(secret, name, password), ITERATIONS)
        });
        hashed.admins.insert(name.clone(), hash);
    }
    hashed
}

fn salt(secret: &[u8; 32], name: &str, password: &str) -> [u8; 16] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let mut context = hmac::Context::with_key(&key);
    context.update(&(name.len() as u64).to_be_bytes());
    context.update(name.as_bytes());
    context.update(password.as_bytes());
    let mut salt = [0; 16];
    salt.copy_from_slice(&context.sign().as_ref()[..16]);
    salt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_plain_is_hashed_alike_everywhere() {
        let ready = PasswordHash::make("horse", [1; 16], 10).to_config();
        let admins = Admins(
            [("anna", "s3cr3t"), ("berta", &ready)]
                .map(|(name, password)| (name.to_owned(), password.to_owned()))
                .into(),
        );
        let hashed = hash(&admins, &[7; 32]);
        assert_eq!(hashed.plain, ["anna"]);
        assert!(hashed.admins["anna"].verify("s3cr3t"));
        assert!(!hashed.admins["anna"].is_weak());
        assert_eq!(hashed.admins["berta"].to_config(), ready);
        assert_eq!(hash(&admins, &[7; 32]), hashed);
        assert_ne!(
            hash(&admins, &[8; 32]).admins["anna"],
            hashed.admins["anna"]
        );
        assert!(!format!("{hashed:?}").contains("s3cr3t"));
    }
}
