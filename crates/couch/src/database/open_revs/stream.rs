//! Revisions sent as multipart.

use std::collections::VecDeque;

use bytes::Bytes;
use serde::Deserialize;
use wire::multipart::{self, Event, Parser, Part};
use wire::{Collected, TooLarge, media_type, parameter};

use super::Revision;
use crate::document::{Attachment, Attachments, Document};
use crate::error::{Error, Failure};
use crate::feed::interrupted;
use crate::peer::Reply;
use crate::types::Rev;

/// The most bytes after the closing boundary.
const EPILOGUE_BYTES_MAX: usize = 64 * 1024;
const MISSING_BYTES_MAX: usize = 64 * 1024;

/// A multipart response: the outer parts are revisions, and those with attachments have inner
/// parts.
pub(super) struct Stream {
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

impl Stream {
    pub(super) fn new(reply: Reply) -> Result<Self, Error> {
        let outer = Parser::new(&boundary(&reply, reply.content_type())?);
        Ok(Self {
            reply,
            outer,
            inner: None,
        })
    }

    pub(super) fn bad(&self, problem: &str) -> Error {
        self.reply.bad(problem)
    }

    pub(super) async fn next(&mut self, bytes_max: usize) -> Result<Option<Revision>, Error> {
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

    /// Reads the document in the first inner part.
    async fn related_document(&mut self, bytes_max: usize) -> Result<Document, Error> {
        let Event::Part(_) = self.inner_event().await? else {
            return Err(self.reply.bad("a revision without a document"));
        };
        let mut found = Collected::new(bytes_max);
        loop {
            match self.inner_event().await? {
                Event::Data(data) => found.push(data).map_err(|error| self.too_large(error))?,
                Event::PartEnd => return self.document(found.finish()),
                _ => return Err(self.reply.bad("a document that does not end")),
            }
        }
    }

    pub(super) async fn next_attachment(&mut self) -> Result<Option<Attachment>, Error> {
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

    pub(super) async fn attachment_chunk(&mut self) -> Result<Option<Bytes>, Error> {
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

    /// The next event of the outer parts; reads more of the body as needed.
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

    fn too_large(&self, TooLarge(bytes_max): TooLarge) -> Error {
        let problem = format!("a document of more than {bytes_max} bytes");
        self.reply.bad(problem)
    }

    fn cut_off(&self) -> Error {
        let cause = Failure::Connection("truncated before the last part".to_owned());
        Error::Interrupted {
            request: self.reply.request.clone(),
            cause,
        }
    }

    async fn collect_outer(&mut self, bytes_max: usize) -> Result<Bytes, Error> {
        let mut found = Collected::new(bytes_max);
        loop {
            match self.outer_event().await? {
                Event::Data(data) => found.push(data).map_err(|error| self.too_large(error))?,
                Event::PartEnd => return Ok(found.finish()),
                _ => return Err(self.reply.bad("a part that does not end")),
            }
        }
    }

    /// Skips what is between the inner closing boundary and the end of the outer part.
    async fn end_of_part(&mut self) -> Result<(), Error> {
        self.collect_outer(EPILOGUE_BYTES_MAX).await.map(drop)
    }

    /// Reads to the end, so that the connection can be used again.
    async fn finish(&mut self) {
        let _ = self.reply.body.collect(EPILOGUE_BYTES_MAX).await;
        self.reply.release();
    }
}

fn boundary(reply: &Reply, content_type: &str) -> Result<String, Error> {
    multipart::boundary(content_type).ok_or_else(|| reply.bad("multipart without a boundary"))
}
