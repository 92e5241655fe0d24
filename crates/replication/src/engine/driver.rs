//! A run after it has opened its endpoints: passes over the feed, pauses, checkpoints, the end.

mod pass;
mod watchdog;

use std::sync::Arc;
use std::time::Duration;

use couch::Seq;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout};

use super::concurrency::Concurrency;
use super::context::Context;
use super::handles::{Checkpoint, Gate, Handles};
use super::open::Opened;
use super::progress::{Phase, Rates, StartedFrom};
use super::through::Through;
use super::{Ending, Report, Run};
use crate::checkpoint::{Checkpointer, Resume, Since, is_far};
use crate::error::Error;
use crate::metrics;
use crate::stats::Stats;
use pass::{Pass, Passed};

/// Time limit of the last checkpoint of a run that stops or fails.
const LAST_CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn drive(run: &Run, opened: Opened, handles: Handles) -> Result<Report, Error> {
    let Opened {
        source,
        target,
        checkpointer,
        start,
        started_from,
        stats,
        target_is_empty,
        resume,
        last_result,
    } = opened;
    let options = run.replication.options.clone();
    let mut cx = Context::new(
        (source, target),
        options,
        run.settings.clone(),
        stats,
        target_is_empty,
        resume
            .as_ref()
            .map(|resume| resume.since)
            .unwrap_or_default(),
    );
    cx.planted = run.planted();
    let mut driver = Driver::new(
        &cx,
        run,
        handles,
        checkpointer,
        (start, resume),
        last_result,
    );
    driver.handles.progress.send_modify(|progress| {
        (progress.stats, progress.before) = (driver.before, driver.before);
        if started_from == StartedFrom::Zero {
            // All documents are tried again.
            progress.failures = Arc::default();
        }
        progress.start_seq = Some(driver.through.through().clone());
        progress.started_from = started_from;
        progress.checkpointed_seq =
            (started_from == StartedFrom::Checkpoint).then(|| driver.committed.clone());
    });
    driver.publish(Phase::CatchingUp);
    let ended = Box::pin(driver.live()).await;
    Box::pin(driver.conclude(ended)).await
}

struct Driver<'a> {
    cx: &'a Context,
    run: &'a Run,
    handles: Handles,
    through: Through,
    concurrency: Concurrency,
    /// `None` while it writes a checkpoint.
    checkpointer: Option<Box<Checkpointer>>,
    committed: Seq,
    checkpoint_at: Instant,
    /// What earlier runs counted.
    before: Stats,
    /// What the job kept of the last run, if it still applies.
    resume: Option<Resume>,
    /// The body of the last checkpoint of changes.
    result: Map<String, Value>,
    rates: Rates,
    /// Pending changes when the source was last asked, and the number read by then.
    pending: Option<(u64, u64)>,
    changes_read: u64,
    /// The progress counter at the last change, and its time.
    moved: (u64, Instant),
    filter_failures: u32,
}

impl<'a> Driver<'a> {
    fn new(
        cx: &'a Context,
        run: &'a Run,
        handles: Handles,
        checkpointer: Checkpointer,
        (start, resume): (Seq, Option<Resume>),
        mut last_result: Map<String, Value>,
    ) -> Self {
        let now = Instant::now();
        let stats = cx.stats();
        // If nothing happens, the result is that of the last run in which something did.
        if !has_matches(&stats) {
            last_result.clear();
        }
        last_result.shift_insert(0, "no_changes".to_owned(), Value::Bool(true));
        Self {
            cx,
            run,
            handles,
            committed: start.clone(),
            through: Through::new(start, run.planted()),
            concurrency: Concurrency::new(cx.options.worker_processes, now),
            checkpointer: Some(Box::new(checkpointer)),
            checkpoint_at: now + cx.options.checkpoint_interval,
            before: stats,
            resume,
            result: last_result,
            rates: Rates::new(
                stats.docs_written,
                stats.bytes_read + stats.bytes_written,
                now,
            ),
            pending: None,
            changes_read: 0,
            moved: (cx.bytes_moved(), now),
            filter_failures: 0,
        }
    }

    /// Whether there were changes that this replication copies.
    fn has_matched(&self) -> bool {
        has_matches(&self.cx.stats().since(&self.before))
    }

