//! `POST /_replicate`

use http::Method;
use peer::Peer;
use serde_json::json;

use crate::fixture::Answer;
use crate::world::World;

#[tokio::test]
async fn a_replication_that_ends_is_waited_for() {
    let world = World::new().await;
    let answer = world.replicate(&json!({})).await;
    let result = answer.gives(200);
    assert_eq!(answer.header("x-couch-replication-job").len(), 32);
    assert_eq!(result["ok"], true);
    assert_eq!(result["replication_id_version"], 4);
    let session = &result["history"][0];
    assert_eq!(session["session_id"], result["session_id"]);
    for (name, count) in [
        ("missing_checked", 3),
        ("missing_found", 3),
        ("docs_read", 3),
        ("docs_written", 3),
        ("doc_write_failures", 0),
    ] {
        assert_eq!(session[name], count, "{name}");
    }
    let again = world.replicate(&json!({})).await.gives(200);
    assert_eq!(again["no_changes"], true);
    // What it came to is found afterwards.
    let job = answer.header("x-couch-replication-job").to_owned();
    let job = world.root().get(&format!("/_scheduler/jobs/{job}")).await;
    assert_eq!(job.gives(200)["state"], "completed");
    let target = world.peer.database_url("c");
    let none = json!({"use_checkpoints": false, "target": target});
    let none = world.replicate(&none).await;
    let expected = json!({"ok": true, "use_checkpoints": false});
    assert_eq!(none.gives(200), expected);
}

#[tokio::test]
async fn a_continuous_replication_is_started_once_and_cancelled_by_id_or_body() {
    let world = World::new().await;
    let continuous = json!({"continuous": true});
    let answer = world.replicate(&continuous).await;
    let started = answer.gives(202);
    let id = started["_local_id"].as_str().unwrap().to_owned();
    assert_eq!(started, json!({"ok": true, "_local_id": id}));
    assert!(id.ends_with("+continuous+create_target"), "{id}");
    let path = format!("/_scheduler/jobs/{id}");
    let before = world.root().get(&path).await.gives(200);
    let again = world.replicate(&continuous).await;
    assert_eq!(again.gives(202), started);
    let job = |answer: &Answer| answer.header("x-couch-replication-job").to_owned();
    assert_eq!(job(&again), job(&answer));
    let after = world.root().get(&path).await.gives(200);
    assert_eq!(
        (&after["pid"], &after["history"]),
        (&before["pid"], &before["history"])
    );
    // A blank is a `+` that was not escaped.
    let blank = path.replace('+', "%20");
    assert_eq!(world.root().get(&blank).await.gives(200)["id"], id);
    let cancel = json!({"continuous": true, "cancel": true});
    let cancelled = world.replicate(&cancel).await;
    assert_eq!(cancelled.gives(200), json!({"ok": true, "_local_id": id}));
    let twice = world.replicate(&cancel).await;
    twice.refuses(404, "not_found", "missing");
    world.replicate(&continuous).await.gives(202);
    for name in ["_local_id", "replication_id", "id"] {
        let mut by_id = json!({"cancel": true});
        by_id[name] = id.replace('+', " ").into();
        let answer = world.root().post("/_replicate", &by_id).await;
        assert_eq!(answer.gives(200)["_local_id"], id, "{name}");
        world.replicate(&continuous).await.gives(202);
    }
    world.root().get(&path).await.gives(200);
    assert_eq!(
        world.root().delete(&path).await.gives(200),
        json!({"ok": true})
    );
    let gone = world.root().get(&path).await;
    gone.refuses(404, "not_found", "missing");
}

#[tokio::test]
async fn who_may_not_wait_does_not() {
    let world = World::idle().await;
    world.fixture.add_user("anna", "a", &[]).await;
    world.fixture.add_user("berta", "b", &[]).await;
    let body = world.body(&json!({"continuous": true}));
    let anonymous = world.fixture.anonymous().post("/_replicate", &body).await;
    anonymous.refuses(401, "unauthorized", "You are not an authenticated user");
    let anna = world.fixture.user("anna", "a");
    let started = anna.post("/_replicate?async=true", &body).await;
    let job = started.gives(202)["job_id"].as_str().unwrap().to_owned();
    assert_eq!(started.header("x-couch-replication-job"), job);
    let cancel = json!({"cancel": true, "id": job});
    let berta = world.fixture.user("berta", "b");
    let refused = berta.post("/_replicate", &cancel).await;
    refused.refuses(401, "unauthorized", "You are not a server admin.");
    // Jobs of documents are not to be had by requests.
    world.write("_replicator", "doc", &json!({})).await;
    let row = world.root().get("/_scheduler/jobs").await.gives(200);
    let of_doc = row["jobs"].as_array().unwrap().iter();
    let of_doc = of_doc.clone().find(|job| job["doc_id"] == "doc").unwrap();
    let cancel_doc = json!({"cancel": true, "id": of_doc["job_id"]});
    let refused = world.root().post("/_replicate", &cancel_doc).await;
    refused.refuses(401, "unauthorized", "Persistent replication collision");
    let cancelled = world.root().post("/_replicate", &cancel).await;
    assert_eq!(cancelled.gives(200), json!({"ok": true, "_local_id": job}));
    // A caller that waits for a job learns that it was cancelled.
    let waiting = anna.post("/_replicate", &body);
    let cancelling = async {
        let path = format!("/_scheduler/jobs/{job}");
        world.until(&path, |job| job["state"] == "pending").await;
        world.root().delete(&path).await.gives(200);
    };
    let (answer, ()) = tokio::join!(waiting, cancelling);
    answer.refuses(404, "not_found", "missing");
}

