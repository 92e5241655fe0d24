//! Documents with their attachments, part by part.

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use document::rev::Rev;
use document::revtree::Node;
use wire::multipart;

use crate::attachment::{Attachment, Content, Sent};
use crate::db::Version;
use crate::refusal::Refusal;
use crate::render::{self, Attachments, Shown};

/// The content type and the pieces of a document with the attachments that follow it.
pub(super) fn related(
    id: &str,
    node: Node<'_, Arc<Version>>,
    shown: &Shown,
    boundary: &str,
) -> (String, Vec<Bytes>) {
    let mut json = Vec::new();
    render::node(&mut json, id, node, shown);
    let following: Vec<&Attachment> = node
        .value
        .iter()
        .flat_map(|version| &version.attachments)
        .filter(|part| shown.is_new(part))
        .collect();
    if following.is_empty() {
        return ("application/json".to_owned(), vec![json.into()]);
    }
    let mut pieces = vec![Bytes::from(format!(
        "--{boundary}\r\nContent-Type: application/json\r\n\r\n"
    ))];
    pieces.push(json.into());
    for part in following {
        let encoding = if part.gzip {
            "\r\nContent-Encoding: gzip"
        } else {
            ""
        };
        pieces.push(Bytes::from(format!(
            "\r\n--{boundary}\r\nContent-Disposition: attachment; filename=\"{}\"\r\nContent-Type: {}\r\n\
             Content-Length: {}{encoding}\r\n\r\n",
            part.name,
            part.content_type,
            part.data.len()
        )));
        pieces.push(part.data.clone());
    }
    pieces.push(Bytes::from(format!("\r\n--{boundary}--")));
    (
        format!("multipart/related; boundary=\"{boundary}\""),
        pieces,
    )
}

/// The pieces of several revisions of a document.
pub(super) fn mixed(
    id: &str,
    found: Vec<(Node<'_, Arc<Version>>, Shown)>,
    missing: &[Rev],
    outer: &str,
    inner: &str,
) -> Vec<Bytes> {
    let mut pieces = vec![Bytes::from(format!("--{outer}"))];
    for (node, shown) in found {
        let shown = Shown {
            attachments: Attachments::Follow,
            encoding: true,
            ..shown
        };
        let (content_type, document) = related(id, node, &shown, inner);
        pieces.push(Bytes::from(format!(
            "\r\nContent-Type: {content_type}\r\n\r\n"
        )));
        pieces.extend(document);
        pieces.push(Bytes::from(format!("\r\n--{outer}")));
    }
    for rev in missing {
        let mut json =
            b"\r\nContent-Type: application/json; error=\"true\"\r\n\r\n{\"missing\":".to_vec();
        render::rev(&mut json, rev);
        json.extend_from_slice(format!("}}\r\n--{outer}").as_bytes());
        pieces.push(json.into());
    }
    pieces.push(Bytes::from_static(b"--"));
    pieces
}

/// Splits a document and its attachments into the JSON and the bodies of the other parts.
pub(super) fn parse_related(
    content_type: &str,
    body: &Bytes,
) -> Result<(String, Vec<Bytes>), Refusal> {
    let bad =
        |error: &dyn Display| Refusal::bad_request(format!("invalid multipart body: {error}"));
    let boundary = multipart::boundary(content_type);
    let boundary = boundary.ok_or_else(|| bad(&"no boundary"))?;
    let parts = multipart::split(body, &boundary).map_err(|error| bad(&error))?;
    let mut parts = parts.into_iter();
    let (head, json) = parts.next().ok_or_else(|| bad(&"no document"))?;
    if !matches!(
        wire::media_type(&head.content_type).as_str(),
        "" | "application/json"
    ) {
        return Err(Refusal::content_type(
            "Content-Type must be application/json",
        ));
    }
    let json =
        String::from_utf8(json.into()).map_err(|_| Refusal::bad_request("invalid UTF-8 JSON"))?;
    Ok((json, parts.map(|(_, body)| body).collect()))
}

/// Assigns the parts' bodies, in order, to the attachments with `follows`.
pub(super) fn distribute(sent: &mut [Sent], parts: Vec<Bytes>) -> Result<(), Refusal> {
    let shorter = || Refusal::bad_request("attachment shorter than expected");
    let mut parts = parts.into_iter();
    for sent in sent
        .iter_mut()
        .filter(|sent| matches!(sent.content, Content::Follows))
    {
        let data = parts.next().ok_or_else(shorter)?;
        match sent.following_bytes() {
            Some(bytes) if bytes > data.len() as u64 => return Err(shorter()),
            Some(bytes) if bytes < data.len() as u64 => {
                return Err(Refusal::bad_request("attachment longer than expected"));
            }
            _ => sent.content = Content::Here(data),
        }
    }
    Ok(())
}
