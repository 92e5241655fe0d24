//! Documents with several leaves.

use serde_json::{Value, json};

use crate::fixture::{World, counts};

/// Adds a leaf of generation 2 or 3 to a document.
fn leaf(id: &str, n: u32) -> String {
    let generation = 2 + n % 2;
    let mut ids = vec![format!("{:032x}", u128::from(n) + 1000)];
    ids.extend(
        (1..generation)
            .rev()
            .map(|generation| format!("{generation:032x}")),
    );
    let rev = format!("{generation}-{}", ids[0]);
    json!({"_id": id, "_rev": rev, "_revisions": {"start": generation, "ids": ids}, "n": n})
        .to_string()
}

fn with_many_leaves(world: &World) {
    for (id, leaves) in [("doc1", 10), ("_design/doc2", 10), ("doc3", 210)] {
        world
            .source
            .put_replicas("a", (0..leaves).map(|n| leaf(id, n)))
            .unwrap();
    }
}

#[tokio::test]
async fn all_leaves_are_copied() {
    let world = World::new().await;
    with_many_leaves(&world);
    let outcome = world.replicate(json!({})).await;
    assert_eq!(counts(&outcome), [230, 230, 230, 230, 0]);
    world.assert_same();

    // Attachments to all of them.
    for (id, leaves) in world.source.contents("a").unwrap().documents {
        for rev in leaves.keys() {
            world
                .source
                .attach(
                    "a",
                    &id,
                    Some(rev),
                    "a.bin",
                    "application/octet-stream",
                    vec![1; 100],
                )
                .unwrap();
            let rev = &world.source.contents("a").unwrap().documents[&id];
            assert!(rev.values().any(|leaf| !leaf.attachments.is_empty()));
        }
    }
    world.replicate(json!({})).await;
    world.assert_same();
}

#[tokio::test]
async fn winners_only() {
    let world = World::new().await;
    with_many_leaves(&world);
    let outcome = world.replicate(json!({"winning_revs_only": true})).await;
    assert_eq!(counts(&outcome), [3, 3, 3, 3, 0]);
    for id in ["doc1", "_design/doc2", "doc3"] {
        assert_eq!(
            world.target().get("b", id).unwrap(),
            world.source.get("a", id).unwrap()
        );
        assert_eq!(world.target().contents("b").unwrap().documents[id].len(), 1);
    }
}

#[tokio::test]
async fn conflicts_come_and_go() {
    let world = World::new().await;
    let rev = world.source.put("a", r#"{"_id":"c","v":1}"#).unwrap();
    world.replicate(json!({})).await;
    // Both sides edit; the source's edit conflicts on the target.
    world
        .target()
        .put(
            "b",
            &json!({"_id": "c", "_rev": rev.to_string(), "v": "target"}).to_string(),
        )
        .unwrap();
    world.put(&json!({"_id": "c", "_rev": rev.to_string(), "v": "source"}));
    let outcome = world.replicate(json!({})).await;
    assert_eq!(counts(&outcome), [2, 2, 2, 2, 0]);
    let leaves = |world: &World| world.target().contents("b").unwrap().documents["c"].len();
    assert_eq!(leaves(&world), 2);
    // The source goes on and wins.
    let winner = world.source.get("a", "c").unwrap().unwrap()["_rev"].clone();
    world.put(&json!({"_id": "c", "_rev": winner, "v": "source again"}));
    world.replicate(json!({})).await;
    assert_eq!(
        world.target().get("b", "c").unwrap().unwrap()["v"],
        "source again"
    );
    assert_eq!(leaves(&world), 2);
    // The loser is deleted on the target, which the source gets from the other direction.
    let loser = world.target().contents("b").unwrap().documents["c"]
        .keys()
        .next()
        .unwrap()
        .to_string();
    let deletion: Value = json!({"_id": "c", "_rev": loser, "_deleted": true});
    world.target().put("b", &deletion.to_string()).unwrap();
    let back = json!({"source": world.target().database_url("b"), "target": world.source.database_url("a")});
    world.replicate(back).await;
    world.assert_same_docs();
}

#[tokio::test]
async fn histories_are_kept_and_stemmed() {
    let world = World::new().await;
    let mut rev = world.source.put("a", r#"{"_id":"long"}"#).unwrap();
    for n in 0..30 {
        let json = json!({"_id": "long", "_rev": rev.to_string(), "n": n});
        rev = world.source.put("a", &json.to_string()).unwrap();
        if n % 10 == 0 {
            world.replicate(json!({})).await;
        }
    }
    world.replicate(json!({})).await;
    world.assert_same();
    world.target().set_revs_limit("b", 3).unwrap();
    world.put(&json!({"_id": "long", "_rev": rev.to_string(), "last": true}));
    world.replicate(json!({})).await;
    world.assert_same();
}
