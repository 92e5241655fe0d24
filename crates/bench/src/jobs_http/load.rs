//! Producers and workers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::Run;
use crate::client::Connection;

/// The data of a job, as in the benchmark of other queues.
pub(super) const TEXT: usize = 100;
/// Long enough for a claim to wait in the store.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Deserialize)]
pub(super) struct Claimed {
    pub(super) jobs: Vec<Held>,
}

#[derive(Deserialize)]
pub(super) struct Held {
    id: String,
    lock: String,
}

#[derive(Serialize)]
pub(super) struct Ended<'a> {
    id: &'a str,
    lock: &'a str,
    outcome: &'static str,
}

impl Held {
    pub(super) fn ends(held: &[Self]) -> Vec<Ended<'_>> {
        let ends = held.iter().map(|Self { id, lock }| Ended {
            id,
            lock,
            outcome: "done",
        });
        ends.collect()
    }
}

/// The body of a request that adds this many jobs.
pub(super) fn jobs(count: usize) -> String {
    let job = json!({"data": {"text": "x".repeat(TEXT)}});
    match count {
        1 => job.to_string(),
        count => json!({"jobs": vec![job; count]}).to_string(),
    }
}

/// Producers add jobs, each acknowledged when it is durable, while workers finish each and claim the next.
pub(super) async fn cycle(run: &Run<'_>, case: &'static str, size: usize) -> anyhow::Result<()> {
    let path = run.register(case).await?;
    let bench = run.bench;
    let adders = run.connections(bench.producers).await?;
    let takers = run.connections(bench.workers).await?;
    let left = &AtomicUsize::new(bench.jobs);
    let unfinished = &AtomicUsize::new(bench.jobs);
    let begun = Instant::now();
    let adding = adders
        .into_iter()
        .map(|connection| produce(connection, &path, size, left));
    let taking = takers.into_iter().enumerate().map(|(nth, connection)| {
        work(connection, &path, format!("worker-{nth}"), size, unfinished)
    });
    let (adding, taking) = (try_join_all(adding), try_join_all(taking));
    futures::future::try_join(adding, taking).await?;
    let rate = crate::per_second(bench.jobs as u64, begun.elapsed());
    run.report(case, "full_cycle_per_s", rate, "1/s");
    Ok(())
}

async fn produce(
    mut connection: Connection,
    path: &str,
    size: usize,
    left: &AtomicUsize,
) -> anyhow::Result<()> {
    let take = |left: usize| left.saturating_sub(size);
    loop {
        let before = left.update(Ordering::Relaxed, Ordering::Relaxed, take);
        if before == 0 {
            return Ok(());
        }
        connection.post(path, jobs(size.min(before))).await?;
    }
}

async fn work(
    mut connection: Connection,
    path: &str,
    worker: String,
    size: usize,
    unfinished: &AtomicUsize,
) -> anyhow::Result<()> {
    let path = format!("{path}/_finish");
    let mut held: Vec<Held> = Vec::new();
    while unfinished.load(Ordering::Relaxed) > 0 {
        // With a short wait, so that it sees the end.
        let body = json!({
            "jobs": Held::ends(&held), "claim": size, "worker": worker, "wait_sec": 0.05,
        });
        let ended = held.len();
        held = (connection
            .post_for::<Claimed>(&path, body.to_string())
            .await?)
            .jobs;
        unfinished.fetch_sub(ended, Ordering::Relaxed);
    }
    Ok(())
}

/// One worker waits for each job before the next is added.
pub(super) async fn latency(run: &Run<'_>) -> anyhow::Result<()> {
    let path = run.register("latency").await?;
    let mut both = run.connections(2).await?;
    let (mut taker, mut adder) = both.pop().zip(both.pop()).context("no connections")?;
    let finish = format!("{path}/_finish");
    let mut held: Vec<Held> = Vec::new();
    let mut times = Vec::new();
    for _ in 0..run.bench.rounds {
        let body = json!({
            "jobs": Held::ends(&held), "claim": 1, "worker": "worker", "wait_sec": 60,
        });
        let taking = async {
            let claimed: Claimed = taker.post_for(&finish, body.to_string()).await?;
            Ok::<_, anyhow::Error>((claimed, Instant::now()))
        };
        let adding = async {
            sleep(PAUSE + rand::random_range(Duration::ZERO..PAUSE)).await;
            let begun = Instant::now();
            adder.post(&path, jobs(1)).await?;
            Ok(begun)
        };
        let ((claimed, started), begun) = futures::future::try_join(taking, adding).await?;
        held = claimed.jobs;
        times.push(started.saturating_duration_since(begun));
    }
    run.times("latency", &times);
    Ok(())
}
