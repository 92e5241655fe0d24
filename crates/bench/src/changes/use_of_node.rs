//! What a node uses, and what it has done.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::{Instant, sleep};

use super::Run;
use crate::client::Client;
use crate::metrics::Metrics;
use crate::process::Processes;
use crate::service::Node;

const LOOK_PAUSE: Duration = Duration::from_millis(200);

/// A node from a time on.
pub(super) struct Measured<'a> {
    run: &'a Run<'a>,
    client: Client,
    process: Option<Processes>,
    began: Instant,
    cpu_s: Option<f64>,
    before: Metrics,
}

impl<'a> Measured<'a> {
    pub(super) async fn begin(run: &'a Run<'a>, node: &Node) -> anyhow::Result<Self> {
        let (client, process) = (node.client()?, node.process());
        Ok(Self {
            before: Metrics::of(&client).await?,
            cpu_s: process.and_then(Processes::cpu_s),
            run,
            client,
            process,
            began: Instant::now(),
        })
    }

    pub(super) async fn now(&self) -> anyhow::Result<Metrics> {
        Metrics::of(&self.client).await
    }

    /// How much a counter has grown.
    pub(super) fn grown(&self, now: &Metrics, name: &str) -> f64 {
        now.sum(name) - self.before.sum(name)
    }

    /// The upper bound of the part of a histogram's samples, in its unit.
    pub(super) fn quantile(&self, now: &Metrics, name: &str, part: f64) -> f64 {
        let name = format!("{name}_bucket");
        let before = self.before.by(&name, "le");
        let grown = |(le, count): (&str, f64)| {
            let count = count - before.get(le).copied().unwrap_or_default();
            (le.parse().unwrap_or(f64::INFINITY), count)
        };
        let mut buckets: Vec<(f64, f64)> = now.by(&name, "le").into_iter().map(grown).collect();
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        let all = buckets.last().map_or(0.0, |(_, count)| *count);
        let found = buckets.iter().find(|(_, count)| *count >= all * part);
        found.map_or(0.0, |(bound, _)| *bound)
    }

    /// CPU seconds since the beginning.
    pub(super) fn cpu_s(&self) -> Option<f64> {
        Some(self.process?.cpu_s()? - self.cpu_s?)
    }

    /// Reports memory and processor time.
    pub(super) fn report(&self) {
        if let Some(cpu_s) = self.cpu_s() {
            let cores = cpu_s / self.began.elapsed().as_secs_f64();
            self.run.report("cpu_cores", cores, "cores");
        }
        if let Some(process) = self.process {
            let memory = [
                ("rss_mb", process.rss_mb()),
                ("private_mb", process.private_mb()),
            ];
            for (metric, mb) in memory {
                mb.inspect(|mb| self.run.report(metric, *mb, "MB"));
            }
        }
    }

    /// The transactions per second that wrote, at most: those with a name of which any wrote.
    pub(super) fn writes_per_s(&self, now: &Metrics) -> f64 {
        let (bytes, calls) = (
            "davenport_store_bytes_total",
            "davenport_store_transactions_total",
        );
        let (bytes_before, calls_before) = (
            self.before.by(bytes, "transaction"),
            self.before.by(calls, "transaction"),
        );
        let grown = |now: &f64, before: Option<&f64>| now - before.copied().unwrap_or_default();
        let calls_now = now.by(calls, "transaction");
        let mut writes = 0.0;
        for (name, bytes) in now.by(bytes, "transaction") {
            if grown(&bytes, bytes_before.get(name)) > 0.0
                && let Some(calls) = calls_now.get(name)
            {
                writes += grown(calls, calls_before.get(name));
            }
        }
        writes / self.began.elapsed().as_secs_f64()
    }
}

/// Waits until a metric has reached a value.
pub(super) async fn until(
    node: &Client,
    metric: &str,
    value: f64,
    limit: Duration,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let now = Metrics::of(node).await?.sum(metric);
        if now >= value {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < limit,
            "{metric} is {now} instead of {value} after {} s",
            limit.as_secs()
        );
        sleep(LOOK_PAUSE).await;
    }
}
