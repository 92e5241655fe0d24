//! The child processes of a measurement: our replications, and an in-memory server.

use anyhow::{Context, bail};
use couch::{EgressOptions, Network, NetworkOptions};
use document::json::Json;
use peer::{Options, Peer};
use replication::engine::{self, Gate, Handles, Phase, Run};
use replication::params::{Defaults, Replication};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::task::JoinSet;

use crate::process;
use crate::{print, random_hex};

/// Our own replication: runs what its input describes and prints its cost.
pub(crate) async fn one() -> anyhow::Result<()> {
    let document = tokio::io::stdin();
    let mut document = BufReader::new(document).lines();
    let Some(document) = document.next_line().await? else {
        bail!("standard input has no replication document");
    };
    let run = prepare(&document, &random_hex(), network()?).await?;
    let (_control, handles) = Handles::new(Gate::open());
    Box::pin(engine::run(run, handles))
        .await
        .map_err(|error| failure(&error))?;
    print(
        &json!({"cpu_s": process::own_cpu_s(), "peak_rss_mb": process::own_peak_mb()}).to_string(),
    );
    Ok(())
}

/// Many replications: runs those in its input until all wait for changes, and prints their cost.
pub(crate) async fn idle() -> anyhow::Result<()> {
    let mut documents = BufReader::new(tokio::io::stdin()).lines();
    let (network, uuid) = (network()?, random_hex());
    let mut runs = JoinSet::new();
    let mut controls = Vec::new();
    let mut before = None;
    while let Some(document) = documents.next_line().await? {
        let run = prepare(&document, &uuid, network.clone()).await?;
        let (control, handles) = Handles::new(Gate::open());
        let mut progress = control.progress();
        runs.spawn(engine::run(run, handles));
        progress
            .wait_for(|progress| progress.phase == Phase::CaughtUp)
            .await
            .context("a replication ended")?;
        controls.push(control);
        // The first one includes one-time costs.
        if before.is_none() {
            before = process::own_rss_mb();
        }
    }
    let others = controls.len().saturating_sub(1).max(1);
    let after = process::own_rss_mb();
    let per_job = before.zip(after).map(|(before, after)| {
        let others = u32::try_from(others).unwrap_or(u32::MAX);
        (after - before) * 1e3 / f64::from(others)
    });
    print(
        &json!({
            "rss_kb_per_job": per_job,
            "cpu_s": process::own_cpu_s(),
            "peak_rss_mb": process::own_peak_mb(),
        })
        .to_string(),
    );
    runs.shutdown().await;
    Ok(())
}

fn network() -> anyhow::Result<Network> {
    let options = NetworkOptions {
        egress: EgressOptions::open(),
        ..NetworkOptions::default()
    };
    Ok(Network::new(options, crate::random())?)
}

async fn prepare(document: &str, uuid: &str, network: Network) -> anyhow::Result<Run> {
    let document = Json::parse(document)?;
    let replication = Replication::from_document(&document, &Defaults::default())?;
    let run = Run::alone(replication, uuid, network, random_hex()).await;
    run.map_err(|error| failure(&error))
}

fn failure(error: &replication::Error) -> anyhow::Error {
    anyhow::anyhow!("{}: {}", error.tag(), error.reason())
}

/// The in-memory server: prints its URL and serves until its input ends.
pub(crate) async fn serve_peer() -> anyhow::Result<()> {
    let password = random_hex();
    let options = Options {
        admin: Some(("admin".to_owned(), password.clone())),
        ..Options::default()
    };
    let peer = Peer::start(options).await?;
    print(&format!("http://admin:{password}@{}", peer.address()));
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    while input.next_line().await?.is_some() {}
    peer.stop().await;
    Ok(())
}
