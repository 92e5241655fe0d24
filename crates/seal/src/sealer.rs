//! Encrypts with a key that is not in the store.
//!
//! A sealed text is `v1.KEY.BYTES`: the name of the key, and nonce, ciphertext and tag of AES-256-GCM-SIV in base64url.
//! `data.rs` has the form of sealed bytes.
//! The nonce is a keyed hash of context and text, so that sealing is deterministic and may happen in a transaction;
//! equal texts in the same context are equal when sealed, and nothing else can be learnt. The context (job or document)
//! is authenticated: a sealed text that is moved elsewhere does not open.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;

const VERSION: &str = "v1";

/// Distinguishes keys of the same name without revealing anything about them.
pub(crate) type Check = [u8; 16];

/// Why a sealed text does not open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Give the service this key too.
    #[error("the key `{0}` is not in the key ring")]
    NoKey(String),
    /// Give the service the key that others know by this name, or rename this one.
    #[error("the key `{0}` differs from the key of that name recorded in this store")]
    OtherKey(String),
    /// Give the service a key file.
    #[error("there is no key to seal with")]
    NoKeys,
    /// It was changed, truncated or moved.
    #[error("a sealed text was changed")]
    Changed,
}

/// An invalid key name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRing {
    /// Use only letters, digits, `-` and `_`.
    #[error("`{0}` is not a valid key name: use only letters, digits, - and _")]
    Name(String),
    /// Give every key its own name.
    #[error("the key `{0}` is defined twice")]
    Twice(String),
}

/// Seals and opens. Cheap to clone.
#[derive(Clone, Default)]
pub struct Sealer(Option<Arc<[RingKey]>>);

pub(crate) struct RingKey {
    pub(crate) name: String,
    cipher: LessSafeKey,
    nonce: hmac::Key,
    check: Check,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().flat_map(|keys| keys.iter());
        out.debug_list()
            .entries(names.map(|key| &key.name))
            .finish()
    }
}

impl Sealer {
    /// Seals nothing, and opens only text that is not sealed.
    pub fn plain() -> Self {
        Self(None)
    }

    /// The first key seals, all of them open. To change keys, put a new one in front, and remove the old one when
    /// nothing is sealed with it any more. Without keys nothing is sealed.
    pub fn new(keys: Vec<(String, [u8; 32])>) -> Result<Self, InvalidRing> {
        let mut ring: Vec<RingKey> = Vec::with_capacity(keys.len());
        for (name, secret) in keys {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            if name.is_empty() || !name.bytes().all(plain) {
                return Err(InvalidRing::Name(name));
            }
            if ring.iter().any(|key| key.name == name) {
                return Err(InvalidRing::Twice(name));
            }
            ring.push(RingKey::new(name, &secret));
        }
        Ok(Self((!ring.is_empty()).then(|| ring.into())))
    }

    /// True if there is a key to seal with.
    pub fn seals(&self) -> bool {
        self.0.is_some()
    }

    /// The name of the key that seals.
    pub fn newest(&self) -> Option<&str> {
        Some(&self.first()?.name)
    }

    /// The names of all keys; the first one seals.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let keys = self.0.iter().flat_map(|keys| keys.iter());
        keys.map(|key| &*key.name)
    }

    /// True if the ring has this key.
    pub fn has(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// The names of all keys with their check values.
    pub(crate) fn checks(&self) -> impl Iterator<Item = (&str, Check)> {
        let keys = self.0.iter().flat_map(|keys| keys.iter());
        keys.map(|key| (&*key.name, key.check))
    }

    /// Seals a text for a context; `None` without a key.
    pub fn seal(&self, context: &str, text: &str) -> Option<String> {
        let key = self.first()?;
        let bytes = key.seal(context.as_bytes(), text.as_bytes());
        Some(format!("{VERSION}.{}.{}", key.name, BASE64.encode(bytes)))
    }

    /// The key that seals.
    pub(crate) fn first(&self) -> Option<&RingKey> {
        self.0.as_ref()?.first()
    }

    /// The key of this name.
    pub(crate) fn key(&self, name: &str) -> Result<&RingKey, Unreadable> {
        let keys = self.0.as_deref().unwrap_or_default();
        (keys.iter().find(|key| key.name == name)).ok_or_else(|| Unreadable::NoKey(name.to_owned()))
    }

    /// Opens a text that was sealed for a context.
    pub fn open(&self, context: &str, sealed: &str) -> Result<String, Unreadable> {
        let (name, bytes) = split(sealed).ok_or(Unreadable::Changed)?;
        let key = self.key(name)?;
        let bytes = BASE64.decode(bytes).map_err(|_| Unreadable::Changed)?;
        let text = key.open(context.as_bytes(), bytes);
        text.and_then(|text| String::from_utf8(text).ok())
            .ok_or(Unreadable::Changed)
    }

    /// Reseals a text; `None` if it would be sealed with the same key again, or not at all.
    pub fn reseal(&self, context: &str, sealed: &str) -> Result<Option<String>, Unreadable> {
        if !self.seals() || !self.is_stale(sealed) {
            return Ok(None);
        }
        let text = self.open(context, sealed)?;
        Ok(self.seal(context, &text))
    }

    /// True if the text would be sealed with another key now.
    pub fn is_stale(&self, sealed: &str) -> bool {
        key_of(sealed) != self.newest()
    }
}

/// The name of the key that sealed a text.
pub fn key_of(sealed: &str) -> Option<&str> {
    split(sealed).map(|(name, _)| name)
}

