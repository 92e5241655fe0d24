//! Documents as clients send them: one JSON object whose members beginning with `_` are CouchDB's, the others the client's.
//!
//! The client's members keep their text, order, numbers and even duplicates; only white space between tokens is
//! dropped, because feeds put each document on one line.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::rev::{Rev, RevId, Revisions};

#[cfg(test)]
mod tests;

/// A document without CouchDB's members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doc<'a> {
    pub id: Option<String>,
    /// From `_revisions`, or else `_rev`: the edited revision, or (in replication) the revision itself.
    pub revisions: Option<Revisions>,
    pub deleted: bool,
    /// `_attachments`: each name with the client's value, in order.
    pub attachments: Vec<(String, &'a str)>,
    /// The other members, as an object without white space between tokens.
    pub body: String,
}

/// Why a document is invalid (HTTP 400); the message is CouchDB's `reason`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("invalid UTF-8 JSON")]
    Json,
    /// `bad_request`
    #[error("{0}")]
    Request(&'static str),
    /// `illegal_docid`
    #[error("{0}")]
    Id(&'static str),
    /// `doc_validation`
    #[error("{0}")]
    Document(Cow<'static, str>),
}

impl Invalid {
    /// The value of `error` in CouchDB's answer.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Json | Self::Request(_) => "bad_request",
            Self::Id(_) => "illegal_docid",
            Self::Document(_) => "doc_validation",
        }
    }
}

/// Members of replication documents that may begin with an underscore.
const ALLOWED: [&str; 6] = [
    "_access",
    "_replication_state",
    "_replication_state_time",
    "_replication_state_reason",
    "_replication_id",
    "_replication_stats",
];

/// Members that responses contain and clients may send back; they are ignored.
const IGNORED: [&str; 4] = [
    "_revs_info",
    "_local_seq",
    "_conflicts",
    "_deleted_conflicts",
];

impl<'a> Doc<'a> {
    /// Parses a document.
    pub fn parse(text: &'a str) -> Result<Self, Invalid> {
        let text = text.trim_matches([' ', '\t', '\n', '\r']);
        if !text.starts_with('{') {
            let valid = serde_json::from_str::<&RawValue>(text).is_ok();
            return Err(if valid {
                Invalid::Request("Document must be a JSON object")
            } else {
                Invalid::Json
            });
        }
        let Members(members) = serde_json::from_str(text).map_err(|_| Invalid::Json)?;
        let mut doc = Doc {
            body: String::with_capacity(text.len()),
            ..Doc::default()
        };
        let mut rev = None;
        doc.body.push('{');
        for (name, value) in members {
            match name.as_ref() {
                "_id" => doc.id = Some(parse_id(value.get())?),
                "_rev" => rev = Some(parse_rev(value.get())?),
                "_revisions" if value.get().starts_with('{') => {
                    doc.revisions = Some(parse_revisions(value.get())?);
                }
                "_attachments" if value.get().starts_with('{') => {
                    let Members(members) =
                        serde_json::from_str(value.get()).map_err(|_| Invalid::Json)?;
                    let members = members.into_iter();
                    doc.attachments = members
                        .map(|(name, value)| (name.into_owned(), value.get()))
                        .collect();
                }
                "_deleted" if matches!(value.get(), "true" | "false") => {
                    doc.deleted = value.get() == "true";
                }
                name if IGNORED.contains(&name) => {}
                name if name.starts_with('_') && !ALLOWED.contains(&name) => {
                    return Err(Invalid::Document(
                        format!("Bad special document member: {name}").into(),
                    ));
                }
                name => push_member(&mut doc.body, name, value.get()),
            }
        }
        doc.body.push('}');
        doc.revisions = doc.revisions.or(rev.map(Revisions::from));
        Ok(doc)
    }

    /// The revision that the document names as its own or as the edited one.
    pub fn rev(&self) -> Option<Rev> {
        self.revisions.as_ref().and_then(Revisions::rev)
    }
}

/// Validates a document's id; `id_bytes_max` is the server's limit, if any.
pub fn check_id(id: &str, id_bytes_max: Option<usize>) -> Result<(), Invalid> {
    match id {
        "" => Err(Invalid::Id("Document id must not be empty")),
        "_design/" => Err(Invalid::Id("Illegal document id `_design/`")),
        "_local/" => Err(Invalid::Id("Illegal document id `_local/`")),
        _ if id_bytes_max.is_some_and(|max| id.len() > max) => {
            Err(Invalid::Id("Document id is too long"))
        }
        _ if id.starts_with('_') && !id.starts_with("_design/") && !id.starts_with("_local/") => {
            Err(Invalid::Id(
                "Only reserved document ids may start with underscore.",
            ))
        }
        _ => Ok(()),
    }
}

fn parse_id(json: &str) -> Result<String, Invalid> {
    let id: String =
        serde_json::from_str(json).map_err(|_| Invalid::Id("Document id must be a string"))?;
    check_id(&id, None).map(|()| id)
}

fn parse_rev(json: &str) -> Result<Rev, Invalid> {
    serde_json::from_str(json).map_err(|_| Invalid::Request("Invalid rev format"))
}

fn parse_revisions(json: &str) -> Result<Revisions, Invalid> {
    #[derive(serde::Deserialize)]
    struct Raw<'a> {
        #[serde(borrow)]
        start: Option<&'a RawValue>,
        #[serde(borrow)]
        ids: Option<&'a RawValue>,
    }
    let refuse = |reason: &'static str| Invalid::Document(reason.into());
    let raw: Raw<'_> = serde_json::from_str(json).map_err(|_| Invalid::Json)?;
    let start = raw.start.and_then(|start| start.get().parse().ok());
    let start = start.ok_or_else(|| refuse("_revisions.start isn't an integer."))?;
    let ids = raw
        .ids
        .and_then(|ids| serde_json::from_str::<Vec<&RawValue>>(ids.get()).ok());
    let ids = ids.ok_or_else(|| refuse("_revisions.ids isn't a array."))?;
    let parse = |id: &&RawValue| {
        let text: Cow<'_, str> =
            serde_json::from_str(id.get()).map_err(|_| refuse("RevId isn't a string"))?;
        RevId::parse(start, &text).map_err(|_| refuse("RevId isn't a valid hexadecimal"))
    };
    let ids = ids.iter().map(parse).collect::<Result<_, _>>()?;
    Ok(Revisions { start, ids })
}

fn push_member(body: &mut String, name: &str, value: &str) {
    if body.len() > 1 {
        body.push(',');
    }
    push_string(body, name);
    body.push(':');
    push_compact(body, value);
}

pub fn push_string(out: &mut String, text: &str) {
    if text
        .bytes()
        .all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\')
    {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&serde_json::to_string(text).expect("strings can be written"));
    }
}

/// Appends valid JSON without the white space between its tokens.
pub fn push_compact(out: &mut String, json: &str) {
    let blank = |byte: u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    let bytes = json.as_bytes();
    let mut kept = 0;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = end_of_string(bytes, at),
            byte if blank(byte) => {
                out.push_str(&json[kept..at]);
                while at < bytes.len() && blank(bytes[at]) {
                    at += 1;
                }
                kept = at;
            }
            _ => at += 1,
        }
    }
    out.push_str(&json[kept..]);
}

/// The index after the string at `start`.
pub(crate) fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The members of an object in order, with duplicates, their values not parsed.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(transparent)]
        struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some((Name(name), value)) =
                    map.next_entry::<Name<'de>, &'de RawValue>()?
                {
                    members.push((name, value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}
