//! Options that CouchDB does not have.

use serde_json::json;

use crate::fixture::{World, counts};

async fn mixed() -> World {
    let world = World::new().await;
    world.put_docs(0..5);
    world.put(&json!({"_id": "_design/d"}));
    let rev = world.source.get("a", "doc0001").unwrap().unwrap()["_rev"].clone();
    world.put(&json!({"_id": "doc0001", "_rev": rev, "_deleted": true}));
    world
}

#[tokio::test]
async fn deletions_may_stay_behind() {
    let world = mixed().await;
    let outcome = world.replicate(json!({"skip_deleted": true})).await;
    assert_eq!(counts(&outcome), [5, 5, 5, 5, 0]);
    assert_eq!(outcome.progress.stats.docs_filtered, 1);
    assert_eq!(
        world.target_ids(),
        ["_design/d", "doc0000", "doc0002", "doc0003", "doc0004"]
    );
    // That is another replication, so the deletion comes with the plain one.
    world.replicate(json!({})).await;
    world.assert_same_docs();
}

#[tokio::test]
async fn design_documents_may_stay_behind() {
    let world = mixed().await;
    let outcome = world.replicate(json!({"skip_design_docs": true})).await;
    assert_eq!(counts(&outcome), [5, 5, 5, 5, 0]);
    assert!(!world.target_ids().contains(&"_design/d".to_owned()));
}

#[tokio::test]
async fn a_refused_document_may_end_the_run() {
    for large in [false, true] {
        let world = World::new().await;
        let validation =
            json!({"_id": "_design/v", "validate_doc_update": peer::sources::VALIDATE_EVEN});
        world.target().put("b", &validation.to_string()).unwrap();
        world.put(&json!({"_id": "two", "integer": 2}));
        let rev = world
            .source
            .put("a", r#"{"_id":"one","integer":1}"#)
            .unwrap();
        if large {
            world
                .source
                .attach("a", "one", Some(&rev), "x", "a/b", vec![1; 200_000])
                .unwrap();
        }
        let error = world
            .try_replicate(json!({"on_write_failure": "stop"}))
            .await
            .unwrap_err();
        let expected =
            json!({"error": "doc_write_failed", "reason": "forbidden: only even (document `one`)"});
        assert_eq!(error.to_info(), expected);
        // It fails again until it is corrected.
        assert!(
            world
                .try_replicate(json!({"on_write_failure": "stop"}))
                .await
                .is_err()
        );
        let outcome = world.replicate(json!({"on_write_failure": "skip"})).await;
        assert_eq!(counts(&outcome)[4], 1);
    }
}