fn split(sealed: &str) -> Option<(&str, &str)> {
    sealed
        .strip_prefix(VERSION)?
        .strip_prefix('.')?
        .split_once('.')
}

impl RingKey {
    fn new(name: String, secret: &[u8; 32]) -> Self {
        let root = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let cipher = hmac::sign(&root, b"davenport seal cipher");
        let nonce = hmac::sign(&root, b"davenport seal nonce");
        let tag = hmac::sign(&root, b"davenport seal check");
        let mut check = Check::default();
        check.copy_from_slice(&tag.as_ref()[..size_of::<Check>()]);
        let cipher = UnboundKey::new(&AES_256_GCM_SIV, cipher.as_ref());
        Self {
            name,
            cipher: LessSafeKey::new(cipher.expect("a hash of 32 bytes is a key of 256 bits")),
            nonce: hmac::Key::new(hmac::HMAC_SHA256, nonce.as_ref()),
            check,
        }
    }

    /// Nonce, ciphertext and tag.
    pub(crate) fn seal(&self, context: &[u8], plain: &[u8]) -> Vec<u8> {
        let mut hash = hmac::Context::with_key(&self.nonce);
        hash.update(&(context.len() as u64).to_be_bytes());
        hash.update(context);
        hash.update(plain);
        let hash = hash.sign();
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&hash.as_ref()[..NONCE_LEN]);
        let mut all = Vec::with_capacity(NONCE_LEN + plain.len() + AES_256_GCM_SIV.tag_len());
        all.extend_from_slice(&nonce);
        all.extend_from_slice(plain);
        let (head, body) = (Nonce::assume_unique_for_key(nonce), &mut all[NONCE_LEN..]);
        let tag = (self.cipher)
            .seal_in_place_separate_tag(head, Aad::from(context), body)
            .expect("nothing is too long for the cipher");
        all.extend_from_slice(tag.as_ref());
        all
    }

    pub(crate) fn open(&self, context: &[u8], mut sealed: Vec<u8>) -> Option<Vec<u8>> {
        if sealed.len() < NONCE_LEN {
            return None;
        }
        let nonce = Nonce::try_assume_unique_for_key(&sealed[..NONCE_LEN]).ok()?;
        let aad = Aad::from(context);
        let plain = (self.cipher).open_within(nonce, aad, &mut sealed, NONCE_LEN..);
        let length = plain.ok()?.len();
        sealed.truncate(length);
        Some(sealed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(names: &[&str]) -> Sealer {
        let key = |name: &&str| ((*name).to_owned(), [name.as_bytes()[0]; 32]);
        Sealer::new(names.iter().map(key).collect()).unwrap()
    }

    #[test]
    fn sealed_text_opens_only_in_its_context() {
        let sealer = ring(&["a"]);
        let sealed = sealer.seal("job/1", "hunter2").unwrap();
        assert!(sealed.starts_with("v1.a."), "{sealed}");
        assert!(!sealed.contains("hunter2"));
        assert_eq!(sealer.seal("job/1", "hunter2").unwrap(), sealed);
        assert_ne!(sealer.seal("job/2", "hunter2").unwrap(), sealed);
        assert_eq!(sealer.open("job/1", &sealed).unwrap(), "hunter2");
        assert_eq!(sealer.open("job/2", &sealed), Err(Unreadable::Changed));
        for at in 5..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(
                sealer.open("job/1", &changed),
                Err(Unreadable::Changed),
                "{at}"
            );
        }
        for broken in ["", "v1.a", "v1.a.", "v2.a.AAAA", "v1.a.AAAA"] {
            assert_eq!(
                sealer.open("job/1", broken),
                Err(Unreadable::Changed),
                "{broken}"
            );
        }
    }

    #[test]
    fn keys_can_be_changed() {
        let old = ring(&["a"]).seal("x", "text").unwrap();
        let both = ring(&["b", "a"]);
        assert_eq!(both.open("x", &old).unwrap(), "text");
        assert!(both.is_stale(&old));
        let new = both.seal("x", "text").unwrap();
        assert!(!both.is_stale(&new));
        assert_eq!(both.reseal("x", &old).unwrap().as_ref(), Some(&new));
        assert_eq!(both.reseal("x", &new), Ok(None));
        assert_eq!(both.reseal("y", &old), Err(Unreadable::Changed));
        assert_eq!(Sealer::plain().reseal("x", &old), Ok(None));
        assert_eq!(ring(&["b"]).open("x", &new).unwrap(), "text");
        assert_eq!(
            ring(&["b"]).open("x", &old),
            Err(Unreadable::NoKey("a".into()))
        );
        assert_eq!(
            Sealer::plain().open("x", &new),
            Err(Unreadable::NoKey("b".into()))
        );
        assert_eq!(Sealer::plain().seal("x", "text"), None);
        assert_eq!(format!("{both:?}"), r#"["b", "a"]"#);
    }

    #[test]
    fn key_names_are_valid_and_unique() {
        let new =
            |names: &[&str]| Sealer::new(names.iter().map(|n| ((*n).into(), [0; 32])).collect());
        assert!(matches!(new(&["a.b"]), Err(InvalidRing::Name(_))));
        assert!(matches!(new(&[""]), Err(InvalidRing::Name(_))));
        assert!(matches!(new(&["a", "a"]), Err(InvalidRing::Twice(_))));
        assert!(!new(&[]).unwrap().seals());
    }
}
