//! Authenticates requests by a shared secret: they carry it, or a signature of their body, as webhooks do.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit as _, Mac as _};
use http::HeaderMap;
use sha2::Sha256;
use zeroize::Zeroizing;

const BYTES_MIN: usize = 16;

/// A secret that a service shares with those who may send requests.
#[derive(Clone)]
pub struct Secret(Arc<Zeroizing<String>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("shorter than {BYTES_MIN} bytes; make one with `openssl rand -hex 32`")]
pub struct ShortSecret;

/// The headers that can carry a proof, each as its name and the text before the proof. The first that a request has with
/// this text counts.
#[derive(Debug, Clone, Copy)]
pub struct ProofHeaders {
    /// Those for the secret itself.
    pub secret: &'static [(&'static str, &'static str)],
    /// Those for the body's HMAC-SHA256, in hexadecimal digits.
    pub signature: &'static [(&'static str, &'static str)],
}

/// What the head of a request proves.
#[derive(Debug, Clone)]
pub enum Proof {
    /// That the sender knows the secret.
    Given,
    /// The same, if it is the signature of the body.
    Signature(Signature),
}

/// A signature, to be compared with that of a body.
#[derive(Clone)]
pub struct Signature {
    mac: Hmac<Sha256>,
    claimed: [u8; 32],
}

impl Secret {
    /// A secret of at least 16 bytes, trimmed of whitespace such as a file's last newline.
    pub fn new(text: String) -> Result<Self, ShortSecret> {
        let text = Zeroizing::new(text);
        let secret = Zeroizing::new(text.trim().to_owned());
        if secret.len() < BYTES_MIN {
            return Err(ShortSecret);
        }
        Ok(Self(Arc::new(secret)))
    }

    /// `None` if a head has neither the secret nor a signature.
    pub fn proof(&self, headers: &HeaderMap, names: &ProofHeaders) -> Option<Proof> {
        let find = |names: &[(&str, &str)]| {
            let mut names = names.iter();
            names.find_map(|(name, before)| headers.get(*name)?.to_str().ok()?.strip_prefix(before))
        };
        if find(names.secret).is_some_and(|text| self.is(text)) {
            return Some(Proof::Given);
        }
        Some(Proof::Signature(Signature {
            claimed: decode(find(names.signature)?)?,
            mac: self.mac(),
        }))
    }

    /// Both sides are hashed, so that comparing them takes as long whatever they have in common.
    fn is(&self, text: &str) -> bool {
        let [own, other] = [&self.0, text].map(|text| self.mac().chain_update(text).finalize());
        own == other
    }

    fn mac(&self) -> Hmac<Sha256> {
        Hmac::new_from_slice(self.0.as_bytes()).expect("a key may have any length")
    }
}

impl Proof {
    /// Whether the request with this body is authentic.
    pub fn covers(self, body: &[u8]) -> bool {
        match self {
            Self::Given => true,
            // In constant time.
            Self::Signature(Signature { mac, claimed }) => {
                mac.chain_update(body).verify_slice(&claimed).is_ok()
            }
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").finish_non_exhaustive()
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signature").finish_non_exhaustive()
    }
}

/// The bytes of 64 hexadecimal digits.
fn decode(text: &str) -> Option<[u8; 32]> {
    // `from_str_radix` also takes signs.
    if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..][..2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: ProofHeaders = ProofHeaders {
        secret: &[("authorization", "Bearer "), ("x-token", "")],
        signature: &[("x-signature", "sha256="), ("x-plain", "")],
    };
    /// Of `body`, with the secret `0123456789abcdef`.
    const SIGNED: &str = "c34c3195f4d0282ae2dee7ddba19f07877594896ece7578eed7044843650c708";

    fn proof(headers: &[(&'static str, &str)]) -> Option<Proof> {
        let secret = Secret::new(" 0123456789abcdef\n".to_owned()).unwrap();
        let headers = headers
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()));
        secret.proof(&headers.collect(), &NAMES)
    }

    #[test]
    fn the_secret_is_a_proof() {
        for headers in [
            &[("authorization", "Bearer 0123456789abcdef")][..],
            &[("x-token", "0123456789abcdef")],
            &[
                ("authorization", "Basic x"),
                ("x-token", "0123456789abcdef"),
            ],
        ] {
            assert!(matches!(proof(headers), Some(Proof::Given)), "{headers:?}");
        }
        for headers in [
            &[][..],
            &[("authorization", "0123456789abcdef")],
            &[("authorization", "Bearer 0123456789abcde")],
            &[("authorization", "Bearer 0123456789abcdef0")],
            &[
                ("authorization", "Bearer x"),
                ("x-token", "0123456789abcdef"),
            ],
            &[("x-signature", "0123456789abcdef")],
        ] {
            assert!(proof(headers).is_none(), "{headers:?}");
        }
    }

    #[test]
    fn a_signature_is_a_proof_for_its_body() {
        let upper = SIGNED.to_uppercase();
        let named = format!("sha256={SIGNED}");
        for header in [
            ("x-signature", &*named),
            ("x-plain", SIGNED),
            ("x-plain", &upper),
        ] {
            let proof = proof(&[header]).unwrap();
            assert!(matches!(proof, Proof::Signature(_)));
            assert!(proof.clone().covers(b"body") && !proof.covers(b"other"));
        }
        let sign = format!("+{}", &SIGNED[1..]);
        for text in [
            "",
            "0",
            &SIGNED[1..],
            &SIGNED[2..],
            &format!("{SIGNED}0"),
            &sign,
        ] {
            assert!(proof(&[("x-plain", text)]).is_none(), "{text}");
        }
    }

    #[test]
    fn short_secrets_are_refused() {
        assert!(Secret::new(" 0123456789abcde ".to_owned()).is_err());
    }

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::new("0123456789abcdef".to_owned()).unwrap();
        assert_eq!(format!("{secret:?}"), "Secret { .. }");
    }
}
