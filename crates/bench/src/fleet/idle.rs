//! Continuous jobs that have caught up, each with its own databases, on one node.

use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::Run;
use crate::arrivals::{self, Load};
use crate::client::Client;
use crate::metrics::Metrics;
use crate::percentiles;
use crate::service::{Node, Peer, submit};

/// The number of active jobs.
const ACTIVE: u32 = 100;
/// How often each of them has something to copy.
const WRITE_PAUSE: Duration = Duration::from_secs(1);
/// Time limit per job for settling: many jobs have to start.
const SETTLE_MAX: Duration = Duration::from_mins(20);
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Time for background work of the node after all jobs have settled.
const CALM: Duration = Duration::from_secs(20);

pub(super) async fn run(run: &Run<'_>, jobs: u32) -> anyhow::Result<()> {
    let (source, target) = (Peer::start().await?, Peer::start().await?);
    let names: Vec<String> = (0..jobs).map(database).collect();
    source.create(&names, &[json!({"_id": "first"})]).await?;
    target.create(&names, &[]).await?;
    let node = Node::start(&run.place, "bench", "api_frontend,replication").await?;
    let service = node.client()?;
    service.create(&run.replicator).await?;
    let documents: Vec<Value> = names
        .iter()
        .map(|name| {
            json!({
                "_id": name, "continuous": true,
                "source": source.client.url(name), "target": target.client.url(name),
            })
        })
        .collect();
    let begun = Instant::now();
    submit(&service, &run.replicator, &documents).await?;
    until_idle(&service, jobs).await?;
    run.report("davenport", "settle_s", begun.elapsed().as_secs_f64(), "s");
    sleep(CALM).await;
    watch(run, &node).await;
    active(run, &source.client, &target.client, jobs).await?;
    service.delete(&run.replicator).await?;
    node.stop().await?;
    source.stop().await?;
    target.stop().await
}

fn database(job: u32) -> String {
    format!("db{job:06}")
}

/// Waits until all jobs have caught up and wait for changes.
async fn until_idle(service: &Client, jobs: u32) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let waiting = Metrics::of(service)
            .await?
            .sum("davenport_replicator_jobs_idle");
        if waiting >= f64::from(jobs) {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < SETTLE_MAX,
            "only {waiting} jobs wait for changes"
        );
        sleep(LOOK_PAUSE).await;
    }
}

/// The cost of idle jobs.
async fn watch(run: &Run<'_>, node: &Node) {
    let Some(process) = node.process() else {
        return;
    };
    let (before, began) = (process.cpu_s(), Instant::now());
    sleep(Duration::from_secs(run.bench.seconds)).await;
    if let Some((before, after)) = before.zip(process.cpu_s()) {
        let percent = (after - before) / began.elapsed().as_secs_f64() * 100.0;
        run.report("davenport", "cpu_percent", percent, "%");
    }
    if let Some(rss_mb) = process.rss_mb() {
        run.report("davenport", "rss_mb", rss_mb, "MB");
    }
}

/// The time until changes arrive, while some of the jobs are active.
async fn active(run: &Run<'_>, source: &Client, target: &Client, jobs: u32) -> anyhow::Result<()> {
    let active = jobs.min(ACTIVE);
    // Spread over all jobs.
    let names: Vec<String> = (0..active).map(|n| database(n * (jobs / active))).collect();
    let load = Load {
        pause: WRITE_PAUSE / active,
        duration: Duration::from_secs(run.bench.seconds),
    };
    let name = |number: usize| names[number % names.len()].clone();
    let arrivals = arrivals::measure(target, &load, name, async |name, number| {
        let document = json!({"_id": format!("n{number:09}")});
        source.write(name, &[document]).await
    })
    .await?;
    let all: Vec<Duration> = arrivals.iter().map(|arrival| arrival.took).collect();
    // Among those that are still waiting.
    let first = arrivals
        .iter()
        .filter(|arrival| arrival.number < names.len());
    let first: Vec<Duration> = first.map(|arrival| arrival.took).collect();
    let all = percentiles(&all, &[("arrival_ms_p50", 50), ("arrival_ms_p99", 99)]);
    let metrics = [("first_arrival_ms_p50", 50), ("first_arrival_ms_p99", 99)];
    for (metric, value) in all.chain(percentiles(&first, &metrics)) {
        run.report("davenport", metric, value, "ms");
    }
    Ok(())
}