    /// Repeats passes over the feed until the run ends.
    async fn live(&mut self) -> Result<Ending, Error> {
        loop {
            match Pass::new(self).run().await? {
                Passed::Done => return Ok(Ending::Completed),
                Passed::Stopped => return Ok(Ending::Stopped),
                Passed::FilterChanged => return Ok(Ending::FilterChanged),
                Passed::Paused => {
                    Box::pin(self.checkpoint_now()).await?;
                    self.publish(Phase::Paused);
                    let go_on = self.handles.paused.wait_for(|paused| !paused);
                    tokio::select! {
                        biased;
                        () = self.handles.stop.cancelled() => return Ok(Ending::Stopped),
                        // Without a handle that could resume it, there is no pause.
                        _ = go_on => {}
                    }
                    self.moved.1 = Instant::now();
                    self.publish(Phase::CatchingUp);
                }
            }
        }
    }

    /// Writes the last checkpoint and builds the report.
    async fn conclude(mut self, ended: Result<Ending, Error>) -> Result<Report, Error> {
        let ending = match ended {
            Ok(ending) => ending,
            Err(error) => {
                if !error.is_about_checkpoints() {
                    self.last_checkpoint().await;
                }
                return Err(self.failed(error));
            }
        };
        let is_complete = ending == Ending::Completed;
        if is_complete {
            // Changes that a filter dropped were counted as pending as well.
            self.pending = Some((0, self.changes_read));
        }
        // Without a checkpoint, the next run would start over, and so would every later one.
        let is_repeated = is_complete || self.handles.rest.is_cancelled();
        if is_repeated && self.defers_checkpoint() {
            self.result_without_checkpoint();
        } else if !is_repeated {
            self.last_checkpoint().await;
        } else if let Err(error) = self.checkpoint_now().await {
            return Err(self.failed(error));
        }
        if !self.cx.options.use_checkpoints && self.has_matched() {
            self.result = [("use_checkpoints".to_owned(), Value::Bool(false))]
                .into_iter()
                .collect();
        }
        self.publish(Phase::Ended);
        let mut progress = self.handles.progress.borrow().clone();
        progress.resume = self.resume();
        Ok(Report {
            ending,
            result: self.result,
            progress,
        })
    }

    fn failed(&mut self, error: Error) -> Error {
        // The run then starts over without what the job kept.
        let is_again = self.resume.is_some()
            && matches!(error, Error::Checkpoint(_))
            && !self.handles.stop.is_cancelled();
        self.publish(if is_again {
            Phase::Starting
        } else {
            Phase::Ended
        });
        error
    }

    /// Whether the checkpoints may stay as they are: the next run will read again what this one has read, and should not
    /// count again what was not copied.
    fn defers_checkpoint(&self) -> bool {
        let (Some(resume), Some(checkpointer)) = (&self.resume, &self.checkpointer) else {
            return false;
        };
        let own = self.cx.stats().since(&self.before);
        let interval = self.cx.options.checkpoint_interval;
        // What the source filters out is not counted here, but the source would examine it again.
        let is_far = self.cx.changes_request().filter != couch::ChangesFilter::None
            && is_far(&self.committed, self.through.through());
        checkpointer.written.is_none()
            && own.doc_write_failures == 0
            && own.docs_filtered == 0
            && !is_far
            && resume.defers(self.changes_read, interval, Timestamp::now())
    }

    fn result_without_checkpoint(&mut self) {
        if self.is_dirty()
            && self.has_matched()
            && let Some(checkpointer) = &self.checkpointer
        {
            let (through, stats) = (self.through.through(), self.cx.stats());
            self.result = checkpointer.body(through, &stats, Timestamp::now());
        }
    }

    /// What the job should keep for its next run.
    fn resume(&self) -> Option<Resume> {
        let checkpointer = self.checkpointer.as_ref()?;
        let mut since = Since {
            feed_docs: self.cx.wants_feed_docs(),
            ..Since::default()
        };
        let before = self.resume.as_ref();
        if checkpointer.written.is_none() {
            let before = before.map(|before| before.since).unwrap_or_default();
            since.read = before.read + self.changes_read;
            // A run that is stopped may not have read again what was counted before.
            since.checked = self.cx.checked().max(before.checked);
        }
        checkpointer.resume(before, since)
    }

    /// Whether there is something to record since the last checkpoint.
    fn is_dirty(&self) -> bool {
        self.cx.options.use_checkpoints && *self.through.through() != self.committed
    }

