//! Filters at the source: functions, views, ids, selectors.

use peer::{Fault, Faults, On, sources};
use replication::Stats;
use replication::engine::{Ending, Phase};
use serde_json::{Value, json};

use crate::fixture::{World, counts, newest};

async fn zoo() -> World {
    let world = World::new().await;
    world.put(&json!({"_id": "_design/f",
        "filters": {"mammal": sources::FILTER_MAMMAL, "starts": sources::FILTER_STARTS},
        "views": {"mammals": {"map": sources::MAP_MAMMAL}}}));
    for (id, class) in [("anna", "bird"), ("abel", "mammal"), ("bruno", "bird")] {
        world.put(&json!({"_id": id, "class": class}));
    }
    world
}

#[tokio::test]
async fn functions() {
    let world = zoo().await;
    world.replicate(json!({"filter": "f/mammal"})).await;
    assert_eq!(world.target_ids(), ["abel"]);
    assert_eq!(
        world.target().get("b", "abel").unwrap(),
        world.source.get("a", "abel").unwrap()
    );
    let outcome = world
        .replicate(json!({"filter": "f/starts", "query_params": {"starts": "a"}}))
        .await;
    assert_eq!(world.target_ids(), ["abel", "anna"]);
    assert_eq!(counts(&outcome)[0], 2);
    assert_eq!(outcome.progress.changes_pending, Some(0));
}

/// As in CouchDB, whose feed ends there: what follows is the next run's.
#[tokio::test]
async fn a_limit_ends_a_run() {
    let world = zoo().await;
    world.put(&json!({"_id": "_design/g"}));
    let params = json!({"filter": "_design", "query_params": {"limit": "1"}});
    for done in [1, 2] {
        let outcome = world.replicate(params.clone()).await;
        assert_eq!(world.target_ids().len(), done);
        assert_eq!(newest(&outcome)["docs_written"], done);
    }
    let outcome = world.replicate(params).await;
    assert_eq!(outcome.result["no_changes"], true);
}

#[tokio::test]
async fn views_and_design_documents() {
    let world = zoo().await;
    world
        .replicate(json!({"filter": "_view", "query_params": {"view": "f/mammals"}}))
        .await;
    assert_eq!(world.target_ids(), ["abel"]);
    world.replicate(json!({"filter": "_design"})).await;
    assert_eq!(world.target_ids(), ["_design/f", "abel"]);
}

#[tokio::test]
async fn selectors() {
    for place in ["source", "replicator"] {
        let world = zoo().await;
        world
            .replicate(json!({"selector": {"_id": "bruno"}, "filter_where": place}))
            .await;
        assert_eq!(world.target_ids(), ["bruno"], "{place}");
        world
            .replicate(
                json!({"selector": {"$or": [{"class": "mammal"}, {"views": {"$exists": true}}]},
            "filter_where": place}),
            )
            .await;
        assert_eq!(
            world.target_ids(),
            ["_design/f", "abel", "bruno"],
            "{place}"
        );
    }
}

#[tokio::test]
async fn another_function_is_another_replication() {
    let world = zoo().await;
    let first = world.replicate(json!({"filter": "f/mammal"})).await;
    let mut design = world.source.get("a", "_design/f").unwrap().unwrap();
    design["filters"]["mammal"] = json!(sources::FILTER_LIVE);
    world.put(&design);
    let second = world.replicate(json!({"filter": "f/mammal"})).await;
    assert_eq!(second.result["history"].as_array().unwrap().len(), 1);
    assert_ne!(second.result["session_id"], first.result["session_id"]);
    assert_eq!(newest(&second)["docs_written"], 3);
}

#[tokio::test]
async fn a_run_notices_that_its_function_changed() {
    let world = zoo().await;
    let running = world
        .start(json!({"filter": "f/mammal", "continuous": true, "checkpoint_interval": 50}))
        .await;
    running
        .until(|progress| progress.stats.docs_written == 1)
        .await;
    let mut design = world.source.get("a", "_design/f").unwrap().unwrap();
    design["filters"]["mammal"] = json!(sources::FILTER_LIVE);
    world.put(&design);
    let outcome = running.end().await.unwrap();
    assert_eq!(outcome.ending, Ending::FilterChanged);
}

