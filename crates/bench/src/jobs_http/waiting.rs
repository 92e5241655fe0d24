//! What claims that wait, and jobs that are stored, cost a frontend.

use std::time::Duration;

use anyhow::{Context, ensure};
use futures::stream::{FuturesUnordered, StreamExt as _};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::Run;
use super::load::{self, Claimed};

const STORED: &str = "stored";
/// Jobs per request.
const BATCH: usize = 500;
/// How long claims wait, and for how long more than one may be answered.
const WAIT_SEC: u64 = 60;
const OTHERS: Duration = Duration::from_secs(2);
/// Descriptors besides those of waiting claims.
const SPARE: usize = 200;

/// Claims wait for jobs that do not exist; then there is one.
pub(super) async fn waiting(run: &Run<'_>) -> anyhow::Result<()> {
    let count = run.bench.claims;
    let path = run.register("waiting").await?;
    // Whatever the first claim makes stays.
    let claim = |nth: usize, wait_sec| {
        json!({"worker": format!("worker-{nth}"), "count": 1, "wait_sec": wait_sec}).to_string()
    };
    let claims_path = format!("{path}/_claim");
    let mut first = run.client.connect().await?;
    first.post(&claims_path, claim(0, 0)).await?;
    run.rest().await;
    let before = run.private_mb()?;
    let connections = run.connections(count).await?;
    run.rest().await;
    let connected = run.private_mb()?;
    let waits = connections.into_iter().enumerate();
    let mut waits: FuturesUnordered<_> = waits
        .map(|(nth, mut connection)| {
            let (path, body) = (&claims_path, claim(nth, WAIT_SEC));
            async move { connection.post_for::<Claimed>(path, body).await }
        })
        .collect();
    let settled = run.rest();
    tokio::pin!(settled);
    let begun = Instant::now();
    tokio::select! {
        () = &mut settled => {}
        answer = waits.next() => {
            let answer = answer.transpose()?.map(|claimed| claimed.jobs.len());
            anyhow::bail!("a claim was answered after {:?}: {answer:?} jobs", begun.elapsed());
        }
    }
    let claims = u32::try_from(count).map_or(f64::MAX, f64::from);
    let each = |mb: f64| mb * 1e3 / claims;
    run.report("waiting", "connection_kb", each(connected - before), "kB");
    let waiting = run.private_mb()? - before;
    run.report("waiting", "claim_kb", each(waiting), "kB");

    // The first connection was idle for too long.
    let mut adder = run.client.connect().await?;
    let begun = Instant::now();
    adder.post(&path, load::jobs(1)).await?;
    let mut woken = Vec::new();
    while let Ok(Some(answer)) = timeout(OTHERS, waits.next()).await {
        let jobs = answer?.jobs.len();
        if woken.is_empty() {
            let ms = begun.elapsed().as_secs_f64() * 1e3;
            run.report("waiting", "start_ms", ms, "ms");
        }
        woken.push(jobs);
    }
    ensure!(
        woken == [1],
        "one job was added, and claims were answered with {woken:?} jobs"
    );
    Ok(())
}

/// Adds jobs that are due far in the future.
pub(super) async fn fill(run: &Run<'_>) -> anyhow::Result<()> {
    let path = run.register(STORED).await?;
    let mut connection = run.client.connect().await?;
    let mut left = run.bench.stored;
    let job = json!({"data": {"text": "x".repeat(load::TEXT)}, "delay_sec": 86_400});
    let begun = Instant::now();
    while left > 0 {
        let size = left.min(BATCH);
        let body = json!({"jobs": vec![&job; size]}).to_string();
        connection.post(&path, body).await?;
        left -= size;
    }
    let rate = crate::per_second(run.bench.stored as u64, begun.elapsed());
    run.report(STORED, "added_per_s", rate, "1/s");
    // LMDB keeps the memory of the largest batch of changes that it has written.
    run.settle().await;
    run.report(STORED, "private_mb_filled", run.private_mb()?, "MB");
    Ok(())
}

/// A frontend that has added none of them lists all jobs.
pub(super) async fn read(run: &Run<'_>) -> anyhow::Result<()> {
    let types = run.client.get("_jobs?q=stored").await?;
    let name = types["types"][0]["type"].as_str();
    let path = format!("_jobs/{}", name.context("the type of the jobs is gone")?);
    let (mut after, mut listed) = (String::new(), 0);
    let begun = Instant::now();
    loop {
        let page = run.client.get(&format!("{path}?limit=1000{after}")).await?;
        listed += page["jobs"].as_array().map_or(0, Vec::len);
        let Some(next) = page["next"].as_str() else {
            break;
        };
        after = format!("&after={next}");
    }
    ensure!(listed == run.bench.stored, "{listed} jobs were listed");
    let rate = crate::per_second(listed as u64, begun.elapsed());
    run.report(STORED, "listed_per_s", rate, "1/s");
    run.settle().await;
    run.report(STORED, "private_mb", run.private_mb()?, "MB");
    Ok(())
}

/// Raises the limit of this process, and so of frontends that it starts, if it may.
pub(super) fn allow_descriptors(claims: usize) -> anyhow::Result<()> {
    let wanted = (claims + SPARE) as u64;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    ensure!(
        limit.maximum.is_none_or(|maximum| maximum >= wanted),
        "{wanted} descriptors are needed; raise the limit with ulimit -Hn {wanted}, or use fewer --claims"
    );
    let raised = Rlimit {
        current: Some(wanted),
        ..limit
    };
    Ok(setrlimit(Resource::Nofile, raised)?)
}
