//! Many documents; expectations are answers of `CouchDB` 3.5.

use http::Method;
use serde_json::{Value, json};

use crate::fixture::{Fixture, replication};

async fn filled(ids: &[&str]) -> Fixture {
    let fixture = Fixture::new().await;
    let docs: Vec<_> = ids.iter().map(|id| with_id(id)).collect();
    let rows = fixture
        .root()
        .post("/_replicator/_bulk_docs", &json!({"docs": docs}))
        .await;
    assert!(
        rows.gives(201)
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["ok"] == true)
    );
    fixture
}

fn with_id(id: &str) -> Value {
    let mut doc = replication();
    doc["_id"] = json!(id);
    doc
}

fn ids(answer: &Value) -> Vec<&str> {
    let rows = answer["rows"].as_array().unwrap();
    rows.iter()
        .map(|row| row["id"].as_str().unwrap_or("-"))
        .collect()
}

#[tokio::test]
async fn documents_are_listed_by_id() {
    let fixture = filled(&["a", "b", "c", "d"]).await;
    let root = fixture.root();
    for (query, expected, offset) in [
        ("", vec!["a", "b", "c", "d"], json!(0)),
        ("limit=2", vec!["a", "b"], json!(0)),
        ("limit=0", vec![], json!(0)),
        ("skip=3", vec!["d"], json!(3)),
        ("startkey=%22b%22&endkey=%22c%22", vec!["b", "c"], json!(1)),
        (
            "start_key=%22b%22&end_key=%22c%22&inclusive_end=false",
            vec!["b"],
            json!(1),
        ),
        ("descending=true&startkey=%22b%22", vec!["b", "a"], json!(2)),
        ("key=%22c%22", vec!["c"], json!(2)),
        ("key=%22nothing%22", vec![], json!(4)),
        ("startkey=7", vec!["a", "b", "c", "d"], json!(0)),
        ("endkey=7", vec![], json!(0)),
        ("endkey=%7B%7D", vec![], json!(0)),
        (
            "keys=%5B%22d%22,%22a%22,%22d%22%5D",
            vec!["d", "a", "d"],
            json!(null),
        ),
        ("keys=%5B%22d%22,%22a%22%5D&skip=1", vec!["a"], json!(null)),
        ("keys=%5B%5D", vec![], json!(null)),
        ("sorted=false&reduce=x&limit=1", vec!["a"], json!(0)),
    ] {
        let answer = root
            .get(&format!("/_replicator/_all_docs?{query}"))
            .await
            .gives(200);
        assert_eq!(ids(&answer), expected, "{query}");
        assert_eq!(
            (&answer["total_rows"], &answer["offset"]),
            (&json!(4), &offset),
            "{query}"
        );
    }
    let docs = root
        .get("/_replicator/_all_docs?include_docs=true&limit=1&update_seq=true")
        .await;
    assert!(docs.text.ends_with("\n]}\n"));
    let docs = docs.gives(200);
    assert_eq!(docs["rows"][0]["doc"]["_id"], "a");
    assert_eq!(
        docs["rows"][0]["doc"]["_rev"],
        docs["rows"][0]["value"]["rev"]
    );
    assert!(docs["update_seq"].is_string());
    for (query, error) in [
        ("limit=x", "query_parse_error"),
        ("limit=-1", "query_parse_error"),
        ("include_docs=x", "query_parse_error"),
        ("startkey=b", "bad_request"),
    ] {
        let refused = root
            .get(&format!("/_replicator/_all_docs?{query}"))
            .await
            .gives(400);
        assert_eq!(refused["error"], error, "{query}");
    }
}

#[tokio::test]
async fn keys_and_queries_may_be_posted() {
    let fixture = filled(&["a", "b"]).await;
    let root = fixture.root();
    let rev = root.get("/_replicator/b").await.json()["_rev"]
        .as_str()
        .unwrap()
        .to_owned();
    root.delete(&format!("/_replicator/b?rev={rev}"))
        .await
        .gives(200);
    let keys = json!({"keys": ["a", "zz", "b"]});
    let path = "/_replicator/_all_docs?include_docs=true";
    let rows = root.post(path, &keys).await.gives(200)["rows"].clone();
    assert_eq!(rows[0]["doc"]["_id"], "a");
    assert_eq!(rows[1], json!({"key": "zz", "error": "not_found"}));
    assert_eq!(
        (&rows[2]["value"]["deleted"], &rows[2]["doc"]),
        (&json!(true), &json!(null))
    );
    let queries = json!({"queries": [{"limit": 1}, {"keys": ["zz"]}]});
    for path in ["/_replicator/_all_docs/queries", "/_replicator/_all_docs"] {
        let answer = root.post(path, &queries).await.gives(200);
        let results = answer["results"].as_array().unwrap();
        assert_eq!(results.len(), 2);
        assert_eq!(ids(&results[0]), ["a"]);
        assert_eq!(results[1]["rows"][0]["error"], "not_found");
    }
    for bad in [
        json!({"keys": 7}),
        json!({"keys": [7]}),
        json!({"queries": 7}),
        json!([]),
    ] {
        assert_eq!(
            root.post("/_replicator/_all_docs", &bad).await.status,
            400,
            "{bad}"
        );
    }
    let none = root
        .post("/_replicator/_all_docs/queries", &json!({"queries": []}))
        .await;
    assert_eq!(none.gives(200), json!({"results": []}));
}

