//! `_revs_diff` and `_bulk_docs`.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::handle::{Database, FULL_COMMIT};
use crate::error::Error;
use crate::payload::Payload;
use crate::peer::{Call, Reply};
use crate::types::{DocId, Rev, text_of};

/// Revisions of a document that the target lacks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MissingRevs {
    pub id: DocId,
    pub missing: Vec<Rev>,
    /// Revisions that the target has and that may be ancestors of the missing ones.
    pub possible_ancestors: Vec<Rev>,
}

/// A document that a server refused to send or to store.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct DocError {
    #[serde(default)]
    pub id: Option<DocId>,
    /// The revision, if the server sends it.
    #[serde(default)]
    pub rev: Option<Rev>,
    /// `forbidden`, …
    #[serde(deserialize_with = "text_of_any")]
    pub error: String,
    #[serde(default, deserialize_with = "text_of_any_but_null")]
    pub reason: Option<String>,
}

impl DocError {
    /// The same with the server's texts redacted and cut, for messages.
    pub(super) fn clean(self, reply: &Reply) -> Self {
        Self {
            error: reply.clean(self.error),
            reason: self.reason.map(|reason| reply.clean(reason)),
            ..self
        }
    }
}

/// A validation function may throw any value.
fn text_of_any<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Value::deserialize(deserializer).map(text_of)
}

fn text_of_any_but_null<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.map(text_of))
}

impl Database {
    /// Asks which revisions are missing. The response leaves out documents of which none are, and has
    /// the others in the server's order.
    pub async fn revs_diff(&self, asked: &[(DocId, Vec<Rev>)]) -> Result<Vec<MissingRevs>, Error> {
        let json = serde_json::to_vec(&Asked(asked))
            .map_err(|error| Error::Config(format!("revisions are no JSON: {error}")))?;
        let call = Call::new(Method::POST, "_revs_diff").json(Payload::Bytes(json.into()));
        let reply = self.peer.fetch(&call).await?.success().await?;
        reply.parse::<Diff>().map(|diff| diff.0)
    }

    /// Writes documents as they are (`new_edits=false`); returns an error for each that was not
    /// taken.
    pub async fn bulk_docs(&self, documents: &[Bytes]) -> Result<Vec<DocError>, Error> {
        let mut pieces = Vec::with_capacity(2 * documents.len() + 1);
        for document in documents {
            let before = if pieces.is_empty() {
                r#"{"new_edits":false,"docs":["#
            } else {
                ","
            };
            pieces.push(Bytes::from_static(before.as_bytes()));
            pieces.push(document.clone());
        }
        if pieces.is_empty() {
            return Ok(Vec::new());
        }
        pieces.push(Bytes::from_static(b"]}"));
        let call = Call::new(Method::POST, "_bulk_docs")
            .header(FULL_COMMIT, "false")
            .json(Payload::Pieces(Arc::from(pieces)));
        let reply = self.peer.fetch(&call).await?;
        // 417: a validation function refused some of them.
        let reply = if reply.status == 417 {
            reply
        } else {
            reply.success().await?
        };
        let results: Vec<Value> = reply.parse()?;
        let failed = results
            .into_iter()
            .filter(|result| result.get("error").is_some_and(|error| !error.is_null()));
        failed
            .map(|result| serde_json::from_value(result).map(|error: DocError| error.clean(&reply)))
            .collect::<Result<_, _>>()
            .map_err(|error| reply.not_json(&error))
    }
}

struct Asked<'a>(&'a [(DocId, Vec<Rev>)]);

impl Serialize for Asked<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(id, revs)| (id, revs)))
    }
}

struct Diff(Vec<MissingRevs>);

impl<'de> Deserialize<'de> for Diff {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Revs {
            missing: Vec<Rev>,
            #[serde(default)]
            possible_ancestors: Vec<Rev>,
        }
        struct DiffVisitor;
        impl<'de> Visitor<'de> for DiffVisitor {
            type Value = Diff;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("missing revisions by document")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Diff, A::Error> {
                let mut found = Vec::with_capacity(map.size_hint().unwrap_or_default());
                while let Some((id, revs)) = map.next_entry::<DocId, Revs>()? {
                    let Revs {
                        missing,
                        possible_ancestors,
                    } = revs;
                    found.push(MissingRevs {
                        id,
                        missing,
                        possible_ancestors,
                    });
                }
                Ok(Diff(found))
            }
        }
        deserializer.deserialize_map(DiffVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_may_be_any_json() {
        for (reason, expected) in [
            (r#""only even""#, Some("only even")),
            (r#"{"code":7}"#, Some(r#"{"code":7}"#)),
            ("42", Some("42")),
            ("null", None),
        ] {
            let row = format!(r#"{{"id":"a","rev":"1-x","error":"forbidden","reason":{reason}}}"#);
            let error: DocError = serde_json::from_str(&row).unwrap();
            assert_eq!(error.error, "forbidden");
            assert_eq!(error.reason.as_deref(), expected);
        }
        let error: DocError = serde_json::from_str(r#"{"error":{"a":1}}"#).unwrap();
        assert_eq!((&*error.error, error.reason), (r#"{"a":1}"#, None));
    }

    #[test]
    fn revisions_are_asked_and_answered_in_order() {
        let asked = [
            (
                DocId::from("z\"1"),
                vec![Rev::from("1-a"), Rev::from("2-b")],
            ),
            (DocId::from("a"), vec![Rev::from("1-c")]),
        ];
        let json = serde_json::to_string(&Asked(&asked)).unwrap();
        assert_eq!(json, r#"{"z\"1":["1-a","2-b"],"a":["1-c"]}"#);

        let answer =
            r#"{"z":{"missing":["2-b"],"possible_ancestors":["1-a"]},"a":{"missing":["1-c"]}}"#;
        let Diff(found) = serde_json::from_str(answer).unwrap();
        assert_eq!(found[0].id.as_str(), "z");
        assert_eq!(found[0].possible_ancestors, [Rev::from("1-a")]);
        assert_eq!(found[1].missing, [Rev::from("1-c")]);
    }
}
