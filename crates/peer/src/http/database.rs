//! Requests for a whole database.

use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::Value;

use super::check_server_admin;
use crate::db::Database;
use crate::refusal::Refusal;
use crate::render;
use crate::reply::{self, Reply};
use crate::request::Request;
use crate::security::Security;
use crate::server::Server;

pub(super) async fn database(
    server: &Arc<Server>,
    request: Request,
    name: &str,
) -> Result<Reply, Refusal> {
    match request.method {
        Method::PUT => create(server, &request, name),
        Method::DELETE if request.param("rev").is_some() => Err(Refusal::bad_request(
            "You tried to DELETE a database with a ?=rev parameter. Did you mean to DELETE a document instead?",
        )),
        Method::DELETE => {
            check_server_admin(&request)?;
            server.delete_database(name)?;
            Ok(reply::ok(StatusCode::OK))
        }
        _ => {
            let db = server.database(name)?;
            db.read().security.check_member(&request.user)?;
            match request.method {
                Method::GET => {
                    let mut body = Vec::new();
                    info(&mut body, server, &db);
                    Ok(reply::json(StatusCode::OK, body))
                }
                Method::POST => super::document::create(server, request, &db).await,
                _ => Err(Refusal::method("DELETE,GET,HEAD,POST")),
            }
        }
    }
}

fn create(server: &Server, request: &Request, name: &str) -> Result<Reply, Refusal> {
    check_server_admin(request)?;
    for param in ["n", "q"] {
        let value = request.param(param).map_or(Ok(1), str::parse::<u32>);
        if value.is_err() || value == Ok(0) {
            return Err(Refusal::bad_request(format!(
                "The `{param}` value should be a positive integer."
            )));
        }
    }
    server.create_database(name)?;
    Ok(reply::with_location(
        reply::ok(StatusCode::CREATED),
        &request.absolute(&[name]),
    ))
}

/// Appends the body of `GET /db`.
pub(super) fn info(out: &mut Vec<u8>, server: &Server, db: &Database) {
    let seqs = server.seqs(db);
    let state = db.read();
    let (seq, bytes) = (seqs.json(state.seq), state.bytes);
    let (live, deleted) = (state.live_docs(), state.deleted_docs);
    out.extend_from_slice(
        format!("{{\"instance_start_time\":\"{}\",\"db_name\":", db.created).as_bytes(),
    );
    render::string(out, &db.name);
    out.extend_from_slice(
        format!(
            ",\"purge_seq\":{},\"update_seq\":{seq},\"sizes\":{{\"file\":{bytes},\"external\":{bytes},\"active\":{bytes}}},\
             \"props\":{{}},\"doc_del_count\":{deleted},\"doc_count\":{live},\"disk_format_version\":8,\
             \"compact_running\":false,\"cluster\":{{\"q\":1,\"n\":1,\"w\":1,\"r\":1}}}}",
            seqs.json(0)
        )
        .as_bytes(),
    );
}

pub(super) async fn security(mut request: Request, db: &Database) -> Result<Reply, Refusal> {
    match request.method {
        Method::GET => Ok(reply::json(StatusCode::OK, db.read().security.json.clone())),
        Method::PUT => {
            let security = Security::parse(&request.json_body().await?)?;
            let mut state = db.write();
            state.security.check_admin(&request.user)?;
            state.security = security;
            Ok(reply::ok(StatusCode::OK))
        }
        _ => Err(Refusal::method("PUT,GET")),
    }
}

pub(super) async fn revs_limit(mut request: Request, db: &Database) -> Result<Reply, Refusal> {
    match request.method {
        Method::GET => Ok(reply::json(
            StatusCode::OK,
            db.read().revs_limit.to_string(),
        )),
        Method::PUT => {
            let limit: Value = serde_json::from_str(&request.json_body().await?)
                .map_err(|_| Refusal::bad_request("invalid UTF-8 JSON"))?;
            let limit = limit
                .as_u64()
                .and_then(|limit| usize::try_from(limit).ok())
                .filter(|limit| *limit > 0);
            let mut state = db.write();
            state.security.check_admin(&request.user)?;
            state.revs_limit =
                limit.ok_or_else(|| Refusal::internal("unknown_error", "invalid_revs_limit"))?;
            Ok(reply::ok(StatusCode::OK))
        }
        _ => Err(Refusal::method("PUT,GET")),
    }
}

pub(super) fn ensure_full_commit(request: &Request, db: &Database) -> Result<Reply, Refusal> {
    check_post(request)?;
    request.check_json()?;
    let body = format!("{{\"ok\":true,\"instance_start_time\":\"{}\"}}", db.created);
    Ok(reply::json(StatusCode::CREATED, body))
}

pub(super) fn compact(request: &Request, db: &Database) -> Result<Reply, Refusal> {
    check_post(request)?;
    request.check_json()?;
    db.compact();
    Ok(reply::ok(StatusCode::ACCEPTED))
}

pub(super) fn view_cleanup(request: &Request) -> Result<Reply, Refusal> {
    check_post(request)?;
    Ok(reply::ok(StatusCode::ACCEPTED))
}

pub(super) fn check_post(request: &Request) -> Result<(), Refusal> {
    if request.method == Method::POST {
        Ok(())
    } else {
        Err(Refusal::method("POST"))
    }
}
