//! Signatures of Standard Webhooks 1.0.0, version `v1`: HMAC-SHA256 of id, time and body.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use couch::NamedSecret;
use serde_json::Value;
use url::Url;

/// Keys that sign, during a rotation the old and the new one.
pub(super) struct Keys(Vec<hmac::Key>);

/// A secret is not `whsec_` and base64.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidSecret;

/// Why a secret of the configuration signs no calls of an endpoint.
pub(crate) fn unsigned(name: &str) -> String {
    format!(
        "the configuration has no valid `signing` in `[secrets.{name}]` for this endpoint: it must be one or more texts of \
         `whsec_` and base64, and `origins` must list the endpoint"
    )
}

/// Whether a secret of the configuration signs calls of a URL.
pub fn signs(secret: &NamedSecret, url: &Url) -> bool {
    Keys::named(Some(secret), url).is_ok()
}

/// Whether this can be the `signing` of a secret of the configuration.
pub fn is_signing(value: &Value) -> bool {
    Keys::of(value).is_ok()
}

impl Keys {
    /// Those of a secret of the configuration, for calls of a URL.
    pub(super) fn named(secret: Option<&NamedSecret>, url: &Url) -> Result<Self, InvalidSecret> {
        let members = secret.and_then(|secret| secret.members_for(url));
        Self::of(
            members
                .and_then(|members| members.get("signing"))
                .ok_or(InvalidSecret)?,
        )
    }

    /// Reads `signing`: a text or several.
    fn of(value: &Value) -> Result<Self, InvalidSecret> {
        match value {
            Value::String(text) => Self::new([text.as_str()]),
            Value::Array(texts) => {
                let texts: Option<Vec<_>> = texts.iter().map(Value::as_str).collect();
                Self::new(texts.ok_or(InvalidSecret)?)
            }
            _ => Err(InvalidSecret),
        }
    }

    pub(super) fn new<'a>(
        secrets: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, InvalidSecret> {
        let key = |text: &str| {
            let bytes = BASE64.decode(text.strip_prefix("whsec_")?).ok()?;
            (!bytes.is_empty()).then(|| hmac::Key::new(hmac::HMAC_SHA256, &bytes))
        };
        let keys: Option<Vec<_>> = secrets.into_iter().map(key).collect();
        keys.filter(|keys| !keys.is_empty())
            .map(Self)
            .ok_or(InvalidSecret)
    }

    /// The value of `webhook-signature`.
    pub(super) fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let signatures = self.0.iter().map(|key| {
            let mut context = hmac::Context::with_key(key);
            context.update(format!("{id}.{timestamp}.").as_bytes());
            context.update(body);
            format!("v1,{}", BASE64.encode(context.sign()))
        });
        signatures.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_vector_is_signed() {
        let keys = Keys::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).unwrap();
        let signature = keys.sign(
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn every_key_signs() {
        let secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAAA"];
        let both = Keys::new(secrets).unwrap().sign("a", 1, b"");
        let each = secrets.map(|secret| Keys::new([secret]).unwrap().sign("a", 1, b""));
        assert_eq!(both, each.join(" "));
        for wrong in ["", "whsec_", "whsec_%", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] {
            assert_eq!(Keys::new([wrong]).err(), Some(InvalidSecret), "{wrong}");
        }
        assert!(Keys::new([]).is_err());
    }
}
