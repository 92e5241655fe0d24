//! One process with both roles.

use e2e::{ADMIN, Start};
use peer::{Options, Peer};
use serde_json::{Value, json};

async fn peers() -> (Peer, Peer) {
    let peer = || Peer::start(Options::default());
    let (source, target) = (peer().await.unwrap(), peer().await.unwrap());
    source.create_database("db").unwrap();
    let documents = (0..100).map(|n| format!(r#"{{"_id":"{n:03}"}}"#));
    source.put_all("db", documents).unwrap();
    (source, target)
}

fn differences(source: &Peer, target: &Peer) -> usize {
    let contents = |peer: &Peer, name| peer.contents(name).unwrap().without_locals();
    peer::compare(&contents(source, "db"), &contents(target, "copy")).len()
}

#[tokio::test]
async fn a_request_replicates_and_its_result_outlives_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = peers().await;
    source.set_admin("anna", "s3cr3t-of-anna");
    let start = Start::node("davenport", directory.path()).admin();
    let node = start.start().await.unwrap();
    let root = node.root();
    let (_, welcome) = root.get("/").await.unwrap();
    assert_eq!(welcome["vendor"]["name"], "Davenport");
    let (anonymous, _) = node.user("", "").get("/_scheduler/jobs").await.unwrap();
    assert_eq!(anonymous, 401);
    let from = source.database_url("db");
    let request = json!({
        "source": from.replace("http://", "http://anna:s3cr3t-of-anna@"),
        "target": target.database_url("copy"), "create_target": true,
    });
    let (status, result) = root.post("/_replicate", &request).await.unwrap();
    assert_eq!(status, 200, "{result}");
    assert_eq!(result["ok"], true);
    assert_eq!(result["history"][0]["docs_written"], 100);
    assert_eq!(differences(&source, &target), 0);
    // The second run finds the checkpoint.
    let (status, again) = root.post("/_replicate", &request).await.unwrap();
    assert_eq!((status.as_u16(), &again["no_changes"]), (200, &json!(true)));
    let (_, started) = root.post("/_replicate?async=true", &request).await.unwrap();
    let job = format!("/_scheduler/jobs/{}", started["job_id"].as_str().unwrap());
    root.until(&job, |job| job["state"] == "completed")
        .await
        .unwrap();
    let (status, log) = node.stop().await.unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("s3cr3t"), "{log}");
    // The store has credentials only sealed, with a key that is next to it.
    for file in std::fs::read_dir(directory.path().join("data")).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        let shown = bytes.windows(8).any(|bytes| bytes == b"s3cr3t-o");
        assert!(!shown);
    }
    assert!(directory.path().join("data.keys").exists());
    let node = start.start().await.unwrap();
    let (status, found) = node.root().get(&job).await.unwrap();
    assert_eq!(status, 200);
    assert_eq!(found["state"], "completed");
    let (_, metrics) = node.root().get("/_metrics").await.unwrap();
    let metrics = metrics.as_str().unwrap();
    assert!(metrics.contains("davenport_info{"), "{metrics}");
    assert!(
        metrics.contains("couchdb_httpd_requests_total"),
        "{metrics}"
    );
    let counted = |metrics: &Value| {
        let metrics = metrics.as_str().unwrap_or_default();
        metrics.contains("davenport_replications{state=\"completed\"} 1")
            && metrics.contains("davenport_replications{state=\"crashing\"} 0")
    };
    node.root().until("/_metrics", counted).await.unwrap();
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_document_replicates_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = peers().await;
    let node = Start::node("davenport", directory.path()).admin();
    let node = node.start().await.unwrap();
    let root = node.root();
    let (status, _) = root.put("/_replicator", &json!({})).await.unwrap();
    assert_eq!(status, 412, "it is there from the first start");
    let document = json!({
        "source": source.database_url("db"), "target": target.database_url("copy"),
        "create_target": true,
    });
    let (status, made) = root.put("/_replicator/once", &document).await.unwrap();
    assert_eq!(status, 201, "{made}");
    let done = |doc: &Value| doc["_replication_state"] == "completed";
    let doc = root.until("/_replicator/once", done).await.unwrap();
    assert_eq!(doc["_replication_stats"]["docs_written"], 100, "{doc:#}");
    assert_eq!(differences(&source, &target), 0);
    let (_, row) = root.get("/_scheduler/docs/_replicator/once").await.unwrap();
    assert_eq!(row["state"], "completed");
    let wrong = json!({"source": "nowhere", "target": "nowhere"});
    let (status, refused) = root.put("/_replicator/wrong", &wrong).await.unwrap();
    assert_eq!(status, 403);
    assert_eq!(refused["reason"], "local_endpoints_not_supported");
    let own =
        json!({"source": format!("{}/_replicator", node.url), "target": "http://t.example/x"});
    let (status, refused) = root.put("/_replicator/own", &own).await.unwrap();
    assert_eq!(status, 403, "{refused}");
    let gone = source
        .database_url("gone")
        .replace("http://", "http://anna:s3cr3t-of-anna@");
    let document = json!({"source": gone, "target": target.database_url("copy")});
    root.put("/_replicator/gone", &document).await.unwrap();
    let crashing = |row: &Value| row["state"] == "crashing";
    let row = "/_scheduler/docs/_replicator/gone";
    root.until(row, crashing).await.unwrap();
    let (_, log) = node.stop().await.unwrap();
    let private = log.matches("reach a private address").count();
    assert_eq!(private, 2, "once for each server\n{log}");
    let failed = log
        .lines()
        .find(|line| line.contains("run failed"))
        .unwrap();
    let shown = [
        " WARN ".to_owned(),
        r#"db="_replicator""#.to_owned(),
        r#"doc.id="gone""#.to_owned(),
        "replication_auth_error".to_owned(),
        source.database_url("gone"),
        target.database_url("copy"),
    ];
    for part in shown {
        assert!(failed.contains(&part), "{part}\n{failed}");
    }
    assert!(!log.contains("s3cr3t"), "{log}");
}

