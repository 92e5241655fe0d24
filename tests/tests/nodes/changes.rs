//! Work that follows changes while its nodes are killed: nothing is missed, and rules that block keep the order of changes.
//!
//! By default it is short. `CHANGES_SECONDS` makes it longer, and with `TEST_COUCHDB_URL` it follows Apache CouchDB.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::HeaderMap;
use e2e::{Node, Start};
use peer::{Options, Peer};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use testkit::{CouchDb, number};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const NODES: [&str; 3] = ["a", "b", "c"];
const CONFIGURATION: &str = "davenport.toml";
const DATABASES: usize = 12;
/// One node is killed this often.
const KILL_PAUSE: Duration = Duration::from_secs(5);
/// Between two writes.
const WRITE_PAUSE: Duration = Duration::from_millis(20);
/// How long everything may take after the last kill. A feed that loses an update has its sweep.
const LATEST: Duration = Duration::from_mins(3);
/// The parameters of rules, and what they are called.
const CALLS: [(&str, bool); 2] = [("in-order", true), ("at-once", false)];
/// Databases that are copies.
const COPIES: [&str; 2] = ["ruled", "triggered"];

/// The server whose databases change.
struct Server {
    client: Client,
    /// With credentials.
    url: String,
    /// The start of the names of all databases.
    prefix: String,
    /// Stops when dropped.
    _peer: Option<Peer>,
}

impl Server {
    async fn start() -> Self {
        let (url, peer) = if let Some(couchdb) = CouchDb::find() {
            (couchdb.url, None)
        } else {
            let peer = Peer::start(Options::default()).await.unwrap();
            (peer.url(), Some(peer))
        };
        let server = Self {
            client: Client::new(),
            url,
            prefix: format!("changes{}-", std::process::id()),
            _peer: peer,
        };
        for nth in 0..DATABASES {
            // A feed of several shards does not keep the order of changes.
            let path = format!("{}?q=1", server.source(nth));
            server.send(Method::PUT, &path, None).await;
        }
        server
    }

    fn source(&self, nth: usize) -> String {
        format!("{}{nth}", self.prefix)
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Value {
        let request = self.client.request(method, format!("{}/{path}", self.url));
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        let response = request.send().await.unwrap();
        response.json().await.unwrap_or_default()
    }

    /// The ids of the documents of a database.
    async fn documents(&self, name: &str) -> BTreeSet<String> {
        let all = self
            .send(Method::GET, &format!("{name}/_all_docs"), None)
            .await;
        let rows = all["rows"].as_array().cloned().unwrap_or_default();
        let ids = rows.iter().filter_map(|row| row["id"].as_str());
        ids.map(str::to_owned).collect()
    }

    async fn remove(&self) {
        for nth in 0..DATABASES {
            let source = self.source(nth);
            let copies = COPIES.map(|copy| format!("{copy}-{source}"));
            for name in copies.into_iter().chain([source]) {
                self.send(Method::DELETE, &name, None).await;
            }
        }
    }
}

/// What receives calls.
struct Receiver {
    url: String,
    /// By rule and database, the documents in the order of their calls.
    calls: Calls,
    _task: JoinSet<()>,
}

type Calls = Arc<Mutex<BTreeMap<(String, String), Vec<String>>>>;

impl Receiver {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let calls = Calls::default();
        let received = Arc::clone(&calls);
        let receive = move |request: Request| {
            let header = |headers: &HeaderMap, name| headers[name].to_str().unwrap().to_owned();
            let headers = request.headers();
            let (db, doc) = (
                header(headers, "x-couch-db"),
                header(headers, "x-couch-doc-id"),
            );
            let rule = request.uri().path().trim_start_matches('/').to_owned();
            let mut received = received.lock().unwrap();
            received.entry((rule, db)).or_default().push(doc);
            async { StatusCode::OK.as_u16().to_string() }
        };
        let mut task = JoinSet::new();
        task.spawn(async move {
            let app = Router::new().fallback(receive);
            axum::serve(listener, app).await.unwrap();
        });
        Self {
            url,
            calls,
            _task: task,
        }
    }

    fn of(&self, rule: &str, db: &str) -> Vec<String> {
        let calls = self.calls.lock().unwrap();
        let key = (rule.to_owned(), db.to_owned());
        calls.get(&key).cloned().unwrap_or_default()
    }
}

struct Fleet {
    directory: tempfile::TempDir,
    nodes: Vec<Node>,
    kills: usize,
}

