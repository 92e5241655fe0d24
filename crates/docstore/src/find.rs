//! `_find`: documents that match a selector, by id. There are no indexes but that of ids.

mod fields;
mod query;

use futures::future::try_join_all;
use store::Transaction;

use crate::read::{BATCH, PAGE_BYTES, read_listed};
use crate::rows::Winner;
use crate::{Db, DocStore, Document, ReadOptions, Result};

pub use fields::Fields;
pub use query::FindQuery;

#[derive(Clone, Debug)]
pub struct FindPage {
    /// The documents, or the fields of them that were asked for, as JSON.
    pub docs: Vec<String>,
    /// What a client sends to go on after the documents so far; CouchDB says `nil` for none.
    pub bookmark: Option<String>,
    /// How many documents were looked at.
    pub examined: u64,
    /// What to ask for next; `None` at the end, and when the limit is reached.
    pub rest: Option<FindQuery>,
}

impl DocStore {
    /// A page of documents that match. They go through `view` before the selector sees them: what a
    /// reader may not see cannot be asked for either.
    pub async fn find_page_in<V: Fn(Document) -> Document + Sync>(
        &self,
        tx: &Transaction,
        db: &Db,
        query: &FindQuery,
        view: &V,
    ) -> Result<FindPage> {
        self.check_in(tx, db).await?;
        let table = db.keys.all_live();
        let listed = query.range.page(tx, &table, |id, value| {
            let (winner, _) = Winner::decode(value)?;
            Ok((id, winner))
        });
        let listed = listed.await?;
        let options = ReadOptions {
            conflicts: query.conflicts,
            ..ReadOptions::default()
        };
        let mut rest = query.clone();
        let mut docs = Vec::new();
        let mut examined = 0;
        let mut bytes = 0;
        let mut visited = 0;
        'page: for batch in listed.rows.chunks(BATCH) {
            if rest.limit == 0 || bytes >= PAGE_BYTES {
                break;
            }
            let wanted = batch.iter().filter(|(id, _)| !id.starts_with("_design/"));
            let read = wanted.map(|(id, winner)| read_listed(tx, db, id, winner, &options));
            let mut read = try_join_all(read).await?.into_iter().peekable();
            for (id, _) in batch {
                if rest.limit == 0 {
                    break 'page;
                }
                visited += 1;
                rest.range.after = Some(id.clone());
                let Some(document) = read.next_if(|document| document.id == *id) else {
                    continue;
                };
                examined += 1;
                bytes += document.bytes();
                let json = view(document).to_json();
                if !query.matcher.matches(json.clone()).await? {
                    continue;
                }
                if rest.skip > 0 {
                    rest.skip -= 1;
                    continue;
                }
                rest.limit -= 1;
                rest.last = Some(id.clone());
                docs.push(query.fields.of(json)?);
            }
        }
        let more = rest.limit > 0 && (visited < listed.rows.len() || listed.rest.is_some());
        Ok(FindPage {
            docs,
            bookmark: rest.bookmark(),
            examined,
            rest: more.then_some(rest),
        })
    }

    /// A page of documents that match. They go through `view` before the selector sees them: what a
    /// reader may not see cannot be asked for either.
    pub async fn find_page<V: Fn(Document) -> Document + Sync>(
        &self,
        db: &Db,
        query: &FindQuery,
        view: &V,
    ) -> Result<FindPage> {
        let find = |tx| async move { self.find_page_in(&tx, db, query, view).await };
        self.0.store.transact("find", find).await
    }
}
