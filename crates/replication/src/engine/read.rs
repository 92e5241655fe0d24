//! Reads missing revisions from the source, each in the cheapest possible way.
//!
//! What fails in one way is left to the next: documents from the feed, `_bulk_get` without attachments, `_bulk_get` with
//! small ones, one request per revision.

use std::iter::Peekable;

use couch::{Attachments, BulkGet, DocId, Document, Fetched, Rev, WantedRev};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::Mistake;
use super::attachments::inline_bytes;
use super::context::{Context, INLINE_GROUP_BYTES_MAX};
use super::single::{Wanted, copy};
use super::work::Plan;
use super::write::{Outbox, Single, write_all};
use crate::error::{Error, Step};

/// Reads all planned revisions.
pub(super) async fn read_all(
    cx: &Context,
    plan: Plan,
    mut outbox: Outbox<'_>,
) -> Result<(), Error> {
    let Plan {
        here,
        bulk,
        mut inline,
        mut singles,
    } = plan;
    // Design documents first: they decide what else the target accepts.
    let (design, others): (Vec<_>, Vec<_>) = singles
        .into_iter()
        .partition(|wanted| wanted.id.is_design());
    copy_all(cx, design, &mut outbox).await?;
    singles = others;
    for document in here {
        outbox.pass_on(document).await?;
    }
    read_bulk(cx, bulk, &mut inline, &mut singles, &mut outbox).await?;
    read_inline(cx, inline, &mut singles, &mut outbox).await?;
    copy_all(cx, singles, &mut outbox).await?;
    outbox.flush().await;
    Ok(())
}

/// Reads revisions without attachments; those that have some are left to other ways.
async fn read_bulk(
    cx: &Context,
    mut wanted: Vec<Wanted>,
    inline: &mut Vec<(Wanted, u64)>,
    singles: &mut Vec<Wanted>,
    outbox: &mut Outbox<'_>,
) -> Result<(), Error> {
    while !wanted.is_empty() {
        let rest = wanted.split_off(whole_documents(&wanted, cx.fetch_docs_max()));
        let group = std::mem::replace(&mut wanted, rest);
        let (mut read, mut moved) = (0, 0);
        let attempts = group.len();
        let mut answer = BulkRead::open(cx, group, false).await?;
        while let Some((wanted, document)) = answer.next().await? {
            if document.attachments == Attachments::None {
                read += 1;
                outbox.push(document).await?;
            } else if let Some(bytes) = inline_bytes(&document, &wanted.ancestors) {
                moved += 1;
                inline.push((wanted, bytes));
            } else {
                singles.push(wanted);
            }
        }
        let (again, left) = answer.left();
        let attempts = attempts - again.len();
        cx.observe_bulk_get(read + moved, attempts);
        cx.count_bulk_get(read, attempts - moved);
        if cx.planted != Some(Mistake::ForgetsRevisions) {
            wanted.extend(again);
            singles.extend(left);
        }
    }
    Ok(())
}

/// Reads revisions with small inline attachments.
async fn read_inline(
    cx: &Context,
    inline: Vec<(Wanted, u64)>,
    singles: &mut Vec<Wanted>,
    outbox: &mut Outbox<'_>,
) -> Result<(), Error> {
    let mut inline = inline.into_iter().peekable();
    while inline.peek().is_some() {
        let group: Vec<_> = (inline_group(&mut inline)
            .into_iter()
            .map(|(wanted, _)| wanted))
        .collect();
        let (attempts, mut read) = (group.len(), 0);
        let mut answer = BulkRead::open(cx, group, true).await?;
        while let Some((wanted, document)) = answer.next().await? {
            if document.inline_digests_match() {
                read += 1;
                outbox.push(document).await?;
            } else {
                tracing::info!(doc.id = %document.id, "an attachment does not match its digest, fetching it again");
                singles.push(wanted);
            }
        }
        cx.count_bulk_get(read, attempts);
        if cx.planted != Some(Mistake::ForgetsRevisions) {
            singles.extend(answer.left().1);
        }
    }
    Ok(())
}

/// Takes documents for one request.
fn inline_group(inline: &mut Peekable<impl Iterator<Item = (Wanted, u64)>>) -> Vec<(Wanted, u64)> {
    let mut left = INLINE_GROUP_BYTES_MAX as u64;
    let mut group = Vec::new();
    while let Some((wanted, bytes)) =
        inline.next_if(|(_, bytes)| group.is_empty() || *bytes * 4 / 3 <= left)
    {
        left = left.saturating_sub(bytes * 4 / 3 + 512);
        group.push((wanted, bytes));
    }
    group
}

