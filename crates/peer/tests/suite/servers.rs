//! The servers, started where they are not running.

use peer::{Options, Peer};
use testkit::{CouchDb, PouchDb};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Peer,
    PouchDb,
    CouchDb,
}

pub(crate) struct Server {
    pub(crate) kind: Kind,
    pub(crate) url: String,
    /// Name and password of its administrator; none where every client is one.
    pub(crate) admin: Option<(String, String)>,
    process: Process,
}

enum Process {
    Peer { _running: Peer },
    PouchDb(PouchDb),
    External,
}

impl Server {
    /// Starts or finds a server; `None`, with a line that says so, if it is not installed.
    pub(crate) async fn start(kind: Kind) -> Option<Self> {
        let (url, admin, process) = match kind {
            Kind::Peer => {
                let admin = Some(("admin".to_owned(), "secret".to_owned()));
                let options = Options {
                    admin: admin.clone(),
                    ..Options::default()
                };
                let peer = Peer::start(options).await.unwrap();
                (peer.url(), admin, Process::Peer { _running: peer })
            }
            Kind::PouchDb => {
                let server = PouchDb::start().await?;
                (server.url(), None, Process::PouchDb(server))
            }
            Kind::CouchDb => {
                let couchdb = CouchDb::find()?;
                (couchdb.plain_url, Some(couchdb.admin), Process::External)
            }
        };
        Some(Self {
            kind,
            url,
            admin,
            process,
        })
    }

    /// Waits for a server that a script has made crash.
    pub(crate) async fn wait_until_ready(&self) {
        if let Process::PouchDb(server) = &self.process {
            server.wait_until_ready().await;
        }
    }
}
