//! Reads the contents of databases on other servers.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use document::doc::Doc;
use document::rev::{Rev, Revisions};
use http::StatusCode;
use serde_json::Value;
use serde_json::value::RawValue;
use wire::{client, quote};

use super::{Contents, Leaf};
use crate::refusal::Refusal;

impl Contents {
    /// Reads a whole database of any server, revision by revision, by an `http` URL that may hold credentials. `locals` are
    /// ids of `_local` documents to read; where the server can list them, all are read.
    ///
    /// # Errors
    /// The server cannot be reached, or does not answer as CouchDB does.
    pub async fn fetch(url: &str, locals: &[&str]) -> Result<Self, Refusal> {
        let url = url.trim_end_matches('/');
        let mut contents = Self::default();
        let changes: Value = parse(&get(&format!("{url}/_changes?style=all_docs")).await?)?;
        for row in changes["results"].as_array().into_iter().flatten() {
            let id = row["id"].as_str().unwrap_or_default();
            let path = id
                .strip_prefix("_design/")
                .map_or_else(|| quote(id), |name| format!("_design/{}", quote(name)));
            let revs: Vec<&Value> = row["changes"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|change| &change["rev"])
                .collect();
            let revs = quote(&serde_json::to_string(&revs).unwrap_or_default());
            let query = format!("{url}/{path}?revs=true&attachments=true&open_revs={revs}");
            contents
                .documents
                .insert(id.to_owned(), leaves(&get(&query).await?)?);
        }
        let listed = get(&format!("{url}/_local_docs?include_docs=true")).await;
        let listed: Option<Value> = listed
            .ok()
            .and_then(|json| serde_json::from_str(&json).ok());
        let rows = listed
            .iter()
            .filter_map(|listed| listed["rows"].as_array())
            .flatten();
        let mut names: Vec<String> = rows
            .filter_map(|row| row["id"].as_str().map(str::to_owned))
            .collect();
        names.extend(locals.iter().map(|name| (*name).to_owned()));
        for id in names {
            let name = id.strip_prefix("_local/").unwrap_or(&id);
            match get(&format!("{url}/_local/{}", quote(name))).await {
                Ok(json) => contents.locals.insert(id, Doc::parse(&json)?.body),
                Err(refusal) if refusal.status == StatusCode::NOT_FOUND => None,
                Err(refusal) => return Err(refusal),
            };
        }
        Ok(contents)
    }
}

async fn get(url: &str) -> Result<String, Refusal> {
    let failed = |error: client::Error| {
        Refusal::new(
            StatusCode::BAD_GATEWAY,
            "request_failed",
            wire::chain(&error),
        )
    };
    let (status, body) = client::get(url).await.map_err(failed)?;
    let text = String::from_utf8_lossy(&body).into_owned();
    if status.is_success() {
        Ok(text)
    } else {
        Err(Refusal::new(status, "refused", text))
    }
}

fn parse<'a, T: serde::Deserialize<'a>>(json: &'a str) -> Result<T, Refusal> {
    serde_json::from_str(json).map_err(|_| Refusal::bad_request("invalid UTF-8 JSON"))
}

/// Parses the answer to `open_revs`.
fn leaves(json: &str) -> Result<BTreeMap<Rev, Leaf>, Refusal> {
    #[derive(serde::Deserialize)]
    struct Row<'a> {
        #[serde(borrow)]
        ok: Option<&'a RawValue>,
    }
    let rows: Vec<Row<'_>> = parse(json)?;
    rows.iter()
        .filter_map(|row| row.ok)
        .map(|doc| leaf(doc.get()))
        .collect()
}

fn leaf(json: &str) -> Result<(Rev, Leaf), Refusal> {
    let doc = Doc::parse(json)?;
    let no_rev = || Refusal::bad_request("Invalid rev format");
    let Revisions { start, ids } = doc.revisions.as_ref().ok_or_else(no_rev)?;
    let mut revs = ids
        .iter()
        .zip((0..=*start).rev())
        .map(|(id, generation)| Rev {
            generation,
            id: id.clone(),
        });
    let rev = revs.next().ok_or_else(no_rev)?;
    let ancestors = revs.collect();
    let mut attachments = BTreeMap::new();
    for (name, json) in &doc.attachments {
        let part: Value = parse(json)?;
        let data = BASE64.decode(part["data"].as_str().unwrap_or_default());
        let data =
            data.map_err(|_| Refusal::bad_request(format!("Invalid attachment data for {name}")))?;
        let kind = part["content_type"].as_str().unwrap_or_default().to_owned();
        attachments.insert(name.clone(), (kind, part["revpos"].clone(), data.into()));
    }
    Ok((
        rev,
        Leaf {
            deleted: doc.deleted,
            ancestors,
            body: doc.body,
            attachments,
        },
    ))
}
