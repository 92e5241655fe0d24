//! A service on an in-memory store, nodes that run its jobs, and a peer with the databases `a` and `b`.

use std::time::Duration;

use couch::{EgressOptions, Network, NetworkOptions, ProbeTimes};
use docstore::{Db, DocStore, Edit, EditMode, ReadOptions, Rev};
use document::doc::Doc;
use document::json::Json;
use jobs::{Acceptor, Clock, Entropy, Holder, Jobs, Maintenance, Notifier, NotifierHandle};
use peer::{Fault, Faults, On, Peer};
use replication::engine::Budget;
use replication::id::ReplicationId;
use scheduler::{
    Answer, Caller, Load, Options, Replications, Server, ServerSetup, ServiceError, Setup, Started,
    Writer,
};
use seal::Sealer;
use serde_json::{Value, json};
use store::{FaultControl, Store};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Longer than anything takes unless it hangs.
const TIMEOUT: Duration = Duration::from_secs(45);

pub(crate) struct World {
    store: Store,
    job_timeout: Option<Duration>,
    pub(crate) replications: Replications,
    pub(crate) db: Db,
    pub(crate) peer: Peer,
    follow: NotifierHandle,
    _notifier: AbortOnDropHandle<()>,
}

/// A node that replicates.
pub(crate) struct Node {
    pub(crate) replications: Replications,
    pub(crate) load: watch::Receiver<Load>,
    stop: CancellationToken,
    server: AbortOnDropHandle<()>,
    _acceptor: AbortOnDropHandle<()>,
}

async fn service(store: &Store, options: Options, job_timeout: Option<Duration>) -> Replications {
    let jobs = Jobs::new(store.clone(), Clock::system(), Entropy::from_os());
    let docs = DocStore::new(store.clone(), docstore::Options::default());
    let sealer = Sealer::new(vec![("k".to_owned(), [9; 32])]).unwrap();
    let setup = Setup {
        sealer,
        options,
        job_timeout,
        ..Setup::default()
    };
    Replications::open(jobs, docs, setup).await.unwrap()
}

