//! Several processes with different roles on one directory: the end of none loses anything.

use std::time::Duration;

use e2e::{Node, Signal, Start, User};
use peer::{Options, Peer};
use serde_json::{Value, json};
use tokio::time::timeout;

/// The jobs of a node that is silent for three seconds are taken over by then, even by idle nodes.
const REPLACED_MAX: Duration = Duration::from_secs(30);

struct Fleet {
    _directory: tempfile::TempDir,
    frontend: Node,
    nodes: Vec<(&'static str, Node)>,
    source: Peer,
    target: Peer,
}

/// Nodes may be silent for three seconds only.
const HURRY: [&str; 4] = [
    "--set",
    "couch_jobs.job_timeout_sec=3",
    "--set",
    "couch_jobs.activity_monitor_max_jitter_msec=500",
];

impl Fleet {
    async fn new() -> Self {
        Self::on(None, &[]).await
    }

    /// Starts the nodes on this store, or on a new directory.
    async fn on(store: Option<&str>, args: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let peer = || Peer::start(Options::default());
        let (source, target) = (peer().await.unwrap(), peer().await.unwrap());
        source.create_database("db").unwrap();
        source.put("db", r#"{"_id":"first"}"#).unwrap();
        let start = |program| {
            let start = Start::node(program, directory.path()).args(args);
            match store {
                Some(store) => start.on(store, directory.path()),
                None => start,
            }
        };
        let frontend = start("davenport-api-frontend").admin().start().await;
        let mut nodes = Vec::new();
        for name in ["a", "b"] {
            let node = start("davenport-replication").named(name).start().await;
            nodes.push((name, node.unwrap()));
        }
        Self {
            frontend: frontend.unwrap(),
            _directory: directory,
            nodes,
            source,
            target,
        }
    }

    fn node(&self, name: &str) -> &Node {
        let found = self.nodes.iter().find(|(known, _)| *known == name);
        &found.unwrap().1
    }

    fn other(&self, name: &str) -> &'static str {
        let found = self.nodes.iter().find(|(known, _)| *known != name);
        found.unwrap().0
    }

    fn assert_equal(&self) {
        let contents = |peer: &Peer, name| peer.contents(name).unwrap().without_locals();
        let (source, target) = (contents(&self.source, "db"), contents(&self.target, "copy"));
        assert_eq!(peer::compare(&source, &target), []);
    }

    fn root(&self) -> User {
        self.frontend.root()
    }

    /// Starts a continuous replication; the path of its job, and the name of the node that runs it.
    async fn begin(&self) -> (String, &'static str) {
        let request = json!({
            "source": self.source.database_url("db"), "target": self.target.database_url("copy"),
            "create_target": true, "continuous": true,
        });
        let (status, started) = self.root().post("/_replicate", &request).await.unwrap();
        assert_eq!(status, 202, "{started}");
        let path = format!(
            "/_scheduler/jobs/{}",
            started["_local_id"].as_str().unwrap()
        );
        let job = self.until(&path, |job| job["state"] == "running").await;
        let name = self.nodes.iter().find(|(name, _)| job["node"] == *name);
        (path, name.unwrap().0)
    }

    async fn until(&self, path: &str, such: impl Fn(&Value) -> bool) -> Value {
        self.root().until(path, such).await.unwrap()
    }

