//! `/_openapi.json` says what is there, and all of it.

use std::collections::BTreeSet;

use api::route::Route;
use http::Method;
use serde_json::Value;

use crate::fixture::{Fixture, replication};

/// A path with something in the place of its parameters.
fn example(path: &str) -> String {
    path.replace("{db}", "_replicator")
        .replace("{replicator}", "_replicator")
        .replace("{rules}", "_rules")
        .replace("{docid}", "doc")
        .replace("{type}", "mail")
        .replace(['{', '}'], "")
}

#[tokio::test]
async fn every_operation_is_there_and_no_other() {
    let fixture = Fixture::new().await;
    let (root, anonymous) = (fixture.root(), fixture.anonymous());
    root.put("/_rules", &serde_json::json!({})).await.gives(201);
    root.put("/_replicator/doc", &replication())
        .await
        .gives(201);
    let document = anonymous.get("/_openapi.json").await.gives(200);
    assert_eq!(document["openapi"], "3.1.0");
    let events: Vec<_> = document["webhooks"].as_object().unwrap().keys().collect();
    let expected = ["failed", "lagging", "recovered"].map(|kind| format!("replication.{kind}"));
    assert_eq!(events, expected.iter().collect::<Vec<_>>());
    let paths = document["paths"].as_object().unwrap();
    for (path, operations) in paths {
        let example = example(path);
        let route = Route::parse(&example).unwrap();
        let patched = root.send(Method::PATCH, &example, "").await;
        if let Some(allow) = patched.headers.get("allow") {
            let allow = allow.to_str().unwrap().to_lowercase();
            let allowed = allow.split(',').filter(|method| *method != "head");
            let allowed: BTreeSet<_> = allowed.collect();
            let listed = operations.as_object().unwrap().keys().map(String::as_str);
            let mut listed: BTreeSet<_> = listed.collect();
            // It says why it makes none.
            if path == "/{db}/_index" {
                listed.insert("post");
            }
            assert!(
                allowed.is_subset(&listed),
                "{path}: {allowed:?}, listed: {listed:?}"
            );
        }
        for method in ["get", "put", "post", "delete"] {
            let listed = operations.get(method);
            let method: Method = method.to_uppercase().parse().unwrap();
            if method == Method::DELETE && example == "/_replicator" {
                continue;
            }
            let json = root.clone().with("content-type", "application/json");
            let answer = json.send(method.clone(), &example, "{}").await;
            let status = answer.status.as_u16();
            if let Some(operation) = listed {
                assert_ne!(status, 405, "{method} {path}");
                assert!(
                    status < 500 || status == 503,
                    "{method} {path}: {}",
                    answer.text
                );
                check(operation, &route, path);
                continue;
            }
            // `_index` says why it makes none.
            let refused = matches!(status, 405 | 404 | 501);
            assert!(
                refused,
                "{method} {path} is not listed, and answers {status}"
            );
        }
    }
}

fn check(operation: &Value, route: &Route, path: &str) {
    let parameters = operation["parameters"].as_array().unwrap();
    let named: BTreeSet<_> = (parameters.iter())
        .filter(|parameter| parameter["in"] == "path")
        .map(|parameter| parameter["name"].as_str().unwrap())
        .collect();
    let wanted: BTreeSet<_> = path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .collect();
    assert_eq!(named, wanted, "{path}");
    let open = matches!(
        route,
        Route::Welcome | Route::Up | Route::Session | Route::OpenApi | Route::Uuids
    );
    assert_eq!(operation.get("security").is_none(), open, "{path}");
}

#[tokio::test]
async fn every_part_of_a_database_is_listed() {
    let fixture = Fixture::new().await;
    let document = fixture.anonymous().get("/_openapi.json").await.gives(200);
    let paths = document["paths"].as_object().unwrap();
    let listed: BTreeSet<_> = paths.keys().map(|path| example(path)).collect();
    for part in [
        "_all_docs",
        "_all_docs/queries",
        "_design_docs",
        "_bulk_docs",
        "_bulk_get",
        "_changes",
        "_revs_diff",
        "_missing_revs",
        "_security",
        "_revs_limit",
        "_find",
        "_explain",
        "_index",
        "_ensure_full_commit",
        "_compact",
        "_view_cleanup",
    ] {
        assert!(listed.contains(&format!("/_replicator/{part}")), "{part}");
    }
}
