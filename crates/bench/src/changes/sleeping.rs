//! Very many replications that sleep in the store.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use jobs::{Accepted, Holder};
use peer::{Options, Peer};
use scheduler::Replications;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::use_of_node::{Measured, until};
use super::{Run, database, scattered};
use crate::api::write_documents;
use crate::arrivals::{self, Load, connect};
use crate::client::Client;
use crate::percentiles;
use crate::service::Node;

/// Jobs per transaction, and databases per request for their sequences.
const BATCH: usize = 100;
const TASKS: usize = 4;
const FOLLOWED: &str = "davenport_source_followed";
const START_MAX: Duration = Duration::from_mins(10);
/// The most databases that change.
const WAKES_MAX: usize = 10_000;

pub(super) async fn run(run: &Run<'_>) -> anyhow::Result<()> {
    let count = run.bench.sleepers;
    let (source, target) = (
        Peer::start(Options::default()).await?,
        Peer::start(Options::default()).await?,
    );
    let waking = count.min(WAKES_MAX);
    let name = |number: usize| database(number % waking * (count / waking));
    for name in (0..count).map(database) {
        source.create_database(&name)?;
    }
    for name in (0..waking).map(name) {
        target.create_database(&name)?;
    }
    // A node writes now and then whatever its jobs do.
    let node = followed(run, &source).await?;
    let empty = idle_writes(run, &node).await?;
    run.report("empty_writes_per_s", empty, "/s");
    node.stop().await?;

    let began = Instant::now();
    fill(run, &source, &target).await?;
    run.report("fill_s", began.elapsed().as_secs_f64(), "s");

    // The first start may have to do what later ones need not.
    followed(run, &source).await?.stop().await?;
    let began = Instant::now();
    let node = run.node(&source, "bench").await?;
    run.report("restart_s", began.elapsed().as_secs_f64(), "s");
    until(&node.client()?, FOLLOWED, 1.0, START_MAX).await?;
    run.report("followed_s", began.elapsed().as_secs_f64(), "s");
    let measured = Measured::begin(run, &node).await?;
    let writes = idle_writes(run, &node).await?;
    run.report("writes_per_s", writes, "/s");
    run.report("added_writes_per_s", (writes - empty).max(0.0), "/s");
    let now = measured.now().await?;
    let woken = measured.grown(&now, "davenport_source_woken_total");
    run.report("woken", woken, "replications");
    measured.report();

    let load = Load {
        pause: Duration::from_secs(1) / run.bench.changes,
        duration: Duration::from_secs(run.bench.seconds),
    };
    let measured = Measured::begin(run, &node).await?;
    let target_client = Client::new(&target.url())?;
    let scattered = |number| name(scattered(number, waking));
    let arrived = arrivals::measure(&target_client, &load, scattered, async |name, number| {
        source.put(name, &format!(r#"{{"_id":"n{number:09}"}}"#))?;
        Ok(())
    })
    .await?;
    let took: Vec<Duration> = arrived.iter().map(|arrival| arrival.took).collect();
    for (metric, ms) in percentiles(&took, &[("arrival_ms_p50", 50), ("arrival_ms_p99", 99)]) {
        run.report(metric, ms, "ms");
    }
    let now = measured.now().await?;
    for (metric, part) in [("wake_ms_p50", 0.5), ("wake_ms_p99", 0.99)] {
        let bound = measured.quantile(&now, "davenport_replicator_wake_seconds", part);
        run.report(metric, bound * 1e3, "ms");
    }
    measured.report();
    node.stop().await
}

/// Starts a node, and waits until it follows the server.
async fn followed(run: &Run<'_>, source: &Peer) -> anyhow::Result<Node> {
    let node = run.node(source, "bench").await?;
    until(&node.client()?, FOLLOWED, 1.0, START_MAX).await?;
    Ok(node)
}

/// What a node writes while nothing changes.
async fn idle_writes(run: &Run<'_>, node: &Node) -> anyhow::Result<f64> {
    if let Some(process) = node.process() {
        process.settle().await;
    }
    let measured = Measured::begin(run, node).await?;
    sleep(Duration::from_secs(run.bench.seconds)).await;
    Ok(measured.writes_per_s(&measured.now().await?))
}

/// Writes documents of continuous replications into the store, and lets their jobs fall asleep.
async fn fill(run: &Run<'_>, source: &Peer, target: &Peer) -> anyhow::Result<()> {
    let service = (run.open)(run.store.clone(), Some(run.keys.clone())).await?;
    let documents = (0..run.bench.sleepers).map(database).map(|name| {
        let document = json!({
            "source": source.database_url(&name), "target": target.database_url(&name), "continuous": true,
        });
        (name, document.to_string())
    });
    let replicator = format!("bench-{}/_replicator", &crate::random_hex()[..8]);
    write_documents(&service, &replicator, documents).await?;
    let mut tasks = JoinSet::new();
    let (service, url) = (Arc::new(service), Arc::new(source.url()));
    for _ in 0..TASKS {
        let (service, url) = (Arc::clone(&service), Arc::clone(&url));
        tasks.spawn(async move { lull_all(&service, &url).await });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("cannot fill the store")??;
    }
    Ok(())
}

async fn lull_all(service: &Replications, url: &str) -> anyhow::Result<()> {
    let (jobs, holder) = (service.jobs(), Holder::new("bench")?);
    let server = connect(url).await?;
    loop {
        let claimed = jobs.accept(service.job_type(), &holder, BATCH).await?.jobs;
        if claimed.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = claimed.iter().map(document).collect();
        let listed = server.dbs_info(&names).await?;
        let op = jobs.op();
        let (claimed, listed) = (&claimed, &listed);
        jobs.store()
            .transact("lull", |tx| async move {
                for (accepted, listed) in claimed.iter().zip(listed) {
                    if let Some(seq) = &listed.update_seq {
                        service.lull_in(&tx, &op, accepted, seq).await?;
                    }
                }
                Ok::<_, scheduler::ServiceError>(())
            })
            .await?;
    }
}

/// The id of a job's document, which is named like its databases.
fn document(accepted: &Accepted) -> String {
    let id = String::from_utf8_lossy(accepted.job.id.as_bytes());
    id.rsplit('|').next().unwrap_or_default().to_owned()
}
