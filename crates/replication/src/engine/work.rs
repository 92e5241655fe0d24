//! Processes a batch: asks the target what it lacks, reads that from the source, and writes it to the target.
//!
//! Reading and writing overlap: while one group of documents is written, the next is read.

use std::collections::HashMap;

use couch::{Attachments, Change, DocId, Document, Rev};
use tokio::sync::mpsc;

use super::attachments::inline_bytes;
use super::context::Context;
use super::read::{copy_again, read_all};
use super::reader::Batch;
use super::single::Wanted;
use super::write::{Outbox, write_all};
use crate::error::{Error, Step};

/// Processes a batch until all of it is on the target or skipped. Returns the amount of work.
pub(super) async fn process(cx: &Context, batch: Batch) -> Result<u64, Error> {
    let Batch { changes, share, .. } = batch;
    let before = cx.bytes_moved();
    let worth = changes.len() as u64;
    let plan = Plan::new(cx, admitted(cx, changes)?).await?;
    if !plan.is_empty() {
        let (out, groups) = mpsc::channel(1);
        let ((), singles) = tokio::try_join!(
            read_all(cx, plan, Outbox::new(cx, out)),
            write_all(cx, groups)
        )?;
        copy_again(cx, singles).await?;
    }
    drop(share);
    Ok(worth + (cx.bytes_moved() - before) / 1024)
}

/// The changes of a batch that the replication should copy.
fn admitted(cx: &Context, changes: Vec<Change>) -> Result<Vec<Change>, Error> {
    let mut indexes: HashMap<DocId, usize> = HashMap::with_capacity(changes.len());
    let mut admitted: Vec<Change> = Vec::with_capacity(changes.len());
    for change in changes {
        if change.id.as_str().is_empty() {
            tracing::warn!(
                seq = change.seq.as_json(),
                "skipped a change of a document without an id"
            );
            continue;
        }
        let is_skipped = cx.options.skip_deleted && change.deleted
            || cx.options.skip_design_docs && change.id.is_design()
            || !cx.admits_id(&change.id);
        if is_skipped {
            cx.count(|stats| stats.docs_filtered += 1);
            continue;
        }
        let bytes_max = cx.settings.document_id_bytes_max.unwrap_or(usize::MAX);
        if change.id.as_str().len() > bytes_max {
            let reason = format!("document id is longer than {bytes_max} bytes");
            cx.fail_doc(
                &change.id,
                change.revs.first(),
                "document_id_too_long",
                &reason,
            )?;
            continue;
        }
        if change.revs.is_empty() {
            continue;
        }
        // A document that changes while the feed is read occurs twice; the later row has all leaves.
        match indexes.insert(change.id.clone(), admitted.len()) {
            Some(index) => {
                indexes.insert(change.id.clone(), index);
                admitted[index] = change;
            }
            None => admitted.push(change),
        }
    }
    Ok(admitted)
}

/// How the missing revisions of a batch are read.
#[derive(Default)]
pub(super) struct Plan {
    /// Documents from the feed.
    pub(super) here: Vec<Document>,
    /// Revisions for `_bulk_get`.
    pub(super) bulk: Vec<Wanted>,
    /// Revisions with small attachments, and the bytes of those.
    pub(super) inline: Vec<(Wanted, u64)>,
    /// Revisions to copy one by one.
    pub(super) singles: Vec<Wanted>,
}

impl Plan {
    fn is_empty(&self) -> bool {
        self.here.is_empty()
            && self.bulk.is_empty()
            && self.inline.is_empty()
            && self.singles.is_empty()
    }

