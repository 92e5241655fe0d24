//! One attachment.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use document::doc::{Doc, check_id};
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE,
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, RANGE,
};
use http::{Method, StatusCode};

use super::doc_query::DocQuery;
use super::document::{edit_one, live, written};
use crate::attachment::{Attachment, Content, Sent, check_name};
use crate::db::{Database, Slot, Version};
use crate::refusal::Refusal;
use crate::reply::{self, Reply};
use crate::request::Request;
use crate::server::Server;

/// With more ranges than this, the whole attachment is sent.
const RANGES_MAX: usize = 9;

pub(super) async fn attachment(
    server: &Arc<Server>,
    request: Request,
    db: &Arc<Database>,
    id: &str,
    name: &str,
) -> Result<Reply, Refusal> {
    match request.method {
        Method::GET => get(server, &request, db, id, name),
        Method::PUT => put(server, request, db, id, name).await,
        Method::DELETE => delete(server, request, db, id, name).await,
        _ => Err(Refusal::method("DELETE,GET,HEAD,PUT")),
    }
}

fn named<'a>(version: &'a Version, name: &str) -> Result<&'a Attachment, Refusal> {
    let found = version.attachments.iter().find(|part| *part.name == *name);
    found.ok_or_else(|| Refusal::not_found("Document is missing attachment"))
}

/// The requested revision, or the winner.
fn version(db: &Database, request: &Request, id: &str) -> Result<Arc<Version>, Refusal> {
    let query = DocQuery::parse(request)?;
    let version = match query.rev {
        None => live(db, id, |node| node.value.cloned())?,
        Some(rev) => db
            .read()
            .document(id)
            .and_then(|document| document.tree.get(&rev)?.value.cloned()),
    };
    version.ok_or_else(Refusal::missing)
}

fn get(
    server: &Server,
    request: &Request,
    db: &Database,
    id: &str,
    name: &str,
) -> Result<Reply, Refusal> {
    let version = version(db, request, id)?;
    let part = named(&version, name)?;
    let encodings = request.header(&ACCEPT_ENCODING).unwrap_or_default();
    let encoded = part.gzip
        && encodings
            .split(',')
            .any(|encoding| encoding.trim().starts_with("gzip"));
    let data = if encoded {
        part.data.clone()
    } else {
        part.plain()
    };
    let etag = format!("\"{}\"", part.base64_md5());
    let ranges = if part.gzip {
        None
    } else {
        ranges(request.header(&RANGE).unwrap_or_default(), data.len())?
    };
    let answer = || match ranges.as_deref() {
        Some(&[(from, to)]) => {
            let reply = reply::build(
                StatusCode::PARTIAL_CONTENT,
                &part.content_type,
                Body::from(data.slice(from..=to)),
            );
            reply::with(reply, &CONTENT_RANGE, &content_range(from, to, data.len()))
        }
        Some(ranges) if ranges.len() <= RANGES_MAX => {
            several(server, &part.content_type, ranges, &data)
        }
        _ => reply::build(StatusCode::OK, &part.content_type, Body::from(data.clone())),
    };
    let mut reply = reply::with_etag(request, &etag, answer);
    reply::set(&mut reply, &CACHE_CONTROL, "must-revalidate");
    reply::set(
        &mut reply,
        &ACCEPT_RANGES,
        if part.gzip { "none" } else { "bytes" },
    );
    reply::set(&mut reply, &CONTENT_SECURITY_POLICY, "sandbox");
    if encoded {
        reply::set(&mut reply, &CONTENT_ENCODING, "gzip");
    }
    Ok(reply)
}

fn content_range(from: usize, to: usize, length: usize) -> String {
    format!("bytes {from}-{to}/{length}")
}

fn several(server: &Server, content_type: &str, ranges: &[(usize, usize)], data: &Bytes) -> Reply {
    let boundary = server.chance.uuid();
    let mut pieces = vec![Bytes::from(format!("--{boundary}"))];
    for &(from, to) in ranges {
        let range = content_range(from, to, data.len());
        let head = format!("\r\nContent-Type: {content_type}\r\nContent-Range: {range}\r\n\r\n");
        pieces.extend([
            head.into(),
            data.slice(from..=to),
            format!("\r\n--{boundary}").into(),
        ]);
    }
    pieces.push(Bytes::from_static(b"--"));
    let content_type = format!("multipart/byteranges; boundary=\"{boundary}\"");
    reply::pieces(StatusCode::PARTIAL_CONTENT, &content_type, pieces, true)
}

