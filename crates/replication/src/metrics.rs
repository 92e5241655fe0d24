//! The metrics of this crate, under the names of CouchDB's exporter.

use metrics::counter;

/// A checkpoint was written, or failed.
pub(crate) fn checkpoint(success: bool) {
    if success {
        counter!("couchdb_couch_replicator_checkpoints_success_total").increment(1);
    } else {
        counter!("couchdb_couch_replicator_checkpoints_failure_total").increment(1);
    }
}

/// A changes feed could not be read.
pub(crate) fn changes_read_failure() {
    counter!("couchdb_couch_replicator_changes_read_failures_total").increment(1);
}

/// A run could not open its endpoints.
pub(crate) fn failed_start() {
    counter!("couchdb_couch_replicator_failed_starts_total").increment(1);
}

/// Documents were written to a target.
pub(crate) fn docs_written(count: u64) {
    counter!("davenport_replicator_docs_written_total").increment(count);
}
