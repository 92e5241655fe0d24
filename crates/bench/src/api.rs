//! `davenport bench api`: a frontend in its own process, and its clients in this one.

mod fill;
mod frontend;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde_json::Value;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::Connection;
use crate::store::Figure;
use crate::{Open, per_second};
pub(crate) use fill::write as write_documents;
use frontend::Frontend;

/// The database that others are compared with.
const SMALL: usize = 10_000;
const PAGES: usize = 500;
const PAGE: usize = 100;
const ROUNDS: usize = 5;
/// Listeners that have received the head of a feed are about to wait.
const SETTLE: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub struct ApiBench {
    /// Empty store, lmdb: or fdb:; default: a new temporary directory
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Number of clients that write documents concurrently
    #[arg(long, value_name = "N", default_value_t = 64)]
    clients: usize,
    /// Number of documents to write, each with its job
    #[arg(long, value_name = "N", default_value_t = 30_000)]
    docs: usize,
    /// Number of documents, each with its job, in the larger of the listed databases; 0 skips it
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    large: usize,
    /// Number of clients that wait for a change concurrently
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    listeners: usize,
    /// Run only this case; can be repeated
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<Part>,
    /// Print one line of JSON per figure
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    #[value(name = "doc_writes")]
    DocWrites,
    #[value(name = "docs_page")]
    DocsPage,
    #[value(name = "changes_fanout")]
    ChangesFanout,
}

pub(super) async fn run(bench: ApiBench, open: Open) -> anyhow::Result<()> {
    if bench.clients == 0 || bench.docs == 0 || bench.listeners == 0 {
        bail!("clients, documents and listeners must be at least 1");
    }
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let url = super::url_or_new(bench.store.clone(), &directory);
    let wants = |part| bench.cases.is_empty() || bench.cases.contains(&part);
    if wants(Part::DocWrites) || wants(Part::ChangesFanout) {
        fill::fill(open, &url, "_replicator", 0).await?;
        let frontend = Frontend::start(&url).await?;
        if wants(Part::DocWrites) {
            doc_writes(&bench, &frontend).await?;
        }
        if wants(Part::ChangesFanout) {
            changes_fanout(&bench, &frontend).await?;
        }
        frontend.stop().await?;
    }
    if wants(Part::DocsPage) {
        let mut sizes = vec![SMALL.min(bench.large.max(1)), bench.large];
        sizes.retain(|size| *size > 0);
        sizes.dedup();
        for size in &sizes {
            fill::fill(open, &url, &database(*size), *size).await?;
        }
        let frontend = Frontend::start(&url).await?;
        for size in sizes {
            docs_page(&bench, &frontend, size).await?;
        }
        frontend.stop().await?;
    }
    Ok(())
}

fn database(size: usize) -> String {
    format!("pages-{size}/_replicator")
}

impl ApiBench {
    fn figure(&self, case: &str, metric: &'static str, value: f64, unit: &'static str) {
        let figure = Figure {
            case: case.to_owned(),
            metric,
            value,
            unit,
        };
        super::report("api", &figure, self.json);
    }

    fn times(&self, case: &str, times: &[Duration]) {
        for (metric, ms) in crate::percentiles(times, &[("ms_p50", 50), ("ms_p99", 99)]) {
            self.figure(case, metric, ms, "ms");
        }
    }

    fn memory(&self, case: &str, frontend: &Frontend) {
        if let Some(memory) = frontend.memory_mb() {
            self.figure(case, "rss_mb", memory.resident, "MB");
            self.figure(case, "rss_own_mb", memory.own, "MB");
            self.figure(case, "rss_mapped_mb", memory.mapped, "MB");
        }
    }
}

