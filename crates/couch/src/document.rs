//! Documents, as far as replication parses them.
//!
//! A body stays the text that the source sent, byte for byte: order, numbers and duplicate keys are
//! left alone. The members that replication needs are found in one pass without building a tree.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use md5::{Digest as _, Md5};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::types::{DocId, Rev};

/// A document: its JSON text and the members that replication needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Document {
    pub id: DocId,
    pub rev: Option<Rev>,
    pub deleted: bool,
    pub attachments: Attachments,
    json: Bytes,
}

/// How a document's attachments are transferred.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Attachments {
    None,
    /// As stubs only: the receiver is expected to have them.
    Stubs,
    /// Inline, as base64.
    Inline,
    /// Some follow the document, in this order.
    Following(Vec<Attachment>),
}

/// An attachment that follows its document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attachment {
    pub name: String,
    pub content_type: String,
    /// The length on the wire, where compressed attachments stay compressed.
    pub length: u64,
    /// The content encoding, if it is compressed.
    pub encoding: Option<String>,
    /// The MD5 of the bytes on the wire, if the source sends one.
    pub digest: Option<[u8; 16]>,
}

impl Document {
    pub fn parse(json: Bytes) -> Result<Self, serde_json::Error> {
        // Members that are skipped would not be validated, and one invalid document fails a whole batch.
        let text = std::str::from_utf8(&json).map_err(serde::de::Error::custom)?;
        let members: Members<'_> = serde_json::from_str(text)?;
        let attachments = match members.attachments {
            Some(raw) => attachments(raw)?,
            None => Attachments::None,
        };
        Ok(Self {
            id: DocId::new(members.id.unwrap_or_default().into_owned()),
            rev: members.rev.map(|rev| Rev::new(rev.into_owned())),
            deleted: members.deleted,
            attachments,
            json,
        })
    }

    pub fn json(&self) -> &Bytes {
        &self.json
    }

    /// Whether all inline attachments that have a digest match it. The digest of a compressed attachment is of other bytes.
    pub fn inline_digests_match(&self) -> bool {
        #[derive(Deserialize)]
        struct Inline<'a> {
            #[serde(borrow, rename = "_attachments")]
            attachments: HashMap<Text<'a>, Attachment<'a>>,
        }
        #[derive(Deserialize)]
        struct Attachment<'a> {
            #[serde(borrow)]
            data: Option<Text<'a>>,
            encoding: Option<IgnoredAny>,
            #[serde(borrow)]
            digest: Option<&'a RawValue>,
        }
        if self.attachments != Attachments::Inline {
            return true;
        }
        let Ok(Inline { attachments }) = serde_json::from_slice(&self.json) else {
            return false;
        };
        attachments.values().all(|attachment| {
            let digest: Option<String> = attachment.digest.and_then(read);
            match (&attachment.data, digest.as_deref().and_then(md5)) {
                (Some(Text(data)), Some(digest)) if attachment.encoding.is_none() => {
                    let data = BASE64.decode(data.as_bytes());
                    data.is_ok_and(|data| digest == Md5::digest(data)[..])
                }
                _ => true,
            }
        })
    }

    /// Whether it has attachments, of any form.
    pub fn has_attachments(&self) -> bool {
        self.attachments != Attachments::None
    }
}

/// The members that replication needs.
#[derive(Default)]
struct Members<'a> {
    id: Option<Cow<'a, str>>,
    rev: Option<Cow<'a, str>>,
    deleted: bool,
    attachments: Option<&'a RawValue>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    Id,
    Rev,
    Deleted,
    Attachments,
    Other,
}

impl<'de> Deserialize<'de> for Key {
    /// By bytes, as the user's keys need not be valid Unicode.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl Visitor<'_> for KeyVisitor {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a member name")
            }

            fn visit_bytes<E>(self, name: &[u8]) -> Result<Key, E> {
                Ok(match name {
                    b"_id" => Key::Id,
                    b"_rev" => Key::Rev,
                    b"_deleted" => Key::Deleted,
                    b"_attachments" => Key::Attachments,
                    _ => Key::Other,
                })
            }
        }
        deserializer.deserialize_bytes(KeyVisitor)
    }
}