/// First and last byte of each requested range; none for the whole attachment or an invalid header.
fn ranges(header: &str, length: usize) -> Result<Option<Vec<(usize, usize)>>, Refusal> {
    let Some(list) = header.strip_prefix("bytes=") else {
        return Ok(None);
    };
    let mut ranges = Vec::new();
    for range in list.split(',') {
        let Some((from, to)) = range.trim().split_once('-') else {
            return Ok(None);
        };
        let number = |text: &str| {
            (!text.is_empty())
                .then(|| text.parse::<usize>())
                .transpose()
        };
        let (Ok(from), Ok(to)) = (number(from), number(to)) else {
            return Ok(None);
        };
        let (from, to) = match (from, to) {
            (None | Some(0), None) => return Ok(None),
            (None, Some(suffix)) => (length.saturating_sub(suffix), length.saturating_sub(1)),
            (Some(from), to) => (from, to.unwrap_or(usize::MAX).min(length.saturating_sub(1))),
        };
        if from > to || from >= length {
            return Err(Refusal::range());
        }
        ranges.push((from, to));
    }
    Ok(Some(ranges))
}

async fn put(
    server: &Arc<Server>,
    mut request: Request,
    db: &Arc<Database>,
    id: &str,
    name: &str,
) -> Result<Reply, Refusal> {
    check_name(name)?;
    let gzip = match request
        .header(&CONTENT_ENCODING)
        .unwrap_or("identity")
        .trim()
        .to_ascii_lowercase()
        .as_str()
    {
        "identity" => false,
        "gzip" => true,
        _ => {
            return Err(Refusal::content_type(
                "Only gzip and identity content-encodings are supported",
            ));
        }
    };
    let content_type = request
        .header(&CONTENT_TYPE)
        .unwrap_or("application/octet-stream")
        .to_owned();
    let data = request.body().await?;
    let sent = Sent {
        name: name.to_owned(),
        content_type,
        revpos: None,
        md5: None,
        length: None,
        encoded_length: None,
        gzip,
        content: Content::Here(data),
    };
    let reply = change(server, &request, db, id, name, &[sent])?;
    Ok(reply::with_location(
        reply,
        &request.absolute(&[&db.name, id, name]),
    ))
}

async fn delete(
    server: &Arc<Server>,
    mut request: Request,
    db: &Arc<Database>,
    id: &str,
    name: &str,
) -> Result<Reply, Refusal> {
    request.body().await?;
    change(server, &request, db, id, name, &[])
}

/// Replaces or deletes an attachment by editing its document.
fn change(
    server: &Server,
    request: &Request,
    db: &Database,
    id: &str,
    name: &str,
    sent: &[Sent],
) -> Result<Reply, Refusal> {
    let base = request.match_rev(request.param("rev").map(str::parse).transpose()?)?;
    let status = if sent.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    let version = match &base {
        None => {
            if sent.is_empty() {
                live(db, id, |node| {
                    node.value.map(|version| named(version, name).map(drop))
                })?
                .transpose()?;
            }
            check_id(id, server.limits().id_bytes_max)?;
            None
        }
        Some(rev) => {
            let state = db.read();
            let version = state
                .document(id)
                .and_then(|document| document.tree.get(rev)?.value.cloned());
            let version = version.ok_or_else(Refusal::missing_rev)?;
            if sent.is_empty() {
                named(&version, name)?;
            }
            Some(version)
        }
    };
    let body = version
        .as_ref()
        .map_or_else(|| "{}".to_owned(), |version| version.body.to_string());
    let doc = Doc {
        id: Some(id.to_owned()),
        revisions: base.map(Into::into),
        body,
        ..Doc::default()
    };
    let mut edit = server.prepare(db, doc, sent, true)?;
    let others = version
        .iter()
        .flat_map(|version| &version.attachments)
        .filter(|part| *part.name != *name);
    edit.attachments.extend(others.cloned().map(Slot::Stored));
    let rev = edit_one(db, edit, request)?;
    Ok(written(status, id, &rev))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_ranges() {
        for (header, expected) in [
            ("", None),
            ("bytes=0-", None),
            ("bytes=0-12", Some(vec![(0, 12)])),
            ("bytes=13-", Some(vec![(13, 29)])),
            ("bytes=-3", Some(vec![(27, 29)])),
            ("bytes=0-99", Some(vec![(0, 29)])),
            ("bytes=0-1, 5-6", Some(vec![(0, 1), (5, 6)])),
            ("bytes=x-1", None),
            ("lines=1-2", None),
        ] {
            assert_eq!(ranges(header, 30), Ok(expected), "{header}");
        }
        for header in ["bytes=5-4", "bytes=30-", "bytes=0-0"] {
            assert!(
                ranges(header, if header == "bytes=0-0" { 0 } else { 30 }).is_err(),
                "{header}"
            );
        }
    }
}
