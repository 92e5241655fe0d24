//! The process that is measured.

use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::client::{Client, Connection};
use crate::random_hex;

const PATIENCE: Duration = Duration::from_mins(1);

pub(super) struct Frontend {
    child: Child,
    address: SocketAddr,
    password: String,
}

pub(super) struct Memory {
    pub(super) resident: f64,
    /// What is the process's own.
    pub(super) own: f64,
    /// Pages of files, as of an LMDB store: the system takes them back when it needs room.
    pub(super) mapped: f64,
}

impl Frontend {
    pub(super) async fn start(store: &str) -> anyhow::Result<Self> {
        let password = random_hex();
        let program = std::env::current_exe().context("find this program")?;
        let mut child = Command::new(program)
            .args(["serve", "--roles", "api_frontend", "--store", store])
            .args(["--listen", "127.0.0.1:0", "--set", "log.level=error"])
            .args(["--admin", &format!("bench:{password}")])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start a frontend")?;
        let out = child.stdout.take().context("read what the frontend says")?;
        let mut lines = BufReader::new(out).lines();
        let said = async {
            let mut address = None;
            while let Some(line) = lines.next_line().await? {
                if let Some(url) = line.strip_prefix("davenport listens on http://") {
                    address = Some(url.parse()?);
                }
                if line == "davenport is ready" {
                    return address.context("the frontend does not say where it is");
                }
            }
            bail!("the frontend ended")
        };
        let address = timeout(PATIENCE, said).await;
        let address = address.context("the frontend does not start")??;
        let frontend = Self {
            child,
            address,
            password,
        };
        // The password is hashed at the first request, which is nobody's.
        let mut connection = frontend.connect().await?;
        let _: serde_json::Value = connection.get("/_session").await?;
        Ok(frontend)
    }

    pub(super) async fn connect(&self) -> anyhow::Result<Connection> {
        let (address, password) = (self.address, &self.password);
        Client::new(&format!("http://bench:{password}@{address}"))?
            .connect()
            .await
    }

    /// How much memory it has, where the system says.
    pub(super) fn memory_mb(&self) -> Option<Memory> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()?)).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
            Some(kilobytes / 1024.0)
        };
        Some(Memory {
            resident: field("VmRSS:")?,
            own: field("RssAnon:")?,
            mapped: field("RssFile:")?,
        })
    }

    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("stop the frontend")
    }
}
