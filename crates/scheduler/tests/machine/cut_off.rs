//! Nodes that cannot reach the store any more, while they reach everything else.

use std::time::Duration;

use serde_json::json;

use crate::fixture::World;

/// A loser that lives goes on copying for a while, which does no harm, and has stopped before the next owner starts.
#[tokio::test]
async fn who_is_cut_off_has_stopped_before_somebody_else_begins() {
    let world = World::with_timeout(Some(Duration::from_secs(4))).await;
    let _watch = world.watch_over();
    let (first, line) = world.node_on_a_line("n1").await;
    world
        .put(
            "x",
            &json!({"continuous": true, "checkpoint_interval": 100}),
        )
        .await;
    world.peer.put("a", r#"{"_id":"early"}"#).unwrap();
    world.until_copied("early").await;
    let row = world.until("x", |row| row["node"] == "n1").await;
    assert_eq!(row["state"], "running");
    line.set_outage(true);
    world.peer.put("a", r#"{"_id":"meanwhile"}"#).unwrap();
    // It has the connections that it had, and does not know yet.
    world.until_copied("meanwhile").await;
    let checkpoints = || world.peer.count("PUT", "/b/_local/*");
    let before = checkpoints();
    let _second = world.node("n2").await;
    let row = world.until("x", |row| row["node"] == "n2").await;
    assert_eq!(
        first.load.borrow().running,
        0,
        "who was cut off still works when the other one has begun: {row:#}"
    );
    assert_eq!(
        checkpoints(),
        before,
        "without the store there is no checkpoint"
    );
    world.peer.put("a", r#"{"_id":"late"}"#).unwrap();
    world.until_copied("late").await;
    // Whoever comes back finds nothing of its own, and may have the next job.
    line.set_outage(false);
    world
        .put(
            "y",
            &json!({"target": world.peer.database_url("c"), "create_target": true}),
        )
        .await;
    world.until_state("y", "completed").await;
    let row = world.until("x", |row| row["state"] == "running").await;
    assert_eq!(row["node"], "n2");
}
