//! All replications, with or without a document or a job, as rows in memory: what is counted, grouped, sorted and searched.
//!
//! A listing in any order has to look at every replication. So a frontend reads all of them at once, in pages, and answers
//! from these rows for a second, or ten times as long as the reading took. All numbers of one moment agree because they are
//! counted in the same rows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use docstore::{AllDocsQuery, Db, IdRange};
use jobs::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use super::Seen;
use super::cause::{Cause, Causes, parts};
use super::rates::Rates;
use crate::data::{JobState, document_job_id, job_text};
use crate::fault::ServiceError;
use crate::service::{PARKED_MS, Replications};

/// Rows kept, so that memory is bounded: some 100 MB.
const ROWS_MAX: usize = 250_000;
/// Documents in one transaction.
const ROWS: u64 = 200;
/// A new reading is made at most so often.
const AGE: Duration = Duration::from_secs(1);
/// The time between two readings, relative to how long one takes.
const PAUSE: u32 = 10;
/// Callers wait for a reading that takes less than this; else they get the last one while a new one is made.
const PATIENCE: Duration = Duration::from_secs(1);
/// Rows that no request needed for so long are dropped.
const KEEP: Duration = Duration::from_mins(1);

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
    pub(super) fn runs(self) -> bool {
        matches!(self, Self::Unreachable | Self::Running | Self::Idle)
    }
}

/// One replication.
#[derive(Debug)]
pub(crate) struct Row {
    /// The id that its job has, or would have.
    pub(crate) key: String,
    pub(crate) has_job: bool,
    pub(super) replication_id: Option<String>,
    pub(crate) database: Option<String>,
    pub(crate) doc_id: Option<String>,
    pub(super) user: Option<String>,
    pub(super) source: Option<String>,
    pub(super) target: Option<String>,
    pub(super) state: RowState,
    pub(super) continuous: bool,
    pub(super) error: Option<Failure>,
    pub(super) node: Option<String>,
    pub(super) figures: Figures,
    /// Seconds since 1970.
    pub(super) next_try: Option<i64>,
    pub(super) last_updated: Option<i64>,
}

#[derive(Debug)]
pub(super) struct Failure {
    pub(super) cause: Arc<Cause>,
    pub(super) reason: String,
    pub(super) count: u32,
}

/// Of a running job, or what is left of its last run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub(super) docs_per_second: f64,
    pub(super) bytes_per_second: f64,
    pub(super) lag_seconds: Option<u64>,
    pub(super) changes_pending: Option<u64>,
    pub(super) docs_written: Option<u64>,
    pub(super) doc_write_failures: Option<u64>,
}

/// All replications at one time.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// By key.
    pub(super) rows: Vec<Row>,
    /// False if there are too many to keep.
    pub(super) complete: bool,
    pub(super) at_ms: i64,
    made: Instant,
    took: Duration,
    version: u64,
}

/// The last snapshot, and the state for the next.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    last: Mutex<Option<Arc<Snapshot>>>,
    used: Mutex<Option<Instant>>,
    /// Whoever reads has it.
    rates: Arc<tokio::sync::Mutex<Rates>>,
    /// How often something was changed here.
    version: AtomicU64,
}

impl Kept {
    /// What was changed is read before the next answer.
    pub(crate) fn outdate(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    fn last(&self) -> Option<Arc<Snapshot>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone()
    }

    /// Whether there was none.
    fn set(&self, new: Option<Arc<Snapshot>>) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *last, new).is_none()
    }

    fn use_now(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn unused_for(&self) -> Duration {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.map_or(Duration::MAX, |used| used.elapsed())
    }

    fn is_fresh(&self, snapshot: &Snapshot) -> bool {
        self.is_current(snapshot) && snapshot.made.elapsed() < AGE.max(snapshot.took * PAUSE)
    }

    fn is_current(&self, snapshot: &Snapshot) -> bool {
        snapshot.version == self.version.load(Ordering::Relaxed)
    }
}

impl Snapshot {
    pub(crate) fn row(&self, key: &str) -> Option<&Row> {
        let found = (self.rows).binary_search_by(|row| row.key.as_str().cmp(key));
        found.ok().map(|at| &self.rows[at])
    }
}

