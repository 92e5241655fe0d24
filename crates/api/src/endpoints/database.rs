use std::sync::Arc;

use document::json::Json;
use http::{Method, StatusCode};
use serde_json::json;

use crate::Error;
use crate::access::{Opened, Security};
use crate::call::Call;
use crate::reply::{self, Reply};

/// `PUT /{db}`; the database must not exist.
pub(crate) async fn create(call: &Call, name: &str) -> Result<Reply, Error> {
    if call.query.flag("partitioned")? {
        return Err(Error::bad_request("Cannot partition a system database"));
    }
    call.shared.replications.create_database(name).await?;
    let reply = reply::json(StatusCode::CREATED, &json!({"ok": true}));
    Ok(reply::with_location(
        reply,
        &call.absolute(&format!("/{}", wire::quote(name))),
    ))
}

pub(crate) async fn delete(call: &Call, name: &str) -> Result<Reply, Error> {
    if call.query.get("rev").is_some() {
        return Err(Error::bad_request(
            "You tried to DELETE a database with a ?rev= parameter. Did you mean to DELETE a document instead?",
        ));
    }
    let docs = call.docs();
    let name = docs.name(name).map_err(|_| docstore::Error::NoDatabase)?;
    let db = docs.open(&name).await?;
    let opened = Opened { db, is_admin: true };
    if opened.has_rules() {
        call.shared.rules.delete_database(&opened.db).await?;
    } else {
        (call.shared.replications.delete_database(&opened.db)).await?;
    }
    Ok(reply::ok(&json!({"ok": true})))
}

pub(crate) async fn info(call: &Call, opened: &Opened) -> Result<Reply, Error> {
    Ok(reply::ok(&call.docs().info(&opened.db).await?))
}

pub(crate) async fn security(call: &mut Call, opened: &Opened) -> Result<Reply, Error> {
    call.allow("PUT,GET,HEAD")?;
    let shared = Arc::clone(&call.shared);
    if call.method == Method::GET {
        let stored = shared.docs().security(&opened.db).await?;
        let shown = stored.unwrap_or_else(|| Security::DEFAULT.to_owned());
        return Ok(reply::text(StatusCode::OK, shown));
    }
    if opened.has_users() || opened.has_rules() {
        let what = if opened.has_users() { "users" } else { "rules" };
        return Err(Error::forbidden(format!(
            "The security of {what} cannot be changed: administrators only."
        )));
    }
    let security = call.json_object().await?;
    Security::check(&security)?;
    let security = security.to_string();
    shared.docs().set_security(&opened.db, &security).await?;
    Ok(reply::ok(&json!({"ok": true})))
}

pub(crate) async fn revs_limit(call: &mut Call, opened: &Opened) -> Result<Reply, Error> {
    call.allow("PUT,GET,HEAD")?;
    let shared = Arc::clone(&call.shared);
    if call.method == Method::GET {
        return Ok(reply::ok(&shared.docs().revs_limit(&opened.db).await?));
    }
    let limit = call.parse(Json::parse).await?;
    let limit = limit
        .as_integer()
        .and_then(|limit| u32::try_from(limit).ok());
    let limit = limit.filter(|limit| *limit > 0);
    let limit =
        limit.ok_or_else(|| Error::bad_request("`rev_limit` must be a positive integer"))?;
    shared.docs().set_revs_limit(&opened.db, limit).await?;
    Ok(reply::ok(&json!({"ok": true})))
}

/// `POST /{db}/_ensure_full_commit`: a no-op, since every acknowledged write is durable.
pub(crate) fn ensure_full_commit(call: &Call) -> Result<Reply, Error> {
    call.allow("POST")?;
    let done = json!({"ok": true, "instance_start_time": "0"});
    Ok(reply::json(StatusCode::CREATED, &done))
}

/// `POST /{db}/_compact` and `_view_cleanup`: no-ops.
pub(crate) fn compact(call: &Call) -> Result<Reply, Error> {
    call.allow("POST")?;
    Ok(reply::json(StatusCode::ACCEPTED, &json!({"ok": true})))
}