    async fn new(cx: &Context, changes: Vec<Change>) -> Result<Self, Error> {
        let mut documents: Vec<Option<Document>> = Vec::with_capacity(changes.len());
        let mut asked: Vec<(DocId, Vec<Rev>)> = Vec::with_capacity(changes.len());
        for change in changes {
            documents.push(change.document);
            asked.push((change.id, change.revs));
        }
        let count: usize = asked.iter().map(|(_, revs)| revs.len()).sum();
        let (changes, mut usable) = (asked.len(), 0);
        let bulk = cx.asks_bulk_get();
        let mut plan = Self::default();
        let mut found = 0;
        for missing in find_missing(cx, asked, count).await? {
            found += missing.revs.len();
            let is_first = matches!(&missing.revs[..], [rev] if rev.generation() == 1);
            usable += usize::from(is_first && !missing.id.is_design());
            plan.add(cx, missing, &mut documents, is_first, bulk);
        }
        cx.observe_feed_docs(usable, changes);
        cx.count_checked(count, found.min(count));
        Ok(plan)
    }

    fn add(
        &mut self,
        cx: &Context,
        missing: Missing,
        documents: &mut [Option<Document>],
        is_first: bool,
        bulk: bool,
    ) {
        let Missing {
            id,
            revs,
            ancestors,
            index,
            leaves,
        } = missing;
        let is_design = id.is_design();
        let is_one_of_all = revs.len() > 1 && revs.len() == leaves;
        let wanted = |rev: Rev| Wanted {
            id: id.clone(),
            rev,
            ancestors: ancestors.clone(),
            is_one_of_all,
        };
        if is_design || !cx.options.use_bulk_get {
            return self.singles.extend(revs.into_iter().map(wanted));
        }
        // A first revision has no ancestry, so the document in the feed is complete if it still is that revision.
        if let Some(document) = documents[index].take()
            && is_first
            && document.rev.as_ref() == revs.first()
        {
            if document.attachments == Attachments::None {
                return self.here.push(document);
            }
            let Some(bytes) = inline_bytes(&document, &ancestors) else {
                return self.singles.extend(revs.into_iter().map(wanted));
            };
            return self
                .inline
                .extend(revs.into_iter().map(|rev| (wanted(rev), bytes)));
        }
        let way = if bulk {
            &mut self.bulk
        } else {
            &mut self.singles
        };
        way.extend(revs.into_iter().map(wanted));
    }
}

/// Missing revisions of a document.
struct Missing {
    id: DocId,
    revs: Vec<Rev>,
    ancestors: Vec<Rev>,
    /// Its index in the batch.
    index: usize,
    /// The number of leaves in the feed.
    leaves: usize,
}

/// Asks the target what it lacks, or assumes that it lacks everything if it mostly does.
async fn find_missing(
    cx: &Context,
    asked: Vec<(DocId, Vec<Rev>)>,
    count: usize,
) -> Result<Vec<Missing>, Error> {
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    if !cx.asks_revs_diff() {
        let all = asked
            .into_iter()
            .enumerate()
            .map(|(index, (id, revs))| Missing {
                leaves: revs.len(),
                id,
                revs,
                ancestors: Vec::new(),
                index,
            });
        return Ok(all.collect());
    }
    let diff = cx
        .target
        .revs_diff(&asked)
        .await
        .map_err(Error::at(Step::RevsDiff))?;
    let indexes: HashMap<&DocId, usize> = asked
        .iter()
        .enumerate()
        .map(|(index, (id, _))| (id, index))
        .collect();
    let mut missing: Vec<Missing> = diff
        .into_iter()
        .filter(|diff| !diff.missing.is_empty())
        .filter_map(|diff| {
            let index = *indexes.get(&diff.id)?;
            Some(Missing {
                id: diff.id,
                revs: diff.missing,
                ancestors: diff.possible_ancestors,
                index,
                leaves: asked[index].1.len(),
            })
        })
        .collect();
    // In the order of the feed, whatever the target's order is.
    missing.sort_unstable_by_key(|missing| missing.index);
    let strangers: usize = missing
        .iter()
        .filter(|missing| missing.ancestors.is_empty())
        .map(|missing| missing.revs.len())
        .sum();
    cx.observe_revs_diff(count.saturating_sub(strangers), count);
    Ok(missing)
}
