//! `/_schedules`: jobs that are added at set times.

use http::{Method, StatusCode};
use queue::{Schedule, Scheduled};
use serde::Serialize;
use serde_json::json;

use super::{body, page_limit, repeat_key, time};
use crate::Error;
use crate::call::Call;
use crate::reply::{self, Reply};

/// Schedules per page.
const LIMIT_MAX: usize = 1_000;

/// A schedule, as readers see it. The data of its job is as it was sent.
#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    #[serde(flatten)]
    schedule: &'a Schedule,
    next: String,
    skipped: u64,
    last: Option<Last<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
}

#[derive(Serialize)]
struct Last<'a> {
    occurrence: String,
    id: Option<&'a str>,
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct Page<'a> {
    schedules: Vec<Row<'a>>,
    next: Option<&'a str>,
}

pub(crate) async fn all(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    call.query.only(&["limit", "after"])?;
    let after = call.query.get("after").filter(|text| !text.is_empty());
    let limit = page_limit(call, LIMIT_MAX, LIMIT_MAX)?;
    let (schedules, more) = call.shared.queue.schedules(after, limit).await?;
    let next = schedules.last().filter(|_| more);
    Ok(reply::ok(&Page {
        schedules: schedules.iter().map(shown).collect(),
        next: next.map(|last| last.name.as_str()),
    }))
}

/// `/_schedules/{name}`
pub(crate) async fn one(call: &mut Call, name: &str) -> Result<Reply, Error> {
    call.allow("DELETE,GET,HEAD,PUT")?;
    call.query.only(&[])?;
    match call.method {
        Method::PUT => {
            let schedule: Schedule = body(call).await?;
            let (made, next_ms) = call.shared.queue.put_schedule(name, &schedule).await?;
            let status = if made {
                StatusCode::CREATED
            } else {
                StatusCode::OK
            };
            Ok(reply::json(
                status,
                &json!({"ok": true, "next": time(next_ms)}),
            ))
        }
        Method::DELETE => {
            call.shared.queue.remove_schedule(name).await?;
            Ok(reply::ok(&json!({"ok": true})))
        }
        _ => Ok(reply::ok(&shown(&call.shared.queue.schedule(name).await?))),
    }
}

pub(crate) async fn run(call: &mut Call, name: &str) -> Result<Reply, Error> {
    call.allow("POST")?;
    call.query.only(&[])?;
    call.no_members().await?;
    let repeat = repeat_key(call)?;
    let id = (call.shared.queue)
        .run_schedule(name, repeat.as_deref())
        .await?;
    Ok(reply::json(
        StatusCode::CREATED,
        &json!({"ok": true, "id": id}),
    ))
}

fn shown(found: &Scheduled) -> Row<'_> {
    Row {
        name: &found.name,
        schedule: &found.schedule,
        next: time(found.next_ms),
        skipped: found.skipped,
        last: found.last.as_ref().map(|last| Last {
            occurrence: time(last.occurrence_ms),
            id: last.id.as_deref(),
            error: last.error.as_deref(),
        }),
        unreadable: found.unreadable.as_ref().map(ToString::to_string),
    }
}
