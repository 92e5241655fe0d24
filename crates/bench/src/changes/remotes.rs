//! Remotes that copy the same databases to a server each, on two nodes. One of the servers is down for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use futures::future::try_join_all;
use http::Method;
use peer::{Options, Peer};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{Run, database, scattered};
use crate::arrivals::{self, Load};
use crate::client::Client;
use crate::metrics::Metrics;
use crate::percentiles;

/// From the first change of a database to its copies.
const DELAY_SEC: u64 = 1;
const THREADS: u64 = 8;
const SETTLE_MAX: Duration = Duration::from_mins(10);
const LOOK_PAUSE: Duration = Duration::from_secs(1);

pub(super) async fn run(run: &Run<'_>) -> anyhow::Result<()> {
    let (count, remotes) = (run.bench.storm_databases, run.bench.remotes);
    let source = Peer::start(Options::default()).await?;
    let targets = try_join_all((0..remotes).map(|_| Peer::start(Options::default()))).await?;
    for name in (0..count).map(database) {
        source.create_database(&name)?;
        source.put(&name, r#"{"_id":"first"}"#)?;
        for target in &targets {
            target.create_database(&name)?;
        }
    }
    let nodes = [
        run.node(&source, "bench").await?,
        run.node(&source, "other").await?,
    ];
    let clients = [nodes[0].client()?, nodes[1].client()?];
    put_remotes(&clients[0], &source, &targets).await?;
    let began = Instant::now();
    while ended(&clients).await?.values().sum::<f64>() < in_f64(count * remotes) {
        ensure!(began.elapsed() < SETTLE_MAX, "the first runs did not end");
        sleep(LOOK_PAUSE).await;
    }
    // The last remote is observed, and the first is down in the second phase.
    let last = Client::new(&targets[remotes - 1].url())?;
    let load = Load {
        pause: Duration::from_secs(1) * u32::try_from(remotes)? / run.bench.changes,
        duration: Duration::from_secs(run.bench.seconds),
    };
    for (nth, case) in ["remotes/up", "remotes/down", "remotes/up_again"]
        .into_iter()
        .enumerate()
    {
        let figure = |metric, value, unit| run.report_of(case, metric, value, unit);
        let before = ended(&clients).await?;
        let write = async |name: &str, number: usize| {
            source.put(name, &format!(r#"{{"_id":"n{nth}{number:09}"}}"#))?;
            Ok(())
        };
        let name = |number| database(scattered(number, count));
        let measuring = arrivals::measure(&last, &load, name, write);
        let arrived = if nth == 1 {
            tokio::join!(measuring, targets[0].restart(load.duration)).0?
        } else {
            measuring.await?
        };
        let after = ended(&clients).await?;
        let grown = |name: &str| after.get(name).unwrap_or(&0.0) - before.get(name).unwrap_or(&0.0);
        let seconds = load.duration.as_secs_f64();
        figure("first_runs_per_s", grown("remote0") / seconds, "/s");
        let others: f64 = (1..remotes).map(|n| grown(&format!("remote{n}"))).sum();
        let each = others / in_f64(remotes - 1) / seconds;
        figure("others_runs_per_s", each, "/s each");
        let took: Vec<Duration> = arrived.iter().map(|arrival| arrival.took).collect();
        for (metric, ms) in percentiles(&took, &[("arrival_ms_p50", 50), ("arrival_ms_p99", 99)]) {
            figure(metric, ms, "ms");
        }
    }
    for node in nodes {
        node.stop().await?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
fn in_f64(number: usize) -> f64 {
    number as f64
}

/// The runs that have ended on nodes, by remote, with those that failed.
async fn ended(nodes: &[Client]) -> anyhow::Result<BTreeMap<String, f64>> {
    let mut all = BTreeMap::new();
    for node in nodes {
        let metrics = Metrics::of(node).await?;
        for (remote, runs) in metrics.by("davenport_remote_runs_total", "remote") {
            // After the name of its database.
            let id = remote.rsplit('/').next().unwrap_or(remote);
            *all.entry(id.to_owned()).or_default() += runs;
        }
    }
    Ok(all)
}

async fn put_remotes(node: &Client, source: &Peer, targets: &[Peer]) -> anyhow::Result<()> {
    let rules = format!("bench-{}%2F_rules", &crate::random_hex()[..8]);
    node.create(&rules).await?;
    for (nth, target) in targets.iter().enumerate() {
        let remote = json!({
            "type": "remote", "databases": ["^db[0-9]+$"], "threads": THREADS,
            "replication_delay_sec": DELAY_SEC, "random_delay_sec": 0,
            "source": format!("{}/${{name}}", source.url()), "url": format!("{}/${{name}}", target.url()),
        });
        let path = format!("{rules}/remote{nth}");
        node.expect(Method::PUT, &path, &remote.to_string()).await?;
    }
    Ok(())
}
