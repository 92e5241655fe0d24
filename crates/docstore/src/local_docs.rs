//! `_local` documents: they have no history and are in no listing or feed.
//!
//! As in CouchDB, the last write wins, and its revision is the one sent plus one.

use document::rev::{Rev, RevId};
use store::{RangeOptions, Transaction};

use crate::error::INVALID_REV;
use crate::{Db, DocStore, Document, Edit, Error, Meta, Result, chunks, keys, rows};

impl DocStore {
    /// Reads a `_local` document; `id` includes `_local/`.
    pub async fn local_doc(&self, db: &Db, id: &str) -> Result<Document> {
        let read = |tx: Transaction| async move {
            let tx = &tx;
            self.check_in(tx, db).await?;
            if !crate::edit::fits_a_key(id) {
                return Err(Error::Missing);
            }
            let range = keys::below(&db.keys.local(id));
            let (value, _) = chunks::read(tx.get_range(range, RangeOptions::default())).await?;
            if value.is_empty() {
                return Err(Error::Missing);
            }
            let (number, body) = rows::decode_local(&value)?;
            Ok(Document {
                id: id.to_owned(),
                rev: local_rev(number),
                deleted: false,
                body,
                attachments: Vec::new(),
                meta: Meta::default(),
            })
        };
        self.0.store.transact("read_local_document", read).await
    }
}

/// Writes or removes a `_local` document.
pub(crate) async fn write_in(tx: &Transaction, db: &Db, edit: &Edit) -> Result<Rev> {
    let key = db.keys.local(&edit.id);
    let mut rows = tx.get_range(keys::below(&key), RangeOptions::limit(1));
    let exists = rows.next().await?.is_some();
    if edit.deleted {
        // An earlier attempt may have removed it.
        if !exists && !tx.maybe_committed() {
            return Err(Error::Missing);
        }
        tx.clear_range(keys::below(&key));
        return Ok(local_rev(0));
    }
    let number = match edit.rev() {
        None => 0,
        Some(Rev { generation: 0, id }) => parse_number(&id).ok_or(INVALID_REV)?,
        Some(_) => return Err(INVALID_REV.into()),
    };
    let number = number.checked_add(1).ok_or(INVALID_REV)?;
    tx.clear_range(keys::below(&key));
    chunks::write(tx, &key, &rows::encode_local(number, edit.stored_body()));
    Ok(local_rev(number))
}

fn parse_number(id: &RevId) -> Option<u64> {
    std::str::from_utf8(id.as_bytes()).ok()?.parse().ok()
}

fn local_rev(number: u64) -> Rev {
    Rev {
        generation: 0,
        id: RevId::Text(number.to_string().into()),
    }
}
