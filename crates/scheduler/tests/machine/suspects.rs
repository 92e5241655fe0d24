//! Jobs whose nodes stop.

use std::time::Duration;

use peer::{Fault, Faults, On};
use serde_json::{Value, json};

use crate::fixture::World;

/// A job that has not shown that it runs when its node stops: first among others, then in a small group, then alone.
#[tokio::test]
async fn a_job_that_stops_its_nodes_is_set_aside() {
    let world = World::with_timeout(Some(Duration::from_secs(3))).await;
    let _monitor = world.monitor();
    let hangs = (On::any("/hangs/"), Fault::Hang);
    world.peer.set_faults(Faults::script([hangs]));
    world.peer.create_database("hangs").unwrap();
    let poison = json!({"target": world.peer.database_url("hangs")});
    world.put("poison", &poison).await;
    world.put("innocent", &json!({"continuous": true})).await;
    for round in 0..3 {
        let name = format!("n{round}");
        let node = world.node(&name).await;
        let runs = |row: &Value| row["node"] == name && row["state"] == "running";
        world.until("poison", runs).await;
        // With a strike it starts alone: the other has started before, or waits until it has shown that it runs.
        if round < 2 {
            world.until("innocent", runs).await;
            let written = format!("d{round}");
            let document = json!({"_id": written}).to_string();
            world.peer.put("a", &document).unwrap();
            world.until_copied(&written).await;
        }
        // Nothing is put back, as when the process is killed.
        drop(node);
    }
    let _last = world.node("last").await;
    let row = world.until_state("poison", "failed").await;
    let reason = row["info"]["reason"].as_str().unwrap_or_default();
    assert!(
        reason.starts_with("set aside: nodes stopped 2 times"),
        "{row:#}"
    );
    world.peer.put("a", r#"{"_id":"late"}"#).unwrap();
    world.until_copied("late").await;
}

/// If the run was given up instead, its node would look as if it had stopped, and the job would be set aside in the end.
#[tokio::test]
async fn a_run_crashes_whose_credentials_cannot_be_opened() {
    let world = World::new().await;
    let url = world.peer.database_url("b");
    let target = url.replace("://", "://joe:secret@");
    world.put("sealed", &json!({"target": target})).await;
    world.damage_sealed().await;
    let _node = world.node("n1").await;
    let row = world.until_state("sealed", "crashing").await;
    assert_eq!(row["info"]["error"], "unreadable", "{row:#}");
    assert_eq!(
        row["info"]["reason"],
        "cannot open sealed credentials: a sealed text was changed"
    );
}
