//! Remotes that copy the same databases to a server each, on two nodes. One of the servers is down for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use futures::future::try_join_all;
use http::Method;
use peer::{Options, Peer};
use serde_json::json;
use tokio::time::{Instant, interval, sleep};

use super::{Run, database, scattered};
use crate::arrivals::{self, Load};
use crate::client::Client;
use crate::metrics::Metrics;
use crate::percentiles;

/// From the first change of a database to its copies, and up to as much again, drawn for each.
const DELAY_SEC: u64 = 1;
const THREADS: u64 = 8;
/// A database that changes all the time, for how long, and the delay of its remote.
const HOT: Duration = Duration::from_mins(1);
const HOT_PAUSE: Duration = Duration::from_millis(10);
const HOT_DELAY_SEC: u64 = 15;
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
    for (nth, target) in targets.iter().enumerate() {
        let name = format!("remote{nth}");
        let databases = ("^db[0-9]+$", DELAY_SEC);
        put_remote(&clients[0], &name, databases, (&source, target)).await?;
    }
    let began = Instant::now();
    while Ended::on(&clients).await?.all() < in_f64(count * remotes) {
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
        let before = Ended::on(&clients).await?;
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
        let ended = Ended::on(&clients).await?.since(&before);
        let seconds = load.duration.as_secs_f64();
        figure("first_runs_per_s", ended.of("remote0") / seconds, "/s");
        let others = ended.all() - ended.of("remote0");
        let each = others / in_f64(remotes - 1) / seconds;
        figure("others_runs_per_s", each, "/s each");
        figure("busiest_node", ended.busiest(), "x equal parts");
        let took: Vec<Duration> = arrived.iter().map(|arrival| arrival.took).collect();
        for (metric, ms) in percentiles(&took, &[("arrival_ms_p50", 50), ("arrival_ms_p99", 99)]) {
            figure(metric, ms, "ms");
        }
    }
    let runs = hot(&source, &targets[0], &clients).await?;
    run.report_of("remotes/hot", "runs", runs, "");
    for node in nodes {
        node.stop().await?;
    }
    Ok(())
}

/// The runs of one database that changes all the time.
async fn hot(source: &Peer, target: &Peer, nodes: &[Client; 2]) -> anyhow::Result<f64> {
    for server in [source, target] {
        server.create_database("hot")?;
    }
    put_remote(&nodes[0], "hot", ("^hot$", HOT_DELAY_SEC), (source, target)).await?;
    let (began, mut next) = (Instant::now(), interval(HOT_PAUSE));
    let mut count = 0;
    while began.elapsed() < HOT {
        next.tick().await;
        source.put("hot", &format!(r#"{{"_id":"n{count:09}"}}"#))?;
        count += 1;
    }
    let last = format!("hot/n{:09}", count - 1);
    let target = Client::new(&target.url())?;
    while target.get(&last).await.is_err() {
        ensure!(
            began.elapsed() < SETTLE_MAX,
            "the last change was not copied"
        );
        sleep(LOOK_PAUSE).await;
    }
    Ok(Ended::on(nodes).await?.of("hot"))
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
fn in_f64(number: usize) -> f64 {
    number as f64
}

/// The runs that have ended, with those that failed: by remote, on each node.
struct Ended(Vec<BTreeMap<String, f64>>);

impl Ended {
    async fn on(nodes: &[Client]) -> anyhow::Result<Self> {
        let mut all = Vec::new();
        for node in nodes {
            let metrics = Metrics::of(node).await?;
            let runs = metrics.by("davenport_remote_runs_total", "remote");
            // The id comes after the name of its database.
            let id = |remote: &str| remote.rsplit('/').next().unwrap_or(remote).to_owned();
            all.push(
                runs.into_iter()
                    .map(|(remote, runs)| (id(remote), runs))
                    .collect(),
            );
        }
        Ok(Self(all))
    }

    fn since(mut self, before: &Self) -> Self {
        for (node, before) in self.0.iter_mut().zip(&before.0) {
            for (remote, runs) in before {
                *node.entry(remote.clone()).or_default() -= runs;
            }
        }
        self
    }

    fn of(&self, remote: &str) -> f64 {
        self.0.iter().filter_map(|node| node.get(remote)).sum()
    }

    fn all(&self) -> f64 {
        self.0.iter().flat_map(BTreeMap::values).sum()
    }

    /// The runs of the node with the most, relative to those of all nodes in equal parts.
    fn busiest(&self) -> f64 {
        let each = self.0.iter().map(|node| node.values().sum());
        each.fold(0.0, f64::max) * in_f64(self.0.len()) / self.all()
    }
}

async fn put_remote(
    node: &Client,
    name: &str,
    (databases, delay_sec): (&str, u64),
    (source, target): (&Peer, &Peer),
) -> anyhow::Result<()> {
    let rules = format!("bench-{}%2F_rules", &crate::random_hex()[..8]);
    node.create(&rules).await?;
    let remote = json!({
        "type": "remote", "databases": [databases], "threads": THREADS,
        "replication_delay_sec": delay_sec,
        "source": format!("{}/${{name}}", source.url()), "url": format!("{}/${{name}}", target.url()),
    });
    let path = format!("{rules}/{name}");
    node.expect(Method::PUT, &path, &remote.to_string()).await?;
    Ok(())
}
