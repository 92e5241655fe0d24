//! Nodes and servers as processes, and their databases.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::client::Client;
use crate::process::{Processes, start_peer};

/// Concurrent requests while a case is prepared.
const REQUESTS: usize = 16;
/// Documents per request.
const DOCUMENTS: usize = 500;
const STOP_MAX: Duration = Duration::from_secs(30);

/// Where nodes run.
pub(crate) struct Place {
    pub(crate) store: String,
    /// The file with the keys of that store.
    pub(crate) keys: PathBuf,
    pub(crate) config: Option<PathBuf>,
    /// Further options, as `SECTION.KEY=VALUE`.
    pub(crate) set: Vec<String>,
}

/// A node in its own process.
pub(crate) struct Node {
    child: Child,
    /// Its URL, if it is a frontend.
    url: Option<String>,
    _output: Lines<BufReader<ChildStdout>>,
}

impl Node {
    /// Starts a node with these roles, and waits until it is ready.
    pub(crate) async fn start(place: &Place, name: &str, roles: &str) -> anyhow::Result<Self> {
        let mut command =
            Command::new(std::env::current_exe().context("cannot find this program")?);
        command
            .args(["serve", "--store", &place.store, "--roles", roles])
            .args(["--listen", "127.0.0.1:0", "--admin", "bench:bench"])
            .args(["--set", &format!("keys.file={}", place.keys.display())])
            .args(["--set", &format!("node.name={name}")])
            .args(["--set", "network.egress.allow=loopback"])
            .args(["--set", "log.level=error"]);
        if let Some(config) = &place.config {
            command.arg("--config").arg(config);
        }
        for set in &place.set {
            command.args(["--set", set]);
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a node")?;
        let output = child
            .stdout
            .take()
            .context("the output of a node is missing")?;
        let mut output = BufReader::new(output).lines();
        let mut url = None;
        while let Some(line) = output.next_line().await? {
            if let Some(address) = line.strip_prefix("davenport listens on http://") {
                url = Some(format!("http://bench:bench@{address}"));
            }
            if line == "davenport is ready" {
                return Ok(Self {
                    child,
                    url,
                    _output: output,
                });
            }
        }
        bail!("a node exited before it was ready")
    }

    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Client::new(self.url.as_deref().context("the node is not a frontend")?)
    }

    pub(crate) fn process(&self) -> Option<Processes> {
        self.child.id().map(Processes::of)
    }

    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Stops it in order.
    pub(crate) fn ask_to_stop(&self) -> anyhow::Result<()> {
        let pid = self.child.id().context("the node has exited")?;
        let pid = Pid::from_raw(i32::try_from(pid)?).context("the node has no process id")?;
        Ok(kill_process(pid, Signal::TERM)?)
    }

    pub(crate) async fn ended(&mut self) -> anyhow::Result<ExitStatus> {
        let ended = timeout(STOP_MAX, self.child.wait()).await;
        Ok(ended.context("the node did not stop in time")??)
    }

    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.ask_to_stop()?;
        self.ended().await?;
        Ok(())
    }
}

/// A source or target server.
pub(crate) struct Peer {
    pub(crate) client: Client,
    /// The process, if it is ours; it ends with its standard input.
    child: Option<Child>,
}

impl Peer {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let (child, url) = start_peer().await?;
        Ok(Self {
            client: Client::new(&url)?,
            child: Some(child),
        })
    }

    /// An existing server.
    pub(crate) fn given(url: &str) -> anyhow::Result<Self> {
        Ok(Self {
            client: Client::new(url)?,
            child: None,
        })
    }

    /// Creates databases, each with these documents.
    pub(crate) async fn create(&self, names: &[String], documents: &[Value]) -> anyhow::Result<()> {
        each(names, async |name| {
            self.client.create(name).await?;
            if documents.is_empty() {
                return Ok(());
            }
            self.client.write(name, documents).await
        })
        .await
    }

    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(child) = &mut self.child {
            drop(child.stdin.take());
            child.wait().await.context("cannot wait for a server")?;
        }
        Ok(())
    }
}

/// Calls a function for each item, some of them concurrently.
pub(crate) async fn each<T>(
    all: &[T],
    work: impl AsyncFn(&T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let works = stream::iter(all).map(|one| work(one));
    works.buffer_unordered(REQUESTS).try_collect().await
}

/// Writes replication documents into a database of a service.
pub(crate) async fn submit(
    service: &Client,
    database: &str,
    documents: &[Value],
) -> anyhow::Result<()> {
    for documents in documents.chunks(DOCUMENTS) {
        service.write(database, documents).await?;
    }
    Ok(())
}
