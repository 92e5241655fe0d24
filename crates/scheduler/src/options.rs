//! Options under the names of CouchDB's `[replicator]` section.

use std::collections::BTreeMap;
use std::time::Duration;

use couch::{ProxyScheme, Schemes};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::limits::ServerLimit;
use replication::engine::{Budget, Settings};
use replication::params::{Defaults, Invalid, SocketOptions};

const BACKOFF_MAX_S: u64 = 30 * 24 * 3600;
const BACKOFF_MIN_S: u64 = 2;

/// The section `[replicator]`: jobs, and the service that runs them. For connections, see [`couch::NetworkOptions`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "an operator turns each on or off"
)]
pub struct Options {
    /// Maximum number of jobs that run concurrently on a node.
    pub max_jobs: usize,
    /// Maximum number of runs that a node starts concurrently against one server. Further runs
    /// wait; a run counts as starting for a few seconds at most. 0 means no limit.
    pub max_starts_per_server: usize,
    /// Run one replication per target database at a time, over all nodes. Others with the same target wait their turn;
    /// replications that are idle keep none waiting. All nodes need the same value.
    pub target_lock: bool,
    /// Maximum number of runs at a time per server, over all nodes: per target's server, or per source's if the target
    /// is below `local_endpoint_base_url`. 0 means no limit. Runs of remotes are limited by `threads` instead. All nodes
    /// need the same value.
    pub max_runs_per_server: u32,
    /// Maximum for single servers, by `HOST:PORT`: a number of runs at a time, or `{ starts = 10, per_sec = 60 }`. At most
    /// 900 servers. Does not apply to runs of remotes. All nodes need the same values.
    pub server_limits: BTreeMap<String, ServerLimit>,
    /// Seconds between scheduler cycles, and before a job that was stopped to make room can run
    /// again.
    pub interval_sec: u64,
    /// Number of waiting jobs that each scheduler cycle may start beyond `max_jobs`, so that every
    /// job gets to run.
    pub max_churn: usize,
    /// Accepted for compatibility with CouchDB. Has no effect: a node claims all its jobs through a
    /// single acceptor.
    pub max_acceptors: usize,
    /// Accepted for compatibility with CouchDB. Has no effect: each job is claimed by one node,
    /// when it is due.
    pub startup_jitter: u64,
    /// Alias of `startup_jitter`, from CouchDB's own configuration file.
    pub accept_jitter: Option<u64>,
    /// Shares of the nodes' time, by name of a replicator database, a user of `_replicate` or a remote, such as
    /// `"other/_replicator" = 300`. Numbers below 1 count as 1, and above 1,000 as 1,000; without a number it is 100. All
    /// nodes need the same values.
    pub shares: BTreeMap<String, u64>,
    /// Minimum number of seconds that a job runs before it is stopped to make room for another; if it has caught up, and
    /// the other waits for its target or server, `park_after_sec` seconds are enough. Ten times as long until it has
    /// copied something that the next run can resume from.
    pub min_run_time_sec: u64,
    /// Seconds after which a continuous job that has caught up becomes idle: it gives up its permit
    /// until its source changes, provided the source can report changes. The time shrinks with the
    /// share of permits that are free: it is halved if half of them are, and zero if none are. 0 means
    /// never.
    pub park_after_sec: u64,
    /// Seconds after which a run counts as healthy and the job's earlier errors are cleared.
    pub health_threshold_sec: u64,
    /// Seconds after which a continuous or triggered replication that has not caught up with its
    /// source is reported as lagging, see `webhooks.events`. 0 means never.
    pub lagging_after_sec: u64,
    /// Half the number of seconds that a job waits after its first error.
    pub min_backoff_penalty_sec: u64,
    /// Maximum number of seconds that a job waits after an error.
    pub max_backoff_penalty_sec: u64,
    /// Number of events kept in a job's history.
    pub max_history: usize,
    /// Seconds between updates of a running job's statistics.
    pub stats_update_interval_sec: u64,
    /// Seconds to keep the result of a transient job (one created with `_replicate`).
    pub transient_job_max_age_sec: u64,
    /// Create the `_replicator` database at startup.
    pub create_replicator_db: bool,
    /// Default for a replication's `worker_processes`.
    pub worker_processes: u64,
    /// Default for a replication's `worker_batch_size`.
    pub worker_batch_size: u64,
    /// Default for a replication's `http_connections`.
    pub http_connections: u64,
    /// Upper limit for a replication's `worker_processes`.
    pub worker_processes_max: u64,
    /// Upper limit for a replication's `worker_batch_size`.
    pub worker_batch_size_max: u64,
    /// Upper limit for a replication's `http_connections`.
    pub http_connections_max: u64,
    /// Default for a replication's `connection_timeout`, in milliseconds.
    pub connection_timeout: u64,
    /// Timeout for a whole request, in milliseconds. Does not apply to streams. 0 means no timeout.
    pub request_timeout: u64,
    /// Default for a replication's `retries_per_request`.
    pub retries_per_request: u64,
    /// Default for a replication's `socket_options`, in CouchDB's syntax. Has no effect on
    /// connections: they are shared between replications and always use `keepalive` and `nodelay`.
    pub socket_options: String,
    /// Default for a replication's `use_checkpoints`.
    pub use_checkpoints: bool,
    /// Default for a replication's `checkpoint_interval`, in milliseconds.
    pub checkpoint_interval: u64,
    /// Default for a replication's `use_bulk_get`.
    pub use_bulk_get: bool,
    /// Allowed protocols for endpoints.
    pub valid_endpoint_protocols: Vec<String>,
    /// Allowed protocols for proxies.
    pub valid_proxy_protocols: Vec<String>,
    /// Maximum length of the ids of copied documents, in bytes. 0 means no limit.
    pub max_document_id_length: usize,
    /// Milliseconds to wait before requesting a revision again that the source announced but did
    /// not return.
    pub missing_doc_retry_msec: u64,
    /// Seconds without progress, while there is work to do, after which a run is restarted. 0 means
    /// never.
    pub no_progress_timeout_sec: u64,
    /// Number of strikes in a row after which a job is set aside as failed. A suspect job gets a
    /// strike when a node stops while starting it. 0 means never.
    pub set_aside_after: u32,
    /// Base URL of endpoints given as plain names, without `http://`. If empty, plain names are
    /// rejected.
    pub local_endpoint_base_url: String,
}

