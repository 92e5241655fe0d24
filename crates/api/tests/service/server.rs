//! What the service says of itself.

use std::collections::HashSet;

use http::Method;
use serde_json::json;

use crate::fixture::Fixture;

#[tokio::test]
async fn the_service_welcomes_in_couchdbs_form() {
    let fixture = Fixture::new().await;
    let answer = fixture.anonymous().get("/").await;
    let welcome = answer.gives(200);
    assert_eq!(welcome["couchdb"], "Welcome");
    assert_eq!(welcome["vendor"]["name"], "Davenport");
    assert_eq!(welcome["uuid"].as_str().unwrap().len(), 32);
    assert_eq!(answer.header("content-type"), "application/json");
    assert!(answer.header("server").starts_with("CouchDB/3.5"));
    assert_eq!(answer.header("x-couchdb-body-time"), "0");
    assert_eq!(answer.header("x-couch-request-id").len(), 10);
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
    assert!(answer.text.ends_with("}\n"));
    assert_eq!(
        fixture.anonymous().get("/_up").await.gives(200)["status"],
        "ok"
    );
    // Health is public, even with a wrong password.
    let wrong = fixture.user("root", "wrong");
    assert_eq!(wrong.get("/_up").await.gives(200)["status"], "ok");
    let refused = wrong.get("/").await;
    refused.refuses(401, "unauthorized", "Name or password is incorrect.");
}

#[tokio::test]
async fn head_is_get_without_a_body() {
    let fixture = Fixture::new().await;
    for path in ["/", "/_all_dbs", "/_replicator", "/_session", "/_nothing"] {
        let (get, head) = (
            fixture.root().get(path).await,
            fixture.root().head(path).await,
        );
        assert_eq!(head.status, get.status, "{path}");
        assert_eq!(head.text, "");
        assert_eq!(
            head.header("content-length"),
            get.text.len().to_string(),
            "{path}"
        );
    }
}

#[tokio::test]
async fn other_methods_and_paths_are_refused() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    for (path, allow) in [
        ("/", "GET,HEAD"),
        ("/_up", "GET,HEAD"),
        ("/_uuids", "GET"),
        ("/_all_dbs", "GET,HEAD"),
        ("/_dbs_info", "GET,HEAD,POST"),
        ("/_membership", "GET,HEAD"),
        ("/_sources", "GET,HEAD"),
        ("/_session", "GET,HEAD,POST,DELETE"),
    ] {
        let answer = root.put(path, &json!({})).await;
        let reason = format!("Only {allow} allowed");
        answer.refuses(405, "method_not_allowed", &reason);
        assert_eq!(answer.header("allow"), allow);
    }
    root.get("/_nothing")
        .await
        .refuses(404, "not_found", "missing");
    let absent = root.get("/ordinary").await;
    absent.refuses(404, "not_found", "Database does not exist.");
    assert_eq!(root.get("/_up/").await.status, 200);
    let long = format!("/{}", "a".repeat(40_000));
    assert_eq!(root.get(&long).await.status, 414);
    assert_eq!(root.get("/%ff").await.status, 400);
}

#[tokio::test]
async fn uuids_differ_and_are_counted() {
    let fixture = Fixture::new().await;
    let answer = fixture.anonymous().get("/_uuids?count=1000").await;
    assert_eq!(answer.header("cache-control"), "no-cache");
    let uuids = answer.gives(200)["uuids"].as_array().unwrap().clone();
    let different: HashSet<_> = uuids.iter().map(|uuid| uuid.as_str().unwrap()).collect();
    assert_eq!((uuids.len(), different.len()), (1000, 1000));
    assert!(different.iter().all(|uuid| uuid.len() == 32));
    let refused = fixture.anonymous().get("/_uuids?count=1001").await;
    refused.refuses(400, "bad_request", "count parameter too large");
    for count in ["x", "-1", ""] {
        let refused = fixture
            .anonymous()
            .get(&format!("/_uuids?count={count}"))
            .await;
        refused.refuses(400, "bad_request", "count must be a positive integer");
    }
}

#[tokio::test]
async fn databases_are_listed_for_administrators() {
    let fixture = Fixture::new().await;
    for name in ["a/_replicator", "b/_replicator"] {
        fixture.replications.create_database(name).await.unwrap();
    }
    let (root, anonymous) = (fixture.root(), fixture.anonymous());
    for (query, expected) in [
        (
            "",
            json!(["_replicator", "_users", "a/_replicator", "b/_replicator"]),
        ),
        ("?limit=1&skip=1", json!(["_users"])),
        ("?startkey=%22a%22&endkey=%22b%22", json!(["a/_replicator"])),
        ("?descending=true&limit=1", json!(["b/_replicator"])),
    ] {
        let listed = root.get(&format!("/_all_dbs{query}")).await.gives(200);
        assert_eq!(listed, expected, "{query}");
    }
    let keys = json!({"keys": ["_users", "nothing"]});
    let infos = root.post("/_dbs_info", &keys).await.gives(200);
    assert_eq!(infos[0]["info"]["db_name"], "_users");
    assert_eq!(infos[1], json!({"key": "nothing", "error": "not_found"}));
    assert_eq!(
        root.get("/_dbs_info?limit=2")
            .await
            .gives(200)
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let without = root.post("/_dbs_info", &json!({})).await;
    without.refuses(400, "bad_request", "`keys` member must exist.");
    let undeclared = root.send(Method::POST, "/_dbs_info", "{}").await;
    undeclared.refuses(
        415,
        "bad_content_type",
        "Content-Type must be application/json",
    );
    for path in ["/_all_dbs", "/_dbs_info", "/_membership"] {
        let refused = anonymous.get(path).await;
        refused.refuses(401, "unauthorized", "You are not a server admin.");
    }
    let nodes = root.get("/_membership").await.gives(200);
    assert_eq!(nodes["all_nodes"], json!(["davenport@127.0.0.1"]));
}