#[tokio::test]
async fn functions_that_cannot_be_had() {
    let world = zoo().await;
    let url = world.source.database_url("a");
    for (filter, reason) in [
        (
            "f/nope",
            format!(
                "Couldn't parse filter code from document f on `{url}/`  Error: it has no function `filters.nope`"
            ),
        ),
        (
            "nope/f",
            format!(
                "Couldn't open document `_design/nope` from source database `{url}/`: not_found: missing"
            ),
        ),
    ] {
        let error = world
            .prepare(&json!({"filter": filter}), Stats::default())
            .await
            .map(drop)
            .unwrap_err();
        assert_eq!(
            error.to_info(),
            json!({"error": "filter_fetch_error", "reason": reason})
        );
    }
}

/// A filter that takes long to find more does not hold up what it has found.
#[tokio::test]
async fn slow_feeds_are_not_waited_for() {
    let world = World::new().await;
    world.put_docs(0..100);
    let slow = Fault::SlowBody {
        bytes_per_second: 1_000,
    };
    (world.source).set_faults(Faults::script([(On::get("/a/_changes"), slow)]));
    let running = world.start(json!({})).await;
    let progress = running
        .until(|progress| progress.stats.docs_written > 0)
        .await;
    assert!(progress.stats.docs_written < 100, "{progress:?}");
    assert_ne!(progress.phase, Phase::Ended);
}

/// What a filter holds back at the end is behind the checkpoint, too.
#[tokio::test]
async fn checkpoints_reach_the_end_of_the_feed() {
    let world = zoo().await;
    world.put_docs(0..300);
    for options in [
        json!({"filter": "f/mammal"}),
        json!({"doc_ids": ["abel"]}),
        json!({"selector": {"_id": "abel"}}),
        json!({"selector": {"_id": "nobody"}}),
        json!({"selector": {"_id": "abel"}, "filter_where": "replicator"}),
    ] {
        let outcome = world.replicate(options.clone()).await;
        let seq = outcome.progress.checkpointed_seq.unwrap();
        let seq = seq.as_json();
        assert!(seq.starts_with("\"304-"), "{options} {seq}");
        let again = world.replicate(options.clone()).await;
        assert_eq!(again.result["no_changes"], true, "{options}");
    }
}

#[tokio::test]
async fn documents_by_id() {
    for place in ["source", "replicator"] {
        let world = zoo().await;
        world
            .source
            .attach("a", "abel/2", None, "att", "x/y", vec![1; 100])
            .unwrap();
        let options = |ids: Value| json!({"doc_ids": ids, "filter_where": place});
        let outcome = world
            .replicate(options(json!([
                "anna",
                "_design%2Ff",
                "nobody",
                "abel%2F2"
            ])))
            .await;
        assert_eq!(world.target_ids(), ["_design/f", "abel/2", "anna"]);
        assert_eq!(counts(&outcome)[2..], [3, 3, 0]);
        for member in [
            "start_time",
            "end_time",
            "docs_read",
            "docs_written",
            "doc_write_failures",
        ] {
            assert_eq!(outcome.result[member], newest(&outcome)[member], "{member}");
        }
        let outcome = world
            .replicate(options(json!(["anna", "_design/f", "nobody", "abel/2"])))
            .await;
        assert_eq!(outcome.result["no_changes"], true);
        let outcome = world.replicate(options(json!([]))).await;
        assert_eq!(counts(&outcome)[3], 0, "an empty list is a filter, too");
        let mut doc = world.source.get("a", "anna").unwrap().unwrap();
        doc["more"] = json!(1);
        world.put(&doc);
        let outcome = world
            .replicate(options(json!(["anna", "_design/f", "nobody", "abel/2"])))
            .await;
        assert_eq!(newest(&outcome)["docs_written"], 4, "cumulative");
    }
}

