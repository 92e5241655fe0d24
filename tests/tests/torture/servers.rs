//! Source and target servers.

use e2e::Signal;
use peer::{Faults, Options, Peer, Profile};
use testkit::{CouchDb, PouchDb};

pub(crate) struct Servers {
    pub(crate) all: Vec<Server>,
}

pub(crate) struct Server {
    pub(crate) url: Url,
    /// `PouchDB` does not keep the generation that an attachment came with.
    pub(crate) is_pouchdb: bool,
    process: Process,
}

/// The address of a server.
#[derive(Clone, Debug)]
pub(crate) struct Url {
    /// Without credentials and trailing slash.
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

/// Faults of a server.
pub(crate) enum Process {
    Peer(Peer),
    PouchDb(PouchDb),
    External,
}

impl Servers {
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
            all.push(Server {
                url: Url {
                    plain: peer.url(),
                    admin: Some(admin),
                },
                is_pouchdb: false,
                process: Process::Peer(peer),
            });
        }
        if let Some(server) = PouchDb::start().await {
            all.push(Server {
                url: Url {
                    plain: server.url(),
                    admin: None,
                },
                is_pouchdb: true,
                process: Process::PouchDb(server),
            });
        }
        if let Some(couchdb) = CouchDb::find() {
            all.push(Server {
                url: Url {
                    plain: couchdb.plain_url,
                    admin: Some(couchdb.admin),
                },
                is_pouchdb: false,
                process: Process::External,
            });
        }
        Ok(Self { all })
    }

    pub(crate) fn urls(&self) -> Vec<Url> {
        self.all.iter().map(|server| server.url.clone()).collect()
    }

    pub(crate) fn processes(&self) -> Vec<&Process> {
        let all = self.all.iter();
        all.map(|server| &server.process).collect()
    }

    /// Credentials that must not leak.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let admins = self
            .all
            .iter()
            .filter_map(|server| server.url.admin.as_ref());
        let passwords = admins.map(|(_, password)| password.clone());
        let mut secrets: Vec<String> = passwords.filter(|secret| secret.len() > 8).collect();
        let encoded = secrets
            .iter()
            .map(|secret| super::work::basic("admin", secret));
        secrets.extend(encoded.collect::<Vec<_>>());
        secrets.push(super::work::HEADER_SECRET.to_owned());
        secrets
    }

    /// Ends all faults.
    pub(crate) async fn heal(&self) {
        for process in self.processes() {
            match process {
                Process::Peer(peer) => peer.set_faults(Faults::none()),
                Process::PouchDb(server) => {
                    server.signal(Signal::CONT);
                    server.wait_until_ready().await;
                }
                Process::External => {}
            }
        }
    }
}

/// Every kind of request fault, each rarely.
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
