//! `_all_docs` by keys: the winners of documents with all attachments, which costs a server less than `_bulk_get`.

use http::Method;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::handle::Database;
use crate::document::Document;
use crate::error::Error;
use crate::feed::Feed;
use crate::payload::Payload;
use crate::peer::Call;
use crate::rows::Layout;
use crate::types::DocId;

/// A stream of documents; those that are deleted or do not exist are left out.
pub struct Winners {
    feed: Feed,
}

#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow)]
    doc: Option<&'a RawValue>,
}

impl Database {
    /// Fetches winners with their attachments inline, and without their histories.
    pub async fn winners(&self, ids: &[&DocId]) -> Result<Winners, Error> {
        let call = Call::new(Method::POST, "_all_docs")
            .param("include_docs", "true")
            .param("attachments", "true")
            .json(Payload::Bytes(json!({ "keys": ids }).to_string().into()))
            .stream();
        let reply = self.peer.send(&call).await?.success().await?;
        Ok(Winners {
            feed: Feed::new(reply, Layout::Member("rows")),
        })
    }
}

impl Winners {
    /// The next document, `None` at the end. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Document>, Error> {
        while let Some(row) = self.feed.next_row().await? {
            let parsed: Row<'_> = match serde_json::from_slice(&row) {
                Ok(parsed) => parsed,
                Err(error) => return Err(self.feed.bad_row(&error)),
            };
            let Some(raw) = parsed.doc.filter(|raw| raw.get() != "null") else {
                continue;
            };
            return match Document::parse(row.slice_ref(raw.get().as_bytes())) {
                Ok(document) => Ok(Some(document)),
                Err(error) => Err(self.feed.bad_row(&error)),
            };
        }
        Ok(None)
    }
}
