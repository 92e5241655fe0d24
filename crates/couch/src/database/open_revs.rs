//! `open_revs`: revisions of one document, with attachments that stream.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Database, path};
use crate::document::{Attachment, Attachments, Document};
use crate::error::Error;
use crate::feed::{Feed, interrupted};
use crate::multipart::{Event, Parser, Part, media_type, parameter};
use crate::peer::{Call, Peer, Reply, encode};
use crate::rows::Layout;
use crate::types::{DocId, Rev};

/// The request line of CouchDB's replicator stays below this.
const REQUEST_LINE_BYTES_MAX: usize = 7000;
/// A server that refuses a request line as short as this refuses any.
const REQUEST_LINE_BYTES_MIN: usize = 200;
/// So much may follow the closing boundary.
const EPILOGUE_BYTES_MAX: usize = 64 * 1024;
const MISSING_BYTES_MAX: usize = 64 * 1024;

/// Which revisions are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WantedRevs<'a> {
    /// All leaves.
    All,
    /// These, or newer ones on their branches.
    These(&'a [Rev]),
}

/// One revision of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Revision {
    /// The server does not have it.
    Missing(Rev),
    /// The document; attachments that follow it can be read now, or sent on by
    /// [`Database::put_with_attachments`].
    Document(Document),
}

/// Revisions, as they come in.
pub struct Revisions {
    place: Place,
    document_bytes_max: usize,
}

enum Place {
    /// A server that answers by JSON: the rows of an array.
    Json(Box<Feed>),
    Multipart(Box<Stream>),
    Done,
}

/// A multipart answer: the outer parts are revisions, those with attachments have parts of their
/// own.
struct Stream {
    reply: Reply,
    outer: Parser,
    inner: Option<Related>,
}

/// A revision whose attachments are not all read.
struct Related {
    parser: Parser,
    expected: VecDeque<Attachment>,
    /// Bytes of the current attachment that are still to come.
    remaining: Option<u64>,
}

#[derive(Deserialize)]
struct MissingRev {
    missing: Rev,
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
        // Servers that only speak JSON then send attachments inline.
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
    /// The revisions of a successful answer.
    pub(super) fn new(reply: Reply) -> Result<Self, Error> {
        let document_bytes_max = reply.peer.options.document_bytes_max;
        let content_type = reply.content_type();
        let place = match media_type(content_type).as_str() {
            "multipart/mixed" | "multipart/related" => {
                let outer = Parser::new(&boundary(&reply, content_type)?);
                Place::Multipart(Box::new(Stream {
                    reply,
                    outer,
                    inner: None,
                }))
            }
            "application/json" | "text/plain" => {
                Place::Json(Box::new(Feed::new(reply, Layout::Array)))
            }
            _ => return Err(reply.bad(format!("an answer of type `{content_type}`"))),
        };
        Ok(Self {
            place,
            document_bytes_max,
        })
    }

    /// The next revision, `None` when there are no more. Attachments of the last one that were not
    /// read are skipped.
    pub async fn next(&mut self) -> Result<Option<Revision>, Error> {
        let bytes_max = self.document_bytes_max;
        let next = match &mut self.place {
            Place::Json(feed) => next_json(feed).await,
            Place::Multipart(stream) => stream.next(bytes_max).await,
            Place::Done => Ok(None),
        };
        if !matches!(next, Ok(Some(_))) {
            self.place = Place::Done;
        }
        next
    }

    /// Goes on to the next attachment of the last revision, `None` when there are no more. What is
    /// left of the one before is skipped.
    pub async fn next_attachment(&mut self) -> Result<Option<Attachment>, Error> {
        match &mut self.place {
            Place::Multipart(stream) => stream.next_attachment().await,
            Place::Json(_) | Place::Done => Ok(None),
        }
    }

    /// The next bytes of the attachment, `None` at its end. It has exactly the bytes that were
    /// announced, or there is an error.
    pub async fn attachment_chunk(&mut self) -> Result<Option<Bytes>, Error> {
        match &mut self.place {
            Place::Multipart(stream) => stream.attachment_chunk().await,
            Place::Json(_) | Place::Done => Ok(None),
        }
    }

