//! Routes requests.

mod all_docs;
mod attachments;
mod bulk;
mod bulk_get;
mod changes;
mod database;
mod db_updates;
mod doc_query;
mod document;
mod faulty;
mod multipart;
mod session;
mod site;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{ConnectInfo, State};
use http::header::{DATE, SERVER, SET_COOKIE};
use http::{HeaderName, Method, Uri};

use crate::db::Database;
use crate::listener::{Connection, Control};
use crate::record::Recorded;
use crate::refusal::Refusal;
use crate::reply::{self, Reply};
use crate::request::Request;
use crate::server::Server;
use faulty::Stop;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-couch-request-id");
const BODY_TIME: HeaderName = HeaderName::from_static("x-couchdb-body-time");

/// What handlers share.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) server: Arc<Server>,
    pub(crate) control: Control,
}

/// Handles a request, with its faults.
pub(crate) async fn handle(
    State(context): State<Context>,
    ConnectInfo(connection): ConnectInfo<Connection>,
    request: axum::extract::Request,
) -> Reply {
    let server = &context.server;
    let (parts, mut body) = request.into_parts();
    let path = decoded(&parts.uri);
    let mut recorded = Recorded {
        method: parts.method.as_str().to_owned(),
        path,
        query: parts.uri.query().unwrap_or_default().to_owned(),
        status: 0,
    };
    let faults = server
        .faults
        .decide(&recorded.method, &recorded.path, &recorded.query);
    let mut reply = None;
    for fault in &faults {
        match fault.before(server, &mut body).await {
            None => {}
            Some(Stop::Reply(refused)) => {
                reply = Some(refused);
                break;
            }
            Some(stop) => {
                server.recorder.add(recorded);
                return never(&context, &connection, stop).await;
            }
        }
    }
    let mut reply = match reply {
        Some(reply) => reply,
        None => answer(server, &parts, body).await,
    };
    recorded.status = reply.status().as_u16();
    for fault in &faults {
        let Some(changed) = fault.after(reply).await else {
            server.recorder.add(Recorded {
                status: 0,
                ..recorded
            });
            return never(&context, &connection, Stop::Reset).await;
        };
        reply = changed;
    }
    server.recorder.add(recorded);
    reply::set(&mut reply, &DATE, &server.clock.http_date(0));
    reply
}

async fn never(context: &Context, connection: &Connection, stop: Stop) -> Reply {
    match stop {
        Stop::Restart(down) => context.control.restart(down),
        Stop::Hang => {}
        Stop::Reset | Stop::Reply(_) => connection.reset(),
    }
    std::future::pending().await
}

async fn answer(server: &Arc<Server>, parts: &http::request::Parts, body: Body) -> Reply {
    let request = Request::new(parts, body);
    let mut cookie = None;
    let result = match request {
        Ok(request) => route(server, request, parts.uri.to_string().len(), &mut cookie).await,
        Err(refusal) => Err(refusal),
    };
    let mut reply = result.unwrap_or_else(Reply::from);
    reply::complete(&mut reply);
    if let Some(cookie) = cookie
        && !reply.headers().contains_key(SET_COOKIE)
    {
        reply::set(&mut reply, &SET_COOKIE, &cookie);
    }
    let version = &server.options.version;
    reply::set(
        &mut reply,
        &SERVER,
        &format!("CouchDB/{version} (Erlang OTP/26)"),
    );
    reply::set(
        &mut reply,
        &REQUEST_ID,
        &format!("{:x}", u64::from_be_bytes(server.chance.bytes()) >> 24),
    );
    reply::set(&mut reply, &BODY_TIME, "0");
    reply
}