    /// Writes a document and waits until it is on the target.
    async fn copies(&self, id: &str) {
        self.source
            .put("db", &format!(r#"{{"_id":"{id}"}}"#))
            .unwrap();
        let there = || {
            self.target
                .get("copy", id)
                .is_ok_and(|found| found.is_some())
        };
        e2e::until("it is not copied", there).await.unwrap();
    }

    fn take(&mut self, name: &str) -> Node {
        let at = self.nodes.iter().position(|(known, _)| *known == name);
        self.nodes.remove(at.unwrap()).1
    }
}

#[tokio::test]
async fn a_node_that_stops_hands_its_jobs_over_without_a_penalty() {
    handed_over(Fleet::new().await).await;
}

#[tokio::test]
async fn a_node_that_stops_hands_its_jobs_over_without_a_penalty_on_foundationdb() {
    if let Some(store) = e2e::fdb_url() {
        handed_over(Fleet::on(Some(&store), &[]).await).await;
    }
}

async fn handed_over(mut fleet: Fleet) {
    let (path, name) = fleet.begin().await;
    fleet.copies("second").await;
    let began = tokio::time::Instant::now();
    let (status, log) = fleet.take(name).stop().await.unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
    let other = fleet.nodes[0].0;
    let job = fleet.until(&path, |job| job["node"] == other).await;
    println!("handed over in {:?}", began.elapsed());
    let kinds = job["history"].as_array().unwrap().iter();
    let kinds: Vec<_> = kinds.map(|event| event["type"].as_str().unwrap()).collect();
    assert!(!kinds.contains(&"crashed"), "{job:#}");
    fleet.copies("third").await;
    // The checkpoint of the stop was found: nothing was looked at again.
    let job = fleet
        .until(&path, |job| job["info"]["docs_written"] == 3)
        .await;
    assert_eq!(job["info"]["started_from"], "checkpoint", "{job:#}");
}

/// With the default time-out.
#[tokio::test]
async fn a_node_that_is_killed_is_replaced() {
    replaced(Fleet::new().await).await;
}

#[tokio::test]
async fn a_node_that_is_killed_is_replaced_on_foundationdb() {
    if let Some(store) = e2e::fdb_url() {
        replaced(Fleet::on(Some(&store), &HURRY).await).await;
    }
}

/// Its writes after it wakes up do no harm, and it continues to work with the others.
#[tokio::test]
async fn a_node_that_is_paused_for_too_long_is_replaced_and_wakes_up_to_nothing() {
    paused(Fleet::on(None, &HURRY).await).await;
}

#[tokio::test]
async fn a_node_that_is_paused_for_too_long_is_replaced_on_foundationdb() {
    if let Some(store) = e2e::fdb_url() {
        paused(Fleet::on(Some(&store), &HURRY).await).await;
    }
}

async fn paused(mut fleet: Fleet) {
    let (path, name) = fleet.begin().await;
    fleet.copies("second").await;
    let other = fleet.other(name);
    loop {
        fleet.node(name).signal(Signal::STOP).unwrap();
        let root = fleet.root();
        let replaced = root.until(&path, |job| job["node"] == other);
        if timeout(REPLACED_MAX, replaced).await.is_ok() {
            break;
        }
        // It was paused while it had the lock of the embedded store, so the others wait for it.
        fleet.node(name).signal(Signal::CONT).unwrap();
        fleet
            .until(&path, |job| {
                job["node"] == name && job["state"] == "running"
            })
            .await;
    }
    fleet.copies("third").await;
    fleet.node(name).signal(Signal::CONT).unwrap();
    e2e::until("it does not hear of it", || {
        fleet
            .node(name)
            .log()
            .contains("the job is no longer this node's")
    })
    .await
    .unwrap();
    fleet.copies("fourth").await;
    let job = fleet.until(&path, |job| job["state"] == "running").await;
    assert_eq!(job["node"], other, "{job:#}");
    let (status, log) = fleet.take(other).stop().await.unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
    fleet.until(&path, |job| job["node"] == name).await;
    fleet.copies("fifth").await;
    fleet.assert_equal();
    let job = fleet
        .until(&path, |job| job["info"]["docs_written"].is_u64())
        .await;
    let kinds = job["history"].as_array().unwrap().iter();
    let kinds: Vec<_> = kinds.map(|event| event["type"].as_str().unwrap()).collect();
    assert!(!kinds.contains(&"crashed"), "{job:#}");
}

/// The node dies of it at any point, and the others continue.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_node_without_memory_is_replaced() {
    let mut fleet = Fleet::on(None, &HURRY).await;
    let (path, name) = fleet.begin().await;
    fleet.copies("second").await;
    let node = fleet.take(name);
    e2e::take_memory(node.pid().unwrap()).unwrap();
    let text = "x".repeat(2_000_000);
    for n in 0..60 {
        let document = json!({"_id": format!("large{n}"), "text": text});
        fleet.source.put("db", &document.to_string()).unwrap();
    }
    let (status, log) = node.ended().await.unwrap();
    assert!(!status.success(), "{log}");
    let other = fleet.nodes[0].0;
    fleet.until(&path, |job| job["node"] == other).await;
    fleet.copies("third").await;
    let all = || {
        fleet
            .target
            .get("copy", "large59")
            .is_ok_and(|found| found.is_some())
    };
    e2e::until("not all is copied", all).await.unwrap();
    fleet.assert_equal();
}

async fn replaced(mut fleet: Fleet) {
    let (path, name) = fleet.begin().await;
    fleet.copies("second").await;
    let began = tokio::time::Instant::now();
    fleet.take(name).kill().await.unwrap();
    let other = fleet.nodes[0].0;
    fleet.until(&path, |job| job["node"] == other).await;
    println!("taken over in {:?}", began.elapsed());
    fleet.copies("third").await;
    let (status, log) = fleet.take(other).stop().await.unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
}