impl Replications {
    /// All replications, as they were a short time ago.
    pub(crate) async fn snapshot(&self) -> Result<Arc<Snapshot>, ServiceError> {
        let kept = &self.0.kept;
        kept.use_now();
        let fresh = || kept.last().filter(|last| kept.is_fresh(last));
        if let Some(fresh) = fresh() {
            return Ok(fresh);
        }
        let slow = |last: &Arc<Snapshot>| last.took > PATIENCE && kept.is_current(last);
        if let Some(last) = kept.last().filter(slow) {
            if let Ok(mut rates) = Arc::clone(&kept.rates).try_lock_owned() {
                let replications = self.clone();
                tokio::spawn(async move {
                    if let Err(error) = replications.read_all(&mut rates).await {
                        tracing::warn!(error = %wire::chain(&error), "cannot list all replications");
                    }
                });
            }
            return Ok(last);
        }
        let mut rates = kept.rates.lock().await;
        // Another caller may have read them meanwhile.
        match fresh() {
            Some(fresh) => Ok(fresh),
            None => self.read_all(&mut rates).await,
        }
    }

    async fn read_all(&self, rates: &mut Rates) -> Result<Arc<Snapshot>, ServiceError> {
        let kept = &self.0.kept;
        let (began, at_ms) = (Instant::now(), self.0.jobs.clock().now_ms());
        let version = kept.version.load(Ordering::Relaxed);
        rates.begin(at_ms);
        let mut causes = Causes::default();
        let mut rows = self.rows_of_jobs(rates, &mut causes).await?;
        rows.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        // A job that changed its state during the reading may be there twice.
        rows.dedup_by(|one, other| one.key == other.key);
        self.add_documents(&mut rows, &mut causes).await?;
        let complete = rows.len() <= ROWS_MAX;
        rows.truncate(ROWS_MAX);
        for row in &mut rows {
            let Some(error) = row.error.as_mut() else {
                continue;
            };
            if row.state == RowState::Crashing
                && let Some(outage) = causes.outage_behind(&error.cause)
            {
                error.cause = Arc::clone(outage);
            }
        }
        let snapshot = Arc::new(Snapshot {
            rows,
            complete,
            at_ms,
            made: Instant::now(),
            took: began.elapsed(),
            version,
        });
        if kept.set(Some(Arc::clone(&snapshot))) {
            self.drop_unused();
        }
        Ok(snapshot)
    }

    fn drop_unused(&self) {
        let shared = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(KEEP).await;
                let Some(shared) = shared.upgrade() else {
                    return;
                };
                if shared.kept.unused_for() >= KEEP {
                    shared.kept.set(None);
                    return;
                }
            }
        });
    }

    async fn rows_of_jobs(
        &self,
        rates: &mut Rates,
        causes: &mut Causes,
    ) -> Result<Vec<Row>, ServiceError> {
        let mut rows = Vec::new();
        for state in [State::Running, State::Pending, State::Finished] {
            let mut cursor = None;
            loop {
                let (page, next) = self.state_page(state, cursor.as_ref()).await?;
                rows.extend(page.iter().map(|seen| {
                    let runs = seen.state() == JobState::Running;
                    let rates = if runs { rates.see(seen) } else { (0.0, 0.0) };
                    seen.row(rates, causes)
                }));
                cursor = next;
                if rows.len() > ROWS_MAX {
                    return Ok(rows);
                }
                if cursor.is_none() {
                    break;
                }
            }
        }
        Ok(rows)
    }

    /// Adds the documents that have no job: those that had ended when they were written, and new ones.
    async fn add_documents(
        &self,
        rows: &mut Vec<Row>,
        causes: &mut Causes,
    ) -> Result<(), ServiceError> {
        let jobs = rows.len();
        let mut rest = Some(IdRange::default());
        while let Some(range) = rest {
            let page = self.0.docs.databases_page(&range).await?;
            rest = page.rest;
            for db in page.rows {
                let name = db.name().as_str();
                if name == "_replicator" || name.ends_with("/_replicator") {
                    self.add_documents_of(&db, jobs, rows, causes).await?;
                }
            }
        }
        if rows.len() > jobs {
            rows.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        }
        Ok(())
    }

    async fn add_documents_of(
        &self,
        db: &Db,
        jobs: usize,
        rows: &mut Vec<Row>,
        causes: &mut Causes,
    ) -> Result<(), ServiceError> {
        let mut rest = Some(AllDocsQuery {
            range: IdRange {
                limit: Some(ROWS),
                ..IdRange::default()
            },
            ..AllDocsQuery::default()
        });
        while let Some(query) = rest.take().filter(|_| rows.len() <= ROWS_MAX) {
            let query = &query;
            let known = &rows[..jobs];
            let step = |tx| async move {
                let page = match self.0.docs.all_docs_page_in(&tx, db, query).await {
                    Err(docstore::Error::NoDatabase) => return Ok((Vec::new(), None)),
                    page => page?,
                };
                let mut found = Vec::new();
                for row in &page.rows {
                    let key = job_text(&document_job_id(db.instance(), &row.id));
                    let known = known.binary_search_by(|row| row.key.cmp(&key)).is_ok();
                    if !known && !row.id.starts_with("_design/") {
                        found.extend(self.found_in(&tx, db, &row.id).await?);
                    }
                }
                let next = page.rows.last().map(|row| row.id.clone());
                let full = page.rows.len() as u64 == ROWS || page.rest.is_some();
                Ok::<_, ServiceError>((found, next.filter(|_| full)))
            };
            let (found, next) = (self.0.jobs.store()).transact("list_all", step).await?;
            rows.extend(found.into_iter().map(|doc| doc.row(causes)));
            rest = next.map(|after| AllDocsQuery {
                range: IdRange {
                    after: Some(after),
                    ..query.range.clone()
                },
                ..AllDocsQuery::default()
            });
        }
        Ok(())
    }
}