async fn route(
    server: &Arc<Server>,
    mut request: Request,
    uri_bytes: usize,
    cookie: &mut Option<String>,
) -> Result<Reply, Refusal> {
    let limits = server.limits();
    request.body_bytes_max = limits.request_bytes_max;
    if uri_bytes > limits.uri_bytes_max {
        let reason = "the request uri is too long";
        return Err(Refusal::new(
            http::StatusCode::URI_TOO_LONG,
            "too_long",
            reason,
        ));
    }
    let authenticated = server.authenticate(&request)?;
    *cookie = authenticated.cookie;
    request.user = authenticated.user;
    let path = request.path.clone();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    match path[..] {
        [] => site::welcome(server, &request),
        ["_session"] => session::session(server, request, authenticated.handler).await,
        ["_all_dbs"] => site::all_dbs(server, &request),
        ["_dbs_info"] => site::dbs_info(server, request).await,
        ["_db_updates"] => db_updates::db_updates(server, &request),
        ["_uuids"] => site::uuids(server, &request),
        ["_up"] => site::up(&request),
        ["_active_tasks"] => site::active_tasks(&request),
        ["_node", _, "_config", "admins"] => site::admins(server, &request),
        ["_node", _, "_config", "admins", name] => site::admin(server, request, name).await,
        [name] => database::database(server, request, name).await,
        [name, ref rest @ ..] => {
            let db = server.database(name)?;
            check_member(&request, &db, rest)?;
            within(server, request, &db, rest).await
        }
    }
}

/// Checks that the user may use a database at all.
fn check_member(request: &Request, db: &Database, rest: &[&str]) -> Result<(), Refusal> {
    let security = &db.read().security;
    security.check_member(&request.user)?;
    // Only server administrators may list these two, whatever their security objects say.
    let listing = matches!(rest, ["_all_docs" | "_changes", ..]);
    if listing && matches!(db.name.as_str(), "_users" | "_replicator") {
        return check_server_admin(request);
    }
    if matches!(rest, ["_compact" | "_view_cleanup", ..]) && !security.is_admin(&request.user) {
        return Err(Refusal::unauthorized("You are not a server or db admin."));
    }
    Ok(())
}

pub(crate) fn check_server_admin(request: &Request) -> Result<(), Refusal> {
    if request.user.is_server_admin() {
        return Ok(());
    }
    Err(Refusal::unauthorized("You are not a server admin."))
}

async fn within(
    server: &Arc<Server>,
    request: Request,
    db: &Arc<Database>,
    path: &[&str],
) -> Result<Reply, Refusal> {
    match path {
        ["_changes"] => changes::changes(server, request, db).await,
        ["_bulk_docs"] => bulk::bulk_docs(server, request, db).await,
        ["_bulk_get"] => bulk_get::bulk_get(server, request, db).await,
        ["_revs_diff"] => bulk::revs_diff(request, db).await,
        ["_missing_revs"] => bulk::missing_revs(request, db).await,
        ["_all_docs" | "_design_docs" | "_local_docs"] => {
            all_docs::all_docs(server, request, db).await
        }
        ["_security"] => database::security(request, db).await,
        ["_revs_limit"] => database::revs_limit(request, db).await,
        ["_ensure_full_commit"] => database::ensure_full_commit(&request, db),
        ["_compact"] => database::compact(&request, db),
        ["_view_cleanup"] => database::view_cleanup(&request),
        ["_local" | "_local/"] => Err(Refusal::bad_request("Invalid _local document id.")),
        ["_local", name] => {
            document::document(server, request, db, &format!("_local/{name}")).await
        }
        ["_local", ..] => Err(Refusal::bad_request(
            "_local documents do not accept attachments.",
        )),
        ["_design", name] => {
            document::document(server, request, db, &format!("_design/{name}")).await
        }
        ["_design", name, rest @ ..] => {
            attachments::attachment(
                server,
                request,
                db,
                &format!("_design/{name}"),
                &rest.join("/"),
            )
            .await
        }
        [id] if id.starts_with("_design/") && request.method == Method::GET => {
            let plain = request
                .raw_path
                .replacen("_design%2F", "_design/", 1)
                .replacen("_design%2f", "_design/", 1);
            let location = format!("{}{plain}", request.absolute(&[]));
            let reply = reply::build(
                http::StatusCode::MOVED_PERMANENTLY,
                "text/plain",
                Body::empty(),
            );
            Ok(reply::with_location(reply, &location))
        }
        [id] => document::document(server, request, db, id).await,
        [id, rest @ ..] => attachments::attachment(server, request, db, id, &rest.join("/")).await,
        [] => Err(Refusal::missing()),
    }
}

fn decoded(uri: &Uri) -> String {
    url::form_urlencoded::parse(
        format!("={}", uri.path().replace('&', "%26").replace('+', "%2B")).as_bytes(),
    )
    .next()
    .map(|(_, path)| path.into_owned())
    .unwrap_or_default()
}
