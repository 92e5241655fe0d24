//! Third-party clients, over real connections.
//!
//! `TEST_CLIENTS` names the directory `tests/clients` after `npm ci`; without it there is nothing to run.

use std::process::Stdio;

use api::Options;
use jobs::Clock;
use serde_json::{Value, json};
use testkit::CouchDb;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::fixture::{Fixture, Setting, User, replication};
use crate::world::World;

/// A service that listens, and how to end it.
struct Listening {
    fixture: Fixture,
    url: String,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Listening {
    async fn start() -> Self {
        let setting = Setting {
            clock: Some(Clock::system()),
            ..Setting::default()
        };
        let fixture = Fixture::with(Options::default(), setting).await;
        fixture
            .replications
            .create_database("pouch/_replicator")
            .await
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://root:s3cret@{}", listener.local_addr().unwrap());
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        tasks.spawn(fixture.service.clone().run(listener, stop.clone()));
        Self {
            fixture,
            url,
            stop,
            tasks,
        }
    }

    async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

async fn run(script: &str) {
    let service = Listening::start().await;
    run_on(&service.url, script).await;
    service.end().await;
}

async fn run_on(url: &str, script: &str) {
    let Some(directory) = std::env::var_os("TEST_CLIENTS") else {
        eprintln!("skipped: TEST_CLIENTS names no directory of npm clients");
        return;
    };
    let ran = Command::new("node")
        .arg(script)
        .arg(url)
        .current_dir(directory)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success(), "{out}{err}");
}

#[tokio::test]
async fn pouchdb_works() {
    run("pouchdb.js").await;
}

#[tokio::test]
async fn nano_works() {
    run("nano.js").await;
}

#[tokio::test]
async fn pouchdb_works_through_a_frontend_of_a_cluster() {
    let world = World::in_front().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://boss:b0ss@{}", listener.local_addr().unwrap());
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    tasks.spawn(world.fixture.service.clone().run(listener, stop.clone()));
    run_on(&url, "upstream.js").await;
    stop.cancel();
    tasks.close();
    tasks.wait().await;
}

/// Documents with all that replication has to carry.
async fn fill(root: &User<'_>) {
    for id in ["a", "b", "c"] {
        root.put(&format!("/_replicator/{id}"), &replication())
            .await
            .gives(201);
    }
    let rev = root.get("/_replicator/b").await.json()["_rev"]
        .as_str()
        .unwrap()
        .to_owned();
    root.delete(&format!("/_replicator/b?rev={rev}"))
        .await
        .gives(200);
    let mut torn = replication();
    torn["_id"] = json!("a");
    torn["_rev"] = json!("1-0a");
    let torn = json!({"docs": [torn], "new_edits": false});
    root.post("/_replicator/_bulk_docs", &torn).await.gives(201);
    let attachment = root.clone().with("content-type", "text/plain");
    let rev = root.get("/_replicator/c").await.json()["_rev"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = format!("/_replicator/c/note.txt?rev={rev}");
    attachment
        .send(http::Method::PUT, &path, "hello")
        .await
        .gives(201);
}

/// `CouchDB` copies a replicator database from here and back, conflicts and deletions with it.
#[tokio::test]
async fn couchdb_replicates_both_ways() {
    let Some(CouchDb { url: couch, .. }) = CouchDb::find() else {
        return;
    };
    let service = Listening::start().await;
    let root = service.fixture.root();
    fill(&root).await;
    let (here, there) = (
        format!("{}/_replicator", service.url),
        format!("{couch}/from-davenport"),
    );
    let back = format!("{}/pouch%2F_replicator", service.url);
    let copy = |source: &str, target: &str| {
        json!({"source": source, "target": target, "create_target": true}).to_string()
    };
    for body in [copy(&here, &there), copy(&there, &back)] {
        let ran = Command::new("curl")
            .args(["-sS", "-X", "POST", &format!("{couch}/_replicate")])
            .args(["-H", "content-type: application/json", "-d", &body])
            .output()
            .await
            .unwrap();
        let answer: Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!(answer["ok"], true, "{answer}");
        assert_eq!(answer["history"][0]["doc_write_failures"], 0, "{answer}");
    }
    let read = async |db: &str| {
        let changes = format!("/{db}/_changes?style=all_docs&include_docs=true&attachments=true");
        let mut rows = root.get(&changes).await.json()["results"]
            .as_array()
            .unwrap()
            .clone();
        for row in &mut rows {
            row["seq"] = json!(null);
        }
        rows.sort_by_key(|row| row["id"].to_string());
        rows
    };
    let (original, copied) = (read("_replicator").await, read("pouch%2F_replicator").await);
    assert_eq!(original.len(), 3);
    assert_eq!(original, copied);
    assert_eq!(
        root.get("/pouch%2F_replicator/c/note.txt").await.text,
        "hello"
    );
    let removed = Command::new("curl")
        .args(["-sS", "-X", "DELETE", &there])
        .output()
        .await;
    assert!(removed.unwrap().status.success());
    service.end().await;
}
