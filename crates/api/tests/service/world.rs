//! A service with a node that runs its jobs, and a peer.

use std::time::Duration;

use api::Options;
use couch::{EgressOptions, Network, NetworkOptions};
use document::doc::Doc;
use jobs::{Acceptor, Holder};
use peer::Peer;
use replication::engine::Budget;
use scheduler::{Server, ServerSetup, Writer};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::fixture::{Answer, Fixture, Setting, User};

/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(45);

/// A fixture whose clock goes, with a peer that has a database `a` of three documents.
pub(crate) struct World {
    pub(crate) fixture: Fixture,
    pub(crate) peer: Peer,
    services: Vec<AbortOnDropHandle<()>>,
}

impl World {
    /// Requests may wait for jobs, but no node runs any.
    pub(crate) async fn idle() -> Self {
        Self::with(scheduler::Options::default()).await
    }

    /// The service stands in front of the peer, whose administrator is `boss`, and jobs are run.
    pub(crate) async fn in_front() -> Self {
        let peer = Peer::start(peer::Options::default()).await.unwrap();
        peer.set_admin("boss", "b0ss");
        let setting = Setting {
            upstream: Some(peer.url()),
            ..Setting::default()
        };
        let mut world = Self::assembled(peer, setting).await;
        world.run_jobs();
        world
    }

    /// The service stands in front of another server, and jobs are run.
    pub(crate) async fn in_front_of(url: &str) -> Self {
        let peer = Peer::start(peer::Options::default()).await.unwrap();
        let setting = Setting {
            upstream: Some(url.to_owned()),
            ..Setting::default()
        };
        let mut world = Self::assembled(peer, setting).await;
        world.run_jobs();
        world
    }

    pub(crate) async fn with(options: scheduler::Options) -> Self {
        Self::set_up(scheduler::Setup {
            options,
            ..scheduler::Setup::default()
        })
        .await
    }

    pub(crate) async fn set_up(replications: scheduler::Setup) -> Self {
        let peer = Peer::start(peer::Options::default()).await.unwrap();
        let setting = Setting {
            replications,
            ..Setting::default()
        };
        Self::assembled(peer, setting).await
    }

    async fn assembled(peer: Peer, setting: Setting) -> Self {
        peer.create_database("a").unwrap();
        let documents = (1..=3).map(|n| format!(r#"{{"_id":"{n}"}}"#));
        peer.put_all("a", documents).unwrap();
        let mut fixture = Fixture::with(Options::default(), setting).await;
        let notifier = fixture.notifier.take().unwrap();
        let notifier = tokio::spawn(notifier.run(CancellationToken::new()));
        Self {
            fixture,
            peer,
            services: vec![AbortOnDropHandle::new(notifier)],
        }
    }

    /// Jobs are run.
    pub(crate) async fn new() -> Self {
        let options = scheduler::Options {
            stats_update_interval_sec: 0,
            ..scheduler::Options::default()
        };
        let mut world = Self::with(options).await;
        world.run_jobs();
        world
    }

    pub(crate) fn run_jobs(&mut self) {
        let replications = &self.fixture.replications;
        let node = Holder::new("node1").unwrap();
        let (jobs, ty) = (replications.jobs().clone(), replications.job_type().clone());
        let (acceptor, handle) = Acceptor::new(jobs, ty, node.clone());
        let network = NetworkOptions {
            egress: EgressOptions::open(),
            ..NetworkOptions::default()
        };
        let setup = ServerSetup {
            node,
            network: Network::new(network, [7; 32]).unwrap(),
            budget: Budget::default(),
        };
        let (server, _) = Server::new(replications.clone(), handle, setup);
        for task in [
            tokio::spawn(acceptor.run(CancellationToken::new())),
            tokio::spawn(server.run(CancellationToken::new())),
        ] {
            self.services.push(AbortOnDropHandle::new(task));
        }
    }

    pub(crate) fn root(&self) -> User<'_> {
        self.fixture.root()
    }

    pub(crate) fn body(&self, more: &Value) -> Value {
        let mut body = json!({
            "source": self.peer.database_url("a"), "target": self.peer.database_url("b"),
            "create_target": true,
        });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    }

    pub(crate) async fn replicate(&self, more: &Value) -> Answer {
        let body = self.body(more);
        let asked = self.root();
        let answer = asked.post("/_replicate", &body);
        tokio::time::timeout(PATIENCE, answer)
            .await
            .expect("it hangs")
    }

    /// Writes a document, as anna, who is no administrator.
    pub(crate) async fn write(&self, database: &str, id: &str, more: &Value) {
        let replications = &self.fixture.replications;
        let db = replications
            .docs()
            .open(&replications.docs().name(database).unwrap())
            .await;
        let (db, text) = (db.unwrap(), self.body(more).to_string());
        let writer = Writer::User {
            name: Some("anna".to_owned()),
            rank: scheduler::Rank::Member,
        };
        let edit = docstore::Edit::new(id, Doc::parse(&text).unwrap()).unwrap();
        let edit = replications.prepare(&db, edit, &writer).unwrap();
        let hook = replications.hook(writer);
        replications
            .docs()
            .put(&db, &edit, docstore::EditMode::NewEdits, &hook)
            .await
            .unwrap();
    }

    /// Asks until the answer is such.
    pub(crate) async fn until(&self, path: &str, such: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let asked = async {
            loop {
                last = self.root().get(path).await.json();
                if such(&last) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let asked = tokio::time::timeout(PATIENCE, asked).await;
        assert!(asked.is_ok(), "{path} stays {last:#}");
        last
    }
}
