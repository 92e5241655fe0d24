//! One document.

use std::sync::Arc;

use bytes::Bytes;
use document::doc::{Doc, check_id};
use document::rev::Rev;
use document::revtree::Node;
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderName, StatusCode};
use md5::{Digest, Md5};

use super::doc_query::{DocQuery, OpenRevs};
use super::multipart;
use crate::attachment::Sent;
use crate::db::{Database, Incoming, Slot, Version};
use crate::refusal::Refusal;
use crate::render::{self, Attachments, Shown};
use crate::reply::{self, Reply};
use crate::request::Request;
use crate::server::Server;

pub(super) async fn document(
    server: &Arc<Server>,
    request: Request,
    db: &Arc<Database>,
    id: &str,
) -> Result<Reply, Refusal> {
    match request.method.as_str() {
        "GET" if id.starts_with("_local/") => get_local(&request, db, id),
        "GET" => get(server, &request, db, id),
        "PUT" => put(server, request, db, id).await,
        "DELETE" => delete(server, &request, db, id),
        "COPY" => copy(server, &request, db, id),
        _ => Err(Refusal::method("DELETE,GET,HEAD,POST,PUT,COPY")),
    }
}

/// `{"ok":true,"id":…,"rev":…}`
pub(super) fn written(status: StatusCode, id: &str, rev: &Rev) -> Reply {
    let mut body = b"{\"ok\":true,\"id\":".to_vec();
    render::string(&mut body, id);
    body.extend_from_slice(b",\"rev\":");
    render::rev(&mut body, rev);
    body.push(b'}');
    reply::json(status, body)
}

/// `POST /db`
pub(super) async fn create(
    server: &Arc<Server>,
    mut request: Request,
    db: &Arc<Database>,
) -> Result<Reply, Refusal> {
    request.check_json()?;
    let json = request.json_body().await?;
    let mut doc = Doc::parse(&json)?;
    if doc.id.is_none() {
        doc.revisions = None;
    }
    let sent = Sent::parse_all(&doc)?;
    let edit = server.prepare(db, doc, &sent, true)?;
    let id = Arc::clone(&edit.id);
    let rev = edit_one(db, edit, &request)?;
    if request.param("batch") == Some("ok") {
        return Ok(accepted(&id));
    }
    let location = request.absolute(&[&db.name, &id]);
    Ok(reply::with_location(
        written(StatusCode::CREATED, &id, &rev),
        &location,
    ))
}

fn accepted(id: &str) -> Reply {
    let mut body = b"{\"ok\":true,\"id\":".to_vec();
    render::string(&mut body, id);
    body.push(b'}');
    reply::json(StatusCode::ACCEPTED, body)
}

pub(super) fn edit_one(db: &Database, edit: Incoming, request: &Request) -> Result<Rev, Refusal> {
    let mut written = db.edit(vec![edit], &request.user)?;
    written.pop().expect("one edit has one outcome")
}

