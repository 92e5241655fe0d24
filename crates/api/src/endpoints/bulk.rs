//! Bulk requests: `_bulk_docs`, `_bulk_get`, `_revs_diff`, `_missing_revs`.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;

use docstore::{Attachments, BulkGet, Edit, EditMode, OpenRevs, Opened as Found, ReadOptions, Rev};
use document::json::{self, Json};
use http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::reading::{self, Reading, parse_rev, revs_of};
use super::server::uuid;
use super::writing::{Writing, check_values, read_edit};
use crate::Error;
use crate::access::Opened;
use crate::call::{Call, Weighed, check_object};
use crate::reply::{self, Reply};
use crate::state::Shared;

/// As in CouchDB.
const DOCUMENTS_MAX: usize = 10_000;

#[derive(Deserialize)]
struct BulkDocs<'a> {
    #[serde(borrow)]
    docs: Option<&'a RawValue>,
    #[serde(borrow)]
    new_edits: Option<&'a RawValue>,
}

pub(crate) async fn bulk_docs(call: &mut Call, opened: &Opened) -> Result<Reply, Error> {
    call.allow("POST")?;
    call.check_json()?;
    let shared = Arc::clone(&call.shared);
    let text = call.text().await?;
    let body = call.weighed(text).await?;
    let (edits, mode) = body.read(move |body| read_docs(body, &shared)).await?;
    let named: Vec<_> = edits
        .iter()
        .map(|edit| (edit.id.clone(), edit.rev()))
        .collect();
    let answers = Writing::new(call, opened).bulk(edits, mode).await?;
    let mut rows = Vec::new();
    for ((id, sent), answer) in named.into_iter().zip(answers) {
        match answer {
            Ok(rev) if mode == EditMode::NewEdits => {
                rows.push(json!({"ok": true, "id": id, "rev": rev.to_string()}));
            }
            Ok(_) => {}
            Err(error) => {
                let rev = sent.filter(|_| mode == EditMode::Replicated);
                rows.push(refusal(&id, rev, &error));
            }
        }
    }
    Ok(reply::json(StatusCode::CREATED, &rows))
}

/// The documents of a `_bulk_docs` request.
fn read_docs(weighed: &Weighed, shared: &Shared) -> Result<(Vec<Edit>, EditMode), Error> {
    let text = &weighed.text;
    check_object(text)?;
    let body: BulkDocs<'_> = serde_json::from_str(text).map_err(|_| Error::not_json())?;
    let docs = body
        .docs
        .ok_or_else(|| Error::bad_request("POST body must include `docs` parameter."))?;
    let docs: Vec<&RawValue> = serde_json::from_str(docs.get())
        .map_err(|_| Error::bad_request("`docs` parameter must be an array."))?;
    check_count(docs.len(), "max_bulk_docs_count_exceeded")?;
    let mode = match body.new_edits.map(RawValue::get) {
        None | Some("true") => EditMode::NewEdits,
        Some("false") => EditMode::Replicated,
        Some(_) => {
            return Err(Error::bad_request(
                "`new_edits` parameter must be a boolean.",
            ));
        }
    };
    let edits = docs.into_iter().map(|doc| {
        // If the whole request is below the limit, so is each document.
        if weighed.values > json::VALUES_MAX {
            check_values(json::values(doc.get()))?;
        }
        read_edit(None, doc.get(), || uuid(shared))
    });
    let edits = edits.collect::<Result<Vec<_>, Error>>()?;
    let no_rev = |edit: &Edit| edit.rev().is_none() && !edit.is_local();
    if mode == EditMode::Replicated && edits.iter().any(no_rev) {
        let reason = "When `new_edits: false`, the document needs `_rev` or `_revisions` specified";
        return Err(Error::bad_request(reason));
    }
    Ok((edits, mode))
}

/// Rejects requests for too many documents, as CouchDB does.
fn check_count(documents: usize, kind: &'static str) -> Result<(), Error> {
    if documents <= DOCUMENTS_MAX {
        return Ok(());
    }
    let status = StatusCode::PAYLOAD_TOO_LARGE;
    Err(Error::new(status, kind, DOCUMENTS_MAX.to_string()))
}

fn refusal(id: &str, rev: Option<Rev>, error: &Error) -> Value {
    let mut row = Map::new();
    row.insert("id".to_owned(), json!(id));
    if let Some(rev) = rev {
        row.insert("rev".to_owned(), json!(rev.to_string()));
    }
    if let Value::Object(said) = error.to_json() {
        row.extend(said);
    }
    error.log();
    Value::Object(row)
}

/// A row of `_bulk_get`.
enum Wanted {
    Revs(BulkGet),
    /// An invalid request: its error is returned in place of documents.
    Refused(Value),
}

