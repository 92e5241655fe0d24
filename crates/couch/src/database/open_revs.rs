//! `open_revs`: revisions of one document, with attachments that stream.

mod stream;

use std::sync::Arc;

use bytes::Bytes;
use http::header;
use serde::Deserialize;
use serde_json::value::RawValue;
use wire::media_type;

use super::handle::{Database, path};
use crate::document::{Attachment, Document};
use crate::error::Error;
use crate::feed::Feed;
use crate::peer::{Call, Peer, Reply, encode};
use crate::rows::Layout;
use crate::types::{DocId, Rev};
use stream::Stream;

/// The limit of CouchDB's replicator for its request lines.
const REQUEST_LINE_BYTES_MAX: usize = 7000;
/// Below this length a refusal is not about the length.
const REQUEST_LINE_BYTES_MIN: usize = 200;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WantedRevs<'a> {
    All,
    /// These, or their descendants.
    These(&'a [Rev]),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Revision {
    /// The server does not have it.
    Missing(Rev),
    /// The document; attachments that follow it can be read now, or sent on by
    /// [`Database::put_with_attachments`].
    Document(Document),
}

pub struct Revisions {
    body: Body,
    document_bytes_max: usize,
}

enum Body {
    /// A server that answers with JSON: the elements of an array.
    Json(Box<Feed>),
    Multipart(Box<Stream>),
    Done,
}

#[derive(Deserialize)]
struct JsonRevision<'a> {
    #[serde(borrow)]
    ok: Option<&'a RawValue>,
    missing: Option<Rev>,
}

impl Database {
    /// Fetches revisions of a document; attachments that are in `atts_since` come as stubs. That
    /// list is cut when it makes the request too long.
    pub async fn open_revs(
        &self,
        id: &DocId,
        revs: WantedRevs<'_>,
        atts_since: &[Rev],
    ) -> Result<Revisions, Error> {
        let mut line_bytes_max = REQUEST_LINE_BYTES_MAX;
        loop {
            let call = open_revs_call(&self.peer, id, revs, atts_since, line_bytes_max);
            let reply = self.peer.send(&call).await?;
            if reply.status != 414 || line_bytes_max / 2 < REQUEST_LINE_BYTES_MIN {
                return Revisions::new(reply.success().await?);
            }
            line_bytes_max /= 2;
        }
    }
}

fn open_revs_call(
    peer: &Arc<Peer>,
    id: &DocId,
    revs: WantedRevs<'_>,
    atts_since: &[Rev],
    line_bytes_max: usize,
) -> Call {
    let revs = match revs {
        WantedRevs::All => "all".to_owned(),
        WantedRevs::These(revs) => json_list(revs),
    };
    let call = Call::get(path(id))
        .param("revs", "true")
        .param("open_revs", &revs)
        .param("latest", "true")
        // Makes servers that only send JSON include attachments.
        .param("attachments", "true")
        .header(header::ACCEPT, "multipart/mixed")
        .stream();
    let mut length = "GET  HTTP/1.1\r\n&atts_since=%5B%5D".len()
        + peer.prefix().len()
        + call.path.len()
        + call.query.len();
    let fitting = atts_since.iter().take_while(|rev| {
        let mut encoded = String::new();
        encode(rev.as_str(), &mut encoded);
        length += encoded.len() + "%22%22%2C".len();
        length < line_bytes_max
    });
    let fitting: Vec<Rev> = fitting.cloned().collect();
    if fitting.is_empty() {
        call
    } else {
        call.param("atts_since", &json_list(&fitting))
    }
}

fn json_list(revs: &[Rev]) -> String {
    let quoted: Vec<_> = revs
        .iter()
        .map(|rev| serde_json::Value::from(rev.as_str()))
        .collect();
    serde_json::Value::Array(quoted).to_string()
}

impl Revisions {
    /// The revisions of a successful response.
    pub(super) fn new(reply: Reply) -> Result<Self, Error> {
        let document_bytes_max = reply.peer.options.document_bytes_max;
        let content_type = reply.content_type();
        let body = match media_type(content_type).as_str() {
            "multipart/mixed" | "multipart/related" => {
                Body::Multipart(Box::new(Stream::new(reply)?))
            }
            "application/json" | "text/plain" => {
                Body::Json(Box::new(Feed::new(reply, Layout::Array)))
            }
            _ => return Err(reply.bad(format!("an answer of type `{content_type}`"))),
        };
        Ok(Self {
            body,
            document_bytes_max,
        })
    }

    /// The next revision, `None` when there are no more. Attachments of the last one that were not
    /// read are skipped.
    pub async fn next(&mut self) -> Result<Option<Revision>, Error> {
        let bytes_max = self.document_bytes_max;
        let next = match &mut self.body {
            Body::Json(feed) => next_json(feed).await,
            Body::Multipart(stream) => stream.next(bytes_max).await,
            Body::Done => Ok(None),
        };
        if !matches!(next, Ok(Some(_))) {
            self.body = Body::Done;
        }
        next
    }

    /// Goes on to the next attachment of the last revision, `None` when there are no more. What is
    /// left of the one before is skipped.
    pub async fn next_attachment(&mut self) -> Result<Option<Attachment>, Error> {
        match &mut self.body {
            Body::Multipart(stream) => stream.next_attachment().await,
            Body::Json(_) | Body::Done => Ok(None),
        }
    }

    /// The next bytes of the attachment, `None` at its end. It has exactly the bytes that were
    /// announced, or there is an error.
    pub async fn attachment_chunk(&mut self) -> Result<Option<Bytes>, Error> {
        match &mut self.body {
            Body::Multipart(stream) => stream.attachment_chunk().await,
            Body::Json(_) | Body::Done => Ok(None),
        }
    }

    pub(super) fn attachments_missing(&mut self) -> Error {
        self.bad("attachments are not those that the document announced")
    }

    pub(super) fn attachment_damaged(&mut self) -> Error {
        self.bad("an attachment has another digest than the document says")
    }

    fn bad(&mut self, problem: &str) -> Error {
        let error = match &mut self.body {
            Body::Multipart(stream) => stream.bad(problem),
            Body::Json(feed) => feed.bad(problem),
            Body::Done => Error::Config("no revision was read that has attachments".to_owned()),
        };
        self.body = Body::Done;
        error
    }
}

async fn next_json(feed: &mut Feed) -> Result<Option<Revision>, Error> {
    let Some(row) = feed.next_row().await? else {
        return Ok(None);
    };
    match serde_json::from_slice(&row) {
        Ok(JsonRevision { ok: Some(raw), .. }) => {
            match Document::parse(row.slice_ref(raw.get().as_bytes())) {
                Ok(document) => Ok(Some(Revision::Document(document))),
                Err(error) => Err(feed.bad_row(&error)),
            }
        }
        Ok(JsonRevision {
            missing: Some(rev), ..
        }) => Ok(Some(Revision::Missing(rev))),
        Ok(_) => Err(feed.bad("a revision that is neither ok nor missing")),
        Err(error) => Err(feed.bad_row(&error)),
    }
}
