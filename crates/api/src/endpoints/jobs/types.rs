//! Types: their settings, their numbers, adding jobs, and what operators do to all jobs of a type.

use futures::future::try_join_all;
use http::{Method, StatusCode};
use jobs::State;
use queue::{IDS_MAX, NewJob, Numbers, Raw, Settings, Type, TypeName, given};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{body, object, page_limit, reading, repeat_key, time};
use crate::call::Call;
use crate::reply::{self, Reply};
use crate::{Error, access, parse};

/// Types per page.
const TYPES_MAX: usize = 1_000;
/// Due jobs that are counted.
const DUE_MAX: usize = 1_000;
/// Due jobs that are counted for each of many types.
const LISTED_DUE_MAX: usize = 100;
/// Types whose numbers are read at the same time.
const READERS: usize = 8;

/// Types that the caller may read, by name; for administrators the service's own on the last page.
pub(super) async fn list(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let (queue, caller) = (&call.shared.queue, call.caller());
    let text = |name| call.query.get(name).filter(|text| !text.is_empty());
    let after = text("after").map(TypeName::new).transpose();
    let after = after.map_err(|_| Error::query("`after` must be `next` of an earlier response"))?;
    let limit = page_limit(call, TYPES_MAX, TYPES_MAX)?;
    let part = text("q").unwrap_or_default();
    let is_named = |ty: &Type| ty.name.as_str().contains(part);
    let wanted = |ty: &Type| is_named(ty) && access::reads(&call.proven, ty);
    let (mut types, more) = queue.types(after.as_ref(), limit, wanted).await?;
    let last = types.last().filter(|_| more);
    let next = last.map(|last| last.name.as_str().to_owned());
    if caller.is_admin() && !more && limit > 0 {
        types.extend(queue.own_types().await?.into_iter().filter(is_named));
    }
    let mut rows: Vec<Value> = Vec::new();
    for some in types.chunks(READERS) {
        let numbers = some.iter().map(|ty| queue.numbers(ty, LISTED_DUE_MAX));
        let numbers = try_join_all(numbers).await?;
        rows.extend(
            some.iter()
                .zip(numbers)
                .map(|(ty, numbers)| shown(ty, numbers)),
        );
    }
    Ok(reply::ok(&json!({"types": rows, "next": next})))
}

/// `/_jobs/{type}`, besides its listing.
pub(super) async fn of_type(call: &mut Call, name: &TypeName) -> Result<Reply, Error> {
    call.allow("DELETE,GET,HEAD,POST,PUT")?;
    match call.method {
        Method::PUT => return put(call, name).await,
        Method::DELETE => {
            call.shared.queue.remove_type(name).await?;
            return Ok(reply::ok(&json!({"ok": true})));
        }
        _ => {}
    }
    let ty = call.shared.queue.find(name).await?;
    add(call, &ty).await
}

