//! `_changes`: each document once, in the order of newest writes.
//!
//! A feed is read page by page, each in a transaction of its own. At its end, [`ChangesPage::rest`] is
//! `None`; a continuous feed then [waits](crate::Listener) for a write after
//! [`ChangesPage::last_seq`] and reads the changes since that.

mod filter;
mod wait;

use document::doc::push_string;
use futures::future::try_join_all;
use store::{RangeOptions, Transaction};

use crate::read::{BATCH, PAGE_BYTES, leaf_revs, read_leaves, read_listed};
use crate::rows::Winner;
use crate::{Db, DocStore, Document, ReadOptions, Result, Rev, Seq, Since};

pub use filter::Filter;
pub use wait::Listener;
pub(crate) use wait::Waits;

/// The most rows read for a page.
const VISITS_MAX: usize = 1000;

/// Which changes to list, and what to return of them.
#[derive(Clone, Debug, Default)]
pub struct ChangesQuery {
    /// Where to begin. Ignored by descending feeds, which begin at the newest write.
    pub since: Since,
    /// From the newest write to the first.
    pub descending: bool,
    /// On later pages of a descending feed: only older writes.
    pub before: Option<Seq>,
    pub limit: Option<u64>,
    /// All leaves of each document instead of only the winner: `style=all_docs`.
    pub all_leaves: bool,
    pub include_docs: Option<ReadOptions>,
    pub filter: Filter,
}

#[derive(Clone, Debug)]
pub struct ChangesPage {
    pub rows: Vec<ChangeRow>,
    /// The page is complete up to this sequence, which may be after the last row.
    pub last_seq: Seq,
    /// The query of the next page; `None` at the end of the feed and at the limit.
    pub rest: Option<ChangesQuery>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeRow {
    /// The sequence of the document's newest write.
    pub seq: Seq,
    pub id: String,
    /// The winner, or all leaves, the winner first.
    pub revs: Vec<Rev>,
    pub deleted: bool,
    pub doc: Option<Document>,
}

impl ChangeRow {
    /// The row as CouchDB writes it, on one line.
    pub fn to_json(&self) -> String {
        let mut json = format!("{{\"seq\":\"{}\",\"id\":", self.seq);
        push_string(&mut json, &self.id);
        json.push_str(",\"changes\":[");
        for (index, rev) in self.revs.iter().enumerate() {
            json.push_str(if index == 0 {
                "{\"rev\":"
            } else {
                ",{\"rev\":"
            });
            push_string(&mut json, &rev.to_string());
            json.push('}');
        }
        json.push(']');
        if self.deleted {
            json.push_str(",\"deleted\":true");
        }
        if let Some(doc) = &self.doc {
            json.push_str(",\"doc\":");
            json.push_str(&doc.to_json());
        }
        json.push('}');
        json
    }
}

struct Visit {
    seq: Seq,
    id: String,
    winner: Winner,
}

impl DocStore {
    async fn changes_page_in<V: Fn(Document) -> Document + Sync>(
        &self,
        tx: &Transaction,
        db: &Db,
        query: &ChangesQuery,
        view: &V,
    ) -> Result<ChangesPage> {
        self.check_in(tx, db).await?;
        let newest = self.update_seq(tx, db).await?;
        let since = match query.since {
            // A higher sequence is from another database of this name: start at the beginning.
            Since::Seq(seq) if seq > newest => Seq::ZERO,
            Since::Seq(seq) => seq,
            Since::Now => newest,
        };
        let visits = visit(tx, db, query, since).await?;
        let at_end = visits.len() < VISITS_MAX;
        let mut left = query.limit.unwrap_or(u64::MAX);
        let mut page = ChangesPage {
            rows: Vec::new(),
            last_seq: if query.descending { newest } else { since },
            rest: None,
        };
        let mut bytes = 0;
        let mut visits = visits.into_iter().peekable();
        while left > 0 && visits.peek().is_some() && bytes < PAGE_BYTES {
            let batch = usize::try_from(left).map_or(BATCH, |left| left.min(BATCH));
            let batch: Vec<_> = visits.by_ref().take(batch).collect();
            let rows = batch.iter().map(|visit| row(tx, db, query, view, visit));
            for (visit, row) in batch.iter().zip(try_join_all(rows).await?) {
                page.last_seq = visit.seq;
                if let Some(row) = row {
                    bytes += row.doc.as_ref().map_or(0, Document::bytes);
                    page.rows.push(row);
                    left -= 1;
                }
            }
        }
        if left == 0 {
            return Ok(page);
        }
        if at_end && visits.peek().is_none() {
            if !query.descending {
                page.last_seq = newest;
            }
            return Ok(page);
        }
        page.rest = Some(ChangesQuery {
            since: page.last_seq.into(),
            before: Some(page.last_seq),
            limit: query.limit.map(|_| left),
            ..query.clone()
        });
        Ok(page)
    }