#[tokio::test]
async fn bad_requests_are_refused_in_couchdbs_words() {
    let world = World::idle().await;
    let root = world.root();
    let refused = root.get("/_replicate").await;
    refused.refuses(405, "method_not_allowed", "Only POST allowed");
    assert_eq!(refused.header("allow"), "POST");
    let form = root.clone().with("content-type", "text/plain");
    let refused = form.send(Method::POST, "/_replicate", "{}").await;
    refused.refuses(
        415,
        "bad_content_type",
        "Content-Type must be application/json",
    );
    let (s, t) = ("http://s/x", "http://t/x");
    for (body, reason) in [
        (json!([]), "Request body must be a JSON object"),
        (json!({"target": t}), "Missing `source` field"),
        (json!({"source": s}), "Missing `target` field"),
        (
            json!({"source": "x", "target": t}),
            "local_endpoints_not_supported",
        ),
        (
            json!({"source": s, "target": t, "continuous": 1}),
            "`continuous` must be a boolean",
        ),
        (
            json!({"source": s, "target": t, "cancel": 1}),
            "`cancel` must be a boolean",
        ),
        (
            json!({"source": s, "target": t, "doc_ids": [], "selector": {}}),
            "`doc_ids`,`filter`,`selector` are mutually  exclusive",
        ),
        (
            json!({"source": s, "target": t, "filter": "no"}),
            "Invalid filter. Must match `ddocname/filtername`.",
        ),
    ] {
        let answer = root.post("/_replicate", &body).await;
        answer.refuses(400, "bad_request", reason);
    }
    let body = json!({"source": {"url": "http://"}, "target": t});
    let answer = root.post("/_replicate", &body).await;
    answer.refuses(400, "invalid_replication", "endpoint has an invalid url");
}

#[tokio::test]
async fn failures_are_told_as_couchdb_tells_them() {
    let world = World::new().await;
    let missing = world.peer.database_url("missing");
    let answer = world.replicate(&json!({"source": missing})).await;
    answer.refuses(500, "db_not_found", &format!("could not open {missing}/"));
    let filter = json!({"filter": "no/such"});
    let answer = world.replicate(&filter).await;
    assert_eq!(answer.gives(404)["error"], "not_found");
    let closed = json!({"members": {"roles": ["_admin"]}, "admins": {"roles": ["_admin"]}});
    world.peer.set_security("a", &closed).unwrap();
    world.peer.set_admin("root", "secret");
    let answer = world.replicate(&json!({})).await;
    let source = world.peer.database_url("a");
    let reason = format!("unauthorized to access or create database {source}/");
    answer.refuses(401, "unauthorized", &reason);
    let source = source.replace("http://", "http://eve:s3cr3t@");
    let answer = world.replicate(&json!({"source": source})).await;
    assert_eq!(answer.gives(500)["error"], "replication_auth_error");
    assert!(!answer.text.contains("s3cr3t"), "{}", answer.text);
}

#[tokio::test]
async fn names_are_databases_of_the_configured_server() {
    let peer = Peer::start(peer::Options::default()).await.unwrap();
    peer.create_database("a").unwrap();
    peer.put("a", r#"{"_id":"1"}"#).unwrap();
    let options = scheduler::Options {
        local_endpoint_base_url: peer.url(),
        ..scheduler::Options::default()
    };
    let mut world = World::with(options).await;
    world.run_jobs();
    // The caller's own password is used there.
    peer.set_admin("root", "s3cret");
    let body = json!({"source": "a", "target": "b", "create_target": true});
    let answer = world.root().post("/_replicate", &body).await;
    assert_eq!(answer.gives(200)["history"][0]["docs_written"], 1);
    let answer = world.root().get("/_scheduler/jobs").await;
    assert!(!answer.text.contains("Basic"), "{}", answer.text);
}

#[tokio::test]
async fn a_client_that_goes_away_stops_nothing() {
    let mut world = World::idle().await;
    let body = world.body(&json!({}));
    {
        let root = world.root();
        let waiting = root.post("/_replicate", &body);
        let looking = world.until("/_scheduler/jobs", |jobs| jobs["total_rows"] == 1);
        tokio::select! {
            answer = waiting => panic!("{answer:?}"),
            _ = looking => {}
        }
    }
    world.run_jobs();
    world
        .until("/_scheduler/jobs", |jobs| jobs["total_rows"] == 0)
        .await;
    assert!(world.peer.get("b", "3").unwrap().is_some());
}
