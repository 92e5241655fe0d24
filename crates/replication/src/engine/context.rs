//! State shared by the parts of a run.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use couch::{ChangesFilter, ChangesRequest, Database, DocId, Document, Idle, Rev, Seq};
use document::matching;
use tokio::time::Instant;

use super::progress::FailedDoc;
use super::ratio::Ratio;
use super::write_size::WriteSize;
use super::{Mistake, Settings};
use crate::checkpoint::Since;
use crate::error::Error;
use crate::params::{Filter, FilterWhere, OnWriteFailure, Options};
use crate::stats::Stats;

/// Bytes of documents per `_bulk_docs`, and per `_bulk_get` response.
pub(super) const GROUP_BYTES_MAX: usize = 1 << 20;
/// The same if most bytes are inline attachments. Reading and writing 2,000 of 20 kB takes CouchDB a sixth less CPU
/// time than with half as much per request, and hardly less with more.
pub(super) const INLINE_GROUP_BYTES_MAX: usize = 2 << 20;
/// Documents per `_bulk_docs`. For 25,000 leaves of 5,000 documents, CouchDB 3.5.2 needs 3.3 s of CPU time in writes of
/// 100, 1.8 s in writes of 500, 1.6 s in writes of 1,000, and 1.8 s in writes of 2,500.
pub(super) const GROUP_DOCS_MAX: usize = 1000;

pub(super) struct Context {
    pub(super) source: Database,
    pub(super) target: Database,
    pub(super) options: Options,
    pub(super) settings: Settings,
    pub(super) planted: Option<Mistake>,
    state: Mutex<State>,
}

/// Statistics learnt during the run.
struct State {
    stats: Stats,
    /// Revisions checked in this run, and those among them that an earlier run may have counted.
    checked: u64,
    counted_before: u64,
    failures: Vec<FailedDoc>,
    revs_diff: Ratio,
    bulk_get: Ratio,
    /// Whether `_bulk_get` returns all leaves of a document that is requested without a revision.
    gives_leaves: bool,
    /// The share of changes whose documents could be taken from the feed.
    feed_docs: FeedDocs,
    /// Recent average bytes per document.
    doc_bytes: usize,
    write_size: WriteSize,
}

#[derive(Clone, Copy)]
struct FeedDocs {
    share: f64,
    observed: bool,
    wanted: bool,
}

impl Context {
    pub(super) fn new(
        (source, target): (Database, Database),
        options: Options,
        settings: Settings,
        stats: Stats,
        target_is_empty: bool,
        since: Since,
    ) -> Self {
        let now = Instant::now();
        // An empty target lacks everything.
        let unknown = if target_is_empty { 1.0 } else { 0.0 };
        let learnt = State {
            stats,
            checked: 0,
            counted_before: since.checked,
            failures: Vec::new(),
            revs_diff: Ratio::new(unknown, 0.4, 0.95, now),
            bulk_get: Ratio::new(0.0, 0.25, 0.5, now),
            gives_leaves: true,
            feed_docs: FeedDocs {
                share: unknown,
                observed: false,
                wanted: (target_is_empty || since.feed_docs) && options.use_bulk_get,
            },
            doc_bytes: 4096,
            write_size: WriteSize::new(),
        };
        Self {
            source,
            target,
            options,
            settings,
            planted: None,
            state: Mutex::new(learnt),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut Stats)) {
        change(&mut self.state().stats);
    }

    /// Counts revisions that the target was asked about, and those that it lacks. Those that it has may have been counted
    /// when they were copied, if the checkpoint was not moved then.
    pub(super) fn count_checked(&self, checked: usize, missing: usize) {
        let mut state = self.state();
        let again = state.counted_before.min((checked - missing) as u64);
        state.counted_before -= again;
        state.checked += checked as u64;
        state.stats.missing_checked += checked as u64 - again;
        state.stats.missing_found += missing as u64;
    }

    /// The number of revisions checked in this run.
    pub(super) fn checked(&self) -> u64 {
        self.state().checked
    }

    /// The counters; bytes are those of both endpoints' requests, feeds included.
    pub(super) fn stats(&self) -> Stats {
        let mut stats = self.state().stats;
        stats.bytes_read += self.source.traffic().bytes_read;
        stats.bytes_written += self.target.traffic().bytes_written;
        stats
    }

    /// All bytes transferred, to detect progress.
    pub(super) fn bytes_moved(&self) -> u64 {
        let (source, target) = (self.source.traffic(), self.target.traffic());
        source.bytes_read + source.bytes_written + target.bytes_read + target.bytes_written
    }

