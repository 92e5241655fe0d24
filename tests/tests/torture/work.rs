//! The replications of a run: documents and replications of all kinds, and the expected results.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use peer::{Contents, sources};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use reqwest::{Client as Http, Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::Scale;
use crate::fleet::Client;
use crate::servers::{Servers, Url};

/// A credential for servers without an administrator.
pub(crate) const HEADER_SECRET: &str = "s3cr3t-header-0ddba11";
/// Initial documents.
const DOCUMENTS: u64 = 15;
/// Documents per write.
const MORE: u64 = 3;
const LOOK_PAUSE: Duration = Duration::from_millis(100);
const TRIES_MAX: usize = 2_000;
static RUNS: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn basic(name: &str, password: &str) -> String {
    BASE64.encode(format!("{name}:{password}"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    All,
    Selector,
    Filter,
    Named,
}

/// The form of credentials.
#[derive(Clone, Copy, Debug)]
enum Credentials {
    Url,
    Basic,
    Header,
}

#[derive(Clone, Debug)]
pub(crate) struct Replication {
    pub(crate) name: String,
    /// Numbers of servers.
    pub(crate) source: usize,
    pub(crate) target: usize,
    pub(crate) continuous: bool,
    /// Created by `_replicate`, not by a document.
    pub(crate) transient: bool,
    pub(crate) choice: Choice,
    /// Filtered by the replicator, not by the source.
    filtered_here: bool,
    credentials: Credentials,
}

pub(crate) struct Work {
    pub(crate) replications: Vec<Replication>,
    run: String,
}

impl Work {
    pub(crate) fn draw(scale: Scale, servers: &Servers) -> Self {
        let mut rng = SmallRng::seed_from_u64(!scale.seed);
        let count = servers.all.len();
        let replications = (0..scale.replications).map(|number| {
            let choices = [
                Choice::All,
                Choice::All,
                Choice::Selector,
                Choice::Filter,
                Choice::Named,
            ];
            let said = [Credentials::Url, Credentials::Basic, Credentials::Header];
            let (source, target) = (rng.random_range(0..count), rng.random_range(0..count));
            let choice = choices[rng.random_range(0..choices.len())];
            // PouchDB Server crashes on filter functions, and supports no other filters.
            let here = servers.all[source].is_pouchdb;
            Replication {
                name: format!("{number:04}"),
                source,
                target,
                continuous: rng.random(),
                transient: rng.random_range(0..3) == 0,
                choice: match choice {
                    Choice::Filter if here => Choice::Selector,
                    choice => choice,
                },
                filtered_here: here,
                credentials: said[rng.random_range(0..said.len())],
            }
        });
        Self {
            replications: replications.collect(),
            // Two runs of one process share the existing servers.
            run: format!(
                "torture-{}-{}",
                std::process::id(),
                RUNS.fetch_add(1, Relaxed)
            ),
        }
    }

    pub(crate) fn source(&self, replication: &Replication) -> String {
        format!("{}-s{}", self.run, replication.name)
    }

    pub(crate) fn target(&self, replication: &Replication) -> String {
        format!("{}-t{}", self.run, replication.name)
    }

    /// Creates all databases, and the first documents.
    pub(crate) async fn prepare(&self, servers: &Servers) {
        let http = Http::new();
        for replication in &self.replications {
            let source = servers.all[replication.source]
                .url
                .database(&self.source(replication));
            let target = servers.all[replication.target]
                .url
                .database(&self.target(replication));
            insist(&http, Method::PUT, &source, None).await;
            insist(&http, Method::PUT, &target, None).await;
            write(&http, &source, replication, 0..DOCUMENTS).await;
            if replication.choice == Choice::Filter {
                let design = json!({
                    "_id": "_design/d",
                    "filters": {"mammals": sources::FILTER_MAMMAL},
                });
                insist(
                    &http,
                    Method::PUT,
                    &format!("{source}/_design/d"),
                    Some(&design),
                )
                .await;
            }
        }
    }

    /// Creates all replications, retrying while the frontend is down.
    pub(crate) async fn ask(&self, client: &Client, urls: &[Url]) {
        for replication in self.replications.iter().filter(|one| !one.transient) {
            let body = self.body(replication, urls);
            let path = format!("/_replicator/{}", replication.name);
            // A conflict means that an earlier attempt succeeded.
            let done = |status: StatusCode, _: &Value| status.is_success() || status == 409;
            client.send(Method::PUT, &path, Some(&body), done).await;
        }
        self.ask_once(client, urls).await;
    }

    /// Requests the replications without a document; returns the ids of the continuous ones, by name.
    pub(crate) async fn ask_once(&self, client: &Client, urls: &[Url]) -> BTreeMap<String, String> {
        let transient = self.replications.iter().filter(|one| one.transient);
        let asked = transient.map(async |replication| {
            let answer = self.ask_for(replication, client, urls).await;
            let id = answer["_local_id"].as_str()?;
            Some((replication.name.clone(), id.replace('+', "%2B")))
        });
        let ids = futures::future::join_all(asked).await;
        ids.into_iter().flatten().collect()
    }

    /// Requests a replication without a document; a repeated request joins the running one. It is not
    /// retried when it fails, so the request is repeated.
    pub(crate) async fn ask_for(
        &self,
        replication: &Replication,
        client: &Client,
        urls: &[Url],
    ) -> Value {
        let body = self.body(replication, urls);
        let done = |status: StatusCode, _: &Value| status.is_success();
        let asked = client.send(Method::POST, "/_replicate", Some(&body), done);
        asked.await
    }

    pub(crate) fn body(&self, replication: &Replication, urls: &[Url]) -> Value {
        let endpoint_at =
            |at: usize, name: &str| endpoint(&urls[at], name, replication.credentials);
        let mut body = json!({
            "source": endpoint_at(replication.source, &self.source(replication)),
            "target": endpoint_at(replication.target, &self.target(replication)),
        });
        if replication.continuous {
            body["continuous"] = true.into();
        }
        match replication.choice {
            Choice::All => {}
            Choice::Selector => body["selector"] = json!({"class": "mammal"}),
            Choice::Filter => body["filter"] = "d/mammals".into(),
            Choice::Named => body["doc_ids"] = json!(named()),
        }
        if replication.filtered_here && replication.choice != Choice::All {
            body["filter_where"] = "replicator".into();
        }
        body
    }

    /// Writes more documents to the sources of continuous replications during the faults.
    pub(crate) async fn write_more(&self, urls: &[Url], scale: Scale) {
        let http = Http::new();
        let mut rng = SmallRng::seed_from_u64(scale.seed ^ 0x5eed);
        let until = tokio::time::Instant::now() + scale.duration;
        let continuous: Vec<&Replication> = (self.replications.iter())
            .filter(|replication| replication.continuous)
            .collect();
        let mut next = DOCUMENTS;
        while tokio::time::Instant::now() < until && !continuous.is_empty() {
            let replication = continuous[rng.random_range(0..continuous.len())];
            let source = urls[replication.source].database(&self.source(replication));
            write(&http, &source, replication, next..next + MORE).await;
            next += MORE;
            sleep(Duration::from_millis(rng.random_range(0..200))).await;
        }
    }

    /// The documents of the source that the target must have.
    pub(crate) fn expected(replication: &Replication, mut source: Contents) -> Contents {
        let named: BTreeSet<String> = named().into_iter().collect();
        source
            .documents
            .retain(|id, leaves| match replication.choice {
                Choice::All => true,
                Choice::Named => named.contains(id),
                Choice::Selector | Choice::Filter => leaves.values().any(|leaf| {
                    let body: Value = serde_json::from_str(&leaf.body).unwrap();
                    body["class"] == "mammal"
                }),
            });
        source.without_locals()
    }

    /// Cleans up on external servers.
    pub(crate) async fn forget(&self, servers: &Servers) {
        let http = Http::new();
        for replication in &self.replications {
            for (at, name) in [
                (replication.source, self.source(replication)),
                (replication.target, self.target(replication)),
            ] {
                let url = servers.all[at].url.database(&name);
                insist(&http, Method::DELETE, &url, None).await;
            }
        }
    }
}

/// The document ids of a replication by `doc_ids`.
fn named() -> Vec<String> {
    (0..DOCUMENTS).step_by(4).map(id).collect()
}

fn id(number: u64) -> String {
    format!("d{number:05}")
}

fn endpoint(url: &Url, database: &str, how: Credentials) -> Value {
    let plain = format!("{}/{database}", url.plain);
    let headers = json!({"X-Secret": HEADER_SECRET});
    match (&url.admin, how) {
        (None, _) => json!({"url": plain, "headers": headers}),
        (Some(_), Credentials::Url) => url.database(database).into(),
        (Some((username, password)), Credentials::Basic) => json!({
            "url": plain, "headers": headers,
            "auth": {"basic": {"username": username, "password": password}},
        }),
        (Some((name, password)), Credentials::Header) => json!({
            "url": plain,
            "headers": {"Authorization": format!("Basic {}", basic(name, password))},
        }),
    }
}

/// Writes documents by number, with revisions that depend only on it, so that a write can be repeated.
async fn write(
    http: &Http,
    database: &str,
    replication: &Replication,
    numbers: std::ops::Range<u64>,
) {
    let everything = replication.choice == Choice::All;
    let mut documents = Vec::new();
    for number in numbers {
        let class = ["mammal", "bird", "fish"][usize::try_from(number % 3).unwrap()];
        let mut document = json!({
            "_id": id(number), "_revisions": {"start": 1, "ids": [rev(number, 1)]},
            "class": class, "integer": number, "text": "x".repeat(usize::try_from(number % 50).unwrap() * 20),
        });
        if everything && number % 7 == 3 {
            document["_attachments"] = json!({
                "note.txt": {"content_type": "text/plain", "revpos": 1, "data": BASE64.encode(format!("note {number}"))},
            });
        }
        documents.push(document);
        if everything && number % 5 == 2 {
            // A conflict, and a deletion.
            for leaf in [2, 3] {
                documents.push(json!({
                    "_id": id(number), "_deleted": leaf == 3,
                    "_revisions": {"start": 2, "ids": [rev(number, leaf), rev(number, 1)]},
                    "leaf": leaf,
                }));
            }
        }
    }
    let body = json!({"new_edits": false, "docs": documents});
    insist(
        http,
        Method::POST,
        &format!("{database}/_bulk_docs"),
        Some(&body),
    )
    .await;
}

fn rev(number: u64, leaf: u64) -> String {
    format!("{:032x}", (u128::from(number) + 1) << 8 | u128::from(leaf))
}

/// Retries a request until the server has done it, now or before.
async fn insist(http: &Http, method: Method, url: &str, body: Option<&Value>) {
    let mut last = String::new();
    for _ in 0..TRIES_MAX {
        let request = http
            .request(method.clone(), url)
            .timeout(Duration::from_secs(10));
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        match request.send().await {
            Ok(answer) => {
                let status = answer.status();
                let text = answer.text().await;
                let had_been_done = matches!(status.as_u16(), 409 | 412)
                    || (status == 404 && method == Method::DELETE);
                if had_been_done || (status.is_success() && text.is_ok()) {
                    return;
                }
                last = format!("{status} {text:?}");
            }
            Err(error) => last = error.to_string(),
        }
        sleep(LOOK_PAUSE).await;
    }
    panic!("{method} {url}: {last}");
}
