//! `_bulk_get`: many revisions of many documents.

use std::sync::Arc;

use bytes::Bytes;
use document::doc::check_id;
use document::rev::Rev;
use document::revtree::Node;
use http::StatusCode;
use serde_json::Value;

use super::database::check_post;
use super::doc_query::{DocQuery, OpenRevs};
use super::document::find;
use super::multipart;
use crate::db::{Database, State, Version};
use crate::refusal::Refusal;
use crate::render::{self, Attachments, Shown};
use crate::reply::{self, Reply};
use crate::request::Request;
use crate::server::Server;

/// Parameters of single documents, which are refused here.
const REFUSED_PARAMS: [&str; 5] = ["open_revs", "new_edits", "w", "rev", "atts_since"];

#[derive(Debug)]
struct Item {
    id: Value,
    wanted: Result<Wanted, Failure>,
}

#[derive(Debug)]
struct Wanted {
    id: String,
    revs: OpenRevs,
    atts_since: Vec<Rev>,
}

/// Why a document is not returned: a revision (or null), an error and a reason.
#[derive(Debug)]
struct Failure {
    rev: Value,
    error: &'static str,
    reason: String,
}

pub(super) async fn bulk_get(
    server: &Arc<Server>,
    mut request: Request,
    db: &Database,
) -> Result<Reply, Refusal> {
    check_post(&request)?;
    request.check_json()?;
    let json = request.json_object().await?;
    let body: Value =
        serde_json::from_str(&json).map_err(|_| Refusal::bad_request("invalid UTF-8 JSON"))?;
    let docs = body
        .get("docs")
        .ok_or_else(|| Refusal::bad_request("Missing JSON list of 'docs'."))?;
    if let Some(param) = REFUSED_PARAMS
        .iter()
        .find(|name| request.param(name).is_some())
    {
        return Err(Refusal::bad_request(format!(
            "\"{param}\" query parameter is not acceptable"
        )));
    }
    let query = DocQuery::parse(&request)?;
    let docs = docs
        .as_array()
        .ok_or_else(|| Refusal::internal("unknown_error", "function_clause"))?;
    let items: Vec<Item> = docs.iter().map(|item| parse(item, server)).collect();
    let state = db.read();
    let multipart = ["multipart/mixed", "multipart/related"]
        .into_iter()
        .find(|kind| request.accepts(kind));
    match multipart.filter(|_| !request.accepts("application/json")) {
        Some(kind) => Ok(multipart_answer(server, &state, kind, &items, &query)),
        None => Ok(json_answer(&state, &items, &query)),
    }
}

fn parse(item: &Value, server: &Server) -> Item {
    let failure = |rev: Value, error, reason: &str| Failure {
        rev,
        error,
        reason: reason.to_owned(),
    };
    let fail = |id: &Value, failure| Item {
        id: id.clone(),
        wanted: Err(failure),
    };
    let Some(members) = item.as_object().filter(|members| !members.is_empty()) else {
        return fail(
            &Value::Null,
            failure(Value::Null, "bad_request", "document must be a JSON object"),
        );
    };
    let Some(id) = members.get("id") else {
        return fail(
            &Value::Null,
            failure(Value::Null, "bad_request", "document id missed"),
        );
    };
    let text = id.as_str().ok_or("Document id must be a string".to_owned());
    let limit = server.limits().id_bytes_max;
    let checked = text.and_then(|text| {
        check_id(text, limit)
            .map(|()| text)
            .map_err(|invalid| invalid.to_string())
    });
    let text = match checked {
        Ok(text) => text,
        Err(reason) => return fail(id, failure(Value::Null, "illegal_docid", &reason)),
    };
    let parse_rev = |rev: &Value| {
        let parsed = rev.as_str().and_then(|rev| rev.parse::<Rev>().ok());
        parsed.ok_or_else(|| failure(rev.clone(), "bad_request", "Invalid rev format"))
    };
    let revs = match members.get("rev").map(parse_rev) {
        None => OpenRevs::All,
        Some(Ok(rev)) => OpenRevs::These(vec![rev]),
        Some(Err(failure)) => return fail(id, failure),
    };
    let atts_since = match members.get("atts_since") {
        None => Ok(Vec::new()),
        Some(Value::Array(revs)) => revs.iter().map(parse_rev).collect(),
        Some(other) => Err(failure(
            other.clone(),
            "bad_request",
            "att_since value must be array of revs.",
        )),
    };
    let wanted = atts_since.map(|atts_since| Wanted {
        id: text.to_owned(),
        revs,
        atts_since,
    });
    Item {
        id: id.clone(),
        wanted,
    }
}