    pub(super) fn take_failures(&self) -> Vec<FailedDoc> {
        std::mem::take(&mut self.state().failures)
    }

    /// Counts and records a rejected document. An error if the run must not continue without it.
    pub(super) fn fail_doc(
        &self,
        id: &DocId,
        rev: Option<&Rev>,
        error: &str,
        reason: &str,
    ) -> Result<(), Error> {
        tracing::warn!(doc.id = %id, error, reason, "target rejected a document");
        let failed = FailedDoc {
            id: id.as_str().to_owned(),
            rev: rev.map(|rev| rev.as_str().to_owned()),
            error: error.to_owned(),
            reason: reason.to_owned(),
            time: jiff::Timestamp::now(),
        };
        let mut state = self.state();
        state.stats.doc_write_failures += 1;
        state.failures.push(failed);
        match self.options.on_write_failure {
            OnWriteFailure::Skip => Ok(()),
            OnWriteFailure::Stop => Err(Error::DocWrite(format!(
                "{error}: {reason} (document `{id}`)"
            ))),
        }
    }

    pub(super) fn asks_revs_diff(&self) -> bool {
        self.state().revs_diff.is_worthwhile(Instant::now())
    }

    /// Records how many of the requested revisions the target had, directly or as an ancestor.
    pub(super) fn observe_revs_diff(&self, on_target: usize, asked: usize) {
        self.state()
            .revs_diff
            .observe(on_target, asked, Instant::now());
    }

    pub(super) fn asks_bulk_get(&self) -> bool {
        self.options.use_bulk_get && self.state().bulk_get.is_worthwhile(Instant::now())
    }

    pub(super) fn observe_bulk_get(&self, successes: usize, attempts: usize) {
        (self.state().bulk_get).observe(successes, attempts, Instant::now());
    }

    /// Counts each document once, by the request that it came with.
    pub(super) fn count_bulk_get(&self, docs: usize, attempts: usize) {
        self.count(|stats| {
            stats.bulk_get_docs += docs as u64;
            stats.bulk_get_attempts += attempts as u64;
        });
    }

    /// Whether to request a document with all its leaves, which saves the source a search for each.
    pub(super) fn asks_leaves(&self) -> bool {
        self.state().gives_leaves
    }

    /// Records how many leaves came of those that were requested by document.
    pub(super) fn observe_leaves(&self, found: usize, wanted: usize) {
        if found < wanted.div_ceil(2) {
            self.state().gives_leaves = false;
        }
    }

    /// The number of documents per request.
    pub(super) fn fetch_docs_max(&self) -> usize {
        (GROUP_BYTES_MAX / self.state().doc_bytes.max(1)).clamp(1, 10_000)
    }

    pub(super) fn observe_doc(&self, bytes: usize) {
        let mut state = self.state();
        // Growth counts at once, so that many large documents are never requested together.
        state.doc_bytes = if bytes > state.doc_bytes {
            bytes
        } else {
            (state.doc_bytes * 15 + bytes) / 16
        };
    }

    /// The maximum size of a write, with or without inline attachments.
    pub(super) fn write_bytes_max(&self, inline: bool) -> usize {
        self.state().write_size.bytes_max(inline)
    }

    /// Records the duration of a write.
    pub(super) fn observe_write(&self, bytes: usize, took: Duration) {
        self.state().write_size.took(bytes, took);
    }

    /// Records that a write was too large.
    pub(super) fn observe_too_large(&self, bytes: usize) {
        self.state().write_size.too_large(bytes);
    }

    /// Whether the feed should include documents. That is cheaper than fetching them separately if most are new and of
    /// the first generation: only those are complete without their ancestry.
    pub(super) fn wants_feed_docs(&self) -> bool {
        let mut state = self.state();
        let docs = &mut state.feed_docs;
        if docs.observed {
            docs.wanted = docs.share > if docs.wanted { 0.4 } else { 0.6 };
        }
        docs.wanted && self.options.use_bulk_get
    }

