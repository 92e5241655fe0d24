//! The contents of `_scheduler/jobs`, `_scheduler/docs` and `_active_tasks`, as JSON and without credentials.
//!
//! Every listing walks an index, some rows per transaction: unfinished jobs by replication id, documents by document
//! id. Rows are only read if they are shown or filtered, and one call visits at most [`VISITS_MAX`] rows.

mod all;
mod docs;
mod nodes;
mod remotes;
mod rules;
mod summary;
mod table;
mod waits;

use std::collections::HashSet;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use bytes::Bytes;
use futures::future::try_join_all;
use jiff::Timestamp;
use jobs::{Cursor, JobId, Query, State};
use serde_json::{Map, Value, json};
use store::{RangeOptions, Transaction};

pub use docs::{DocsPage, DocsQuery};
pub use remotes::RemoteState;
pub(crate) use rules::has_replications;
pub use table::{Column, TableQuery};

use crate::data::{JobData, JobState, Origin, Outage, iso};
use crate::fault::ServiceError;
use crate::keys;
use crate::live::Live;
use crate::service::Replications;
use crate::snapshot::Seen;
use crate::snapshot::cause::{hint, parts};
use replication::engine::Progress;
use replication::id::ReplicationId;

/// Maximum rows that one call visits.
pub const VISITS_MAX: u64 = 10_000;
/// Jobs per transaction.
const ROWS: usize = 100;
/// Skipped rows per transaction.
const SKIPS: u64 = 2_000;

/// Where a listing of active tasks goes on.
#[derive(Clone, Debug)]
pub struct TasksCursor(State, Option<Cursor>);

/// A query for unfinished jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobsQuery {
    /// Only jobs in these states; empty for all.
    pub states: Vec<JobState>,
    /// Only jobs of documents of this database.
    pub database: Option<String>,
    /// Only jobs whose source or target contains this.
    pub endpoint: Option<String>,
    /// Rows to skip.
    pub skip: u64,
    /// Maximum rows to return.
    pub limit: u64,
    /// The end of the previous page.
    pub bookmark: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobsPage {
    /// The number of jobs without filters.
    pub total_rows: u64,
    /// The number of rows skipped.
    pub offset: u64,
    pub jobs: Vec<Value>,
    /// The start of the next page; `None` at the end.
    pub bookmark: Option<String>,
}

impl Replications {
    /// `GET /_scheduler/jobs`
    pub async fn scheduler_jobs(&self, query: &JobsQuery) -> Result<JobsPage, ServiceError> {
        let counts = self.0.jobs.counts(&self.0.ty).await?;
        let total_rows = counts.pending + counts.running;
        let mut page = JobsPage {
            total_rows,
            offset: query.skip.min(total_rows),
            ..JobsPage::default()
        };
        let mut skip = query.skip;
        let mut visits = 0;
        let mut after = query.bookmark.as_deref().map(decode_bookmark).transpose()?;
        while (page.jobs.len() as u64) < query.limit && visits < VISITS_MAX.max(query.skip) {
            let skips = if query.is_filtered() {
                0
            } else {
                skip.min(SKIPS)
            };
            let wanted = if skips > 0 {
                usize::try_from(skips).unwrap_or(ROWS)
            } else {
                ROWS.min(usize::try_from(query.limit).unwrap_or(ROWS))
                    .max(1)
            };
            let (keys, seen) = self.active_page(after.as_ref(), wanted, skips == 0).await?;
            visits += keys.len() as u64;
            let done = keys.len() < wanted;
            if skips > 0 {
                skip -= keys.len() as u64;
            }
            after = keys.last().cloned().or(after);
            for (key, seen) in keys.iter().zip(seen) {
                let Some(seen) = seen.filter(|seen| query.matches(seen)) else {
                    continue;
                };
                if skip > 0 {
                    skip -= 1;
                    continue;
                }
                page.jobs.push(seen.scheduler_job());
                after = Some(key.clone());
                if page.jobs.len() as u64 >= query.limit {
                    page.bookmark = Some(encode_bookmark(key));
                    return Ok(page);
                }
            }
            if done {
                return Ok(page);
            }
        }
        page.bookmark = after.as_ref().map(encode_bookmark);
        Ok(page)
    }

