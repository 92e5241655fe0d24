//! Bodies of several parts: revisions of a document, and documents with their attachments.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Read as _;

use axum::body::Body;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use docstore::Opened as Found;
use flate2::read::GzDecoder;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use memchr::memmem;
use serde_json::{Value, json};

use crate::Error;
use crate::call::Call;
use crate::reply::{self, Reply};

/// Revisions, each in a part of its own.
pub(crate) fn mixed(boundary: &str, found: impl Iterator<Item = Found>) -> Reply {
    let mut text = String::new();
    for found in found {
        let (kind, json) = match &found {
            Ok(document) => ("application/json", document.to_json()),
            Err(rev) => {
                let missing = json!({"missing": rev.to_string()}).to_string();
                ("application/json; error=\"true\"", missing)
            }
        };
        let _ = write!(
            text,
            "--{boundary}\r\nContent-Type: {kind}\r\n\r\n{json}\r\n"
        );
    }
    let _ = write!(text, "--{boundary}--");
    let mut reply = reply::body(StatusCode::OK, "multipart/mixed", Body::from(text));
    let kind = format!("multipart/mixed; boundary=\"{boundary}\"");
    reply::set(&mut reply, CONTENT_TYPE, &kind);
    reply
}

/// A document with its attachments, as one JSON text.
pub(crate) async fn document(call: &mut Call) -> Result<String, Error> {
    let bad = || Error::bad_request("The multipart body is not of its form.");
    let kind = call.header(&CONTENT_TYPE).unwrap_or_default();
    let boundary = boundary(kind).ok_or_else(bad)?.to_owned();
    let bytes_max = call.options().request_bytes_max;
    let body = call.body().await?;
    let mut parts = split(&body, &boundary).ok_or_else(bad)?.into_iter();
    let first = parts.next().ok_or_else(bad)?;
    let text = std::str::from_utf8(&first.content).map_err(|_| crate::call::not_json())?;
    let mut contents = Vec::new();
    let mut named = HashMap::new();
    for part in parts {
        if let Some(name) = part.file_name() {
            named.insert(name.to_owned(), contents.len());
        }
        contents.push(match part.header("content-encoding") {
            Some("gzip") => unzip(&part.content, bytes_max)?,
            _ => part.content,
        });
    }
    fill_in(text, &contents, &named)
}

/// One part of a body.
struct Part {
    head: String,
    content: Bytes,
}

impl Part {
    fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.lines().filter_map(|line| line.split_once(':'));
        let found = headers.find(|(given, _)| given.trim().eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim())
    }

    fn file_name(&self) -> Option<&str> {
        let (_, rest) = self
            .header("content-disposition")?
            .split_once("filename=\"")?;
        Some(rest.strip_suffix('"').unwrap_or(rest))
    }
}

/// Takes a body apart; `None` if it is not of its form, or cut off.
fn split(body: &Bytes, boundary: &str) -> Option<Vec<Part>> {
    let mark = format!("--{boundary}");
    let delimiter = format!("\r\n{mark}");
    // What stands before the first mark is for nobody.
    let mut at = if body.starts_with(mark.as_bytes()) {
        mark.len()
    } else {
        memmem::find(body, delimiter.as_bytes())? + delimiter.len()
    };
    let mut parts = Vec::new();
    loop {
        let rest = &body[at..];
        if rest.starts_with(b"--") {
            return Some(parts);
        }
        // Without headers the empty line follows at once.
        let head_at = at + memmem::find(rest, b"\r\n")?;
        let head_bytes = memmem::find(&body[head_at..], b"\r\n\r\n")?;
        let content_at = head_at + head_bytes + 4;
        let content_bytes = memmem::find(&body[content_at..], delimiter.as_bytes())?;
        parts.push(Part {
            head: std::str::from_utf8(&body[head_at..head_at + head_bytes])
                .ok()?
                .to_owned(),
            content: body.slice(content_at..content_at + content_bytes),
        });
        at = content_at + content_bytes + delimiter.len();
    }
}

/// The parameter `boundary` of a content type.
fn boundary(content_type: &str) -> Option<&str> {
    let mut parameters = content_type.split(';').skip(1).map(str::trim);
    let given = parameters.find_map(|parameter| parameter.strip_prefix("boundary="))?;
    let boundary = given.trim_matches('"');
    (!boundary.is_empty() && boundary.len() <= 200).then_some(boundary)
}

fn unzip(bytes: &[u8], bytes_max: usize) -> Result<Bytes, Error> {
    let mut plain = Vec::new();
    let mut limited = GzDecoder::new(bytes).take(bytes_max as u64 + 1);
    let read = limited.read_to_end(&mut plain);
    read.map_err(|_| Error::bad_request("An attachment is not properly gzipped."))?;
    if plain.len() > bytes_max {
        return Err(Error::too_large("the request entity is too large"));
    }
    Ok(plain.into())
}

/// Puts what follows the document into it.
fn fill_in(
    text: &str,
    contents: &[Bytes],
    named: &HashMap<String, usize>,
) -> Result<String, Error> {
    // Only attachments are written anew: the rest keeps its digits and its order.
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
                serde_json::from_str(value.get()).map_err(|_| crate::call::not_json())?;
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
            filled.push_str(&attachments.to_string());
        } else {
            filled.push_str(value.get());
        }
    }
    filled.push('}');
    Ok(filled)
}

/// The members of an object in order, repetitions too.
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{boundary, split};

    #[test]
    fn bodies_are_taken_apart() {
        let body = "before\r\n--z\r\nA: b\r\nContent-Disposition: attachment; filename=\"n\"\r\n\r\n\
                    one\r\n\r\n--z\r\n\r\ntwo\r\n--z--after";
        let parts = split(&Bytes::from_static(body.as_bytes()), "z").unwrap();
        let contents: Vec<_> = parts.iter().map(|part| &part.content[..]).collect();
        assert_eq!(contents, [&b"one\r\n"[..], b"two"]);
        assert_eq!(
            (parts[0].header("a"), parts[0].file_name()),
            (Some("b"), Some("n"))
        );
        assert_eq!((parts[1].header("a"), parts[1].file_name()), (None, None));
        for end in 0..body.len() - "--after".len() {
            let cut = Bytes::copy_from_slice(&body.as_bytes()[..end]);
            assert!(split(&cut, "z").is_none(), "{end}");
        }
        assert_eq!(split(&Bytes::from_static(b"--z--"), "z").unwrap().len(), 0);
    }

    #[test]
    fn boundaries_are_parameters() {
        let found = |kind| boundary(kind);
        assert_eq!(found("multipart/related; boundary=\"a b\""), Some("a b"));
        assert_eq!(found("multipart/related;charset=x;boundary=ab"), Some("ab"));
        for none in ["multipart/related", "multipart/related; boundary=", ""] {
            assert_eq!(found(none), None, "{none}");
        }
    }
}