impl Seen {
    fn row_state(&self) -> RowState {
        match self.state() {
            JobState::Pending if self.data.paused => RowState::Paused,
            JobState::Pending => RowState::Pending,
            JobState::Running if self.outage().is_some() => RowState::Unreachable,
            JobState::Running if self.data.idle => RowState::Idle,
            JobState::Running => RowState::Running,
            JobState::Crashing => RowState::Crashing,
            JobState::Completed => RowState::Completed,
            JobState::Failed => RowState::Failed,
        }
    }

    /// When it runs again, in milliseconds, if it has run and waits.
    pub(super) fn next_try_ms(&self) -> Option<i64> {
        let info = &self.info;
        let waits = info.state == State::Pending && info.attempts > 0 && !self.data.paused;
        Some(info.due_ms).filter(|due_ms| waits && (1..PARKED_MS).contains(due_ms))
    }

    /// `rates` are documents and bytes per second.
    pub(super) fn row(&self, rates: (f64, f64), causes: &mut Causes) -> Row {
        let state = self.row_state();
        let failed = matches!(state, RowState::Failed | RowState::Crashing);
        let info = self.data.info.as_ref().filter(|_| failed);
        let (error, reason) = info.map(parts).unwrap_or_default();
        let cause = match self.outage() {
            Some(outage) => Some((
                causes.outage(&outage.server, &outage.reason),
                &*outage.reason,
            )),
            None => failed.then(|| (causes.of(state, error, reason), reason)),
        };
        let ended = match self.state() {
            JobState::Completed => self.data.info.as_ref().and_then(Value::as_object),
            _ => None,
        };
        let figures = ended.unwrap_or(&self.live.info);
        let count = |name| figures.get(name).and_then(Value::as_u64);
        let running = |value: Option<u64>| value.filter(|_| state.runs());
        Row {
            key: job_text(&self.job),
            has_job: true,
            replication_id: self.data.rep_id.clone(),
            database: self.database().map(str::to_owned),
            doc_id: self.doc_id().map(str::to_owned),
            user: self.user().map(str::to_owned),
            source: self.data.shown.source.clone(),
            target: self.data.shown.target.clone(),
            state,
            continuous: self.data.shown.continuous,
            error: cause.map(|(cause, reason)| Failure {
                cause,
                reason: reason.to_owned(),
                count: self.data.error_count,
            }),
            node: self.node().0.map(str::to_owned),
            figures: Figures {
                docs_per_second: rates.0,
                bytes_per_second: rates.1,
                lag_seconds: running(count("lag_seconds")),
                changes_pending: running(count("changes_pending")),
                docs_written: count("docs_written"),
                doc_write_failures: count("doc_write_failures"),
            },
            next_try: self.next_try_ms().map(|due_ms| due_ms.div_euclid(1000)),
            last_updated: Some(self.data.last_updated.max(self.live.updated)),
        }
    }
}
