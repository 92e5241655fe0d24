//! Documents with their attachments, part by part.

use std::sync::Arc;

use bytes::Bytes;
use document::rev::Rev;
use document::revtree::Node;

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

/// Takes apart a document that came with attachments: its JSON, and the bodies of the other parts.
pub(super) fn parse_related(
    content_type: &str,
    body: &Bytes,
) -> Result<(String, Vec<Bytes>), Refusal> {
    let boundary = content_type
        .split(';')
        .map(str::trim)
        .find_map(|param| param.strip_prefix("boundary="));
    let boundary = boundary
        .map(|boundary| boundary.trim_matches('"'))
        .filter(|boundary| !boundary.is_empty());
    let boundary = boundary.ok_or_else(|| Refusal::bad_request("missing multipart boundary"))?;
    let mut parts = split(body, boundary)?.into_iter();
    let (headers, json) = parts
        .next()
        .ok_or_else(|| Refusal::bad_request("no document part"))?;
    let headers = String::from_utf8_lossy(&headers).to_ascii_lowercase();
    let declared = headers
        .lines()
        .find_map(|line| line.strip_prefix("content-type:"));
    if declared.is_some_and(|kind| !kind.trim().starts_with("application/json")) {
        return Err(Refusal::content_type(
            "Content-Type must be application/json",
        ));
    }
    let json =
        String::from_utf8(json.into()).map_err(|_| Refusal::bad_request("invalid UTF-8 JSON"))?;
    Ok((json, parts.map(|(_, body)| body).collect()))
}

/// Headers and body of each part.
fn split(body: &Bytes, boundary: &str) -> Result<Vec<(Bytes, Bytes)>, Refusal> {
    let broken = || Refusal::bad_request("multipart body ended early");
    let delimiter = format!("\r\n--{boundary}");
    // The first boundary may stand at the very beginning, where no line ends.
    let first = find_boundary(body, &delimiter.as_bytes()[2..]).ok_or_else(broken)?;
    let mut at = first + delimiter.len() - 2;
    let mut parts = Vec::new();
    while !body[at..].starts_with(b"--") {
        let head = at + find(&body[at..], b"\r\n").ok_or_else(broken)?;
        // Headers end with an empty line, and may be none at all.
        let (headers, start) = match find(&body[head..], b"\r\n\r\n") {
            Some(length) => (body.slice(head..head + length), head + length + 4),
            None => return Err(broken()),
        };
        // The empty line that ends the headers may also begin the boundary after an empty body.
        let from = start.saturating_sub(2);
        let end = from + find_boundary(&body[from..], delimiter.as_bytes()).ok_or_else(broken)?;
        let length = end.saturating_sub(start);
        parts.push((headers, body.slice(start..start + length)));
        at = end + delimiter.len();
    }
    Ok(parts)
}

/// A boundary is followed by the end of its line, or by two dashes if it is the last.
fn find_boundary(body: &[u8], delimiter: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + find(&body[from..], delimiter)?;
        let after = &body[at + delimiter.len()..];
        if after.starts_with(b"\r\n") || after.starts_with(b"--") {
            return Some(at);
        }
        from = at + 1;
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut at = 0;
    while let Some(step) = haystack.get(at..)?.iter().position(|byte| *byte == first) {
        at += step;
        if haystack[at..].starts_with(needle) {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// Gives the parts' bodies, in order, to the attachments that said they would follow.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_may_hold_anything_and_have_no_headers() {
        let body = Bytes::from_static(
            b"preamble\r\n--b\r\nContent-Type: application/json\r\n\r\n{}\r\n--b\r\n\r\n\r\n--bb\r\n\r\n--b\r\nX: y\r\n\r\n\r\n--b--\r\n",
        );
        let (json, parts) = parse_related("multipart/related; boundary=\"b\"", &body).unwrap();
        assert_eq!(json, "{}");
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[1], "");
    }

    #[test]
    fn a_body_that_ends_early_is_refused() {
        let whole =
            b"--b\r\nContent-Type: application/json\r\n\r\n{}\r\n--b\r\nX: y\r\n\r\ndata\r\n--b--";
        for length in 0..whole.len() - 1 {
            let body = Bytes::copy_from_slice(&whole[..length]);
            assert!(
                parse_related("multipart/related; boundary=b", &body).is_err(),
                "{length}"
            );
        }
        assert!(parse_related("multipart/related; boundary=b", &Bytes::from_static(whole)).is_ok());
        assert!(parse_related("multipart/related; boundary=", &Bytes::from_static(whole)).is_err());
    }

    #[test]
    fn any_bytes() {
        let seeds: [&[u8]; 2] = [
            b"--b\r\nContent-Type: application/json\r\n\r\n{}\r\n--b\r\n\r\nabc\r\n--b--",
            b"\r\n--b\r\n\r\n\r\n--b--",
        ];
        let words = [
            "--b",
            "\r\n--b",
            "\r\n",
            "--",
            "\r\n\r\n",
            "Content-Type: text/plain",
        ];
        testkit::fuzz("peer multipart", &seeds, &words, |body| {
            let body = Bytes::copy_from_slice(body);
            let parts = parse_related("multipart/related; boundary=\"b\"", &body);
            let Ok((json, parts)) = parts else {
                return false;
            };
            let held = json.len() + parts.iter().map(Bytes::len).sum::<usize>();
            assert!(held <= body.len());
            true
        });
    }
}