#[tokio::test]
async fn a_stop_does_not_wait_for_those_who_wait() {
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = peers().await;
    // No node runs it, so the client would wait for ever.
    let start = Start::node("davenport", directory.path()).admin();
    let node = start.clone().args(&["--roles", "api_frontend"]);
    let node = node.start().await.unwrap();
    let request =
        json!({"source": source.database_url("db"), "target": target.database_url("copy")});
    let root = node.root();
    let waiting = {
        let (root, request) = (root.clone(), request.clone());
        tokio::spawn(async move { root.post("/_replicate", &request).await })
    };
    root.until("/_scheduler/jobs", |jobs| jobs["total_rows"] == 1)
        .await
        .unwrap();
    let (status, log) = node.stop().await.unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
    let (status, _) = waiting.await.unwrap().unwrap();
    assert_eq!(status, 503);
    // The job still exists for a replication node.
    let node = start.start().await.unwrap();
    let root = node.root();
    root.until("/_scheduler/jobs", |jobs| jobs["total_rows"] == 0)
        .await
        .unwrap();
    node.stop().await.unwrap();
}

#[tokio::test]
async fn the_command_line_steers_jobs() {
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = peers().await;
    let start = Start::node("davenport", directory.path()).admin();
    let node = start.start().await.unwrap();
    let request = json!({
        "source": source.database_url("db"), "target": target.database_url("copy"),
        "create_target": true, "continuous": true,
    });
    let (status, started) = node.root().post("/_replicate", &request).await.unwrap();
    assert_eq!(status, 202, "{started}");
    let id = started["_local_id"].as_str().unwrap();
    let user = format!("{}:{}", ADMIN.0, ADMIN.1);
    let jobs = async |args: &[&str]| {
        let start = Start::new("davenport", &["jobs", "--url", &node.url]).args(args);
        let start = start.variable("DAVENPORT_USER", &user);
        start.output().await.unwrap()
    };
    let (code, out, error) = jobs(&["list"]).await;
    assert_eq!(code, Some(0), "{error}");
    assert!(out.starts_with("STATE    ID"), "{out}");
    assert!(out.contains(id) && out.contains("running"), "{out}");
    let (_, out, _) = jobs(&["list", "--states", "crashing"]).await;
    assert!(!out.contains(id), "{out}");
    let (_, out, _) = jobs(&["show", id]).await;
    assert!(out.contains("state") && out.contains("running"), "{out}");
    let (code, out, _) = jobs(&["restart", id]).await;
    assert_eq!((code, out), (Some(0), format!("restarted {id}\n")));
    let (code, out, error) = jobs(&["cancel", id]).await;
    assert_eq!(
        (code, out),
        (Some(0), format!("cancelled {id}\n")),
        "{error}"
    );
    let (code, _, error) = jobs(&["show", id]).await;
    assert_eq!(code, Some(1));
    assert!(error.contains("there is no job"), "{error}");

    // What has failed, by document and by cause.
    let missing =
        json!({"source": source.database_url("none"), "target": target.database_url("copy")});
    let (status, _) = node
        .root()
        .put("/_replicator/broken", &missing)
        .await
        .unwrap();
    assert_eq!(status, 201);
    let doc = "/_scheduler/docs/_replicator/broken";
    let crashing = |doc: &Value| doc["state"] == "crashing";
    node.root().until(doc, crashing).await.unwrap();
    let (_, out, error) = jobs(&["list", "--states", "crashing,failed,idle"]).await;
    assert!(out.contains("_replicator/broken"), "{out}{error}");
    let (_, out, _) = jobs(&["list", "--states", "idle,completed"]).await;
    assert!(!out.contains("broken"), "{out}");
    for name in ["broken", "_replicator/broken"] {
        let (_, out, error) = jobs(&["show", name]).await;
        assert!(out.contains("db_not_found"), "{out}{error}");
    }
    let (_, _, error) = jobs(&["list", "--states", "broken"]).await;
    assert!(error.contains("failed, finished, dead]"), "{error}");
    let (_, _, error) = jobs(&["restart", "--error", "unauthorized"]).await;
    assert!(error.contains("0 jobs restarted"), "{error}");
    source.create_database("none").unwrap();
    let (_, out, error) = jobs(&["restart", "--error", "db_not_found"]).await;
    assert!(
        out.starts_with("restarted ") && error.contains("1 job restarted"),
        "{out}{error}"
    );
    let completed = |doc: &Value| doc["state"] == "completed";
    node.root().until(doc, completed).await.unwrap();
    let (_, out, error) = jobs(&["list", "--states", "completed"]).await;
    assert!(out.contains("_replicator/broken"), "{out}{error}");
    node.stop().await.unwrap();
}