    /// A page of changes. `view` is applied to documents before selectors and before they are returned,
    /// so that selectors cannot probe what the reader may not see.
    pub async fn changes_page<V: Fn(Document) -> Document + Sync>(
        &self,
        db: &Db,
        query: &ChangesQuery,
        view: &V,
    ) -> Result<ChangesPage> {
        let read = |tx| async move { self.changes_page_in(&tx, db, query, view).await };
        self.0.store.transact("changes", read).await
    }

    /// The number of changes after a sequence, counted one by one in transactions of bounded size.
    pub async fn changes_pending(&self, db: &Db, since: Seq) -> Result<u64> {
        let range = db.keys.changes(Some(since));
        self.count_rows("count_changes", db, range).await
    }
}

async fn visit(tx: &Transaction, db: &Db, query: &ChangesQuery, since: Seq) -> Result<Vec<Visit>> {
    let mut range = db.keys.changes((!query.descending).then_some(since));
    if let Some(before) = query.before.filter(|_| query.descending) {
        range.end = db.keys.change(before).into();
    }
    let options = RangeOptions {
        limit: Some(VISITS_MAX),
        reverse: query.descending,
    };
    let rows = tx.get_range(range, options).collect().await?;
    let visits = rows.into_iter().map(|row| {
        let (winner, id) = Winner::decode_change(&row.value)?;
        let seq = db.keys.parse_change(&row.key)?;
        Ok(Visit { seq, id, winner })
    });
    visits.collect()
}

/// The row of a document; `None` if the filter rejects it.
async fn row<V: Fn(Document) -> Document + Sync>(
    tx: &Transaction,
    db: &Db,
    query: &ChangesQuery,
    view: &V,
    visit: &Visit,
) -> Result<Option<ChangeRow>> {
    let Visit { seq, id, winner } = visit;
    if !query.filter.takes_id(id) {
        return Ok(None);
    }
    let branches = query.all_leaves && winner.branched;
    let revs = match &query.filter {
        Filter::Selector(matcher) => {
            let documents = if branches {
                read_leaves(tx, db, id).await?
            } else {
                vec![read_listed(tx, db, id, winner, &ReadOptions::default()).await?]
            };
            let mut taken = Vec::new();
            for document in documents {
                let rev = document.rev.clone();
                if matcher.matches(view(document).to_json()).await? {
                    taken.push(rev);
                }
            }
            taken
        }
        _ if branches => leaf_revs(tx, db, id).await?,
        _ => vec![winner.rev.clone()],
    };
    if revs.is_empty() {
        return Ok(None);
    }
    let doc = match &query.include_docs {
        Some(options) => Some(view(read_listed(tx, db, id, winner, options).await?)),
        None => None,
    };
    Ok(Some(ChangeRow {
        seq: *seq,
        id: id.clone(),
        revs,
        deleted: winner.deleted,
        doc,
    }))
}
