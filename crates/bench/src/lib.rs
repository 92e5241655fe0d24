//! `davenport bench`: performance on this machine. Compare only figures of one run: on their own they say more about
//! the machine.
//!
//! It must not know how a node is configured: the function that opens a service's store is passed in, and measured
//! nodes are separate processes.
//!
//! Start reading here, then `store.rs` and `queue.rs` (in this process), then `fleet.rs` (whole nodes).

mod api;
mod arrivals;
mod changes;
mod client;
mod fleet;
mod jobs_http;
mod metrics;
mod process;
mod queue;
mod replicate;
mod service;
mod store;
mod webhooks;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command as Process;
use std::time::Duration;

use anyhow::Context;
use clap::Subcommand;
use futures::future::BoxFuture;
use scheduler::Replications;
use serde_json::json;
use tempfile::TempDir;

use store::Figure;

/// Opens the service on a store, with the default settings of a node; `keys` is its key file.
pub type Open =
    fn(url: String, keys: Option<PathBuf>) -> BoxFuture<'static, anyhow::Result<Replications>>;

/// What is measured.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure a node that follows very many databases of which few change
    Changes(changes::ChangesBench),
    /// Measure nodes with many jobs, and takeover when a node stops
    Fleet(fleet::FleetBench),
    /// Measure replications, compared with the server's own replicator
    Replicate(replicate::Command),
    /// Run the replication of `bench replicate`
    #[command(hide = true)]
    ReplicateOne,
    /// Run the idle replications of `bench replicate`
    #[command(hide = true)]
    ReplicateIdle,
    /// Run the server of `bench replicate`
    #[command(hide = true)]
    ReplicatePeer,
    /// Measure commits, reads and watches, compared with bare LMDB
    Store(store::command::StoreBench),
    /// Run the second process of `bench store`
    #[command(hide = true)]
    StoreEcho {
        #[arg(long)]
        /// Store of the first process
        store: String,
    },
    /// Measure clients of a frontend that write, list and follow documents
    Api(api::ApiBench),
    /// Measure adding, claiming and finishing jobs
    Queue(queue::command::QueueBench),
    /// Measure jobs over HTTP, and what waiting claims and stored jobs cost a frontend
    JobsHttp(jobs_http::JobsHttpBench),
    /// Measure calls of webhooks
    Webhooks(webhooks::WebhooksBench),
    /// Run the second process of `bench queue`
    #[command(hide = true)]
    QueueSecond {
        #[arg(long)]
        /// Store of the first process
        store: String,
    },
}

/// Measures, and prints each figure as soon as it is known.
pub async fn run(command: Command, open: Open) -> anyhow::Result<()> {
    match command {
        Command::Changes(bench) => changes::run(bench, open).await,
        Command::Fleet(bench) => fleet::run(bench).await,
        Command::Replicate(bench) => replicate::run(bench).await,
        Command::ReplicateOne => replicate::one().await,
        Command::ReplicateIdle => replicate::idle().await,
        Command::ReplicatePeer => replicate::serve_peer().await,
        Command::Store(bench) => store::command::run(bench).await,
        Command::StoreEcho { store } => Ok(store::echo(&store, |line| {
            print(line);
            Ok(())
        })
        .await?),
        Command::Api(bench) => api::run(bench, open).await,
        Command::Queue(bench) => queue::command::run(bench).await,
        Command::JobsHttp(bench) => jobs_http::run(bench).await,
        Command::Webhooks(bench) => webhooks::run(bench).await,
        Command::QueueSecond { store } => queue::command::second(&store).await,
    }
}

/// The store of a run: the given one, or a new one in `directory`.
fn url_or_new(url: Option<String>, directory: &TempDir) -> String {
    url.unwrap_or_else(|| format!("lmdb:{}", directory.path().join("store").display()))
}

/// This program, as the second process of a benchmark.
fn second_process(command: &str, url: &str) -> anyhow::Result<Process> {
    let mut second = Process::new(std::env::current_exe().context("cannot find this program")?);
    second.args(["bench", command, "--store", url]);
    Ok(second)
}

fn report(bench: &str, figure: &Figure, as_json: bool) {
    let Figure {
        case,
        metric,
        value,
        unit,
    } = figure;
    print(&if as_json {
        json!({"bench": bench, "case": case, "metric": metric, "value": value, "unit": unit})
            .to_string()
    } else {
        format!("{case:<24} {metric:<20} {value:>14.3} {unit}")
    });
}

/// The percentile of sorted figures.
fn percentile<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    let last = sorted.len().checked_sub(1)?;
    Some(sorted[(sorted.len() * percent / 100).min(last)])
}

/// Percentiles of times, in milliseconds.
fn percentiles<'m>(
    times: &[Duration],
    metrics: &'m [(&'static str, usize)],
) -> impl Iterator<Item = (&'static str, f64)> + use<'m> {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    metrics.iter().filter_map(move |(metric, percent)| {
        Some((*metric, percentile(&sorted, *percent)?.as_secs_f64() * 1e3))
    })
}

#[expect(clippy::cast_precision_loss, reason = "a rate need not be exact")]
fn per_second(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}

/// Prints a line. A closed pipe is not an error: its reader has read enough.
fn print(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Random bytes from the operating system.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::Rng::fill_bytes(&mut rand::rng(), &mut bytes);
    bytes
}

fn random_hex() -> String {
    format!("{:032x}", u128::from_be_bytes(random()))
}