    /// A page of keys of the listing, and their jobs.
    async fn active_page(
        &self,
        after: Option<&Bytes>,
        limit: usize,
        read: bool,
    ) -> Result<(Vec<Bytes>, Vec<Option<Seen>>), ServiceError> {
        (self.0.jobs.store())
            .transact("list_jobs", |tx| async move {
                let mut range = keys::all_active();
                if let Some(after) = after.filter(|after| range.contains(after)) {
                    range.begin = [after, &b"\0"[..]].concat().into();
                }
                let rows = tx.snapshot().get_range(range, RangeOptions::limit(limit));
                let keys: Vec<_> = rows
                    .collect()
                    .await?
                    .into_iter()
                    .map(|row| row.key)
                    .collect();
                let mut seen = Vec::new();
                if read {
                    let jobs = keys.iter().map(|key| keys::last_job(key));
                    let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
                    seen = try_join_all(jobs.into_iter().map(|job| self.see_in(&tx, job))).await?;
                }
                Ok((keys, seen))
            })
            .await
    }

    /// `GET /_scheduler/jobs/{id}`: by replication id or job id, finished ones too.
    pub async fn scheduler_job(&self, id: &ReplicationId) -> Result<Value, ServiceError> {
        Ok(self.see(id).await?.scheduler_job())
    }

    /// The most recent rejected documents of a job, oldest first, each with `id`, `rev`, `error`, `reason` and `time`.
    pub async fn job_failures(&self, id: &ReplicationId) -> Result<Vec<Value>, ServiceError> {
        Ok(self.see(id).await?.live.failures)
    }

    async fn see(&self, id: &ReplicationId) -> Result<Seen, ServiceError> {
        let seen = (self.0.jobs.store())
            .transact("show_job", |tx| async move {
                let job = self.find_in(&tx, id.as_str()).await?;
                self.see_in(&tx, job).await
            })
            .await?;
        seen.ok_or(ServiceError::Missing)
    }

    pub(crate) async fn see_in(
        &self,
        tx: &Transaction,
        job: JobId,
    ) -> Result<Option<Seen>, ServiceError> {
        let Some((info, data)) = self.job_in(tx, &job).await? else {
            return Ok(None);
        };
        let live = tx.snapshot().get(&keys::live(&job)).await?;
        let live = live.map(|row| Live::decode(&row)).unwrap_or_default();
        Ok(Some(Seen {
            job,
            info,
            data,
            live,
        }))
    }

    /// A page of `GET /_active_tasks`, and the cursor of the next one: running jobs, then those that sleep.
    pub async fn active_tasks(
        &self,
        cursor: Option<&TasksCursor>,
    ) -> Result<(Vec<Value>, Option<TasksCursor>), ServiceError> {
        let first = TasksCursor(State::Running, None);
        let TasksCursor(state, cursor) = cursor.unwrap_or(&first);
        let mut state = *state;
        let (mut seen, mut next) = self.state_page(state, cursor.as_ref()).await?;
        if next.is_none() && state == State::Running {
            state = State::Pending;
            let (asleep, rest) = self.state_page(state, None).await?;
            seen.extend(asleep);
            next = rest;
        }
        let tasks = seen.iter().filter_map(Seen::active_task).collect();
        Ok((tasks, next.map(|next| TasksCursor(state, Some(next)))))
    }

    /// A page of the jobs in one of the queue's states.
    async fn state_page(
        &self,
        state: State,
        cursor: Option<&Cursor>,
    ) -> Result<(Vec<Seen>, Option<Cursor>), ServiceError> {
        let query = Query {
            state: Some(state),
            data: true,
            ..Query::default()
        };
        let page = self.0.jobs.list(&self.0.ty, &query, cursor, ROWS).await?;
        let mut rows = Vec::with_capacity(page.jobs.len());
        for listed in page.jobs {
            let data = JobData::decode(&listed.data.unwrap_or_default())?;
            rows.push((listed.info, data));
        }
        let rows = &rows;
        let seen = (self.0.jobs.store())
            .transact("see_jobs", |tx| async move {
                let read = rows.iter().map(|(info, data)| {
                    let tx = &tx;
                    async move {
                        let live = tx.snapshot().get(&keys::live(&info.id)).await?;
                        Ok::<_, ServiceError>(Seen {
                            job: info.id.clone(),
                            info: info.clone(),
                            data: data.clone(),
                            live: live.map(|row| Live::decode(&row)).unwrap_or_default(),
                        })
                    }
                });
                try_join_all(read).await
            })
            .await?;
        Ok((seen, page.cursor))
    }
}

