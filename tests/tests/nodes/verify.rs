//! `davenport verify`, with a peer, PouchDB Server and Apache CouchDB.

use std::time::Duration;

use e2e::Start;
use peer::{Fault, Faults, On, Options, Peer};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{CouchDb, PouchDb};

/// More than one request asks about.
const DOCS: usize = 230;

/// Two databases that are deleted at the end.
struct Pair {
    source: String,
    target: String,
    client: Client,
    directory: TempDir,
}

impl Pair {
    async fn new(source: &str, target: &str) -> Self {
        let name = format!("verify-{}", std::process::id());
        let pair = Self {
            source: format!("{source}/{name}-a"),
            target: format!("{target}/{name}-b"),
            client: Client::new(),
            directory: tempfile::tempdir().unwrap(),
        };
        for database in [&pair.source, &pair.target] {
            pair.send(Method::PUT, database, &Value::Null).await;
        }
        pair
    }

    async fn send(&self, method: Method, url: &str, body: &Value) -> Value {
        let request = self.client.request(method, url);
        let request = if body.is_null() {
            request
        } else {
            request.json(body)
        };
        let answer = request.send().await.unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        assert!(status.is_success(), "{url}: {status} {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Writes revisions as they are.
    async fn force(&self, database: &str, docs: Value) {
        let body = json!({"new_edits": false, "docs": docs});
        self.send(Method::POST, &format!("{database}/_bulk_docs"), &body)
            .await;
    }

    async fn run(&self, command: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
        let words = [&[command, &self.source, &self.target], arguments].concat();
        Start::new("davenport", &words).output().await.unwrap()
    }

    async fn differences(&self, arguments: &[&str]) -> (Option<i32>, Vec<Value>) {
        let arguments = [&["--json"], arguments].concat();
        let (code, out, error) = self.run("verify", &arguments).await;
        assert_eq!(error, "");
        let mut lines: Vec<Value> =
            (out.lines().map(|line| serde_json::from_str(line).unwrap())).collect();
        let end = lines.pop().unwrap();
        assert_eq!(end["differences"], lines.len());
        (code, lines)
    }

    async fn fill(&self) {
        let docs: Vec<Value> = (0..DOCS)
            .map(|number| json!({"_id": format!("d{number}"), "number": number}))
            .collect();
        let url = format!("{}/_bulk_docs", self.source);
        self.send(Method::POST, &url, &json!({"docs": docs})).await;
        let attached = json!({"a.txt": {"content_type": "text/plain", "data": "YQ=="}});
        self.force(
            &self.source,
            json!([
                {"_id": "conflict", "_rev": "1-a"},
                {"_id": "conflict", "_rev": "1-b"},
                {"_id": "gone", "_rev": "1-a", "_deleted": true},
                {"_id": "attached", "_rev": "1-a", "_attachments": attached},
            ]),
        )
        .await;
    }

    async fn compare(&self) {
        self.fill().await;
        let (code, out, error) = self.run("replicate", &[]).await;
        assert_eq!(code, Some(0), "{out}{error}");
        let (code, out, error) = self.run("verify", &[]).await;
        let same = format!("No differences in {} documents\n", DOCS + 3);
        assert_eq!((code, out, error), (Some(0), same, String::new()));

        // The same revision, with other attachments: replication does not see that.
        let other = json!({"a.txt": {"content_type": "text/plain", "data": "Yg=="}});
        let here = json!({"a.txt": {"content_type": "text/plain", "data": "YQ=="}});
        for (database, attached) in [(&self.source, here), (&self.target, other)] {
            let docs = json!([{"_id": "forged", "_rev": "1-a", "_attachments": attached}]);
            self.force(database, docs).await;
        }
        let docs = json!([{"_id": "new", "_rev": "1-a"}, {"_id": "conflict", "_rev": "1-c"}]);
        self.force(&self.source, docs).await;
        self.force(&self.target, json!([{"_id": "extra", "_rev": "1-a"}]))
            .await;
        let found = [
            json!({"difference": "attachments", "id": "forged", "rev": "1-a", "names": ["a.txt"]}),
            json!({"difference": "leaves", "id": "conflict", "only_at_source": ["1-c"], "only_at_target": []}),
            json!({"difference": "missing_at_source", "id": "extra"}),
            json!({"difference": "missing_at_target", "id": "new"}),
        ];
        let (code, mut differences) = self.differences(&[]).await;
        differences.sort_by_key(|one| one["difference"].to_string());
        assert_eq!((code, &differences[..]), (Some(1), &found[..]));
        // They stay, however long one waits; without attachments, one less.
        let (code, differences) = self
            .differences(&["--settle-sec", "1", "--no-attachments"])
            .await;
        assert_eq!((code, differences.len()), (Some(1), 3));
        let (code, out, _) = self.run("verify", &[]).await;
        assert_eq!(code, Some(1));
        for line in [
            "extra: only at the target",
            "conflict: leaves differ; only at the source: 1-c",
            "forged: attachments of 1-a differ: a.txt",
        ] {
            assert!(out.lines().any(|printed| printed == line), "{out}");
        }
    }

    async fn end(self) {
        for database in [&self.source, &self.target] {
            self.send(Method::DELETE, database, &Value::Null).await;
        }
    }
}

#[tokio::test]
async fn databases_are_compared() {
    let peer = Peer::start(Options::default()).await.unwrap();
    let mut servers = vec![(peer.url(), peer.url())];
    if let Some(couchdb) = CouchDb::find() {
        servers.push((couchdb.url.clone(), couchdb.url.clone()));
        servers.push((peer.url(), couchdb.url));
    }
    let pouchdb = PouchDb::start().await;
    servers.extend(pouchdb.iter().map(|pouchdb| (pouchdb.url(), pouchdb.url())));
    for (source, target) in servers {
        let pair = Pair::new(&source, &target).await;
        // Servers have other defaults.
        let security = json!({"admins": {"names": ["a", "b"], "roles": []}, "members": {"names": [], "roles": []}});
        for database in [&pair.source, &pair.target] {
            pair.send(Method::PUT, &format!("{database}/_security"), &security)
                .await;
        }
        pair.compare().await;
        pair.end().await;
    }
}

#[tokio::test]
async fn a_comparison_ends_although_documents_are_written() {
    let peer = Peer::start(Options::default()).await.unwrap();
    let pair = Pair::new(&peer.url(), &peer.url()).await;
    let docs: Vec<Value> = (0..50)
        .map(|number| json!({"_id": format!("{number}")}))
        .collect();
    for database in [&pair.source, &pair.target] {
        let url = format!("{database}/_bulk_docs");
        pair.send(Method::POST, &url, &json!({"docs": docs})).await;
    }
    let write = async {
        let mut interval = tokio::time::interval(Duration::from_millis(50));
        for number in 50.. {
            interval.tick().await;
            let url = format!("{}/{number}", pair.source);
            pair.send(Method::PUT, &url, &json!({})).await;
        }
    };
    // There is a difference, however long the command takes to start.
    let url = format!("{}/first", pair.source);
    pair.send(Method::PUT, &url, &json!({})).await;
    let verify = pair.differences(&["--settle-sec", "1"]);
    let verify = tokio::time::timeout(Duration::from_secs(30), verify);
    tokio::select! {
        compared = verify => assert_eq!(compared.unwrap().0, Some(1)),
        () = write => {}
    }
}

/// It reads to the end where a server does not count all documents, and says so where it does not.
#[tokio::test]
async fn a_comparison_does_not_end_early_in_silence() {
    let peer = Peer::start(Options::default()).await.unwrap();
    let pair = Pair::new(&peer.url(), &peer.url()).await;
    let docs: Vec<Value> = (0..10_500)
        .map(|number| json!({"_id": format!("{number}"), "_rev": "1-a", "_deleted": true}))
        .collect();
    for database in [&pair.source, &pair.target] {
        pair.force(database, json!(docs)).await;
    }
    let last = json!([{"_id": "last", "_rev": "1-a"}]);
    pair.force(&pair.source, last).await;
    let count = |counts: Value| {
        let mut info = json!({"db_name": "a", "update_seq": 0, "instance_start_time": "0"});
        let info = info.as_object_mut().unwrap();
        info.extend(counts.as_object().unwrap().clone());
        let answer = Fault::Answer {
            status: 200,
            headers: vec![("Content-Type".to_owned(), "application/json".to_owned())],
            body: json!(info).to_string(),
        };
        let path = format!("{}/", pair.source.strip_prefix(&peer.url()).unwrap());
        peer.set_faults(Faults::script([(On::get(&path), answer)]));
    };
    count(json!({"doc_count": 1}));
    let found = vec![json!({"difference": "missing_at_target", "id": "last"})];
    let arguments = ["--no-attachments"];
    assert_eq!(pair.differences(&arguments).await, (Some(1), found));
    count(json!({"doc_count": 0, "doc_del_count": 0}));
    let (code, out, error) = pair.run("verify", &arguments).await;
    assert_eq!((code, out.as_str()), (Some(3), ""), "{error}");
    assert!(error.contains("SOURCE grows"), "{error}");
}

#[tokio::test]
async fn security_is_compared() {
    let peer = Peer::start(Options::default()).await.unwrap();
    let pair = Pair::new(&peer.url(), &peer.url()).await;
    for (database, names) in [(&pair.source, ["a", "b"]), (&pair.target, ["b", "a"])] {
        let security = json!({"admins": {"names": names, "roles": []}});
        pair.send(Method::PUT, &format!("{database}/_security"), &security)
            .await;
    }
    assert_eq!(pair.differences(&[]).await, (Some(0), Vec::new()));
    let security = json!({"admins": {"names": ["a"], "roles": []}});
    pair.send(
        Method::PUT,
        &format!("{}/_security", pair.target),
        &security,
    )
    .await;
    let found = vec![json!({"difference": "security"})];
    assert_eq!(pair.differences(&[]).await, (Some(1), found));
    assert_eq!(pair.differences(&["--no-security"]).await.0, Some(0));
}

/// A run continues where the last one stopped.
#[tokio::test]
async fn a_stopped_comparison_continues() {
    let peer = Peer::start(Options::default()).await.unwrap();
    let pair = Pair::new(&peer.url(), &peer.url()).await;
    pair.fill().await;
    let file = pair.directory.path().join("state").display().to_string();
    // The source was read up to its end; of the target nothing was.
    let state = json!({"source": format!("{}/", pair.source), "target": format!("{}/", pair.target),
        "reversed": true, "since": null, "documents": 7, "differences": 2});
    std::fs::write(&file, state.to_string()).unwrap();
    let (code, out, error) = pair.run("verify", &["--state", &file]).await;
    assert_eq!((code, error.as_str()), (Some(1), ""));
    assert_eq!(out, "2 differences in 7 documents\n");
    assert!(!std::path::Path::new(&file).exists());

    // A file of a similar name stays.
    let similar = pair.directory.path().join("state.new");
    std::fs::write(&similar, "precious").unwrap();
    let file_of_eu = pair.directory.path().join("state.eu").display().to_string();
    let (code, _, error) = pair.run("verify", &["--state", &file_of_eu]).await;
    assert_eq!((code, error.as_str()), (Some(1), ""));
    assert_eq!(std::fs::read_to_string(&similar).unwrap(), "precious");

    let mut other = state.clone();
    other["target"] = json!("http://other/");
    let mut without = state.clone();
    without["no_attachments"] = json!(true);
    for (text, told) in [
        (other.to_string(), "give another file"),
        (without.to_string(), "continue it with this option"),
        ("{}".to_owned(), "is not a state of davenport verify"),
    ] {
        std::fs::write(&file, text).unwrap();
        let (code, _, error) = pair.run("verify", &["--state", &file]).await;
        assert!(code == Some(2) && error.contains(told), "{error}");
    }
    std::fs::remove_file(&file).unwrap();
    pair.send(Method::DELETE, &pair.target, &Value::Null).await;
    let (code, _, error) = pair.run("verify", &[]).await;
    assert!(
        code == Some(2) && error.contains("cannot read TARGET"),
        "{error}"
    );
}

/// The result is known, but the next run with this file would compare nothing.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_state_that_cannot_be_deleted_is_an_error() {
    use std::os::fd::AsRawFd as _;

    let peer = Peer::start(Options::default()).await.unwrap();
    let pair = Pair::new(&peer.url(), &peer.url()).await;
    let path = pair.directory.path().join("state");
    let state = json!({"source": format!("{}/", pair.source), "target": format!("{}/", pair.target),
        "reversed": true, "since": null, "documents": 1, "differences": 1});
    std::fs::write(&path, state.to_string()).unwrap();
    let open = std::fs::File::open(&path).unwrap();
    let file = format!("/proc/{}/fd/{}", std::process::id(), open.as_raw_fd());
    let (code, out, error) = pair.run("verify", &["--state", &file]).await;
    assert_eq!(out, "1 difference in 1 document\n");
    assert!(
        code == Some(3) && error.contains(&format!("cannot delete {file}")),
        "{code:?} {error}"
    );
}
