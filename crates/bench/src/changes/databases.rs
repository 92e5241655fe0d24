//! One rule about very many databases, some of which change.

use std::collections::HashSet;
use std::time::Duration;

use peer::{Options, Peer};
use serde_json::json;
use tokio::time::Instant;

use super::use_of_node::{Measured, until};
use super::{Run, database, put_rule, scattered};
use crate::arrivals::{self, Load};
use crate::client::Client;
use crate::percentiles;

/// Time limit for the first run of all replications.
const SETTLE_MAX: Duration = Duration::from_hours(1);
/// Changes between two looks at the requests, of which the server keeps the last.
const LOOK: usize = 1_000;

pub(super) async fn run(run: &Run<'_>) -> anyhow::Result<()> {
    let count = run.bench.databases;
    let (source, target) = (
        Peer::start(Options::default()).await?,
        Peer::start(Options::default()).await?,
    );
    for name in (0..count).map(database) {
        source.create_database(&name)?;
        source.put(&name, r#"{"_id":"first"}"#)?;
        target.create_database(&name)?;
    }
    let node = run.node(&source, "bench").await?;
    let client = node.client()?;
    let begun = Instant::now();
    put_rule(&client, (&source, &target), &json!("changes")).await?;
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
    let all = count as f64;
    let slept = "davenport_replicator_jobs_sleeps_total";
    until(&client, slept, all, SETTLE_MAX).await?;
    run.report("settle_s", begun.elapsed().as_secs_f64(), "s");
    if let Some(process) = node.process() {
        process.settle().await;
    }

    let measured = Measured::begin(run, &node).await?;
    let (mut changed, mut requests) = (HashSet::new(), Requests::default());
    source.clear_requests();
    let load = Load {
        pause: Duration::from_secs(1) / run.bench.changes,
        duration: Duration::from_secs(run.bench.seconds),
    };
    let target_client = Client::new(&target.url())?;
    let name = |number| database(scattered(number, count));
    let arrived = arrivals::measure(&target_client, &load, name, async |name, number| {
        source.put(name, &format!(r#"{{"_id":"n{number:09}"}}"#))?;
        changed.insert(name.to_owned());
        if number % LOOK == 0 {
            requests.add(&source, &changed);
        }
        Ok(())
    })
    .await?;
    requests.add(&source, &changed);
    let took: Vec<Duration> = arrived.iter().map(|arrival| arrival.took).collect();
    for (metric, ms) in percentiles(&took, &[("arrival_ms_p50", 50), ("arrival_ms_p99", 99)]) {
        run.report(metric, ms, "ms");
    }
    let rate = crate::per_second(took.len() as u64, load.duration);
    run.report("changes_per_s", rate, "/s");
    requests.report(run, took.len());
    measured.report();
    node.stop().await
}

/// The requests that a server got.
#[derive(Default)]
struct Requests {
    changed: u32,
    unchanged: u32,
    /// About no single database.
    others: u32,
}

impl Requests {
    fn add(&mut self, server: &Peer, changed: &HashSet<String>) {
        let requests = server.requests();
        server.clear_requests();
        for request in requests {
            let name = request.path.trim_start_matches('/').split('/').next();
            match name.unwrap_or_default() {
                name if changed.contains(name) => self.changed += 1,
                name if name.starts_with("db") => self.unchanged += 1,
                _ => self.others += 1,
            }
        }
    }

    fn report(&self, run: &Run<'_>, changes: usize) {
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
        let per_change = f64::from(self.changed) / changes.max(1) as f64;
        run.report("source_requests", per_change, "per change");
        run.report("unchanged_requests", f64::from(self.unchanged), "requests");
        run.report("server_requests", f64::from(self.others), "requests");
    }
}