/// Clients write documents; each waits until its document and job are durable.
async fn doc_writes(bench: &ApiBench, frontend: &Frontend) -> anyhow::Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    let mut connections = Vec::new();
    for _ in 0..bench.clients {
        connections.push(frontend.connect().await?);
    }
    let begun = Instant::now();
    for mut connection in connections {
        let (next, docs) = (Arc::clone(&next), bench.docs);
        clients.spawn(async move {
            let mut times = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= docs {
                    return Ok::<_, anyhow::Error>(times);
                }
                let begun = Instant::now();
                let path = format!("/_replicator/{}", fill::id(number));
                connection.put(&path, fill::body(number)).await?;
                times.push(begun.elapsed());
            }
        });
    }
    let mut times = Vec::with_capacity(bench.docs);
    while let Some(ended) = clients.join_next().await {
        times.extend(ended??);
    }
    let elapsed = begun.elapsed();
    bench.figure(
        "doc_writes",
        "per_s",
        per_second(times.len() as u64, elapsed),
        "1/s",
    );
    bench.times("doc_writes", &times);
    bench.memory("doc_writes", frontend);
    Ok(())
}

/// One client repeatedly requests the first page, and pages at random positions.
async fn docs_page(bench: &ApiBench, frontend: &Frontend, size: usize) -> anyhow::Result<()> {
    pages(bench, frontend, &format!("docs_page/{size}"), size, false).await?;
    pages(
        bench,
        frontend,
        &format!("docs_page_from/{size}"),
        size,
        true,
    )
    .await
}

async fn pages(
    bench: &ApiBench,
    frontend: &Frontend,
    case: &str,
    size: usize,
    anywhere: bool,
) -> anyhow::Result<()> {
    let mut connection = frontend.connect().await?;
    let path = format!("/_scheduler/docs/{}", database(size).replace('/', "%2F"));
    let mut times = Vec::with_capacity(PAGES);
    let begun = Instant::now();
    for page in 0..PAGES {
        let start = fill::id(page * (size / PAGES).max(1));
        let from = if anywhere {
            format!("&startkey=%22{start}%22")
        } else {
            String::new()
        };
        let page = format!("{path}?limit={PAGE}{from}");
        let asked = Instant::now();
        let answer: Value = connection.get(&page).await?;
        times.push(asked.elapsed());
        if answer["total_rows"] != size {
            bail!("{page} reports {} documents", answer["total_rows"]);
        }
    }
    bench.figure(
        case,
        "per_s",
        per_second(PAGES as u64, begun.elapsed()),
        "1/s",
    );
    bench.times(case, &times);
    bench.memory(case, frontend);
    Ok(())
}

/// Many clients wait for one change.
async fn changes_fanout(bench: &ApiBench, frontend: &Frontend) -> anyhow::Result<()> {
    let mut writer = frontend.connect().await?;
    let (mut times, mut spent) = (Vec::new(), Duration::ZERO);
    for round in 0..ROUNDS {
        let info: Value = writer.get("/_replicator").await?;
        let since = info["update_seq"].as_str().unwrap_or("0").to_owned();
        let heard = Arc::new(Barrier::new(bench.listeners + 1));
        let mut listeners = JoinSet::new();
        for _ in 0..bench.listeners {
            let mut connection: Connection = frontend.connect().await?;
            let (since, heard) = (since.clone(), Arc::clone(&heard));
            listeners.spawn(async move {
                let path = format!("/_replicator/_changes?feed=longpoll&since={since}");
                let mut feed = connection.follow(&path).await?;
                // The feed has started: anything written now ends it.
                feed.read_until("results").await?;
                heard.wait().await;
                feed.read_until("last_seq").await?;
                Ok::<_, anyhow::Error>(Instant::now())
            });
        }
        tokio::time::timeout(Duration::from_mins(1), heard.wait())
            .await
            .context("not all listeners got a response")?;
        tokio::time::sleep(SETTLE).await;
        let begun = Instant::now();
        let number = usize::MAX - round;
        let path = format!("/_replicator/{}", fill::id(number));
        writer.put(&path, fill::body(number)).await?;
        let mut last = begun;
        while let Some(ended) = listeners.join_next().await {
            let at = ended??;
            times.push(at - begun);
            last = last.max(at);
        }
        spent += last - begun;
    }
    let told = ROUNDS * bench.listeners;
    bench.figure(
        "changes_fanout",
        "per_s",
        per_second(told as u64, spent),
        "1/s",
    );
    bench.times("changes_fanout", &times);
    bench.memory("changes_fanout", frontend);
    Ok(())
}