async fn put(
    server: &Arc<Server>,
    mut request: Request,
    db: &Arc<Database>,
    id: &str,
) -> Result<Reply, Refusal> {
    let query = DocQuery::parse(&request)?;
    check_id(id, server.limits().id_bytes_max)?;
    let content_type = request.header(&CONTENT_TYPE).unwrap_or_default().to_owned();
    let body;
    let json;
    let parts;
    let mut doc = if content_type.starts_with("multipart/related;") {
        body = request.body().await?;
        (json, parts) = multipart::parse_related(&content_type, &body)?;
        Doc::parse(&json)?
    } else {
        (json, parts) = (request.json_body().await?, Vec::new());
        Doc::parse(&json)?
    };
    let mut sent = Sent::parse_all(&doc)?;
    multipart::distribute(&mut sent, parts)?;
    doc.revisions = revisions(&request, &query, &doc)?;
    doc.id = Some(id.to_owned());
    let deleted = doc.deleted;
    let etag_body = id.starts_with("_local/").then(|| doc.body.clone());
    let incoming = server.prepare(db, doc, &sent, query.new_edits)?;
    let rev = if query.new_edits {
        edit_one(db, incoming, &request)?
    } else {
        let rev = incoming.rev().expect("checked above");
        if let Some((_, _, refusal)) = db.replicate(vec![incoming], &request.user)?.pop() {
            return Err(refusal);
        }
        rev
    };
    if request.param("batch") == Some("ok") {
        return Ok(accepted(id));
    }
    let status = if deleted {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    let etag = etag_body.map_or_else(|| format!("\"{rev}\""), |body| local_etag(&rev, &body));
    let reply = reply::with(written(status, id, &rev), &ETAG, &etag);
    Ok(reply::with_location(
        reply,
        &request.absolute(&[&db.name, id]),
    ))
}

/// The revision of a request, which the body, the query or a header may name.
fn revisions(
    request: &Request,
    query: &DocQuery,
    doc: &Doc<'_>,
) -> Result<Option<document::rev::Revisions>, Refusal> {
    let Some(rev) = doc.rev() else {
        return Ok(request.match_rev(query.rev.clone())?.map(Into::into));
    };
    if query.rev.as_ref().is_some_and(|other| *other != rev) {
        let reason = "Document rev from request body and query string have different values";
        return Err(Refusal::bad_request(reason));
    }
    request.match_rev(Some(rev))?;
    Ok(doc.revisions.clone())
}

fn delete(
    server: &Arc<Server>,
    request: &Request,
    db: &Arc<Database>,
    id: &str,
) -> Result<Reply, Refusal> {
    if id.starts_with("_local/") {
        db.read().locals.get(id).ok_or_else(Refusal::missing)?;
    } else {
        live(db, id, |_| ())?;
    }
    let base = request.param("rev").map(str::parse).transpose()?;
    let base = request.match_rev(base)?;
    let (id, revisions) = (id.to_owned(), base.map(Into::into));
    let doc = Doc {
        id: Some(id.clone()),
        revisions,
        deleted: true,
        body: "{}".to_owned(),
        ..Doc::default()
    };
    let rev = edit_one(db, server.prepare(db, doc, &[], true)?, request)?;
    Ok(reply::with(
        written(StatusCode::OK, &id, &rev),
        &ETAG,
        &format!("\"{rev}\""),
    ))
}

pub(super) fn live<T>(
    db: &Database,
    id: &str,
    with: impl FnOnce(Node<'_, Arc<Version>>) -> T,
) -> Result<T, Refusal> {
    let state = db.read();
    let winner = state.document(id).ok_or_else(Refusal::missing)?.winner();
    if winner.deleted {
        Err(Refusal::deleted())
    } else {
        Ok(with(winner))
    }
}

fn copy(
    server: &Arc<Server>,
    request: &Request,
    db: &Arc<Database>,
    id: &str,
) -> Result<Reply, Refusal> {
    let header = request.header(&HeaderName::from_static("destination"));
    let header =
        header.ok_or_else(|| Refusal::bad_request("Destination header is mandatory for COPY."))?;
    let (target, base) = match header.split_once("?rev=") {
        Some((target, rev)) => (target, Some(rev.parse::<Rev>()?)),
        None => (header, None),
    };
    let target = format!("={}", target.replace('+', "%2B"));
    let mut decoded = url::form_urlencoded::parse(target.as_bytes());
    let target = decoded
        .next()
        .map(|(_, target)| target.into_owned())
        .unwrap_or_default();
    let source = request.match_rev(request.param("rev").map(str::parse).transpose()?)?;
    let version = match source {
        None => live(db, id, |node| node.value.cloned())?,
        Some(rev) => db
            .read()
            .document(id)
            .and_then(|document| document.tree.get(&rev)?.value.cloned()),
    };
    let version = version.ok_or_else(Refusal::missing)?;
    let (id, revisions) = (Some(target.clone()), base.map(Into::into));
    let doc = Doc {
        id,
        revisions,
        body: version.body.to_string(),
        ..Doc::default()
    };
    let mut edit = server.prepare(db, doc, &[], true)?;
    edit.attachments = version
        .attachments
        .iter()
        .cloned()
        .map(Slot::Stored)
        .collect();
    let rev = edit_one(db, edit, request)?;
    let reply = reply::with(
        written(StatusCode::CREATED, &target, &rev),
        &ETAG,
        &format!("\"{rev}\""),
    );
    Ok(reply::with_location(
        reply,
        &request.absolute(&[&db.name, &target]),
    ))
}

fn get_local(request: &Request, db: &Database, id: &str) -> Result<Reply, Refusal> {
    let state = db.read();
    let local = state.locals.get(id).ok_or_else(Refusal::missing)?;
    let mut body = Vec::new();
    render::local(&mut body, id, local.generation, &local.body);
    let etag = local_etag(&crate::db::local_rev(local.generation), &local.body);
    Ok(reply::with_etag(request, &etag, || {
        reply::json(StatusCode::OK, body)
    }))
}

fn local_etag(rev: &Rev, body: &str) -> String {
    format!(
        "\"{:X}\"",
        u128::from_be_bytes(Md5::digest(format!("{rev}{body}")).into())
    )
}

fn get(server: &Server, request: &Request, db: &Database, id: &str) -> Result<Reply, Refusal> {
    let query = DocQuery::parse(request)?;
    if let Some(open_revs) = &query.open_revs {
        return get_revs(server, request, db, id, &query, open_revs);
    }
    let state = db.read();
    let document = state.document(id).ok_or_else(Refusal::missing)?;
    let (node, shown) = match query.rev.as_ref().filter(|_| !query.latest) {
        None => {
            let winner = document.winner();
            if winner.deleted && !query.deleted {
                return Err(Refusal::deleted());
            }
            (winner, query.shown_winner(document, server.seqs(db)))
        }
        Some(rev) => {
            let node = document.tree.get(rev).filter(|node| node.value.is_some());
            let node = node.ok_or_else(Refusal::missing)?;
            (node, query.shown(document, node))
        }
    };
    if shown.has_meta() {
        return Ok(one(server, request, id, node, shown));
    }
    let etag = format!("\"{}\"", node.rev);
    Ok(reply::with_etag(request, &etag, || {
        one(server, request, id, node, shown)
    }))
}

/// One revision, with attachments in the form that the client accepts.
fn one(
    server: &Server,
    request: &Request,
    id: &str,
    node: Node<'_, Arc<Version>>,
    shown: Shown,
) -> Reply {
    let wanted = shown.attachments == Attachments::Inline
        && node.value.is_some_and(|it| !it.attachments.is_empty());
    if wanted && request.accepts("multipart/related") {
        let shown = Shown {
            attachments: Attachments::Follow,
            encoding: true,
            ..shown
        };
        let boundary = server.chance.uuid();
        let (content_type, pieces) = multipart::related(id, node, &shown, &boundary);
        return reply::pieces(StatusCode::OK, &content_type, pieces, false);
    }
    let mut body = Vec::new();
    render::node(&mut body, id, node, &shown);
    reply::json(StatusCode::OK, body)
}

/// The requested revisions that exist, ascending, and those that do not.
pub(super) fn find<'a>(
    document: &'a crate::db::Document,
    open_revs: &OpenRevs,
    latest: bool,
) -> (Vec<Node<'a, Arc<Version>>>, Vec<Rev>) {
    let (mut nodes, mut missing) = match open_revs {
        OpenRevs::All => (document.tree.leaves(), Vec::new()),
        OpenRevs::These(revs) if latest => document.tree.latest(revs),
        OpenRevs::These(revs) => {
            let nodes = revs
                .iter()
                .filter_map(|rev| document.tree.get(rev))
                .collect();
            (nodes, document.tree.missing(revs))
        }
    };
    // The body of an ancestor may never have been sent here.
    missing.extend(
        nodes
            .iter()
            .filter(|node| node.value.is_none())
            .map(|node| node.rev.clone()),
    );
    nodes.retain(|node| node.value.is_some());
    nodes.sort_unstable_by(|a, b| a.rev.cmp(b.rev));
    nodes.dedup_by(|a, b| a.rev == b.rev);
    missing.sort_unstable();
    (nodes, missing)
}

fn get_revs(
    server: &Server,
    request: &Request,
    db: &Database,
    id: &str,
    query: &DocQuery,
    open_revs: &OpenRevs,
) -> Result<Reply, Refusal> {
    let state = db.read();
    let document = state.document(id);
    let (nodes, missing) = match (document, open_revs) {
        (Some(document), open_revs) => find(document, open_revs, query.latest),
        (None, OpenRevs::All) => return Err(Refusal::missing()),
        (None, OpenRevs::These(revs)) => (Vec::new(), revs.clone()),
    };
    let found = nodes.into_iter().zip(document.into_iter().cycle());
    let found: Vec<_> = found
        .map(|(node, document)| (node, query.shown(document, node)))
        .collect();
    if request.accepts("multipart/mixed") {
        let (outer, inner) = (server.chance.uuid(), server.chance.uuid());
        let pieces = multipart::mixed(id, found, &missing, &outer, &inner);
        let content_type = format!("multipart/mixed; boundary=\"{outer}\"");
        return Ok(reply::pieces(StatusCode::OK, &content_type, pieces, true));
    }
    let mut body = vec![b'['];
    for (node, shown) in &found {
        body.extend_from_slice(if body.len() > 1 {
            b",{\"ok\":"
        } else {
            b"{\"ok\":"
        });
        render::node(&mut body, id, *node, shown);
        body.push(b'}');
    }
    for rev in &missing {
        body.extend_from_slice(if body.len() > 1 {
            b",{\"missing\":"
        } else {
            b"{\"missing\":"
        });
        render::rev(&mut body, rev);
        body.push(b'}');
    }
    body.extend_from_slice(b"]\n");
    Ok(reply::stream(
        "application/json",
        futures::stream::iter([Bytes::from(body)]),
    ))
}
