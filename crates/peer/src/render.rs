//! Documents as JSON.

use std::fmt;
use std::io::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use document::rev::{Rev, RevId, Revisions};
use document::revtree::{Node, Status};

use crate::attachment::Attachment;
use crate::db::{Document, Version, local_rev};

/// What to include in a document besides its members.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    pub(crate) revisions: Option<Revisions>,
    pub(crate) revs_info: Option<Vec<(Rev, Status)>>,
    pub(crate) local_seq: Option<String>,
    pub(crate) conflicts: Vec<Rev>,
    pub(crate) deleted_conflicts: Vec<Rev>,
    pub(crate) attachments: Attachments,
    /// Attachments of this generation or earlier are stubs.
    pub(crate) known_generation: Option<u64>,
    pub(crate) encoding: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Attachments {
    /// Without their bytes.
    #[default]
    Stubs,
    /// With their bytes in base64.
    Inline,
    /// Their bytes follow the document.
    Follow,
}

impl Shown {
    /// Whether an attachment is included with its bytes, if any is.
    pub(crate) fn is_new(&self, attachment: &Attachment) -> bool {
        self.known_generation
            .is_none_or(|known| attachment.is_after(known))
    }

    /// Whether anything is included that is not part of the revision.
    pub(crate) fn has_meta(&self) -> bool {
        self.revs_info.is_some()
            || self.local_seq.is_some()
            || !self.conflicts.is_empty()
            || !self.deleted_conflicts.is_empty()
    }

    /// Includes the losing leaves that are not deleted.
    pub(crate) fn with_conflicts(mut self, document: &Document) -> Self {
        self.conflicts = document
            .tree
            .conflicts(false)
            .into_iter()
            .cloned()
            .collect();
        self
    }
}

/// Appends a revision as a document.
pub(crate) fn node(out: &mut Vec<u8>, id: &str, node: Node<'_, Arc<Version>>, shown: &Shown) {
    let version = node
        .value
        .expect("only revisions whose bodies are here are shown");
    document(out, id, node.rev, node.deleted, version, shown);
}

pub(crate) fn document(
    out: &mut Vec<u8>,
    id: &str,
    rev: &Rev,
    deleted: bool,
    version: &Version,
    shown: &Shown,
) {
    out.extend_from_slice(b"{\"_id\":");
    string(out, id);
    out.extend_from_slice(b",\"_rev\":");
    self::rev(out, rev);
    members(out, &version.body);
    if deleted {
        out.extend_from_slice(b",\"_deleted\":true");
    }
    if let Some(Revisions { start, ids }) = &shown.revisions {
        out.extend_from_slice(format!(",\"_revisions\":{{\"start\":{start},\"ids\":").as_bytes());
        list(out, ids, |out, id| quoted(out, id));
        out.push(b'}');
    }
    if let Some(info) = &shown.revs_info {
        out.extend_from_slice(b",\"_revs_info\":");
        list(out, info, |out, (rev, status)| {
            out.extend_from_slice(b"{\"rev\":");
            self::rev(out, rev);
            out.extend_from_slice(b",\"status\":");
            quoted(out, status.as_str());
            out.push(b'}');
        });
    }
    if let Some(seq) = &shown.local_seq {
        out.extend_from_slice(b",\"_local_seq\":");
        out.extend_from_slice(seq.as_bytes());
    }
    for (name, revs) in [
        ("_conflicts", &shown.conflicts),
        ("_deleted_conflicts", &shown.deleted_conflicts),
    ] {
        if !revs.is_empty() {
            out.extend_from_slice(format!(",\"{name}\":").as_bytes());
            list(out, revs, self::rev);
        }
    }
    if !version.attachments.is_empty() {
        out.extend_from_slice(b",\"_attachments\":{");
        for (index, part) in version.attachments.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            attachment(out, part, shown);
        }
        out.push(b'}');
    }
    out.push(b'}');
}

pub(crate) fn local(out: &mut Vec<u8>, id: &str, generation: u64, body: &str) {
    out.extend_from_slice(b"{\"_id\":");
    string(out, id);
    out.extend_from_slice(b",\"_rev\":");
    rev(out, &local_rev(generation));
    members(out, body);
    out.push(b'}');
}

fn members(out: &mut Vec<u8>, body: &str) {
    let members = &body[1..body.len() - 1];
    if !members.is_empty() {
        out.push(b',');
        out.extend_from_slice(members.as_bytes());
    }
}

fn attachment(out: &mut Vec<u8>, part: &Attachment, shown: &Shown) {
    string(out, &part.name);
    out.extend_from_slice(b":{\"content_type\":");
    string(out, &part.content_type);
    out.extend_from_slice(
        format!(
            ",\"revpos\":{},\"digest\":\"{}\",",
            part.revpos,
            part.digest()
        )
        .as_bytes(),
    );
    match shown.attachments {
        Attachments::Inline if shown.is_new(part) => {
            out.extend_from_slice(b"\"data\":\"");
            let plain = part.plain();
            let start = out.len();
            out.resize(start + plain.len().div_ceil(3) * 4, 0);
            let written = BASE64.encode_slice(&plain, &mut out[start..]);
            out.truncate(start + written.expect("the room was made for it"));
            out.push(b'"');
        }
        Attachments::Follow if shown.is_new(part) => {
            out.extend_from_slice(
                format!("\"length\":{},\"follows\":true", part.length).as_bytes(),
            );
        }
        _ => out.extend_from_slice(format!("\"length\":{},\"stub\":true", part.length).as_bytes()),
    }
    if shown.encoding && part.gzip {
        let length = part.data.len();
        out.extend_from_slice(
            format!(",\"encoding\":\"gzip\",\"encoded_length\":{length}").as_bytes(),
        );
    }
    out.push(b'}');
}

pub(crate) fn string(out: &mut Vec<u8>, text: &str) {
    if text
        .bytes()
        .all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\')
    {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        serde_json::to_writer(out, text).expect("writing a string to memory does not fail");
    }
}

/// Appends a displayed value as a JSON string.
pub(crate) fn quoted(out: &mut Vec<u8>, value: impl fmt::Display) {
    string(out, &value.to_string());
}

pub(crate) fn rev(out: &mut Vec<u8>, rev: &Rev) {
    match rev.id {
        RevId::Md5(_) => write!(out, "\"{rev}\"").expect("writing to memory does not fail"),
        RevId::Text(_) => quoted(out, rev),
    }
}

pub(crate) fn list<T>(out: &mut Vec<u8>, items: &[T], mut push: impl FnMut(&mut Vec<u8>, &T)) {
    out.push(b'[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        push(out, item);
    }
    out.push(b']');
}
