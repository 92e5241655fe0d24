//! Stored documents: records, and the parts with bodies and attachments.

use std::collections::BTreeMap;

use bytes::Bytes;
use document::rev::Rev;
use document::revtree::{Node, RevTree};
use store::{RangeOptions, Transaction};

use crate::rows::{Leaf, Mark, RecordRow, Winner};
use crate::{Attachment, Db, Document, Error, Meta, Result, chunks, keys};

/// The record of a document; empty if there is none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) mark: Option<Mark>,
    pub(crate) next_part: u64,
    pub(crate) tree: RevTree<Leaf>,
    pub(crate) chunks: usize,
}

impl Record {
    pub(crate) async fn load(tx: &Transaction, db: &Db, id: &str) -> Result<Self> {
        let range = keys::below(&db.keys.record(id));
        let (value, chunks) = chunks::read(tx.get_range(range, RangeOptions::default())).await?;
        if value.is_empty() {
            return Ok(Self::default());
        }
        let row = RecordRow::decode(&value)?;
        Ok(Self {
            mark: Some(row.mark),
            next_part: row.next_part,
            tree: row.tree,
            chunks,
        })
    }

    /// The row for listings; `None` for an empty record.
    pub(crate) fn winner(&self) -> Result<Option<Winner>> {
        let Some(winner) = self.tree.winner() else {
            return Ok(None);
        };
        let leaf = leaf(winner)?;
        Ok(Some(Winner {
            rev: winner.rev.clone(),
            deleted: winner.deleted,
            branched: self.tree.leaves().len() > 1,
            attachments: !leaf.attachments.is_empty(),
            part: leaf.part,
        }))
    }

    /// The parts of all leaves and their sizes.
    pub(crate) fn parts(&self) -> BTreeMap<u64, u64> {
        let leaves = self.tree.nodes().filter_map(|node| node.value);
        leaves
            .flat_map(|leaf| {
                let attachments = leaf.attachments.iter();
                let attachments = attachments.map(|attachment| (attachment.part, attachment.bytes));
                attachments.chain([(leaf.part, leaf.bytes)])
            })
            .collect()
    }
}

pub(crate) fn leaf(node: Node<'_, Leaf>) -> Result<&Leaf> {
    node.value
        .ok_or_else(|| Error::corrupt("a leaf without body"))
}

/// The document of a leaf, without metadata and with attachments as stubs.
pub(crate) fn document(id: &str, rev: &Rev, deleted: bool, leaf: &Leaf, body: String) -> Document {
    let attachments = leaf.attachments.iter().map(|row| Attachment {
        name: row.name.clone(),
        content_type: row.content_type.clone(),
        md5: row.md5,
        bytes: row.bytes,
        revpos: row.revpos,
        data: None,
    });
    Document {
        id: id.to_owned(),
        rev: rev.clone(),
        deleted,
        body,
        attachments: attachments.collect(),
        meta: Meta::default(),
    }
}

pub(crate) async fn body(tx: &Transaction, db: &Db, id: &str, part: u64) -> Result<String> {
    let bytes = read_part(tx, db, id, part).await?;
    if bytes.is_empty() {
        return Err(Error::corrupt("a body is missing"));
    }
    String::from_utf8(bytes).map_err(|_| Error::corrupt("a body is not text"))
}

/// Reads the bytes of an attachment.
pub(crate) async fn attachment(
    tx: &Transaction,
    db: &Db,
    id: &str,
    part: u64,
    bytes: u64,
) -> Result<Bytes> {
    let data = read_part(tx, db, id, part).await?;
    if data.len() as u64 != bytes {
        return Err(Error::corrupt("an attachment has the wrong length"));
    }
    Ok(data.into())
}

async fn read_part(tx: &Transaction, db: &Db, id: &str, part: u64) -> Result<Vec<u8>> {
    let range = keys::below(&db.keys.part(id, part));
    let (bytes, _) = chunks::read(tx.get_range(range, RangeOptions::default())).await?;
    Ok(bytes)
}
