//! What the metrics mean, for `# HELP` lines. Counters without labels are there from the start: a first event that creates its
//! counter would be no increase.

use metrics::{counter, describe_counter, describe_gauge, describe_histogram};

/// Without labels.
const COUNTERS: &[(&str, &str)] = &[
    (
        "couchdb_couch_replicator_changes_read_failures_total",
        "Changes feeds of sources that could not be read.",
    ),
    (
        "couchdb_couch_replicator_checkpoints_failure_total",
        "Checkpoints that could not be written.",
    ),
    (
        "couchdb_couch_replicator_checkpoints_success_total",
        "Checkpoints written.",
    ),
    (
        "couchdb_couch_replicator_connect_to_applied_total",
        "Connections that network.connect_to redirected.",
    ),
    (
        "couchdb_couch_replicator_connection_acquires_total",
        "Connections taken by requests.",
    ),
    (
        "couchdb_couch_replicator_connection_closes_total",
        "Connections closed instead of reused.",
    ),
    (
        "couchdb_couch_replicator_connection_creates_total",
        "Connections opened.",
    ),
    (
        "couchdb_couch_replicator_connection_releases_total",
        "Connections returned by requests.",
    ),
    (
        "couchdb_couch_replicator_docs_completed_state_updates_total",
        "Replications that completed.",
    ),
    (
        "couchdb_couch_replicator_docs_failed_state_updates_total",
        "Replications that failed permanently.",
    ),
    (
        "couchdb_couch_replicator_failed_starts_total",
        "Runs that could not open their endpoints.",
    ),
    (
        "couchdb_couch_replicator_jobs_accepts_total",
        "Jobs accepted.",
    ),
    (
        "couchdb_couch_replicator_jobs_crashes_total",
        "Runs that crashed.",
    ),
    (
        "couchdb_couch_replicator_jobs_halts_total",
        "Runs that lost their job to another node.",
    ),
    (
        "couchdb_couch_replicator_jobs_reschedules_total",
        "Runs that gave their job back.",
    ),
    (
        "couchdb_couch_replicator_jobs_starts_total",
        "Runs started.",
    ),
    (
        "couchdb_couch_replicator_jobs_stops_total",
        "Jobs stopped to make room for others.",
    ),
    (
        "couchdb_couch_replicator_requests_total",
        "Requests to sources and targets, including probes.",
    ),
    (
        "couchdb_couch_replicator_responses_failure_total",
        "Requests that failed or got an error.",
    ),
    (
        "couchdb_couch_replicator_responses_success_total",
        "Requests that got a response.",
    ),
    (
        "couchdb_couch_replicator_stream_responses_failure_total",
        "Feeds and streamed documents that failed or got an error.",
    ),
    (
        "couchdb_couch_replicator_stream_responses_success_total",
        "Feeds and streamed documents that got a response.",
    ),
    ("couchdb_httpd_requests_total", "Requests to this frontend."),
    (
        "davenport_httpd_evicted_total",
        "Connections without a request that were closed to make room.",
    ),
    (
        "davenport_httpd_panics_total",
        "Requests whose handling panicked.",
    ),
    (
        "davenport_httpd_turned_away_total",
        "Requests refused because there were too many.",
    ),
    (
        "davenport_replicator_bytes_received_total",
        "Bytes of response bodies received from sources and targets.",
    ),
    (
        "davenport_replicator_bytes_sent_total",
        "Bytes of request bodies sent to sources and targets.",
    ),
    (
        "davenport_replicator_docs_written_total",
        "Documents written to targets.",
    ),
    (
        "davenport_replicator_jobs_sleeps_total",
        "Runs that ended because the replication had caught up and sleeps.",
    ),
    ("davenport_resealed_total", "Items resealed with a new key."),
    (
        "davenport_upstream_failures_total",
        "Forwarded requests that got no response.",
    ),
    (
        "davenport_upstream_requests_total",
        "Requests forwarded to the cluster.",
    ),
];
/// Counters with labels.
const LABELLED: &[(&str, &str)] = &[
    (
        "couchdb_httpd_request_methods",
        "Requests to this frontend, by method.",
    ),
    (
        "couchdb_httpd_status_codes",
        "Responses of this frontend, by status.",
    ),
    (
        "davenport_jobs_accepted_total",
        "Jobs claimed by nodes, by type.",
    ),
    (
        "davenport_jobs_again_total",
        "Runs that gave their job back to the queue, by type.",
    ),
    ("davenport_jobs_created_total", "Jobs created, by type."),
    (
        "davenport_jobs_dead_total",
        "Jobs that became dead letters, by type.",
    ),
    ("davenport_jobs_finished_total", "Jobs finished, by type."),
    ("davenport_jobs_removed_total", "Jobs removed, by type."),
    (
        "davenport_jobs_revived_total",
        "Finished and dead jobs that were run again, by type.",
    ),
    (
        "davenport_jobs_duty_failures_total",
        "Failures of this node's maintenance of a type, by duty.",
    ),
    (
        "davenport_jobs_stalled_total",
        "Jobs taken from nodes that went silent, by type and outcome.",
    ),
    (
        "davenport_jobs_undecodable_total",
        "Undecodable rows of a type that this node skipped.",
    ),
    (
        "davenport_remote_runs_total",
        "Runs of a remote that ended on this node, by remote and outcome.",
    ),
    (
        "davenport_source_missed_total",
        "Changes that the feed of a source did not report, by source.",
    ),
    (
        "davenport_source_updates_total",
        "Updates of databases that this node read from the feeds of sources, by source.",
    ),
    (
        "davenport_source_woken_total",
        "Jobs that this node woke, by source.",
    ),
    (
        "davenport_triggered_runs_total",
        "Runs of triggered replications that this node started, by reason.",
    ),
    (
        "davenport_webhook_calls_total",
        "Calls of endpoints by this node, by rule and outcome.",
    ),
    (
        "davenport_webhook_deliveries_total",
        "Calls of webhooks of this node, by outcome.",
    ),
    (
        "davenport_store_attempts_total",
        "Attempts at store transactions.",
    ),
    (
        "davenport_store_bytes_total",
        "Bytes read and written by store transactions.",
    ),
    (
        "davenport_store_retries_total",
        "Retried attempts, by transaction and reason.",
    ),
    (
        "davenport_store_transactions_total",
        "Store transactions, by name and outcome.",
    ),
];
/// Values that go up and down, and those of the process.
const GAUGES: &[(&str, &str)] = &[
    (
        "couchdb_couch_replicator_jobs_pending",
        "Jobs that wait, in the whole service.",
    ),
    (
        "couchdb_couch_replicator_jobs_running",
        "Jobs of this node.",
    ),
    (
        "couchdb_couch_replicator_jobs_total",
        "Jobs that wait or run, in the whole service.",
    ),
    (
        "davenport_endpoint_up",
        "Whether a source or target server responds: 1 or 0.",
    ),
    ("davenport_info", "The version."),
    ("davenport_jobs", "Jobs in the queue, by type and state."),
    ("davenport_jobs_due", "Jobs that are due, by type."),
    (
        "davenport_jobs_quarantined",
        "Undecodable jobs of a type that are set aside, up to 1,000.",
    ),
    (
        "davenport_jobs_oldest_due_seconds",
        "How long the job that has waited longest has been due.",
    ),
    (
        "davenport_keys_in_use",
        "Keys that something may be sealed with.",
    ),
    (
        "davenport_remote_running",
        "Runs of a remote, on all nodes.",
    ),
    (
        "davenport_remote_threads",
        "How many runs of a remote there may be at once.",
    ),
    (
        "davenport_remote_waiting",
        "Replications of a remote that wait for one of its threads, up to 1,000.",
    ),
    ("davenport_replications", "Replications, by state."),
    ("davenport_replicator_jobs_idle", "Idle jobs of this node."),
    (
        "davenport_replicator_lag_seconds",
        "The longest time that a job of this node has been behind its source.",
    ),
    (
        "davenport_source_fallback",
        "Whether this node compares sequences because it cannot use a feed of the source: 1 or 0.",
    ),
    (
        "davenport_source_handled_timestamp_seconds",
        "Until when this node knows that changes of the source's databases were handled, in Unix time.",
    ),
    (
        "davenport_source_followed",
        "Whether this node follows a source, by source and feed: 1 or 0.",
    ),
    (
        "davenport_triggered_last_start_timestamp_seconds",
        "When this node last started a run of a triggered replication, in Unix time.",
    ),
    (
        "davenport_triggered_replications",
        "Triggered replications that sleep, by what they wait for.",
    ),
    (
        "davenport_webhook_in_flight",
        "Calls of webhooks in progress on this node.",
    ),
    (
        "process_cpu_seconds_total",
        "Processor time used, in seconds.",
    ),
    ("process_max_fds", "Limit of open file descriptors."),
    ("process_open_fds", "Open file descriptors."),
    (
        "process_resident_memory_bytes",
        "Resident memory, including pages of the store.",
    ),
    (
        "process_start_time_seconds",
        "Start time of the process since 1970.",
    ),
    ("process_threads", "Threads."),
    ("process_virtual_memory_bytes", "Virtual memory."),
];
/// Distributions.
const HISTOGRAMS: &[(&str, &str)] = &[
    (
        "couchdb_request_time_seconds",
        "Time to respond to requests.",
    ),
    (
        "davenport_jobs_wait_seconds",
        "How long due jobs waited for a node, by type.",
    ),
    (
        "davenport_replicator_wake_seconds",
        "Time from the first reported change of its source until a sleeping replication runs.",
    ),
    (
        "davenport_triggered_late_seconds",
        "How long triggered replications had been due when this node started them.",
    ),
    (
        "davenport_webhook_attempts",
        "Attempts that delivered calls of webhooks took.",
    ),
    (
        "davenport_webhook_seconds",
        "Duration of calls of webhooks.",
    ),
    (
        "davenport_store_transaction_seconds",
        "Duration of store transactions.",
    ),
];

