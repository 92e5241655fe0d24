//! Options that CouchDB does not have.

use peer::{Fault, Faults, On};
use serde_json::{Value, json};

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

/// A document is deleted after the feed has reported its update, and before that is read.
#[tokio::test]
async fn a_deletion_that_overtakes_an_update_stays_behind() {
    for bulk in [true, false] {
        let options = json!({"skip_deleted": true, "use_bulk_get": bulk});
        let world = World::new().await;
        let put = |doc: Value| world.source.put("a", &doc.to_string()).unwrap();
        let first = put(json!({"_id": "x", "v": 1}));
        world.replicate(options.clone()).await;
        let second = put(json!({"_id": "x", "_rev": first.to_string(), "v": 2}));
        put(json!({"_id": "x", "_rev": second.to_string(), "_deleted": true}));
        let row = json!({"seq": 99, "id": "x", "changes": [{"rev": second.to_string()}]});
        let feed = json!({"results": [row], "last_seq": 99, "pending": 0});
        let early = Fault::Answer {
            status: 200,
            headers: vec![("Content-Type".to_owned(), "application/json".to_owned())],
            body: feed.to_string(),
        };
        let rule = (On::get("/a/_changes"), early);
        world.source.set_faults(Faults::script([rule]));
        let outcome = world.replicate(options).await;
        assert_eq!(outcome.progress.stats.docs_filtered, 1, "bulk: {bulk}");
        assert_eq!(world.target_ids(), ["x"]);
        let kept = world.target().get("b", "x").unwrap().unwrap();
        assert_eq!((&kept["v"], kept.get("_deleted")), (&json!(1), None));
    }
}

/// A deleted leaf is no deleted document, and ends a conflict at the target as well.
#[tokio::test]
async fn resolved_conflicts_are_copied() {
    let [root, winner, loser, end] = ["1", "b", "a", "c"].map(|digit| digit.repeat(32));
    let leaf = |ids: &[&String], deleted: bool| {
        let rev = format!("{}-{}", ids.len(), ids[0]);
        let revisions = json!({"start": ids.len(), "ids": ids});
        json!({"_id": "x", "_rev": rev, "_revisions": revisions, "_deleted": deleted}).to_string()
    };
    let world = World::new().await;
    let put = |leaves: &[String]| world.source.put_replicas("a", leaves).unwrap();
    put(&[
        leaf(&[&winner, &root], false),
        leaf(&[&loser, &root], false),
    ]);
    world.replicate(json!({"skip_deleted": true})).await;
    world.assert_same();
    put(&[leaf(&[&end, &loser, &root], true)]);
    world.replicate(json!({"skip_deleted": true})).await;
    world.assert_same();
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
