//! Many concurrent jobs that copy a few documents and end.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::Run;
use crate::client::Client;
use crate::random_hex;
use crate::service::{Node, Peer, each, submit};

const DOCUMENTS: u64 = 10;
const LOOK_PAUSE: Duration = Duration::from_millis(100);
const DONE_MAX: Duration = Duration::from_mins(20);

/// Where jobs copy from and to.
struct Copies {
    source: Peer,
    target: Peer,
    /// Suffixes of the database names.
    numbers: Vec<String>,
    /// Their prefix, unique to this run.
    prefix: String,
}

pub(super) async fn run(run: &Run<'_>, jobs: u32) -> anyhow::Result<()> {
    let (source, target) = match &run.bench.server {
        Some(url) => (Peer::given(url)?, Peer::given(url)?),
        None => (Peer::start().await?, Peer::start().await?),
    };
    let copies = Copies {
        source,
        target,
        numbers: (0..jobs).map(|job| format!("{job:06}")).collect(),
        prefix: format!("bench-{}", &random_hex()[..8]),
    };
    let documents: Vec<Value> = (0..DOCUMENTS)
        .map(|n| json!({"_id": format!("doc{n}"), "number": n}))
        .collect();
    let measured = async {
        (copies.source)
            .create(&copies.names("source"), &documents)
            .await?;
        ours(run, &copies).await?;
        if let Some(url) = &run.bench.server {
            theirs(run, &copies, url).await?;
        }
        anyhow::Ok(())
    };
    let measured = measured.await;
    if run.bench.server.is_some() {
        for what in ["source", "ours", "theirs"] {
            // Leftovers are harmless; report the earlier error.
            let delete = async |name: &String| {
                let _ = copies.source.client.delete(name).await;
                Ok(())
            };
            each(&copies.names(what), delete).await?;
        }
    }
    measured?;
    copies.source.stop().await?;
    copies.target.stop().await
}

async fn ours(run: &Run<'_>, copies: &Copies) -> anyhow::Result<()> {
    copies.target.create(&copies.names("ours"), &[]).await?;
    let node = Node::start(&run.place, "bench", "api_frontend,replication").await?;
    let service = node.client()?;
    copies.by(run, "davenport", &service, "ours").await?;
    node.stop().await
}

/// The same with the server's own scheduler.
async fn theirs(run: &Run<'_>, copies: &Copies, url: &str) -> anyhow::Result<()> {
    copies.target.create(&copies.names("theirs"), &[]).await?;
    let service = Client::new(url)?;
    copies.by(run, "server", &service, "theirs").await
}

impl Copies {
    fn names(&self, what: &str) -> Vec<String> {
        let names = self.numbers.iter().map(|number| self.name(what, number));
        names.collect()
    }

    fn name(&self, what: &str, number: &str) -> String {
        format!("{}-{what}-{number}", self.prefix)
    }

    /// Measures the time of all copies.
    async fn by(
        &self,
        run: &Run<'_>,
        who: &str,
        service: &Client,
        targets: &str,
    ) -> anyhow::Result<()> {
        service.create(&run.replicator).await?;
        let documents: Vec<Value> = (self.numbers.iter())
            .map(|number| {
                json!({
                    "_id": number,
                    "source": self.source.client.url(&self.name("source", number)),
                    "target": self.target.client.url(&self.name(targets, number)),
                })
            })
            .collect();
        let begun = Instant::now();
        submit(service, &run.replicator, &documents).await?;
        let done = until_done(service, &run.replicator, documents.len()).await;
        run.report(who, "wall_s", begun.elapsed().as_secs_f64(), "s");
        service.delete(&run.replicator).await?;
        done?;
        each(&self.names(targets), async |name| {
            let (documents, _) = self.target.client.counts(name).await?;
            ensure!(documents == DOCUMENTS, "{name} has {documents} documents");
            Ok(())
        })
        .await
    }
}

/// Waits until each document shows that its replication has completed.
async fn until_done(service: &Client, database: &str, jobs: usize) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut since = "0".to_owned();
    let mut done = HashSet::new();
    while done.len() < jobs {
        ensure!(
            begun.elapsed() < DONE_MAX,
            "only {} of {jobs} are done",
            done.len()
        );
        sleep(LOOK_PAUSE).await;
        let path = format!("{database}/_changes?include_docs=true&since={since}");
        let changes = service.get(&path).await?;
        for row in changes["results"].as_array().into_iter().flatten() {
            let document = &row["doc"];
            match document["_replication_state"].as_str() {
                Some("completed") => {
                    let id = document["_id"].as_str().unwrap_or_default();
                    done.insert(id.to_owned());
                }
                Some("failed" | "error") => bail!("a replication failed: {document}"),
                _ => {}
            }
        }
        let last = &changes["last_seq"];
        since = last
            .as_str()
            .map_or_else(|| last.to_string(), str::to_owned);
    }
    Ok(())
}
