//! `_all_docs`: the documents that are not deleted, by id.

use futures::future::try_join_all;
use store::{KeyRange, RangeOptions, Transaction};

use crate::database::Counter;
use crate::read::{BATCH, PAGE_BYTES, read_listed};
use crate::record::Record;
use crate::rows::Winner;
use crate::{Db, DocStore, Document, IdRange, ReadOptions, Result, Rev};

/// The most keys looked up for a page.
const KEYS_MAX: usize = 200;
/// The most rows that one transaction counts.
const COUNT_MAX: usize = 10_000;
/// The most rows before a listing that are counted.
pub(crate) const OFFSET_MAX: usize = 5_000;

/// Which documents to list, and what to return of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllDocsQuery {
    /// The ids to list; with `keys`, only `skip`, `limit` and `descending` apply.
    pub range: IdRange,
    /// List exactly these ids, in this order.
    pub keys: Option<Vec<String>>,
    pub include_docs: Option<ReadOptions>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllDocsPage {
    pub rows: Vec<AllDocsRow>,
    /// The query of the next page; `None` at the end.
    pub rest: Option<AllDocsQuery>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllDocsRow {
    /// The id of the document, or the key if there is no such document.
    pub id: String,
    /// `None` for a key without a document: `not_found`.
    pub value: Option<AllDocsValue>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllDocsValue {
    pub rev: Rev,
    /// Only listings by `keys` include deleted documents.
    pub deleted: bool,
    /// The document, if requested and not deleted.
    pub doc: Option<Document>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllDocsCounts {
    /// The number of documents in the database.
    pub total_rows: u64,
    /// The number of documents before the first row; `None` with `keys`, and if there are too many to count.
    pub offset: Option<u64>,
}

impl DocStore {
    pub async fn all_docs_page_in(
        &self,
        tx: &Transaction,
        db: &Db,
        query: &AllDocsQuery,
    ) -> Result<AllDocsPage> {
        self.check_in(tx, db).await?;
        if query.keys.is_some() {
            return keys_page(tx, db, query).await;
        }
        let table = db.keys.all_live();
        let page = query.range.page(tx, &table, |id, value| {
            let (winner, _) = Winner::decode(value)?;
            Ok((id, Some(winner)))
        });
        let page = page.await?;
        let listed = page.rows.len();
        let rows = read_rows(tx, db, page.rows, query.include_docs.as_ref()).await?;
        let rest = match rows.last() {
            // The documents filled the page before the last row.
            Some(last) if rows.len() < listed => query.range.resume(&last.id, rows.len()),
            _ => page.rest,
        };
        let rest = rest.map(|range| AllDocsQuery {
            range,
            ..query.clone()
        });
        Ok(AllDocsPage { rows, rest })
    }

    pub async fn all_docs_page(&self, db: &Db, query: &AllDocsQuery) -> Result<AllDocsPage> {
        let list = |tx| async move { self.all_docs_page_in(&tx, db, query).await };
        self.0.store.transact("all_docs", list).await
    }

    /// Counts the documents of a listing. If it begins at a key, the rows before it are counted one by one,
    /// up to 5,000 to bound the cost in a large database.
    pub async fn all_docs_counts(&self, db: &Db, query: &AllDocsQuery) -> Result<AllDocsCounts> {
        let count = |tx: Transaction| async move {
            self.check_in(&tx, db).await?;
            self.count(&tx, db, Counter::Documents).await
        };
        let total_rows = self.0.store.transact("count_documents", count).await?;
        let offset = if query.keys.is_some() {
            None
        } else {
            let before = query.range.keys_before(&db.keys.all_live());
            let before = self.count_before(db, &before).await?;
            before.map(|before| total_rows.min(before.saturating_add(query.range.skip)))
        };
        Ok(AllDocsCounts { total_rows, offset })
    }

    /// The number of rows in a range, unless there are too many.
    async fn count_before(&self, db: &Db, range: &KeyRange) -> Result<Option<u64>> {
        let count = |tx: Transaction| async move {
            self.check_in(&tx, db).await?;
            let options = RangeOptions::limit(OFFSET_MAX + 1);
            let mut read = tx.snapshot().get_range(range.clone(), options);
            let mut count = 0;
            while let Some(rows) = read.next_page().await? {
                count += rows.len();
            }
            Ok::<_, crate::Error>(count)
        };
        let count = self.0.store.transact("count_offset", count).await?;
        Ok((count <= OFFSET_MAX).then_some(count as u64))
    }

    /// Counts rows, in transactions of bounded size.
    pub(crate) async fn count_rows(
        &self,
        name: &'static str,
        db: &Db,
        range: KeyRange,
    ) -> Result<u64> {
        let mut count = 0;
        let mut rest = Some(range);
        while let Some(range) = rest.take() {
            let range = &range;
            let page = |tx: Transaction| async move {
                self.check_in(&tx, db).await?;
                let mut read = tx.get_range(range.clone(), RangeOptions::limit(COUNT_MAX));
                let mut page = (0, None);
                while let Some(rows) = read.next_page().await? {
                    page = (page.0 + rows.len(), rows.into_iter().next_back());
                }
                Ok::<_, crate::Error>(page)
            };
            let (rows, last) = self.0.store.transact(name, page).await?;
            count += rows as u64;
            if let Some(last) = last.filter(|_| rows == COUNT_MAX) {
                let mut begin = last.key.to_vec();
                begin.push(0);
                rest = Some(KeyRange::new(begin, range.end.clone()));
            }
        }
        Ok(count)
    }
}

async fn keys_page(tx: &Transaction, db: &Db, query: &AllDocsQuery) -> Result<AllDocsPage> {
    let mut keys = query.keys.clone().unwrap_or_default();
    let IdRange {
        descending,
        skip,
        limit,
        ..
    } = query.range;
    if descending {
        keys.reverse();
    }
    let clamp = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    keys.drain(..clamp(skip).min(keys.len()));
    keys.truncate(limit.map_or(usize::MAX, clamp));
    let mut found = Vec::new();
    for batch in keys[..keys.len().min(KEYS_MAX)].chunks(BATCH) {
        let winners = try_join_all(batch.iter().map(|id| find(tx, db, id))).await?;
        found.extend(batch.iter().cloned().zip(winners));
    }
    let rows = read_rows(tx, db, found, query.include_docs.as_ref()).await?;
    let rest = keys.split_off(rows.len());
    let rest = (!rest.is_empty()).then(|| AllDocsQuery {
        range: IdRange::default(),
        keys: Some(rest),
        include_docs: query.include_docs.clone(),
    });
    Ok(AllDocsPage { rows, rest })
}

/// The winner of a document, deleted or not.
async fn find(tx: &Transaction, db: &Db, id: &str) -> Result<Option<Winner>> {
    if !crate::edit::fits_a_key(id) {
        return Ok(None);
    }
    match tx.get(&db.keys.live(id)).await? {
        Some(value) => Winner::decode(&value).map(|(winner, _)| Some(winner)),
        None => Record::load(tx, db, id).await?.winner(),
    }
}

/// Reads documents where they were asked for, until the page is full.
async fn read_rows(
    tx: &Transaction,
    db: &Db,
    listed: Vec<(String, Option<Winner>)>,
    options: Option<&ReadOptions>,
) -> Result<Vec<AllDocsRow>> {
    let mut rows = Vec::with_capacity(listed.len());
    let mut bytes = 0;
    for batch in listed.chunks(BATCH) {
        if bytes >= PAGE_BYTES {
            break;
        }
        let read = batch.iter().map(|(id, winner)| async move {
            match (winner, options) {
                (Some(winner), Some(options)) if !winner.deleted => {
                    read_listed(tx, db, id, winner, options).await.map(Some)
                }
                _ => Ok::<_, crate::Error>(None),
            }
        });
        for ((id, winner), doc) in batch.iter().zip(try_join_all(read).await?) {
            bytes += doc.as_ref().map_or(0, Document::bytes);
            rows.push(AllDocsRow {
                id: id.clone(),
                value: winner.as_ref().map(|winner| AllDocsValue {
                    rev: winner.rev.clone(),
                    deleted: winner.deleted,
                    doc,
                }),
            });
        }
    }
    Ok(rows)
}
