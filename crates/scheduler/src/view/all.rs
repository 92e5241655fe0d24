//! All replications, with or without a document or a job, as rows in memory: what is counted, grouped, sorted and searched.
//!
//! A listing in any order needs every replication. So a frontend reads all of them at once, in pages, and answers from
//! these rows for a second, or ten times as long as the read took. Numbers of one moment agree because they are counted
//! in the same rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use docstore::{AllDocsQuery, Db, IdRange};
use jobs::{State, Tenant};
use serde_json::Value;
use tokio::time::Instant;

use super::rules::has_replications;
use crate::data::{JobState, document_job_id, job_text};
use crate::fault::ServiceError;
use crate::service::{PARKED_MS, Replications};
use crate::snapshot::cause::{Causes, parts};
use crate::snapshot::rates::Rates;
use crate::snapshot::{Failure, Figures, Row, RowState, Seen, Snapshot, TenantWork};

/// Rows kept, so that memory is bounded: some 100 MB.
const ROWS_MAX: usize = 250_000;
/// Documents in one transaction.
const ROWS: u64 = 200;
/// Callers wait this long for a read; then they get the last snapshot while it continues.
const PATIENCE: Duration = Duration::from_secs(1);
/// Rows that no request needed for so long are dropped.
const KEEP: Duration = Duration::from_mins(1);

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
        let mut tenants = BTreeMap::new();
        let mut rows = (self.rows_of_jobs(rates, &mut causes, &mut tenants)).await?;
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
            tenants,
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
        tenants: &mut BTreeMap<Tenant, TenantWork>,
    ) -> Result<Vec<Row>, ServiceError> {
        let now_ms = self.0.jobs.clock().now_ms();
        let mut rows = Vec::new();
        let states = [State::Running, State::Pending, State::Finished, State::Dead];
        for state in states {
            let mut cursor = None;
            loop {
                let (page, next) = self.state_page(state, cursor.as_ref()).await?;
                for seen in &page {
                    seen.work(tenants, now_ms);
                }
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
                if has_replications(name) {
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

    /// Counts it for its tenant.
    fn work(&self, tenants: &mut BTreeMap<Tenant, TenantWork>, now_ms: i64) {
        let Some(tenant) = &self.info.tenant else {
            return;
        };
        let state = self.row_state();
        let is_due = self.info.due_ms <= now_ms && self.info.waits_for.is_none();
        let waiting = self.info.state == State::Pending && is_due;
        // An outage of its servers gives it no permit.
        let rests = matches!(state, RowState::Idle | RowState::Unreachable) && self.data.idle;
        let idle = rests && !waiting;
        let running = self.info.state == State::Running && !idle;
        if running || idle || waiting {
            let work = tenants.entry(tenant.clone()).or_default();
            work.running += u64::from(running);
            work.idle += u64::from(idle);
            work.waiting += u64::from(waiting);
        }
    }

    /// When it runs again, in milliseconds, if it has run and waits.
    pub(super) fn next_try_ms(&self) -> Option<i64> {
        let info = &self.info;
        let waits = info.state == State::Pending && info.attempts > 0;
        let waits = waits && !self.data.paused && self.data.asleep.is_none();
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
