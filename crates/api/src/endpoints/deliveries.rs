//! `/_deliveries`: calls of webhooks.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use document::json::Json;
use http::Method;
use jiff::Timestamp;
use jobs::{Cursor, State};
use rules::deliver::{Attempt, Deliveries, Filter, Run, Shown};
use scheduler::ServiceError;
use serde_json::{Value, json};

use crate::Error;
use crate::call::Call;
use crate::reply::{self, Reply};
use crate::route::Route;

const LIMIT: u64 = 100;
const LIMIT_MAX: u64 = 1_000;
const STATES: [(&str, State); 4] = [
    ("pending", State::Pending),
    ("running", State::Running),
    ("delivered", State::Finished),
    ("dead", State::Dead),
];

pub(crate) async fn answer(call: &mut Call) -> Result<Reply, Error> {
    let Some(deliveries) = call.shared.deliveries.clone() else {
        return Err(Error::not_found("missing"));
    };
    match call.route.clone() {
        Route::Deliveries => list(call, &deliveries).await,
        Route::Delivery(id) if call.method == Method::DELETE => {
            if !deliveries.remove(&id).await.map_err(failed)? {
                return Err(Error::not_found("missing"));
            }
            Ok(reply::ok(&json!({"ok": true})))
        }
        Route::Delivery(id) => show(call, &deliveries, &id).await,
        Route::DeliveryReplay(id) => {
            call.allow("POST")?;
            if !deliveries.replay(&id).await.map_err(failed)? {
                return Err(Error::not_found("missing"));
            }
            Ok(reply::ok(&json!({"ok": true})))
        }
        Route::DeliveryRemovals => {
            let filter = ended(call).await?;
            let removed = deliveries.remove_all(&filter).await.map_err(failed)?;
            Ok(reply::ok(&json!({"ok": true, "removed": removed})))
        }
        _ => {
            let filter = ended(call).await?;
            let replayed = deliveries.replay_all(&filter).await.map_err(failed)?;
            Ok(reply::ok(&json!({"ok": true, "replayed": replayed})))
        }
    }
}

async fn list(call: &Call, deliveries: &Deliveries) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let text = |name| call.query.get(name).filter(|text| !text.is_empty());
    let filter = Filter {
        rule: text("rule").map(str::to_owned),
        rule_database: text("rule_database").map(str::to_owned),
        state: text("state").map(state).transpose()?,
    };
    let (after, limit) = page(call)?;
    let page = deliveries.list(&filter, after.as_ref(), limit).await;
    let page = page.map_err(failed)?;
    let rows: Vec<Value> = page.deliveries.iter().map(row).collect();
    let mut body = json!({"deliveries": rows});
    add_after(&mut body, page.cursor.as_ref());
    Ok(reply::ok(&body))
}

/// Where a page begins, and its length.
pub(super) fn page(call: &Call) -> Result<(Option<Cursor>, usize), Error> {
    let after = call.query.get("after").filter(|text| !text.is_empty());
    let after = after.map(|after| {
        let bytes = BASE64.decode(after).map(Cursor::from_bytes);
        bytes.map_err(|_| Error::query("`after` must be that of an earlier response"))
    });
    Ok((after.transpose()?, page_length(call)?))
}

pub(super) fn page_length(call: &Call) -> Result<usize, Error> {
    let limit = call.query.number("limit")?.unwrap_or(LIMIT).min(LIMIT_MAX);
    Ok(usize::try_from(limit).unwrap_or_default())
}

/// Tells where the next page begins, if there is one.
pub(super) fn add_after(body: &mut Value, cursor: Option<&Cursor>) {
    if let Some(cursor) = cursor {
        body["after"] = BASE64.encode(cursor.as_bytes()).into();
    }
}

async fn show(call: &Call, deliveries: &Deliveries, id: &str) -> Result<Reply, Error> {
    call.allow("DELETE,GET,HEAD")?;
    let found = deliveries.show(id).await.map_err(failed)?;
    let (shown, runs) = found.ok_or_else(|| Error::not_found("missing"))?;
    let mut body = row(&shown);
    body["runs"] = runs.iter().map(run).collect();
    Ok(reply::ok(&body))
}

/// Which calls to replay or remove: `{"rule": ..., "rule_database": ..., "state": "dead"}`, all optional.
async fn ended(call: &mut Call) -> Result<Filter, Error> {
    call.allow("POST")?;
    call.check_json()?;
    let body = call.json_object().await?;
    let mut filter = Filter::default();
    for (name, value) in body.as_object().unwrap_or_default() {
        // An unknown member must not be ignored: more calls would match.
        let Json::String(text) = value else {
            return Err(Error::bad_request(format!("`{name}` must be a string")));
        };
        match name.as_str() {
            "rule" => filter.rule = Some(text.clone()),
            "rule_database" => filter.rule_database = Some(text.clone()),
            "state" => filter.state = Some(state(text)?),
            _ => return Err(Error::bad_request(format!("unknown filter `{name}`"))),
        }
    }
    if filter.state.is_some_and(|state| !state.is_over()) {
        return Err(Error::bad_request("`state` must be delivered or dead"));
    }
    Ok(filter)
}

fn state(name: &str) -> Result<State, Error> {
    let found = STATES.iter().find(|(known, _)| *known == name);
    let state = found.map(|(_, state)| *state);
    state.ok_or_else(|| Error::bad_request("`state` must be pending, running, delivered or dead"))
}

fn failed(error: jobs::Error) -> Error {
    ServiceError::from(error).into()
}

fn row(shown: &Shown) -> Value {
    let state = STATES.iter().find(|(_, state)| *state == shown.state);
    json!({
        "id": shown.id,
        "webhook_id": shown.message,
        "state": state.map(|(name, _)| name),
        "rule": shown.rule,
        "rule_database": shown.rule_database,
        "source": shown.source,
        "db": shown.db,
        "doc_id": shown.doc_id,
        "rev": shown.rev,
        "seq": shown.seq,
        "method": shown.method,
        "url": shown.url,
        "created": time(shown.created_ms),
        // 0 is as soon as possible.
        "next": shown.due_ms.map(|due_ms| time(due_ms.max(shown.created_ms))),
        "attempts": shown.attempts,
        "failures": shown.failures,
        "reason": shown.reason,
        "last": shown.last.as_ref().map(attempt),
    })
}

pub(super) fn attempt(attempt: &Attempt) -> Value {
    json!({
        "started": time(attempt.at_ms),
        "took_ms": attempt.took_ms,
        "status": attempt.status,
        "error": attempt.error,
        "body": attempt.body,
    })
}

pub(super) fn run(run: &Run) -> Value {
    json!({
        "number": run.number,
        "node": run.node,
        "started": time(run.started_ms),
        "ended": run.ended_ms.map(time),
        "reason": run.reason,
    })
}

pub(super) fn time(ms: i64) -> String {
    Timestamp::from_millisecond(ms)
        .unwrap_or_default()
        .to_string()
}
