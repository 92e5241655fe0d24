//! The service as a whole: version, health, databases.

use std::collections::HashMap;
use std::time::Duration;

use docstore::IdRange;
use document::json::Json;
use http::header::{CACHE_CONTROL, PRAGMA};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::call::Call;
use crate::reply::{self, Reply};
use crate::state::Shared;
use crate::{Error, couchdb_version, upstream};

/// Time limit for the store's response in `_up`.
const PULSE: Duration = Duration::from_secs(5);
/// Maximum number of databases per `_dbs_info`.
const INFOS_MAX: usize = 100;
/// Maximum number of databases per listing: more need `limit` and `startkey`.
const NAMES_MAX: usize = 100_000;

pub(crate) fn welcome(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    Ok(reply::ok(&json!({
        "couchdb": "Welcome",
        "version": couchdb_version!(),
        "git_sha": "0000000",
        "uuid": call.shared.replications.service().uuid,
        "features": ["scheduler"],
        "vendor": {"name": "Davenport", "version": env!("CARGO_PKG_VERSION")},
    })))
}

/// `GET /_up`: whether reads and writes work.
pub(crate) async fn up(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    let first = IdRange {
        limit: Some(1),
        ..IdRange::default()
    };
    let unwell = || Error::busy("The store does not answer.");
    let looked = timeout(PULSE, call.docs().databases_page(&first)).await;
    looked.map_err(|_| unwell())?.map_err(|error| {
        tracing::warn!(error = %wire::chain(&error), "the store does not answer");
        unwell()
    })?;
    call.shared.health.check().await?;
    Ok(reply::ok(&json!({"status": "ok", "seeds": {}})))
}

pub(crate) fn uuids(call: &Call) -> Result<Reply, Error> {
    call.allow("GET")?;
    let bad = || Error::bad_request("count must be a positive integer");
    let count = call.query.number("count").map_err(|_| bad())?.unwrap_or(1);
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count > call.options().uuids_max {
        return Err(Error::bad_request("count parameter too large"));
    }
    let uuids: Vec<_> = (0..count).map(|_| uuid(&call.shared)).collect();
    let mut reply = reply::ok(&json!({"uuids": uuids}));
    reply::set(&mut reply, CACHE_CONTROL, "no-cache");
    reply::set(&mut reply, PRAGMA, "no-cache");
    Ok(reply)
}

pub(crate) fn uuid(shared: &Shared) -> String {
    format!("{:032x}", shared.bits())
}

pub(crate) fn membership(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    // Nodes never talk to each other, so clients see each as a cluster of one.
    let nodes = [&call.options().node_name];
    Ok(reply::ok(
        &json!({"all_nodes": nodes, "cluster_nodes": nodes}),
    ))
}

pub(crate) async fn all_dbs(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD")?;
    Ok(reply::ok(&names(call, NAMES_MAX).await?))
}

pub(crate) async fn dbs_info(call: &mut Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD,POST")?;
    if call.method == http::Method::GET {
        let names = names(call, INFOS_MAX).await?;
        return Ok(reply::ok(&infos(call, &names).await?));
    }
    call.check_json()?;
    let body = call.json_object().await?;
    let keys = (body.get("keys")).ok_or_else(|| Error::bad_request("`keys` member must exist."))?;
    let keys = keys
        .as_array()
        .ok_or_else(|| Error::bad_request("`keys` must be an array."))?;
    if keys.len() > INFOS_MAX {
        let reason = format!("`keys` must have at most {INFOS_MAX} names");
        return Err(Error::bad_request(reason));
    }
    let keys = keys.iter().map(|key| key.as_str().map(str::to_owned));
    let keys: Option<Vec<String>> = keys.collect();
    let keys = keys.ok_or_else(|| Error::bad_request("`keys` must be strings."))?;
    Ok(reply::ok(&infos(call, &keys).await?))
}

