//! Reads the changes feed and splits it into batches.
//!
//! Existing changes are read with a normal feed, whose end means that the replication has caught up; a continuous
//! replication then opens a continuous feed. Sequences are expensive for servers, so only every so many rows of the
//! normal feed have one, and batches end there: only such rows are positions to resume from.

use std::time::Duration;

use couch::{Change, Changes, ChangesRequest, FeedKind, Idle, Seq};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::budget::Share;
use super::context::Context;
use crate::checkpoint::is_later;
use crate::error::{Error, Step};
use crate::metrics;

/// Rows between two sequences of a normal feed.
const SEQ_INTERVAL: usize = 100;
/// Larger than any feed.
const CHANGES_MAX: u64 = 1_000_000_000_000_000;
/// Maximum size of a batch.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// The memory per change besides its document.
const CHANGE_BYTES: usize = 160;
/// How long a batch waits for more changes: new changes should arrive soon, but batches of existing changes should be
/// large, even if a filter drops most.
const LINGER: Duration = Duration::from_millis(20);
const LONG_LINGER: Duration = Duration::from_secs(1);
/// After this many rows, a feed with documents is closed if few of them were useful.
const JUDGE_CHANGES: usize = 200;
/// Minimum number of rows before a feed is reopened with documents.
const REOPEN_CHANGES_MIN: usize = 1000;
/// A feed that was open for this long did not fail.
const LONG: Duration = Duration::from_secs(5);
/// How long streams are avoided after a silent one; doubles each time.
const POLLS_FOR_MIN: Duration = Duration::from_mins(1);
const POLLS_FOR_MAX: Duration = Duration::from_hours(1);
/// Feeds are not opened more often, however short they are asked to be.
const FEED_PAUSE_MIN: Duration = Duration::from_secs(1);
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_mins(1);

/// Changes to copy.
pub(super) struct Batch {
    pub(super) changes: Vec<Change>,
    /// The sequence after them, if known.
    pub(super) end: Option<Seq>,
    /// Memory for them.
    pub(super) share: Option<Share>,
}

/// Events of the reader.
pub(super) enum Event {
    Batch(Batch),
    /// All existing changes were sent.
    CaughtUp,
}

/// Reads until the end of the feed; a continuous replication never stops.
pub(super) async fn read(cx: &Context, since: Seq, out: mpsc::Sender<Event>) -> Result<(), Error> {
    let mut reader = Reader {
        cx,
        out,
        position: since,
        changes: Vec::new(),
        bytes: 0,
        share: None,
        last_position: None,
        is_exact: true,
        failures: 0,
        polls_until: None,
        polls_for: POLLS_FOR_MIN,
    };
    // Boxed, so that a waiting reader does not keep space for this.
    Box::pin(reader.catch_up()).await?;
    if cx.options.continuous {
        reader.send(Event::CaughtUp).await;
        reader.follow().await?;
    }
    Ok(())
}

struct Reader<'a> {
    cx: &'a Context,
    out: mpsc::Sender<Event>,
    /// Everything up to here was sent.
    position: Seq,
    changes: Vec<Change>,
    bytes: usize,
    share: Option<Share>,
    /// The last sequence among `changes`, and how many of them it covers.
    last_position: Option<(Seq, usize)>,
    /// Whether nothing after `position` was sent.
    is_exact: bool,
    /// Failures since anything was read.
    failures: u32,
    /// Until when polling replaces streams, because a stream was silent.
    polls_until: Option<Instant>,
    /// How long polling lasts the next time.
    polls_for: Duration,
}

/// Why reading a feed stopped without an error.
enum Stopped {
    End,
    /// To reopen it with documents, or without.
    Reopen,
}

