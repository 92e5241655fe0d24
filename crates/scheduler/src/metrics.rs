//! Counters of jobs, under CouchDB's names.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use crate::data::Census;
use crate::outcome::{Outcome, Reason};

pub(crate) fn accepted(jobs: usize) {
    counter!("couchdb_couch_replicator_jobs_accepts_total").increment(jobs as u64);
}

/// A job was claimed some milliseconds after the first change that woke it.
pub(crate) fn woken(after_ms: i64) {
    let after_ms = u64::try_from(after_ms).unwrap_or_default();
    histogram!("davenport_replicator_wake_seconds")
        .record(Duration::from_millis(after_ms).as_secs_f64());
}

/// A run has started; with a trigger, for this reason and some milliseconds after it was due.
#[expect(
    clippy::cast_precision_loss,
    reason = "a time in milliseconds is less than 2^52"
)]
pub(crate) fn started(reason: Option<Reason>, now_ms: i64, due_ms: i64) {
    counter!("couchdb_couch_replicator_jobs_starts_total").increment(1);
    if let Some(reason) = reason {
        let late_ms = u64::try_from(now_ms.saturating_sub(due_ms)).unwrap_or_default();
        counter!("davenport_triggered_runs_total", "reason" => reason.as_str()).increment(1);
        histogram!("davenport_triggered_late_seconds")
            .record(Duration::from_millis(late_ms).as_secs_f64());
        gauge!("davenport_triggered_last_start_timestamp_seconds").set(now_ms as f64 / 1000.0);
    }
}

pub(crate) fn ended(outcome: Outcome) {
    let name = match outcome {
        Outcome::Completed => "couchdb_couch_replicator_docs_completed_state_updates_total",
        Outcome::Failed => "couchdb_couch_replicator_docs_failed_state_updates_total",
        Outcome::Crashed => "couchdb_couch_replicator_jobs_crashes_total",
        Outcome::Asleep => "davenport_replicator_jobs_sleeps_total",
        Outcome::Rescheduled => "couchdb_couch_replicator_jobs_reschedules_total",
        Outcome::Halted => "couchdb_couch_replicator_jobs_halts_total",
    };
    counter!(name).increment(1);
}

pub(crate) fn stopped(jobs: usize) {
    counter!("couchdb_couch_replicator_jobs_stops_total").increment(jobs as u64);
}

/// Jobs of this node, and the idle ones among them, which hold no permit.
#[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^52 jobs")]
pub(crate) fn load(running: usize, parked: usize) {
    gauge!("couchdb_couch_replicator_jobs_running").set(running as f64);
    gauge!("davenport_replicator_jobs_idle").set(parked as f64);
}

/// The longest time that a job of this node has been behind its source.
pub(crate) fn lag(lag: Duration) {
    gauge!("davenport_replicator_lag_seconds").set(lag.as_secs_f64());
}

#[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^52 jobs")]
pub(crate) fn queue(pending: u64, total: u64) {
    gauge!("couchdb_couch_replicator_jobs_pending").set(pending as f64);
    gauge!("couchdb_couch_replicator_jobs_total").set(total as f64);
}

/// All replications of the service by state, and triggered ones by what they wait for; the same on every node.
#[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^52 jobs")]
pub(crate) fn replications(census: &Census) {
    for (state, jobs) in census.by_state() {
        gauge!("davenport_replications", "state" => state).set(jobs as f64);
    }
    for (waits_for, jobs) in census.triggered() {
        gauge!("davenport_triggered_replications", "waits_for" => waits_for).set(jobs as f64);
    }
}

/// Runs of a remote, and jobs that wait for one; the same on every node.
#[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^52 jobs")]
pub(crate) fn remote(name: &str, threads: u32, running: usize, waiting: usize) {
    let name = name.to_owned();
    gauge!("davenport_remote_threads", "remote" => name.clone()).set(f64::from(threads));
    gauge!("davenport_remote_running", "remote" => name.clone()).set(running as f64);
    gauge!("davenport_remote_waiting", "remote" => name).set(waiting as f64);
}

/// A run of a remote has ended on this node. One that did nothing does not count.
pub(crate) fn remote_ended(name: &str, outcome: Outcome, has_run: bool) {
    let outcome = match outcome {
        Outcome::Crashed => "failed",
        Outcome::Failed => "dead",
        Outcome::Asleep | Outcome::Completed if has_run => "completed",
        Outcome::Asleep | Outcome::Completed | Outcome::Rescheduled | Outcome::Halted => return,
    };
    let name = name.to_owned();
    counter!("davenport_remote_runs_total", "remote" => name, "outcome" => outcome).increment(1);
}

/// Keys that something may be sealed with: more than one only while keys are changed.
#[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^52 keys")]
pub(crate) fn keys(used: usize) {
    gauge!("davenport_keys_in_use").set(used as f64);
}

/// Items that were resealed.
pub(crate) fn resealed(count: u64) {
    counter!("davenport_resealed_total").increment(count);
}