/// Information on databases, each here or in the cluster behind this service.
async fn infos(call: &Call, names: &[String]) -> Result<Vec<Value>, Error> {
    let mut theirs = HashMap::new();
    if let Some(upstream) = &call.shared.upstream {
        // The cluster is asked even if no name is its: it decides who may ask.
        let keys: Vec<_> = names
            .iter()
            .filter(|name| !upstream::is_ours(name))
            .collect();
        let keys = json!({"keys": keys}).to_string();
        let (headers, client) = (&call.headers, call.client);
        let rows = upstream.rows("/_dbs_info", headers, client, Some(keys));
        for row in rows.await? {
            theirs.insert(row["key"].as_str().unwrap_or_default().to_owned(), row);
        }
    }
    let mut infos = Vec::with_capacity(names.len());
    for name in names {
        infos.push(match theirs.get(name) {
            Some(info) => info.clone(),
            None => info(call, name).await?,
        });
    }
    Ok(infos)
}

async fn info(call: &Call, name: &str) -> Result<Value, Error> {
    let docs = call.docs();
    let found = async {
        let db = docs.open(&docs.name(name)?).await?;
        docs.info(&db).await
    };
    match found.await {
        Ok(info) => Ok(json!({"key": name, "info": info})),
        Err(docstore::Error::NoDatabase | docstore::Error::IllegalName(_)) => {
            Ok(json!({"key": name, "error": "not_found"}))
        }
        Err(error) => Err(error.into()),
    }
}

/// The databases selected by the query: ours, and those of the cluster behind this service.
async fn names(call: &Call, names_max: usize) -> Result<Vec<String>, Error> {
    let range = range(call)?;
    let too_many = || {
        let reason = format!("There are more than {names_max} databases; set `limit`.");
        Error::bad_request(reason)
    };
    let Some(upstream) = &call.shared.upstream else {
        return ours(call, range, names_max).await?.ok_or_else(too_many);
    };
    let everything = IdRange {
        skip: 0,
        limit: None,
        ..range.clone()
    };
    let mut path = format!("/_all_dbs?inclusive_end={}", range.inclusive_end);
    let bounds = [("startkey", &range.start), ("endkey", &range.end)];
    for (name, key) in bounds {
        if let Some(key) = key {
            let key = wire::quote(&json!(key).to_string());
            path.extend(["&", name, "=", &key]);
        }
    }
    if range.descending {
        path += "&descending=true";
    }
    let theirs = (upstream.rows(&path, &call.headers, call.client, None)).await?;
    let theirs = theirs.iter().filter_map(Value::as_str).map(str::to_owned);
    let ours = (ours(call, everything, NAMES_MAX).await?).ok_or_else(too_many)?;
    // What the cluster has under our names cannot be reached here.
    let mut names: Vec<String> = theirs.filter(|name| !upstream::is_ours(name)).collect();
    names.extend(ours.into_iter().filter(|name| upstream::is_ours(name)));
    names.sort_unstable();
    if range.descending {
        names.reverse();
    }
    let limit = range.limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    });
    let skip = usize::try_from(range.skip).unwrap_or(usize::MAX);
    let names: Vec<String> = names.into_iter().skip(skip).take(limit).collect();
    if names.len() > names_max {
        return Err(too_many());
    }
    Ok(names)
}

/// The databases in the store; `None` if there are too many.
async fn ours(call: &Call, range: IdRange, names_max: usize) -> Result<Option<Vec<String>>, Error> {
    let mut names = Vec::new();
    let mut rest = Some(range);
    while let Some(range) = rest {
        let page = call.docs().databases_page(&range).await?;
        names.extend(page.rows.iter().map(|db| db.name().as_str().to_owned()));
        rest = page.rest;
        if names.len() > names_max {
            return Ok(None);
        }
    }
    Ok(Some(names))
}

fn range(call: &Call) -> Result<IdRange, Error> {
    let query = &call.query;
    let key = |names: [&str; 2]| {
        let json = names.iter().find_map(|name| query.json(name).transpose());
        match json.transpose()? {
            None => Ok(None),
            Some(Json::String(key)) => Ok(Some(key)),
            Some(_) => Err(Error::query("keys must be strings")),
        }
    };
    Ok(IdRange {
        start: key(["start_key", "startkey"])?,
        end: key(["end_key", "endkey"])?,
        inclusive_end: query.get("inclusive_end") != Some("false"),
        descending: query.flag("descending")?,
        skip: query.number("skip")?.unwrap_or(0),
        limit: query.number("limit")?,
        after: None,
    })
}
