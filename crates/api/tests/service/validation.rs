//! What describes no replication, and what is answered: each row of the table of reasons.

use serde_json::{Value, json};

use crate::fixture::{Fixture, replication};

const EXCLUSIVE: &str = "`doc_ids`,`filter`,`selector` are mutually  exclusive";

/// Members that are put over those of a good replication, and the reason.
const CASES: &[(&str, &str)] = &[
    (r#"{"source":null}"#, "Missing replication endpoint"),
    (r#"{"target":null}"#, "Missing replication endpoint"),
    (r#"{"source":"database"}"#, "local_endpoints_not_supported"),
    (r#"{"source":{}}"#, "endpoint has an invalid url"),
    (
        r#"{"source":{"url":"http://"}}"#,
        "endpoint has an invalid url",
    ),
    (
        r#"{"target":{"url":"ftp://a/b"}}"#,
        "endpoint has an invalid url",
    ),
    (
        r#"{"source":{"url":"http://a/b","auth":7}}"#,
        "if defined, `auth` must be an object",
    ),
    (
        r#"{"source":{"url":"http://a/b","headers":7}}"#,
        "if defined `headers` must be an object",
    ),
    (
        r#"{"proxy":"http://p","source_proxy":"http://p"}"#,
        "`proxy` is mutually exclusive with `source_proxy`",
    ),
    (
        r#"{"proxy":"http://p","target_proxy":"http://p"}"#,
        "`proxy` is mutually exclusive with `target_proxy`",
    ),
    (r#"{"proxy":"ftp://p"}"#, "Unsupported proxy protocol"),
    (r#"{"cancel":7}"#, "`cancel` must be a boolean"),
    (
        r#"{"create_target":7}"#,
        "`create_target` must be a boolean",
    ),
    (
        r#"{"create_target_params":7}"#,
        "`create_target_params` must be an object",
    ),
    (r#"{"continuous":"x"}"#, "`continuous` must be a boolean"),
    (
        r#"{"winning_revs_only":7}"#,
        "`winning_revs_only` must be a boolean",
    ),
    (r#"{"use_bulk_get":7}"#, "`use_bulk_get` must be a boolean"),
    (r#"{"filter":7}"#, "`filter` must be a string"),
    (
        r#"{"query_params":7}"#,
        "`query_params` is not `null` or object",
    ),
    (r#"{"doc_ids":7}"#, "`doc_ids` must be an array"),
    (r#"{"doc_ids":[7]}"#, "`doc_ids` array must contain strings"),
    (r#"{"selector":7}"#, "`selector` must be a JSON object"),
    (
        r#"{"use_checkpoints":7}"#,
        "`use_checkpoints` must be a boolean",
    ),
    (
        r#"{"worker_processes":"x"}"#,
        "`worker_processes` must be an integer",
    ),
    (
        r#"{"worker_batch_size":1.5}"#,
        "`worker_batch_size` must be an integer",
    ),
    (
        r#"{"http_connections":[]}"#,
        "`http_connections` must be an integer",
    ),
    (
        r#"{"checkpoint_interval":"x"}"#,
        "`checkpoint_interval` must be an integer",
    ),
    (r#"{"doc_ids":["a"],"filter":"a/b"}"#, EXCLUSIVE),
    (r#"{"doc_ids":["a"],"selector":{}}"#, EXCLUSIVE),
    (r#"{"filter":"a/b","selector":{}}"#, EXCLUSIVE),
    (
        r#"{"filter":"nope"}"#,
        "Invalid filter. Must match `ddocname/filtername`.",
    ),
    (r#"{"filter":"_view"}"#, "Invalid `view` parameter."),
    (r#"{"selector":{"$foo":1}}"#, "Invalid operator: $foo"),
    (r#"{"paused":7}"#, "`paused` must be a boolean"),
];

fn cases() -> Vec<(Value, &'static str)> {
    let patched = CASES.iter().map(|(patch, reason)| {
        let patch: Value = serde_json::from_str(patch).unwrap();
        let mut doc = replication();
        for (name, value) in patch.as_object().unwrap() {
            doc[name] = value.clone();
        }
        (doc, *reason)
    });
    let without = [
        (json!({"target": "http://b/b"}), "Missing `source` field"),
        (json!({"source": "http://a/a"}), "Missing `target` field"),
        (json!({}), "Missing `source` field"),
    ];
    patched.chain(without).collect()
}

#[tokio::test]
async fn what_describes_no_replication_is_forbidden() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    for (doc, reason) in cases() {
        root.put("/_replicator/x", &doc)
            .await
            .refuses(403, "forbidden", reason);
        let mut row = doc.clone();
        row["_id"] = json!("x");
        let docs = json!({"docs": [row.clone()]});
        let rows = root.post("/_replicator/_bulk_docs", &docs).await;
        assert_eq!(rows.gives(201)[0]["reason"], reason, "{doc}");
        // Revisions that a replicator brings are read as well.
        row["_rev"] = json!("1-a");
        let pushed = json!({"docs": [row], "new_edits": false});
        let rows = root.post("/_replicator/_bulk_docs", &pushed).await;
        assert_eq!(rows.gives(201)[0]["reason"], reason, "{doc}");
    }
    assert_eq!(root.get("/_replicator").await.json()["doc_count"], 0);
}

/// A state can be taken out again, so a document is looked at whatever state it has; deletions are not.
#[tokio::test]
async fn what_is_over_is_looked_at_and_what_is_gone_is_not() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    let mut doc = json!({"source": 7, "_replication_state": "failed"});
    for state in ["failed", "completed", "error", "triggered"] {
        doc["_replication_state"] = json!(state);
        assert_eq!(root.put("/_replicator/x", &doc).await.status, 403);
    }
    let gone = json!({"_id": "gone", "_rev": "2-b", "_deleted": true, "source": 7});
    let pushed = json!({"docs": [gone], "new_edits": false});
    let rows = root.post("/_replicator/_bulk_docs", &pushed).await;
    assert_eq!(rows.gives(201), json!([]));
}
