//! How long a job waits when its node stops.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::Run;
use crate::client::Client;
use crate::service::{Node, Peer};

const NAMES: [&str; 2] = ["one", "other"];
const LOOK_PAUSE: Duration = Duration::from_millis(20);
const MAX: Duration = Duration::from_mins(5);

pub(super) async fn run(run: &Run<'_>, killed: bool) -> anyhow::Result<()> {
    let peer = Peer::start().await?;
    let databases = ["source", "target"].map(str::to_owned);
    peer.create(&databases, &[json!({"_id": "first"})]).await?;
    let frontend = Node::start(&run.place, "frontend", "api_frontend").await?;
    let service = frontend.client()?;
    let mut nodes = [
        Node::start(&run.place, NAMES[0], "replication").await?,
        Node::start(&run.place, NAMES[1], "replication").await?,
    ];
    service.create(&run.replicator).await?;
    let document = json!({
        "_id": "job", "continuous": true,
        "source": peer.client.url("source"), "target": peer.client.url("target"),
    });
    service.write(&run.replicator, &[document]).await?;
    let path = format!("_scheduler/docs/{}/job", run.replicator);
    let first = until(&service, &path, |node| NAMES.contains(&node)).await?;
    let at = NAMES.iter().position(|name| *name == first);
    let at = at.context("cannot find the working node")?;
    let began = Instant::now();
    if killed {
        nodes[at].kill().await?;
    } else {
        nodes[at].ask_to_stop()?;
    }
    let other = NAMES[1 - at];
    until(&service, &path, |node| node == other).await?;
    run.report("davenport", "seconds", began.elapsed().as_secs_f64(), "s");
    if !killed {
        let status = nodes[at].ended().await?;
        ensure!(status.success(), "the node did not stop in order: {status}");
    }
    // The other node works.
    peer.client
        .write("source", &[json!({"_id": "second"})])
        .await?;
    while peer.client.counts("target").await?.0 < 2 {
        ensure!(
            began.elapsed() < MAX,
            "the other node did not copy anything"
        );
        sleep(LOOK_PAUSE).await;
    }
    service.delete(&run.replicator).await?;
    let [one, other] = nodes;
    let left = if at == 0 { other } else { one };
    left.stop().await?;
    frontend.stop().await?;
    peer.stop().await
}

/// Waits until the job runs on one of these nodes; returns its name.
async fn until(
    service: &Client,
    path: &str,
    such: impl Fn(&str) -> bool,
) -> anyhow::Result<String> {
    let began = Instant::now();
    loop {
        let row: Value = service.get(path).await?;
        let node = row["node"].as_str().unwrap_or_default();
        if row["state"] == "running" && such(node) {
            return Ok(node.to_owned());
        }
        ensure!(began.elapsed() < MAX, "the job did not move: {row}");
        sleep(LOOK_PAUSE).await;
    }
}