pub(crate) async fn bulk_get(call: &mut Call, opened: &Opened) -> Result<Reply, Error> {
    call.allow("POST")?;
    call.check_json()?;
    let body = call.json_object().await?;
    let missing = || Error::bad_request("Missing JSON list of 'docs'.");
    let docs = body
        .get("docs")
        .and_then(Json::as_array)
        .ok_or_else(missing)?;
    check_count(docs.len(), "max_bulk_get_count_exceeded")?;
    let options = reading::options(&call.query)?;
    let latest = call.query.is_true("latest");
    let wanted = docs
        .iter()
        .map(|doc| wanted(doc, &options))
        .collect::<Result<Vec<_>, _>>()?;
    let mut wanted = VecDeque::from(wanted);
    let reading = Reading::new(call, opened);
    reply::json_pieces(|mut pieces| async move {
        let (mut page, mut separator) = (String::from("{\"results\":["), "");
        loop {
            while let Some(Wanted::Refused(row)) = wanted.front() {
                let _ = write!(page, "{separator}{row}");
                separator = ",";
                wanted.pop_front();
            }
            let asked = wanted.iter().map_while(|wanted| match wanted {
                Wanted::Revs(wanted) => Some(wanted.clone()),
                Wanted::Refused(_) => None,
            });
            let asked: Vec<_> = asked.take(PAGE).collect();
            if asked.is_empty() {
                break;
            }
            let found = reading
                .docs()
                .bulk_get_page(reading.db(), &asked, latest)
                .await?;
            for (asked, found) in asked.iter().zip(found) {
                wanted.pop_front();
                page.push_str(std::mem::replace(&mut separator, ","));
                page.push_str("{\"id\":");
                document::doc::push_string(&mut page, &asked.id);
                page.push_str(",\"docs\":[");
                push(&reading, &mut page, asked, found.found);
                let mut rest = found.rest;
                while !rest.is_empty() {
                    pieces.send(std::mem::take(&mut page)).await;
                    let (id, options) = (&asked.id, &asked.options);
                    let next = reading
                        .docs()
                        .open_revs_page(reading.db(), id, &OpenRevs::These(rest), latest, options)
                        .await?;
                    page.push(',');
                    push(&reading, &mut page, asked, next.found);
                    rest = next.rest;
                }
                page.push_str("]}");
            }
            pieces.send(std::mem::take(&mut page)).await;
        }
        page.push_str("]}\n");
        pieces.send(page).await;
        Ok(())
    })
    .await
}

fn wanted(doc: &Json, options: &ReadOptions) -> Result<Wanted, Error> {
    if doc.as_object().is_none() {
        return Err(Error::bad_request("`docs` must be a list of objects."));
    }
    let refuse = |id: Value, rev: Value, reason: &str| {
        Wanted::Refused(json!({"id": id, "docs": [{"error": {
            "id": id, "rev": rev, "error": "bad_request", "reason": reason,
        }}]}))
    };
    let id = match doc.get("id") {
        None => return Ok(refuse(Value::Null, Value::Null, "document id missed")),
        Some(Json::String(id)) => id,
        Some(_) => return Err(Error::bad_request("Document id must be a string")),
    };
    let revs = match doc.get("rev") {
        None => OpenRevs::All,
        Some(rev) => match rev.as_str().map(parse_rev) {
            Some(Ok(rev)) => OpenRevs::These(vec![rev]),
            _ => return Ok(refuse(json!(id), rev.to_value(), "Invalid rev format")),
        },
    };
    let mut options = options.clone();
    if let Some(since) = doc.get("atts_since") {
        options.attachments = Attachments::Since(revs_of(since)?);
    }
    Ok(Wanted::Revs(BulkGet {
        id: id.clone(),
        revs,
        options,
    }))
}

fn push(reading: &Reading, page: &mut String, asked: &BulkGet, found: Vec<Found>) {
    let missing = |rev: &str| {
        json!({"error": {
            "id": asked.id, "rev": rev, "error": "not_found", "reason": "missing",
        }})
        .to_string()
    };
    if found.is_empty() {
        page.push_str(&missing("undefined"));
    }
    for (index, found) in found.into_iter().enumerate() {
        page.push_str(if index == 0 { "" } else { "," });
        match found {
            Ok(stored) => {
                page.push_str("{\"ok\":");
                page.push_str(&reading.view(stored).to_json());
                page.push('}');
            }
            Err(rev) => page.push_str(&missing(&rev.to_string())),
        }
    }
}

/// Documents per page.
const PAGE: usize = 320;

pub(crate) async fn revs_diff(call: &mut Call, opened: &Opened) -> Result<Reply, Error> {
    let mut answer = Map::new();
    for diff in missing(call, opened).await? {
        let mut row = json!({"missing": texts(&diff.missing)});
        if !diff.possible_ancestors.is_empty() {
            row["possible_ancestors"] = json!(texts(&diff.possible_ancestors));
        }
        answer.insert(diff.id, row);
    }
    Ok(reply::ok(&answer))
}

pub(crate) async fn missing_revs(call: &mut Call, opened: &Opened) -> Result<Reply, Error> {
    let mut answer = Map::new();
    for diff in missing(call, opened).await? {
        answer.insert(diff.id, json!(texts(&diff.missing)));
    }
    Ok(reply::ok(&json!({"missing_revs": answer})))
}

async fn missing(call: &mut Call, opened: &Opened) -> Result<Vec<docstore::RevsDiff>, Error> {
    call.allow("POST")?;
    call.check_json()?;
    let body = call.json_object().await?;
    let mut named = Vec::new();
    for (id, revs) in body.as_object().unwrap_or_default() {
        named.push((id.clone(), revs_of(revs)?));
    }
    Ok(call.docs().revs_diff(&opened.db, &named).await?)
}

fn texts(revs: &[Rev]) -> Vec<String> {
    revs.iter().map(ToString::to_string).collect()
}
