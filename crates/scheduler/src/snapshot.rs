//! All replications at one time, as rows in memory, and what is counted in them.

pub(crate) mod cause;
pub(crate) mod counted;
pub(crate) mod rates;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jobs::{JobId, JobInfo, Tenant};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub use cause::hint;

use cause::Cause;
use counted::Counts;
use rates::Rates;

use crate::data::JobData;
use crate::live::Live;

/// A new reading is made at most so often.
const AGE: Duration = Duration::from_secs(1);
/// The time between two readings, relative to how long one takes.
const PAUSE: u32 = 10;

/// A job, as read by all views.
pub(crate) struct Seen {
    pub(crate) job: JobId,
    pub(crate) info: JobInfo,
    pub(crate) data: JobData,
    pub(crate) live: Live,
}

/// The state of a replication as users see it, in the order in which they need attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowState {
    Failed,
    Unreachable,
    Crashing,
    Paused,
    Pending,
    Initializing,
    Running,
    Idle,
    Completed,
}

impl RowState {
    pub const ALL: [Self; 9] = [
        Self::Failed,
        Self::Unreachable,
        Self::Crashing,
        Self::Paused,
        Self::Pending,
        Self::Initializing,
        Self::Running,
        Self::Idle,
        Self::Completed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Unreachable => "unreachable",
            Self::Crashing => "crashing",
            Self::Paused => "paused",
            Self::Pending => "pending",
            Self::Initializing => "initializing",
            Self::Running => "running",
            Self::Idle => "idle",
            Self::Completed => "completed",
        }
    }

    /// It has a node.
    pub(crate) fn runs(self) -> bool {
        matches!(self, Self::Unreachable | Self::Running | Self::Idle)
    }
}

/// One replication.
#[derive(Debug)]
pub(crate) struct Row {
    /// The id that its job has, or would have.
    pub(crate) key: String,
    pub(crate) has_job: bool,
    pub(crate) replication_id: Option<String>,
    pub(crate) database: Option<String>,
    pub(crate) doc_id: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) target: Option<String>,
    pub(crate) state: RowState,
    pub(crate) continuous: bool,
    pub(crate) error: Option<Failure>,
    pub(crate) node: Option<String>,
    pub(crate) figures: Figures,
    /// Seconds since 1970.
    pub(crate) next_try: Option<i64>,
    pub(crate) last_updated: Option<i64>,
}

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) cause: Arc<Cause>,
    pub(crate) reason: String,
    pub(crate) count: u32,
}

/// Of a running job, or what is left of its last run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) docs_per_second: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) lag_seconds: Option<u64>,
    pub(crate) changes_pending: Option<u64>,
    pub(crate) docs_written: Option<u64>,
    pub(crate) doc_write_failures: Option<u64>,
}

/// The replications of a tenant at one time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TenantWork {
    pub(crate) running: u64,
    pub(crate) idle: u64,
    pub(crate) waiting: u64,
}

/// All replications at one time.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// By key.
    pub(crate) rows: Vec<Row>,
    pub(crate) tenants: BTreeMap<Tenant, TenantWork>,
    /// False if there are too many to keep.
    pub(crate) complete: bool,
    pub(crate) at_ms: i64,
    pub(crate) made: Instant,
    pub(crate) took: Duration,
    pub(crate) version: u64,
}

/// The last snapshot, and the state for the next.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    last: Mutex<Option<Arc<Snapshot>>>,
    used: Mutex<Option<Instant>>,
    /// Locked by the caller that makes a new snapshot.
    pub(crate) rates: Arc<tokio::sync::Mutex<Rates>>,
    /// How often something was changed here.
    pub(crate) version: AtomicU64,
    /// The numbers of remotes.
    pub(crate) counts: Counts,
}

impl Kept {
    /// What was changed is read before the next answer.
    pub(crate) fn outdate(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn last(&self) -> Option<Arc<Snapshot>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone()
    }

    /// Whether there was none.
    pub(crate) fn set(&self, new: Option<Arc<Snapshot>>) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *last, new).is_none()
    }

    pub(crate) fn use_now(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    pub(crate) fn unused_for(&self) -> Duration {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.map_or(Duration::MAX, |used| used.elapsed())
    }

    pub(crate) fn is_fresh(&self, snapshot: &Snapshot) -> bool {
        self.is_current(snapshot) && lasts(snapshot.made, snapshot.took)
    }

    pub(crate) fn is_current(&self, snapshot: &Snapshot) -> bool {
        snapshot.version == self.version.load(Ordering::Relaxed)
    }
}

/// Whether what was read at that time, and took so long, is still good.
fn lasts(made: Instant, took: Duration) -> bool {
    made.elapsed() < AGE.max(took * PAUSE)
}

impl Snapshot {
    pub(crate) fn row(&self, key: &str) -> Option<&Row> {
        let found = (self.rows).binary_search_by(|row| row.key.as_str().cmp(key));
        found.ok().map(|at| &self.rows[at])
    }
}
