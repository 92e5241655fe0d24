//! PouchDB Server in a process of its own, for tests that want a server which others have written.

use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::{Child, Command};

const TRIES_MAX: usize = 600;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// A PouchDB Server with its data in memory. It ends when this is dropped.
#[derive(Debug)]
pub struct PouchDb {
    url: String,
    _process: Child,
    _directory: TempDir,
}

impl PouchDb {
    /// Starts the server whose script this is, and waits until it answers.
    ///
    /// # Errors
    /// There is no such script or no Node.js, or the server does not answer within a minute.
    pub async fn start(script: &Path) -> io::Result<Self> {
        let script = script.canonicalize()?;
        let directory = tempfile::tempdir()?;
        // Whoever takes the port between here and there makes this fail loudly, not wrongly.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let process = Command::new("node")
            .arg(script)
            .args(["--in-memory", "--no-stdout-logs", "--host", "127.0.0.1"])
            .args(["--port", &port.to_string()])
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let server = Self {
            url: format!("http://127.0.0.1:{port}"),
            _process: process,
            _directory: directory,
        };
        let client = reqwest::Client::new();
        for _ in 0..TRIES_MAX {
            if client.get(&server.url).send().await.is_ok() {
                return Ok(server);
            }
            tokio::time::sleep(BETWEEN_TRIES).await;
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "PouchDB Server does not answer",
        ))
    }

    /// Where it is, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.url
    }
}
