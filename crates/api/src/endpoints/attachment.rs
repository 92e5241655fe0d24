//! `/{db}/{docid}/{attachment}`

use axum::body::Body;
use docstore::{Attachments, Content, Document, Edit, EditMode, NewAttachment, ReadOptions};
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::{Method, StatusCode};

use super::document::{named_rev, written};
use super::reading::{Reading, parse_rev};
use super::writing::Writing;
use crate::Error;
use crate::access::Opened;
use crate::call::Call;
use crate::reply::{self, Reply};

pub(crate) async fn attachment(
    call: &mut Call,
    opened: &Opened,
    id: &str,
    name: &str,
) -> Result<Reply, Error> {
    if id.starts_with("_local/") || id == "_local" {
        return Err(Error::bad_request(
            "_local documents do not accept attachments.",
        ));
    }
    // A path below a design document is usually one of its functions.
    if id.starts_with("_design/") && name.starts_with('_') {
        let reason = "Functions of design documents are not run here.";
        return Err(Error::not_implemented(reason));
    }
    match call.method {
        Method::GET => read(call, opened, id, name).await,
        Method::PUT => put(call, opened, id, name).await,
        Method::DELETE => delete(call, opened, id, name).await,
        _ => Err(Error::method_not_allowed("DELETE,GET,HEAD,PUT")),
    }
}

async fn read(call: &Call, opened: &Opened, id: &str, name: &str) -> Result<Reply, Error> {
    let options = ReadOptions {
        attachments: Attachments::Named(name.to_owned()),
        ..ReadOptions::default()
    };
    let docs = call.docs();
    let document = match call.query.get("rev") {
        Some(rev) => {
            docs.get_rev(&opened.db, id, &parse_rev(rev)?, false, &options)
                .await?
        }
        None => docs.get(&opened.db, id, &options).await?,
    };
    let mut attachments = document.attachments.into_iter();
    let missing = || Error::not_found("Document is missing attachment");
    let found = attachments
        .find(|found| found.name == name)
        .ok_or_else(missing)?;
    let digest = found.digest();
    let bytes = found.data.unwrap_or_default();
    let mut reply = reply::body(
        StatusCode::OK,
        "application/octet-stream",
        Body::from(bytes),
    );
    reply::set(&mut reply, CONTENT_TYPE, &found.content_type);
    // Whatever its declared type, the browser must not run it with this service's origin.
    reply::set(&mut reply, CONTENT_SECURITY_POLICY, "sandbox");
    Ok(reply::with_etag(reply, digest.trim_start_matches("md5-")))
}

async fn put(call: &mut Call, opened: &Opened, id: &str, name: &str) -> Result<Reply, Error> {
    let content_type = match call.header(&CONTENT_TYPE) {
        None | Some("") => "application/octet-stream".to_owned(),
        Some(given) => given.to_owned(),
    };
    let data = call.body().await?;
    let content = Some(Content { content_type, data });
    change(call, opened, id, name, content).await
}

async fn delete(call: &Call, opened: &Opened, id: &str, name: &str) -> Result<Reply, Error> {
    change(call, opened, id, name, None).await
}

/// Writes the document with the attachment added, replaced or removed.
async fn change(
    call: &Call,
    opened: &Opened,
    id: &str,
    name: &str,
    content: Option<Content>,
) -> Result<Reply, Error> {
    let reading = Reading::new(call, opened);
    let rev = named_rev(call, None)?;
    let options = ReadOptions::default();
    let known = match &rev {
        None => None,
        Some(rev) => {
            let found = reading
                .docs()
                .get_rev(&opened.db, id, rev, false, &options)
                .await;
            match found {
                // The revision must be an actual one of the winner.
                Err(docstore::Error::Missing | docstore::Error::Deleted) => {
                    return Err(Error::conflict());
                }
                found => Some(reading.view(found?)),
            }
        }
    };
    let is_deletion = content.is_none();
    let edit = with_attachment(id, known, name, content)?;
    let rev = Writing::new(call, opened)
        .put(edit, EditMode::NewEdits)
        .await?;
    let status = if is_deletion {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    Ok(written(call, opened, id, &rev, status, false))
}

fn with_attachment(
    id: &str,
    known: Option<Document>,
    name: &str,
    content: Option<Content>,
) -> Result<Edit, Error> {
    let (body, revisions, stubs) = match known {
        Some(known) => (known.body, Some(known.rev.into()), known.attachments),
        None => ("{}".to_owned(), None, Vec::new()),
    };
    let had_it = stubs.iter().any(|stub| stub.name == name);
    if content.is_none() && !had_it {
        return Err(Error::not_found("Document is missing attachment"));
    }
    let mut attachments: Vec<_> = (stubs.into_iter())
        .filter(|stub| stub.name != name)
        .map(|stub| NewAttachment {
            name: stub.name,
            revpos: Some(stub.revpos),
            content: None,
        })
        .collect();
    attachments.extend(content.map(|content| NewAttachment {
        name: name.to_owned(),
        revpos: None,
        content: Some(content),
    }));
    Ok(Edit {
        id: id.to_owned(),
        revisions,
        body,
        attachments,
        ..Edit::default()
    })
}
