//! Fields of `_scheduler/docs`, `_scheduler/jobs` and `_active_tasks`, one by one.

use serde_json::{Value, json};

use crate::world::World;

/// A replication that runs and one that has ended, as `_scheduler/docs` has them.
async fn both(world: &World) -> (Value, Value) {
    let more = json!({
        "continuous": true, "source_proxy": "", "target": world.peer.database_url("c"),
    });
    world.write("_replicator", "goes", &more).await;
    world.write("_replicator", "ends", &json!({})).await;
    let goes = "/_scheduler/docs/_replicator/goes";
    let runs = |row: &Value| row["state"] == "running" && row["info"]["docs_written"] == 3;
    let goes = world.until(goes, runs).await;
    let ends = "/_scheduler/docs/_replicator/ends";
    let ends = world.until(ends, |row| row["state"] == "completed").await;
    (goes, ends)
}

fn names(row: &Value) -> String {
    let mut names: Vec<_> = row.as_object().unwrap().keys().cloned().collect();
    names.sort();
    names.join(" ")
}

fn is_time(value: &Value) {
    let text = value.as_str().unwrap();
    let form = text.len() == 20 && text.ends_with('Z') && &text[10..11] == "T";
    assert!(form, "{text}");
}

#[tokio::test]
async fn documents_have_couchdbs_fields() {
    let world = World::new().await;
    let (goes, ends) = both(&world).await;
    for row in [&goes, &ends] {
        let fields = "database doc_id error_count id info job_id last_updated node pid source \
                      source_proxy start_time state target target_proxy";
        assert_eq!(names(row), fields);
        is_time(&row["last_updated"]);
        is_time(&row["start_time"]);
        assert_eq!(row["database"], "_replicator");
        assert_eq!(row["source"], format!("{}/", world.peer.database_url("a")));
        assert_eq!(row["error_count"], 0);
        assert_eq!(row["source_proxy"], Value::Null);
        for name in [
            "revisions_checked",
            "missing_revisions_found",
            "docs_read",
            "docs_written",
        ] {
            assert_eq!(row["info"][name], 3, "{name}");
        }
        assert_eq!(row["info"]["doc_write_failures"], 0);
    }
    let id = goes["id"].as_str().unwrap();
    assert!(id.len() > 32 && id.contains("+continuous"), "{id}");
    assert_eq!(
        (&goes["node"], &ends["node"]),
        (&json!("node1"), &Value::Null)
    );
    assert!(goes["pid"].is_string() && ends["pid"].is_null());
    for name in [
        "changes_pending",
        "checkpointed_source_seq",
        "source_seq",
        "through_seq",
    ] {
        assert!(goes["info"].get(name).is_some(), "{name}: {goes:#}");
    }
}

#[tokio::test]
async fn jobs_have_couchdbs_fields() {
    let world = World::new().await;
    let (goes, ends) = both(&world).await;
    // The listing has what is not finished; by its id a job is found in any state.
    let jobs = world.root().get("/_scheduler/jobs").await.gives(200);
    assert_eq!(
        (&jobs["total_rows"], &jobs["offset"]),
        (&json!(1), &json!(0))
    );
    let job = &jobs["jobs"][0];
    let fields =
        "database doc_id history id info job_id node pid source start_time state target user";
    assert_eq!(names(job), fields);
    for name in [
        "id",
        "doc_id",
        "node",
        "pid",
        "source",
        "target",
        "start_time",
        "state",
    ] {
        assert_eq!(job[name], goes[name], "{name}");
    }
    let events: Vec<_> = job["history"].as_array().unwrap().iter().rev().collect();
    let kinds = (&events[0]["type"], &events[1]["type"]);
    assert_eq!(kinds, (&json!("added"), &json!("started")));
    for event in events {
        is_time(&event["timestamp"]);
    }
    let ended = ends["job_id"].as_str().unwrap().replace('|', "%7C");
    let ended = world.root().get(&format!("/_scheduler/jobs/{ended}")).await;
    assert_eq!(ended.gives(200)["state"], "completed");
    let blank = goes["id"].as_str().unwrap().replace('+', "%20");
    let by_id = world.root().get(&format!("/_scheduler/jobs/{blank}")).await;
    assert_eq!(by_id.gives(200)["doc_id"], "goes");
}

#[tokio::test]
async fn tasks_have_couchdbs_fields() {
    let world = World::new().await;
    let (goes, _) = both(&world).await;
    let tasks = world.root().get("/_active_tasks").await.gives(200);
    let task = &tasks[0];
    for name in ["started_on", "updated_on", "checkpoint_interval"] {
        assert!(task[name].is_u64(), "{name}: {task:#}");
    }
    for (name, value) in [
        ("type", json!("replication")),
        ("user", Value::Null),
        ("database", json!("_replicator")),
        ("doc_id", json!("goes")),
        ("replication_id", goes["id"].clone()),
        ("source", goes["source"].clone()),
        ("target", goes["target"].clone()),
        ("continuous", json!(true)),
        ("node", goes["node"].clone()),
        ("pid", goes["pid"].clone()),
        ("docs_written", json!(3)),
    ] {
        assert_eq!(task[name], value, "{name}");
    }
    for path in ["/_scheduler/jobs", "/_scheduler/docs", "/_active_tasks"] {
        let head = world.root().head(path).await;
        assert_eq!((head.status.as_u16(), head.text.as_str()), (200, ""));
        for name in ["x-couch-request-id", "x-couchdb-body-time"] {
            assert!(!head.header(name).is_empty(), "{path} {name}");
        }
    }
}
