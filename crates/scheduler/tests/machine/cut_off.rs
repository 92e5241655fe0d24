//! Nodes that cannot reach the store, but everything else.

use std::time::Duration;

use scheduler::Options;
use serde_json::json;

use crate::fixture::World;

/// The old holder may copy for a while, which does no harm, but stops before the next one starts.
#[tokio::test]
async fn a_partitioned_node_stops_before_another_starts_its_job() {
    let world = World::with_timeout(Some(Duration::from_secs(4))).await;
    let _monitor = world.monitor();
    let (first, faults) = world.node_with_faults("n1").await;
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
    faults.set_outage(true);
    world.peer.put("a", r#"{"_id":"meanwhile"}"#).unwrap();
    // Its connections still work, and it has not noticed yet.
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
    // The node has no job when it is back, and may claim the next one.
    faults.set_outage(false);
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

/// The lock of a target holds for the run of a job that was removed, too.
#[tokio::test]
async fn a_partitioned_node_stops_before_another_replication_writes_to_its_target() {
    let world = World::with_timeout(Some(Duration::from_secs(4))).await;
    let (first, faults) = world.node_with_faults("n1").await;
    let never_idle = Options {
        park_after_sec: 0,
        ..Options::default()
    };
    first.replications.set_options(never_idle).unwrap();
    world.put("x", &json!({"continuous": true})).await;
    world.peer.put("a", r#"{"_id":"early"}"#).unwrap();
    world.until_copied("early").await;
    faults.set_outage(true);
    world.delete("x").await;
    world.peer.create_database("c").unwrap();
    world.peer.put("c", r#"{"_id":"other"}"#).unwrap();
    let source = world.peer.database_url("c");
    world.put("y", &json!({"source": source})).await;
    let _second = world.node("n2").await;
    world.until_copied("other").await;
    assert_eq!(
        first.load.borrow().running,
        0,
        "the run of the removed job still writes when another replication does"
    );
    faults.set_outage(false);
    world.until_state("y", "completed").await;
}
