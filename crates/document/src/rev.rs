//! Revisions: `generation-id`.
//!
//! CouchDB stores an id of 32 hexadecimal digits as its 16 bytes, and any other id as text. Which of two conflicting
//! revisions wins depends on the order of those bytes, so they are stored the same way here: `1-ff…` (raw bytes) sorts
//! after `1-zebra` (text).

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::Error;

/// The part of a revision after the dash. Ordered by bytes, as CouchDB orders them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum RevId {
    /// 32 hexadecimal digits, or any text of 16 bytes, which CouchDB cannot tell apart: shown as hexadecimal.
    Md5([u8; 16]),
    /// Any other id chosen by a client.
    Text(Box<str>),
}

impl RevId {
    /// Parses an id; `generation` 0 is that of `_local` documents, whose ids are always text. Fails on 32 characters
    /// that are not hexadecimal digits.
    pub fn parse(generation: u64, id: &str) -> Result<Self, Error> {
        if generation == 0 {
            return Ok(Self::Text(id.into()));
        }
        if id.len() == 32 {
            return decode_hex(id.as_bytes())
                .map(Self::Md5)
                .ok_or(Error::InvalidRev);
        }
        Ok(match <[u8; 16]>::try_from(id.as_bytes()) {
            Ok(bytes) => Self::Md5(bytes),
            Err(_) => Self::Text(id.into()),
        })
    }

    /// The bytes that order and hash the id.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Md5(bytes) => bytes,
            Self::Text(text) => text.as_bytes(),
        }
    }
}

fn decode_hex(digits: &[u8]) -> Option<[u8; 16]> {
    let nibble = |byte: u8| {
        (byte as char)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (nibble(pair[0])? << 4) | nibble(pair[1])?;
    }
    Some(bytes)
}

impl Ord for RevId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl PartialOrd for RevId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for RevId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Md5(bytes) => {
                let mut hex = [0; 32];
                for (pair, byte) in hex.chunks_exact_mut(2).zip(bytes) {
                    pair[0] = DIGITS[usize::from(byte >> 4)];
                    pair[1] = DIGITS[usize::from(byte & 15)];
                }
                f.write_str(std::str::from_utf8(&hex).expect("hexadecimal digits are ASCII"))
            }
        }
    }
}

impl fmt::Debug for RevId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for RevId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A revision. Ordered by generation, then id: among the live (or else the deleted) leaves of a document the greatest wins.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rev {
    /// Length of the history that led to it; 0 only for `_local` documents.
    pub generation: u64,
    pub id: RevId,
}

impl FromStr for Rev {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (generation, id) = text.split_once('-').ok_or(Error::InvalidRev)?;
        let generation = generation.parse().map_err(|_| Error::InvalidRev)?;
        Ok(Self {
            generation,
            id: RevId::parse(generation, id)?,
        })
    }
}

impl fmt::Display for Rev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.generation, self.id)
    }
}

impl fmt::Debug for Rev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Rev {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rev {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FromText;
        impl Visitor<'_> for FromText {
            type Value = Rev;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a revision")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Rev, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(FromText)
    }
}

/// A revision with its known ancestors: the `_revisions` of a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revisions {
    /// Generation of the first id.
    pub start: u64,
    /// Ids, newest first, each the parent of the one before it.
    pub ids: Vec<RevId>,
}

impl Revisions {
    /// The revision itself; none if there are no ids.
    pub fn rev(&self) -> Option<Rev> {
        self.ids.first().map(|id| Rev {
            generation: self.start,
            id: id.clone(),
        })
    }
}

impl From<Rev> for Revisions {
    fn from(rev: Rev) -> Self {
        Self {
            start: rev.generation,
            ids: vec![rev.id],
        }
    }
}

impl Serialize for Revisions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("start", &self.start)?;
        map.serialize_entry("ids", &self.ids)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rev(text: &str) -> Rev {
        text.parse().unwrap()
    }

    #[test]
    fn hexadecimal_ids_are_bytes_and_print_in_lower_case() {
        let upper = rev("3-967A00DFF5E02ADD41819138ABB3284D");
        assert_eq!(upper.to_string(), "3-967a00dff5e02add41819138abb3284d");
        assert_eq!(upper, rev("3-967a00dff5e02add41819138abb3284d"));
        assert_eq!(upper.id.as_bytes()[0], 0x96);
    }

    #[test]
    fn other_ids_stay_text_but_sixteen_bytes_print_as_couchdb_prints_them() {
        assert_eq!(rev("1-abc").to_string(), "1-abc");
        assert_eq!(rev("1-").to_string(), "1-");
        assert_eq!(rev("1-a-b").to_string(), "1-a-b");
        assert_eq!(
            rev("1-abcdefghijklmnop").to_string(),
            "1-6162636465666768696a6b6c6d6e6f70"
        );
        assert_eq!(
            rev("0-967a00dff5e02add41819138abb3284d").id,
            RevId::Text("967a00dff5e02add41819138abb3284d".into())
        );
    }

    #[test]
    fn what_is_no_revision_is_refused() {
        for text in [
            "",
            "1",
            "-a",
            "x-a",
            "1.0-a",
            "-1-a",
            "1-967a00dff5e02add41819138abb3284g",
            "99999999999999999999-a",
        ] {
            assert_eq!(text.parse::<Rev>(), Err(Error::InvalidRev), "{text:?}");
        }
        assert!(
            "1-967a00dff5e02add41819138abb328\u{e9}"
                .parse::<Rev>()
                .is_err(),
            "32 bytes, not all of them digits"
        );
    }

    #[test]
    fn order_is_by_generation_then_bytes() {
        assert!(rev("10-a") > rev("9-z"));
        assert!(rev("1-ff000000000000000000000000000000") > rev("1-zebra"));
        assert!(rev("1-00000000000000000000000000000000") < rev("1-A"));
    }

    #[test]
    fn json_forms() {
        let revisions = Revisions {
            start: 2,
            ids: vec![rev("2-b").id, rev("1-967a00dff5e02add41819138abb3284d").id],
        };
        assert_eq!(
            serde_json::to_string(&revisions).unwrap(),
            r#"{"start":2,"ids":["b","967a00dff5e02add41819138abb3284d"]}"#
        );
        assert_eq!(serde_json::from_str::<Rev>(r#""2-b""#).unwrap(), rev("2-b"));
        assert!(serde_json::from_str::<Rev>("2").is_err());
    }
}
