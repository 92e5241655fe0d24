//! Ids of new revisions.
//!
//! The id of an edit is the MD5 of `[Deleted, OldStart, OldRev, Body, Attachments]` in Erlang's external term format,
//! so two servers that make the same edit of the same revision make the same revision, and no conflict. The ids equal
//! CouchDB's, with one exception that it has as well: attachments count by the digest of their *stored* form, which for
//! compressed ones depends on the compressor.

use md5::{Digest, Md5};

use crate::etf::Encoder;
use crate::rev::{Rev, RevId};

/// The properties of an attachment that a revision id depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment<'a> {
    pub name: &'a str,
    pub content_type: &'a str,
    /// MD5 of its bytes as stored: compressed ones are hashed compressed.
    pub md5: [u8; 16],
}

/// Computes the id of the edit that replaces `parent` (`None` for a new document) by `body`: the JSON object without
/// `_id`, `_rev`, `_deleted`, `_attachments` and the like. `attachments` are in the order of the document.
pub fn new_rev<'a, I>(parent: Option<&Rev>, deleted: bool, body: &str, attachments: I) -> Rev
where
    I: IntoIterator<Item = Attachment<'a>, IntoIter: DoubleEndedIterator + ExactSizeIterator>,
{
    let generation = parent.map_or(0, |parent| parent.generation) + 1;
    Rev {
        generation,
        id: RevId::Md5(Md5::digest(term(parent, deleted, body, attachments)).into()),
    }
}

fn term<'a, I>(parent: Option<&Rev>, deleted: bool, body: &str, attachments: I) -> Vec<u8>
where
    I: IntoIterator<Item = Attachment<'a>, IntoIter: DoubleEndedIterator + ExactSizeIterator>,
{
    let mut term = Encoder::new();
    term.list(5);
    term.bool(deleted);
    term.integer(parent.map_or(0, |parent| parent.generation).into());
    match parent {
        Some(parent) => term.binary(parent.id.as_bytes()),
        None => term.integer(0),
    }
    term.json(body);
    let attachments = attachments.into_iter();
    match u32::try_from(attachments.len()).expect("a document has fewer than 2^32 attachments") {
        0 => {}
        count => term.list(count),
    }
    for attachment in attachments.rev() {
        term.tuple(3);
        term.binary(attachment.name.as_bytes());
        term.binary(attachment.content_type.as_bytes());
        term.binary(&attachment.md5);
    }
    term.nil();
    term.nil();
    term.finish()
}

#[cfg(test)]
mod tests;
