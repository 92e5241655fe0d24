//! Removing the rows of deleted databases in bounded transactions.
//!
//! The progress is in the store, so a sweep can be interrupted at any time, and several nodes can sweep
//! concurrently, at the cost of conflicts.

use store::{Call, KeyRange, RangeOptions, Transaction};

use crate::rows::decode_text;
use crate::{Db, DbName, DocStore, IdRange, WriteHook, keys};

/// The most documents in one transaction, each with a call of the hook.
const DOCUMENTS_MAX: u64 = 100;
/// The most other rows that one transaction removes, and the most bytes, approximately.
const ROWS_MAX: usize = 2000;
const BYTES_MAX: usize = 2_000_000;

/// The result of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swept {
    /// There is nothing to do.
    Nothing,
    /// Some rows of a deleted database were removed; there may be more.
    Some(Db),
    /// The last rows of a deleted database were removed.
    Last(Db),
}

impl DocStore {
    /// Removes some rows of a deleted database.
    pub async fn sweep<H: WriteHook>(&self, hook: &H) -> Result<Swept, H::Error> {
        let sweep = |tx: Transaction| async move {
            let tx = &tx;
            let rows = tx.get_range(keys::all_deleted(), RangeOptions::limit(1));
            let rows = rows.collect().await?;
            let Some(row) = rows.first() else {
                return Ok(Swept::Nothing);
            };
            let name = DbName::stored(decode_text(&row.value)?);
            let db = Db::new(name, keys::parse_deleted(&row.key)?);
            if self.drop_documents(tx, &db, hook).await? || clear_rows(tx, &db).await? {
                return Ok(Swept::Some(db));
            }
            tx.clear(&row.key);
            Ok(Swept::Last(db))
        };
        let call = Call::batch("sweep_databases");
        self.0.store.transact(call, sweep).await
    }

    /// Removes the next documents from the listing and calls the hook for them. False if there are none.
    async fn drop_documents<H: WriteHook>(
        &self,
        tx: &Transaction,
        db: &Db,
        hook: &H,
    ) -> Result<bool, H::Error> {
        let next = IdRange {
            limit: Some(DOCUMENTS_MAX),
            ..IdRange::default()
        };
        let next = next.page(tx, &db.keys.all_live(), |id, _| Ok(id)).await?;
        for id in &next.rows {
            if hook.watches(db, id) {
                hook.dropped(tx, db, id).await?;
            }
            tx.clear(&db.keys.live(id));
        }
        Ok(!next.rows.is_empty())
    }
}

/// Removes the next rows of a database. False if there are none.
async fn clear_rows(tx: &Transaction, db: &Db) -> Result<bool, store::Error> {
    let all = db.keys.all();
    // The rows of a deleted database are not written any more, so no conflict range is needed.
    let mut read = (tx.snapshot()).get_range(all.clone(), RangeOptions::limit(ROWS_MAX));
    let mut bytes = 0;
    let mut last = None;
    while let Some(page) = read.next_page().await? {
        bytes += page
            .iter()
            .map(|row| row.key.len() + row.value.len())
            .sum::<usize>();
        last = page.into_iter().next_back().or(last);
        if bytes >= BYTES_MAX {
            break;
        }
    }
    let Some(last) = last else {
        return Ok(false);
    };
    let mut end = last.key.to_vec();
    end.push(0);
    tx.clear_range(KeyRange::new(all.begin, end));
    Ok(true)
}
