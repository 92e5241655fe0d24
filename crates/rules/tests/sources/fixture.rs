//! A service, a peer with the databases `a` and `b`, and nodes that replicate and follow the peer.

use std::sync::Arc;
use std::time::Duration;

use couch::{EgressOptions, Network, NetworkOptions};
use docstore::{Db, DocStore, Edit, EditMode, ReadOptions};
use document::doc::Doc;
use jobs::{Acceptor, Clock, Entropy, Holder, Jobs, Maintenance, Op};
use peer::{Fault, FeedFaults, On, Peer};
use replication::engine::Budget;
use rules::rule::call::{Attempt, Call, Outcome};
use rules::rule::{Answer, Listeners, Listening, RuleWatcher, Rules, Sender};
use rules::source::{FeedKind, Followers, RuleBook, SourceOptions, list};
use scheduler::{Options, PasswordCell, Rank, Replications, Server, ServerSetup, Setup, Writer};
use serde_json::{Value, json};
use store::{FaultControl, Faults, KeyRange, RangeOptions, Store, Transaction};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Longer than anything takes unless it hangs.
const TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) const LOSES_ALL: FeedFaults = FeedFaults {
    lose: 1_000,
    repeat: 0,
    reorder: 0,
};

/// With frequent comparisons of sequences.
pub(crate) fn quick() -> SourceOptions {
    SourceOptions {
        sweep_sec: 1,
        ..SourceOptions::default()
    }
}

pub(crate) fn without_sweeps() -> SourceOptions {
    SourceOptions {
        sweep_sec: 86_400,
        ..SourceOptions::default()
    }
}

pub(crate) fn without_feed() -> SourceOptions {
    SourceOptions {
        feed: FeedKind::DbsInfo,
        poll_sec: 1,
        ..SourceOptions::default()
    }
}

pub(crate) fn answers(status: u16) -> Fault {
    Fault::Status {
        status,
        retry_after: None,
    }
}

/// A server with these answers instead of a feed.
pub(crate) fn no_feeds(status: u16) -> peer::Faults {
    peer::Faults::script([
        (On::any("/_db_updates"), answers(status)),
        (On::any("/_global_changes/*"), answers(status)),
    ])
}

pub(crate) struct World {
    store: Store,
    /// The same, as nodes see it.
    nodes: Store,
    /// Faults of nodes' writes and reads.
    pub(crate) faults: FaultControl,
    pub(crate) replications: Replications,
    db: Db,
    rules: Db,
    pub(crate) peer: Peer,
    pub(crate) passwords: PasswordCell,
    sent: mpsc::UnboundedSender<Call>,
    /// Calls of webhooks.
    pub(crate) calls: mpsc::UnboundedReceiver<Call>,
}

/// A sender whose calls the test sees.
struct Recorder(mpsc::UnboundedSender<Call>);

impl Sender for Recorder {
    async fn enqueue_in(&self, _: &Transaction, _: &Op, calls: &[Call]) -> jobs::Result<()> {
        for call in calls {
            self.0.send(call.clone()).unwrap();
        }
        Ok(())
    }

    async fn send(&self, call: &Call, _: u32) -> Answer {
        self.0.send(call.clone()).unwrap();
        let attempt = Attempt {
            at_ms: 0,
            took_ms: 0,
            status: Some(200),
            error: None,
            body: String::new(),
        };
        Answer::Made(Outcome::Delivered, attempt)
    }
}

pub(crate) struct Node {
    tasks: JoinSet<()>,
    stop: CancellationToken,
    stop_acceptor: CancellationToken,
}

