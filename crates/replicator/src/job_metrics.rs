//! Counters of jobs, under CouchDB's names.

use metrics::{counter, gauge};

use crate::run::Ended;

pub(crate) fn accepted(jobs: usize) {
    counter!("couchdb_couch_replicator_jobs_accepts_total").increment(jobs as u64);
}

pub(crate) fn started() {
    counter!("couchdb_couch_replicator_jobs_starts_total").increment(1);
}

pub(crate) fn ended(ended: Ended) {
    let name = match ended {
        Ended::Completed => "couchdb_couch_replicator_docs_completed_state_updates_total",
        Ended::Failed => "couchdb_couch_replicator_docs_failed_state_updates_total",
        Ended::Crashed => "couchdb_couch_replicator_jobs_crashes_total",
        Ended::Rescheduled => "couchdb_couch_replicator_jobs_reschedules_total",
        Ended::Halted => "couchdb_couch_replicator_jobs_halts_total",
    };
    counter!(name).increment(1);
}

pub(crate) fn stopped(jobs: usize) {
    counter!("couchdb_couch_replicator_jobs_stops_total").increment(jobs as u64);
}

#[expect(clippy::cast_precision_loss, reason = "nobody has so many jobs")]
pub(crate) fn gauges(running: usize, pending: u64, total: u64) {
    gauge!("couchdb_couch_replicator_jobs_running").set(running as f64);
    gauge!("couchdb_couch_replicator_jobs_pending").set(pending as f64);
    gauge!("couchdb_couch_replicator_jobs_total").set(total as f64);
}
