//! Several processes of different roles on one directory: nobody's end loses anything.

use std::path::Path;

use e2e::{Node, Start, User};
use peer::{Options, Peer};
use serde_json::{Value, json};

struct Fleet {
    _directory: tempfile::TempDir,
    frontend: Node,
    /// By name.
    nodes: Vec<(&'static str, Node)>,
    source: Peer,
    target: Peer,
}

async fn replication(directory: &Path, name: &str) -> Node {
    let start = Start::node("davenport-replication", directory).named(name);
    start.start().await.unwrap()
}

impl Fleet {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let peer = || Peer::start(Options::default());
        let (source, target) = (peer().await.unwrap(), peer().await.unwrap());
        source.create_database("db").unwrap();
        source.put("db", r#"{"_id":"first"}"#).unwrap();
        let start = Start::node("davenport-api-frontend", directory.path()).admin();
        let frontend = start.start().await.unwrap();
        let mut nodes = Vec::new();
        for name in ["a", "b"] {
            nodes.push((name, replication(directory.path(), name).await));
        }
        Self {
            _directory: directory,
            frontend,
            nodes,
            source,
            target,
        }
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

    /// Waits until a document that is written now is on the target.
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
    let mut fleet = Fleet::new().await;
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

#[tokio::test]
async fn a_node_that_is_killed_is_replaced() {
    let mut fleet = Fleet::new().await;
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
