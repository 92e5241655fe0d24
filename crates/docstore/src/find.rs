//! `_find`: documents that match a selector, in the order of ids, which are the only index.

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
    /// The documents, or their requested fields, as JSON.
    pub docs: Vec<String>,
    /// Continues after the documents so far; `nil` in CouchDB if there are none.
    pub bookmark: Option<String>,
    /// How many documents were compared with the selector.
    pub examined: u64,
    /// The query of the next page; `None` at the end and at the limit.
    pub rest: Option<FindQuery>,
}

impl DocStore {
    async fn find_page_in<V: Fn(Document) -> Document + Sync>(
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
                docs.push(query.fields.take(json)?);
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

    /// A page of documents that match. `view` is applied before the selector, so that a selector cannot
    /// probe what the reader may not see.
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
