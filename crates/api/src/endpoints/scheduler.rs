//! `/_scheduler` and `/_active_tasks`. Listings are streamed page by page, never kept in memory.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use docstore::{Db, IdRange};
use document::json::Json;
use futures::stream;
use http::{HeaderMap, Method, StatusCode};
use jobs::Cursor;
use replication::id::ReplicationId;
use scheduler::{DocsQuery, JobState, JobsQuery, Replications};
use serde_json::{Value, json};

use super::replicate::caller;
use crate::Error;
use crate::call::Call;
use crate::client::Client;
use crate::query::Query;
use crate::reply::{self, Reply};
use crate::route::JobAction;
use crate::state::Shared;
use crate::upstream::Upstream;

/// The default `limit`.
const LIMIT: u64 = 100;
/// Jobs read at a time.
const PAGE: u64 = 500;
/// Pages that filters may leave almost empty before the listing ends with a bookmark.
const SPARSE: u32 = 20;
/// States that clients may filter by. For the first two, other versions of CouchDB have no job or say crashing.
const STATES: [&str; 7] = [
    "initializing",
    "error",
    "running",
    "pending",
    "crashing",
    "completed",
    "failed",
];

pub(crate) async fn jobs(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let limit = number(&call.query, "limit")?.unwrap_or(LIMIT);
    let states = states(&call.query)?;
    let text = |name| call.query.get(name).map(str::to_owned);
    let query = JobsQuery {
        states: states.clone().unwrap_or_default(),
        database: text("database"),
        endpoint: text("endpoint"),
        skip: number(&call.query, "skip")?.unwrap_or(0),
        limit: limit.min(PAGE),
        bookmark: text("bookmark"),
    };
    // No job has these states.
    let limit = if matches!(&states, Some(states) if states.is_empty()) {
        0
    } else {
        limit
    };
    let replications = call.shared.replications.clone();
    let first = JobsQuery {
        limit: query.limit.min(limit),
        ..query
    };
    let page = replications
        .scheduler_jobs(&first)
        .await
        .map_err(query_error)?;
    let head = head(page.total_rows, Some(page.offset), "jobs");
    let begun = Jobs {
        replications,
        query: first,
        left: limit,
        sparse: 0,
    };
    let (rows, next) = begun.take(page.jobs, page.bookmark);
    Ok(listing(head, &rows, next, Jobs::page))
}

/// A job listing in progress.
struct Jobs {
    replications: Replications,
    query: JobsQuery,
    left: u64,
    /// Consecutive pages with fewer rows than requested.
    sparse: u32,
}

/// Rows, the next page, and the final members.
type Rows<T> = (Vec<Value>, Next<T>);

enum Next<T> {
    Page(T),
    /// The members that end the response.
    End(Vec<(&'static str, Value)>),
    /// None: the response is a list.
    Close,
}

impl Jobs {
    fn take(mut self, rows: Vec<Value>, bookmark: Option<String>) -> Rows<Self> {
        let listed = rows.len() as u64;
        self.left -= self.left.min(listed);
        self.sparse = if listed < self.query.limit {
            self.sparse + 1
        } else {
            0
        };
        let next = match bookmark {
            Some(bookmark) if self.left > 0 && self.sparse < SPARSE => {
                self.query.bookmark = Some(bookmark);
                self.query.skip = 0;
                self.query.limit = self.left.min(PAGE);
                Next::Page(self)
            }
            Some(bookmark) => Next::End(vec![("bookmark", bookmark.into())]),
            None => Next::End(Vec::new()),
        };
        (rows, next)
    }

    async fn page(self) -> Result<Rows<Self>, Error> {
        let page = self.replications.scheduler_jobs(&self.query).await?;
        Ok(self.take(page.jobs, page.bookmark))
    }
}

pub(crate) async fn job(call: &Call, id: &str) -> Result<Reply, Error> {
    call.allow("GET,HEAD,DELETE")?;
    let (replications, id) = (&call.shared.replications, ReplicationId::from_client(id));
    if call.method == Method::DELETE {
        replications.cancel(&id, &caller(call)).await?;
        return Ok(reply::ok(&json!({"ok": true})));
    }
    Ok(reply::ok(&replications.scheduler_job(&id).await?))
}

pub(crate) async fn job_action(call: &Call, id: &str, action: JobAction) -> Result<Reply, Error> {
    let (replications, id) = (&call.shared.replications, ReplicationId::from_client(id));
    if action == JobAction::Failures {
        call.allow("GET,HEAD")?;
        let failures = replications.job_failures(&id).await?;
        return Ok(reply::ok(&json!({"failures": failures})));
    }
    call.allow("POST")?;
    let job = replications.find(&id).await?;
    match action {
        JobAction::Restart => replications.restart(&job).await?,
        JobAction::Pause => replications.set_paused(&job, true).await?,
        JobAction::Resume => replications.set_paused(&job, false).await?,
        JobAction::Failures => {}
    }
    Ok(reply::ok(&json!({"ok": true})))
}

pub(crate) async fn docs(call: &Call, name: &str) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let states = states(&call.query)?;
    let mut range = range(&call.query)?;
    if matches!(&states, Some(states) if states.is_empty()) {
        range.limit = Some(0);
    }
    let query = DocsQuery {
        states: states.unwrap_or_default(),
        range,
    };
    let db = open(&call.shared, name).await?;
    let begun = Docs {
        replications: call.shared.replications.clone(),
        db: Arc::new(db),
        query: first_of(&query),
        left: query.range.limit,
    };
    let page = begun
        .replications
        .scheduler_docs(&begun.db, &begun.query)
        .await?;
    let head = head(page.total_rows, page.offset, "docs");
    let (rows, next) = begun.take(page.docs, page.rest);
    Ok(listing(head, &rows, next, Docs::page))
}

/// A document listing in progress.
struct Docs {
    replications: Replications,
    db: Arc<Db>,
    query: DocsQuery,
    left: Option<u64>,
}

fn first_of(query: &DocsQuery) -> DocsQuery {
    let mut first = query.clone();
    first.range.limit = Some(first.range.limit.map_or(PAGE, |limit| limit.min(PAGE)));
    first
}

impl Docs {
    fn take(mut self, rows: Vec<Value>, rest: Option<DocsQuery>) -> Rows<Self> {
        let listed = rows.len() as u64;
        self.left = self.left.map(|left| left - left.min(listed));
        let full = Some(listed) == self.query.range.limit;
        let last = rows.last().and_then(|row| row["doc_id"].as_str());
        let mut query = match (rest, last) {
            // The scan limit was reached before the end.
            (Some(rest), _) => rest,
            // The row limit was reached; there may be more.
            (None, Some(last)) if full => {
                let mut query = self.query.clone();
                query.range.after = Some(last.to_owned());
                query.range.skip = 0;
                query
            }
            _ => return (rows, Next::End(Vec::new())),
        };
        if self.left == Some(0) {
            return (rows, Next::End(Vec::new()));
        }
        query.range.limit = Some(self.left.map_or(PAGE, |left| left.min(PAGE)));
        self.query = query;
        (rows, Next::Page(self))
    }

