//! Which attachments are sent inline.
//!
//! Small ones are cheapest as base64 within `_bulk_get` and `_bulk_docs`: one request for hundreds of documents instead
//! of two for each. Compressed ones must not be inline, because the source would decompress them and the target decide
//! again whether and how to compress; those, and large ones, are streamed one by one.

use std::collections::HashMap;

use couch::{Document, Rev};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

/// Maximum total size of inline attachments per document.
const INLINE_BYTES_MAX: u64 = 128 << 10;
/// The same, including those that the target should have already; if it does not, they are sent after all.
const INLINE_AND_KNOWN_BYTES_MAX: u64 = 1 << 20;

#[derive(Deserialize)]
struct Members {
    #[serde(default, rename = "_attachments")]
    attachments: HashMap<String, Stub>,
}

#[derive(Deserialize)]
struct Stub {
    length: Option<u64>,
    /// Servers accept any type from the author of a replica.
    #[serde(default)]
    revpos: Value,
    encoding: Option<IgnoredAny>,
    data: Option<IgnoredAny>,
}

/// The total size of a document's attachments, if they may be sent inline. The document has stubs; the target has these
/// ancestors of it.
pub(super) fn inline_bytes(document: &Document, ancestors: &[Rev]) -> Option<u64> {
    let members: Members = serde_json::from_slice(document.json()).ok()?;
    let known = ancestors.iter().map(Rev::generation).max();
    let known = known.and_then(|known| i64::try_from(known).ok());
    let (mut new, mut all) = (0_u64, 0_u64);
    for stub in members.attachments.values() {
        let length = stub.length?;
        if stub.encoding.is_some() {
            return None;
        }
        all = all.saturating_add(length);
        // If the ancestors are unknown, even attachments of generation 0 are sent, which is CouchDB's value for an
        // unknown one.
        let is_known = known
            .zip(stub.revpos.as_i64())
            .is_some_and(|(known, revpos)| revpos <= known);
        if !is_known {
            new = new.saturating_add(length);
        }
    }
    (new <= INLINE_BYTES_MAX && all <= INLINE_AND_KNOWN_BYTES_MAX).then_some(new)
}

/// The number of inline attachments in a document.
pub(super) fn inline_count(document: &Document) -> u64 {
    let members: Option<Members> = serde_json::from_slice(document.json()).ok();
    members.map_or(0, |members| {
        members
            .attachments
            .values()
            .filter(|stub| stub.data.is_some())
            .count() as u64
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn bytes(attachments: &str, ancestors: &[&str]) -> Option<u64> {
        let json = format!(r#"{{"_id":"a","_rev":"3-x","_attachments":{{{attachments}}}}}"#);
        let ancestors: Vec<_> = ancestors.iter().map(|rev| Rev::from(*rev)).collect();
        inline_bytes(&Document::parse(Bytes::from(json)).unwrap(), &ancestors)
    }

    #[test]
    fn small_plain_ones_travel_inside() {
        let small = r#""a":{"stub":true,"length":1000,"revpos":3}"#;
        assert_eq!(bytes(small, &[]), Some(1000));
        assert_eq!(bytes(small, &["2-x"]), Some(1000));
        assert_eq!(bytes(small, &["1-x", "3-y"]), Some(0));
        assert_eq!(
            bytes(r#""a":{"stub":true,"length":131072,"revpos":1}"#, &[]),
            Some(131_072)
        );
        assert_eq!(
            bytes(r#""a":{"stub":true,"length":131073,"revpos":1}"#, &[]),
            None
        );
        assert_eq!(
            bytes(r#""a":{"stub":true,"length":131073,"revpos":1}"#, &["1-x"]),
            Some(0)
        );
        assert_eq!(
            bytes(r#""a":{"stub":true,"length":1048577,"revpos":1}"#, &["1-x"]),
            None
        );
        assert_eq!(
            bytes(
                r#""a":{"stub":true,"length":9,"encoding":"gzip","encoded_length":5}"#,
                &[]
            ),
            None
        );
        assert_eq!(bytes(r#""a":{"stub":true}"#, &[]), None);
    }

    #[test]
    fn odd_ones_are_counted_as_they_will_come() {
        for revpos in ["", r#","revpos":0"#, r#","revpos":-1"#] {
            let large = format!(r#""a":{{"stub":true,"length":131073{revpos}}}"#);
            assert_eq!(bytes(&large, &[]), None, "{revpos}");
        }
        let none_known = r#""a":{"stub":true,"length":9,"revpos":0}"#;
        assert_eq!(bytes(none_known, &[]), Some(9));
        assert_eq!(bytes(none_known, &["1-x"]), Some(0));
        for revpos in ["9", "18446744073709551615", "1e99", r#""2""#, "null"] {
            let new = format!(r#""a":{{"stub":true,"length":9,"revpos":{revpos}}}"#);
            assert_eq!(bytes(&new, &["3-x"]), Some(9), "{revpos}");
        }
        let endless = r#""a":{"stub":true,"length":18446744073709551615},"b":{"stub":true,"length":18446744073709551615}"#;
        assert_eq!(bytes(endless, &[]), None);
        assert_eq!(bytes(r#""a":{"stub":true,"length":-1}"#, &[]), None);
    }

    #[test]
    fn inside_ones_are_counted() {
        let json = r#"{"_id":"a","_attachments":{"a":{"data":""},"b":{"stub":true,"length":1},"c":{"data":"QQ=="}}}"#;
        assert_eq!(
            inline_count(&Document::parse(Bytes::from(json)).unwrap()),
            2
        );
    }
}