impl Default for Options {
    fn default() -> Self {
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Self {
            max_jobs: 500,
            max_starts_per_server: 32,
            target_lock: true,
            max_runs_per_server: 0,
            server_limits: BTreeMap::new(),
            interval_sec: 15,
            max_churn: 100,
            max_acceptors: 2,
            startup_jitter: 5_000,
            accept_jitter: None,
            shares: BTreeMap::new(),
            min_run_time_sec: 60,
            park_after_sec: 10,
            health_threshold_sec: 120,
            lagging_after_sec: 600,
            min_backoff_penalty_sec: 32,
            max_backoff_penalty_sec: 172_800,
            max_history: 20,
            stats_update_interval_sec: 10,
            transient_job_max_age_sec: 86_400,
            create_replicator_db: true,
            worker_processes: 4,
            worker_batch_size: 500,
            http_connections: 20,
            worker_processes_max: 32,
            worker_batch_size_max: 10_000,
            http_connections_max: 100,
            connection_timeout: 30_000,
            request_timeout: 0,
            retries_per_request: 5,
            socket_options: "[{keepalive, true}, {nodelay, false}]".to_owned(),
            use_checkpoints: true,
            checkpoint_interval: 30_000,
            use_bulk_get: true,
            valid_endpoint_protocols: texts(&["http", "https"]),
            valid_proxy_protocols: texts(&["http", "https", "socks5"]),
            max_document_id_length: 0,
            missing_doc_retry_msec: 2_000,
            no_progress_timeout_sec: 600,
            set_aside_after: 2,
            local_endpoint_base_url: String::new(),
        }
    }
}

impl Options {
    /// Checks the values.
    pub fn validate(&self) -> Result<(), Invalid> {
        let positive = [
            ("interval_sec", self.interval_sec),
            ("worker_processes", self.worker_processes),
            ("worker_batch_size", self.worker_batch_size),
            ("http_connections", self.http_connections),
            ("checkpoint_interval", self.checkpoint_interval),
            ("connection_timeout", self.connection_timeout),
            ("max_history", self.max_history as u64),
        ];
        for (name, value) in positive {
            if value == 0 {
                return Err(Invalid::new(format!("`{name}` must be at least 1")));
            }
        }
        self.validate_limits()?;
        self.validate_shares()?;
        SocketOptions::parse(&self.socket_options)?;
        for name in &self.valid_proxy_protocols {
            if ProxyScheme::from_name(name).is_none() {
                return Err(Invalid::new(format!(
                    "`valid_proxy_protocols`: `{name}` is not known"
                )));
            }
        }
        for name in &self.valid_endpoint_protocols {
            if !matches!(name.as_str(), "http" | "https") {
                return Err(Invalid::new(format!(
                    "`valid_endpoint_protocols`: `{name}` is not known"
                )));
            }
        }
        Ok(())
    }