    async fn page(self) -> Result<Rows<Self>, Error> {
        let page = self
            .replications
            .scheduler_docs(&self.db, &self.query)
            .await?;
        Ok(self.take(page.docs, page.rest))
    }
}

pub(crate) async fn doc(call: &Call, name: &str, id: &str) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let db = open(&call.shared, name).await?;
    let row = call.shared.replications.scheduler_doc(&db, id).await?;
    Ok(reply::ok(&row))
}

/// `GET /_active_tasks`: replications of all nodes, and the tasks of the cluster behind this service.
pub(crate) async fn active_tasks(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let theirs = call.shared.upstream.clone();
    let begun = Tasks {
        replications: call.shared.replications.clone(),
        cursor: None,
        theirs: theirs.map(|upstream| (upstream, call.headers.clone(), call.client)),
    };
    let (rows, next) = begun.page().await?;
    Ok(listing("[\n".to_owned(), &rows, next, NextTasks::page))
}

/// A task listing in progress.
struct Tasks {
    replications: Replications,
    /// Where our last page ended.
    cursor: Option<Cursor>,
    theirs: Option<(Upstream, HeaderMap, Client)>,
}

enum NextTasks {
    Ours(Tasks),
    Theirs(Upstream, HeaderMap, Client),
}

impl Tasks {
    async fn page(mut self) -> Result<Rows<NextTasks>, Error> {
        let (rows, cursor) = self.replications.active_tasks(self.cursor.as_ref()).await?;
        let next = match (cursor, self.theirs.take()) {
            (Some(cursor), theirs) => {
                let cursor = Some(cursor);
                Next::Page(NextTasks::Ours(Self {
                    cursor,
                    theirs,
                    ..self
                }))
            }
            (None, Some((upstream, headers, client))) => {
                Next::Page(NextTasks::Theirs(upstream, headers, client))
            }
            (None, None) => Next::Close,
        };
        Ok((rows, next))
    }
}

impl NextTasks {
    async fn page(self) -> Result<Rows<Self>, Error> {
        let (upstream, headers, client) = match self {
            Self::Ours(tasks) => return tasks.page().await,
            Self::Theirs(upstream, headers, client) => (upstream, headers, client),
        };
        match upstream.active_tasks(&headers, client).await {
            Ok(rows) => Ok((rows, Next::Close)),
            Err(error) => {
                // Our own tasks were already sent.
                tracing::warn!(%error, "cannot read the cluster's tasks");
                Ok((Vec::new(), Next::Close))
            }
        }
    }
}

async fn open(shared: &Shared, name: &str) -> Result<Db, Error> {
    let docs = shared.docs();
    // An invalid name is treated as a database that does not exist.
    let name = docs.name(name).map_err(|_| docstore::Error::NoDatabase)?;
    Ok(docs.open(&name).await?)
}

