//! Changing the keys of credentials, as an operator does.

use std::path::Path;
use std::time::Duration;

use e2e::{Start, User};
use peer::{Options, Peer};
use serde_json::{Value, json};

const DOCUMENTS: usize = 2_000;
/// Jobs of a sealed type.
const JOBS: usize = 400;

/// Writes a key file with these keys.
fn write_keys(directory: &Path, names: &[&str]) {
    let line = |name: &&str| format!("{name} {}\n", hex(name.as_bytes()[0]).repeat(32));
    let lines: String = names.iter().map(line).collect();
    write_lines(directory, &lines);
}

fn write_lines(directory: &Path, lines: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let path = directory.join("data.keys");
    std::fs::write(&path, lines).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn hex(byte: u8) -> String {
    format!("{byte:02x}")
}

/// The output of `davenport keys list`.
async fn list(directory: &Path) -> Value {
    let store = format!("lmdb:{}", directory.join("data").display());
    let list = Start::new("davenport", &["keys", "list", "--json", "--store", &store]);
    let (_, out, error) = list.output().await.unwrap();
    serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{error}"))
}

/// Names of the keys that the store needs.
fn needed(list: &Value) -> Vec<&str> {
    let keys = list["keys"].as_array().unwrap().iter();
    let keys = keys.filter(|key| key["needed"] == true);
    keys.map(|key| key["name"].as_str().unwrap()).collect()
}

async fn refused(start: &Start<'_>, key: &str) {
    for args in [&[][..], &["--check-config"]] {
        let (code, _, error) = start.clone().args(args).output().await.unwrap();
        assert_eq!(code, Some(2), "{error}");
        assert!(
            error.contains(&format!("`{key}`"))
                || error.contains(&format!("with {key},"))
                || error.contains(&format!("the key {key} of")),
            "{error}"
        );
    }
}

fn runs(row: &Value) -> bool {
    row["state"] == "running"
}

const COPY: &str = "/_scheduler/docs/_replicator/copy";

/// Many documents with credentials, and one whose replication runs; and jobs of a sealed type.
async fn fill(root: &User, peer: &Peer) {
    root.put("/_replicator", &json!({})).await.unwrap();
    let docs = (0..DOCUMENTS).map(|n| {
        json!({
            "_id": format!("d{n:04}"), "source": format!("http://u:s3cr3t@s.example/{n}"),
            "target": "http://t.example/b", "paused": true,
        })
    });
    let docs = json!({"docs": docs.collect::<Vec<_>>()});
    let (status, _) = root.post("/_replicator/_bulk_docs", &docs).await.unwrap();
    assert_eq!(status, 201);
    let copy = json!({
        "source": peer.database_url("db"), "target": peer.database_url("copy"),
        "create_target": true, "continuous": true,
    });
    root.put("/_replicator/copy", &copy).await.unwrap();
    root.until(COPY, runs).await.unwrap();
    let sealed = json!({"sealed": true});
    root.put("/_jobs/secret", &sealed).await.unwrap();
    let job = |n| json!({"id": format!("j{n}"), "data": format!("hunter2 {n}")});
    let jobs = json!({"jobs": (0..JOBS).map(job).collect::<Vec<_>>()});
    let (status, _) = root.post("/_jobs/secret", &jobs).await.unwrap();
    assert_eq!(status, 201);
    let schedule = json!({"type": "secret", "every_sec": 86_400, "job": {"data": "hunter2"}});
    root.put("/_schedules/secret", &schedule).await.unwrap();
}

/// Whether a text is in the files of the store.
fn is_stored(directory: &Path, text: &str) -> bool {
    let files = std::fs::read_dir(directory.join("data")).unwrap();
    let mut files = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
    files.any(|bytes| {
        bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    })
}

/// Waits until everything is sealed with the new key.
async fn sealed_anew(directory: &Path, root: &User) {
    let mut listed = list(directory).await;
    while needed(&listed) != ["new"] {
        tokio::time::sleep(Duration::from_millis(50)).await;
        listed = list(directory).await;
    }
    assert_eq!(listed["old"], json!([]));
    let pass = &listed["pass"];
    assert_eq!(
        (&pass["done"], &pass["unreadable"]),
        (&json!(true), &json!(0))
    );
    let in_use = |metrics: &Value| {
        let metrics = metrics.as_str().unwrap_or_default();
        metrics.contains("davenport_keys_in_use 1")
    };
    root.until("/_metrics", in_use).await.unwrap();
}

#[tokio::test]
async fn keys_are_changed_while_the_service_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let peer = Peer::start(Options::default()).await.unwrap();
    peer.create_database("db").unwrap();
    let docs = (0..20).map(|n| format!(r#"{{"_id":"{n:03}"}}"#));
    peer.put_all("db", docs).unwrap();
    write_keys(directory, &["old"]);
    // The job of a killed node comes back soon.
    let timeout = ["--set", "couch_jobs.job_timeout_sec=3"];
    let start = Start::node("davenport", directory).admin().args(&timeout);
    let node = start.start().await.unwrap();
    fill(&node.root(), &peer).await;
    let (_, before) = node.root().get("/_replicator/d0042").await.unwrap();
    let (_, info) = node.root().get("/_replicator").await.unwrap();
    node.kill().await.unwrap();

    write_keys(directory, &["new"]);
    refused(&start, "old").await;
    write_keys(directory, &["new", "old"]);
    // Killed while resealing, perhaps more than once.
    for _ in 0..3 {
        start.start().await.unwrap().kill().await.unwrap();
    }
    let node = start.start().await.unwrap();
    let root = node.root();
    root.until(COPY, runs).await.unwrap();
    sealed_anew(directory, &root).await;
    // It restarted nothing, and changed no document.
    let (_, row) = root.get(COPY).await.unwrap();
    assert!(runs(&row), "{row}");
    let (_, after) = root.get("/_replicator").await.unwrap();
    assert_eq!(after["update_seq"], info["update_seq"]);
    peer.put_all("db", [r#"{"_id":"late"}"#.to_owned()])
        .unwrap();
    let copied = || {
        peer.contents("copy")
            .is_ok_and(|copy| copy.documents.len() == 21)
    };
    e2e::until("the job goes on", copied).await.unwrap();
    node.stop().await.unwrap();

    write_keys(directory, &["new"]);
    check(directory, &start).await;
    let node = start.start().await.unwrap();
    let (_, doc) = node.root().get("/_replicator/d0042").await.unwrap();
    assert_eq!(doc, before);
    let source = doc["source"].as_str().unwrap();
    assert!(source.contains("u:s3cr3t@"), "{doc}");
    let (_, job) = node.root().get("/_jobs/secret/j42").await.unwrap();
    assert_eq!(job["data"], "hunter2 42");
    let (_, schedule) = node.root().get("/_schedules/secret").await.unwrap();
    assert_eq!(schedule["job"]["data"], "hunter2");
    node.stop().await.unwrap();
    assert!(is_stored(directory, "d0042") && is_stored(directory, "j42"));
    assert!(!is_stored(directory, "hunter2"));
    write_keys(directory, &["old"]);
    refused(&start, "new").await;
}

/// Configuration and store agree, and nothing is sealed with the old key.
async fn check(directory: &Path, start: &Start<'_>) {
    let usable = start.clone().args(&["--check-config"]);
    let (code, out, error) = usable.output().await.unwrap();
    assert_eq!(code, Some(0), "{out}{error}");
    let store = format!("lmdb:{}", directory.join("data").display());
    let check = Start::new("davenport", &["store", "check", "--store", &store]);
    let (code, out, error) = check.output().await.unwrap();
    assert_eq!(code, Some(0), "{out}{error}");
    // With that of the running replication, and the schedule.
    let jobs = DOCUMENTS + 1 + JOBS + 1;
    let grouped = |n: usize| format!("{},{:03}", n / 1000, n % 1000);
    let (documents, jobs) = (grouped(DOCUMENTS), grouped(jobs));
    let says = format!("sealed with the key new: {documents} documents and {jobs} jobs");
    assert!(out.contains(&says) && !out.contains("key old"), "{out}");
}

#[tokio::test]
async fn keys_are_changed_without_a_node() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    write_keys(directory, &["old"]);
    let start = Start::node("davenport", directory).admin();
    let start = start.args(&["--roles", "api_frontend"]);
    let node = start.start().await.unwrap();
    let root = node.root();
    root.put("/_replicator", &json!({})).await.unwrap();
    let doc = json!({"source": "http://u:s3cr3t@s.example/a", "target": "http://t.example/b"});
    root.put("/_replicator/d", &doc).await.unwrap();
    node.stop().await.unwrap();
    write_keys(directory, &["new", "old"]);
    let store = format!("lmdb:{}", directory.join("data").display());
    let reseal = Start::new("davenport", &["keys", "reseal", "--store", &store]);
    let (code, out, error) = reseal.output().await.unwrap();
    assert_eq!(code, Some(0), "{out}{error}");
    assert!(
        out.contains("sealed with new: 2 of 2 documents and jobs"),
        "{out}"
    );
    write_keys(directory, &["new"]);
    start.start().await.unwrap().stop().await.unwrap();
    // Another key of that name.
    write_lines(directory, &format!("new {}\n", hex(b'x').repeat(32)));
    refused(&start, "new").await;
    let listed = list(directory).await;
    assert_eq!(listed["keys"][0]["is_another"], true, "{listed}");
    write_keys(directory, &["new"]);
    start.start().await.unwrap().stop().await.unwrap();
    let nowhere = Start::new(
        "davenport",
        &["keys", "list", "--store", "lmdb:/nowhere/data"],
    );
    let (code, _, error) = nowhere.output().await.unwrap();
    assert!(code == Some(2) && error.contains("no store at"), "{error}");
}
