//! The measured process.

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
    /// The private memory of the process.
    pub(super) own: f64,
    /// File-backed pages, such as those of an LMDB store, which the system reclaims when needed.
    pub(super) mapped: f64,
}

impl Frontend {
    pub(super) async fn start(store: &str) -> anyhow::Result<Self> {
        let password = random_hex();
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut child = Command::new(program)
            .args(["serve", "--roles", "api_frontend", "--store", store])
            .args(["--listen", "127.0.0.1:0", "--set", "log.level=error"])
            .args(["--admin", &format!("bench:{password}")])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a frontend")?;
        let out = child
            .stdout
            .take()
            .context("the output of the frontend is missing")?;
        let mut lines = BufReader::new(out).lines();
        let said = async {
            let mut address = None;
            while let Some(line) = lines.next_line().await? {
                if let Some(url) = line.strip_prefix("davenport listens on http://") {
                    address = Some(url.parse()?);
                }
                if line == "davenport is ready" {
                    return address.context("the frontend did not print its address");
                }
            }
            bail!("the frontend exited")
        };
        let address = timeout(PATIENCE, said).await;
        let address = address.context("the frontend did not start in time")??;
        let frontend = Self {
            child,
            address,
            password,
        };
        // The first request hashes the password; it must not be measured.
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

    /// The memory of the process, if the system reports it.
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
        self.child.kill().await.context("cannot stop the frontend")
    }
}
