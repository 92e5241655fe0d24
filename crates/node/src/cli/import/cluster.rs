//! The cluster to import from.

use std::collections::{HashMap, HashSet};

use anyhow::{Context, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use docstore::Rev;
use replication::params::Grant;
use reqwest::{Client, RequestBuilder};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::config::Ini;
use crate::cli::service::{Page as AllDocs, escaped};

/// Documents per request.
const PAGE: u64 = 200;

pub(super) struct Cluster {
    client: Client,
    url: String,
    pub(super) name: String,
    password: String,
}

/// Changed documents with their leaves.
pub(super) struct Page {
    /// Ids, leaves, and whether the document is deleted.
    pub(super) leaves: Vec<(String, Vec<Rev>, bool)>,
    pub(super) last_seq: String,
}

/// A leaf of a document.
pub(super) struct Leaf {
    pub(super) id: String,
    /// Its JSON with `_revisions`, or why it could not be read.
    pub(super) text: Result<String, String>,
}

#[derive(Deserialize)]
struct Changes {
    results: Vec<Change>,
    last_seq: Value,
}

#[derive(Deserialize)]
struct Change {
    id: String,
    changes: Vec<Changed>,
    #[serde(default)]
    deleted: bool,
}

#[derive(Deserialize)]
struct Changed {
    rev: String,
}

#[derive(Deserialize)]
struct Found {
    results: Vec<FoundDoc>,
}

#[derive(Deserialize)]
struct FoundDoc {
    id: String,
    docs: Vec<HashMap<String, Box<RawValue>>>,
}

impl Cluster {
    pub(super) fn new(url: &str, user: &str) -> anyhow::Result<Self> {
        let user = user.split_once(':');
        let (name, password) = user.context("--user: write NAME:PASSWORD")?;
        Ok(Self {
            client: Client::new(),
            url: url.trim_end_matches('/').to_owned(),
            name: name.to_owned(),
            password: password.to_owned(),
        })
    }

    /// The databases of the cluster by their names, with the rights of the user.
    pub(super) fn names(&self) -> Grant {
        let pair = BASE64_STANDARD.encode(format!("{}:{}", self.name, self.password));
        let header = [("Authorization".to_owned(), json!(format!("Basic {pair}")))];
        let headers = Value::Object(header.into_iter().collect());
        let rights = [("headers".to_owned(), headers)].into_iter().collect();
        Grant::new(&self.url, rights, false)
    }

    /// The UUID of the cluster. The user must be an administrator of the cluster, since others do not see credentials.
    pub(super) async fn check(&self) -> anyhow::Result<String> {
        let session: Value = self.answer(self.client.get(self.path("/_session"))).await?;
        let roles = session["userCtx"]["roles"].as_array();
        if !roles.is_some_and(|roles| roles.iter().any(|role| role == "_admin")) {
            bail!(
                "{} is not an administrator of the cluster and cannot see the credentials in documents",
                self.name
            );
        }
        let welcome: Value = self.answer(self.client.get(self.path("/"))).await?;
        let uuid = welcome["uuid"].as_str();
        Ok(uuid
            .context("the cluster does not return its UUID")?
            .to_owned())
    }

    /// The names of its administrators, as far as it tells: the caller is one.
    pub(super) async fn admins(&self) -> HashSet<String> {
        let path = self.path("/_node/_local/_config/admins");
        let listed: anyhow::Result<HashMap<String, Value>> =
            self.answer(self.client.get(path)).await;
        let listed = listed.unwrap_or_default().into_keys();
        listed.chain([self.name.clone()]).collect()
    }

    /// The configuration of the node that the URL leads to.
    pub(super) async fn config(&self) -> anyhow::Result<Ini> {
        let path = self.path("/_node/_local/_config");
        self.answer(self.client.get(path)).await
    }

    pub(super) async fn databases(&self) -> anyhow::Result<Vec<String>> {
        let all: Vec<String> = self.answer(self.client.get(self.path("/_all_dbs"))).await?;
        let replicators = all
            .into_iter()
            .filter(|name| name == "_replicator" || name.ends_with("/_replicator"));
        Ok(replicators.collect())
    }

    /// The security object, unless it is the default.
    pub(super) async fn security(&self, db: &str) -> anyhow::Result<Option<String>> {
        let security: Value = self
            .answer(self.client.get(self.url_of(db, "/_security")))
            .await?;
        let default = json!({"members": {"roles": ["_admin"]}, "admins": {"roles": ["_admin"]}});
        Ok((security != default).then(|| security.to_string()))
    }

    /// The documents of a database behind this one.
    pub(super) async fn documents(&self, db: &str, last: Option<&str>) -> anyhow::Result<AllDocs> {
        let request = self.client.get(self.url_of(db, "/_all_docs"));
        self.answer(request.query(&AllDocs::after(last))).await
    }

    /// The changes since a sequence, if any.
    pub(super) async fn page(&self, db: &str, since: &str) -> anyhow::Result<Option<Page>> {
        let limit = PAGE.to_string();
        let query = [("style", "all_docs"), ("since", since), ("limit", &limit)];
        let request = self.client.get(self.url_of(db, "/_changes")).query(&query);
        let changes: Changes = self.answer(request).await?;
        if changes.results.is_empty() {
            return Ok(None);
        }
        let mut leaves = Vec::with_capacity(changes.results.len());
        for change in changes.results {
            let revs = change.changes.iter().map(|changed| changed.rev.parse());
            let revs = revs.collect::<Result<Vec<Rev>, _>>();
            let revs =
                revs.with_context(|| format!("cannot read the revisions of {}", change.id))?;
            leaves.push((change.id, revs, change.deleted));
        }
        let last_seq = match changes.last_seq {
            Value::String(seq) => seq,
            other => other.to_string(),
        };
        Ok(Some(Page { leaves, last_seq }))
    }

    /// Leaves with their histories and attachments.
    pub(super) async fn leaves(
        &self,
        db: &str,
        wanted: &[(String, Rev)],
    ) -> anyhow::Result<Vec<Leaf>> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let docs: Vec<_> = wanted
            .iter()
            .map(|(id, rev)| json!({"id": id, "rev": rev.to_string()}))
            .collect();
        let request = self
            .client
            .post(self.url_of(db, "/_bulk_get"))
            .query(&[("revs", "true"), ("attachments", "true")])
            .json(&json!({ "docs": docs }));
        let found: Found = self.answer(request).await?;
        let mut leaves = Vec::new();
        for FoundDoc { id, docs } in found.results {
            for mut doc in docs {
                let text = match (doc.remove("ok"), doc.remove("error")) {
                    (Some(doc), _) => Ok(doc.get().to_owned()),
                    (None, error) => Err(format!(
                        "cannot read it from the cluster: {}",
                        error.map_or_else(String::new, |error| error.get().to_owned())
                    )),
                };
                let id = id.clone();
                leaves.push(Leaf { id, text });
            }
        }
        Ok(leaves)
    }

    fn path(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn url_of(&self, db: &str, path: &str) -> String {
        let db = escaped(db);
        format!("{}/{db}{path}", self.url)
    }

    async fn answer<T: DeserializeOwned>(&self, request: RequestBuilder) -> anyhow::Result<T> {
        let request = request
            .basic_auth(&self.name, Some(&self.password))
            .header("accept", "application/json");
        let response = request
            .send()
            .await
            .context("cannot reach the cluster; check the URL")?;
        let status = response.status();
        if status.is_success() {
            let answer = response.json().await;
            return answer.context("the response is not CouchDB's");
        }
        let refusal: Value = response.json().await.unwrap_or_default();
        let part = |name: &str| refusal[name].as_str().unwrap_or("?").to_owned();
        bail!(
            "the cluster responded {status} {}: {}",
            part("error"),
            part("reason")
        )
    }
}