impl Fleet {
    async fn start(server: &Server) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let source = format!(
            "[sources.changes]\nurl = \"{}\"\nsweep_sec = 20\n",
            server.url
        );
        std::fs::write(directory.path().join(CONFIGURATION), source).unwrap();
        let mut fleet = Self {
            directory,
            nodes: Vec::new(),
            kills: 0,
        };
        for name in NODES {
            let node = fleet.node(name).await;
            fleet.nodes.push(node);
        }
        fleet
    }

    async fn node(&self, name: &str) -> Node {
        let directory = self.directory.path();
        let configuration = directory.join(CONFIGURATION).display().to_string();
        let start = Start::node("davenport", directory).admin();
        let start = start.args(&["--config", &configuration]);
        let sets = [
            "couch_jobs.job_timeout_sec=5",
            "couch_jobs.activity_monitor_max_jitter_msec=1000",
            // Nodes are killed so often that any job would become a suspect.
            "replicator.set_aside_after=0",
            "replicator.min_backoff_penalty_sec=2",
            "replicator.max_backoff_penalty_sec=10",
        ];
        let start = (sets.iter()).fold(start.named(name), |start, set| start.args(&["--set", set]));
        start.start().await.unwrap()
    }

    /// Writes the documents of rules and replications.
    async fn ask(&self, server: &Server, receiver: &Receiver) {
        let (root, url, prefix) = (self.nodes[0].root(), &server.url, &server.prefix);
        let put = async |path: String, body: Value| {
            let (status, answer) = root.put(&path, &body).await.unwrap();
            // A node has made `_replicator`.
            let is_there = status == StatusCode::PRECONDITION_FAILED;
            assert!(status.is_success() || is_there, "{path}: {answer}");
        };
        put("/_replicator".to_owned(), Value::Null).await;
        put("/_rules".to_owned(), Value::Null).await;
        let ruled = json!({
            "type": "replicator", "create_target": true,
            "match": {"database": format!("^{prefix}(?<n>\\d+)$")},
            "source": format!("{url}/{prefix}${{n}}"), "target": format!("{url}/ruled-{prefix}${{n}}"),
        });
        put("/_rules/ruled".to_owned(), ruled).await;
        for (name, block) in CALLS {
            let call = json!({
                "type": "on_change", "db_name": format!("^{prefix}"), "method": "POST", "block": block,
                "since": 0, "url": format!("{}/{name}", receiver.url),
            });
            put(format!("/_rules/{name}"), call).await;
        }
        for nth in 0..DATABASES {
            let name = server.source(nth);
            let triggered = json!({
                "source": format!("{url}/{name}"), "target": format!("{url}/triggered-{name}"),
                "create_target": true, "trigger": "changes",
            });
            put(format!("/_replicator/{name}"), triggered).await;
        }
    }

    /// Kills a node every few seconds, and starts it again.
    async fn kill(&mut self, until: Instant) {
        let mut rng = SmallRng::seed_from_u64(7);
        while Instant::now() + KILL_PAUSE < until {
            sleep(KILL_PAUSE).await;
            let at = rng.random_range(0..NODES.len());
            self.nodes.remove(at).kill().await.unwrap();
            let node = self.node(NODES[at]).await;
            self.nodes.insert(at, node);
            self.kills += 1;
        }
    }
}

/// Changes databases; returns how many documents each has.
async fn write(server: &Server, until: Instant) -> Vec<usize> {
    let mut rng = SmallRng::seed_from_u64(8);
    let mut written = vec![0; DATABASES];
    while Instant::now() < until {
        let nth = rng.random_range(0..DATABASES);
        let path = format!("{}/{}", server.source(nth), doc(written[nth]));
        let done = server.send(Method::PUT, &path, Some(&json!({}))).await;
        assert_eq!(done["ok"], true, "{done}");
        written[nth] += 1;
        sleep(WRITE_PAUSE).await;
    }
    written
}

fn doc(nth: usize) -> String {
    format!("{nth:06}")
}

/// What is still missing.
async fn missing(server: &Server, receiver: &Receiver, written: &[usize]) -> Vec<String> {
    let mut missing = Vec::new();
    for (nth, count) in written.iter().enumerate() {
        let name = server.source(nth);
        let all: BTreeSet<String> = (0..*count).map(doc).collect();
        let mut lacks = |what: &str, has: &BTreeSet<String>| {
            missing.extend(
                all.difference(has)
                    .map(|doc| format!("{what}: {name}/{doc}")),
            );
        };
        for copy in COPIES {
            lacks(copy, &server.documents(&format!("{copy}-{name}")).await);
        }
        for (rule, _) in CALLS {
            lacks(rule, &receiver.of(rule, &name).into_iter().collect());
        }
    }
    missing
}

/// Calls that did not follow the one about the change before. Only the last call may be repeated.
fn disorder(calls: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let mut next = 0;
    for call in calls {
        if *call == doc(next) {
            next += 1;
        } else if next == 0 || *call != doc(next - 1) {
            found.push(format!("{call} instead of {}", doc(next)));
        }
    }
    found
}

#[tokio::test]
async fn nothing_is_missed_while_nodes_are_killed() {
    let (server, receiver) = (Server::start().await, Receiver::start().await);
    let mut fleet = Fleet::start(&server).await;
    fleet.ask(&server, &receiver).await;
    let until = Instant::now() + Duration::from_secs(number("CHANGES_SECONDS", 20));
    let (written, ()) = tokio::join!(write(&server, until), fleet.kill(until));
    let healed = Instant::now();
    let mut rest = missing(&server, &receiver, &written).await;
    while !rest.is_empty() && healed.elapsed() < LATEST {
        sleep(Duration::from_millis(500)).await;
        rest = missing(&server, &receiver, &written).await;
    }
    let calls: usize = receiver.calls.lock().unwrap().values().map(Vec::len).sum();
    println!(
        "{} kills, {} changes, {calls} calls; all was done {:.1} s after the last change",
        fleet.kills,
        written.iter().sum::<usize>(),
        healed.elapsed().as_secs_f64(),
    );
    let logs = || -> Vec<String> { fleet.nodes.iter().map(Node::log).collect() };
    let first = &rest[..rest.len().min(20)];
    assert!(
        rest.is_empty(),
        "{} are missing: {first:#?}\n{}",
        rest.len(),
        logs().join("\n")
    );
    for nth in 0..DATABASES {
        let name = server.source(nth);
        let found = disorder(&receiver.of("in-order", &name));
        assert!(found.is_empty(), "{name}: {found:#?}");
    }
    server.remove().await;
}
