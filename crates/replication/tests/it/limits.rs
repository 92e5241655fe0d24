//! Sizes that a target does not take.

use peer::{Limits, Options};
use serde_json::json;

use crate::fixture::{World, counts};

/// A target that takes requests of 10,000 bytes.
async fn small() -> World {
    let limits = Limits {
        request_bytes_max: 10_000,
        ..Limits::default()
    };
    World::apart(
        Options::default(),
        Options {
            limits,
            ..Options::default()
        },
    )
    .await
}

fn put(world: &World, id: &str, bytes: usize) {
    world.put(&json!({"_id": id, "text": "x".repeat(bytes)}));
}

#[tokio::test]
async fn groups_are_split() {
    let world = small().await;
    for n in 0..5 {
        put(&world, &format!("doc{n}"), 3000);
    }
    let outcome = world.replicate(json!({})).await;
    assert_eq!(counts(&outcome), [5, 5, 5, 5, 0]);
    world.assert_same();
}

#[tokio::test]
async fn one_that_is_too_large() {
    let world = small().await;
    put(&world, "large", 12_000);
    put(&world, "small", 3000);
    let outcome = world.replicate(json!({})).await;
    assert_eq!(counts(&outcome), [2, 2, 2, 1, 1]);
    assert_eq!(world.target_ids(), ["small"]);
    assert_eq!(
        outcome.progress.failures[0].error,
        "request_entity_too_large"
    );
}

/// That one document is too large says nothing about the size of requests.
#[tokio::test]
async fn one_that_is_too_large_does_not_make_all_writes_small() {
    let world = World::new().await;
    let large = json!({"_id": "a_large", "text": "x".repeat(30_000)}).to_string();
    let small = (0..2000)
        .map(|n| json!({"_id": format!("doc{n:04}"), "text": "x".repeat(1000)}).to_string());
    world
        .source
        .put_all("a", std::iter::once(large).chain(small))
        .unwrap();
    world.source.set_limits(Limits {
        document_bytes_max: 20_000,
        ..Limits::default()
    });
    let outcome = world.replicate(json!({})).await;
    assert_eq!(counts(&outcome)[3..], [2000, 1]);
    let writes = world.target().count("POST", "/b/_bulk_docs");
    assert!(writes < 40, "{writes}");
}

#[tokio::test]
async fn one_with_a_large_attachment() {
    let world = small().await;
    let body = json!({"_id": "large", "text": "x".repeat(70_000)}).to_string();
    let rev = world.source.put("a", &body).unwrap();
    world
        .source
        .attach(
            "a",
            "large",
            Some(&rev),
            "att",
            "app/binary",
            vec![1; 70_000],
        )
        .unwrap();
    for n in 0..5 {
        put(&world, &format!("doc{n}"), 1000);
    }
    let outcome = world.replicate(json!({})).await;
    assert_eq!(counts(&outcome)[3..], [5, 1]);
    assert!(!world.target_ids().contains(&"large".to_owned()));
}

#[tokio::test]
async fn ids_that_are_too_long() {
    for (bytes_max, written) in [(5, 1), (4, 0)] {
        let mut world = World::new().await;
        world.settings.document_id_bytes_max = Some(bytes_max);
        put(&world, "12345", 10);
        let outcome = world.replicate(json!({})).await;
        assert_eq!(counts(&outcome)[3..], [written, 1 - written]);
    }
}

/// Documents that are read in bulk count, too: without memory for more, a small group is written.
#[tokio::test]
async fn groups_are_small_without_memory() {
    let mut groups = Vec::new();
    for budget in [1, 256 << 20] {
        let mut world = World::new().await;
        world.settings.budget = replication::engine::Budget::new(budget);
        for n in 0..50 {
            let id = format!("doc{n}");
            world.put(&json!({"_id": id}));
            let rev = world.source.get("a", &id).unwrap().unwrap()["_rev"].clone();
            world.put(&json!({"_id": id, "_rev": rev, "text": "x".repeat(10_000)}));
        }
        world.replicate(json!({"worker_processes": 1})).await;
        world.assert_same_docs();
        let requests = world.source.requests().into_iter();
        groups.push(
            requests
                .filter(|request| request.path == "/b/_bulk_docs")
                .count(),
        );
    }
    assert!(groups[0] >= 7 && groups[1] <= 2, "{groups:?}");
}

/// Memory of all runs together is smaller than what they copy.
#[tokio::test]
async fn a_budget_that_is_too_small() {
    let mut world = World::new().await;
    world.settings.budget = replication::engine::Budget::new(1);
    for n in 0..40 {
        put(&world, &format!("doc{n}"), 100_000);
    }
    world.replicate(json!({})).await;
    world.assert_same();
}