    async fn checkpoint_now(&mut self) -> Result<(), Error> {
        if !self.is_dirty() {
            return Ok(());
        }
        let Some(checkpointer) = self.checkpointer.take() else {
            return Ok(());
        };
        let through = self.through.through().clone();
        let (checkpointer, written) =
            write_checkpoint(checkpointer, &self.handles.gate, through, self.cx.stats()).await;
        self.checkpointed(checkpointer, written)
    }

    /// The same for a run that ends anyway: a failure only means repeated work.
    async fn last_checkpoint(&mut self) {
        match timeout(LAST_CHECKPOINT_TIMEOUT, self.checkpoint_now()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "cannot write the last checkpoint"),
            Err(_) => tracing::warn!("timed out writing the last checkpoint"),
        }
    }

    fn checkpointed(
        &mut self,
        checkpointer: Box<Checkpointer>,
        written: Result<Map<String, Value>, Error>,
    ) -> Result<(), Error> {
        metrics::checkpoint(written.is_ok());
        self.committed = checkpointer.committed.clone();
        self.checkpointer = Some(checkpointer);
        self.checkpoint_at = Instant::now() + self.checkpoint_interval();
        let body = written?;
        // A checkpoint that only moves the position is not a result.
        if self.has_matched() {
            self.result = body;
        }
        if let Some(observer) = &self.run.observer {
            let replication = self.run.identity.replication.as_str();
            observer.checkpoint_written(replication, &self.run.session_id);
        }
        let committed = self.committed.clone();
        self.handles.progress.send_modify(|progress| {
            progress.checkpointed_seq = Some(committed);
            progress.last_checkpoint = Some(Timestamp::now());
        });
        Ok(())
    }

    /// Three quarters to all of the interval, so that runs that started together spread out.
    fn checkpoint_interval(&self) -> Duration {
        let random = self
            .run
            .session_id
            .bytes()
            .fold(0_u32, |sum, byte| sum.wrapping_mul(31) + u32::from(byte));
        self.cx.options.checkpoint_interval * (768 + random % 257) / 1024
    }

    /// Publishes the progress.
    fn publish(&mut self, phase: Phase) {
        let now = Timestamp::now();
        let stats = self.cx.stats();
        self.rates.update(
            stats.docs_written,
            stats.bytes_read + stats.bytes_written,
            Instant::now(),
        );
        let is_working = phase == Phase::CatchingUp;
        let (docs, bytes) = if is_working {
            (self.rates.docs, self.rates.bytes)
        } else {
            (0.0, 0.0)
        };
        let pending = match phase {
            Phase::CaughtUp => Some(0),
            _ => self
                .pending
                .map(|(pending, read)| pending.saturating_sub(self.changes_read - read)),
        };
        let failures = self.cx.take_failures();
        let own = stats.since(&self.before);
        // Requests that copy nothing are written as well.
        let is_copying =
            is_working && own.missing_found > own.docs_written + own.doc_write_failures;
        self.handles.progress.send_modify(|progress| {
            let has_written = is_copying && progress.stats.bytes_written != stats.bytes_written;
            let has_copied = has_written || progress.stats.documents() != stats.documents();
            progress.phase = phase;
            (progress.stats, progress.before) = (stats, self.before);
            let through = self.through.through();
            progress.source_seq = Some(self.through.highest_done().unwrap_or(through).clone());
            progress.through_seq = Some(through.clone());
            progress.changes_pending = pending;
            progress.behind_since = match phase {
                Phase::CaughtUp => None,
                _ => progress.behind_since.or(Some(now)),
            };
            if has_copied {
                progress.last_progress = Some(now);
            }
            (progress.docs_per_second, progress.bytes_per_second) = (docs, bytes);
            progress.add_failures(failures);
        });
    }
}

/// Whether these counters are of changes that the replication copies.
fn has_matches(stats: &Stats) -> bool {
    stats.missing_checked > 0 || stats.doc_write_failures > 0
}

/// Writes a checkpoint if the gate allows it.
async fn write_checkpoint(
    mut checkpointer: Box<Checkpointer>,
    gate: &Gate,
    through: Seq,
    stats: Stats,
) -> (Box<Checkpointer>, Result<Map<String, Value>, Error>) {
    let checkpoint = Checkpoint {
        through: through.clone(),
        stats,
    };
    if gate.pass(checkpoint).await.is_err() {
        return (checkpointer, Err(Error::Halted));
    }
    let written = checkpointer.write(&through, &stats, Timestamp::now()).await;
    (checkpointer, written)
}
