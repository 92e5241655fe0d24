//! `/_scheduler/replications` and what else shows all replications at once: summary, causes, nodes, history.

use document::json::Json;
use http::Method;
use scheduler::{Acted, Action, Chosen, Column, RowState, TableQuery};
use serde_json::json;

use super::deliveries;
use super::scheduler::{number, query_error};
use crate::Error;
use crate::call::Call;
use crate::reply::{self, Reply};

const LIMIT: u64 = 50;
/// Keys in one request.
const KEYS_MAX: usize = 10_000;

pub(crate) async fn summary(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    Ok(reply::ok(&call.shared.replications.summary().await?))
}

pub(crate) async fn nodes(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    Ok(reply::ok(&call.shared.replications.nodes().await?))
}

pub(crate) async fn history(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    Ok(reply::ok(&call.shared.replications.history().await?))
}

pub(crate) async fn causes(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let limit = number(&call.query, "limit")?.unwrap_or(LIMIT);
    Ok(reply::ok(&call.shared.replications.causes(limit).await?))
}

pub(crate) async fn shares(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let after = call.query.get("after").filter(|text| !text.is_empty());
    let limit = deliveries::page_length(call)?;
    Ok(reply::ok(
        &call.shared.replications.shares(after, limit).await?,
    ))
}

pub(crate) async fn replications(call: &mut Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD,POST")?;
    if call.method == Method::POST {
        return act(call).await;
    }
    let text = |name| {
        let given = call.query.get(name).filter(|text| !text.is_empty());
        given.map(str::to_owned)
    };
    let sort = text("sort").unwrap_or_else(|| "state".to_owned());
    let sort = Column::named(&sort)
        .ok_or_else(|| Error::query(format!("there is no column `{sort}` to sort by")))?;
    let states = text("states").unwrap_or_default();
    let query = TableQuery {
        states: row_states(states.split(','))?,
        database: text("database"),
        text: text("q"),
        cause: text("cause"),
        sort,
        descending: call.query.flag("descending")?,
        limit: number(&call.query, "limit")?.unwrap_or(LIMIT),
        bookmark: text("bookmark"),
    };
    let table = call.shared.replications.table(&query).await;
    Ok(reply::ok(&table.map_err(query_error)?))
}

/// `{"action": "restart", "keys": [...]}`, or `{"action": ..., "matching": {"states": [...], "cause": ...}}`
async fn act(call: &mut Call) -> Result<Reply, Error> {
    call.check_json()?;
    let body = call.json_object().await?;
    let action = match body.get("action").and_then(Json::as_str) {
        Some("restart") => Action::Restart,
        Some("pause") => Action::Pause,
        Some("resume") => Action::Resume,
        Some("delete") => Action::Delete,
        _ => {
            let reason = "`action` must be restart, pause, resume or delete";
            return Err(Error::bad_request(reason));
        }
    };
    let chosen = match (body.get("keys"), body.get("matching")) {
        (Some(keys), None) => Chosen::Keys(texts(keys, "keys")?),
        (None, Some(matching)) if matching.as_object().is_some() => {
            Chosen::Matching(matching_query(matching)?)
        }
        _ => {
            let reason = "give either `keys`, an array, or `matching`, an object";
            return Err(Error::bad_request(reason));
        }
    };
    let acted = call.shared.replications.act(action, &chosen).await?;
    let Acted { done, failed, left } = acted;
    let failed = failed.into_iter().map(|(key, error)| {
        let error = Error::from(error);
        error.log();
        let mut shown = error.to_json();
        shown["key"] = key.into();
        shown
    });
    let failed: Vec<_> = failed.collect();
    Ok(reply::ok(&json!({
        "ok": failed.is_empty() && left == 0, "done": done, "failed": failed, "left": left,
    })))
}

/// An empty object is all replications.
fn matching_query(matching: &Json) -> Result<TableQuery, Error> {
    let text = |name: &str| match matching.get(name) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(_) => Err(Error::bad_request(format!("`{name}` must be a string"))),
    };
    let known = ["states", "database", "q", "cause"];
    let mut names = matching.as_object().unwrap_or_default().iter();
    // What is not understood must not be left out: the action would be on more.
    if let Some((name, _)) = names.find(|(name, _)| !known.contains(&name.as_str())) {
        return Err(Error::bad_request(format!("unknown filter `{name}`")));
    }
    let states = match matching.get("states") {
        Some(states) => texts(states, "states")?,
        None => Vec::new(),
    };
    Ok(TableQuery {
        states: row_states(states.iter().map(String::as_str))?,
        database: text("database")?,
        text: text("q")?,
        cause: text("cause")?,
        ..TableQuery::default()
    })
}

fn texts(json: &Json, name: &str) -> Result<Vec<String>, Error> {
    let items = json.as_array().filter(|items| items.len() <= KEYS_MAX);
    let texts = items.and_then(|items| {
        let texts = items.iter().map(|item| item.as_str().map(str::to_owned));
        texts.collect()
    });
    let reason = || format!("`{name}` must be an array of at most {KEYS_MAX} strings");
    texts.ok_or_else(|| Error::bad_request(reason()))
}

fn row_states<'a>(names: impl Iterator<Item = &'a str>) -> Result<Vec<RowState>, Error> {
    let names = names.map(str::trim).filter(|name| !name.is_empty());
    let state = |name: &str| {
        let found = RowState::ALL
            .into_iter()
            .find(|state| state.as_str() == name);
        found.ok_or_else(|| {
            let known = RowState::ALL.map(RowState::as_str).join(",");
            Error::query(format!("Unknown state {name}. Choose from: [{known}]"))
        })
    };
    names.map(state).collect()
}
