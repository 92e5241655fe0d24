//! `davenport bench`: how fast it is here. Compare figures of one run only.

mod api;
mod client;
mod fleet;
mod process;
mod queue;
mod replicate;

use std::process::Command as Process;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;
use store::bench::{Bench, Figure};
use tempfile::TempDir;

use super::output;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Nodes with many jobs, and nodes that end
    Fleet(fleet::FleetBench),
    /// A replication, next to the server's own replicator
    Replicate(replicate::Command),
    /// Our replication of `bench replicate`
    #[command(hide = true)]
    ReplicateOne,
    /// The waiting replications of `bench replicate`
    #[command(hide = true)]
    ReplicateIdle,
    /// The server of `bench replicate`
    #[command(hide = true)]
    ReplicatePeer,
    /// Commits, reads and watches, next to bare LMDB
    Store(StoreBench),
    /// The second process of `bench store`
    #[command(hide = true)]
    StoreEcho {
        #[arg(long)]
        store: String,
    },
    /// Documents written, listed and followed, by clients of a frontend
    Api(api::ApiBench),
    /// Jobs added, accepted and finished
    Queue(queue::QueueBench),
    /// The second process of `bench queue`
    #[command(hide = true)]
    QueueSecond {
        #[arg(long)]
        store: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct StoreBench {
    /// An empty store; a new directory below the system's temporary one when left out
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Seconds for each case
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Print a line of JSON a figure
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Fleet(bench) => fleet::run(bench).await,
        Command::Replicate(bench) => replicate::run(bench).await,
        Command::ReplicateOne => replicate::one().await,
        Command::ReplicateIdle => replicate::idle().await,
        Command::ReplicatePeer => replicate::serve_peer().await,
        Command::Store(bench) => store(bench).await,
        Command::StoreEcho { store } => Ok(::store::bench::echo(&store, |line| {
            output::line(line);
            Ok(())
        })
        .await?),
        Command::Api(bench) => api::run(bench).await,
        Command::Queue(bench) => queue::run(bench).await,
        Command::QueueSecond { store } => queue::second(&store).await,
    }
}

/// A store for one run: the one that is named, or a new one in `directory`.
fn url_or_new(url: Option<String>, directory: &TempDir) -> String {
    url.unwrap_or_else(|| format!("lmdb:{}", directory.path().join("store").display()))
}

/// This program once more, as the second process of a benchmark.
fn second_process(command: &str, url: &str) -> anyhow::Result<Process> {
    let mut second = Process::new(std::env::current_exe().context("find this program")?);
    second.args(["bench", command, "--store", url]);
    Ok(second)
}

async fn store(bench: StoreBench) -> anyhow::Result<()> {
    let directory = tempfile::tempdir().context("make a temporary directory")?;
    // What is bare is compared on the disk that the store is on.
    let bare = bench.store.is_none().then(|| directory.path().join("bare"));
    if let Some(bare) = &bare {
        std::fs::create_dir(bare).context("make a directory for bare LMDB")?;
    }
    let url = url_or_new(bench.store, &directory);
    let second = second_process("store-echo", &url)?;
    let measured = Bench {
        url,
        bare,
        duration: Duration::from_secs(bench.seconds),
        second_process: Some(second),
    };
    ::store::bench::run(measured, &mut |figure| report("store", &figure, bench.json)).await?;
    Ok(())
}

fn report(bench: &str, figure: &Figure, as_json: bool) {
    let Figure {
        case,
        metric,
        value,
        unit,
    } = figure;
    output::line(&if as_json {
        json!({"bench": bench, "case": case, "metric": metric, "value": value, "unit": unit})
            .to_string()
    } else {
        format!("{case:<24} {metric:<20} {value:>14.3} {unit}")
    });
}
