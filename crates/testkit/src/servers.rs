//! Servers of other vendors, for suites that run against them if they are installed.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::child::{Signal, pause, send_signal};

const PATIENCE: Duration = Duration::from_mins(2);
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// An environment variable; if it is unset, prints what is skipped.
fn variable(name: &str, what: &str) -> Option<String> {
    let value = std::env::var(name).ok();
    if value.is_none() {
        println!("skipped {what}: {name} is not set");
    }
    value
}

/// The Apache CouchDB at `TEST_COUCHDB_URL`, which includes an administrator's name and password.
#[derive(Debug, Clone)]
pub struct CouchDb {
    /// With credentials, without a trailing slash.
    pub url: String,
    /// Without the credentials.
    pub plain_url: String,
    pub admin: (String, String),
}

impl CouchDb {
    /// `None`, with a message, if `TEST_COUCHDB_URL` is unset.
    pub fn find() -> Option<Self> {
        let url = variable("TEST_COUCHDB_URL", "Apache CouchDB")?;
        let url = url.trim_end_matches('/').to_owned();
        let (admin, host) = (url.strip_prefix("http://"))
            .and_then(|rest| rest.split_once('@'))
            .expect("TEST_COUCHDB_URL is http://NAME:PASSWORD@HOST:PORT");
        let (name, password) = admin.split_once(':').expect("a password");
        Some(Self {
            plain_url: format!("http://{host}"),
            admin: (name.to_owned(), password.to_owned()),
            url,
        })
    }
}

/// A PouchDB Server with data on disk that survives the process. It is restarted whenever it exits: some requests
/// aborted by a client crash it.
#[derive(Debug)]
pub struct PouchDb {
    port: u16,
    pid: Arc<AtomicU32>,
    supervisor: JoinHandle<()>,
}

impl PouchDb {
    /// Starts the script at `TEST_POUCHDB_SERVER` and waits until it listens. `None`, with a message, if the variable
    /// is unset.
    pub async fn start() -> Option<Self> {
        let script = variable("TEST_POUCHDB_SERVER", "PouchDB Server")?;
        let script = Path::new(&script).canonicalize().unwrap();
        let directory = tempfile::tempdir().unwrap();
        // If another process takes the port first, the server fails to start.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let pid = Arc::new(AtomicU32::new(0));
        let running = Arc::clone(&pid);
        let supervisor = tokio::spawn(async move {
            loop {
                let mut process = spawn(&script, port, &directory);
                running.store(process.id().unwrap_or(0), Ordering::Relaxed);
                let status = process.wait().await.unwrap();
                println!("PouchDB Server exited: {status}");
            }
        });
        let server = Self {
            port,
            pid,
            supervisor,
        };
        server.wait_until_ready().await;
        Some(server)
    }

    /// Without a trailing slash.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn signal(&self, signal: Signal) {
        // It may just have exited.
        drop(send_signal(self.pid.load(Ordering::Relaxed), signal));
    }

    pub fn pause(&self, duration: Duration) {
        drop(pause(self.pid.load(Ordering::Relaxed), duration));
    }

    pub async fn wait_until_ready(&self) {
        let connected = async {
            while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
                sleep(CONNECT_PAUSE).await;
            }
        };
        let connected = timeout(PATIENCE, connected).await;
        connected.expect("PouchDB Server listens within two minutes");
    }
}

impl Drop for PouchDb {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

fn spawn(script: &Path, port: u16, directory: &TempDir) -> Child {
    Command::new("node")
        .arg(script)
        .args(["--no-stdout-logs", "--host", "127.0.0.1"])
        .args(["--port", &port.to_string(), "--dir"])
        .arg(directory.path())
        .current_dir(directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("node runs PouchDB Server")
}
