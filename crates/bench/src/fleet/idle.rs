//! Continuous jobs that have caught up, each with its own databases, on one node.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use couch::{
    EgressOptions, Endpoint, FeedKind, Idle, Network, NetworkOptions, RequestOptions, Seq,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::Run;
use super::service::{Node, Peer, submit};
use crate::client::Client;
use crate::percentile;

/// The number of active jobs.
const ACTIVE: u32 = 100;
/// How often each of them has something to copy.
const WRITE_PAUSE: Duration = Duration::from_secs(1);
/// Time limit per job for settling: many jobs have to start.
const SETTLE_MAX: Duration = Duration::from_mins(20);
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Time limit for the last change.
const ARRIVAL_MAX: Duration = Duration::from_secs(30);
/// Time for background work of the node after all jobs have settled.
const CALM: Duration = Duration::from_secs(20);

pub(super) async fn run(run: &Run<'_>, jobs: u32) -> anyhow::Result<()> {
    let (source, target) = (Peer::start().await?, Peer::start().await?);
    let names: Vec<String> = (0..jobs).map(database).collect();
    source.create(&names, &[json!({"_id": "first"})]).await?;
    target.create(&names, &[]).await?;
    let node = Node::start(run, "bench", "api_frontend,replication").await?;
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
        let metrics = service.get("_metrics").await?;
        let metrics = metrics.as_str().context("the service has no metrics")?;
        let gauge = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse::<f64>().ok())
        };
        let waiting = gauge("davenport_replicator_jobs_idle ").unwrap_or(0.0);
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
    let (arrivals, arrived) = mpsc::channel(1_000);
    let following = follow(target, arrivals).await?;
    let active = jobs.min(ACTIVE);
    // Spread over all jobs.
    let names = (0..active).map(|n| database(n * (jobs / active))).collect();
    let mut clock = Clock {
        names,
        arrived,
        written: HashMap::new(),
        first_ms: Vec::new(),
        later_ms: Vec::new(),
    };
    let measured = tokio::select! {
        ended = following => ended.and_then(|()| anyhow::bail!("the target's feed ended")),
        measured = clock.measure(source, Duration::from_secs(run.bench.seconds)) => measured,
    };
    measured?;
    let Clock {
        mut first_ms,
        later_ms,
        ..
    } = clock;
    let mut all_ms = [first_ms.clone(), later_ms].concat();
    first_ms.sort_by(f64::total_cmp);
    all_ms.sort_by(f64::total_cmp);
    for (metric, figures, percent) in [
        ("arrival_ms_p50", &all_ms, 50),
        ("arrival_ms_p99", &all_ms, 99),
        // Among those that are still waiting.
        ("first_arrival_ms_p50", &first_ms, 50),
        ("first_arrival_ms_p99", &first_ms, 99),
    ] {
        if let Some(value) = percentile(figures, percent) {
            run.report("davenport", metric, value, "ms");
        }
    }
    Ok(())
}

/// Follows the updates of a server.
async fn follow(
    server: &Client,
    arrivals: mpsc::Sender<(String, Instant)>,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>>> {
    let options = NetworkOptions {
        egress: EgressOptions::open(),
        ..NetworkOptions::default()
    };
    let network = Network::new(options, crate::random())?;
    let endpoint = Endpoint::from_url(&server.url(""))?;
    let server = network.server(endpoint, RequestOptions::default()).await?;
    let now = Seq::from_value(&"now".into());
    let mut updates = server
        .db_updates(FeedKind::Continuous, &now, Idle::HeartbeatMs(10_000))
        .await?;
    Ok(async move {
        while let Some(update) = updates.next().await? {
            if update.kind == "updated" {
                arrivals.send((update.db_name, Instant::now())).await?;
            }
        }
        Ok(())
    })
}

/// Writes documents, and records when they arrive.
struct Clock {
    names: Vec<String>,
    arrived: mpsc::Receiver<(String, Instant)>,
    /// Changes that have not arrived yet.
    written: HashMap<String, (Instant, u32)>,
    first_ms: Vec<f64>,
    later_ms: Vec<f64>,
}

impl Clock {
    async fn measure(&mut self, source: &Client, duration: Duration) -> anyhow::Result<()> {
        let mut ticks = interval(WRITE_PAUSE / u32::try_from(self.names.len())?);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (until, mut number) = (Instant::now() + duration, 0_usize);
        while Instant::now() < until {
            tokio::select! {
                Some(arrived) = self.arrived.recv() => self.arrived(arrived),
                _ = ticks.tick() => {
                    let name = self.names[number % self.names.len()].clone();
                    let round = u32::try_from(number / self.names.len())?;
                    number += 1;
                    // A database with an outstanding change gets no other.
                    if !self.written.contains_key(&name) {
                        let document = json!({"_id": format!("n{number:09}")});
                        self.written.insert(name.clone(), (Instant::now(), round));
                        source.write(&name, &[document]).await?;
                    }
                }
            }
        }
        let rest = async {
            while !self.written.is_empty() {
                let arrived = self.arrived.recv().await.context("the feed ended")?;
                self.arrived(arrived);
            }
            anyhow::Ok(())
        };
        let rest = timeout(ARRIVAL_MAX, rest).await;
        rest.context("some changes did not arrive").flatten()
    }

    fn arrived(&mut self, (name, at): (String, Instant)) {
        if let Some((written, round)) = self.written.remove(&name) {
            let figures = if round == 0 {
                &mut self.first_ms
            } else {
                &mut self.later_ms
            };
            figures.push(at.duration_since(written).as_secs_f64() * 1e3);
        }
    }
}
