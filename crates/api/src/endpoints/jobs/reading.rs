//! Requests of readers.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use jobs::{Cursor, JobInfo, State};
use queue::{Envelope, Failures, Raw, Run, Shown, Type, WAIT_MAX};
use serde::Serialize;
use serde_json::{Value, json};

use super::{or_null, page_limit, time};
use crate::Error;
use crate::call::Call;
use crate::reply::{self, Reply};

const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1_000;
/// Errors that are told apart.
const FAILURES_MAX: usize = 100;
/// How long `_wait` waits unless told.
const WAIT_SEC: u64 = 30;
const STATES: [(&str, State); 4] = [
    ("pending", State::Pending),
    ("running", State::Running),
    ("finished", State::Finished),
    ("dead", State::Dead),
];

/// A job, as readers see it. In a listing without data and history.
#[derive(Serialize)]
struct Row<'a> {
    id: String,
    #[serde(rename = "type")]
    ty: &'a str,
    internal: bool,
    state: &'static str,
    due: String,
    created: String,
    finished: Option<String>,
    expires: Option<String>,
    attempt: u32,
    failures: u32,
    worker: Option<String>,
    waits_for: Option<String>,
    reason: Option<String>,
    #[serde(flatten)]
    parts: Option<Parts>,
    /// Why there are no parts, if they cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<Vec<Attempt>>,
}

#[derive(Serialize)]
struct Parts {
    data: Raw,
    progress: Raw,
    result: Raw,
    error: Raw,
}

#[derive(Serialize)]
struct Attempt {
    worker: String,
    start: String,
    end: Option<String>,
    outcome: Option<&'static str>,
    reason: Option<String>,
}

/// A page of a listing.
#[derive(Serialize)]
struct Page<'a> {
    jobs: Vec<Row<'a>>,
    next: Option<String>,
}

/// A change that a feed tells.
#[derive(Serialize)]
pub(super) struct Change {
    id: String,
    state: &'static str,
    attempt: u32,
    progress: Raw,
    result: Raw,
    error: Raw,
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
}

impl Change {
    pub(super) fn new(info: &JobInfo, envelope: queue::Result<Envelope>) -> Self {
        let unreadable = envelope.as_ref().err().map(queue::Error::why);
        let envelope = envelope.unwrap_or_default();
        Self {
            id: text(info),
            state: state_name(info.state),
            attempt: info.attempts,
            progress: or_null(envelope.progress),
            result: or_null(envelope.result),
            error: or_null(envelope.error),
            unreadable,
        }
    }
}

impl<'a> Row<'a> {
    fn new(ty: &'a Type, info: &JobInfo, envelope: Option<queue::Result<Envelope>>) -> Self {
        let (envelope, unreadable) = match envelope.transpose() {
            Ok(envelope) => (envelope, None),
            Err(error) => (None, Some(error.why())),
        };
        let last = info.last.as_ref().map(Run::of);
        let worker = last.as_ref().map(|run| run.worker.clone());
        Self {
            id: text(info),
            ty: ty.name.as_str(),
            internal: ty.is_own(),
            state: state_name(info.state),
            // 0 is as soon as possible.
            due: time(if info.due_ms <= 0 {
                info.created_ms
            } else {
                info.due_ms
            }),
            created: time(info.created_ms),
            finished: info.finished_ms.map(time),
            expires: info.expires_ms.map(time),
            attempt: info.attempts,
            failures: info.stalls,
            worker,
            waits_for: info
                .waits_for
                .as_ref()
                .map(|limit| String::from_utf8_lossy(limit.as_bytes()).into_owned()),
            reason: last.and_then(|run| run.reason),
            parts: envelope.map(|envelope| Parts {
                data: envelope.data,
                progress: or_null(envelope.progress),
                result: or_null(envelope.result),
                error: or_null(envelope.error),
            }),
            unreadable,
            attempts: None,
        }
    }
}

fn text(info: &JobInfo) -> String {
    String::from_utf8_lossy(info.id.as_bytes()).into_owned()
}

fn state_name(state: State) -> &'static str {
    let known = STATES.iter().find(|(_, known)| *known == state);
    known.map_or("", |(name, _)| name)
}

