//! Writes one document, streaming its attachments.

use std::fmt::Write as _;

use bytes::Bytes;
use http::Method;
use md5::{Digest as _, Md5};
use tokio::sync::mpsc;

use super::handle::{Database, FULL_COMMIT, content_type, path};
use super::open_revs::Revisions;
use crate::document::{Attachment, Attachments, Document};
use crate::error::Error;
use crate::payload::Payload;
use crate::peer::{Call, StreamBody};

/// Chunks buffered between source and target, besides the connections' own buffers.
const CHUNKS_HELD: usize = 2;

impl Database {
    /// Writes a document as it is (`new_edits=false`), its attachments being stubs or inline.
    pub async fn put(&self, document: &Document) -> Result<(), Error> {
        let call = put_call(document).json(Payload::Bytes(document.json().clone()));
        self.peer.fetch(&call).await?.success().await.map(drop)
    }

    /// Writes a document with the attachments that follow it at its source, which `revisions` has
    /// just returned it from. Nothing is repeated: when it fails, the revision is fetched again.
    ///
    /// When the target refuses before everything was sent, the rest stays in `revisions`, which
    /// skips it when the next revision is asked for.
    pub async fn put_with_attachments(
        &self,
        document: &Document,
        revisions: &mut Revisions,
    ) -> Result<(), Error> {
        let Attachments::Following(following) = &document.attachments else {
            return self.put(document).await;
        };
        let frame = Frame::new(&self.peer.network.boundary(), document, following);
        let mut call = put_call(document);
        call.headers.push(content_type(&frame.content_type)?);
        call.is_stream = true;

        let (sender, chunks) = mpsc::channel(CHUNKS_HELD);
        let body = StreamBody {
            chunks,
            length: frame.length(),
        };
        let mut sending = std::pin::pin!(self.peer.send_once(&call, body));
        let mut pumping = std::pin::pin!(pump(frame, document, revisions, sender));
        let mut is_pumped = false;
        let reply = loop {
            tokio::select! {
                biased;
                reply = &mut sending => break reply?,
                pumped = &mut pumping, if !is_pumped => {
                    // After an error of the source, dropping the channel aborts the request to the target.
                    pumped?;
                    is_pumped = true;
                }
            }
        };
        reply.success().await.map(drop)
    }
}

fn put_call(document: &Document) -> Call {
    Call::new(Method::PUT, path(&document.id))
        .param("new_edits", "false")
        .header(FULL_COMMIT, "false")
}

/// Copies a document and its attachments into a request; stops when the request ends.
async fn pump(
    frame: Frame,
    document: &Document,
    revisions: &mut Revisions,
    sender: mpsc::Sender<Bytes>,
) -> Result<(), Error> {
    let mut heads = frame.heads.into_iter();
    for piece in [heads.next(), Some(document.json().clone())]
        .into_iter()
        .flatten()
    {
        if sender.send(piece).await.is_err() {
            return Ok(());
        }
    }
    let following = match &document.attachments {
        Attachments::Following(following) => &following[..],
        _ => &[],
    };
    for (head, attachment) in heads.zip(following) {
        if revisions.next_attachment().await?.is_none() {
            return Err(revisions.attachments_missing());
        }
        if sender.send(head).await.is_err() {
            return Ok(());
        }
        let mut hash = Md5::new();
        while let Some(chunk) = revisions.attachment_chunk().await? {
            hash.update(&chunk);
            if sender.send(chunk).await.is_err() {
                return Ok(());
            }
        }
        // The request is still incomplete, so the target discards the damaged attachment.
        if attachment
            .digest
            .is_some_and(|digest| digest != hash.finalize()[..])
        {
            return Err(revisions.attachment_damaged());
        }
    }
    // This error shows only after the last attachment, so it is checked before the target gets the end.
    if revisions.next_attachment().await?.is_some() {
        return Err(revisions.attachments_missing());
    }
    let _ = sender.send(frame.tail).await;
    Ok(())
}

/// The parts of a multipart request around document and attachments.
struct Frame {
    content_type: String,
    /// Before the document, and before each attachment.
    heads: Vec<Bytes>,
    tail: Bytes,
    contents: u64,
}

impl Frame {
    fn new(boundary: &str, document: &Document, following: &[Attachment]) -> Self {
        let mut heads = Vec::with_capacity(following.len() + 1);
        heads.push(format!("--{boundary}\r\nContent-Type: application/json\r\n\r\n").into());
        for attachment in following {
            let mut head =
                format!("\r\n--{boundary}\r\nContent-Disposition: attachment; filename=\"");
            head.extend(attachment.name.chars().flat_map(escaped));
            let _ = write!(head, "\"\r\nContent-Type: ");
            head.extend(attachment.content_type.chars().filter(|c| !c.is_control()));
            let _ = write!(head, "\r\nContent-Length: {}\r\n", attachment.length);
            if let Some(encoding) = &attachment.encoding {
                head.push_str("Content-Encoding: ");
                head.extend(encoding.chars().filter(|c| !c.is_control()));
                head.push_str("\r\n");
            }
            head.push_str("\r\n");
            heads.push(head.into());
        }
        Self {
            content_type: format!("multipart/related; boundary=\"{boundary}\""),
            heads,
            tail: format!("\r\n--{boundary}--").into(),
            contents: following
                .iter()
                .fold(document.json().len() as u64, |sum, next| {
                    sum.saturating_add(next.length)
                }),
        }
    }

    fn length(&self) -> u64 {
        let heads = self.heads.iter().map(|head| head.len() as u64).sum::<u64>();
        (heads + self.tail.len() as u64).saturating_add(self.contents)
    }
}

/// Escapes what would end the quotes or the line.
fn escaped(c: char) -> impl Iterator<Item = char> {
    let (before, c) = match c {
        '"' | '\\' => (Some('\\'), c),
        c if c.is_control() => (None, ' '),
        c => (None, c),
    };
    before.into_iter().chain([c])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_exactly_as_long_as_they_say() {
        let json = r#"{"_id":"d","_attachments":{
            "a\"\r\nX: y":{"follows":true,"length":3,"content_type":"text/plain\r\nEvil: 1"},
            "b":{"follows":true,"length":99,"encoding":"gzip","encoded_length":2}}}"#;
        let document = Document::parse(Bytes::from_static(json.as_bytes())).unwrap();
        let Attachments::Following(following) = &document.attachments else {
            panic!()
        };
        let frame = Frame::new("bound", &document, following);
        let heads: Vec<_> = frame
            .heads
            .iter()
            .map(|head| std::str::from_utf8(head).unwrap())
            .collect();
        let whole = [
            heads[0],
            json,
            heads[1],
            "AAA",
            heads[2],
            "BB",
            "\r\n--bound--",
        ]
        .concat();
        assert_eq!(frame.length(), whole.len() as u64);
        assert_eq!(
            heads,
            [
                "--bound\r\nContent-Type: application/json\r\n\r\n",
                "\r\n--bound\r\nContent-Disposition: attachment; filename=\"a\\\"  X: y\"\r\n\
                 Content-Type: text/plainEvil: 1\r\nContent-Length: 3\r\n\r\n",
                "\r\n--bound\r\nContent-Disposition: attachment; filename=\"b\"\r\n\
                 Content-Type: \r\nContent-Length: 2\r\nContent-Encoding: gzip\r\n\r\n",
            ]
        );
    }
}
