//! The progress of a run.

use std::sync::Arc;

use couch::Seq;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::checkpoint::Resume;
use crate::stats::Stats;

/// Maximum number of recorded rejections.
const FAILURES_MAX: usize = 100;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Opening the endpoints and looking for a checkpoint.
    #[default]
    Starting,
    /// Copying what has changed.
    CatchingUp,
    /// Waiting for changes.
    CaughtUp,
    Paused,
    Ended,
}

/// Why a run started at its position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartedFrom {
    #[default]
    Zero,
    Checkpoint,
    /// Set by the replication (`since_seq`).
    SinceSeq,
}

/// A document that the target lacks because it or its id was rejected.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedDoc {
    pub id: String,
    pub rev: Option<String>,
    /// CouchDB's `error`.
    pub error: String,
    /// The target's reason.
    pub reason: String,
    pub time: Timestamp,
}

/// A snapshot of a run.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    pub phase: Phase,
    /// The counters, including earlier runs.
    pub stats: Stats,
    /// What earlier runs counted.
    pub before: Stats,
    pub start_seq: Option<Seq>,
    pub started_from: StartedFrom,
    /// The newest finished sequence.
    pub source_seq: Option<Seq>,
    /// The sequence up to which everything is finished.
    pub through_seq: Option<Seq>,
    /// The sequence of the last checkpoint.
    pub checkpointed_seq: Option<Seq>,
    /// When that was written.
    pub last_checkpoint: Option<Timestamp>,
    /// What the job should keep for its next run, known when the run has ended.
    pub resume: Option<Resume>,
    /// Pending changes at the source, if known.
    pub changes_pending: Option<u64>,
    /// Since when there has been work; `None` when caught up.
    pub behind_since: Option<Timestamp>,
    /// When anything was last copied, in this run or an earlier one.
    pub last_progress: Option<Timestamp>,
    /// Recent documents per second.
    pub docs_per_second: f64,
    /// Recent bytes per second, both directions together.
    pub bytes_per_second: f64,
    /// The last rejected documents, oldest first.
    pub failures: Arc<Vec<FailedDoc>>,
}

impl Progress {
    /// What this run has counted.
    pub fn own_stats(&self) -> Stats {
        self.stats.since(&self.before)
    }

    /// The statistics shown in job information, `_active_tasks` and the like.
    pub fn to_info(&self, now: Timestamp) -> Map<String, Value> {
        let mut info = self.stats.to_info();
        let members = [
            ("changes_pending", json!(self.changes_pending)),
            (
                "checkpointed_source_seq",
                show_seq(self.checkpointed_seq.as_ref()),
            ),
            ("source_seq", show_seq(self.source_seq.as_ref())),
            ("through_seq", show_seq(self.through_seq.as_ref())),
            ("lag_seconds", json!(self.lag_seconds(now))),
            (
                "last_progress_time",
                json!(self.last_progress.map(whole_second)),
            ),
            ("docs_per_second", json!(rounded(self.docs_per_second))),
            ("bytes_per_second", json!(rounded(self.bytes_per_second))),
        ];
        info.extend(
            members
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value)),
        );
        info
    }

    /// How long it has not been caught up.
    pub fn lag_seconds(&self, now: Timestamp) -> u64 {
        self.behind_since.map_or(0, |since| {
            u64::try_from(now.duration_since(since).as_secs()).unwrap_or(0)
        })
    }

    pub(super) fn add_failures(&mut self, failed: Vec<FailedDoc>) {
        if failed.is_empty() {
            return;
        }
        let all = Arc::make_mut(&mut self.failures);
        all.extend(failed);
        let surplus = all.len().saturating_sub(FAILURES_MAX);
        all.drain(..surplus);
    }
}

/// A sequence as CouchDB shows it: a string, even if the source has numbers.
pub fn show_seq(seq: Option<&Seq>) -> Value {
    match seq.map(|seq| json!(seq)) {
        None => json!("0"),
        Some(Value::Number(number)) => json!(number.to_string()),
        Some(seq) => seq,
    }
}

/// Times in CouchDB's format.
fn whole_second(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second())
        .unwrap_or_default()
        .to_string()
}

fn rounded(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

/// Rates over about the last ten seconds.
#[derive(Debug)]
pub(super) struct Rates {
    since: Instant,
    last: (u64, u64),
    pub(super) docs: f64,
    pub(super) bytes: f64,
}

impl Rates {
    pub(super) fn new(docs: u64, bytes: u64, now: Instant) -> Self {
        Self {
            since: now,
            last: (docs, bytes),
            docs: 0.0,
            bytes: 0.0,
        }
    }

    /// Adds new totals.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a rate needs no more than 52 bits"
    )]
    pub(super) fn update(&mut self, docs: u64, bytes: u64, now: Instant) {
        let elapsed = now.duration_since(self.since).as_secs_f64();
        if elapsed < 1.0 {
            return;
        }
        let weight = (elapsed / 10.0)
            .min(1.0)
            .max(if self.docs == 0.0 { 1.0 } else { 0.0 });
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / elapsed;
        self.docs += weight * (rate(docs, self.last.0) - self.docs);
        self.bytes += weight * (rate(bytes, self.last.1) - self.bytes);
        (self.since, self.last) = (now, (docs, bytes));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn information() {
        let now = Timestamp::from_second(1000).unwrap();
        let progress = Progress {
            through_seq: Seq::from_json("\"3-x\""),
            behind_since: Some(Timestamp::from_second(990).unwrap()),
            last_progress: Some(Timestamp::from_millisecond(995_900).unwrap()),
            ..Progress::default()
        };
        let info = Value::Object(progress.to_info(now));
        assert_eq!(info["through_seq"], "3-x");
        assert_eq!(info["source_seq"], "0");
        assert_eq!(show_seq(Some(&Seq::zero())), "0");
        assert_eq!(info["changes_pending"], Value::Null);
        assert_eq!(info["lag_seconds"], 10);
        assert_eq!(info["last_progress_time"], "1970-01-01T00:16:35Z");
        assert_eq!(info["docs_written"], 0);
    }

    #[test]
    fn the_oldest_failures_go_first() {
        let mut progress = Progress::default();
        let failed = |id: usize| FailedDoc {
            id: id.to_string(),
            rev: None,
            error: "forbidden".to_owned(),
            reason: String::new(),
            time: Timestamp::UNIX_EPOCH,
        };
        progress.add_failures((0..60).map(failed).collect());
        progress.add_failures((60..150).map(failed).collect());
        assert_eq!(
            (progress.failures.len(), progress.failures[0].id.as_str()),
            (100, "50")
        );
    }

    #[test]
    fn rates_follow() {
        let now = Instant::now();
        let mut rates = Rates::new(100, 0, now);
        rates.update(150, 1000, now + Duration::from_millis(500));
        assert_eq!((rates.docs, rates.bytes), (0.0, 0.0));
        rates.update(300, 4000, now + Duration::from_secs(2));
        assert_eq!((rates.docs, rates.bytes), (100.0, 2000.0));
        (3..100).for_each(|second| rates.update(300, 4000, now + Duration::from_secs(second)));
        assert!(rates.docs < 1.0);
    }
}
