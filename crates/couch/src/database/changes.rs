//! `_changes`: what happened in a database, as a stream.

mod request;

use std::borrow::Cow;
use std::collections::HashSet;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use wire::FeedKind;

use super::handle::Database;
use crate::document::Document;
use crate::error::Error;
use crate::feed::Feed;
use crate::peer::Reply;
use crate::types::{DocId, Rev, Seq};
use request::{filtered_call, unfiltered_call};

pub use request::{ChangesFilter, ChangesRequest};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The document; empty in databases that were damaged by old versions.
    pub id: DocId,
    /// The sequence, which [may be null](Seq::is_null).
    pub seq: Seq,
    pub revs: Vec<Rev>,
    /// Whether the winner is deleted.
    pub deleted: bool,
    /// The winning document, if it was asked for and is one.
    pub document: Option<Document>,
}

pub struct Changes {
    feed: Feed,
    kind: FeedKind,
    /// Documents to pass on if the server cannot filter.
    only: Option<HashSet<DocId>>,
    last_seq: Option<Seq>,
    pending: Option<u64>,
    is_done: bool,
}

#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow)]
    seq: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    changes: Vec<RowRev<'a>>,
    #[serde(default)]
    deleted: bool,
    #[serde(default)]
    removed: bool,
    #[serde(borrow)]
    doc: Option<&'a RawValue>,
    last_seq: Option<Seq>,
    pending: Option<u64>,
    error: Option<String>,
    reason: Option<String>,
    /// Only there if the server does not support this kind of feed and answers with a normal one.
    results: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct RowRev<'a> {
    #[serde(borrow)]
    rev: Cow<'a, str>,
}

#[derive(Deserialize)]
struct End {
    last_seq: Option<Seq>,
    pending: Option<u64>,
}

impl Database {
    /// Opens a feed. A server too old for `_doc_ids` is asked for everything, and filtered here.
    pub async fn changes(&self, request: &ChangesRequest) -> Result<Changes, Error> {
        let reply = Box::pin(self.peer.send(&filtered_call(request))).await?;
        match &request.filter {
            ChangesFilter::DocIds(ids) if reply.status == 405 => {
                drop(reply);
                let reply = self.peer.send(&unfiltered_call(request)).await?;
                let mut changes = Changes::new(reply.success().await?, request.feed);
                changes.only = Some(ids.iter().cloned().collect());
                Ok(changes)
            }
            _ => Ok(Changes::new(reply.success().await?, request.feed)),
        }
    }
}

impl Changes {
    fn new(reply: Reply, kind: FeedKind) -> Self {
        let feed = Feed::new(reply, kind.into());
        Self {
            feed,
            kind,
            only: None,
            last_seq: None,
            pending: None,
            is_done: false,
        }
    }

    /// The next change, `None` at the end of the feed. May be cancelled and called again.
    ///
    /// [`Error::Interrupted`] says that the feed broke off: open it again after the last row. A
    /// continuous feed that ends without [`Changes::last_seq`] was closed by its server.
    pub async fn next(&mut self) -> Result<Option<Change>, Error> {
        if self.is_done {
            return Ok(None);
        }
        let next = self.read_next().await;
        // Nothing comes after the end, nor after an error.
        self.is_done |= !matches!(next, Ok(Some(_)));
        next
    }

    async fn read_next(&mut self) -> Result<Option<Change>, Error> {
        while !self.is_done {
            let Some(row) = self.feed.next_row().await? else {
                if self.kind.is_object() {
                    let end: End = self.feed.envelope()?;
                    (self.last_seq, self.pending) = (end.last_seq, end.pending);
                }
                return Ok(None);
            };
            if let Some(change) = self.read(&row)? {
                return Ok(Some(change));
            }
        }
        Ok(None)
    }

    /// The sequence at the end of the feed: all changes up to it were sent.
    pub fn last_seq(&self) -> Option<&Seq> {
        self.last_seq.as_ref()
    }

    /// How many changes were left then, if the server sends it.
    pub fn pending(&self) -> Option<u64> {
        self.pending
    }

    fn read(&mut self, bytes: &Bytes) -> Result<Option<Change>, Error> {
        let row: Row<'_> = match serde_json::from_slice(bytes) {
            Ok(row) => row,
            Err(error) => return Err(self.feed.bad_row(&error)),
        };
        let Some(id) = row.id else {
            return self.read_other(row);
        };
        let id = DocId::new(id.into_owned());
        if self.only.as_ref().is_some_and(|only| !only.contains(&id)) {
            return Ok(None);
        }
        // One malformed document must not block the others: it can be fetched separately.
        let document = row
            .doc
            .filter(|raw| raw.get() != "null")
            .and_then(|raw| Document::parse(bytes.slice_ref(raw.get().as_bytes())).ok());
        let revs = row
            .changes
            .into_iter()
            .map(|change| Rev::new(change.rev.into_owned()));
        Ok(Some(Change {
            id,
            seq: row.seq.map_or_else(Seq::null, Seq::from_raw),
            // Access to the first revision was revoked.
            revs: revs.skip(usize::from(row.removed)).collect(),
            deleted: row.deleted,
            document,
        }))
    }

    /// A row that is not a change: the end of a continuous feed, or an error in the middle of one.
    fn read_other(&mut self, row: Row<'_>) -> Result<Option<Change>, Error> {
        if row.results.is_some() {
            return Err(self.feed.bad("it is another kind of feed"));
        }
        if row.last_seq.is_some() {
            (self.last_seq, self.pending) = (row.last_seq, row.pending);
            self.is_done = true;
            return Ok(None);
        }
        Err(match (row.error, row.reason) {
            (None, _) => self.feed.bad("a row without an id"),
            (Some(error), reason) => {
                let said = format!("{error}: {}", reason.unwrap_or_default());
                self.feed.reported(&said)
            }
        })
    }
}
