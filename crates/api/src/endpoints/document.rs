//! Single documents: `/{db}/{docid}`, and `POST /{db}` for documents without an id.

use std::fmt::Write as _;
use std::sync::Arc;

use docstore::{Attachments, EditMode, OpenRevs, Opened as Found, ReadOptions, Rev};
use http::header::{CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH};
use http::{Method, StatusCode};
use serde_json::json;

use super::multipart;
use super::reading::{self, Reading, parse_rev, revs_of};
use super::server::uuid;
use super::writing::{Writing, edit};
use crate::Error;
use crate::access::Opened;
use crate::call::Call;
use crate::reply::{self, Pieces, Reply};

pub(crate) async fn document(call: &mut Call, opened: &Opened, id: &str) -> Result<Reply, Error> {
    match call.method {
        Method::GET => read(call, opened, id).await,
        Method::PUT => put(call, opened, id).await,
        Method::DELETE => delete(call, opened, id).await,
        _ => Err(Error::method_not_allowed("DELETE,GET,HEAD,PUT")),
    }
}

async fn read(call: &Call, opened: &Opened, id: &str) -> Result<Reply, Error> {
    let reading = Reading::new(call, opened);
    let (docs, db) = (reading.docs(), reading.db());
    if id.starts_with("_local/") {
        let document = docs.local_doc(db, id).await?;
        return Ok(show(
            call,
            &document.rev.to_string(),
            true,
            document.to_json(),
        ));
    }
    let options = reading::options(&call.query)?;
    let latest = call.query.is_true("latest");
    if let Some(revs) = call.query.get("open_revs") {
        return open_revs(call, &reading, id, revs, latest, &options).await;
    }
    let stored = match call.query.get("rev") {
        Some(rev) => {
            docs.get_rev(db, id, &parse_rev(rev)?, latest, &options)
                .await?
        }
        None => docs.get(db, id, &options).await?,
    };
    let shown = reading.view(stored);
    let plain =
        !(options.revs_info || options.conflicts || options.deleted_conflicts || options.local_seq);
    Ok(show(call, &shown.rev.to_string(), plain, shown.to_json()))
}

/// Returns a document, or 304 if the client has it. `plain` means that the revision determines the response.
fn show(call: &Call, rev: &str, plain: bool, json: String) -> Reply {
    if !plain {
        return reply::text(StatusCode::OK, json);
    }
    let known = call.header(&IF_NONE_MATCH).unwrap_or_default();
    let mut known = known.split(',').map(|etag| {
        let etag = etag.trim();
        etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"')
    });
    if known.any(|etag| etag == rev || etag == "*") {
        let mut reply = Reply::default();
        *reply.status_mut() = StatusCode::NOT_MODIFIED;
        return reply::with_etag(reply, rev);
    }
    reply::with_etag(reply::text(StatusCode::OK, json), rev)
}

async fn open_revs(
    call: &Call,
    reading: &Reading,
    id: &str,
    revs: &str,
    latest: bool,
    options: &ReadOptions,
) -> Result<Reply, Error> {
    let revs = match revs {
        "all" => OpenRevs::All,
        _ => OpenRevs::These(revs_of(
            &call
                .query
                .json("open_revs")?
                .unwrap_or(document::json::Json::Null),
        )?),
    };
    let in_parts = call.accepts("multipart/mixed");
    let mut options = options.clone();
    if in_parts && options.attachments == Attachments::Stubs {
        // As in CouchDB, whose replicator relies on it: the reader has the attachments that are stubs.
        options.attachments = Attachments::All;
    }
    let mut opened = reading
        .docs()
        .open_revs_page(reading.db(), id, &revs, latest, &options)
        .await?;
    if opened.found.is_empty() && revs == OpenRevs::All {
        return Err(Error::not_found("missing"));
    }
    let boundary = uuid(&call.shared);
    let kind = format!("multipart/mixed; boundary=\"{boundary}\"");
    let (reading, id) = (reading.clone(), id.to_owned());
    let write = |mut pieces: Pieces| async move {
        let mut page = String::from(if in_parts { "" } else { "[" });
        let mut separator = "";
        loop {
            for found in opened.found {
                let found = found.map(|stored| reading.view(stored));
                if in_parts {
                    multipart::push(&mut page, &boundary, &found);
                } else {
                    page.push_str(std::mem::replace(&mut separator, ","));
                    page.push_str(&row(&found));
                }
            }
            if opened.rest.is_empty() {
                break;
            }
            pieces.send(std::mem::take(&mut page)).await;
            let rest = OpenRevs::These(opened.rest);
            opened = reading
                .docs()
                .open_revs_page(reading.db(), &id, &rest, latest, &options)
                .await?;
        }
        if in_parts {
            let _ = write!(page, "--{boundary}--");
        } else {
            page.push_str("]\n");
        }
        pieces.send(page).await;
        Ok::<_, Error>(())
    };
    if !in_parts {
        return reply::json_pieces(write).await;
    }
    let mut reply = reply::pieces("multipart/mixed", write).await?;
    reply::set(&mut reply, CONTENT_TYPE, &kind);
    Ok(reply)
}