/// A string that is borrowed if it has no escapes.
#[derive(PartialEq, Eq, Hash, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a document")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Members::default();
                while let Some(key) = map.next_key()? {
                    match key {
                        Key::Id => members.id = Some(map.next_value::<Text<'_>>()?.0),
                        Key::Rev => members.rev = Some(map.next_value::<Text<'_>>()?.0),
                        Key::Deleted => members.deleted = map.next_value()?,
                        Key::Attachments => members.attachments = Some(map.next_value()?),
                        Key::Other => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

/// A member of `_attachments`. Most of it only matters if the attachment follows; otherwise it may be anything.
#[derive(Deserialize)]
struct RawAttachment<'a> {
    #[serde(default)]
    follows: bool,
    data: Option<IgnoredAny>,
    #[serde(borrow)]
    content_type: Option<&'a RawValue>,
    #[serde(borrow)]
    length: Option<&'a RawValue>,
    #[serde(borrow)]
    encoding: Option<&'a RawValue>,
    #[serde(borrow)]
    encoded_length: Option<&'a RawValue>,
    #[serde(borrow)]
    digest: Option<&'a RawValue>,
}

impl RawAttachment<'_> {
    /// The length on the wire.
    fn length(&self) -> Option<u64> {
        let encoded = self.encoding.and(self.encoded_length).and_then(read);
        encoded.or_else(|| self.length.and_then(read))
    }
}

/// A member, if it has the expected type.
fn read<T: DeserializeOwned>(raw: &RawValue) -> Option<T> {
    serde_json::from_str(raw.get()).ok()
}

/// A digest in CouchDB's form; others cannot be checked.
fn md5(digest: &str) -> Option<[u8; 16]> {
    let encoded = digest.strip_prefix("md5-")?;
    BASE64.decode(encoded).ok()?.try_into().ok()
}

fn attachments(raw: &RawValue) -> Result<Attachments, serde_json::Error> {
    struct InOrder<'a>(Vec<(String, RawAttachment<'a>)>);
    impl<'de> Deserialize<'de> for InOrder<'de> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct InOrderVisitor;
            impl<'de> Visitor<'de> for InOrderVisitor {
                type Value = InOrder<'de>;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("attachments by name")
                }

                fn visit_map<A: MapAccess<'de>>(
                    self,
                    mut map: A,
                ) -> Result<InOrder<'de>, A::Error> {
                    let mut found = Vec::new();
                    while let Some(entry) = map.next_entry()? {
                        found.push(entry);
                    }
                    Ok(InOrder(found))
                }
            }
            deserializer.deserialize_map(InOrderVisitor)
        }
    }
    let InOrder(all) = serde_json::from_str(raw.get())?;
    if all.is_empty() {
        return Ok(Attachments::None);
    }
    let is_inline = all.iter().any(|(_, attachment)| attachment.data.is_some());
    let mut following = Vec::new();
    for (name, attachment) in all.into_iter().filter(|(_, attachment)| attachment.follows) {
        let unknown = || serde::de::Error::custom("an attachment that follows has no length");
        following.push(Attachment {
            length: attachment.length().ok_or_else(unknown)?,
            content_type: attachment.content_type.and_then(read).unwrap_or_default(),
            digest: attachment
                .digest
                .and_then(read)
                .and_then(|digest: String| md5(&digest)),
            encoding: attachment.encoding.and_then(read),
            name,
        });
    }
    Ok(match (following.is_empty(), is_inline) {
        (false, _) => Attachments::Following(following),
        (true, true) => Attachments::Inline,
        (true, false) => Attachments::Stubs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Document {
        Document::parse(Bytes::copy_from_slice(json.as_bytes())).unwrap()
    }

    #[test]
    fn odd_bodies_stay_as_they_are() {
        let deep = format!(
            r#"{{"_id":"a","x":{}1{}}}"#,
            "[".repeat(5000),
            "]".repeat(5000)
        );
        for json in [
            r#"{ "b":1, "a":1.10, "a":1e400, "_id":"a", "n":123456789012345678901234567890 }"#,
            "{\"_id\":\"a\",\"\\ud800\":\"\\udfff\",\"é\":\"\u{1F600}\"}",
            &deep,
        ] {
            let document = parse(json);
            assert_eq!(document.json(), json.as_bytes());
            assert_eq!(document.id.as_str(), "a");
            assert!(!document.has_attachments());
        }
    }

    #[test]
    fn what_is_read() {
        let document = parse(
            r#"{"_id":"\u0061b","_rev":"2-x","_deleted":true,"o":{"_id":"no","_attachments":{"x":{}}}}"#,
        );
        assert_eq!(document.id.as_str(), "ab");
        assert_eq!(document.rev, Some(Rev::from("2-x")));
        assert!(document.deleted);
        assert_eq!(document.attachments, Attachments::None);
        assert_eq!(
            parse(r#"{"_attachments":{}}"#).attachments,
            Attachments::None
        );
        let stubs = r#"{"_attachments":{"a":{"stub":true,"length":3}}}"#;
        assert_eq!(parse(stubs).attachments, Attachments::Stubs);
        let inline = r#"{"_attachments":{"a":{"data":"AAAA"},"b":{"stub":true}}}"#;
        assert_eq!(parse(inline).attachments, Attachments::Inline);
    }

    #[test]
    fn following_attachments_keep_their_order() {
        let document = parse(
            r#"{"_attachments":{
                "z":{"follows":true,"length":10,"content_type":"a/b","digest":"md5-x"},
                "s":{"stub":true},
                "a":{"follows":true,"length":10,"encoding":"gzip","encoded_length":4}}}"#,
        );
        let Attachments::Following(following) = document.attachments else {
            panic!()
        };
        let found: Vec<_> = following
            .iter()
            .map(|a| (a.name.as_str(), a.length))
            .collect();
        assert_eq!(found, [("z", 10), ("a", 4)]);
        assert_eq!(following[1].encoding.as_deref(), Some("gzip"));
    }

    #[test]
    fn inline_attachments_match_their_digest() {
        let matches = |attachments: &str| {
            let json = format!(r#"{{"_id":"a","_attachments":{{{attachments}}}}}"#);
            parse(&json).inline_digests_match()
        };
        let right = r#""digest":"md5-XUFAKrxLKna5cZ2REBfFkg==""#;
        assert!(matches(&format!(r#""\n":{{"data":"aGVsbG8=",{right}}}"#)));
        assert!(matches(r#""a":{"data":"aGVsbG8=","digest":"sha1-x"}"#));
        assert!(matches(r#""a":{"data":"aGVsbG8=","digest":7}"#));
        assert!(matches(r#""a":{"data":"aGVsbG8="}"#));
        assert!(matches(&format!(r#""a":{{"stub":true,{right}}}"#)));
        assert!(matches(&format!(
            r#""a":{{"data":"","encoding":"gzip",{right}}}"#
        )));
        for data in ["aGVsbG9v", "", "not base64"] {
            let wrong = format!(r#""a":{{"data":"{data}",{right}}}"#);
            assert!(!matches(&wrong), "{wrong}");
            assert!(!matches(&format!(r#""b":{{"data":""}},{wrong}"#)));
        }
    }

    #[test]
    fn what_does_not_matter_of_attachments_may_be_anything() {
        let odd = r#"{"_attachments":{"a":{"stub":true,"length":-1,"digest":7,"content_type":null,"encoding":[]}}}"#;
        assert_eq!(parse(odd).attachments, Attachments::Stubs);
        let following = r#"{"_attachments":{"a":{"follows":true,"length":3,"digest":7,"encoding":"identity"}}}"#;
        let Attachments::Following(following) = parse(following).attachments else {
            panic!()
        };
        assert_eq!((following[0].length, following[0].digest), (3, None));
    }

    #[test]
    fn what_is_no_document() {
        for json in [
            "",
            "[]",
            "{",
            "{}x",
            r#"{"_id":1}"#,
            r#"{"_attachments":[]}"#,
            r#"{"a":tru}"#,
            "\"\u{0}",
        ] {
            assert!(
                Document::parse(Bytes::copy_from_slice(json.as_bytes())).is_err(),
                "{json}"
            );
        }
        let no_length = r#"{"_attachments":{"a":{"follows":true}}}"#;
        assert!(Document::parse(Bytes::from_static(no_length.as_bytes())).is_err());
        assert!(
            Document::parse(Bytes::from_static(b"{\"a\":\"\xff\"}")).is_err(),
            "not UTF-8"
        );
    }
}