pub(super) fn state(name: &str) -> Result<State, Error> {
    let known = STATES.iter().find(|(known, _)| *known == name);
    let state = known.map(|(_, state)| *state);
    state.ok_or_else(|| Error::bad_request("`state` must be pending, running, finished or dead"))
}

pub(super) async fn job(call: &Call, ty: &Type, id: &str) -> Result<Reply, Error> {
    call.allow("DELETE,GET,HEAD")?;
    show(call, ty, id).await
}

pub(super) async fn remove(call: &Call, ty: &Type, id: &str) -> Result<Reply, Error> {
    call.shared.queue.remove(ty, id).await?;
    Ok(reply::ok(&json!({"ok": true})))
}

/// Jobs whose last run failed, by error.
pub(super) async fn failures(call: &Call, ty: &Type) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let of = (call.query.get("state")).filter(|text| !text.is_empty());
    let of = of.map_or(Ok(State::Dead), state)?;
    let Failures {
        mut groups,
        jobs,
        complete,
    } = call.shared.queue.failures(ty, of).await?;
    let others = groups.len().saturating_sub(FAILURES_MAX);
    groups.truncate(FAILURES_MAX);
    let rows = groups.into_iter().map(|group| {
        json!({
            "error": group.reason,
            "outcome": group.outcome,
            "count": group.count,
            "last": time(group.last_ms),
            "example": String::from_utf8_lossy(group.example.as_bytes()),
        })
    });
    let rows: Vec<Value> = rows.collect();
    Ok(reply::ok(&json!({
        "failures": rows, "other_errors": others, "jobs_read": jobs, "complete": complete,
    })))
}

async fn show(call: &Call, ty: &Type, id: &str) -> Result<Reply, Error> {
    let Shown {
        info,
        envelope,
        runs,
    } = call.shared.queue.show(ty, id).await?;
    let attempts = runs.into_iter().map(|run| Attempt {
        worker: run.worker,
        start: time(run.start_ms),
        end: run.end_ms.map(time),
        outcome: run.outcome,
        reason: run.reason,
    });
    Ok(reply::ok(&Row {
        attempts: Some(attempts.collect()),
        ..Row::new(ty, &info, envelope)
    }))
}

pub(super) async fn wait(call: &Call, ty: &Type, id: &str) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let given = call.query.get("timeout_sec").map(str::parse::<f64>);
    let seconds = given.transpose().ok().flatten();
    #[expect(clippy::cast_precision_loss, reason = "they are small numbers")]
    let (usual, max) = (WAIT_SEC as f64, WAIT_MAX.ms() as f64 / 1_000.0);
    if call.query.get("timeout_sec").is_some()
        && !seconds.is_some_and(|seconds| (0.0..=max).contains(&seconds))
    {
        return Err(Error::query(format!(
            "`timeout_sec` must be from 0 to {max}"
        )));
    }
    let wait = Duration::from_secs_f64(seconds.unwrap_or(usual));
    tokio::select! {
        waited = call.shared.queue.wait(ty, id, wait) => waited?,
        () = call.shared.stop.cancelled() => {}
    }
    show(call, ty, id).await
}

pub(super) async fn list(call: &Call, ty: &Type) -> Result<Reply, Error> {
    let text = |name| call.query.get(name).filter(|text| !text.is_empty());
    let state = text("state").map(state).transpose()?;
    let after = text("after").map(|after| {
        let bytes = BASE64.decode(after).map(Cursor::from_bytes);
        bytes.map_err(|_| Error::query("`after` must be `next` of an earlier response"))
    });
    let after = after.transpose()?;
    let limit = page_limit(call, LIMIT, LIMIT_MAX)?;
    let with_data = call.query.flag("data")?;
    if limit == 0 {
        // The queue's pages have at least one job.
        let (jobs, next) = (Vec::new(), None);
        return Ok(reply::ok(&Page { jobs, next }));
    }
    let queue = &call.shared.queue;
    let listing = queue
        .list(ty, state, with_data, after.as_ref(), limit)
        .await?;
    let rows = listing.jobs.into_iter();
    let rows: Vec<_> = rows
        .map(|(info, envelope)| Row::new(ty, &info, envelope))
        .collect();
    let next = listing.next.map(|cursor| BASE64.encode(cursor.as_bytes()));
    Ok(reply::ok(&Page { jobs: rows, next }))
}
