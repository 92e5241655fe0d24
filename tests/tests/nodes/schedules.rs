//! Schedules of frontends that are killed, and the command line for jobs of users.

use std::path::Path;

use e2e::{ADMIN, Node, Start};
use reqwest::Method;
use serde_json::{Value, json};

const KILLS: usize = 6;

async fn start(directory: &Path, name: &str) -> Node {
    let start = Start::node("davenport", directory).admin().named(name);
    start.start().await.unwrap()
}

async fn put(node: &Node, path: &str, body: Value) {
    let (status, told) = node.root().put(path, &body).await.unwrap();
    assert_eq!(status, 201, "{told}");
}

#[tokio::test]
async fn an_occurrence_has_one_job_whatever_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let mut nodes = Vec::new();
    for name in ["a", "b"] {
        nodes.push(start(directory.path(), name).await);
    }
    put(&nodes[0], "/_jobs/mail", json!({})).await;
    let every = json!({
        "type": "mail", "job": {"data": 1}, "every_sec": 1, "overlap": "queue", "catch_up": "all",
    });
    put(&nodes[0], "/_schedules/tick", every).await;
    let mut occurred = Value::Null;
    for kill in 0..KILLS {
        let moved = |found: &Value| found["last"]["occurrence"] != occurred;
        let found = nodes[0]
            .root()
            .until("/_schedules/tick", moved)
            .await
            .unwrap();
        occurred = found["last"]["occurrence"].clone();
        nodes.remove(0).kill().await.unwrap();
        nodes.push(start(directory.path(), ["a", "b"][kill % 2]).await);
    }
    let moved = |found: &Value| found["last"]["occurrence"] != occurred;
    let root = nodes[0].root();
    let found = root.until("/_schedules/tick", moved).await.unwrap();
    let (_, removed) = root
        .send(Method::DELETE, "/_schedules/tick", None)
        .await
        .unwrap();
    assert_eq!(removed["ok"], true, "{removed}");
    let (_, ty) = root.get("/_jobs/mail/_type").await.unwrap();
    let (_, listed) = root.get("/_jobs/mail?limit=500").await.unwrap();
    // Of the day.
    let seconds = |id: &str| -> u32 {
        let (_, time) = id.split_once('T').unwrap();
        let parts = time.trim_end_matches('Z').split(['.', ':']).take(3);
        parts.fold(0, |sum, part| sum * 60 + part.parse::<u32>().unwrap())
    };
    let jobs = listed["jobs"].as_array().unwrap();
    let times: Vec<u32> = jobs
        .iter()
        .map(|job| seconds(job["id"].as_str().unwrap()))
        .collect();
    assert!(times.len() > KILLS, "{listed:#} {found:#}");
    assert!(
        times
            .windows(2)
            .all(|pair| (pair[0] + 1) % 86_400 == pair[1]),
        "{times:?}"
    );
    assert_eq!(ty["totals"]["created"], times.len());
    for node in nodes {
        node.stop().await.unwrap();
    }
}

/// What the command line prints.
async fn run(node: &Node, args: &[&str]) -> String {
    let user = format!("{}:{}", ADMIN.0, ADMIN.1);
    let start = Start::new("davenport", args).args(&["--url", &node.url]);
    let start = start.variable("DAVENPORT_USER", &user);
    let (code, out, error) = start.output().await.unwrap();
    assert_eq!(code, Some(0), "{args:?}: {error}");
    out
}

#[tokio::test]
async fn the_command_line_handles_jobs_of_any_type() {
    let directory = tempfile::tempdir().unwrap();
    let node = start(directory.path(), "a").await;
    let root = node.root();
    put(&node, "/_jobs/mail", json!({"retry": {"limit": 0}})).await;
    let (_, added) = root
        .post("/_jobs/mail", &json!({"id": "a/b", "data": {"to": 1}}))
        .await
        .unwrap();
    assert_eq!(added["ok"], true);
    let (_, claimed) = root
        .post("/_jobs/mail/_claim", &json!({"worker": "w"}))
        .await
        .unwrap();
    let failed = json!({
        "id": "a/b", "lock": claimed["jobs"][0]["lock"], "outcome": "failed", "error": "no route",
    });
    root.post("/_jobs/mail/_finish", &json!({"jobs": [failed]}))
        .await
        .unwrap();
    let types = run(&node, &["jobs", "types"]).await;
    assert!(
        types.contains("mail") && types.contains("webhooks"),
        "{types}"
    );
    let of_mail = ["jobs", "--type", "mail"];
    let jobs = async |args: &[&str]| run(&node, &[&of_mail[..], args].concat()).await;
    let dead = jobs(&["list", "--states", "dead"]).await;
    assert!(dead.contains("a/b") && dead.contains("no route"), "{dead}");
    let shown = jobs(&["show", "a/b"]).await;
    assert!(shown.contains("failed by w: no route"), "{shown}");
    assert_eq!(jobs(&["restart", "--all"]).await, "restarted 1 dead job\n");
    assert!(jobs(&["list", "--states", "pending"]).await.contains("a/b"));
    assert_eq!(jobs(&["cancel", "a/b"]).await, "removed a/b\n");
    assert_eq!(jobs(&["pause"]).await, "paused mail\n");
    let types = run(&node, &["jobs", "types"]).await;
    assert!(types.contains("paused"), "{types}");
    assert_eq!(jobs(&["resume"]).await, "resumed mail\n");
    assert!(!jobs(&["list"]).await.contains("a/b"));
    node.stop().await.unwrap();
}

#[tokio::test]
async fn the_command_line_handles_schedules() {
    let directory = tempfile::tempdir().unwrap();
    let node = start(directory.path(), "a").await;
    put(&node, "/_jobs/mail", json!({})).await;
    let file = directory.path().join("nightly.json");
    let nightly =
        json!({"type": "mail", "job": {"data": 1}, "cron": "30 2 * * *", "zone": "Europe/Berlin"});
    std::fs::write(&file, nightly.to_string()).unwrap();
    let made = run(
        &node,
        &["schedules", "put", "nightly", file.to_str().unwrap()],
    )
    .await;
    assert!(made.starts_with("next occurrence: 20"), "{made}");
    let listed = run(&node, &["schedules", "list"]).await;
    assert!(
        listed.contains("nightly") && listed.contains("30 2 * * *"),
        "{listed}"
    );
    assert!(
        run(&node, &["schedules", "show", "nightly"])
            .await
            .contains("Europe/Berlin")
    );
    assert!(
        run(&node, &["schedules", "run", "nightly"])
            .await
            .starts_with("added nightly@now-")
    );
    let jobs = run(&node, &["jobs", "--type", "mail", "list"]).await;
    assert!(jobs.contains("nightly@now-"), "{jobs}");
    assert_eq!(
        run(&node, &["schedules", "remove", "nightly"]).await,
        "removed nightly\n"
    );
    node.stop().await.unwrap();
}
