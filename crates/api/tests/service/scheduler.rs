//! `_scheduler`, `_active_tasks` and `_metrics`

use serde_json::{Value, json};

use crate::world::World;

/// The ids that a listing of documents has.
fn listed(answer: &Value) -> Vec<String> {
    let docs = answer["docs"].as_array().unwrap().iter();
    docs.map(|doc| doc["doc_id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn jobs_are_listed_in_order_and_by_pages() {
    let world = World::idle().await;
    for n in 0..5 {
        let more = json!({"target": format!("http://t/{n}"), "continuous": true});
        world.write("_replicator", &format!("doc{n}"), &more).await;
    }
    let root = world.root();
    let all = root.get("/_scheduler/jobs").await;
    assert_eq!(all.header("content-type"), "application/json");
    assert!(!all.header("x-couch-request-id").is_empty());
    assert!(!all.header("x-couchdb-body-time").is_empty());
    let all = all.gives(200);
    assert_eq!((&all["total_rows"], &all["offset"]), (&json!(5), &json!(0)));
    let jobs = all["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 5);
    let job = &jobs[0];
    assert_eq!(job["database"], "_replicator");
    assert_eq!(job["source"], format!("{}/", world.peer.database_url("a")));
    let made = job["start_time"].as_str().unwrap();
    assert!(
        made.starts_with("2023-11-14T22:") && made.ends_with('Z'),
        "{made}"
    );
    let expected = json!({
        "database": "_replicator", "id": null, "pid": null, "source": job["source"],
        "target": job["target"], "user": null, "doc_id": job["doc_id"], "info": null,
        "history": [{"timestamp": made, "type": "added"}], "node": null,
        "start_time": made, "state": "pending", "job_id": job["job_id"],
    });
    assert_eq!(job, &expected);
    let page = root.get("/_scheduler/jobs?limit=2&skip=1").await.gives(200);
    assert_eq!(
        (&page["total_rows"], &page["offset"]),
        (&json!(5), &json!(1))
    );
    assert_eq!(page["jobs"].as_array().unwrap()[..], jobs[1..3]);
    let bookmark = page["bookmark"].as_str().unwrap();
    let rest = root
        .get(&format!("/_scheduler/jobs?bookmark={bookmark}"))
        .await
        .gives(200);
    assert_eq!(rest["jobs"].as_array().unwrap()[..], jobs[3..]);
    assert_eq!(rest.get("bookmark"), None);
}

#[tokio::test]
async fn jobs_are_filtered() {
    let world = World::idle().await;
    for n in 0..5 {
        let more = json!({"target": format!("http://t/{n}"), "continuous": true});
        world.write("_replicator", &format!("doc{n}"), &more).await;
    }
    let root = world.root();
    for (query, count) in [
        ("limit=0", 0),
        ("skip=9", 0),
        ("states=pending", 5),
        ("states=RUNNING,failed", 0),
        ("states=initializing", 0),
        ("database=_replicator", 5),
        ("database=other/_replicator", 0),
        ("endpoint=t/3", 1),
    ] {
        let answer = root
            .get(&format!("/_scheduler/jobs?{query}"))
            .await
            .gives(200);
        assert_eq!(answer["jobs"].as_array().unwrap().len(), count, "{query}");
        assert_eq!(answer["total_rows"], 5);
    }
    for (query, reason) in [
        ("limit=x", "limit must be an integer"),
        ("limit=-1", "limit not in range of [0,infinity]"),
        ("skip=-1", "skip not in range of [0,infinity]"),
        ("bookmark=x", "`bookmark` is not valid"),
        (
            "states=running,odd",
            "Unknown states [odd]. Choose from: [initializing,error,running,pending,crashing,completed,failed]",
        ),
    ] {
        let answer = root.get(&format!("/_scheduler/jobs?{query}")).await;
        answer.refuses(400, "query_parse_error", reason);
    }
    let refused = root.post("/_scheduler/jobs", &json!({})).await;
    assert_eq!(
        (refused.status.as_u16(), refused.header("allow")),
        (405, "GET,HEAD")
    );
    let gone = root.get("/_scheduler/jobs/none").await;
    gone.refuses(404, "not_found", "missing");
    let anonymous = world.fixture.anonymous().get("/_scheduler/jobs").await;
    anonymous.refuses(401, "unauthorized", "You are not a server admin.");
}

#[tokio::test]
async fn documents_are_listed_by_id() {
    let world = World::idle().await;
    for n in 0..5 {
        let more = json!({"target": format!("http://t/{n}")});
        world.write("_replicator", &format!("doc{n}"), &more).await;
    }
    let root = world.root();
    let all = root.get("/_scheduler/docs").await.gives(200);
    assert_eq!(listed(&all), ["doc0", "doc1", "doc2", "doc3", "doc4"]);
    assert_eq!((&all["total_rows"], &all["offset"]), (&json!(5), &json!(0)));
    let row = &all["docs"][0];
    let made = row["start_time"].as_str().unwrap();
    assert!(
        made.starts_with("2023-11-14T22:") && made.ends_with('Z'),
        "{made}"
    );
    let expected = json!({
        "database": "_replicator", "doc_id": "doc0", "id": null, "node": null, "pid": null,
        "source": format!("{}/", world.peer.database_url("a")), "target": "http://t/0/",
        "source_proxy": null, "target_proxy": null, "state": "pending", "info": null,
        "error_count": 0, "last_updated": made, "start_time": made, "job_id": row["job_id"],
    });
    assert_eq!(row, &expected);
    assert!(row["job_id"].as_str().unwrap().ends_with("|doc0"));
    for (query, offset, ids) in [
        ("limit=2", 0, &["doc0", "doc1"][..]),
        ("limit=2&skip=2", 2, &["doc2", "doc3"]),
        ("descending=true&limit=1", 0, &["doc4"]),
        ("startkey=%22doc3%22", 3, &["doc3", "doc4"]),
        ("key=%22doc3%22", 3, &["doc3"]),
        (
            "start_key=%22doc1%22&end_key=%22doc2%22",
            1,
            &["doc1", "doc2"],
        ),
        (
            "startkey=%22doc1%22&endkey=%22doc2%22&inclusive_end=false",
            1,
            &["doc1"],
        ),
        ("states=failed", 0, &[]),
        ("states=pending&limit=1", 0, &["doc0"]),
        ("states=initializing", 0, &[]),
    ] {
        let answer = root
            .get(&format!("/_scheduler/docs?{query}"))
            .await
            .gives(200);
        assert_eq!(listed(&answer), ids, "{query}");
        assert_eq!(
            (&answer["total_rows"], &answer["offset"]),
            (&json!(5), &json!(offset)),
            "{query}"
        );
    }
}

#[tokio::test]
async fn databases_are_named_by_either_path() {
    let world = World::idle().await;
    let replications = &world.fixture.replications;
    replications
        .create_database("other/_replicator")
        .await
        .unwrap();
    world.write("other/_replicator", "a/b", &json!({})).await;
    let root = world.root();
    for path in [
        "/_scheduler/docs/other%2F_replicator",
        "/_scheduler/docs/other/_replicator",
    ] {
        assert_eq!(listed(&root.get(path).await.gives(200)), ["a/b"], "{path}");
        let one = root.get(&format!("{path}/a%2Fb")).await.gives(200);
        assert_eq!(
            (&one["doc_id"], &one["state"]),
            (&json!("a/b"), &json!("pending"))
        );
    }
    root.get("/_scheduler/docs/_replicator/none")
        .await
        .refuses(404, "not_found", "missing");
    root.get("/_scheduler/docs/none/_replicator").await.refuses(
        404,
        "not_found",
        "Database does not exist.",
    );
    root.get("/_scheduler/docs/_replicator/a/b")
        .await
        .refuses(400, "bad_request", "Invalid path");
    for (query, reason) in [
        ("startkey=7", "startkey must be a string"),
        ("limit=x", "Invalid value for integer: \"x\""),
        ("skip=-1", "Invalid value for positive integer: \"-1\""),
        ("inclusive_end=x", "Invalid boolean parameter: \"x\""),
    ] {
        let wrong = root.get(&format!("/_scheduler/docs?{query}")).await;
        wrong.refuses(400, "query_parse_error", reason);
    }
}

#[tokio::test]
async fn long_listings_come_piece_by_piece() {
    let world = World::idle().await;
    for n in 0..1_100 {
        let more = json!({"target": format!("http://t/{n}")});
        world
            .write("_replicator", &format!("doc{n:04}"), &more)
            .await;
    }
    let root = world.root();
    let docs = root.get("/_scheduler/docs").await.gives(200);
    let ids = docs["docs"].as_array().unwrap().iter();
    let ids: Vec<_> = ids.map(|doc| doc["doc_id"].as_str().unwrap()).collect();
    let expected: Vec<_> = (0..1_100).map(|n| format!("doc{n:04}")).collect();
    assert_eq!(ids, expected);
    let part = root
        .get("/_scheduler/docs?limit=700&skip=300")
        .await
        .gives(200);
    assert_eq!(part["docs"].as_array().unwrap().len(), 700);
    assert_eq!(part["docs"][0]["doc_id"], "doc0300");
    let jobs = root.get("/_scheduler/jobs?limit=1050").await.gives(200);
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 1_050);
    assert!(jobs["bookmark"].is_string());
    let jobs = root.get("/_scheduler/jobs?limit=5000").await.gives(200);
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 1_100);
}

#[tokio::test]
async fn jobs_are_restarted_paused_and_resumed() {
    let world = World::new().await;
    let started = world
        .replicate(&json!({"continuous": true}))
        .await
        .gives(202);
    let path = format!(
        "/_scheduler/jobs/{}",
        started["_local_id"].as_str().unwrap()
    );
    let root = world.root();
    let tasks = world
        .until("/_active_tasks", |tasks| tasks[0]["docs_written"] == 3)
        .await;
    let task = &tasks[0];
    for (name, value) in [
        ("type", json!("replication")),
        ("user", json!("root")),
        ("replication_id", started["_local_id"].clone()),
        ("continuous", json!(true)),
        ("node", json!("node1")),
        ("database", Value::Null),
    ] {
        assert_eq!(task[name], value, "{name}");
    }
    let pid = task["pid"].clone();
    let ok = json!({"ok": true});
    let act = async |action: &str| {
        let answer = root.post(&format!("{path}/{action}"), &json!({})).await;
        assert_eq!(answer.gives(200), ok, "{action}");
    };
    act("_restart").await;
    world
        .until(&path, |job| job["state"] == "running" && job["pid"] != pid)
        .await;
    act("_pause").await;
    let paused = world.until(&path, |job| job["state"] == "pending").await;
    assert_eq!(paused["info"]["paused"], true, "{paused:#}");
    assert_eq!(root.get("/_active_tasks").await.gives(200), json!([]));
    act("_resume").await;
    world.until(&path, |job| job["state"] == "running").await;
    let failures = root.get(&format!("{path}/failures")).await.gives(200);
    assert_eq!(failures, json!({"failures": []}));
    let refused = root.get(&format!("{path}/_restart")).await;
    refused.refuses(405, "method_not_allowed", "Only POST allowed");
    let none = root
        .post("/_scheduler/jobs/none/_restart", &json!({}))
        .await;
    none.refuses(404, "not_found", "missing");
    let anonymous = world.fixture.anonymous();
    let refused = anonymous
        .post(&format!("{path}/_restart"), &json!({}))
        .await;
    refused.refuses(401, "unauthorized", "You are not a server admin.");
}

/// What a run keeps is stored with its job.
#[tokio::test]
async fn a_job_that_runs_again_takes_few_requests() {
    let world = World::new().await;
    world.peer.create_database("copy").unwrap();
    let target = world.peer.database_url("copy");
    let result = world
        .replicate(&json!({"target": target, "create_target": false}))
        .await
        .gives(200);
    let locals = world.peer.contents("a").unwrap().locals;
    let (local, _) = locals.first_key_value().unwrap();
    let path = format!("/_scheduler/jobs/{}", local.trim_start_matches("_local/"));
    let rev = world.peer.get("a", "1").unwrap().unwrap()["_rev"].clone();
    let update = json!({"_id": "1", "_rev": rev, "n": 1});
    world.peer.put("a", &update.to_string()).unwrap();
    world.peer.clear_requests();
    let restarted = world
        .root()
        .post(&format!("{path}/_restart"), &json!({}))
        .await;
    assert_eq!(restarted.gives(200), json!({"ok": true}), "{result:#}");
    world
        .until(&path, |job| {
            job["state"] == "completed" && job["info"]["docs_written"] == 4
        })
        .await;
    let requests = world.peer.requests();
    assert_eq!(requests.len(), 6, "{requests:#?}");
}

/// It would fail again with the same error, so it is not reported as running.
#[tokio::test]
async fn what_describes_no_replication_is_not_restarted() {
    let world = World::new().await;
    let replications = &world.fixture.replications;
    let docs = replications.docs();
    let db = docs.open(&docs.name("_replicator").unwrap()).await.unwrap();
    // It was let in by a configuration that has changed since.
    let doc = document::doc::Doc::parse(r#"{"source":7,"target":"http://t.example/b"}"#).unwrap();
    let edit = docstore::Edit::new("bad", doc).unwrap();
    let hook = replications.hook(scheduler::Writer::Replicator);
    let put = docs.put(&db, &edit, docstore::EditMode::NewEdits, &hook);
    put.await.unwrap();
    let path = "/_scheduler/docs/_replicator/bad";
    let row = world.until(path, |row| row["state"] == "failed").await;
    let job = row["job_id"].as_str().unwrap().replace('|', "%7C");
    let path = format!("/_scheduler/jobs/{job}/_restart");
    let refused = world.root().post(&path, &json!({})).await;
    let reason = "The document does not describe a replication; correct it first.";
    refused.refuses(403, "forbidden", reason);
}

#[tokio::test]
async fn metrics_are_what_the_process_has_measured() {
    let world = World::idle().await;
    let answer = world.root().get("/_metrics").await;
    assert_eq!(answer.status.as_u16(), 200);
    assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4");
    assert_eq!(answer.text, "measured 1\n");
    let couchdbs = world.root().get("/_node/_local/_prometheus").await;
    assert_eq!(couchdbs.text, answer.text);
    let anonymous = world.fixture.anonymous().get("/_metrics").await;
    anonymous.refuses(401, "unauthorized", "You are not a server admin.");
}
