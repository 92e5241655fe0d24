//! `_changes`: each document once, at the place of its newest write.
//!
//! A feed is read page by page, each in a transaction of its own. At its end, [`ChangesPage::rest`] is
//! `None`; a feed that stays open then [waits](crate::Listener) until there is something after
//! [`ChangesPage::last_seq`], and asks for the changes since that.

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

/// How many rows are looked at for a page.
const VISITS_MAX: usize = 1000;

/// Which changes to tell, and what of them.
#[derive(Clone, Debug, Default)]
pub struct ChangesQuery {
    /// Where to begin. A descending feed begins at the newest write, whatever this says.
    pub since: Since,
    /// From the newest write back to the first.
    pub descending: bool,
    /// Where a descending feed goes on: with what is older than this.
    pub before: Option<Seq>,
    /// How many to tell.
    pub limit: Option<u64>,
    /// All leaves of each document, and not only the winner: `style=all_docs`.
    pub all_leaves: bool,
    /// Whether to read the documents, and what of them.
    pub include_docs: Option<ReadOptions>,
    /// Which documents.
    pub filter: Filter,
}

#[derive(Clone, Debug)]
pub struct ChangesPage {
    pub rows: Vec<ChangeRow>,
    /// Up to where this page tells all there is to tell: what a client asks for the changes since. It
    /// may be later than the last row.
    pub last_seq: Seq,
    /// What to ask for next; `None` at the end of the feed, and when the limit is reached.
    pub rest: Option<ChangesQuery>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeRow {
    /// The newest write of the document.
    pub seq: Seq,
    /// The document.
    pub id: String,
    /// The winner, or all leaves, the winner first.
    pub revs: Vec<Rev>,
    pub deleted: bool,
    /// The document, when it was asked for.
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

/// A row of the index.
struct Visit {
    seq: Seq,
    id: String,
    winner: Winner,
}

impl DocStore {
    /// A page of changes. Documents go through `view` before a selector sees them, and before they are
    /// told: what a reader may not see cannot be asked for either.
    pub async fn changes_page_in<V: Fn(Document) -> Document + Sync>(
        &self,
        tx: &Transaction,
        db: &Db,
        query: &ChangesQuery,
        view: &V,
    ) -> Result<ChangesPage> {
        self.check_in(tx, db).await?;
        let newest = self.update_seq(tx, db).await?;
        let since = match query.since {
            // A sequence from the future is that of another life of this database: begin again.
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
            let told = batch.iter().map(|visit| tell(tx, db, query, view, visit));
            for (visit, row) in batch.iter().zip(try_join_all(told).await?) {
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

    /// A page of changes. Documents go through `view` before a selector sees them, and before they are
    /// told: what a reader may not see cannot be asked for either.
    pub async fn changes_page<V: Fn(Document) -> Document + Sync>(
        &self,
        db: &Db,
        query: &ChangesQuery,
        view: &V,
    ) -> Result<ChangesPage> {
        let read = |tx| async move { self.changes_page_in(&tx, db, query, view).await };
        self.0.store.transact("changes", read).await
    }

    /// How many changes there are after a sequence, counted one by one in transactions of bounded size.
    pub async fn changes_pending(&self, db: &Db, since: Seq) -> Result<u64> {
        let range = db.keys.changes(Some(since));
        self.count_rows("count_changes", db, range).await
    }
}

/// Reads rows of the index.
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

/// What there is to tell of a document; `None` if the filter leaves it out.
async fn tell<V: Fn(Document) -> Document + Sync>(
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
