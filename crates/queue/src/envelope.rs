//! What a job's data in the queue is: data, progress, result and error, each as the JSON that a client sent, byte for byte.
//!
//! A format byte, then for each that is there its tag, its length in 4 bytes, and its bytes. The format byte 2 is for sealed
//! data, which `sealed.rs` opens.

use bytes::{BufMut as _, Bytes, BytesMut};
use jobs::REASON_BYTES_MAX;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::value::RawValue;

use crate::reason::is_returned;
use crate::{Error, Result};

const FORMAT: u8 = 1;
const DATA: u8 = 1;
const PROGRESS: u8 = 2;
const RESULT: u8 = 3;
const ERROR: u8 = 4;

/// JSON that is passed on unread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raw(Bytes);

/// The parts of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Envelope {
    pub data: Raw,
    pub progress: Option<Raw>,
    pub result: Option<Raw>,
    pub error: Option<Raw>,
}

impl Default for Raw {
    fn default() -> Self {
        Self(Bytes::from_static(b"null"))
    }
}

impl Raw {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_null(&self) -> bool {
        self.0 == "null"
    }

    /// Whether it is the same JSON, perhaps with other spaces and members in another order.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let read = |raw: &Self| serde_json::from_slice::<serde_json::Value>(&raw.0);
        let is_equal = || Some(read(self).ok()? == read(other).ok()?);
        self == other || is_equal().unwrap_or_default()
    }

    /// Whether arrays and objects are nested more deeply than this.
    pub(crate) fn is_deeper_than(&self, max: usize) -> bool {
        let (mut depth, mut is_text, mut bytes) = (0_usize, false, self.0.iter());
        while let Some(byte) = bytes.next() {
            match byte {
                b'\\' => {
                    bytes.next();
                }
                b'"' => is_text = !is_text,
                b'[' | b'{' if !is_text => {
                    depth += 1;
                    if depth > max {
                        return true;
                    }
                }
                b']' | b'}' if !is_text => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        false
    }

    /// As text for people: a string, the `message` of an object, or the JSON itself, cut to the length that a history keeps.
    /// Text that reads like the reason of a returned run gets the prefix `error: `.
    pub fn summary(&self) -> String {
        let json: serde_json::Value = serde_json::from_slice(&self.0).unwrap_or_default();
        let text = json.as_str().or_else(|| json.get("message")?.as_str());
        let mut text = text.map_or_else(
            || String::from_utf8_lossy(&self.0).into_owned(),
            str::to_owned,
        );
        if is_returned(&text) {
            text.insert_str(0, "error: ");
        }
        text.truncate(text.floor_char_boundary(REASON_BYTES_MAX));
        text
    }
}

/// For members that may be left out, but whose `null` is a value.
pub fn given<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<Raw>, D::Error> {
    Raw::deserialize(from).map(Some)
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let raw = <Box<RawValue>>::deserialize(from)?;
        Ok(Self(Bytes::from(String::from(Box::<str>::from(raw)))))
    }
}

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_slice(&self.0).map_err(ser::Error::custom)?;
        raw.serialize(to)
    }
}

impl Envelope {
    pub(crate) fn new(data: Raw) -> Self {
        Self {
            data,
            ..Self::default()
        }
    }

    /// Whether it has nothing but data.
    pub(crate) fn is_plain(&self) -> bool {
        self.progress.is_none() && self.result.is_none() && self.error.is_none()
    }

    pub(crate) fn encode(&self) -> Bytes {
        let parts = [
            (DATA, Some(&self.data)),
            (PROGRESS, self.progress.as_ref()),
            (RESULT, self.result.as_ref()),
            (ERROR, self.error.as_ref()),
        ];
        let parts = || parts.iter().filter_map(|(tag, raw)| Some((*tag, (*raw)?)));
        let size = parts().map(|(_, raw)| 5 + raw.len()).sum::<usize>();
        let mut to = BytesMut::with_capacity(1 + size);
        to.put_u8(FORMAT);
        for (tag, raw) in parts() {
            to.put_u8(tag);
            // Longer ones are refused by the queue.
            to.put_u32(u32::try_from(raw.len()).unwrap_or(u32::MAX));
            to.put_slice(&raw.0);
        }
        to.freeze()
    }

    pub(crate) fn decode(mut from: Bytes) -> Result<Self> {
        let corrupt = || Error::corrupt("the data of a job cannot be decoded");
        if from.is_empty() || from.split_to(1)[0] != FORMAT {
            return Err(corrupt());
        }
        let mut envelope = Self::default();
        while !from.is_empty() {
            if from.len() < 5 {
                return Err(corrupt());
            }
            let head = from.split_to(5);
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            if from.len() < length {
                return Err(corrupt());
            }
            let raw = Raw(from.split_to(length));
            match head[0] {
                DATA => envelope.data = raw,
                PROGRESS => envelope.progress = Some(raw),
                RESULT => envelope.result = Some(raw),
                ERROR => envelope.error = Some(raw),
                _ => return Err(corrupt()),
            }
        }
        Ok(envelope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &'static str) -> Raw {
        Raw(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn json_is_kept_byte_for_byte() {
        let odd = r#"{ "b":1.50, "a" : 1e400,"b":[ ],"x":"\ud800\u0041" }"#;
        let read: Raw = serde_json::from_str(odd).unwrap();
        let envelope = Envelope {
            progress: Some(raw("7")),
            error: Some(raw("null")),
            ..Envelope::new(read)
        };
        let decoded = Envelope::decode(envelope.encode()).unwrap();
        assert_eq!(decoded, envelope);
        assert_eq!(serde_json::to_string(&decoded.data).unwrap(), odd);
        assert!(!decoded.is_plain() && Envelope::default().is_plain());
    }

    #[test]
    fn json_is_the_same_in_any_form() {
        assert!(raw(r#"{"a":1,"b":2}"#).is_same(&raw(r#"{ "b": 2, "a": 1 }"#)));
        assert!(raw("1e400").is_same(&raw("1e400")));
        assert!(!raw("1").is_same(&raw("2")) && !raw("1e400").is_same(&raw("1e401")));
    }

    #[test]
    fn damage_is_found() {
        let whole = Envelope::new(raw("[1,2]")).encode();
        assert_eq!(
            whole.escape_ascii().to_string(),
            r"\x01\x01\x00\x00\x00\x05[1,2]"
        );
        for length in [0, 3, whole.len() - 1] {
            assert!(
                length == 1 || Envelope::decode(whole.slice(..length)).is_err(),
                "{length}"
            );
        }
        assert!(Envelope::decode(Bytes::from_static(&[2])).is_err());
        assert!(Envelope::decode(Bytes::from_static(&[1, 9, 0, 0, 0, 0])).is_err());
    }

    #[test]
    fn errors_are_summed_up() {
        for (error, summary) in [
            (r#""no route""#, "no route"),
            (r#"{"message":"no route","code":5}"#, "no route"),
            ("[1, 2]", "[1, 2]"),
        ] {
            assert_eq!(raw(error).summary(), summary);
        }
        let long = serde_json::to_string(&format!("x{}", "\u{e9}".repeat(200))).unwrap();
        let long = Raw(Bytes::from(long)).summary();
        assert_eq!(
            long.len(),
            REASON_BYTES_MAX - 1,
            "a character is not cut in two"
        );
    }
}
