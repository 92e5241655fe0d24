//! Requests for the whole server.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::Value;

use super::check_server_admin;
use crate::auth::Password;
use crate::db::Database;
use crate::refusal::Refusal;
use crate::render;
use crate::reply::{self, Reply};
use crate::request::Request;
use crate::server::Server;

/// The most names in a `_dbs_info` request.
const DATABASES_MAX: usize = 100;

fn check_get(request: &Request) -> Result<(), Refusal> {
    if request.method == Method::GET {
        Ok(())
    } else {
        Err(Refusal::method("GET,HEAD"))
    }
}

pub(super) fn welcome(server: &Server, request: &Request) -> Result<Reply, Refusal> {
    check_get(request)?;
    let (version, uuid) = (&server.options.version, &server.uuid);
    let body = format!(
        "{{\"couchdb\":\"Welcome\",\"version\":\"{version}\",\"git_sha\":\"0000000\",\"uuid\":\"{uuid}\",\
         \"features\":[\"access-ready\",\"partitioned\",\"pluggable-storage-engines\",\"reshard\",\"scheduler\"],\
         \"vendor\":{{\"name\":\"The Apache Software Foundation\"}}}}"
    );
    Ok(reply::json(StatusCode::OK, body))
}

pub(super) fn up(request: &Request) -> Result<Reply, Refusal> {
    check_get(request)?;
    Ok(reply::json(
        StatusCode::OK,
        "{\"status\":\"ok\",\"seeds\":{}}",
    ))
}

pub(super) fn active_tasks(request: &Request) -> Result<Reply, Refusal> {
    check_get(request)?;
    check_server_admin(request)?;
    Ok(reply::json(StatusCode::OK, "[]"))
}

pub(super) fn uuids(server: &Server, request: &Request) -> Result<Reply, Refusal> {
    if request.method != Method::GET {
        return Err(Refusal::method("GET"));
    }
    let count = request.param("count").map_or(Ok(1), str::parse::<u32>);
    let count = count.map_err(|_| Refusal::bad_request("count parameter is not an integer"))?;
    if count > 1000 {
        return Err(Refusal::bad_request("count parameter too large"));
    }
    let uuids: Vec<String> = (0..count).map(|_| server.chance.uuid()).collect();
    let mut body = b"{\"uuids\":".to_vec();
    render::list(&mut body, &uuids, |out, uuid| render::string(out, uuid));
    body.push(b'}');
    Ok(reply::json(StatusCode::OK, body))
}

/// The requested databases by name: a range, a limit, a number to skip.
fn page(server: &Server, request: &Request) -> Result<Vec<Arc<Database>>, Refusal> {
    let number = |name: &str, default: usize| match request.param(name) {
        None => Ok(default),
        Some(text) => text
            .parse()
            .map_err(|_| Refusal::query_parse(format!("Invalid value for integer: \"{text}\""))),
    };
    let key = |names: [&str; 2]| {
        let json = names.iter().find_map(|name| request.param(name));
        json.and_then(|json| serde_json::from_str::<String>(json).ok())
    };
    let (start, end) = (key(["startkey", "start_key"]), key(["endkey", "end_key"]));
    let (limit, skip) = (number("limit", usize::MAX)?, number("skip", 0)?);
    let mut databases = server.databases();
    let descending = request.flag("descending");
    if descending {
        databases.reverse();
    }
    let after = |name: &str, key: &str| if descending { name <= key } else { name >= key };
    let before = |name: &str, key: &str| if descending { name >= key } else { name <= key };
    databases.retain(|db| {
        start.as_ref().is_none_or(|key| after(&db.name, key))
            && end.as_ref().is_none_or(|key| before(&db.name, key))
    });
    Ok(databases.into_iter().skip(skip).take(limit).collect())
}

pub(super) fn all_dbs(server: &Server, request: &Request) -> Result<Reply, Refusal> {
    check_server_admin(request)?;
    check_get(request)?;
    let mut body = Vec::new();
    render::list(&mut body, &page(server, request)?, |out, db| {
        render::string(out, &db.name);
    });
    body.push(b'\n');
    Ok(reply::stream(
        "application/json",
        futures::stream::iter([Bytes::from(body)]),
    ))
}

pub(super) async fn dbs_info(server: &Server, mut request: Request) -> Result<Reply, Refusal> {
    check_server_admin(&request)?;
    let names = match request.method {
        Method::GET => page(server, &request)?
            .iter()
            .map(|db| db.name.clone())
            .collect(),
        Method::POST => {
            request.check_json()?;
            let body: Value =
                serde_json::from_str(&request.json_object().await?).unwrap_or_default();
            let keys = body
                .get("keys")
                .ok_or_else(|| Refusal::bad_request("`keys` member must exist."))?;
            let keys: Result<Vec<String>, _> = serde_json::from_value(keys.clone());
            keys.map_err(|_| Refusal::bad_request("`keys` member must be an array."))?
        }
        _ => return Err(Refusal::method("GET,HEAD,POST")),
    };
    if request.method == Method::POST && names.len() > DATABASES_MAX {
        return Err(Refusal::bad_request("too_many_keys"));
    }
    let mut body = Vec::new();
    render::list(&mut body, &names, |out, name| {
        out.extend_from_slice(b"{\"key\":");
        render::string(out, name);
        match server.database(name) {
            Ok(db) => {
                out.extend_from_slice(b",\"info\":");
                super::database::info(out, server, &db);
                out.push(b'}');
            }
            Err(_) => out.extend_from_slice(b",\"error\":\"not_found\"}"),
        }
    });
    body.push(b'\n');
    Ok(reply::stream(
        "application/json",
        futures::stream::iter([Bytes::from(body)]),
    ))
}

pub(super) fn admins(server: &Server, request: &Request) -> Result<Reply, Refusal> {
    check_server_admin(request)?;
    check_get(request)?;
    let mut body = Vec::new();
    for name in server.auth.admins() {
        body.extend_from_slice(if body.is_empty() { b"{" } else { b"," });
        render::string(&mut body, &name);
        body.extend_from_slice(b":\"-pbkdf2-\"");
    }
    body.extend_from_slice(if body.is_empty() { b"{}" } else { b"}" });
    Ok(reply::json(StatusCode::OK, body))
}

/// Adds or removes a server administrator.
pub(super) async fn admin(
    server: &Server,
    mut request: Request,
    name: &str,
) -> Result<Reply, Refusal> {
    check_server_admin(&request)?;
    let known = || Refusal::not_found("unknown_config_value");
    match request.method {
        Method::PUT => {
            let password: String = serde_json::from_str(&request.json_body().await?)
                .map_err(|_| Refusal::bad_request("invalid UTF-8 JSON"))?;
            let before = server
                .auth
                .set_admin(name, Some(Password::new(&password, server.chance.uuid())));
            Ok(reply::json(
                StatusCode::OK,
                if before.is_some() {
                    "\"-pbkdf2-\""
                } else {
                    "\"\""
                },
            ))
        }
        Method::DELETE => {
            server.auth.set_admin(name, None).ok_or_else(known)?;
            Ok(reply::json(StatusCode::OK, "\"-pbkdf2-\""))
        }
        Method::GET if server.auth.admins().iter().any(|admin| admin == name) => {
            Ok(reply::json(StatusCode::OK, "\"-pbkdf2-\""))
        }
        Method::GET => Err(known()),
        _ => Err(Refusal::method("GET,PUT,DELETE")),
    }
}
