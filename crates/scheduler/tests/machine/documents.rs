//! Jobs created by documents.

use replication::id::ReplicationId;
use serde_json::{Value, json};

use crate::fixture::World;

#[tokio::test]
async fn a_finished_job_updates_its_document() {
    let world = World::new().await;
    for n in 0..3 {
        world
            .peer
            .put("a", &json!({"_id": format!("d{n}")}).to_string())
            .unwrap();
    }
    world
        .put(
            "one",
            &json!({"_replication_state": "triggered", "extra": 1.5}),
        )
        .await;
    let row = world.until_state("one", "pending").await;
    assert_eq!(
        (&row["id"], &row["info"], &row["doc_id"]),
        (&Value::Null, &Value::Null, &json!("one"))
    );
    let _node = world.node("n1").await;
    let row = world.until_state("one", "completed").await;
    assert_eq!(row["info"]["docs_written"], 3);
    assert_eq!(row["info"]["missing_revisions_found"], 3);
    assert_eq!(row["info"].get("completed_with_failures"), None);
    assert_eq!(
        (&row["node"], &row["error_count"]),
        (&Value::Null, &json!(0))
    );
    let doc = world.read("one").await.unwrap();
    assert_eq!(doc["_replication_state"], "completed");
    assert_eq!(doc["_replication_stats"]["docs_written"], 3);
    assert!(doc["_replication_stats"]["start_time"].is_string());
    assert!(
        doc["_replication_state_time"]
            .as_str()
            .unwrap()
            .ends_with('Z')
    );
    assert_eq!((&doc["extra"], &doc["owner"]), (&json!(1.5), &json!("joe")));
    // Finished jobs are not listed, but found by either id.
    let page = world
        .replications
        .scheduler_jobs(&scheduler::JobsQuery {
            limit: 10,
            ..Default::default()
        })
        .await
        .unwrap();
    assert_eq!((page.total_rows, page.jobs.len()), (0, 0));
    let id = row["id"].as_str().unwrap();
    let job = world.scheduler_job(id).await.unwrap();
    assert_eq!(job["state"], "completed");
    let kinds: Vec<_> = job["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["type"].clone())
        .collect();
    assert_eq!(kinds, ["stopped", "started", "added"]);
    world.delete("one").await;
    assert_eq!(world.scheduler_job(id).await, None);
    assert!(
        world
            .replications
            .scheduler_doc(&world.db, "one")
            .await
            .is_err()
    );
}

#[tokio::test]
async fn rejected_documents_are_reported() {
    let world = World::new().await;
    let large = json!({"_id": "large", "text": "x".repeat(2_000)});
    let documents = [json!({"_id": "small"}), large].map(|doc| doc.to_string());
    world.peer.put_all("a", documents).unwrap();
    world.peer.set_limits(peer::Limits {
        document_bytes_max: 1_000,
        ..peer::Limits::default()
    });
    world.put("one", &json!({})).await;
    let _node = world.node("n1").await;
    let row = world.until_state("one", "completed").await;
    assert_eq!(
        (
            &row["info"]["docs_written"],
            &row["info"]["doc_write_failures"]
        ),
        (&json!(1), &json!(1))
    );
    assert_eq!(row["info"]["completed_with_failures"], true);
    let doc = world.read("one").await.unwrap();
    assert_eq!(doc["_replication_stats"]["completed_with_failures"], true);
}

/// They are not tried again until they change, so later runs have nothing to say of them.
#[tokio::test]
async fn rejected_documents_stay_listed() {
    let world = World::new().await;
    let validation =
        json!({"_id": "_design/v", "validate_doc_update": peer::sources::VALIDATE_EVEN});
    world.peer.put("b", &validation.to_string()).unwrap();
    let options = scheduler::Options {
        park_after_sec: 1,
        stats_update_interval_sec: 0,
        ..scheduler::Options::default()
    };
    let mut node = world.node_with("n1", options).await;
    let job = ReplicationId::from_client(&world.job("x").to_string());
    let listed = async || {
        let failures = world.replications.job_failures(&job).await;
        let failures = failures.unwrap();
        let ids = failures.iter().map(|failed| failed["id"].to_string());
        ids.collect::<Vec<_>>()
    };
    world.peer.put("a", r#"{"_id":"odd","integer":1}"#).unwrap();
    world.put("x", &json!({"continuous": true})).await;
    node.until_parked(1).await;
    assert_eq!(listed().await, [r#""odd""#]);
    let idle =
        |n: u64| move |row: &Value| row["info"]["idle"] == true && row["info"]["docs_written"] == n;
    world
        .peer
        .put("a", r#"{"_id":"even","integer":2}"#)
        .unwrap();
    world.until("x", idle(1)).await;
    assert_eq!(listed().await, [r#""odd""#]);
    node.stop().await;
    let _node = world.node("n2").await;
    world
        .peer
        .put("a", r#"{"_id":"even2","integer":2}"#)
        .unwrap();
    world.until("x", idle(2)).await;
    assert_eq!(listed().await, [r#""odd""#]);
}

/// The node stops before a run could open its databases, which leaves what earlier runs did.
#[tokio::test]
async fn a_run_that_does_not_begin_forgets_nothing() {
    let world = World::new().await;
    let node = world.node("n1").await;
    world.peer.put("a", r#"{"_id":"x"}"#).unwrap();
    world.put("x", &json!({"continuous": true})).await;
    let first = world
        .until("x", |row| row["info"]["docs_written"] == 1)
        .await;
    node.stop().await;
    let hang = |path| (peer::On::get(path), peer::Fault::Hang);
    world
        .peer
        .set_faults(peer::Faults::script([hang("/a/"), hang("/a/_local/*")]));
    let node = world.node("n2").await;
    let another = |row: &Value| row["state"] == "running" && row["pid"] != first["pid"];
    world.until("x", another).await;
    node.stop().await;
    let row = world.until_state("x", "pending").await;
    assert_eq!(row["info"]["docs_written"], 1, "{row:#}");
    assert!(
        row["info"]["bytes_written"].as_u64().unwrap() > 0,
        "{row:#}"
    );
}

#[tokio::test]
async fn a_failed_job_is_retried() {
    let world = World::new().await;
    let _node = world.node("n1").await;
    world
        .put("x", &json!({"source": world.peer.database_url("none")}))
        .await;
    let row = world.until_state("x", "crashing").await;
    assert_eq!(row["error_count"], 1);
    assert_eq!(row["info"]["error"], "db_not_found");
    assert!(
        world
            .read("x")
            .await
            .unwrap()
            .get("_replication_state")
            .is_none()
    );
    let job = world
        .scheduler_job(&world.job("x").to_string())
        .await
        .unwrap();
    let kinds: Vec<_> = job["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["type"].clone())
        .collect();
    assert_eq!(kinds[..3], ["pending", "crashed", "started"]);
    let reason = job["history"][1]["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("db_not_found: could not open http"),
        "{reason}"
    );
    world.peer.create_database("none").unwrap();
    world.replications.restart(&world.job("x")).await.unwrap();
    let row = world.until_state("x", "completed").await;
    assert_eq!(row["error_count"], 0);
    // A finished job can be restarted, too.
    world.replications.restart(&world.job("x")).await.unwrap();
    world.until("x", |row| row["state"] != "completed").await;
    world.until_state("x", "completed").await;
}

#[tokio::test]
async fn a_duplicate_fails_and_takes_over_when_the_owner_is_deleted() {
    let world = World::new().await;
    let _node = world.node("n1").await;
    world.put("one", &json!({"continuous": true})).await;
    let one = world.until_state("one", "running").await;
    world.put("two", &json!({"continuous": true})).await;
    let two = world.until_state("two", "failed").await;
    assert_eq!(one["id"], two["id"]);
    let text = format!("Duplicate job running: {}", world.job("one"));
    assert_eq!(two["info"]["error"], text);
    let doc = world.read("two").await.unwrap();
    assert_eq!(doc["_replication_state"], "failed");
    assert_eq!(doc["_replication_state_reason"], text);
    world.until_state("one", "running").await;
    world.delete("one").await;
    world.until_state("two", "running").await;
    assert!(
        world
            .read("two")
            .await
            .unwrap()
            .get("_replication_state")
            .is_none()
    );
    world.peer.put("a", r#"{"_id":"later"}"#).unwrap();
    world.until_copied("later").await;
}

#[tokio::test]
async fn a_changed_or_paused_document_stops_its_run() {
    let world = World::new().await;
    let mut node = world.node("n1").await;
    world.put("x", &json!({"continuous": true})).await;
    let first = world.until_state("x", "running").await;
    world
        .replications
        .set_paused(&world.job("x"), true)
        .await
        .unwrap();
    node.until_running(0).await;
    let row = world.until_state("x", "pending").await;
    assert_eq!(row["info"]["paused"], true);
    assert_eq!(world.read("x").await.unwrap()["paused"], true);
    world
        .replications
        .set_paused(&world.job("x"), false)
        .await
        .unwrap();
    let again = world.until_state("x", "running").await;
    assert_eq!(again["id"], first["id"]);
    assert_ne!(again["pid"], first["pid"]);
    world
        .put("x", &json!({"continuous": true, "doc_ids": ["only"]}))
        .await;
    let other = world
        .until("x", |row| {
            row["state"] == "running" && row["id"] != first["id"]
        })
        .await;
    assert!(other["id"].as_str().unwrap().ends_with("+continuous"));
    node.until_running(1).await;
    world
        .peer
        .put_all("a", [r#"{"_id":"other"}"#, r#"{"_id":"only"}"#])
        .unwrap();
    world.until_copied("only").await;
    assert!(world.peer.get("b", "other").unwrap().is_none());
    world.delete("x").await;
    node.until_running(0).await;
}

#[tokio::test]
async fn the_store_holds_no_secrets() {
    let world = World::new().await;
    let _node = world.node("n1").await;
    world.peer.add_user("adm", "hunter2", &["_admin"]).unwrap();
    let with = |name: &str| {
        world
            .peer
            .database_url(name)
            .replace("http://", "http://adm:hunter2@")
    };
    world.put("x", &json!({"source": with("a"), "target": {"url": with("b"), "headers": {"X-Key": "hunter2"}}})).await;
    world.until_state("x", "completed").await;
    world
        .put("y", &json!({"source": with("none"), "target": with("b")}))
        .await;
    world.until_state("y", "crashing").await;
    assert!(!world.dump().await.contains("hunter2"));
}

/// The next run waits for that checkpoint, however soon it is asked for.
#[tokio::test]
async fn a_deleted_job_leaves_a_checkpoint() {
    let world = World::new().await;
    let _node = world.node("n1").await;
    world.peer.put("a", r#"{"_id":"x"}"#).unwrap();
    for n in 1..4 {
        world.put("doc", &json!({"continuous": true})).await;
        let row = world
            .until("doc", |row| row["info"]["docs_written"] == n)
            .await;
        let from = if n == 1 { "none" } else { "checkpoint" };
        assert_eq!(row["info"]["started_from"], from, "{row:#}");
        let late = format!(r#"{{"_id":"late{n}"}}"#);
        world.peer.put("a", &late).unwrap();
        world.until_copied(&format!("late{n}")).await;
        world.delete("doc").await;
    }
}

#[tokio::test]
async fn jobs_go_with_their_database() {
    let world = World::new().await;
    let mut node = world.node("n1").await;
    for n in 0..3 {
        let ids = json!({"continuous": true, "doc_ids": [n.to_string()]});
        world.put(&format!("doc{n}"), &ids).await;
    }
    node.until_running(3).await;
    world.replications.delete_database(&world.db).await.unwrap();
    let all = scheduler::JobsQuery {
        limit: 5,
        ..Default::default()
    };
    let page = world.replications.scheduler_jobs(&all).await.unwrap();
    assert_eq!(page.jobs, [] as [Value; 0]);
    node.until_running(0).await;
}