impl JobsQuery {
    fn is_filtered(&self) -> bool {
        !self.states.is_empty() || self.database.is_some() || self.endpoint.is_some()
    }

    fn matches(&self, seen: &Seen) -> bool {
        let states: HashSet<_> = self.states.iter().copied().collect();
        let shown = [&seen.data.shown.source, &seen.data.shown.target];
        (states.is_empty() || states.contains(&seen.state()))
            && (self.database.as_deref()).is_none_or(|db| seen.database() == Some(db))
            && (self.endpoint.as_deref()).is_none_or(|part| {
                shown
                    .iter()
                    .any(|url| url.as_deref().is_some_and(|url| url.contains(part)))
            })
    }
}

impl Seen {
    /// The data of a job whose node died says `running` until it is claimed again; the queue knows better.
    pub(crate) fn state(&self) -> JobState {
        match (self.info.state, self.data.state) {
            (State::Pending, JobState::Running) if self.data.asleep.is_none() => JobState::Pending,
            (_, state) => state,
        }
    }

    /// Whether it has caught up and waits for changes.
    fn is_idle(&self) -> bool {
        self.data.idle && self.state() == JobState::Running && self.data.unreachable.is_none()
    }

    /// The outage of one of its servers, while it runs.
    fn outage(&self) -> Option<&Outage> {
        let outage = self.data.unreachable.as_ref();
        outage.filter(|_| self.state() == JobState::Running)
    }

    fn database(&self) -> Option<&str> {
        match &self.data.origin {
            Origin::Document { db, .. } | Origin::Rule { db, .. } => Some(db),
            Origin::Request { .. } => None,
        }
    }

    fn doc_id(&self) -> Option<&str> {
        match &self.data.origin {
            Origin::Document { doc_id, .. } | Origin::Rule { doc_id, .. } => Some(doc_id),
            Origin::Request { .. } => None,
        }
    }

    fn user(&self) -> Option<&str> {
        match &self.data.origin {
            Origin::Document { .. } | Origin::Rule { .. } => None,
            Origin::Request { user } => user.as_deref(),
        }
    }

    fn info(&self) -> Value {
        let mut info = match self.state() {
            JobState::Pending | JobState::Running => self.live.info.clone(),
            JobState::Crashing | JobState::Failed | JobState::Completed => {
                return self.data.info.clone().unwrap_or(Value::Null);
            }
        };
        if self.state() == JobState::Running {
            if self.is_idle() {
                info.insert("idle".to_owned(), true.into());
            }
            if let Some(asleep) = &self.data.asleep {
                info.extend(self.sleep(asleep));
            }
            if let Some(outage) = self.outage() {
                let error = format!("{} does not respond: {}", outage.server, outage.reason);
                info.insert("unreachable".to_owned(), outage.server.as_str().into());
                info.insert("error".to_owned(), error.into());
            }
            let started = [
                ("start_seq", self.live.start_seq.clone()),
                (
                    "started_from",
                    self.live.started_from.clone().map(Value::from),
                ),
            ];
            info.extend(
                (started.into_iter()).filter_map(|(name, value)| Some((name.to_owned(), value?))),
            );
        }
        if self.data.paused {
            info.insert("paused".to_owned(), true.into());
        }
        info.extend(self.limit());
        if info.is_empty() {
            return Value::Null;
        }
        Value::Object(info)
    }

    fn node(&self) -> (Option<&str>, Option<&str>) {
        match self.state() {
            JobState::Running => (self.data.node.as_deref(), self.data.pid.as_deref()),
            _ => (None, None),
        }
    }