fn plain() -> Options {
    Options {
        stats_update_interval_sec: 0,
        ..Options::default()
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with_timeout(None).await
    }

    /// With another time that a node may be silent.
    pub(crate) async fn with_timeout(job_timeout: Option<Duration>) -> Self {
        let store = Store::open("memory:").await.unwrap();
        let replications = service(&store, plain(), job_timeout).await;
        let db = replications.create_database("_replicator").await.unwrap();
        let peer = Peer::start(peer::Options::default()).await.unwrap();
        peer.create_database("a").unwrap();
        peer.create_database("b").unwrap();
        let (notifier, follow) = Notifier::new(
            replications.jobs().clone(),
            replications.job_type().clone(),
            jobs::Options::default(),
        );
        let notifier = tokio::spawn(notifier.run(CancellationToken::new()));
        Self {
            store,
            job_timeout,
            replications,
            db,
            peer,
            follow,
            _notifier: AbortOnDropHandle::new(notifier),
        }
    }

    /// Makes the peer refuse all requests that tell which of its databases change.
    pub(crate) fn forbid_watching(&self) {
        let forbidden = || Fault::Status {
            status: 403,
            retry_after: None,
        };
        self.peer.set_faults(Faults::script([
            (On::any("/_db_updates"), forbidden()),
            (On::any("/_dbs_info"), forbidden()),
        ]));
    }

    pub(crate) async fn node(&self, name: &str) -> Node {
        self.node_with(name, plain()).await
    }

    pub(crate) async fn node_with(&self, name: &str, options: Options) -> Node {
        self.node_on(&self.store, name, options).await
    }

    /// A node and the faults of its connection to the store.
    pub(crate) async fn node_with_faults(&self, name: &str) -> (Node, FaultControl) {
        let (store, faults) = self.store.with_faults(store::Faults::default());
        (self.node_on(&store, name, plain()).await, faults)
    }

    /// The activity monitor of running jobs.
    pub(crate) fn monitor(&self) -> AbortOnDropHandle<()> {
        let options = jobs::Options {
            activity_monitor_max_jitter_msec: 100,
            ..jobs::Options::default()
        };
        let maintenance = Maintenance::new(self.replications.jobs().clone(), options)
            .serve(self.replications.job_type().clone());
        AbortOnDropHandle::new(tokio::spawn(maintenance.run(CancellationToken::new())))
    }

    async fn node_on(&self, store: &Store, name: &str, options: Options) -> Node {
        let replications = service(store, options, self.job_timeout).await;
        let holder = Holder::new(name).unwrap();
        let (acceptor, handle) = Acceptor::new(
            replications.jobs().clone(),
            replications.job_type().clone(),
            holder.clone(),
        );
        let network = NetworkOptions {
            egress: EgressOptions::open(),
            probes: ProbeTimes {
                pause: Duration::from_millis(20),
                timeout: Duration::from_secs(1),
                linger: Duration::ZERO,
            },
            ..NetworkOptions::default()
        };
        let setup = ServerSetup {
            node: holder,
            network: Network::new(network, [7; 32]).unwrap(),
            budget: Budget::default(),
        };
        let (server, load) = Server::new(replications.clone(), handle, setup);
        let stop = CancellationToken::new();
        Node {
            replications,
            load,
            server: AbortOnDropHandle::new(tokio::spawn(server.run(stop.clone()))),
            stop,
            _acceptor: AbortOnDropHandle::new(tokio::spawn(acceptor.run(CancellationToken::new()))),
        }
    }

    pub(crate) fn body(&self, options: &Value) -> Value {
        let mut body = json!({
            "source": self.peer.database_url("a"), "target": self.peer.database_url("b"),
        });
        for (name, value) in options.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    }

    /// Writes the newest revision of a document.
    pub(crate) async fn put(&self, id: &str, options: &Value) {
        let rev = self
            .read(id)
            .await
            .map(|doc| doc["_rev"].as_str().unwrap().parse().unwrap());
        self.put_at(id, rev, &self.body(options)).await.unwrap();
    }

    pub(crate) async fn put_at(
        &self,
        id: &str,
        rev: Option<Rev>,
        body: &Value,
    ) -> Result<Rev, ServiceError> {
        let writer = Writer::User {
            name: Some("joe".to_owned()),
            rank: scheduler::Rank::Member,
        };
        let text = body.to_string();
        let mut edit = Edit::new(id, Doc::parse(&text).unwrap())?;
        edit.revisions = rev.map(docstore::Revisions::from);
        let edit = self.replications.prepare(&self.db, edit, &writer)?;
        let hook = self.replications.hook(writer);
        self.replications
            .docs()
            .put(&self.db, &edit, EditMode::NewEdits, &hook)
            .await
    }

    pub(crate) async fn read(&self, id: &str) -> Option<Value> {
        let read = self
            .replications
            .docs()
            .get(&self.db, id, &ReadOptions::default())
            .await;
        read.ok()
            .map(|doc| serde_json::from_str(&doc.to_json()).unwrap())
    }

    pub(crate) async fn delete(&self, id: &str) {
        let doc = self.read(id).await.unwrap();
        let rev: Rev = doc["_rev"].as_str().unwrap().parse().unwrap();
        let hook = self.replications.hook(Writer::Replicator);
        self.replications
            .docs()
            .delete(&self.db, id, Some(&rev), &hook)
            .await
            .unwrap();
    }

    pub(crate) fn job(&self, id: &str) -> jobs::JobId {
        jobs::JobId::new(format!("{}|{id}", self.db.instance())).unwrap()
    }

    /// Waits until the row of a document matches.
    pub(crate) async fn until(&self, id: &str, matches: impl Fn(&Value) -> bool) -> Value {
        let mut row = Value::Null;
        let look = async {
            loop {
                row = self.replications.scheduler_doc(&self.db, id).await.unwrap();
                if matches(&row) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = tokio::time::timeout(TIMEOUT, look).await;
        assert!(waited.is_ok(), "{id} stays {row:#}");
        row
    }

    pub(crate) async fn until_state(&self, id: &str, state: &str) -> Value {
        self.until(id, |row| row["state"] == state).await
    }

    /// Waits until a document is on the target.
    pub(crate) async fn until_copied(&self, id: &str) {
        let look = async {
            while self.peer.get("b", id).unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, look)
            .await
            .expect("it is not copied");
    }

    pub(crate) async fn request(
        &self,
        options: &Value,
        caller: &Caller,
    ) -> Result<Started, ServiceError> {
        let body = Json::from(&self.body(options));
        self.replications.request(&body, caller).await
    }

    pub(crate) async fn wait(&self, started: &Started) -> Answer {
        let Started::Job { job, .. } = started else {
            panic!("{started:?} is no job");
        };
        let wait = self.replications.wait(&self.follow, job);
        tokio::time::timeout(TIMEOUT, wait)
            .await
            .expect("it hangs")
            .unwrap()
    }

    /// `_scheduler/jobs/{id}`
    pub(crate) async fn scheduler_job(&self, id: &str) -> Option<Value> {
        let job = self
            .replications
            .scheduler_job(&ReplicationId::from_client(id))
            .await;
        match job {
            Ok(job) => Some(job),
            Err(ServiceError::Missing) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Changes each sealed text in the store.
    pub(crate) async fn damage_sealed(&self) {
        const SEALED: &[u8] = b"v1.k.";
        let damaged = (self.store)
            .transact("damage", |tx| async move {
                let rows = tx.get_range(store::KeyRange::all(), store::RangeOptions::default());
                for row in rows.collect().await? {
                    let mut value = row.value.to_vec();
                    let sealed = value.windows(SEALED.len()).position(|part| part == SEALED);
                    if let Some(at) = sealed {
                        let first = &mut value[at + SEALED.len()];
                        *first = if *first == b'A' { b'B' } else { b'A' };
                        tx.set(&row.key, &value);
                    }
                }
                Ok::<_, store::Error>(())
            })
            .await;
        damaged.unwrap();
    }

    /// Everything in the store, as text.
    pub(crate) async fn dump(&self) -> String {
        let rows = (self.store)
            .transact("dump", |tx| async move {
                let range = tx.get_range(store::KeyRange::all(), store::RangeOptions::default());
                range.collect().await
            })
            .await;
        let rows: Vec<store::KeyValue> = rows.map_err(|error: store::Error| error).unwrap();
        rows.iter()
            .map(|row| row.value.escape_ascii().to_string())
            .collect()
    }
}

impl Node {
    pub(crate) async fn until_running(&mut self, jobs: usize) {
        let wait = self.load.wait_for(|load| load.running == jobs);
        tokio::time::timeout(TIMEOUT, wait)
            .await
            .expect("the load stays")
            .unwrap();
    }

    pub(crate) async fn until_parked(&mut self, jobs: usize) {
        let wait = self.load.wait_for(|load| load.parked == jobs);
        tokio::time::timeout(TIMEOUT, wait)
            .await
            .expect("the load stays")
            .unwrap();
    }

    /// Stops in order.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.server.await.unwrap();
    }
}
