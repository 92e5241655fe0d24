//! `_bulk_get`: many documents in one response.

use std::borrow::Cow;
use std::collections::VecDeque;

use bytes::Bytes;
use http::{Method, header};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::handle::Database;
use super::writes::DocError;
use crate::document::Document;
use crate::error::Error;
use crate::feed::Feed;
use crate::payload::Payload;
use crate::peer::{Call, Reply};
use crate::rows::Layout;
use crate::types::{DocId, Rev};

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct WantedRev {
    pub id: DocId,
    /// The revision; a newer one on the same branch will do. `None` is for all leaves, which some
    /// servers take for the winner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rev: Option<Rev>,
    /// Revisions whose attachments need not be sent again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub atts_since: Vec<Rev>,
}

/// The result for one wanted revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetched {
    /// The index of the wanted revision.
    pub index: usize,
    pub result: Result<Document, DocError>,
}

/// A stream of fetched documents in the order of the request. A response in
/// another order is an error, and the rest is to be fetched in another way.
pub struct BulkGet {
    feed: Feed,
    /// The wanted ids, and whether all their leaves are wanted.
    wanted: Vec<(DocId, bool)>,
    next: usize,
    /// Documents of the current row that are not returned yet.
    ready: VecDeque<Fetched>,
}

#[derive(Serialize)]
struct Body<'a> {
    docs: &'a [WantedRev],
    latest: bool,
    revs: bool,
    attachments: bool,
}

#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    docs: Vec<RowDoc<'a>>,
}

#[derive(Deserialize)]
struct RowDoc<'a> {
    #[serde(borrow)]
    ok: Option<&'a RawValue>,
    error: Option<DocError>,
}

impl Database {
    /// Fetches revisions as JSON. With `attachments`, those come inline; without, as stubs. A
    /// response other than 200 also ends the connection, as old servers leave the request unread.
    pub async fn bulk_get(
        &self,
        wanted: &[WantedRev],
        attachments: bool,
    ) -> Result<BulkGet, Error> {
        let call = bulk_get_call(wanted, attachments)?;
        let reply = success(self.peer.send(&call).await?).await?;
        Ok(BulkGet {
            feed: Feed::new(reply, Layout::Member("results")),
            wanted: (wanted.iter())
                .map(|wanted| (wanted.id.clone(), wanted.rev.is_none()))
                .collect(),
            next: 0,
            ready: VecDeque::new(),
        })
    }
}

fn bulk_get_call(docs: &[WantedRev], attachments: bool) -> Result<Call, Error> {
    let body = Body {
        docs,
        latest: true,
        revs: true,
        attachments,
    };
    let json = serde_json::to_vec(&body)
        .map_err(|error| Error::Config(format!("revisions are no JSON: {error}")))?;
    Ok(Call::new(Method::POST, "_bulk_get")
        .param("latest", "true")
        .param("revs", "true")
        // Makes stubs include the encoding of compressed attachments.
        .param("att_encoding_info", "true")
        .param("attachments", if attachments { "true" } else { "false" })
        .header(header::ACCEPT, "application/json")
        .json(Payload::Bytes(json.into()))
        .stream())
}

async fn success(reply: Reply) -> Result<Reply, Error> {
    if reply.status != 200 {
        reply.close();
    }
    reply.success().await
}

impl BulkGet {
    /// The next document, `None` at the end. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Fetched>, Error> {
        let next = self.read_next().await;
        if next.is_err() {
            // Nothing is read after an error.
            self.next = self.wanted.len();
            self.ready.clear();
        }
        next
    }

    async fn read_next(&mut self) -> Result<Option<Fetched>, Error> {
        loop {
            if let Some(fetched) = self.ready.pop_front() {
                return Ok(Some(fetched));
            }
            match self.feed.next_row().await? {
                Some(row) => self.read(&row)?,
                None if self.next == self.wanted.len() => return Ok(None),
                None => {
                    let problem = format!("{} of {} results", self.next, self.wanted.len());
                    return Err(self.feed.bad(problem));
                }
            }
        }
    }

    /// Most servers send a row per wanted revision, some one per document.
    fn read(&mut self, row: &Bytes) -> Result<(), Error> {
        let parsed: Row<'_> = match serde_json::from_slice(row) {
            Ok(parsed) => parsed,
            Err(error) => return Err(self.feed.bad_row(&error)),
        };
        let all_leaves = self.wanted.get(self.next).is_some_and(|(_, all)| *all);
        let count = if all_leaves { 1 } else { parsed.docs.len() };
        let next = self
            .wanted
            .get(self.next..self.next + count)
            .unwrap_or_default();
        if next.is_empty() || next.iter().any(|(id, _)| id.as_str() != parsed.id) {
            return Err(self.feed.bad("results in another order than wanted"));
        }
        let first = self.next;
        self.next += count;
        for (place, doc) in parsed.docs.into_iter().enumerate() {
            let result = match doc {
                RowDoc { ok: Some(raw), .. } => {
                    let json = row.slice_ref(raw.get().as_bytes());
                    match Document::parse(json) {
                        Ok(document) => Ok(document),
                        Err(error) => return Err(self.feed.bad_row(&error)),
                    }
                }
                RowDoc {
                    error: Some(error), ..
                } => Err(error.clean(self.feed.reply())),
                RowDoc {
                    ok: None,
                    error: None,
                } => {
                    return Err(self.feed.bad("a result that is neither ok nor error"));
                }
            };
            self.ready.push_back(Fetched {
                index: if all_leaves { first } else { first + place },
                result,
            });
        }
        Ok(())
    }
}
