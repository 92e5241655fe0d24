//! `/_scheduler` and `/_active_tasks`. Listings are streamed page by page, never kept in memory.

use std::fmt::Write as _;

use docstore::{Db, IdRange};
use document::json::Json;
use http::Method;
use replication::id::ReplicationId;
use scheduler::{DocsQuery, JobState, JobsQuery};
use serde_json::{Value, json};

use super::replicate::caller;
use crate::Error;
use crate::call::Call;
use crate::query::Query;
use crate::reply::{self, Reply};
use crate::route::JobAction;
use crate::state::Shared;

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
    let mut query = JobsQuery {
        limit: query.limit.min(limit),
        ..query
    };
    let replications = call.shared.replications.clone();
    reply::json_pieces(|mut pieces| async move {
        // `sparse` counts consecutive pages with fewer rows than requested.
        let (mut left, mut sparse, mut any) = (limit, 0, false);
        let mut page = (replications.scheduler_jobs(&query).await).map_err(query_error)?;
        let mut piece = head(page.total_rows, Some(page.offset), "jobs");
        loop {
            append(&mut piece, &page.jobs, &mut any);
            let listed = page.jobs.len() as u64;
            left -= left.min(listed);
            sparse = if listed < query.limit { sparse + 1 } else { 0 };
            match page.bookmark {
                Some(bookmark) if left > 0 && sparse < SPARSE => query.bookmark = Some(bookmark),
                Some(bookmark) => {
                    let _ = write!(piece, "\n],\"bookmark\":{}}}\n", json!(bookmark));
                    break;
                }
                None => {
                    piece.push_str("\n]}\n");
                    break;
                }
            }
            (query.skip, query.limit) = (0, left.min(PAGE));
            pieces.send(std::mem::take(&mut piece)).await;
            page = replications.scheduler_jobs(&query).await?;
        }
        pieces.send(piece).await;
        Ok(())
    })
    .await
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

pub(crate) async fn job_action(
    call: &mut Call,
    id: &str,
    action: JobAction,
) -> Result<Reply, Error> {
    if action != JobAction::Failures {
        call.allow("POST")?;
        call.no_members().await?;
    }
    let (replications, id) = (&call.shared.replications, ReplicationId::from_client(id));
    if action == JobAction::Failures {
        call.allow("GET,HEAD")?;
        let failures = replications.job_failures(&id).await?;
        return Ok(reply::ok(&json!({"failures": failures})));
    }
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
    let mut left = range.limit;
    range.limit = Some(left.map_or(PAGE, |limit| limit.min(PAGE)));
    let mut query = DocsQuery {
        states: states.unwrap_or_default(),
        range,
    };
    let db = open(&call.shared, name).await?;
    let replications = call.shared.replications.clone();
    reply::json_pieces(|mut pieces| async move {
        let mut page = replications.scheduler_docs(&db, &query).await?;
        let mut piece = head(page.total_rows, page.offset, "docs");
        let mut any = false;
        loop {
            append(&mut piece, &page.docs, &mut any);
            let listed = page.docs.len() as u64;
            left = left.map(|left| left - left.min(listed));
            let full = Some(listed) == query.range.limit;
            let last = page.docs.last().and_then(|row| row["doc_id"].as_str());
            match (page.rest, last) {
                // The scan limit was reached before the end.
                (Some(rest), _) => query = rest,
                // The row limit was reached; there may be more.
                (None, Some(last)) if full => {
                    query.range.after = Some(last.to_owned());
                    query.range.skip = 0;
                }
                _ => break,
            }
            if left == Some(0) {
                break;
            }
            query.range.limit = Some(left.map_or(PAGE, |left| left.min(PAGE)));
            pieces.send(std::mem::take(&mut piece)).await;
            page = replications.scheduler_docs(&db, &query).await?;
        }
        piece.push_str("\n]}\n");
        pieces.send(piece).await;
        Ok(())
    })
    .await
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
    let replications = call.shared.replications.clone();
    let theirs = call.shared.upstream.clone();
    let theirs = theirs.map(|upstream| (upstream, call.headers.clone(), call.client));
    reply::json_pieces(|mut pieces| async move {
        let (mut piece, mut any, mut cursor) = ("[\n".to_owned(), false, None);
        loop {
            let (rows, next) = replications.active_tasks(cursor.as_ref()).await?;
            append(&mut piece, &rows, &mut any);
            cursor = next;
            if cursor.is_none() {
                break;
            }
            pieces.send(std::mem::take(&mut piece)).await;
        }
        if let Some((upstream, headers, client)) = theirs {
            pieces.send(std::mem::take(&mut piece)).await;
            match upstream
                .rows("/_active_tasks", &headers, client, None)
                .await
            {
                Ok(rows) => append(&mut piece, &rows, &mut any),
                // Our own tasks were already sent.
                Err(error) => {
                    tracing::warn!(error = %wire::chain(&error), "cannot read the cluster's tasks");
                }
            }
        }
        piece.push_str("\n]\n");
        pieces.send(piece).await;
        Ok(())
    })
    .await
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

fn append(piece: &mut String, rows: &[Value], any: &mut bool) {
    for row in rows {
        piece.push_str(if *any { ",\n" } else { "" });
        *any = true;
        let _ = write!(piece, "{row}");
    }
}

/// A number as parsed by CouchDB's scheduler.
pub(super) fn number(query: &Query, name: &str) -> Result<Option<u64>, Error> {
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
pub(super) fn query_error(error: scheduler::ServiceError) -> Error {
    match error {
        scheduler::ServiceError::Invalid(invalid) => Error::query(invalid.to_string()),
        error => error.into(),
    }
}