#[tokio::test]
async fn design_documents_are_listed_apart() {
    let fixture = filled(&["a", "z"]).await;
    let root = fixture.root();
    for name in ["x", "y"] {
        root.put(&format!("/_replicator/_design/{name}"), &json!({}))
            .await
            .gives(201);
    }
    let answer = root.get("/_replicator/_design_docs").await.gives(200);
    assert_eq!(ids(&answer), ["_design/x", "_design/y"]);
    assert_eq!(answer["total_rows"], 2);
    let last = root
        .get("/_replicator/_design_docs?descending=true&limit=1")
        .await
        .gives(200);
    assert_eq!(ids(&last), ["_design/y"]);
    assert_eq!(root.get("/_replicator/_local_docs").await.status, 501);
}

#[tokio::test]
async fn many_documents_come_in_pages_and_are_one_answer() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    for hundred in 0..25 {
        let docs: Vec<_> = (0..100)
            .map(|n| with_id(&format!("{hundred:02}-{n:02}")))
            .collect();
        root.post("/_replicator/_bulk_docs", &json!({"docs": docs}))
            .await
            .gives(201);
    }
    let answer = root
        .get("/_replicator/_all_docs?include_docs=true")
        .await
        .gives(200);
    assert_eq!(answer["rows"].as_array().unwrap().len(), 2500);
    let changes = root
        .get("/_replicator/_changes?include_docs=true")
        .await
        .gives(200);
    assert_eq!(changes["results"].as_array().unwrap().len(), 2500);
    let find = json!({"selector": {"target": {"$exists": true}}, "limit": 2000, "fields": ["_id"]});
    let found = root.post("/_replicator/_find", &find).await.gives(200);
    assert_eq!(found["docs"].as_array().unwrap().len(), 2000);
    let docs: Vec<_> = (0..2500)
        .map(|n| json!({"id": format!("{:02}-{:02}", n / 100, n % 100)}))
        .collect();
    let got = root
        .post("/_replicator/_bulk_get", &json!({"docs": docs}))
        .await
        .gives(200);
    let got = got["results"].as_array().unwrap();
    assert_eq!(got.len(), 2500);
    assert_eq!(got[2499]["docs"][0]["ok"]["_id"], "24-99");
}

#[tokio::test]
async fn bulk_writes_answer_for_each() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    let path = "/_replicator/_bulk_docs";
    let docs = json!({"docs": [
        with_id("a"), with_id("a"), replication(), {"_id": "bad"}, {"_id": "_local/x", "n": 1},
    ]});
    let rows = root.post(path, &docs).await.gives(201);
    assert_eq!(
        (&rows[0]["ok"], &rows[0]["id"]),
        (&json!(true), &json!("a"))
    );
    let conflict = json!({"id": "a", "error": "conflict", "reason": "Document update conflict."});
    assert_eq!(rows[1], conflict);
    assert_eq!(rows[2]["id"].as_str().unwrap().len(), 32);
    let forbidden = json!({"id": "bad", "error": "forbidden", "reason": "Missing `source` field"});
    assert_eq!(rows[3], forbidden);
    assert_eq!(rows[4], json!({"ok": true, "id": "_local/x", "rev": "0-1"}));
    for (body, reason) in [
        (json!({}), "POST body must include `docs` parameter."),
        (json!({"docs": 7}), "`docs` parameter must be an array."),
        (
            json!({"docs": [], "new_edits": 7}),
            "`new_edits` parameter must be a boolean.",
        ),
        (json!({"docs": [7]}), "Document must be a JSON object"),
        (json!([]), "Request body must be a JSON object"),
        (
            json!({"docs": [{"_id": "n"}], "new_edits": false}),
            "When `new_edits: false`, the document needs `_rev` or `_revisions` specified",
        ),
    ] {
        root.post(path, &body)
            .await
            .refuses(400, "bad_request", reason);
    }
    assert_eq!(root.send(Method::PUT, path, "{}").await.status, 405);
}

#[tokio::test]
async fn what_is_missing_is_told() {
    let fixture = filled(&["a"]).await;
    let root = fixture.root();
    let rev = root.get("/_replicator/a").await.json()["_rev"].clone();
    let named = json!({"a": [rev, "9-abc"], "zz": ["1-a"]});
    let diff = root
        .post("/_replicator/_revs_diff", &named)
        .await
        .gives(200);
    let expected = json!({
        "a": {"missing": ["9-abc"], "possible_ancestors": [rev]}, "zz": {"missing": ["1-a"]},
    });
    assert_eq!(diff, expected);
    let missing = root
        .post("/_replicator/_missing_revs", &named)
        .await
        .gives(200);
    assert_eq!(
        missing,
        json!({"missing_revs": {"a": ["9-abc"], "zz": ["1-a"]}})
    );
    for bad in [
        json!([]),
        json!({"a": 7}),
        json!({"a": [7]}),
        json!({"a": ["x"]}),
    ] {
        assert_eq!(
            root.post("/_replicator/_revs_diff", &bad).await.status,
            400,
            "{bad}"
        );
    }
}