    fn history(&self) -> Vec<Value> {
        let event = |event: &crate::data::Event| {
            let mut shown = json!({"timestamp": iso(event.timestamp), "type": event.kind.as_str()});
            if let Some(reason) = &event.reason {
                shown["reason"] = reason.as_str().into();
            }
            shown
        };
        self.data.history.iter().map(event).collect()
    }

    pub(crate) fn scheduler_job(&self) -> Value {
        let (node, pid) = self.node();
        self.with_next_try(json!({
            "database": self.database(),
            "id": self.data.rep_id,
            "pid": pid,
            "source": self.data.shown.source,
            "target": self.data.shown.target,
            "user": self.user(),
            "doc_id": self.doc_id(),
            "info": self.info(),
            "history": self.history(),
            "node": node,
            "start_time": iso(self.data.start_time),
            "state": self.state().as_str(),
            "job_id": crate::data::job_text(&self.job),
        }))
    }

    pub(crate) fn scheduler_doc(&self) -> Value {
        let (node, pid) = self.node();
        let shown = &self.data.shown;
        let mut row = json!({
            "database": self.database(),
            "doc_id": self.doc_id(),
            "id": self.data.rep_id,
            "node": node,
            "pid": pid,
            "source": shown.source,
            "target": shown.target,
            "source_proxy": shown.source_proxy,
            "target_proxy": shown.target_proxy,
            "state": self.state().as_str(),
            "info": self.info(),
            "error_count": self.data.error_count,
            "last_updated": iso(self.data.last_updated.max(self.live.updated)),
            "start_time": iso(self.data.start_time),
            "job_id": crate::data::job_text(&self.job),
        });
        if let Origin::Rule { database, .. } = &self.data.origin {
            // What Spiegel's dashboards read.
            let runs = self.info.state == State::Running;
            row["dirty"] =
                (self.info.asked_ms.is_some() || self.state() != JobState::Running).into();
            row["locked_at"] = runs.then(|| iso(self.data.last_start)).into();
            row["updated_at"] = iso(self.data.last_updated).into();
            row["rule_database"] = database.as_deref().into();
        }
        self.with_next_try(row)
    }

    /// Adds what CouchDB's rows do not have, where there is something to say.
    fn with_next_try(&self, row: Value) -> Value {
        let mut row = with_hint(row);
        if let Some(due_ms) = self.next_try_ms() {
            row["next_try"] = iso(due_ms.div_euclid(1000)).into();
        }
        row
    }

    /// `None` for a claimed job that has not started yet.
    fn active_task(&self) -> Option<Value> {
        let held = self.info.state == State::Running || self.data.asleep.is_some();
        if !held || self.data.state != JobState::Running {
            return None;
        }
        let shown = &self.data.shown;
        let mut task = json!({
            "type": "replication",
            "user": self.user(),
            "replication_id": self.data.rep_id,
            "database": self.database(),
            "doc_id": self.doc_id(),
            "source": shown.source,
            "target": shown.target,
            "continuous": shown.continuous,
            "checkpoint_interval": shown.checkpoint_interval,
            "node": self.data.node,
            "pid": self.data.pid,
            "started_on": self.data.last_start,
            "updated_on": self.live.updated.max(self.data.last_updated),
        });
        let members: &mut Map<String, Value> = task.as_object_mut()?;
        members.extend(Progress::default().to_info(Timestamp::UNIX_EPOCH));
        members.extend(self.live.info.clone());
        Some(task)
    }
}

/// Adds what to do about the error of a row.
fn with_hint(mut row: Value) -> Value {
    let (error, reason) = parts(&row["info"]);
    if let Some(hint) = hint(error, reason).filter(|_| !error.is_empty()) {
        row["hint"] = hint.into();
    }
    row
}

fn encode_bookmark(key: &Bytes) -> String {
    BASE64.encode(key)
}

fn decode_bookmark(text: &str) -> Result<Bytes, ServiceError> {
    let bytes = BASE64.decode(text).ok().map(Bytes::from);
    let key = bytes.filter(|key| keys::all_active().contains(key));
    key.ok_or_else(|| replication::params::Invalid::new("`bookmark` is not valid").into())
}