impl Reader<'_> {
    async fn catch_up(&mut self) -> Result<(), Error> {
        loop {
            let with_docs = self.cx.wants_feed_docs();
            // After a failure every row is a position, so that even a feed that always breaks off makes progress.
            let interval = SEQ_INTERVAL.min(self.cx.options.worker_batch_size) as u64;
            let spaced = self.failures == 0 && interval > 1;
            let request = ChangesRequest {
                feed: FeedKind::Normal,
                include_docs: with_docs,
                seq_interval: spaced.then_some(interval),
                // CouchDB counts down from the limit and includes a sequence where the interval divides the rest.
                limit: spaced.then_some(CHANGES_MAX / interval * interval - 1),
                idle: self.cx.idle(true),
                ..self.request()
            };
            let started = Instant::now();
            match self.read_normal(&request).await {
                Ok(Stopped::End) => return Ok(()),
                Ok(Stopped::Reopen) => {}
                // Before its end, a feed has something to send, so one that was silent has failed.
                Err(error) => self.recover(error, started, false).await?,
            }
        }
    }

    async fn read_normal(&mut self, request: &ChangesRequest) -> Result<Stopped, couch::Error> {
        let mut feed = self.cx.source.changes(request).await?;
        let (mut read, mut first_revs) = (0, 0);
        let mut flush_at = None;
        while let Some(change) = self.next(&mut feed, &mut flush_at, LONG_LINGER).await? {
            read += 1;
            first_revs += usize::from(is_first_rev(&change));
            self.add(change).await;
            if read == JUDGE_CHANGES && request.include_docs {
                self.cx.expect_feed_docs(first_revs, read);
            }
            let at_position = if self.changes.is_empty() {
                self.is_exact
            } else {
                self.covers_all()
            };
            if at_position
                && read
                    >= if request.include_docs {
                        JUDGE_CHANGES
                    } else {
                        REOPEN_CHANGES_MIN
                    }
                && self.cx.wants_feed_docs() != request.include_docs
            {
                self.flush().await;
                return Ok(Stopped::Reopen);
            }
        }
        self.end(&feed).await;
        Ok(Stopped::End)
    }

    /// Continues after the end of the normal feed. If continuous feeds are rejected, or a proxy buffers them, each
    /// request ends after the changes that it returns.
    async fn follow(&mut self) -> Result<(), Error> {
        let filtered = self.request().filter != couch::ChangesFilter::None;
        loop {
            let polls = self.polls_until.is_some_and(|until| until > Instant::now());
            let request = ChangesRequest {
                feed: if polls {
                    FeedKind::Longpoll
                } else {
                    FeedKind::Continuous
                },
                include_docs: self.cx.wants_feed_docs(),
                idle: self.cx.idle(!polls && !filtered),
                ..self.request()
            };
            let (started, position) = (Instant::now(), self.position.clone());
            match self.read_continuous(&request).await {
                Ok(()) if polls && self.position != position => {}
                Ok(()) => self.ended(&request, started).await,
                Err(error) if !polls && self.polls_after(&error, started) => {
                    tracing::info!(%error, "continuous changes feed does not work, polling instead");
                    self.keep_covered().await;
                }
                Err(error) => self.recover(error, started, true).await?,
            }
        }
    }

    /// Whether continuous feeds do not work: the server does not support them, or expected heartbeats did not arrive.
    /// Silence may be temporary.
    fn polls_after(&mut self, error: &couch::Error, opened: Instant) -> bool {
        let polls_for = match error {
            couch::Error::BadAnswer { .. } => POLLS_FOR_MAX,
            couch::Error::Refused(answer) if matches!(answer.status, 400 | 405 | 406) => {
                POLLS_FOR_MAX
            }
            couch::Error::Interrupted { cause, .. } | couch::Error::Failed { cause, .. } => {
                match cause {
                    couch::Failure::ReadTimeout { .. } => self.polls_for,
                    couch::Failure::Status(answer) if answer.status == 501 => POLLS_FOR_MAX,
                    _ => return false,
                }
            }
            _ => return false,
        };
        if opened.elapsed() > POLLS_FOR_MAX {
            // It worked before.
            self.polls_for = POLLS_FOR_MIN;
        }
        self.polls_for = (self.polls_for * 2).min(POLLS_FOR_MAX);
        self.polls_until = Some(Instant::now() + polls_for);
        true
    }

    async fn read_continuous(&mut self, request: &ChangesRequest) -> Result<(), couch::Error> {
        let mut feed = self.cx.source.changes(request).await?;
        let mut flush_at = None;
        while let Some(change) = self.next(&mut feed, &mut flush_at, LINGER).await? {
            self.add(change).await;
        }
        self.end(&feed).await;
        Ok(())
    }

    /// The next change. `None` once a batch has waited long enough for it.
    async fn next(
        &mut self,
        feed: &mut Changes,
        flush_at: &mut Option<Instant>,
        linger: Duration,
    ) -> Result<Option<Change>, couch::Error> {
        if self.changes.is_empty() {
            *flush_at = None;
        } else if flush_at.is_none() {
            *flush_at = Some(Instant::now() + linger);
        }
        loop {
            let Some(at) = *flush_at else {
                return feed.next().await;
            };
            tokio::select! {
                biased;
                change = feed.next() => return change,
                () = sleep_until(at) => {
                    self.flush().await;
                    *flush_at = None;
                }
            }
        }
    }

    fn request(&self) -> ChangesRequest {
        ChangesRequest {
            since: self.position.clone(),
            ..self.cx.changes_request()
        }
    }

    /// Adds a change to the batch, and sends a full batch.
    async fn add(&mut self, change: Change) {
        if self.share.is_none() {
            self.share = Some(self.cx.settings.budget.share().await);
        }
        let document = change
            .document
            .as_ref()
            .map_or(0, |document| document.json().len());
        let revs: usize = change.revs.iter().map(|rev| rev.as_str().len() + 24).sum();
        let bytes = CHANGE_BYTES + change.id.as_str().len() + revs + document;
        self.bytes += bytes;
        let has_room = self.share.as_mut().is_some_and(|share| share.grow(bytes));
        let seq = (!change.seq.is_null()).then(|| change.seq.clone());
        self.changes.push(change);
        if let Some(seq) = seq {
            self.last_position = Some((seq, self.changes.len()));
        }
        let is_full = self.changes.len() >= self.cx.options.worker_batch_size;
        if is_full || self.bytes >= BATCH_BYTES_MAX || !has_room {
            self.flush().await;
        }
    }

    /// Whether nothing was read since the last sequence.
    fn covers_all(&self) -> bool {
        self.last_position
            .as_ref()
            .is_some_and(|(_, covered)| *covered == self.changes.len())
    }

    /// Sends what was read, including changes after the last sequence; if the feed breaks off before the next one, they
    /// will be read again.
    async fn flush(&mut self) {
        if self.changes.is_empty() && self.last_position.is_none() {
            return;
        }
        self.is_exact = self.covers_all();
        let end = self.last_position.take().map(|(seq, _)| seq);
        if let Some(end) = &end {
            self.position = end.clone();
        }
        let changes = std::mem::take(&mut self.changes);
        self.bytes = 0;
        let share = self.share.take();
        self.send(Event::Batch(Batch {
            changes,
            end,
            share,
        }))
        .await;
    }

    /// Handles the end of a feed. Changes that a filter dropped at the end are finished, too.
    async fn end(&mut self, feed: &Changes) {
        if let Some(last) = feed.last_seq().filter(|seq| !seq.is_null()) {
            let known = self
                .last_position
                .as_ref()
                .map_or(&self.position, |(seq, _)| seq);
            if is_later(last, known) || !self.changes.is_empty() && !self.covers_all() {
                self.last_position = Some((last.clone(), self.changes.len()));
            }
        }
        self.flush().await;
    }

    /// Fails only if the run has ended; then the reader is dropped, too.
    async fn send(&mut self, event: Event) {
        self.failures = 0;
        let _ = self.out.send(event).await;
    }

    /// Sends what was read up to the last sequence; the rest will be read again. Returns whether there was anything.
    async fn keep_covered(&mut self) -> bool {
        let covered = self
            .last_position
            .as_ref()
            .map_or(0, |(_, covered)| *covered);
        self.changes.truncate(covered);
        self.flush().await;
        covered > 0
    }

    /// Decides whether to retry after an error. Some feeds may send nothing for long.
    async fn recover(
        &mut self,
        error: couch::Error,
        opened: Instant,
        may_be_quiet: bool,
    ) -> Result<(), Error> {
        metrics::changes_read_failure();
        let before = self.failures;
        let progressed = self.keep_covered().await;
        self.failures = if progressed { 0 } else { before };
        let is_healthy = progressed || may_be_quiet && opened.elapsed() > LONG;
        match &error {
            couch::Error::Interrupted { .. } if is_healthy => {
                tracing::debug!(%error, "changes feed was interrupted");
                self.pause(opened).await;
                return Ok(());
            }
            couch::Error::Interrupted { .. }
            | couch::Error::BadAnswer { .. }
            | couch::Error::Refused(_)
            | couch::Error::NotFound(_)
            | couch::Error::Unauthorized(_)
            | couch::Error::Forbidden(_)
                if self.failures < self.cx.options.retries_per_request => {}
            _ => return Err(Error::at(Step::Changes)(error)),
        }
        tracing::warn!(%error, "changes feed failed");
        if is_healthy {
            self.pause(opened).await;
        } else {
            self.wait().await;
        }
        Ok(())
    }

    /// Waits after a feed that ended in order: only until it could have lasted for a second if it lasted for as long as
    /// it was asked to.
    async fn ended(&mut self, request: &ChangesRequest, opened: Instant) {
        match request.idle {
            Idle::TimeoutMs(ms) if opened.elapsed() >= Duration::from_millis(ms) => {
                self.failures = 0;
                sleep(FEED_PAUSE_MIN.saturating_sub(opened.elapsed())).await;
            }
            _ => self.pause(opened).await,
        }
    }

    /// Waits before reopening a feed: not at all if it was open for long, and increasingly long if it ended soon
    /// without anything new.
    async fn pause(&mut self, opened: Instant) {
        if opened.elapsed() > LONG {
            self.failures = 0;
            return;
        }
        self.wait().await;
    }

    async fn wait(&mut self) {
        let wait = FIRST_WAIT
            .saturating_mul(1 << self.failures.min(10))
            .min(LONGEST_WAIT);
        self.failures += 1;
        sleep(wait).await;
    }
}

/// Whether the document in a change may be complete.
fn is_first_rev(change: &Change) -> bool {
    matches!(&change.revs[..], [rev] if rev.generation() == 1) && !change.id.is_design()
}
