//! Limits over all nodes: one run per target, and runs per server.

use std::time::Duration;

use jobs::{JobInfo, State};
use peer::{Fault, Faults, On};
use scheduler::Options;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fixture::{Node, World};

fn plain() -> Options {
    Options {
        stats_update_interval_sec: 0,
        ..Options::default()
    }
}

/// A continuous replication keeps its run.
fn never_idle() -> Options {
    Options {
        park_after_sec: 0,
        ..plain()
    }
}

/// A replication from a database of this name, with one document, to `b`.
async fn put(world: &World, name: &str, continuous: bool) {
    world.peer.create_database(name).unwrap();
    add(world, name, name);
    let options = json!({"source": world.peer.database_url(name), "continuous": continuous});
    world.put(name, &options).await;
}

fn add(world: &World, db: &str, id: &str) {
    let doc = json!({"_id": id}).to_string();
    world.peer.put(db, &doc).unwrap();
}

async fn info(world: &World, id: &str) -> JobInfo {
    let replications = &world.replications;
    let (jobs, ty) = (replications.jobs(), replications.job_type());
    jobs.info(ty, &world.job(id)).await.unwrap().unwrap()
}

fn set(node: &Node, options: Options) {
    node.replications.set_options(options).unwrap();
}

fn waits_for(limit: &str) -> impl Fn(&Value) -> bool {
    move |row| {
        row["state"] == "pending"
            && (row["info"]["waits_for"].as_str()).is_some_and(|text| text.contains(limit))
    }
}

#[tokio::test]
async fn replications_with_one_target_take_turns() {
    const NAMES: [&str; 4] = ["s0", "s1", "s2", "s3"];
    let world = World::new().await;
    for name in NAMES {
        put(&world, name, false).await;
    }
    let _nodes = [world.node("n1").await, world.node("n2").await];
    let mut runs = Vec::new();
    for name in NAMES {
        world.until_state(name, "completed").await;
        let run = info(&world, name).await.last.unwrap();
        runs.push((run.started_ms, run.end.unwrap().at_ms));
    }
    runs.sort_unstable();
    for pair in runs.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{runs:?}");
    }
}

#[tokio::test]
async fn the_lock_of_targets_can_be_turned_off() {
    let world = World::new().await;
    let node = world.node_with("n1", never_idle()).await;
    put(&world, "first", true).await;
    world.until_copied("first").await;
    put(&world, "second", false).await;
    world.until("second", waits_for("target_lock")).await;
    set(
        &node,
        Options {
            target_lock: false,
            ..never_idle()
        },
    );
    world.until_state("second", "completed").await;
}

#[tokio::test]
async fn idle_replications_keep_no_other_waiting() {
    let world = World::new().await;
    let options = Options {
        park_after_sec: 1,
        ..plain()
    };
    let mut node = world.node_with("n1", options).await;
    put(&world, "first", true).await;
    world.until_copied("first").await;
    put(&world, "second", true).await;
    world.until_copied("second").await;
    node.until_parked(2).await;
    for (db, id) in [("first", "third"), ("second", "fourth")] {
        add(&world, db, id);
        world.until_copied(id).await;
    }
    let idle = |row: &Value| row["info"]["idle"] == true;
    for id in ["first", "second"] {
        world.until(id, idle).await;
        assert_eq!(info(&world, id).await.state, State::Running);
    }
}

/// An idle replication that goes on has all limits of the present settings, whichever it became idle with.
#[tokio::test]
async fn idle_replications_go_on_with_new_limits() {
    let world = World::new().await;
    let options = Options {
        park_after_sec: 1,
        ..plain()
    };
    let mut node = world.node_with("n1", options).await;
    put(&world, "first", true).await;
    world.until_copied("first").await;
    node.until_parked(1).await;
    let lock = |target_lock| Options {
        target_lock,
        ..never_idle()
    };
    set(&node, lock(false));
    add(&world, "first", "more");
    world.until_copied("more").await;
    set(&node, lock(true));
    put(&world, "second", false).await;
    world.until("second", waits_for("target_lock")).await;
}

#[tokio::test]
async fn idle_replications_wait_for_limits_that_came_later() {
    let world = World::new().await;
    let options = Options {
        park_after_sec: 1,
        ..plain()
    };
    let mut node = world.node_with("n1", options).await;
    put(&world, "first", true).await;
    world.until_copied("first").await;
    node.until_parked(1).await;
    let options = Options {
        max_runs_per_server: 1,
        ..never_idle()
    };
    set(&node, options);
    world.peer.create_database("other").unwrap();
    world.peer.create_database("third").unwrap();
    let other = json!({
        "source": world.peer.database_url("third"), "target": world.peer.database_url("other"),
        "continuous": true,
    });
    world.put("second", &other).await;
    world.until_state("second", "running").await;
    add(&world, "first", "more");
    world.until("first", waits_for("max_runs_per_server")).await;
}