async fn put(call: &mut Call, name: &TypeName) -> Result<Reply, Error> {
    let settings: Settings = body(call).await?;
    let made = call.shared.queue.put_type(name, &settings).await?;
    let status = if made {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(reply::json(status, &json!({"ok": true})))
}

/// One job, or many as `{"jobs": [...]}`.
async fn add(call: &mut Call, ty: &Type) -> Result<Reply, Error> {
    call.check_json()?;
    let repeat = repeat_key(call)?;
    let (new, many) = call.parse(parse_jobs).await?;
    let mut answers = call.shared.queue.add(ty, new, repeat.as_deref()).await?;
    if !many {
        let id = answers.pop().unwrap_or(Err((None, queue::Error::NoJob)));
        let id = id.map_err(|(_, error)| error)?;
        return Ok(reply::json(
            StatusCode::CREATED,
            &json!({"ok": true, "id": id}),
        ));
    }
    let rows = answers.into_iter().map(|answer| match answer {
        Ok(id) => json!({"ok": true, "id": id}),
        Err((id, error)) => {
            let mut row = Error::from(error).to_json();
            row["id"] = id.into();
            row
        }
    });
    let rows: Vec<Value> = rows.collect();
    Ok(reply::json(StatusCode::CREATED, &json!({"results": rows})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Many {
    jobs: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Kind {
    jobs: Option<serde::de::IgnoredAny>,
}

/// What is known of an entry that is not a job.
#[derive(Deserialize)]
struct Named {
    id: Option<String>,
}

type New = Vec<Result<NewJob, queue::Refused>>;

fn parse_jobs(text: &str) -> Result<(New, bool), Error> {
    let kind: Kind = object(text)?;
    if kind.jobs.is_none() {
        let one: NewJob = parse::read(text)?;
        return Ok((vec![Ok(one)], false));
    }
    let many: Many = parse::read(text)?;
    if many.jobs.len() > IDS_MAX {
        let count = many.jobs.len();
        return Err(Error::bad_request(format!(
            "`jobs` has {count} entries; send at most {IDS_MAX} per request"
        )));
    }
    let job = |(nth, raw): (usize, &RawValue)| {
        parse::read(raw.get()).map_err(|fault| {
            let named = parse::read(raw.get()).ok();
            let id = named.and_then(|Named { id }| id);
            (
                id,
                queue::Error::Invalid(fault.of_entry(nth, "jobs").to_string()),
            )
        })
    };
    let entries = many.jobs.iter().map(|raw| &**raw).enumerate();
    Ok((entries.map(job).collect(), true))
}

pub(super) async fn info(call: &Call, ty: &Type) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let numbers = call.shared.queue.numbers(ty, DUE_MAX).await?;
    Ok(reply::ok(&shown(ty, numbers)))
}

fn shown(ty: &Type, numbers: Numbers) -> Value {
    let mut row = json!({"type": ty.name.as_str(), "internal": ty.is_own()});
    if !ty.is_own() {
        row["settings"] = json!(ty.settings);
        row["paused"] = ty.paused.into();
    }
    let Numbers { counts, backlog } = numbers;
    row["counts"] = json!({
        "pending": counts.pending, "running": counts.running, "finished": counts.finished, "dead": counts.dead,
    });
    row["totals"] = json!({
        "created": counts.created_total, "started": counts.accepted_total, "finished": counts.finished_total,
        "dead": counts.dead_total, "again": counts.again_total, "removed": counts.removed_total,
    });
    // Counted up to a limit.
    row["due"] = backlog.due.into();
    row["waiting_for_limits"] = backlog.held.into();
    row["oldest_due"] = backlog.oldest_due_ms.map(time).into();
    row
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RetryBody {
    state: String,
    #[serde(default, deserialize_with = "given")]
    error: Option<Raw>,
}

pub(super) async fn retry(call: &mut Call, ty: &Type) -> Result<Reply, Error> {
    call.allow("POST")?;
    let body: RetryBody = body(call).await?;
    if reading::state(&body.state)? != State::Dead {
        return Err(Error::bad_request(
            "`state` must be dead: other jobs are not retried",
        ));
    }
    if body.error.as_ref().is_some_and(Raw::is_null) {
        return Err(Error::bad_request(
            "`error` must not be null; leave `error` out to retry all dead jobs of the type",
        ));
    }
    let error = body.error.as_ref().map(Raw::summary);
    let retried = call.shared.queue.retry_all(ty, error).await?;
    if retried.goes_on {
        let told = json!({"ok": true, "count": retried.count, "running": true});
        return Ok(reply::json(StatusCode::ACCEPTED, &told));
    }
    Ok(reply::ok(&json!({"ok": true, "count": retried.count})))
}

pub(super) async fn pause(call: &mut Call, ty: &Type, paused: bool) -> Result<Reply, Error> {
    call.allow("POST")?;
    call.no_members().await?;
    call.shared.queue.pause(&ty.name, paused).await?;
    Ok(reply::ok(&json!({"ok": true})))
}
