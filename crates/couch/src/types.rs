//! Ids, revisions and sequences.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
        #[serde(transparent)]
        pub struct $name(Box<str>);

        impl $name {
            pub fn new(text: impl Into<Box<str>>) -> Self {
                Self(text.into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Box::<str>::deserialize(deserializer).map(Self)
            }
        }
    };
}

text_id! {
    DocId
}

text_id! {
    /// A revision, as `3-917fa2381192822767f010b95b45325b`.
    Rev
}

impl DocId {
    /// Whether it names a design document.
    pub fn is_design(&self) -> bool {
        self.0.starts_with("_design/")
    }
}

impl Rev {
    /// The number before the dash; 0 when there is none.
    pub fn generation(&self) -> u64 {
        self.0
            .split_once('-')
            .and_then(|(generation, _)| generation.parse().ok())
            .unwrap_or(0)
    }
}

/// An update sequence: any JSON value, opaque, kept as the server wrote it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Seq(Box<str>);

impl Seq {
    /// Before all changes.
    pub fn zero() -> Self {
        Self("0".into())
    }

    /// No sequence.
    pub(crate) fn null() -> Self {
        Self("null".into())
    }

    pub(crate) fn from_raw(raw: &RawValue) -> Self {
        Self(raw.get().into())
    }

    /// From JSON text; `None` if it is not JSON.
    pub fn from_json(text: &str) -> Option<Self> {
        serde_json::from_str::<&RawValue>(text)
            .ok()
            .map(|raw| Self(raw.get().into()))
    }

    pub fn from_value(value: &Value) -> Self {
        Self(value.to_string().into())
    }

    pub fn as_json(&self) -> &str {
        &self.0
    }

    /// Whether the server left it out, as it does between the rows of a `seq_interval`. Such a row
    /// is not a position to continue from.
    pub fn is_null(&self) -> bool {
        &*self.0 == "null"
    }

    /// The number of a server with numeric sequences (CouchDB 1, PouchDB).
    pub fn as_number(&self) -> Option<u64> {
        self.0.parse().ok()
    }

    /// Whether both are the same position. A cluster encodes one sequence in many ways, always with the same number in front.
    pub fn is_same(&self, other: &Self) -> bool {
        fn number(seq: &Seq) -> Option<String> {
            let text = seq.to_query();
            let (number, _) = text.split_once('-')?;
            number
                .bytes()
                .all(|byte| byte.is_ascii_digit())
                .then(|| number.to_owned())
        }
        self == other || number(self).is_some_and(|one| number(other) == Some(one))
    }

    /// The text for a `since` parameter: strings bare, everything else as JSON.
    pub fn to_query(&self) -> String {
        serde_json::from_str::<String>(&self.0).unwrap_or_else(|_| self.0.to_string())
    }
}

impl Serialize for Seq {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serde_json::from_str::<&RawValue>(&self.0) {
            Ok(raw) => raw.serialize(serializer),
            Err(error) => Err(serde::ser::Error::custom(error)),
        }
    }
}

impl<'de> Deserialize<'de> for Seq {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self(Box::<str>::from(raw)))
    }
}

/// A string without quotes, or any other value as JSON.
pub(crate) fn text_of(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

pub(crate) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_keep_their_text() {
        for (json, query) in [
            (r#""12-g1AAA\u002b""#, "12-g1AAA+"),
            ("17", "17"),
            (r#"[5,"opaque"]"#, r#"[5,"opaque"]"#),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890",
            ),
            ("null", "null"),
        ] {
            let seq: Seq = serde_json::from_str(json).unwrap();
            assert_eq!(seq.as_json(), json);
            assert_eq!(seq.to_query(), query);
            assert_eq!(serde_json::to_string(&seq).unwrap(), json);
            assert_eq!(Seq::from_json(json), Some(seq));
        }
        assert_eq!(Seq::from_json("12-abc"), None);
        assert_eq!(Seq::zero().as_number(), Some(0));
    }

    #[test]
    fn generations() {
        assert_eq!(Rev::from("12-abc").generation(), 12);
        assert_eq!(Rev::from("abc").generation(), 0);
    }
}