/// The number of revisions per request, about `max`, such that leaves of one document stay together.
fn whole_documents(wanted: &[Wanted], max: usize) -> usize {
    let Some(last) = max.checked_sub(1).and_then(|last| wanted.get(last)) else {
        return wanted.len();
    };
    let more = wanted[max..].iter().take_while(|next| next.id == last.id);
    max + more.count()
}

/// A `_bulk_get` response. An error concerns only what did not arrive.
struct BulkRead<'a> {
    cx: &'a Context,
    answer: Option<BulkGet>,
    parts: Vec<Part>,
    /// Leaves requested by document, and leaves received.
    leaves: (usize, usize),
}

/// A requested item: one revision, or all leaves of a document.
struct Part {
    wanted: Vec<Wanted>,
    is_all_leaves: bool,
}

impl<'a> BulkRead<'a> {
    async fn open(cx: &'a Context, wanted: Vec<Wanted>, attachments: bool) -> Result<Self, Error> {
        let gathers = !attachments && cx.asks_leaves();
        let mut parts: Vec<Part> = Vec::with_capacity(wanted.len());
        for wanted in wanted {
            match parts.last_mut() {
                Some(part) if gathers && wanted.is_one_of_all && part.wanted[0].id == wanted.id => {
                    part.is_all_leaves = true;
                    part.wanted.push(wanted);
                }
                _ => parts.push(Part {
                    wanted: vec![wanted],
                    is_all_leaves: false,
                }),
            }
        }
        let request: Vec<WantedRev> = parts
            .iter()
            .map(|part| WantedRev {
                id: part.wanted[0].id.clone(),
                rev: (!part.is_all_leaves).then(|| part.wanted[0].rev.clone()),
                // With this, CouchDB sends attachments whether they are requested or not.
                atts_since: if attachments {
                    part.wanted[0].ancestors.clone()
                } else {
                    Vec::new()
                },
            })
            .collect();
        let gathered = parts.iter().filter(|part| part.is_all_leaves);
        let mut read = Self {
            cx,
            answer: None,
            leaves: (gathered.map(|part| part.wanted.len()).sum(), 0),
            parts,
        };
        match cx.source.bulk_get(&request, attachments).await {
            Ok(answer) => read.answer = Some(answer),
            Err(error) => read.fail(error)?,
        }
        Ok(read)
    }

    /// The next document; `None` at the end.
    async fn next(&mut self) -> Result<Option<(Wanted, Document)>, Error> {
        while let Some(answer) = &mut self.answer {
            let fetched = match answer.next().await {
                Ok(fetched) => fetched,
                Err(error) => {
                    self.fail(error)?;
                    continue;
                }
            };
            let Some(Fetched { index, result }) = fetched else {
                self.answer = None;
                self.cx.observe_leaves(self.leaves.1, self.leaves.0);
                break;
            };
            match result {
                Ok(document) => {
                    if let Some(wanted) = self.take(index, &document) {
                        if self.cx.is_late_deletion(&document, &wanted.rev) {
                            self.cx.count(|stats| stats.docs_filtered += 1);
                            continue;
                        }
                        self.cx.observe_doc(document.json().len());
                        return Ok(Some((wanted, document)));
                    }
                }
                Err(error) => {
                    tracing::debug!(error = error.error, "cannot read a revision in bulk");
                }
            }
        }
        Ok(None)
    }

    fn take(&mut self, index: usize, document: &Document) -> Option<Wanted> {
        let (wanted, is_leaf) = take(&mut self.parts, index, &document.id, document.rev.as_ref()?)?;
        self.leaves.1 += usize::from(is_leaf);
        Some(wanted)
    }

    fn fail(&mut self, error: couch::Error) -> Result<(), Error> {
        self.answer = None;
        if is_fatal(&error) {
            return Err(Error::at(Step::BulkGet)(error));
        }
        tracing::debug!(%error, "_bulk_get failed, reading documents one by one");
        Ok(())
    }

    /// The revisions that did not arrive: those to request again in bulk, one by one, and the others.
    fn left(self) -> (Vec<Wanted>, Vec<Wanted>) {
        let (leaves, others): (Vec<_>, Vec<_>) =
            (self.parts.into_iter()).partition(|part| part.is_all_leaves);
        let again = |mut wanted: Wanted| {
            wanted.is_one_of_all = false;
            wanted
        };
        let wanted = |part: Part| part.wanted;
        (
            leaves.into_iter().flat_map(wanted).map(again).collect(),
            others.into_iter().flat_map(wanted).collect(),
        )
    }
}

