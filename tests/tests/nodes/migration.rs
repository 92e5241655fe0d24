//! Replications move from a real CouchDB and back, by the lines of docs/operations.md.

use std::time::Duration;

use e2e::{PATIENCE, Start};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::CouchDb;
use tokio::time::timeout;

use crate::pages::{block, page, shell};

const DOC: &str = "_replicator/move15-doc";
const OTHER: &str = "move15%2F_replicator/other";
const DATABASES: [&str; 3] = ["move15-source", "move15-target", "move15%2F_replicator"];

/// Sends JSON to a server that the URL has credentials for.
async fn send(method: Method, url: &str, body: Option<&Value>) -> Value {
    let request = Client::new().request(method, url);
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    let answer = request.send().await.unwrap();
    answer.json().await.unwrap()
}

/// Asks until the answer is such.
async fn until(url: &str, such: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let asked = async {
        loop {
            last = send(Method::GET, url, None).await;
            if such(&last) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let asked = timeout(PATIENCE, asked).await;
    assert!(asked.is_ok(), "{url} stays {last:#}");
    last
}

/// The replications of this test among the tasks of a server.
fn tasks(all: &Value) -> Vec<&Value> {
    let all = all.as_array().into_iter().flatten();
    let is_ours = |task: &&Value| {
        let source = task["source"].as_str();
        source.is_some_and(|url| url.contains(DATABASES[0]))
    };
    all.filter(is_ours).collect()
}

/// A move of two replications, by the lines of the page.
struct Move {
    couch: CouchDb,
    page: String,
    directory: TempDir,
}

impl Move {
    fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.couch.url)
    }

    /// Runs the lines of the page that contain a text; a frontend is named with its credentials.
    async fn run(&self, text: &str, frontend: &str) -> String {
        let (name, password) = &self.couch.admin;
        let host = self.couch.plain_url.strip_prefix("http://").unwrap();
        let lines = block(&self.page, text);
        let lines = (lines.replace("NAME:PASSWORD@frontend:5985", frontend))
            .replace("NAME:PASSWORD", &format!("{name}:{password}"))
            .replace("couchdb:5984", host)
            .replace("other%2F_replicator", DATABASES[2]);
        let done = shell(&lines, self.directory.path()).await;
        let printed = [&done.stdout[..], &done.stderr[..]].concat();
        String::from_utf8_lossy(&printed).into_owned()
    }

    /// One replication runs in CouchDB, and another has completed there.
    async fn seed(&self) {
        for database in DATABASES {
            send(Method::DELETE, &self.url(database), None).await;
            send(Method::PUT, &self.url(database), None).await;
        }
        let first = self.url("move15-source/first");
        send(Method::PUT, &first, Some(&json!({}))).await;
        let old = send(Method::GET, &self.url(DOC), None).await;
        if let Some(rev) = old["_rev"].as_str() {
            let old = self.url(&format!("{DOC}?rev={rev}"));
            send(Method::DELETE, &old, None).await;
        }
        let mut body = json!({"source": self.url(DATABASES[0]), "target": self.url(DATABASES[1])});
        for (path, continuous) in [(OTHER, false), (DOC, true)] {
            body["continuous"] = continuous.into();
            let put = send(Method::PUT, &self.url(path), Some(&body)).await;
            assert_eq!(put["ok"], true, "{put}");
        }
        let other = self.url(&format!("_scheduler/docs/{OTHER}"));
        until(&other, |doc| doc["state"] == "completed").await;
        until(&self.url("_active_tasks"), |all| !tasks(all).is_empty()).await;
    }

    /// The configuration of the nodes, converted and completed.
    async fn configure(&self) -> String {
        self.run("davenport import config", "").await;
        let file = self.directory.path().join("davenport.toml");
        let converted = std::fs::read_to_string(&file).unwrap();
        let uuid = send(Method::GET, &self.url(""), None).await["uuid"].clone();
        assert!(converted.contains(&format!("uuid = {uuid}")), "{converted}");
        let more = format!(
            "\n[upstream]\nurl = \"{}\"\n[admins]\nlocal = \"pass\"\n[store]\nurl = \"lmdb:{}\"\n",
            self.couch.plain_url,
            self.directory.path().join("data").display()
        );
        std::fs::write(&file, converted + &more).unwrap();
        file.display().to_string()
    }

    async fn clean(&self) {
        let doc = send(Method::GET, &self.url(DOC), None).await;
        let rev = doc["_rev"].as_str().unwrap();
        send(Method::DELETE, &self.url(&format!("{DOC}?rev={rev}")), None).await;
        for database in DATABASES {
            send(Method::DELETE, &self.url(database), None).await;
        }
    }
}

#[tokio::test]
async fn replications_move_and_return() {
    let Some(couch) = CouchDb::find() else {
        return;
    };
    let moved = Move {
        couch,
        page: page("docs/operations.md"),
        directory: tempfile::tempdir().unwrap(),
    };
    moved.seed().await;
    let config = moved.configure().await;
    let start = |program| {
        let start = Start::node(program, moved.directory.path());
        start.args(&["--config", &config])
    };
    let frontend = start("davenport-api-frontend").start().await.unwrap();
    let dry = moved.run("import replicator --from", "").await;
    assert!(dry.contains("nothing was written"), "{dry}");
    moved.run("max_jobs -d '\"0\"'", "").await;
    let all = moved.url("_active_tasks");
    until(&all, |all| tasks(all).is_empty()).await;
    let applied = moved.run("--apply", "").await;
    assert!(applied.contains("_replicator: imported:"), "{applied}");

    let node = start("davenport-replication").start().await.unwrap();
    let host = frontend.url.strip_prefix("http://").unwrap();
    let here = |path: &str| format!("http://local:pass@{host}/{path}");
    let runs = |row: &Value| row["info"]["started_from"] != Value::Null;
    let row = until(&here(&format!("_scheduler/docs/{DOC}")), runs).await;
    assert_eq!(row["info"]["started_from"], "checkpoint", "{row:#}");
    let other = here(&format!("_scheduler/docs/{OTHER}"));
    let other = send(Method::GET, &other, None).await;
    assert_eq!(other["state"], "completed", "{other:#}");
    let mut doc = send(Method::GET, &here(DOC), None).await;
    doc["changed"] = "here".into();
    doc["source"] = moved.url(DATABASES[0]).into();
    doc["target"] = moved.url(DATABASES[1]).into();
    let put = send(Method::PUT, &here(DOC), Some(&doc)).await;
    assert_eq!(put["ok"], true, "{put}");

    node.stop().await.unwrap();
    moved.run("max_jobs -d '\"500\"'", "").await;
    // CouchDB logs in, and logins at a frontend are the cluster's.
    let (name, password) = &moved.couch.admin;
    let back = format!("{name}:{password}@{host}");
    let back = moved.run("for db in _replicator", &back).await;
    assert!(!back.contains("error"), "{back}");
    until(&moved.url(DOC), |doc| doc["changed"] == "here").await;
    until(&all, |all| !tasks(all).is_empty()).await;
    moved.clean().await;
    frontend.stop().await.unwrap();
}
