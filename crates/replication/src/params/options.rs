//! Options of a replication.

use std::time::Duration;

use couch::Schemes;
use document::json::Json;

use super::fields::Fields;
use super::filter::Filter;
use super::invalid::Invalid;
use super::trigger::Trigger;

/// The longest interval or time-out; larger values could overflow.
const INTERVAL_MS_MAX: u64 = 366 * 24 * 3_600_000;

/// Defaults for omitted options, and limits. Names are those of `[replicator]`.
#[derive(Clone, Debug)]
pub struct Defaults {
    pub use_checkpoints: bool,
    pub checkpoint_interval: Duration,
    /// The number of concurrent batches.
    pub worker_processes: u64,
    /// Maximum number of changes in a batch.
    pub worker_batch_size: u64,
    pub http_connections: u64,
    /// How long a connection may be silent.
    pub connection_timeout: Duration,
    /// How often a failed request is retried.
    pub retries_per_request: u64,
    pub socket_options: SocketOptions,
    pub use_bulk_get: bool,
    /// Maximum of `worker_processes`.
    pub worker_processes_max: u64,
    /// Maximum of `worker_batch_size`.
    pub worker_batch_size_max: u64,
    /// Maximum of `http_connections`.
    pub http_connections_max: u64,
    /// `valid_endpoint_protocols`, `valid_proxy_protocols`.
    pub schemes: Schemes,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            use_checkpoints: true,
            checkpoint_interval: Duration::from_secs(30),
            worker_processes: 4,
            worker_batch_size: 500,
            http_connections: 20,
            connection_timeout: Duration::from_secs(30),
            retries_per_request: 5,
            socket_options: SocketOptions::default(),
            use_bulk_get: true,
            worker_processes_max: 32,
            worker_batch_size_max: 10_000,
            http_connections_max: 100,
            schemes: Schemes::default(),
        }
    }
}

/// The supported socket options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    pub keepalive: bool,
    pub nodelay: bool,
}

impl SocketOptions {
    fn invalid() -> Invalid {
        Invalid::new("`socket_options` must be a list of `{name, value}` pairs")
    }

    /// Parses `[{keepalive, true}, {nodelay, false}]`. Unknown names are ignored, as in CouchDB.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let list = text.trim().trim_end_matches('.').trim();
        let list = list
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .ok_or_else(Self::invalid)?;
        // The list replaces the default one, so an omitted option is off.
        let mut options = Self {
            keepalive: false,
            nodelay: false,
        };
        let mut rest = list.trim();
        while !rest.is_empty() {
            let (pair, after) = rest
                .strip_prefix('{')
                .and_then(|rest| rest.split_once('}'))
                .ok_or_else(Self::invalid)?;
            let (name, value) = pair.split_once(',').ok_or_else(Self::invalid)?;
            let truth = value.trim() == "true";
            match name.trim() {
                "" => return Err(Self::invalid()),
                "keepalive" => options.keepalive = truth,
                "nodelay" => options.nodelay = truth,
                _ => {}
            }
            rest = after.trim();
            rest = match rest.strip_prefix(',') {
                Some(next) if !next.trim().is_empty() => next.trim(),
                None if rest.is_empty() => rest,
                _ => return Err(Self::invalid()),
            };
        }
        Ok(options)
    }
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            keepalive: true,
            nodelay: false,
        }
    }
}

/// Where checkpoints are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checkpoints {
    /// On source and target, as CouchDB does.
    #[default]
    Both,
    /// Only on the target, for read-only sources.
    Target,
}

/// What happens when the target rejects a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnWriteFailure {
    /// The document is counted, listed and skipped.
    #[default]
    Skip,
    /// The run fails.
    Stop,
}

/// Where `selector` and `doc_ids` are evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FilterWhere {
    /// The source, in its changes feed.
    #[default]
    Source,
    /// Here. The replicator reads the whole feed, so it always sees progress and can always write checkpoints.
    Replicator,
}