type Found<'a> = Result<(Node<'a, Arc<Version>>, Shown), Value>;

/// The revisions of one requested document.
fn results<'a>(state: &'a State, wanted: &Wanted, query: &DocQuery) -> Vec<Found<'a>> {
    let not_found = |rev: String| vec![Err(Value::String(rev))];
    let Some(document) = state.document(&wanted.id) else {
        return match &wanted.revs {
            OpenRevs::All => not_found("undefined".to_owned()),
            OpenRevs::These(revs) => revs
                .iter()
                .flat_map(|rev| not_found(rev.to_string()))
                .collect(),
        };
    };
    let query = query.since(&wanted.atts_since);
    let (nodes, missing) = find(document, &wanted.revs, query.latest);
    let nodes = nodes
        .into_iter()
        .map(|node| Ok((node, query.shown(document, node))));
    nodes
        .chain(
            missing
                .into_iter()
                .map(|rev| Err(Value::String(rev.to_string()))),
        )
        .collect()
}

fn json_answer(state: &State, items: &[Item], query: &DocQuery) -> Reply {
    let mut answer = b"{\"results\":".to_vec();
    render::list(&mut answer, items, |out, item| {
        out.extend_from_slice(b"{\"id\":");
        out.extend_from_slice(item.id.to_string().as_bytes());
        out.extend_from_slice(b",\"docs\":");
        match &item.wanted {
            Ok(wanted) => {
                let results = results(state, wanted, query);
                render::list(out, &results, |out, result| match result {
                    Ok((node, shown)) => {
                        out.extend_from_slice(b"{\"ok\":");
                        render::node(out, &wanted.id, *node, shown);
                        out.push(b'}');
                    }
                    Err(rev) => error(out, &item.id, rev, "not_found", "missing"),
                });
            }
            Err(failure) => {
                out.push(b'[');
                error(out, &item.id, &failure.rev, failure.error, &failure.reason);
                out.push(b']');
            }
        }
        out.push(b'}');
    });
    answer.push(b'}');
    reply::json(StatusCode::OK, answer)
}

fn error(out: &mut Vec<u8>, id: &Value, rev: &Value, error: &str, reason: &str) {
    let error =
        serde_json::json!({ "error": { "id": id, "rev": rev, "error": error, "reason": reason } });
    out.extend_from_slice(error.to_string().as_bytes());
}

fn multipart_answer(
    server: &Server,
    state: &State,
    kind: &str,
    items: &[Item],
    query: &DocQuery,
) -> Reply {
    let outer = format!("--{}", server.chance.uuid());
    let mut pieces: Vec<Bytes> = Vec::new();
    let fail = |pieces: &mut Vec<Bytes>, json: Value| {
        let head = format!(
            "\r\n--{outer}\r\nContent-Type: application/json; error=\"true\"\r\n\r\n{json}"
        );
        pieces.push(head.into());
    };
    for item in items {
        let wanted = match &item.wanted {
            Ok(wanted) => wanted,
            Err(Failure { rev, error, reason }) => {
                let json = serde_json::json!({ "id": item.id, "rev": rev, "error": error, "reason": reason });
                fail(&mut pieces, json);
                continue;
            }
        };
        for result in results(state, wanted, query) {
            match result {
                Ok((node, shown)) => {
                    let inner = format!("--{}", server.chance.uuid());
                    let shown = Shown {
                        attachments: Attachments::Follow,
                        encoding: true,
                        ..shown
                    };
                    let (content_type, document) =
                        multipart::related(&wanted.id, node, &shown, &inner);
                    let head = if content_type == "application/json" {
                        format!("\r\n--{outer}\r\nContent-Type: application/json\r\n\r\n")
                    } else {
                        format!(
                            "\r\n--{outer}\r\nX-Doc-Id: {}\r\nX-Rev-Id: {}\r\n\
                             Content-Type: multipart/related; boundary={inner}\r\n\r\n",
                            wanted.id, node.rev
                        )
                    };
                    pieces.push(head.into());
                    pieces.extend(document);
                }
                Err(rev) => {
                    let json = serde_json::json!({ "rev": rev, "error": "not_found", "reason": "missing" });
                    fail(&mut pieces, json);
                }
            }
        }
    }
    if !items.is_empty() {
        pieces.push(format!("\r\n--{outer}--\r\n").into());
    }
    reply::pieces(
        StatusCode::OK,
        &format!("{kind}; boundary=\"{outer}\""),
        pieces,
        true,
    )
}
