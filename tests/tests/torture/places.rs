//! Servers that are copied from and to.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context;
use e2e::{PATIENCE, Signal};
use peer::{Faults, Options, Peer, Profile};
use reqwest::Client;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// All servers of a run.
pub(crate) struct Places {
    pub(crate) all: Vec<Place>,
}

/// One server.
pub(crate) struct Place {
    pub(crate) url: Url,
    /// `PouchDB` does not keep the generation that an attachment came with.
    pub(crate) is_pouchdb: bool,
    process: Process,
}

/// Where a server is.
#[derive(Clone, Debug)]
pub(crate) struct Url {
    /// Without credentials and slash.
    pub(crate) plain: String,
    /// Name and password of the administrator, if it has one.
    pub(crate) admin: Option<(String, String)>,
}

impl Url {
    /// A database, with credentials.
    pub(crate) fn database(&self, name: &str) -> String {
        let plain = &self.plain;
        match &self.admin {
            None => format!("{plain}/{name}"),
            Some((user, password)) => {
                let host = plain.strip_prefix("http://").unwrap();
                format!("http://{user}:{password}@{host}/{name}")
            }
        }
    }
}

/// What may be done to a server.
pub(crate) enum Process {
    Peer(Peer),
    PouchDb(PouchDb),
    /// It is not ours.
    Elsewhere,
}

impl Places {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let mut all = Vec::new();
        for n in 0..2 {
            let admin = ("admin".to_owned(), format!("s3cr3t-of-peer-{n}-71c0ffee"));
            let options = Options {
                admin: Some(admin.clone()),
                seed: n,
                ..Options::default()
            };
            let peer = Peer::start(options).await?;
            all.push(Place {
                url: Url {
                    plain: peer.url(),
                    admin: Some(admin),
                },
                is_pouchdb: false,
                process: Process::Peer(peer),
            });
        }
        match std::env::var("TEST_POUCHDB_SERVER") {
            Err(_) => println!("skipped PouchDB Server: TEST_POUCHDB_SERVER names no script"),
            Ok(script) => {
                let server = PouchDb::start(script.into()).await?;
                all.push(Place {
                    url: Url {
                        plain: format!("http://127.0.0.1:{}", server.port),
                        admin: None,
                    },
                    is_pouchdb: true,
                    process: Process::PouchDb(server),
                });
            }
        }
        match std::env::var("TEST_COUCHDB_URL") {
            Err(_) => println!("skipped Apache CouchDB: TEST_COUCHDB_URL names no server"),
            Ok(url) => all.push(Place {
                url: elsewhere(&url).context("TEST_COUCHDB_URL has no administrator")?,
                is_pouchdb: false,
                process: Process::Elsewhere,
            }),
        }
        Ok(Self { all })
    }

    pub(crate) fn urls(&self) -> Vec<Url> {
        self.all.iter().map(|place| place.url.clone()).collect()
    }

    pub(crate) fn processes(&self) -> Vec<&Process> {
        let all = self.all.iter();
        all.map(|place| &place.process).collect()
    }

    /// What must not be seen anywhere.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let admins = self.all.iter().filter_map(|place| place.url.admin.as_ref());
        let passwords = admins.map(|(_, password)| password.clone());
        let mut secrets: Vec<String> = passwords.filter(|secret| secret.len() > 8).collect();
        let encoded = secrets
            .iter()
            .map(|secret| super::work::basic("admin", secret));
        secrets.extend(encoded.collect::<Vec<_>>());
        secrets.push(super::work::HEADER_SECRET.to_owned());
        secrets
    }

    /// All work again.
    pub(crate) async fn heal(&self) -> anyhow::Result<()> {
        for process in self.processes() {
            match process {
                Process::Peer(peer) => peer.set_faults(Faults::none()),
                Process::PouchDb(server) => {
                    server.signal(Signal::CONT);
                    server.answers().await?;
                }
                Process::Elsewhere => {}
            }
        }
        Ok(())
    }
}

fn elsewhere(url: &str) -> Option<Url> {
    let (admin, host) = url.strip_prefix("http://")?.split_once('@')?;
    let (name, password) = admin.split_once(':')?;
    Some(Url {
        plain: format!("http://{}", host.trim_end_matches('/')),
        admin: Some((name.to_owned(), password.to_owned())),
    })
}

/// A little of everything that may go wrong with requests.
pub(crate) fn some_faults(seed: u64) -> Faults {
    let profile = Profile {
        latency: 50,
        server_error: 20,
        reset: 20,
        lose_answer: 20,
        cut_body: 10,
        truncate_body: 10,
        too_many_silent: 5,
        ..Profile::default()
    };
    Faults::seeded(seed, profile)
}

/// A `PouchDB` Server with its data on the disk, which outlives its process. Whenever it ends it is started again: it does so
/// by itself at times, when a client breaks off.
pub(crate) struct PouchDb {
    port: u16,
    pid: Arc<AtomicU32>,
    supervisor: JoinHandle<()>,
}

impl Drop for PouchDb {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

impl PouchDb {
    async fn start(script: PathBuf) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        // Whoever takes the port between here and there makes this fail loudly, not wrongly.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let script = script.canonicalize()?;
        let pid = Arc::new(AtomicU32::new(0));
        let running = Arc::clone(&pid);
        let supervisor = tokio::spawn(async move {
            loop {
                let mut process = spawn(&script, port, &directory).unwrap();
                running.store(process.id().unwrap_or(0), Ordering::Relaxed);
                let ended = process.wait().await.unwrap();
                println!("PouchDB Server ended: {ended}");
            }
        });
        let server = Self {
            port,
            pid,
            supervisor,
        };
        server.answers().await?;
        Ok(server)
    }

    fn signal(&self, signal: Signal) {
        // It may just have ended.
        drop(e2e::send_signal(self.pid.load(Ordering::Relaxed), signal));
    }

    pub(crate) fn pause(&self, pause: Duration) {
        drop(e2e::pause(self.pid.load(Ordering::Relaxed), pause));
    }

    /// It is started again at once.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    async fn answers(&self) -> anyhow::Result<()> {
        let url = format!("http://127.0.0.1:{}/", self.port);
        let asked = async {
            let client = Client::new();
            while client.get(&url).send().await.is_err() {
                sleep(LOOK_PAUSE).await;
            }
        };
        let asked = timeout(PATIENCE, asked).await;
        asked.context("PouchDB Server does not answer")
    }
}

fn spawn(script: &Path, port: u16, directory: &TempDir) -> anyhow::Result<Child> {
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
        .context("start PouchDB Server")
}