/// The options of one replication, with defaults filled in.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are the user's independent switches"
)]
pub struct Options {
    /// Whether it continues after it has caught up.
    pub continuous: bool,
    /// Whether the target is created first.
    pub create_target: bool,
    /// Query parameters for creating the target.
    pub create_target_params: Vec<(String, String)>,
    pub filter: Filter,
    /// Where to start if there is no checkpoint.
    pub since_seq: Option<Json>,
    pub use_checkpoints: bool,
    pub checkpoint_interval: Duration,
    /// The number of concurrent batches.
    pub worker_processes: usize,
    /// Maximum number of changes in a batch.
    pub worker_batch_size: usize,
    pub http_connections: usize,
    /// How long a connection may be silent.
    pub connection_timeout: Duration,
    /// How often a failed request is retried.
    pub retries_per_request: u32,
    pub socket_options: SocketOptions,
    pub use_bulk_get: bool,
    pub winning_revs_only: bool,
    /// Whether deleted documents are skipped.
    pub skip_deleted: bool,
    /// Whether design documents are skipped.
    pub skip_design_docs: bool,
    /// What happens when the target rejects a document.
    pub on_write_failure: OnWriteFailure,
    pub filter_where: FilterWhere,
    pub checkpoints: Checkpoints,
    /// When it runs again, if it is to.
    pub trigger: Option<Trigger>,
}

impl Options {
    pub(super) fn read(fields: &Fields<'_>, defaults: &Defaults) -> Result<Self, Invalid> {
        let flag = |name, default| fields.boolean(name).map(|given| given.unwrap_or(default));
        let number = |name, min, default: u64, max: u64| {
            let given = fields.integer(name, min)?.unwrap_or(default);
            Ok::<_, Invalid>(usize::try_from(given.min(max)).unwrap_or(usize::MAX))
        };
        let interval = |name, default: Duration| {
            let given = fields.integer(name, 1)?.map(Duration::from_millis);
            let longest = Duration::from_millis(INTERVAL_MS_MAX);
            Ok::<_, Invalid>(given.unwrap_or(default).min(longest))
        };
        fields.boolean("cancel")?;
        let retries = fields
            .integer("retries_per_request", 0)?
            .unwrap_or(defaults.retries_per_request);
        let words = [
            ("skip", OnWriteFailure::Skip),
            ("stop", OnWriteFailure::Stop),
        ];
        let on_write_failure = fields.word("on_write_failure", &words)?.unwrap_or_default();
        let words = [
            ("source", FilterWhere::Source),
            ("replicator", FilterWhere::Replicator),
        ];
        let filter_where = fields.word("filter_where", &words)?.unwrap_or_default();
        let words = [("both", Checkpoints::Both), ("target", Checkpoints::Target)];
        let checkpoints = fields.word("checkpoints", &words)?.unwrap_or_default();
        let continuous = flag("continuous", false)?;
        Ok(Self {
            continuous,
            create_target: flag("create_target", false)?,
            create_target_params: read_target_params(fields)?,
            filter: Filter::read(fields)?,
            since_seq: fields.get_unless_null("since_seq").cloned(),
            use_checkpoints: flag("use_checkpoints", defaults.use_checkpoints)?,
            checkpoint_interval: interval("checkpoint_interval", defaults.checkpoint_interval)?,
            worker_processes: number(
                "worker_processes",
                1,
                defaults.worker_processes,
                defaults.worker_processes_max,
            )?,
            worker_batch_size: number(
                "worker_batch_size",
                1,
                defaults.worker_batch_size,
                defaults.worker_batch_size_max,
            )?,
            http_connections: number(
                "http_connections",
                1,
                defaults.http_connections,
                defaults.http_connections_max,
            )?,
            connection_timeout: interval("connection_timeout", defaults.connection_timeout)?,
            retries_per_request: u32::try_from(retries).unwrap_or(u32::MAX),
            socket_options: read_socket_options(fields, defaults.socket_options)?,
            use_bulk_get: flag("use_bulk_get", defaults.use_bulk_get)?,
            winning_revs_only: flag("winning_revs_only", false)?,
            skip_deleted: flag("skip_deleted", false)?,
            skip_design_docs: flag("skip_design_docs", false)?,
            on_write_failure,
            filter_where,
            checkpoints,
            trigger: Trigger::read(fields, continuous)?,
        })
    }
}

/// Query parameters are strings; other values are written as JSON.
fn read_target_params(fields: &Fields<'_>) -> Result<Vec<(String, String)>, Invalid> {
    match fields.get("create_target_params") {
        None => Ok(Vec::new()),
        Some(Json::Object(params)) => Ok(params
            .iter()
            .map(|(name, value)| {
                (
                    name.clone(),
                    value
                        .as_str()
                        .map_or_else(|| value.to_string(), str::to_owned),
                )
            })
            .collect()),
        Some(_) => Err(Invalid::new("`create_target_params` must be an object")),
    }
}

fn read_socket_options(
    fields: &Fields<'_>,
    default: SocketOptions,
) -> Result<SocketOptions, Invalid> {
    match fields.get("socket_options") {
        None => Ok(default),
        Some(Json::String(text)) => SocketOptions::parse(text),
        Some(_) => Err(SocketOptions::invalid()),
    }
}
