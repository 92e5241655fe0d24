//! `/_schedules`: jobs that are added at times.

use http::{Method, StatusCode};
use queue::{Schedule, Scheduled};
use serde_json::{Value, json};

use super::{body, page_limit, time};
use crate::Error;
use crate::call::Call;
use crate::reply::{self, Reply};

/// Schedules per page.
const LIMIT_MAX: usize = 1_000;

pub(crate) async fn all(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let after = call.query.get("after").filter(|text| !text.is_empty());
    let limit = page_limit(call, LIMIT_MAX, LIMIT_MAX)?;
    let (schedules, more) = call.shared.queue.schedules(after, limit).await?;
    let next = schedules.last().filter(|_| more);
    let next = next.map(|last| last.name.clone());
    let rows: Vec<Value> = schedules.iter().map(shown).collect::<Result<_, _>>()?;
    Ok(reply::ok(&json!({"schedules": rows, "next": next})))
}

/// `/_schedules/{name}`
pub(crate) async fn one(call: &mut Call, name: &str) -> Result<Reply, Error> {
    call.allow("DELETE,GET,HEAD,PUT")?;
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
        _ => Ok(reply::ok(&shown(&call.shared.queue.schedule(name).await?)?)),
    }
}

pub(crate) async fn run(call: &Call, name: &str) -> Result<Reply, Error> {
    call.allow("POST")?;
    let id = call.shared.queue.run_schedule(name).await?;
    Ok(reply::json(
        StatusCode::CREATED,
        &json!({"ok": true, "id": id}),
    ))
}

fn shown(found: &Scheduled) -> Result<Value, Error> {
    let mut row = serde_json::to_value(&found.schedule).map_err(Error::internal)?;
    row["name"] = found.name.clone().into();
    row["next"] = time(found.next_ms).into();
    row["skipped"] = found.skipped.into();
    row["last"] = found.last.as_ref().map_or(
        Value::Null,
        |last| json!({"occurrence": time(last.occurrence_ms), "id": last.id, "error": last.error}),
    );
    if let Some(error) = &found.unreadable {
        row["unreadable"] = error.to_string().into();
    }
    Ok(row)
}