/// Matches a received document to its request, and tells whether all leaves were requested. In place of one revision a newer
/// one will do, but not an older one; of leaves that came together, it is unknown which of them a newer one replaces.
///
/// Servers may return revisions of one document in any order, so `index` says only which document it is. What a revision
/// was requested as comes first: a leaf must not be taken for the newer one of another, which would never be read.
fn take(parts: &mut [Part], index: usize, id: &DocId, rev: &Rev) -> Option<(Wanted, bool)> {
    let is_same = |wanted: &Wanted| wanted.id == *id && wanted.rev == *rev;
    let has_same = |part: &Part| part.wanted.iter().any(is_same);
    let index = if parts.get(index).is_some_and(has_same) {
        index
    } else {
        parts.iter().position(has_same).unwrap_or(index)
    };
    let part = parts.get_mut(index)?;
    let newer_will_do = !part.is_all_leaves;
    let is_newer =
        |wanted: &Wanted| wanted.id == *id && rev.generation() >= wanted.rev.generation();
    let same = part.wanted.iter().position(is_same);
    let newer = || {
        part.wanted
            .iter()
            .position(is_newer)
            .filter(|_| newer_will_do)
    };
    let nth = same.or_else(newer)?;
    Some((part.wanted.swap_remove(nth), part.is_all_leaves))
}

/// Errors that other ways of reading would meet as well.
fn is_fatal(error: &couch::Error) -> bool {
    matches!(
        error,
        couch::Error::MaxBackoff { .. }
            | couch::Error::Auth { .. }
            | couch::Error::Egress { .. }
            | couch::Error::Unresolvable { .. }
            | couch::Error::Config(_)
    )
}

/// Copies revisions one by one, several concurrently.
async fn copy_all(cx: &Context, wanted: Vec<Wanted>, outbox: &mut Outbox<'_>) -> Result<(), Error> {
    // The other half of the connections is for the feed and other batches.
    let at_once = (cx.options.http_connections / 2).max(1);
    let mut wanted = wanted.into_iter();
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < at_once
            && let Some(wanted) = wanted.next()
        {
            running.push(copy(cx, wanted));
        }
        let Some(copied) = running.next().await else {
            return Ok(());
        };
        if let Some(document) = copied? {
            outbox.push(document).await?;
        }
    }
}

/// Copies what a bulk write could not write, with all attachments.
pub(super) async fn copy_again(cx: &Context, singles: Vec<Single>) -> Result<(), Error> {
    if singles.is_empty() {
        return Ok(());
    }
    let wanted = singles
        .into_iter()
        .map(|(id, rev)| Wanted {
            id,
            rev,
            ancestors: Vec::new(),
            is_one_of_all: false,
        })
        .collect();
    let (out, groups) = mpsc::channel(1);
    let mut outbox = Outbox::new(cx, out);
    let copy = async {
        copy_all(cx, wanted, &mut outbox).await?;
        outbox.flush().await;
        drop(outbox);
        Ok(())
    };
    let ((), left) = tokio::try_join!(copy, write_all(cx, groups))?;
    // Undoes the uncounting of `write_all`: these are not read again.
    cx.count(|stats| stats.docs_read += left.len() as u64);
    for (id, rev) in left {
        let reason = "the target still lacks an attachment after all were sent";
        cx.fail_doc(&id, Some(&rev), "missing_stub", reason)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(revs: &[&str]) -> Part {
        let wanted = revs.iter().map(|rev| Wanted {
            id: "doc".into(),
            rev: (*rev).into(),
            ancestors: Vec::new(),
            is_one_of_all: revs.len() > 1,
        });
        Part {
            wanted: wanted.collect(),
            is_all_leaves: revs.len() > 1,
        }
    }

    /// The revision that this one is taken for.
    fn taken(parts: &mut [Part], index: usize, rev: &str) -> Option<String> {
        let found = take(parts, index, &"doc".into(), &rev.into());
        found.map(|(wanted, _)| wanted.rev.to_string())
    }

    /// `PouchDB` Server returns leaves of a document as they happen to be read. One with attachments is requested again under
    /// the name of what it was taken for.
    #[test]
    fn leaves_in_another_order_are_taken_for_themselves() {
        let mut parts = [part(&["2-a"]), part(&["2-b"])];
        assert_eq!(taken(&mut parts, 0, "2-b").as_deref(), Some("2-b"));
        assert_eq!(taken(&mut parts, 1, "2-a").as_deref(), Some("2-a"));
        assert_eq!(taken(&mut parts, 0, "2-a"), None);
    }

    #[test]
    fn newer_revisions_are_taken_for_single_ones() {
        let mut parts = [part(&["2-a"]), part(&["2-b", "2-c"])];
        assert_eq!(taken(&mut parts, 0, "1-a"), None);
        assert_eq!(taken(&mut parts, 0, "3-a").as_deref(), Some("2-a"));
        assert_eq!(taken(&mut parts, 1, "3-b"), None);
        assert_eq!(taken(&mut parts, 1, "2-c").as_deref(), Some("2-c"));
    }
}