#[tokio::test]
async fn bulk_reads_answer_for_each() {
    let fixture = filled(&["a"]).await;
    let root = fixture.root();
    let docs = json!({"docs": [
        {"id": "a"}, {"id": "none"}, {"id": "a", "rev": "bad"}, {"id": "a", "rev": "3-c"},
        {"rev": "1-a"},
    ]});
    let path = "/_replicator/_bulk_get?revs=true";
    let answer = root.post(path, &docs).await.gives(200);
    let row = |index: usize| answer["results"][index]["docs"][0].clone();
    assert_eq!(row(0)["ok"]["_revisions"]["start"], 1);
    let error = |id: Value, rev: Value, error: &str, reason: &str| json!({"error": {"id": id, "rev": rev, "error": error, "reason": reason}});
    assert_eq!(
        row(1),
        error(json!("none"), json!("undefined"), "not_found", "missing")
    );
    assert_eq!(
        row(2),
        error(
            json!("a"),
            json!("bad"),
            "bad_request",
            "Invalid rev format"
        )
    );
    assert_eq!(
        row(3),
        error(json!("a"), json!("3-c"), "not_found", "missing")
    );
    assert_eq!(
        row(4),
        error(
            json!(null),
            json!(null),
            "bad_request",
            "document id missed"
        )
    );
    let none = root.post(path, &json!({"docs": []})).await.gives(200);
    assert_eq!(none, json!({"results": []}));
    root.post(path, &json!({}))
        .await
        .refuses(400, "bad_request", "Missing JSON list of 'docs'.");
    for bad in [
        json!({"docs": 7}),
        json!({"docs": [7]}),
        json!({"docs": [{"id": 7}]}),
    ] {
        assert_eq!(root.post(path, &bad).await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn documents_are_found_by_selectors() {
    let fixture = filled(&["a", "b", "c"]).await;
    let root = fixture.root();
    let path = "/_replicator/_find";
    let query = json!({"selector": {"_id": {"$gt": "a"}}, "limit": 1, "fields": ["_id"],
        "execution_stats": true});
    let found = root.post(path, &query).await.gives(200);
    assert_eq!(found["docs"], json!([{"_id": "b"}]));
    assert_eq!(found["execution_stats"]["results_returned"], 1);
    assert!(found["warning"].is_string());
    let mut next = query.clone();
    next["bookmark"] = found["bookmark"].clone();
    assert_eq!(
        root.post(path, &next).await.gives(200)["docs"],
        json!([{"_id": "c"}])
    );
    let none = root
        .post(path, &json!({"selector": {"x": 1}}))
        .await
        .gives(200);
    assert_eq!(
        (&none["docs"], &none["bookmark"]),
        (&json!([]), &json!("nil"))
    );
    let without = root.post(path, &json!({})).await;
    without.refuses(
        400,
        "missing_required_key",
        "Missing required key: selector",
    );
    let operator = root
        .post(path, &json!({"selector": {"x": {"$foo": 1}}}))
        .await;
    operator.refuses(400, "invalid_operator", "Invalid operator: $foo");
    let explained = root.post("/_replicator/_explain", &query).await.gives(200);
    assert_eq!(explained["index"]["name"], "_all_docs");
    assert_eq!(
        root.get("/_replicator/_index").await.gives(200)["total_rows"],
        1
    );
    assert_eq!(
        root.post("/_replicator/_index", &json!({})).await.status,
        501
    );
}

#[tokio::test]
async fn configuration_can_be_read_and_nothing_else() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    let config = root.get("/_node/_local/_config").await;
    assert!(config.gives(200)["replicator"]["max_jobs"] == "500");
    assert!(!config.text.contains("s3cret") && !config.text.contains("pbkdf2"));
    assert_eq!(
        root.get("/_node/x/_config/replicator/max_jobs")
            .await
            .gives(200),
        "500"
    );
    assert_eq!(
        root.get("/_node/_local/_config/admins").await.gives(200),
        json!({})
    );
    let unknown = root.get("/_node/_local/_config/x/y").await;
    unknown.refuses(404, "not_found", "unknown_config_value");
    for method in [Method::PUT, Method::DELETE] {
        let refused = root
            .send(method, "/_node/_local/_config/a/b", "\"x\"")
            .await;
        refused.refuses(405, "method_not_allowed", "Only GET,HEAD allowed");
    }
    assert_eq!(
        fixture
            .anonymous()
            .get("/_node/_local/_config")
            .await
            .status,
        401
    );
}
