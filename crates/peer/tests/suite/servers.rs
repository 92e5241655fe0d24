//! The servers, started where they are not running.

use std::env;
use std::path::Path;

use peer::{Options, Peer, PouchDb};

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Peer,
    PouchDb,
    CouchDb,
}

/// A server that answers.
pub(crate) struct Server {
    pub(crate) kind: Kind,
    pub(crate) url: String,
    /// Name and password of its administrator; none where everybody is one.
    pub(crate) admin: Option<(String, String)>,
    _running: Running,
}

#[expect(
    dead_code,
    reason = "they are kept for what happens when they are dropped"
)]
enum Running {
    Peer(Peer),
    PouchDb(PouchDb),
    Elsewhere,
}

impl Server {
    /// Starts or finds a server; none, with one line that says so, if it is not to be had.
    pub(crate) async fn start(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Peer => Some(peer().await),
            Kind::PouchDb => match env::var("TEST_POUCHDB_SERVER") {
                Ok(script) => Some(pouchdb(&script).await),
                Err(_) => skip("PouchDB Server: TEST_POUCHDB_SERVER names no script"),
            },
            Kind::CouchDb => match env::var("TEST_COUCHDB_URL") {
                Ok(url) => Some(couchdb(&url)),
                Err(_) => skip("Apache CouchDB: TEST_COUCHDB_URL names no server"),
            },
        }
    }

    /// Whether it still runs.
    pub(crate) async fn answers(&self) -> bool {
        reqwest::get(&self.url).await.is_ok()
    }
}

fn skip(what: &str) -> Option<Server> {
    println!("skipped {what}");
    None
}

fn admin() -> (String, String) {
    ("admin".to_owned(), "secret".to_owned())
}

async fn peer() -> Server {
    let options = Options {
        admin: Some(admin()),
        ..Options::default()
    };
    let peer = Peer::start(options).await.unwrap();
    Server {
        kind: Kind::Peer,
        url: peer.url(),
        admin: Some(admin()),
        _running: Running::Peer(peer),
    }
}

fn couchdb(url: &str) -> Server {
    let mut url = url::Url::parse(url).expect("TEST_COUCHDB_URL is a URL");
    let password = url
        .password()
        .expect("TEST_COUCHDB_URL has a password")
        .to_owned();
    let admin = (url.username().to_owned(), password);
    url.set_username("").unwrap();
    url.set_password(None).unwrap();
    let url = url.as_str().trim_end_matches('/').to_owned();
    Server {
        kind: Kind::CouchDb,
        url,
        admin: Some(admin),
        _running: Running::Elsewhere,
    }
}

async fn pouchdb(script: &str) -> Server {
    let server = PouchDb::start(Path::new(script)).await.unwrap();
    Server {
        kind: Kind::PouchDb,
        url: server.url().to_owned(),
        admin: None,
        _running: Running::PouchDb(server),
    }
}