fn row(found: &Found) -> String {
    match found {
        Ok(document) => format!("{{\"ok\":{}}}", document.to_json()),
        Err(rev) => json!({"missing": rev.to_string()}).to_string(),
    }
}

/// The revision in the query or `If-Match`. They must not contradict each other or `other`.
pub(crate) fn named_rev(call: &Call, other: Option<&Rev>) -> Result<Option<Rev>, Error> {
    let query = call.query.get("rev").map(parse_rev).transpose()?;
    if let (Some(query), Some(other)) = (&query, other)
        && query != other
    {
        return Err(Error::bad_request(
            "Document rev from request body and query string have different values",
        ));
    }
    let given = query.or_else(|| other.cloned());
    let etag = call
        .header(&IF_MATCH)
        .map(|etag| parse_rev(etag.trim().trim_matches('"')));
    let etag = etag.transpose()?;
    match (given, etag) {
        (Some(given), Some(etag)) if given != etag => Err(Error::bad_request(
            "Document rev and etag have different values",
        )),
        (given, etag) => Ok(given.or(etag)),
    }
}

async fn put(call: &mut Call, opened: &Opened, id: &str) -> Result<Reply, Error> {
    let mode = edit_mode(call)?;
    let text = if call
        .content_type()
        .eq_ignore_ascii_case("multipart/related")
    {
        multipart::document(call).await?
    } else {
        call.text().await?
    };
    let body = call.weighed(text).await?;
    let name = id.to_owned();
    let mut edit = body
        .read(move |body| edit(Some(&name), body, String::new))
        .await?;
    let given = edit.rev();
    if let Some(rev) = named_rev(call, given.as_ref())?
        && given.is_none()
    {
        edit.revisions = Some(rev.into());
    }
    let deleted = edit.deleted;
    let rev = Writing::new(call, opened).put(edit, mode).await?;
    let status = if deleted {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    Ok(written(call, opened, id, &rev, status, true))
}

fn edit_mode(call: &Call) -> Result<EditMode, Error> {
    match call.query.get("new_edits") {
        None | Some("true") => Ok(EditMode::NewEdits),
        Some("false") => Ok(EditMode::Replicated),
        Some(_) => Err(Error::bad_request(
            "`new_edits` parameter must be a boolean.",
        )),
    }
}

pub(crate) async fn post(call: &mut Call, opened: &Opened) -> Result<Reply, Error> {
    call.check_json()?;
    let text = call.text().await?;
    let body = call.weighed(text).await?;
    let shared = Arc::clone(&call.shared);
    let edit = body
        .read(move |body| edit(None, body, || uuid(&shared)))
        .await?;
    // A user can change their own document, but not create it.
    if opened.has_users() && !opened.is_admin {
        return Err(Error::forbidden(
            "You may only update your own user document.",
        ));
    }
    let id = edit.id.clone();
    let mode = edit_mode(call)?;
    let rev = Writing::new(call, opened).put(edit, mode).await?;
    Ok(written(call, opened, &id, &rev, StatusCode::CREATED, false))
}

async fn delete(call: &Call, opened: &Opened, id: &str) -> Result<Reply, Error> {
    let rev = named_rev(call, None);
    // As in CouchDB, existence is checked before the revision.
    if let Err(bad) = rev {
        call.docs()
            .get(&opened.db, id, &ReadOptions::default())
            .await?;
        return Err(bad);
    }
    let rev = rev?;
    let rev = Writing::new(call, opened).delete(id, rev.as_ref()).await?;
    Ok(written(call, opened, id, &rev, StatusCode::OK, true))
}

pub(crate) fn written(
    call: &Call,
    opened: &Opened,
    id: &str,
    rev: &Rev,
    status: StatusCode,
    etag: bool,
) -> Reply {
    if call.query.get("batch") == Some("ok") {
        return reply::json(StatusCode::ACCEPTED, &json!({"ok": true, "id": id}));
    }
    let rev = rev.to_string();
    let mut reply = reply::json(status, &json!({"ok": true, "id": id, "rev": rev}));
    if call.method != Method::DELETE {
        let url = format!(
            "/{}/{}",
            wire::quote(opened.db.name().as_str()),
            wire::quote(id)
        );
        reply = reply::with_location(reply, &call.absolute(&url));
    }
    if etag {
        reply = reply::with_etag(reply, &rev);
    }
    reply
}