/// An idle filtered feed tells how far it is by ending now and then.
#[tokio::test]
async fn idle_filtered_feeds_advance() {
    let world = zoo().await;
    let options = json!({"filter": "f/mammal", "continuous": true, "connection_timeout": 1000, "checkpoint_interval": 50});
    let running = world.start(options).await;
    running
        .until(|progress| progress.stats.docs_written == 1)
        .await;
    world.put_docs(0..10);
    let progress = running
        .until(|progress| {
            progress
                .checkpointed_seq
                .as_ref()
                .is_some_and(|seq| seq.as_json().starts_with("\"14-"))
        })
        .await;
    assert_eq!(progress.stats.docs_written, 1);
    running.stop().await;
}

#[tokio::test]
async fn local_selectors_judge_every_leaf() {
    let world = World::new().await;
    let leaf = |n: u32, kind: &str| {
        json!({"_id": "c", "_rev": format!("2-{n:032x}"), "kind": kind,
            "_revisions": {"start": 2, "ids": [format!("{n:032x}"), format!("{:032x}", 1)]}})
        .to_string()
    };
    world
        .source
        .put_replicas("a", [leaf(5, "yes"), leaf(6, "no"), leaf(7, "yes")])
        .unwrap();
    world
        .source
        .attach("a", "big", None, "att", "x/y", vec![7; 300_000])
        .unwrap();
    let outcome = world
        .replicate(json!({"selector": {"kind": "yes"}, "filter_where": "replicator"}))
        .await;
    assert_eq!(
        world.target().contents("b").unwrap().documents["c"].len(),
        2
    );
    assert_eq!(world.target_ids(), ["c"]);
    assert_eq!(outcome.progress.stats.docs_filtered, 2);
    assert_eq!(world.source.count("POST", "/a/_changes"), 0);
}

#[tokio::test]
async fn an_expensive_selector_fails_the_run() {
    let world = World::new().await;
    world.put(&json!({"_id": "d", "x": "a".repeat(5_000)}));
    let params =
        json!({"filter_where": "replicator", "selector": {"x": {"$regex": "^(?:(a+)\\1?)+b"}}});
    let error = world.try_replicate(params).await.unwrap_err();
    assert_eq!(error.tag(), "filter_too_expensive");
    assert!(error.reason().starts_with("document `d`: "), "{error}");
    assert_eq!(world.target_ids().len(), 0);
}

/// As in CouchDB, except that the position is recorded, so that the next run does not read the feed again.
#[tokio::test]
async fn a_run_in_which_nothing_matches_changes_nothing() {
    let world = zoo().await;
    for options in [
        json!({"doc_ids": ["none"]}),
        json!({"selector": {"class": "fish"}}),
        json!({"selector": {"class": "fish"}, "filter_where": "replicator"}),
        json!({"filter": "f/starts", "query_params": {"starts": "z"}}),
    ] {
        let outcome = world.replicate(options.clone()).await;
        let result = Value::Object(outcome.result);
        assert_eq!(result, json!({"no_changes": true}), "{options}");
        assert!(outcome.progress.checkpointed_seq.is_some(), "{options}");
    }
    let ids = json!({"doc_ids": ["abel"]});
    let first = world.replicate(ids.clone()).await;
    assert_eq!(first.result["docs_written"], 1);
    world.put(&json!({"_id": "cleo", "class": "fish"}));
    let second = world.replicate(ids).await;
    assert_eq!(second.result["no_changes"], true);
    assert_eq!(second.result["session_id"], first.result["session_id"]);
}

/// All connections are busy with attachments, so the filter cannot be looked at meanwhile.
#[tokio::test]
async fn a_filter_that_must_wait_is_no_failure() {
    let world = zoo().await;
    let attached = json!({"_id": "abba", "class": "mammal"}).to_string();
    let rev = world.source.put("a", &attached).unwrap();
    world
        .source
        .attach("a", "abba", Some(&rev), "x", "a/b", vec![1; 5_000_000])
        .unwrap();
    let slow = Fault::SlowBody {
        bytes_per_second: 500_000,
    };
    world
        .source
        .set_faults(Faults::script([(On::get("/a/abba"), slow)]));
    let options = json!({
        "filter": "f/mammal", "continuous": true, "http_connections": 2, "checkpoint_interval": 100,
    });
    let running = world.start(options).await;
    running.until(|now| now.stats.docs_written == 2).await;
    running.stop().await;
}