#[tokio::test]
async fn a_busy_replication_yields_its_target() {
    let world = World::new().await;
    let options = Options {
        min_run_time_sec: 0,
        interval_sec: 1,
        ..never_idle()
    };
    let _node = world.node_with("n1", options).await;
    put(&world, "first", true).await;
    world.until_copied("first").await;
    put(&world, "second", true).await;
    world.until_copied("second").await;
    add(&world, "first", "third");
    world.until_copied("third").await;
}

/// A document that takes longer than a turn would otherwise begin anew in each.
#[tokio::test]
async fn a_large_document_is_copied_although_others_wait() {
    let world = World::new().await;
    let options = Options {
        min_run_time_sec: 1,
        interval_sec: 1,
        ..never_idle()
    };
    world.peer.create_database("first").unwrap();
    let large = vec![1; 300_000];
    (world.peer)
        .attach("first", "large", None, "x", "a/b", large)
        .unwrap();
    let slow = Fault::SlowBody {
        bytes_per_second: 60_000,
    };
    (world.peer).set_faults(Faults::script([(On::get("/first/large"), slow)]));
    let _node = world.node_with("n1", options).await;
    let first = json!({"source": world.peer.database_url("first"), "continuous": true});
    world.put("first", &first).await;
    let reads = async {
        while world.peer.injected().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), reads)
        .await
        .unwrap();
    put(&world, "second", true).await;
    world.until_copied("large").await;
    world.until_copied("second").await;
}

/// Neither the time before nor the time that it was idle counts.
#[tokio::test]
async fn a_replication_that_was_idle_may_run_before_it_yields() {
    const MIN: u64 = 4;
    let world = World::new().await;
    let options = Options {
        min_run_time_sec: MIN,
        park_after_sec: MIN,
        interval_sec: 1,
        ..plain()
    };
    let mut node = world.node_with("n1", options).await;
    world.peer.create_database("first").unwrap();
    let source = world.peer.database_url("first");
    let one_by_one = json!({
        "source": source, "continuous": true, "worker_batch_size": 1, "worker_processes": 1,
    });
    world.put("first", &one_by_one).await;
    node.until_parked(1).await;
    let slow = (On::post("/b/_bulk_docs"), Fault::Latency { ms: 300 });
    world.peer.set_faults(Faults::script([slow]));
    let began = Instant::now();
    for nth in 0..50 {
        add(&world, "first", &format!("more{nth}"));
    }
    node.until_parked(0).await;
    put(&world, "second", false).await;
    world.until_copied("second").await;
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(MIN), "{waited:?}");
    assert!(world.peer.get("b", "more49").unwrap().is_none());
}

/// Its source reports no changes to others, so it does not become idle.
#[tokio::test]
async fn a_replication_that_has_caught_up_yields_its_target_early() {
    let world = World::new().await;
    world.forbid_watching();
    let options = Options {
        park_after_sec: 1,
        interval_sec: 1,
        ..plain()
    };
    let _node = world.node_with("n1", options).await;
    put(&world, "first", true).await;
    world.until_copied("first").await;
    put(&world, "second", false).await;
    world.until_state("second", "completed").await;
    add(&world, "first", "third");
    world.until_copied("third").await;
}

/// A run that stops makes no room for another start, and would have to wait for one itself.
#[tokio::test]
async fn a_limit_of_starts_stops_no_run() {
    let world = World::new().await;
    let url = url::Url::parse(&world.peer.url()).unwrap();
    let server = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap());
    let starts = json!({"starts": 1, "per_sec": 3600});
    let server_limits = json!({server: starts});
    let options = Options {
        interval_sec: 1,
        min_run_time_sec: 0,
        server_limits: serde_json::from_value(server_limits).unwrap(),
        ..never_idle()
    };
    let _node = world.node_with("n1", options).await;
    put(&world, "first", true).await;
    world.until_copied("first").await;
    for name in ["second", "third"] {
        let target = format!("to_{name}");
        world.peer.create_database(&target).unwrap();
        let other = json!({"target": world.peer.database_url(&target), "continuous": true});
        world.put(name, &other).await;
    }
    // One of them was given the next start, and the other waits for it.
    let waits = async || {
        while info(&world, "second").await.waits_for.is_none()
            && info(&world, "third").await.waits_for.is_none()
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), waits())
        .await
        .unwrap();
    let attempts = info(&world, "first").await.attempts;
    // Three cycles, and each would stop it.
    let (began, mut nth) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(4) {
        let id = format!("more{nth}");
        add(&world, "first", &id);
        world.until_copied(&id).await;
        nth += 1;
    }
    assert_eq!(info(&world, "first").await.attempts, attempts);
}

/// The service that creates the jobs knows nothing of the limit.
#[tokio::test]
async fn runs_per_server_are_limited() {
    let world = World::new().await;
    let options = Options {
        max_runs_per_server: 1,
        ..never_idle()
    };
    let node = world.node_with("n1", options).await;
    put(&world, "first", true).await;
    world.until_copied("first").await;
    world.peer.create_database("other").unwrap();
    let other = json!({"target": world.peer.database_url("other")});
    world.put("second", &other).await;
    world
        .until("second", waits_for("max_runs_per_server"))
        .await;
    set(&node, never_idle());
    world.until_state("second", "completed").await;
}
