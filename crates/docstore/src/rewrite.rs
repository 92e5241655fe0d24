//! Replacing stored bodies by equivalent ones, as when credentials are sealed with another key.
//!
//! Nothing else changes: revisions stay the same, changes feeds do not report it, and hooks are not called. Records keep the
//! length that a body had when it was written, so counters stay correct.

use store::{RangeOptions, Transaction};

use crate::rows::RecordRow;
use crate::{Db, DocStore, Error, Result, chunks, keys};

/// The most rows of records that one transaction reads.
const ROWS_MAX: usize = 200;
/// The most bytes of bodies that one transaction reads and writes, approximately. A larger body gets its own transaction.
const BYTES_MAX: usize = 2_000_000;

/// The progress of rewriting a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// The last document that was read; `None` before the first.
    pub after: Option<String>,
    pub done: bool,
    pub looked: u64,
    pub written: u64,
}

impl DocStore {
    /// Replaces bodies for which `rewrite` returns a new one, including those of deleted documents and conflicts, in a bounded
    /// number of documents after `after`. `rewrite` must return `None` for its own results.
    pub async fn rewrite_bodies_in(
        &self,
        tx: &Transaction,
        db: &Db,
        after: Option<&str>,
        rewrite: &(dyn Fn(&str, &str) -> Option<String> + Sync),
    ) -> Result<Rewritten> {
        self.check_in(tx, db).await?;
        let mut page = Rewritten {
            after: after.map(str::to_owned),
            ..Rewritten::default()
        };
        let (records, done) = records(tx, db, after).await?;
        let mut bytes = 0;
        for (id, value) in records {
            if bytes >= BYTES_MAX
                || !rewrite_in(tx, db, &id, &value, rewrite, &mut page, &mut bytes).await?
            {
                return Ok(page);
            }
            page.looked += 1;
            page.after = Some(id);
        }
        page.done = done;
        Ok(page)
    }
}

/// The next records, and whether they are the last. These reads add no conflict ranges.
async fn records(
    tx: &Transaction,
    db: &Db,
    after: Option<&str>,
) -> Result<(Vec<(String, Vec<u8>)>, bool)> {
    let table = db.keys.all_records();
    let mut range = keys::below(&table);
    if let Some(after) = after {
        range.begin = keys::below(&db.keys.record(after)).end;
    }
    let mut read = (tx.snapshot()).get_range(range, RangeOptions::limit(ROWS_MAX));
    let mut records: Vec<(String, Vec<u8>)> = Vec::new();
    let mut rows = 0;
    while let Some(row) = read.next().await? {
        rows += 1;
        let id = keys::parse_chunk(&table, &row.key)?;
        match records.last_mut() {
            Some((last, value)) if *last == id => value.extend_from_slice(&row.value),
            _ => records.push((id, row.value.to_vec())),
        }
    }
    let done = rows < ROWS_MAX;
    if !done && records.len() > 1 {
        // The last one may be incomplete.
        records.pop();
    }
    Ok((records, done))
}

/// Rewrites the bodies of a document. False if the transaction has no room for all of them.
async fn rewrite_in(
    tx: &Transaction,
    db: &Db,
    id: &str,
    record: &[u8],
    rewrite: &(dyn Fn(&str, &str) -> Option<String> + Sync),
    page: &mut Rewritten,
    bytes: &mut usize,
) -> Result<bool> {
    let row = RecordRow::decode(record)?;
    for leaf in row.tree.nodes().filter_map(|node| node.value) {
        let key = db.keys.part(id, leaf.part);
        let read = (tx.snapshot()).get_range(keys::below(&key), RangeOptions::default());
        let (body, rows) = chunks::read(read).await?;
        *bytes += body.len();
        let body = String::from_utf8(body).map_err(|_| Error::corrupt("a body is not text"))?;
        let Some(new) = rewrite(id, &body) else {
            continue;
        };
        if page.written > 0 && *bytes >= BYTES_MAX {
            return Ok(false);
        }
        // Conflict with any concurrent write of the document.
        tx.add_read_conflict_range(keys::below(&db.keys.record(id)));
        chunks::replace(tx, &key, new.as_bytes(), rows);
        page.written += 1;
    }
    Ok(true)
}
