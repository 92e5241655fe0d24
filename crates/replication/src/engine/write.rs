//! Writes documents to the target in bulk.

use bytes::Bytes;
use couch::{Attachments, DocError, DocId, Document, Rev};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{Instrument as _, debug_span};

use super::attachments::inline_count;
use super::budget::{Share, UNIT_BYTES};
use super::context::{Context, GROUP_DOCS_MAX};
use crate::error::{Error, Step};
use crate::metrics;

type Group = Vec<Document>;

/// A group that is to be written, with its memory.
pub(super) struct Filled {
    group: Group,
    share: Share,
}

/// A document that cannot be written in bulk, to be copied individually.
pub(super) type Single = (DocId, Rev);

/// Gathers documents into groups.
pub(super) struct Outbox<'a> {
    cx: &'a Context,
    out: mpsc::Sender<Filled>,
    group: Group,
    bytes: usize,
    share: Share,
}

impl<'a> Outbox<'a> {
    pub(super) fn new(cx: &'a Context, out: mpsc::Sender<Filled>) -> Self {
        Self {
            cx,
            out,
            group: Group::new(),
            bytes: 0,
            share: cx.settings.budget.more(),
        }
    }

    /// Adds a document that was read, unless a local selector drops it.
    pub(super) async fn push(&mut self, document: Document) -> Result<(), Error> {
        let bytes = document.json().len();
        self.add(document, bytes).await
    }

    /// The same for a document that came with the feed, whose memory is the batch's.
    pub(super) async fn pass_on(&mut self, document: Document) -> Result<(), Error> {
        self.add(document, 0).await
    }

    async fn add(&mut self, document: Document, charged: usize) -> Result<(), Error> {
        if !self.cx.admits(&document).await? {
            self.cx.count(|stats| stats.docs_filtered += 1);
            return Ok(());
        }
        self.cx.count(|stats| stats.docs_read += 1);
        let bytes = document.json().len();
        let is_inline = document.attachments == Attachments::Inline;
        if self.bytes + bytes > self.cx.write_bytes_max(is_inline) {
            self.flush().await;
        }
        self.bytes += bytes;
        let is_short = charged > 0 && !self.share.grow(charged) && self.bytes >= UNIT_BYTES;
        self.group.push(document);
        if self.group.len() == GROUP_DOCS_MAX || is_short {
            self.flush().await;
        }
        Ok(())
    }

    pub(super) async fn flush(&mut self) {
        self.bytes = 0;
        let group = std::mem::take(&mut self.group);
        if !group.is_empty() {
            let share = std::mem::replace(&mut self.share, self.cx.settings.budget.more());
            // Fails only after an error, which ends the batch anyway.
            let _ = self.out.send(Filled { group, share }).await;
        }
    }
}

/// Writes all groups; returns the documents to copy one by one.
pub(super) async fn write_all(
    cx: &Context,
    mut groups: mpsc::Receiver<Filled>,
) -> Result<Vec<Single>, Error> {
    let mut singles = Vec::new();
    while let Some(Filled { group, share }) = groups.recv().await {
        write(cx, group, &mut singles).await?;
        drop(share);
    }
    Ok(singles)
}

async fn write(cx: &Context, group: Group, singles: &mut Vec<Single>) -> Result<(), Error> {
    let mut groups = vec![group];
    while let Some(mut group) = groups.pop() {
        let bodies: Vec<Bytes> = group
            .iter()
            .map(|document| document.json().clone())
            .collect();
        let bytes = bodies.iter().map(Bytes::len).sum();
        let started = Instant::now();
        let span = debug_span!("write", documents = bodies.len(), bytes);
        match cx.target.bulk_docs(&bodies).instrument(span).await {
            Ok(errors) => {
                cx.observe_write(bytes, started.elapsed());
                take_note(cx, &group, &errors, singles)?;
            }
            Err(couch::Error::TooLarge(answer)) => {
                if group.len() > 1 && is_of_request(&answer) {
                    cx.observe_too_large(bytes);
                }
                if let [document] = &group[..] {
                    let reason = answer.reason.as_deref().unwrap_or("the target's limit");
                    cx.fail_doc(
                        &document.id,
                        document.rev.as_ref(),
                        "request_entity_too_large",
                        reason,
                    )?;
                } else {
                    let second = group.split_off(group.len() / 2);
                    groups.extend([second, group]);
                }
            }
            // The target lacks attachments that it was assumed to have, and does not say of which document.
            Err(error)
                if is_missing_stub(&error) && group.iter().any(Document::has_attachments) =>
            {
                let (with, without): (Group, Group) =
                    group.into_iter().partition(Document::has_attachments);
                singles.extend(with.iter().filter_map(single));
                uncount(cx, with.len());
                if !without.is_empty() {
                    groups.push(without);
                }
            }
            Err(error) => return Err(Error::at(Step::BulkDocs)(error)),
        }
    }
    Ok(())
}

/// Whether the request was too large, and not one document or attachment in it.
fn is_of_request(answer: &couch::Answer) -> bool {
    let limit = answer.error.as_deref();
    !matches!(limit, Some("document_too_large" | "attachment_too_large"))
}

/// Most servers respond 412, CouchDB clusters sometimes 500.
fn is_missing_stub(error: &couch::Error) -> bool {
    match error {
        couch::Error::MissingStub(_) => true,
        other => other
            .answer()
            .is_some_and(|answer| answer.error.as_deref() == Some("missing_stub")),
    }
}

/// Counts a written group, document by document if some were rejected.
fn take_note(
    cx: &Context,
    group: &[Document],
    errors: &[DocError],
    singles: &mut Vec<Single>,
) -> Result<(), Error> {
    let refused = errors.len().min(group.len());
    let known = |error: &DocError| {
        let id = error.id.as_ref()?;
        let same = |document: &&Document| {
            document.id == *id && (error.rev.is_none() || document.rev == error.rev)
        };
        group.iter().find(same)
    };
    let inside = |document: &Document| match document.attachments {
        Attachments::Inline => inline_count(document),
        _ => 0,
    };
    let attachments: u64 = group.iter().map(inside).sum();
    let refused_attachments: u64 = errors.iter().filter_map(known).map(inside).sum();
    cx.count(|stats| {
        let written = (group.len() - refused) as u64;
        metrics::docs_written(written);
        stats.docs_written += written;
        stats.attachments_copied += attachments.saturating_sub(refused_attachments);
    });
    for error in errors {
        let known = known(error);
        if error.error == "missing_stub"
            && let Some(single) = known.and_then(single)
        {
            singles.push(single);
            uncount(cx, 1);
            continue;
        }
        let id = error.id.clone().unwrap_or_else(|| DocId::from(""));
        let rev = error
            .rev
            .as_ref()
            .or_else(|| known.and_then(|document| document.rev.as_ref()));
        cx.fail_doc(
            &id,
            rev,
            &error.error,
            error.reason.as_deref().unwrap_or_default(),
        )?;
    }
    Ok(())
}

fn single(document: &Document) -> Option<Single> {
    Some((document.id.clone(), document.rev.clone()?))
}

/// Uncounts documents that will be read again.
fn uncount(cx: &Context, documents: usize) {
    cx.count(|stats| stats.docs_read = stats.docs_read.saturating_sub(documents as u64));
}