/// The start of a response whose rows are the member `name`.
fn head(total_rows: u64, offset: Option<u64>, name: &str) -> String {
    let offset = offset.map_or("null".to_owned(), |offset| offset.to_string());
    format!("{{\"total_rows\":{total_rows},\"offset\":{offset},\"{name}\":[\n")
}

/// Streams a head, a list of rows, and final members.
fn listing<T, F>(
    head: String,
    rows: &[Value],
    next: Next<T>,
    page: impl Fn(T) -> F + Send + Sync + 'static,
) -> Reply
where
    T: Send + 'static,
    F: Future<Output = Result<Rows<T>, Error>> + Send + 'static,
{
    let mut first = head;
    append(&mut first, rows, true);
    let any = !rows.is_empty();
    let next = finish(&mut first, next);
    let (ok, json) = (StatusCode::OK, "application/json");
    if next.is_none() {
        return reply::body(ok, json, Body::from(first));
    }
    let page = Arc::new(page);
    let state = (Some(Bytes::from(first)), next, any);
    let pieces = stream::try_unfold(state, move |(piece, next, any)| {
        let page = Arc::clone(&page);
        async move {
            if let Some(piece) = piece {
                return Ok::<_, Error>(Some((piece, (None, next, any))));
            }
            let Some(next) = next else { return Ok(None) };
            let (rows, next) = page(next).await?;
            let mut piece = String::new();
            append(&mut piece, &rows, !any);
            let any = any || !rows.is_empty();
            let next = finish(&mut piece, next);
            Ok(Some((Bytes::from(piece), (None, next, any))))
        }
    });
    reply::body(ok, json, Body::from_stream(pieces))
}

fn append(piece: &mut String, rows: &[Value], first: bool) {
    for (at, row) in rows.iter().enumerate() {
        if at > 0 || !first {
            piece.push_str(",\n");
        }
        piece.push_str(&row.to_string());
    }
}

/// Ends the response after the last page.
fn finish<T>(piece: &mut String, next: Next<T>) -> Option<T> {
    match next {
        Next::Page(next) => Some(next),
        Next::End(members) => {
            piece.push_str("\n]");
            for (name, value) in members {
                let _ = write!(piece, ",\"{name}\":{value}");
            }
            piece.push_str("}\n");
            None
        }
        Next::Close => {
            piece.push_str("\n]\n");
            None
        }
    }
}

/// A number as parsed by CouchDB's scheduler.
fn number(query: &Query, name: &str) -> Result<Option<u64>, Error> {
    let Some(text) = query.get(name) else {
        return Ok(None);
    };
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(Error::query(format!("{name} must be an integer")));
    }
    if text.starts_with('-') && digits.bytes().any(|digit| digit != b'0') {
        return Err(Error::query(format!("{name} not in range of [0,infinity]")));
    }
    // Larger than any possible count.
    Ok(Some(digits.parse().unwrap_or(u64::MAX)))
}

/// The states to list: `None` is all, an empty list states that no job has.
fn states(query: &Query) -> Result<Option<Vec<JobState>>, Error> {
    let Some(text) = query.get("states") else {
        return Ok(None);
    };
    let names: Vec<String> = text
        .split(',')
        .map(|name| name.trim().to_lowercase())
        .filter(|name| !name.is_empty())
        .collect();
    let unknown: Vec<&str> = (names.iter())
        .map(String::as_str)
        .filter(|name| !STATES.contains(name))
        .collect();
    if !unknown.is_empty() {
        let (unknown, known) = (unknown.join(","), STATES.join(","));
        return Err(Error::query(format!(
            "Unknown states [{unknown}]. Choose from: [{known}]"
        )));
    }
    let state = |name: &String| match name.as_str() {
        "pending" => Some(JobState::Pending),
        "running" => Some(JobState::Running),
        "crashing" | "error" => Some(JobState::Crashing),
        "completed" => Some(JobState::Completed),
        "failed" => Some(JobState::Failed),
        _ => None,
    };
    Ok((!names.is_empty()).then(|| names.iter().filter_map(state).collect()))
}

/// The supported parameters of `_all_docs`.
fn range(query: &Query) -> Result<IdRange, Error> {
    let id = |names: [&'static str; 2]| {
        let given = names.into_iter().find(|name| query.get(name).is_some());
        let Some(name) = given else { return Ok(None) };
        match query.json(name)? {
            Some(Json::String(id)) => Ok(Some(id)),
            _ => Err(Error::query(format!("{name} must be a string"))),
        }
    };
    let key = id(["key"; 2])?;
    Ok(IdRange {
        start: id(["startkey", "start_key"])?.or_else(|| key.clone()),
        end: id(["endkey", "end_key"])?.or(key),
        inclusive_end: query.get("inclusive_end").is_none() || query.flag("inclusive_end")?,
        descending: query.flag("descending")?,
        skip: query.number("skip")?.unwrap_or(0),
        limit: query.number("limit")?,
        after: None,
    })
}

/// An invalid bookmark is reported as a malformed parameter.
fn query_error(error: scheduler::ServiceError) -> Error {
    match error {
        scheduler::ServiceError::Invalid(invalid) => Error::query(invalid.to_string()),
        error => error.into(),
    }
}
