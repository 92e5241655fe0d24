//! Nodes that start and stop.

use peer::{Fault, Faults, On};
use scheduler::Options;
use serde_json::{Value, json};

use crate::fixture::World;

#[tokio::test]
async fn a_stopping_node_puts_its_jobs_back() {
    let world = World::new().await;
    let mut first = world.node("n1").await;
    world.put("x", &json!({"continuous": true})).await;
    world.peer.put("a", r#"{"_id":"early"}"#).unwrap();
    world.until_copied("early").await;
    world
        .until("x", |row| row["info"]["docs_written"] == 1)
        .await;
    first.until_running(1).await;
    let summary = world.replications.summary().await.unwrap();
    let at_work = |work: &Value| (work["node"].clone(), work["running"].clone());
    let nodes: Vec<_> = summary["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(at_work)
        .collect();
    assert_eq!(nodes, [(json!("n1"), json!(1))], "{summary:#}");
    assert_eq!(summary["jobs"]["running"], 1);
    first.stop().await;
    let row = world.until_state("x", "pending").await;
    assert_eq!(
        (&row["node"], &row["error_count"]),
        (&Value::Null, &json!(0))
    );
    // Its progress is still shown.
    assert_eq!(row["info"]["docs_written"], 1);
    let _second = world.node("n2").await;
    let row = world.until_state("x", "running").await;
    assert_eq!(row["node"], "n2");
    world.peer.put("a", r#"{"_id":"late"}"#).unwrap();
    world.until_copied("late").await;
    world
        .until("x", |row| row["info"]["docs_written"] == 2)
        .await;
}

#[tokio::test]
async fn the_longest_running_jobs_make_room_for_others() {
    let world = World::new().await;
    let mut node = world.node("n1").await;
    let options = |max_jobs| Options {
        max_jobs,
        max_churn: 1,
        interval_sec: 1,
        // They keep their permits, although nothing changes.
        park_after_sec: 0,
        min_run_time_sec: 0,
        stats_update_interval_sec: 0,
        ..Options::default()
    };
    node.replications.set_options(options(1)).unwrap();
    for n in 0..2 {
        let name = format!("t{n}");
        world.peer.create_database(&name).unwrap();
        let target = world.peer.database_url(&name);
        world
            .put(&name, &json!({"continuous": true, "target": target}))
            .await;
    }
    world.peer.put("a", r#"{"_id":"x"}"#).unwrap();
    // Both get to run, one at a time.
    world
        .until("t0", |row| row["info"]["docs_written"] == 1)
        .await;
    world
        .until("t1", |row| row["info"]["docs_written"] == 1)
        .await;
    node.replications.set_options(options(2)).unwrap();
    node.until_running(2).await;
    node.replications.set_options(options(0)).unwrap();
    node.until_running(0).await;
    assert_eq!(world.until_state("t0", "pending").await["error_count"], 0);
}

#[tokio::test]
async fn a_hung_server_does_not_block_other_starts() {
    let world = World::new().await;
    let node = world.node("n1").await;
    let options = Options {
        max_starts_per_server: 1,
        ..Options::default()
    };
    node.replications.set_options(options).unwrap();
    let hangs = (On::any("/hangs/"), Fault::Hang);
    world.peer.set_faults(Faults::script([hangs]));
    world.peer.create_database("hangs").unwrap();
    let target = world.peer.database_url("hangs");
    world.put("first", &json!({"target": target})).await;
    world.until_state("first", "running").await;
    world.peer.put("a", r#"{"_id":"x"}"#).unwrap();
    world.put("second", &json!({})).await;
    world.until_state("second", "completed").await;
    world.until_copied("x").await;
    world.until_state("first", "running").await;
}

/// A run that fetches its filter function is starting as well.
#[tokio::test]
async fn a_hung_filter_does_not_block_other_starts() {
    let world = World::new().await;
    let node = world.node("n1").await;
    let options = Options {
        max_starts_per_server: 1,
        ..Options::default()
    };
    node.replications.set_options(options).unwrap();
    let hangs = (On::any("/hangs/_design"), Fault::Hang);
    world.peer.set_faults(Faults::script([hangs]));
    world.peer.create_database("hangs").unwrap();
    let source = world.peer.database_url("hangs");
    let filtered = json!({"source": source, "filter": "d/f"});
    world.put("first", &filtered).await;
    let is_asked = || {
        let asked = world.peer.requests();
        (asked.iter()).any(|asked| asked.path.starts_with("/hangs/_design"))
    };
    world.until("first", |_| is_asked()).await;
    world.peer.put("a", r#"{"_id":"x"}"#).unwrap();
    world.put("second", &json!({})).await;
    world.until_state("second", "completed").await;
    world.until_copied("x").await;
}

/// Removing a job costs its holder one read of that job, and nothing for its other jobs.
#[tokio::test]
async fn a_holder_learns_that_it_lost_a_job() {
    const JOBS: usize = 8;
    let world = World::new().await;
    let mut node = world.node("n1").await;
    for n in 0..JOBS {
        let target = world.peer.database_url(&format!("t{n}"));
        let options = json!({"continuous": true, "target": target, "create_target": true});
        world.put(&format!("x{n}"), &options).await;
    }
    node.until_running(JOBS).await;
    for n in 0..JOBS {
        world.until_state(&format!("x{n}"), "running").await;
    }
    let looks = || {
        let stats = node.replications.jobs().store().stats();
        stats.get("info").map_or(0, |stats| stats.attempts)
    };
    let before = looks();
    world.delete("x0").await;
    // Long before the next heartbeat.
    node.load
        .clone()
        .wait_for(|load| load.running == JOBS - 1)
        .await
        .unwrap();
    assert_eq!(looks() - before, 0, "jobs that nothing happened to");
}
