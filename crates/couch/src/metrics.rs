//! The metrics of this crate, under the names of CouchDB's exporter.

use ::metrics::{counter, gauge};

pub(crate) fn request() {
    counter!("couchdb_couch_replicator_requests_total").increment(1);
}

/// A request got a response or failed; `streamed` distinguishes feeds and documents from short responses.
pub(crate) fn response(streamed: bool, success: bool) {
    let name = match (streamed, success) {
        (false, true) => "couchdb_couch_replicator_responses_success_total",
        (false, false) => "couchdb_couch_replicator_responses_failure_total",
        (true, true) => "couchdb_couch_replicator_stream_responses_success_total",
        (true, false) => "couchdb_couch_replicator_stream_responses_failure_total",
    };
    counter!(name).increment(1);
}

/// A request took one of its endpoint's connections.
pub(crate) fn connection_acquired() {
    counter!("couchdb_couch_replicator_connection_acquires_total").increment(1);
}

/// A request returned its connection.
pub(crate) fn connection_released() {
    counter!("couchdb_couch_replicator_connection_releases_total").increment(1);
}

pub(crate) fn connection_created() {
    counter!("couchdb_couch_replicator_connection_creates_total").increment(1);
}

/// A connection was closed instead of reused.
pub(crate) fn connection_closed() {
    counter!("couchdb_couch_replicator_connection_closes_total").increment(1);
}

/// `connect_to` redirected a connection.
pub(crate) fn connect_to_applied() {
    counter!("couchdb_couch_replicator_connect_to_applied_total").increment(1);
}

/// Bytes of a response's body arrived.
pub(crate) fn received(bytes: u64) {
    counter!("davenport_replicator_bytes_received_total").increment(bytes);
}

/// Bytes of a request's body were sent.
pub(crate) fn sent(bytes: u64) {
    counter!("davenport_replicator_bytes_sent_total").increment(bytes);
}

/// Whether a server responds: 1 or 0, or NaN if that is not known.
pub(crate) fn endpoint_up(server: &str, up: f64) {
    gauge!("davenport_endpoint_up", "server" => server.to_owned()).set(up);
}