    /// Defaults for replications.
    pub fn defaults(&self) -> Defaults {
        let proxies = self.valid_proxy_protocols.iter();
        Defaults {
            use_checkpoints: self.use_checkpoints,
            checkpoint_interval: Duration::from_millis(self.checkpoint_interval),
            worker_processes: self.worker_processes,
            worker_batch_size: self.worker_batch_size,
            http_connections: self.http_connections,
            connection_timeout: Duration::from_millis(self.connection_timeout),
            retries_per_request: self.retries_per_request,
            socket_options: SocketOptions::parse(&self.socket_options).unwrap_or_default(),
            use_bulk_get: self.use_bulk_get,
            worker_processes_max: self.worker_processes_max,
            worker_batch_size_max: self.worker_batch_size_max,
            http_connections_max: self.http_connections_max,
            schemes: Schemes {
                endpoint: self.valid_endpoint_protocols.clone(),
                proxy: proxies
                    .filter_map(|name| ProxyScheme::from_name(name))
                    .collect(),
            },
        }
    }

    /// Settings for every run.
    pub fn settings(&self, budget: Budget) -> Settings {
        let some = |number: u64| (number > 0).then_some(number);
        Settings {
            missing_doc_retry: Duration::from_millis(self.missing_doc_retry_msec),
            document_id_bytes_max: Some(self.max_document_id_length).filter(|max| *max > 0),
            no_progress_timeout: some(self.no_progress_timeout_sec).map(Duration::from_secs),
            retry_window: Duration::from_secs(self.health_threshold_sec) / 2,
            request_timeout: some(self.request_timeout).map(Duration::from_millis),
            budget,
            ..Settings::default()
        }
    }

    /// Seconds that a job waits after its `error_count`th error in a row; `random` is any random bits.
    pub(crate) fn backoff_s(&self, error_count: u32, random: u128) -> i64 {
        let max = self.max_backoff_penalty_sec.min(BACKOFF_MAX_S);
        let min = self.min_backoff_penalty_sec.max(BACKOFF_MIN_S);
        let wait = min.saturating_mul(1 << error_count.min(32)).min(max);
        let part = 1 + random % u128::from(wait / 4 + 1);
        i64::try_from(u128::from(wait * 3 / 4) + part).unwrap_or(i64::MAX)
    }

    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs(self.interval_sec.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_is_couchdbs() {
        let options = Options::default();
        let range = |count: u32| {
            let waits = (0..200_000).map(|random| options.backoff_s(count, random));
            waits.fold((i64::MAX, 0), |(min, max), wait| {
                (wait.min(min), wait.max(max))
            })
        };
        // wait = min(32 * 2^n, 172800); floor(0.75 * wait + random(1..floor(wait / 4) + 1))
        assert_eq!(range(0), (25, 33));
        assert_eq!(range(1), (49, 65));
        assert_eq!(range(2), (97, 129));
        assert_eq!(range(10), (24_577, 32_769));
        assert_eq!(range(12), (98_305, 131_073));
        assert_eq!(range(13), (129_601, 172_801));
        assert_eq!(range(u32::MAX), range(13));
        let fast = Options {
            min_backoff_penalty_sec: 0,
            max_backoff_penalty_sec: u64::MAX,
            ..Options::default()
        };
        assert_eq!(fast.backoff_s(1, 0), 4);
        assert_eq!(fast.backoff_s(99, 0), 30 * 24 * 3600 / 4 * 3 + 1);
        let odd = Options {
            min_backoff_penalty_sec: 100,
            max_backoff_penalty_sec: 10,
            ..Options::default()
        };
        assert_eq!(odd.backoff_s(5, 0), 8);
    }

    #[test]
    fn invalid_values_are_rejected() {
        assert_eq!(Options::default().validate(), Ok(()));
        let parse = |json| serde_json::from_str::<Options>(json).unwrap();
        for (json, name) in [
            (r#"{"interval_sec":0}"#, "interval_sec"),
            (r#"{"valid_proxy_protocols":["ftp"]}"#, "ftp"),
            (r#"{"valid_endpoint_protocols":["ftp"]}"#, "ftp"),
            (r#"{"socket_options":"junk"}"#, "socket_options"),
        ] {
            assert!(
                parse(json)
                    .validate()
                    .unwrap_err()
                    .to_string()
                    .contains(name)
            );
        }
        assert!(serde_json::from_str::<Options>(r#"{"max_job":1}"#).is_err());
        let options = parse(
            r#"{"worker_processes":2,"valid_endpoint_protocols":["https"],"accept_jitter":3}"#,
        );
        assert_eq!(options.defaults().worker_processes, 2);
        assert_eq!(options.defaults().schemes.endpoint, ["https"]);
        assert_eq!(options.accept_jitter, Some(3));
        let default = options.defaults().socket_options;
        assert!(default.keepalive && !default.nodelay);
        let settings = options.settings(Budget::default());
        assert_eq!(settings.request_timeout, None);
        assert_eq!(settings.retry_window, Duration::from_mins(1));
    }
}