async fn service(store: &Store, passwords: &PasswordCell) -> Replications {
    let jobs = Jobs::new(store.clone(), Clock::system(), Entropy::from_os());
    let kinds = ["_replicator", "_rules"].map(str::to_owned).to_vec();
    let options = docstore::Options {
        kinds,
        ..docstore::Options::default()
    };
    let docs = DocStore::new(store.clone(), options);
    let options = Options {
        park_after_sec: 1,
        stats_update_interval_sec: 0,
        ..Options::default()
    };
    let setup = Setup {
        options,
        passwords: passwords.clone(),
        ..Setup::default()
    };
    Replications::open(jobs, docs, setup).await.unwrap()
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(peer::Options::default()).await
    }

    pub(crate) async fn with(peer: peer::Options) -> Self {
        let store = Store::open("memory:").await.unwrap();
        let (nodes, faults) = store.with_faults(Faults::default());
        let passwords = PasswordCell::default();
        let replications = service(&store, &passwords).await;
        let db = replications.create_database("_replicator").await.unwrap();
        let rules = replications.create_database("_rules").await.unwrap();
        let (sent, calls) = mpsc::unbounded_channel();
        let peer = Peer::start(peer).await.unwrap();
        peer.create_database("a").unwrap();
        peer.create_database("b").unwrap();
        Self {
            store,
            nodes,
            faults,
            replications,
            db,
            rules,
            peer,
            passwords,
            sent,
            calls,
        }
    }

    /// Writes or deletes the document of a rule.
    pub(crate) async fn rule(&self, id: &str, body: Option<&Value>) {
        let rules = Rules::new(self.replications.clone());
        let docs = self.replications.docs();
        let before = docs
            .get(&self.rules, id, &ReadOptions::default())
            .await
            .ok();
        let text = body.map_or_else(|| "{}".to_owned(), Value::to_string);
        let mut edit = Edit::new(id, Doc::parse(&text).unwrap()).unwrap();
        edit.deleted = body.is_none();
        edit.revisions = before.map(|before| docstore::Revisions::from(before.rev));
        let edit = rules.prepare(&self.rules, edit).unwrap();
        let hook = rules.hook();
        docs.put(&self.rules, &edit, EditMode::NewEdits, &hook)
            .await
            .unwrap();
    }

    /// Waits until the databases of this many rules have been looked for.
    pub(crate) async fn until_seeded(&self, rules: usize) {
        self.until(async || self.rows(20).await.len() == rules)
            .await;
    }

    /// The databases that were there when the last first look began, as stored.
    pub(crate) async fn there(&self) -> Vec<Vec<u8>> {
        self.rows(24).await
    }

    /// The values of a table of rules.
    async fn rows(&self, table: u16) -> Vec<Vec<u8>> {
        let begin = store::tuple::pack(&(52_u16, table));
        let range = &KeyRange::prefix(&begin);
        let look = |tx: Transaction| async move {
            let rows = tx.get_range(range.clone(), RangeOptions::default());
            rows.collect().await
        };
        let rows: store::Result<Vec<_>> = self.store.transact("look", look).await;
        rows.unwrap()
            .into_iter()
            .map(|row| row.value.to_vec())
            .collect()
    }

    /// Waits until rules listen to this many databases, and none of them runs.
    pub(crate) async fn until_listening(&self, databases: u64) {
        let ty = &jobs::JobType::new("listen").unwrap();
        let jobs = self.replications.jobs();
        self.until(async || jobs.counts(ty).await.unwrap().finished == databases)
            .await;
    }

    /// The row of a rule in `_scheduler/docs`.
    pub(crate) async fn rule_row(&self, id: &str) -> Value {
        let row = self.replications.scheduler_doc(&self.rules, id).await;
        row.unwrap_or_default()
    }

    /// A node that follows the peer.
    pub(crate) async fn node(&self, options: SourceOptions) -> Node {
        self.node_with([("peer", options)]).await
    }

    /// A node that follows the peer before it has read the rules.
    pub(crate) async fn early_node(&self, options: SourceOptions) -> Node {
        self.start([("peer", options)], false).await
    }

    /// A node that follows the peer as the source of another name.
    pub(crate) async fn renaming_node(&self, options: SourceOptions) -> Node {
        self.node_with([("renamed", options)]).await
    }

    /// A node with these sources, which are the peer unless they have a URL.
    pub(crate) async fn node_with<const N: usize>(
        &self,
        sources: [(&str, SourceOptions); N],
    ) -> Node {
        self.start(sources, true).await
    }

    async fn start<const N: usize>(
        &self,
        sources: [(&str, SourceOptions); N],
        reads_rules: bool,
    ) -> Node {
        let replications = service(&self.nodes, &self.passwords).await;
        let jobs = replications.jobs().clone();
        let holder = Holder::new("n").unwrap();
        let holder_of = holder.clone();
        let network = NetworkOptions {
            egress: EgressOptions::open(),
            ..NetworkOptions::default()
        };
        let network = Network::new(network, [7; 32]).unwrap();
        let sources = sources.map(|(name, options)| {
            let options = SourceOptions {
                url: Some(options.url)
                    .filter(|url| !url.is_empty())
                    .unwrap_or_else(|| self.peer.url()),
                ..options
            };
            options.source(name, |_| None).unwrap()
        });
        let feeds = Followers::register(&jobs).await.unwrap();
        let rules = Rules::new(replications.clone());
        let listeners = Listeners::open(rules.clone()).await.unwrap();
        let (watcher, compiled) = RuleWatcher::new(rules);
        let book = RuleBook::new(replications.clone(), compiled.clone(), listeners.clone());
        let listen = listeners.job_type().clone();
        let listening = Listening {
            listeners,
            rules: compiled,
            sources: watch::channel(Arc::from(sources.clone())).1,
            network: network.clone(),
            sender: Recorder(self.sent.clone()),
        };
        let followers = Followers::new(book, network.clone(), holder.clone(), sources.to_vec());
        let ty = replications.job_type().clone();
        let (acceptor, handle) = Acceptor::new(jobs.clone(), ty.clone(), holder.clone());
        let setup = ServerSetup {
            node: holder,
            network,
            budget: Budget::default(),
        };
        let (server, _) = Server::new(replications, handle, setup);
        let maintenance = Maintenance::new(jobs, jobs::Options::default());
        let maintenance = maintenance.serve(ty).serve(feeds).serve(listen);
        let (stop, stop_acceptor) = (CancellationToken::new(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        let stopped = stop.clone();
        tasks.spawn(async move {
            if reads_rules {
                watcher.run(stopped).await;
            } else {
                stopped.cancelled().await;
                drop(watcher);
            }
        });
        tasks.spawn(listening.run(holder_of, 4, stop.clone()));
        tasks.spawn(server.run(stop.clone()));
        tasks.spawn(followers.run(stop.clone()));
        tasks.spawn(maintenance.run(stop.clone()));
        tasks.spawn(acceptor.run(stop_acceptor.clone()));
        Node {
            tasks,
            stop,
            stop_acceptor,
        }
    }

    /// Whether replications may sleep on a server.
    pub(crate) async fn following(&self, server: &str) -> bool {
        let replications = &self.replications;
        let look = |tx: Transaction| async move { replications.following_in(&tx, server).await };
        let following = self.store.transact("look", look).await;
        following.unwrap().is_some()
    }

    /// Whether a text is anywhere in the store.
    pub(crate) async fn stores(&self, text: &str) -> bool {
        let look = |tx: Transaction| async move {
            let rows = tx.get_range(KeyRange::prefix(&[]), RangeOptions::default());
            rows.collect().await
        };
        let rows: store::Result<Vec<_>> = self.store.transact("look", look).await;
        let holds = |value: &[u8]| {
            value
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        };
        rows.unwrap().iter().any(|row| holds(&row.value))
    }

    /// Writes a document into `a`, and lets it be copied to `b`.
    pub(crate) async fn copy(&self, id: &str) {
        self.change(id);
        let body = json!({
            "source": self.peer.database_url("a"), "target": self.peer.database_url("b"),
            "continuous": true,
        });
        self.replicate(&body).await;
        self.until_copied(id).await;
    }

    /// Writes the document of a replication.
    pub(crate) async fn replicate(&self, body: &Value) {
        let writer = Writer::User {
            name: Some("joe".to_owned()),
            rank: Rank::ServerAdmin,
        };
        let edit = Edit::new("x", Doc::parse(&body.to_string()).unwrap()).unwrap();
        let edit = self.replications.prepare(&self.db, edit, &writer).unwrap();
        let hook = self.replications.hook(writer);
        (self.replications.docs())
            .put(&self.db, &edit, EditMode::NewEdits, &hook)
            .await
            .unwrap();
    }

    pub(crate) fn change(&self, id: &str) {
        let body = json!({"_id": id}).to_string();
        self.peer.put("a", &body).unwrap();
    }

    pub(crate) async fn row(&self) -> Value {
        let row = self.replications.scheduler_doc(&self.db, "x").await;
        row.unwrap_or_default()
    }

    /// What `GET /_sources` says.
    pub(crate) async fn source(&self) -> Value {
        let sources = list(self.replications.jobs()).await.unwrap();
        sources.into_iter().next().unwrap_or_default()
    }

    pub(crate) async fn until(&self, mut is_so: impl AsyncFnMut() -> bool) {
        let look = async {
            while !is_so().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let so = tokio::time::timeout(TIMEOUT, look).await;
        let (row, source) = (self.row().await, self.source().await);
        assert!(so.is_ok(), "{row:#}\n{source:#}");
    }

    /// A replication copies what is there, falls asleep, and is woken by a change.
    pub(crate) async fn follows_a_change(&self) {
        self.copy("early").await;
        self.until_asleep(1).await;
        self.change("late");
        self.until_copied("late").await;
        self.until_asleep(2).await;
    }

    pub(crate) async fn until_followed(&self, feed: &str) {
        self.until(async || self.source().await["feed"] == feed)
            .await;
    }

    pub(crate) async fn until_copied(&self, id: &str) {
        self.until(async || self.peer.get("b", id).unwrap().is_some())
            .await;
    }

    /// Whether no replication runs. One is shown as asleep a little before its run ends, and copies what it finds then.
    pub(crate) async fn has_no_runs(&self) -> bool {
        let (jobs, ty) = (self.replications.jobs(), self.replications.job_type());
        jobs.counts(ty).await.unwrap().running == 0
    }

    /// Whether the only replication of a rule sleeps.
    pub(crate) async fn rule_sleeps(&self, id: &str) -> bool {
        self.rule_row(id).await["info"]["asleep"] == true && self.has_no_runs().await
    }

    /// Waits until the replication sleeps and has written this many documents.
    pub(crate) async fn until_asleep(&self, docs: u64) -> Value {
        let is_asleep = async || {
            let row = self.row().await;
            let is_shown = row["info"]["asleep"] == true && row["info"]["docs_written"] == docs;
            is_shown && self.has_no_runs().await
        };
        self.until(is_asleep).await;
        self.row().await
    }
}

impl Node {
    /// Stops in order.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        for _ in 0..5 {
            self.tasks.join_next().await.unwrap().unwrap();
        }
        self.stop_acceptor.cancel();
        self.tasks.join_next().await.unwrap().unwrap();
    }
}
