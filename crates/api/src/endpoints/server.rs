//! The service as a whole: version, health, databases.

use std::time::Duration;

use docstore::{Db, IdRange};
use document::json::Json;
use http::header::{CACHE_CONTROL, PRAGMA};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::call::Call;
use crate::reply::{self, Reply};
use crate::state::Shared;
use crate::{Error, couchdb_version};

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
        tracing::warn!(%error, "the store does not answer");
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
    let names: Vec<_> = list(call, NAMES_MAX).await?;
    let names: Vec<_> = names.iter().map(|db| db.name().as_str()).collect();
    Ok(reply::ok(&names))
}

pub(crate) async fn dbs_info(call: &mut Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD,POST")?;
    let mut infos = Vec::new();
    if call.method == http::Method::GET {
        for db in list(call, INFOS_MAX).await? {
            infos.push(info(call, db.name().as_str()).await?);
        }
        return Ok(reply::ok(&infos));
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
    for key in keys {
        let name = key
            .as_str()
            .ok_or_else(|| Error::bad_request("`keys` must be strings."))?;
        infos.push(info(call, name).await?);
    }
    Ok(reply::ok(&infos))
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

/// The databases selected by the query.
async fn list(call: &Call, names_max: usize) -> Result<Vec<Db>, Error> {
    let mut databases = Vec::new();
    let mut rest = Some(range(call)?);
    while let Some(range) = rest {
        let page = call.docs().databases_page(&range).await?;
        databases.extend(page.rows);
        rest = page.rest;
        if databases.len() > names_max {
            let reason = format!("There are more than {names_max} databases; set `limit`.");
            return Err(Error::bad_request(reason));
        }
    }
    Ok(databases)
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