/// Describes all metrics, and starts counters at 0.
pub(super) fn describe() {
    for (name, help) in COUNTERS {
        describe_counter!(*name, *help);
        counter!(*name).increment(0);
    }
    for (name, help) in LABELLED {
        describe_counter!(*name, *help);
    }
    for (name, help) in GAUGES {
        describe_gauge!(*name, *help);
    }
    for (name, help) in HISTOGRAMS {
        describe_histogram!(*name, *help);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn sources(directory: &Path, text: &mut String) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("tests") {
                sources(&path, text);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                text.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }

    #[test]
    fn every_metric_is_described() {
        let mut text = String::new();
        for name in [
            "api",
            "couch",
            "jobs",
            "node",
            "replication",
            "rules",
            "scheduler",
            "store",
        ] {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
            sources(&root.join(name).join("src"), &mut text);
        }
        let all = [COUNTERS, LABELLED, GAUGES, HISTOGRAMS].concat();
        let described = |name: &str| all.iter().any(|(known, _)| *known == name);
        let names = text.split('"').skip(1).step_by(1).filter(|word| {
            let is_name = word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            is_name
                && (word.starts_with("davenport_") || word.starts_with("couchdb_"))
                && word.len() > 12
        });
        let missing: Vec<_> = names.filter(|name| !described(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