    /// Records the maximum number of documents of a feed that can be used, before any of them was.
    pub(super) fn expect_feed_docs(&self, usable: usize, changes: usize) {
        if !self.state().feed_docs.observed && usable * 10 < changes * 4 {
            self.observe_feed_docs(usable, changes);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of a batch are small")]
    pub(super) fn observe_feed_docs(&self, usable: usize, changes: usize) {
        if changes == 0 {
            return;
        }
        let share = usable as f64 / changes as f64;
        let docs = &mut self.state().feed_docs;
        let weight = if docs.observed {
            (changes as f64 / 1000.0).min(0.5)
        } else {
            1.0
        };
        docs.share += weight * (share - docs.share);
        docs.observed = true;
    }

    /// Whether documents are filtered here instead of at the source.
    pub(super) fn filters_here(&self) -> bool {
        filters_here(&self.options)
    }

    /// Whether a local list of ids accepts a change.
    pub(super) fn admits_id(&self, id: &DocId) -> bool {
        match &self.options.filter {
            Filter::DocIds(ids) if self.filters_here() => ids
                .binary_search_by(|known| known.as_str().cmp(id.as_str()))
                .is_ok(),
            _ => true,
        }
    }

    /// Whether a local selector accepts a document.
    pub(super) async fn admits(&self, document: &Document) -> Result<bool, Error> {
        match &self.options.filter {
            Filter::Selector(selector) if self.filters_here() => {
                let matched = matching::matches(selector.compiled(), document.json().clone());
                matched.await.map_err(|cause| Error::FilterTooExpensive {
                    id: document.id.to_string(),
                    cause,
                })
            }
            _ => Ok(true),
        }
    }

    /// Whether a document read in place of this revision is a later deletion that `skip_deleted` drops: it was made after the
    /// feed had reported the revision.
    pub(super) fn is_late_deletion(&self, document: &Document, wanted: &Rev) -> bool {
        self.options.skip_deleted && document.deleted && document.rev.as_ref() != Some(wanted)
    }

    /// The parameters of every feed.
    pub(super) fn changes_request(&self) -> ChangesRequest {
        changes_request(&self.options)
    }

    /// What the source sends while there are no changes: an empty line keeps a connection alive, but only the end of a
    /// response says how far a filtered feed is.
    pub(super) fn idle(&self, heartbeat: bool) -> Idle {
        let time_limit =
            u64::try_from(self.options.connection_timeout.as_millis()).unwrap_or(u64::MAX);
        // A third of the time-out, but at least a second unless that would be too late.
        let ms = (time_limit / 3)
            .max(1000)
            .min((time_limit / 3).saturating_mul(2))
            .max(1);
        if heartbeat {
            Idle::HeartbeatMs(ms)
        } else {
            Idle::TimeoutMs(ms)
        }
    }
}

fn filters_here(options: &Options) -> bool {
    options.filter_where == FilterWhere::Replicator
        && matches!(options.filter, Filter::DocIds(_) | Filter::Selector(_))
}

/// The parameters of every feed of a replication.
fn changes_request(options: &Options) -> ChangesRequest {
    let filter = match &options.filter {
        _ if filters_here(options) => ChangesFilter::None,
        Filter::None => ChangesFilter::None,
        Filter::BuiltIn { name, query_params } => {
            ChangesFilter::Named(name.clone(), members(query_params))
        }
        Filter::User {
            design_doc,
            name,
            query_params,
        } => ChangesFilter::Named(format!("{design_doc}/{name}"), members(query_params)),
        Filter::DocIds(ids) => {
            ChangesFilter::DocIds(ids.iter().map(|id| DocId::from(id.as_str())).collect())
        }
        Filter::Selector(selector) => ChangesFilter::Selector(selector.given().to_string()),
    };
    ChangesRequest {
        filter,
        all_leaves: !options.winning_revs_only,
        ..ChangesRequest::default()
    }
}

/// The last sequence of a source whose feed has fewer changes than this after a sequence; `None` if it has as many, or is
/// another database than the one of that sequence.
pub(super) async fn fewer_after(
    source: &Database,
    options: &Options,
    since: &Seq,
    count: u64,
) -> Result<Option<Seq>, couch::Error> {
    let request = ChangesRequest {
        since: since.clone(),
        limit: Some(count),
        ..changes_request(options)
    };
    let mut changes = source.changes(&request).await?;
    for _ in 0..count {
        if changes.next().await?.is_none() {
            let last = changes.last_seq().unwrap_or(since).clone();
            return Ok((!is_replaced(source, since).await?).then_some(last));
        }
    }
    Ok(None)
}

/// Whether a source has not come as far as a sequence that was read from it. Its feed after that sequence is empty, whatever
/// it has. Only where sequences are numbers: those of a cluster's nodes differ.
async fn is_replaced(source: &Database, since: &Seq) -> Result<bool, couch::Error> {
    let Some(since) = since.as_number().filter(|since| *since > 0) else {
        return Ok(false);
    };
    let now = source.info().await?.update_seq.as_number();
    Ok(now.is_some_and(|now| now < since))
}

fn members(params: &document::json::Json) -> serde_json::Map<String, serde_json::Value> {
    match params.to_value() {
        serde_json::Value::Object(members) => members,
        _ => serde_json::Map::new(),
    }
}
