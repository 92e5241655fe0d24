//! Multipart bodies: revisions of a document, and documents with their attachments.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use docstore::Opened as Found;
use document::offload::blocking;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use wire::gzip::Gunzip;
use wire::multipart;

use crate::Error;
use crate::call::Call;
use crate::state::Shared;

/// Appends a revision as a part.
pub(crate) fn push(page: &mut String, boundary: &str, found: &Found) {
    let (kind, json) = match found {
        Ok(document) => ("application/json", document.to_json()),
        Err(rev) => {
            let missing = json!({"missing": rev.to_string()}).to_string();
            ("application/json; error=\"true\"", missing)
        }
    };
    let _ = write!(
        page,
        "--{boundary}\r\nContent-Type: {kind}\r\n\r\n{json}\r\n"
    );
}

/// A document with its attachments, as one JSON text.
pub(crate) async fn document(call: &mut Call) -> Result<String, Error> {
    let kind = call.header(&CONTENT_TYPE).unwrap_or_default();
    let boundary = multipart::boundary(kind).ok_or_else(|| malformed("no boundary"))?;
    let body = call.body().await?;
    let shared = Arc::clone(&call.shared);
    // A few kilobytes can decompress to a large document.
    blocking(move || assemble(&shared, &body, &boundary)).await
}

/// The document in a whole body. Reserves memory for everything that the body becomes.
fn assemble(shared: &Shared, body: &Bytes, boundary: &str) -> Result<String, Error> {
    let parts = multipart::split(body, boundary).map_err(|error| malformed(&error.to_string()))?;
    let mut parts = parts.into_iter();
    let (_, first) = parts.next().ok_or_else(|| malformed("no document"))?;
    let text = std::str::from_utf8(&first).map_err(|_| Error::not_json())?;
    let mut unzip = Unzip {
        shared,
        left: shared.options.request_bytes_max,
        memory: shared.reserve(0)?,
    };
    let mut contents = Vec::new();
    let mut named = HashMap::new();
    for (part, content) in parts {
        if let Some(name) = part.bare_name() {
            named.insert(name.to_owned(), contents.len());
        }
        contents.push(match part.content_encoding.as_str() {
            "gzip" => unzip.part(content)?,
            _ => content,
        });
    }
    let encoded = |content: &Bytes| content.len().div_ceil(3) * 4;
    // There are two copies, and a content may be used twice: by its name and by its position.
    let _memory = shared.reserve(4 * contents.iter().map(encoded).sum::<usize>())?;
    fill_in(text, &contents, &named)
}

fn malformed(problem: &str) -> Error {
    Error::bad_request(format!("Invalid multipart body: {problem}."))
}

/// Decompresses the parts of a body.
struct Unzip<'a> {
    shared: &'a Shared,
    /// What all further parts together may become.
    left: usize,
    memory: OwnedSemaphorePermit,
}

impl Unzip<'_> {
    fn part(&mut self, packed: Bytes) -> Result<Bytes, Error> {
        let damaged = |_| Error::bad_request("An attachment is not properly gzipped.");
        let mut gunzip = Gunzip::default();
        let mut plain = Vec::new();
        gunzip.feed(packed);
        loop {
            let (chunk, is_last) = match gunzip.next_chunk().map_err(damaged)? {
                Some(chunk) => (chunk, false),
                None => (gunzip.finish().map_err(damaged)?.unwrap_or_default(), true),
            };
            let left = self.left.checked_sub(chunk.len());
            self.left = left.ok_or_else(|| Error::too_large("the request entity is too large"))?;
            self.memory.merge(self.shared.reserve(chunk.len())?);
            plain.extend_from_slice(&chunk);
            if is_last {
                return Ok(plain.into());
            }
        }
    }
}

/// Inlines the parts that follow the document.
fn fill_in(
    text: &str,
    contents: &[Bytes],
    named: &HashMap<String, usize>,
) -> Result<String, Error> {
    // Only `_attachments` is rewritten: other members keep their digits and order.
    let members: Vec<(String, Box<serde_json::value::RawValue>)> = members_of(text)?;
    let mut next = 0;
    let mut filled = String::from("{");
    for (name, value) in members {
        if filled.len() > 1 {
            filled.push(',');
        }
        document::doc::push_string(&mut filled, &name);
        filled.push(':');
        if name == "_attachments" {
            let mut attachments: Value =
                serde_json::from_str(value.get()).map_err(|_| Error::not_json())?;
            for (name, attachment) in attachments.as_object_mut().into_iter().flatten() {
                if attachment.get("follows") != Some(&Value::Bool(true)) {
                    continue;
                }
                let at = named.get(name).copied().unwrap_or(next);
                next += 1;
                let content = contents.get(at).ok_or_else(|| {
                    Error::bad_request(format!("Attachment {name} does not follow."))
                })?;
                let kind = attachment
                    .get("content_type")
                    .cloned()
                    .unwrap_or(Value::Null);
                let revpos = attachment.get("revpos").cloned().unwrap_or(Value::Null);
                let mut sent = json!({"data": BASE64_STANDARD.encode(content)});
                for (member, value) in [("content_type", kind), ("revpos", revpos)] {
                    if !value.is_null() {
                        sent[member] = value;
                    }
                }
                *attachment = sent;
            }
            let _ = write!(filled, "{attachments}");
        } else {
            filled.push_str(value.get());
        }
    }
    filled.push('}');
    Ok(filled)
}

/// The members of an object in order, with duplicates.
fn members_of(text: &str) -> Result<Vec<(String, Box<serde_json::value::RawValue>)>, Error> {
    use serde::de::{Deserializer as _, MapAccess, Visitor};
    use serde_json::value::RawValue;

    struct InOrder;
    impl<'de> Visitor<'de> for InOrder {
        type Value = Vec<(String, Box<RawValue>)>;

        fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            out.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some(member) = map.next_entry()? {
                members.push(member);
            }
            Ok(members)
        }
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let members = reader.deserialize_map(InOrder);
    members.map_err(|_| Error::bad_request("Document must be a JSON object"))
}