    /// The error of attachments that are not those of the document.
    pub(super) fn attachments_missing(&mut self) -> Error {
        let problem = "attachments are not those that the document announced";
        let error = match &mut self.place {
            Place::Multipart(stream) => stream.reply.bad(problem),
            Place::Json(feed) => feed.bad(problem),
            Place::Done => Error::Config("no revision was read that has attachments".to_owned()),
        };
        self.place = Place::Done;
        error
    }
}

fn boundary(reply: &Reply, content_type: &str) -> Result<String, Error> {
    parameter(content_type, "boundary")
        .filter(|boundary| !boundary.is_empty())
        .ok_or_else(|| reply.bad("multipart without a boundary"))
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

impl Stream {
    async fn next(&mut self, bytes_max: usize) -> Result<Option<Revision>, Error> {
        if self.inner.is_some() {
            while self.next_attachment().await?.is_some() {}
            self.inner = None;
            self.end_of_part().await?;
        }
        match self.outer_event().await? {
            Event::Part(part) => self.revision(&part, bytes_max).await.map(Some),
            Event::End => {
                self.finish().await;
                Ok(None)
            }
            _ => Err(self.reply.bad("data between its parts")),
        }
    }

    async fn revision(&mut self, part: &Part, bytes_max: usize) -> Result<Revision, Error> {
        match media_type(&part.content_type).as_str() {
            "multipart/related" => {
                let boundary = boundary(&self.reply, &part.content_type)?;
                let parser = Parser::new(&boundary);
                self.inner = Some(Related {
                    parser,
                    expected: VecDeque::new(),
                    remaining: None,
                });
                let document = self.related_document(bytes_max).await?;
                if let (Some(inner), Attachments::Following(following)) =
                    (&mut self.inner, &document.attachments)
                {
                    inner.expected = following.iter().cloned().collect();
                }
                Ok(Revision::Document(document))
            }
            "application/json" => {
                let is_error = parameter(&part.content_type, "error").as_deref() == Some("true");
                let body = self
                    .collect_outer(if is_error {
                        MISSING_BYTES_MAX
                    } else {
                        bytes_max
                    })
                    .await?;
                if is_error {
                    return serde_json::from_slice(&body)
                        .map(|missing: MissingRev| Revision::Missing(missing.missing))
                        .map_err(|error| self.reply.not_json(&error));
                }
                let document = self.document(body)?;
                match &document.attachments {
                    Attachments::Following(_) => Err(self
                        .reply
                        .bad("attachments are announced and do not follow")),
                    _ => Ok(Revision::Document(document)),
                }
            }
            other => Err(self.reply.bad(format!("a part of type `{other}`"))),
        }
    }

    fn document(&self, json: Bytes) -> Result<Document, Error> {
        Document::parse(json).map_err(|error| self.reply.not_json(&error))
    }

    /// The first inner part.
    async fn related_document(&mut self, bytes_max: usize) -> Result<Document, Error> {
        let Event::Part(_) = self.inner_event().await? else {
            return Err(self.reply.bad("a revision without a document"));
        };
        let mut found = Gathered::new(bytes_max);
        loop {
            match self.inner_event().await? {
                Event::Data(data) => found.add(data).map_err(|problem| self.reply.bad(problem))?,
                Event::PartEnd => return self.document(found.finish()),
                _ => return Err(self.reply.bad("a document that does not end")),
            }
        }
    }

    async fn next_attachment(&mut self) -> Result<Option<Attachment>, Error> {
        while self.attachment_chunk().await?.is_some() {}
        let Some(inner) = &mut self.inner else {
            return Ok(None);
        };
        let Some(expected) = inner.expected.pop_front() else {
            return match self.inner_event().await? {
                Event::End => Ok(None),
                _ => Err(self
                    .reply
                    .bad("more attachments than the document announced")),
            };
        };
        let Event::Part(part) = self.inner_event().await? else {
            return Err(self
                .reply
                .bad("fewer attachments than the document announced"));
        };
        if part.is_named_otherwise(&expected.name) {
            return Err(self
                .reply
                .bad("attachments in another order than the document's"));
        }
        if part
            .content_length
            .is_some_and(|length| length != expected.length)
        {
            return Err(self
                .reply
                .bad("an attachment of another length than announced"));
        }
        if let Some(inner) = &mut self.inner {
            inner.remaining = Some(expected.length);
        }
        Ok(Some(expected))
    }

    async fn attachment_chunk(&mut self) -> Result<Option<Bytes>, Error> {
        let Some(remaining) = self.inner.as_ref().and_then(|inner| inner.remaining) else {
            return Ok(None);
        };
        let left = match self.inner_event().await? {
            Event::Data(data) => match remaining.checked_sub(data.len() as u64) {
                Some(left) => Some((left, data)),
                None => return Err(self.reply.bad("an attachment longer than announced")),
            },
            Event::PartEnd if remaining == 0 => None,
            Event::PartEnd => return Err(self.reply.bad("an attachment shorter than announced")),
            _ => return Err(self.reply.bad("an attachment that does not end")),
        };
        if let Some(inner) = &mut self.inner {
            inner.remaining = left.as_ref().map(|(left, _)| *left);
        }
        Ok(left.map(|(_, data)| data))
    }

    /// The next event of the outer parts; reads on as needed.
    async fn outer_event(&mut self) -> Result<Event, Error> {
        loop {
            match self
                .outer
                .next_event()
                .map_err(|broken| self.reply.bad(broken.to_string()))?
            {
                Event::NeedMore => {}
                event => return Ok(event),
            }
            match self.reply.body.chunk().await {
                Ok(Some(chunk)) => self.outer.feed(chunk),
                Ok(None) => return Err(self.cut_off()),
                Err(failure) => return Err(interrupted(&self.reply, failure)),
            }
        }
    }

    /// The next event of the inner parts.
    async fn inner_event(&mut self) -> Result<Event, Error> {
        loop {
            let Some(inner) = &mut self.inner else {
                return Ok(Event::End);
            };
            match inner
                .parser
                .next_event()
                .map_err(|broken| self.reply.bad(broken.to_string()))?
            {
                Event::NeedMore => {}
                event => return Ok(event),
            }
            match self.outer_event().await? {
                Event::Data(data) => {
                    if let Some(inner) = &mut self.inner {
                        inner.parser.feed(data);
                    }
                }
                _ => {
                    return Err(self
                        .reply
                        .bad("a revision that ends before its attachments"));
                }
            }
        }
    }

    fn cut_off(&self) -> Error {
        let cause = crate::error::Failure::Connection("it ends before its last part".to_owned());
        Error::Interrupted {
            request: self.reply.request.clone(),
            cause,
        }
    }

    async fn collect_outer(&mut self, bytes_max: usize) -> Result<Bytes, Error> {
        let mut found = Gathered::new(bytes_max);
        loop {
            match self.outer_event().await? {
                Event::Data(data) => found.add(data).map_err(|problem| self.reply.bad(problem))?,
                Event::PartEnd => return Ok(found.finish()),
                _ => return Err(self.reply.bad("a part that does not end")),
            }
        }
    }

    /// Skips what stands between the inner end and the outer one.
    async fn end_of_part(&mut self) -> Result<(), Error> {
        self.collect_outer(EPILOGUE_BYTES_MAX).await.map(drop)
    }

    /// Reads to the end, so that the connection can be used again.
    async fn finish(&mut self) {
        let _ = self.reply.body.collect(EPILOGUE_BYTES_MAX).await;
        self.reply.release();
    }
}

/// Puts the chunks of a small part together; a part in one chunk stays where it is.
struct Gathered {
    first: Bytes,
    joined: BytesMut,
    bytes_max: usize,
}

impl Gathered {
    fn new(bytes_max: usize) -> Self {
        Self {
            first: Bytes::new(),
            joined: BytesMut::new(),
            bytes_max,
        }
    }

    fn add(&mut self, chunk: Bytes) -> Result<(), String> {
        if self.first.len() + self.joined.len() + chunk.len() > self.bytes_max {
            return Err(format!("a document of more than {} bytes", self.bytes_max));
        }
        if self.first.is_empty() && self.joined.is_empty() {
            self.first = chunk;
        } else {
            let first = std::mem::take(&mut self.first);
            self.joined.extend_from_slice(&first);
            self.joined.extend_from_slice(&chunk);
        }
        Ok(())
    }

    fn finish(self) -> Bytes {
        if self.first.is_empty() {
            self.joined.freeze()
        } else {
            self.first
        }
    }
}
