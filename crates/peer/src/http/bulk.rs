//! Many documents at once: writing, and comparing revisions.

use std::sync::Arc;

use document::doc::Doc;
use document::rev::Rev;
use http::StatusCode;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::database::check_post;
use crate::attachment::Sent;
use crate::db::{Database, Id};
use crate::refusal::Refusal;
use crate::render;
use crate::reply::{self, Reply};
use crate::request::Request;
use crate::server::Server;

#[derive(serde::Deserialize)]
struct BulkDocs<'a> {
    #[serde(borrow)]
    docs: Option<&'a RawValue>,
    #[serde(borrow)]
    new_edits: Option<&'a RawValue>,
}

pub(super) async fn bulk_docs(
    server: &Arc<Server>,
    mut request: Request,
    db: &Database,
) -> Result<Reply, Refusal> {
    check_post(&request)?;
    request.check_json()?;
    let json = request.json_object().await?;
    let body: BulkDocs<'_> =
        serde_json::from_str(&json).map_err(|_| Refusal::bad_request("invalid UTF-8 JSON"))?;
    let docs = body
        .docs
        .ok_or_else(|| Refusal::bad_request("POST body must include `docs` parameter."))?;
    let docs: Vec<&RawValue> = serde_json::from_str(docs.get())
        .map_err(|_| Refusal::bad_request("`docs` parameter must be an array."))?;
    let new_edits = match body.new_edits.map(RawValue::get) {
        None | Some("true") => true,
        Some("false") => false,
        Some(_) => {
            return Err(Refusal::bad_request(
                "`new_edits` parameter must be a boolean.",
            ));
        }
    };
    let mut incoming = Vec::with_capacity(docs.len());
    for json in docs {
        let doc = Doc::parse(json.get())?;
        let sent = Sent::parse_all(&doc)?;
        incoming.push(server.prepare(db, doc, &sent, new_edits)?);
    }
    let mut answer = Vec::new();
    if new_edits {
        let ids: Vec<Id> = incoming.iter().map(|doc| Arc::clone(&doc.id)).collect();
        let outcomes: Vec<_> = ids
            .into_iter()
            .zip(db.edit(incoming, &request.user)?)
            .collect();
        render::list(&mut answer, &outcomes, |out, (id, outcome)| {
            outcome_row(out, id, outcome);
        });
    } else {
        let refused = db.replicate(incoming, &request.user)?;
        render::list(&mut answer, &refused, |out, (id, rev, refusal)| {
            out.extend_from_slice(b"{\"id\":");
            render::string(out, id);
            out.extend_from_slice(b",\"rev\":");
            render::rev(out, rev);
            reply::error_members(out, b",", refusal);
        });
    }
    Ok(reply::json(StatusCode::CREATED, answer))
}

fn outcome_row(out: &mut Vec<u8>, id: &str, outcome: &Result<Rev, Refusal>) {
    out.extend_from_slice(if outcome.is_ok() {
        b"{\"ok\":true,\"id\":"
    } else {
        b"{\"id\":"
    });
    render::string(out, id);
    match outcome {
        Ok(rev) => {
            out.extend_from_slice(b",\"rev\":");
            render::rev(out, rev);
            out.push(b'}');
        }
        Err(refusal) => reply::error_members(out, b",", refusal),
    }
}

/// Revisions by document, in the order given.
async fn asked(request: &mut Request) -> Result<Vec<(String, Vec<Rev>)>, Refusal> {
    check_post(request)?;
    request.check_json()?;
    let json = request.json_object().await?;
    let by_id: Map<String, Value> = serde_json::from_str(&json).unwrap_or_default();
    let parse = |rev: &Value| {
        rev.as_str()
            .unwrap_or_default()
            .parse()
            .map_err(Refusal::from)
    };
    let parse_all = |revs: &Value| match revs.as_array() {
        Some(revs) => revs.iter().map(parse).collect(),
        None => Err(Refusal::bad_request("Invalid list of revisions")),
    };
    by_id
        .iter()
        .map(|(id, revs)| Ok((id.clone(), parse_all(revs)?)))
        .collect()
}

pub(super) async fn revs_diff(mut request: Request, db: &Database) -> Result<Reply, Refusal> {
    let asked = asked(&mut request).await?;
    let mut answer = vec![b'{'];
    let state = db.read();
    for (id, revs) in &asked {
        let document = state.document(id);
        let missing = document.map_or_else(|| revs.clone(), |document| document.tree.missing(revs));
        if missing.is_empty() {
            continue;
        }
        if answer.len() > 1 {
            answer.push(b',');
        }
        render::string(&mut answer, id);
        answer.extend_from_slice(b":{\"missing\":");
        render::list(&mut answer, &missing, render::rev);
        let ancestors = document
            .map(|document| document.tree.possible_ancestors(&missing))
            .unwrap_or_default();
        if !ancestors.is_empty() {
            answer.extend_from_slice(b",\"possible_ancestors\":");
            render::list(&mut answer, &ancestors, render::rev);
        }
        answer.push(b'}');
    }
    answer.push(b'}');
    Ok(reply::json(StatusCode::OK, answer))
}

pub(super) async fn missing_revs(mut request: Request, db: &Database) -> Result<Reply, Refusal> {
    let asked = asked(&mut request).await?;
    let state = db.read();
    let missing = asked.into_iter().map(|(id, revs)| {
        let missing = state
            .document(&id)
            .map_or_else(|| revs.clone(), |document| document.tree.missing(&revs));
        (id, missing)
    });
    let missing: Map<String, Value> = missing
        .filter(|(_, missing)| !missing.is_empty())
        .map(|(id, missing)| (id, missing.iter().map(ToString::to_string).collect()))
        .collect();
    Ok(reply::json(
        StatusCode::OK,
        serde_json::json!({ "missing_revs": missing }).to_string(),
    ))
}
