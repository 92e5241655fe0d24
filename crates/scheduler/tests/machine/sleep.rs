//! Replications that sleep in the store. These tests stand in for the process that follows the server.

use std::time::Duration;

use peer::{Fault, Faults, On};
use scheduler::{Answer, Caller, Following, Options, Sleeper};
use serde_json::{Value, json};

use crate::fixture::{Node, World};

fn eager() -> Options {
    Options {
        park_after_sec: 1,
        stats_update_interval_sec: 0,
        ..Options::default()
    }
}

/// The server of all databases, as its sleepers name it.
fn server(world: &World) -> String {
    format!("{}/", world.peer.url())
}

async fn follow(world: &World, follows: bool) {
    let following = Following {
        source: "peer".to_owned(),
        feed: "db_updates".to_owned(),
        since_ms: 0,
        reason: None,
    };
    let (replications, following) = (&world.replications, &following);
    let server = &server(world);
    (replications.jobs().store())
        .transact("follow", |tx| async move {
            replications.follow_in(&tx, server, follows.then_some(following));
            Ok::<_, scheduler::ServiceError>(())
        })
        .await
        .unwrap();
}

/// What the follower does when a database has changed; returns how many woke up.
async fn wake(world: &World, database: &str) -> usize {
    let (replications, server) = (&world.replications, &server(world));
    let op = replications.jobs().op();
    (replications.jobs().store())
        .transact("wake", |tx| async move {
            replications
                .wake_in(&tx, &op, server, &[database], 100)
                .await
        })
        .await
        .unwrap()
}

/// What the follower does with sleepers that it has listed.
async fn wake_these(world: &World, sleepers: &[Sleeper]) -> usize {
    let (replications, server) = (&world.replications, &server(world));
    let op = replications.jobs().op();
    (replications.jobs().store())
        .transact("wake", |tx| async move {
            replications.wake_these_in(&tx, &op, server, sleepers).await
        })
        .await
        .unwrap()
}

async fn until_asleep(world: &World, node: &mut Node, docs: u64) -> Value {
    let asleep = |row: &Value| row["info"]["asleep"] == true && row["info"]["docs_written"] == docs;
    world.until("x", asleep).await;
    // It looks at its source once more before its run ends.
    node.until_running(0).await;
    world.until("x", asleep).await
}

fn revised(world: &World, id: &str) {
    let body = json!({"_id": id});
    world.peer.put("a", &body.to_string()).unwrap();
}

#[tokio::test]
async fn what_has_caught_up_sleeps_until_it_is_woken() {
    let world = World::new().await;
    follow(&world, true).await;
    let mut node = world.node_with("n", eager()).await;
    revised(&world, "early");
    world.put("x", &json!({"continuous": true})).await;
    let row = until_asleep(&world, &mut node, 1).await;
    assert_eq!(
        (&row["state"], &row["info"]["idle"]),
        (&json!("running"), &json!(true))
    );
    assert_eq!(row["info"]["waits_for"], "a change of the source");
    assert_eq!(row["info"]["next_run"], Value::Null);
    let summary = world.replications.summary().await.unwrap();
    assert_eq!(summary["jobs"]["idle"], 1, "{summary:#}");
    let (mut tasks, mut cursor) = world.replications.active_tasks(None).await.unwrap();
    while let Some(next) = cursor {
        let (more, rest) = world.replications.active_tasks(Some(&next)).await.unwrap();
        tasks.extend(more);
        cursor = rest;
    }
    assert_eq!(tasks.len(), 1, "{tasks:#?}");

    // Another node does not wake it.
    node.stop().await;
    let requests = || world.peer.requests().len();
    let before = requests();
    let mut node = world.node_with("m", eager()).await;
    assert_eq!(wake(&world, "b").await, 0);
    world
        .put("y", &json!({"source": world.peer.database_url("b")}))
        .await;
    world.until_state("y", "completed").await;
    let asked = world.peer.requests();
    assert!(
        !asked[before..]
            .iter()
            .any(|asked| asked.path.starts_with("/a/_changes"))
    );

    revised(&world, "late");
    let listed = world.replications.sleepers(&server(&world), None, 9).await;
    let listed = listed.unwrap();
    let others = [Sleeper {
        database: "b".to_owned(),
        ..listed[0].clone()
    }];
    assert_eq!(wake_these(&world, &others).await, 0);
    assert_eq!(wake_these(&world, &listed).await, 1);
    assert_eq!(wake_these(&world, &listed).await, 0, "it is awake");
    assert_eq!(wake(&world, "a").await, 0, "it is awake");
    world.until_copied("late").await;
    until_asleep(&world, &mut node, 2).await;
    assert_eq!(wake(&world, "a").await, 1);
}

/// The follower saw the change before the replication fell asleep, and the replication's own feed is slow.
#[tokio::test]
async fn a_change_before_the_sleep_is_not_missed() {
    let world = World::new().await;
    follow(&world, true).await;
    let mut node = world.node_with("n", eager()).await;
    let feed = On::get("/a/_changes?*feed=continuous*").first(1);
    let slow = Fault::SlowBody {
        bytes_per_second: 1,
    };
    world.peer.set_faults(Faults::script([(feed, slow)]));
    revised(&world, "early");
    world.put("x", &json!({"continuous": true})).await;
    world.until_copied("early").await;
    let followed = async {
        while world.peer.injected().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), followed)
        .await
        .unwrap();
    revised(&world, "late");
    world.until_copied("late").await;
    until_asleep(&world, &mut node, 2).await;
}

#[tokio::test]
async fn a_server_that_is_not_followed_lets_nothing_sleep() {
    let world = World::new().await;
    let mut node = world.node_with("n", eager()).await;
    revised(&world, "early");
    world.put("x", &json!({"continuous": true})).await;
    node.until_parked(1).await;
    let row = world.until("x", |row| row["info"]["idle"] == true).await;
    assert_eq!(row["info"].get("asleep"), None, "{row:#}");
}

/// Pausing, restarting and deleting end a sleep, and leave nothing that wakes the job later.
#[tokio::test]
async fn a_sleep_ends_with_its_reason() {
    let world = World::new().await;
    follow(&world, true).await;
    let mut node = world.node_with("n", eager()).await;
    revised(&world, "early");
    world.put("x", &json!({"continuous": true})).await;
    until_asleep(&world, &mut node, 1).await;
    world
        .put("x", &json!({"continuous": true, "paused": true}))
        .await;
    world.until("x", |row| row["info"]["paused"] == true).await;
    assert_eq!(wake(&world, "a").await, 0);
    revised(&world, "late");
    world.put("x", &json!({"continuous": true})).await;
    world.until_copied("late").await;
    until_asleep(&world, &mut node, 2).await;

    world.replications.restart(&world.job("x")).await.unwrap();
    until_asleep(&world, &mut node, 2).await;
    assert_eq!(wake(&world, "a").await, 1, "one row, not two");
    until_asleep(&world, &mut node, 2).await;
    world.delete("x").await;
    assert_eq!(wake(&world, "a").await, 0);
}

#[tokio::test]
async fn triggered_replications_repeat() {
    let world = World::new().await;
    follow(&world, true).await;
    let mut node = world.node_with("n", eager()).await;
    revised(&world, "early");
    world.put("x", &json!({"trigger": "changes"})).await;
    let row = until_asleep(&world, &mut node, 1).await;
    assert_eq!(row["state"], "running");
    assert!(row["info"]["last_run"].is_string(), "{row:#}");
    let doc = world.read("x").await.unwrap();
    assert_eq!(doc.get("_replication_state"), None, "{doc:#}");
    for (n, id) in ["late", "later"].into_iter().enumerate() {
        revised(&world, id);
        assert_eq!(wake(&world, "a").await, 1);
        world.until_copied(id).await;
        until_asleep(&world, &mut node, n as u64 + 2).await;
    }
}

#[tokio::test]
async fn a_trigger_waits_for_enough_changes() {
    let world = World::new().await;
    follow(&world, true).await;
    let mut node = world.node_with("n", eager()).await;
    revised(&world, "early");
    world
        .put("x", &json!({"trigger": {"min_changes": 2}}))
        .await;
    until_asleep(&world, &mut node, 1).await;
    revised(&world, "first");
    assert_eq!(wake(&world, "a").await, 1);
    let awake = async {
        while wake(&world, "a").await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), awake)
        .await
        .unwrap();
    until_asleep(&world, &mut node, 1).await;
    assert!(world.peer.get("b", "first").unwrap().is_none());
    revised(&world, "second");
    wake(&world, "a").await;
    world.until_copied("second").await;
    until_asleep(&world, &mut node, 3).await;
}

#[tokio::test]
async fn a_trigger_can_follow_the_clock() {
    let world = World::new().await;
    let _node = world.node_with("n", eager()).await;
    revised(&world, "early");
    world.put("x", &json!({"trigger": {"every_sec": 1}})).await;
    world.until_copied("early").await;
    revised(&world, "late");
    world.until_copied("late").await;
    let row = world.until("x", |row| row["info"]["asleep"] == true).await;
    assert!(row["info"]["next_run"].is_string(), "{row:#}");
}

/// A delay is counted from the first change, and a run follows the one before after an interval.
#[tokio::test]
async fn a_trigger_delays_runs() {
    let world = World::new().await;
    follow(&world, true).await;
    let mut node = world.node_with("n", eager()).await;
    revised(&world, "early");
    let trigger = json!({"trigger": {"delay_sec": 3600, "min_interval_sec": 7200}});
    world.put("x", &trigger).await;
    until_asleep(&world, &mut node, 1).await;
    revised(&world, "late");
    assert_eq!(wake(&world, "a").await, 1);
    let row = world
        .until("x", |row| row["info"]["next_run"].is_string())
        .await;
    let next: jiff::Timestamp = row["info"]["next_run"].as_str().unwrap().parse().unwrap();
    let last: jiff::Timestamp = row["info"]["last_run"].as_str().unwrap().parse().unwrap();
    assert_eq!(next.as_second() - last.as_second(), 7200, "{row:#}");
    assert_eq!(
        row["info"]["waits_for"],
        "its next run: its source has changed"
    );
}

/// A change during a run waits for the delay, and counts meanwhile.
#[tokio::test]
async fn a_run_that_is_to_follow_another_is_pending() {
    let world = World::new().await;
    follow(&world, true).await;
    let mut node = world.node_with("n", eager()).await;
    revised(&world, "early");
    let slow = (On::post("/b/_bulk_docs"), Fault::Latency { ms: 1_000 });
    world.peer.set_faults(Faults::script([slow]));
    world
        .put("x", &json!({"trigger": {"delay_sec": 3600}}))
        .await;
    let writes = async {
        while world.peer.injected().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let written = tokio::time::timeout(Duration::from_secs(30), writes);
    written.await.expect("it does not write");
    revised(&world, "late");
    let row = until_asleep(&world, &mut node, 1).await;
    let info = &row["info"];
    assert_eq!(info["waits_for"], "its next run: its source has changed");
    assert_eq!(info["changes_pending"], Value::Null, "{row:#}");
    assert_ne!(info["lag_seconds"], 0, "{row:#}");
}

#[tokio::test]
async fn requests_can_be_triggered() {
    let world = World::new().await;
    follow(&world, true).await;
    let _node = world.node_with("n", eager()).await;
    revised(&world, "early");
    let caller = Caller {
        name: Some("joe".to_owned()),
        is_admin: true,
    };
    let started = world
        .request(&json!({"trigger": "changes"}), &caller)
        .await
        .unwrap();
    let Answer::Running { local_id } = world.wait(&started).await else {
        panic!("it does not repeat");
    };
    world.until_copied("early").await;
    let asleep = async {
        loop {
            let job = world.scheduler_job(&local_id).await.unwrap();
            if job["info"]["asleep"] == true {
                return job;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), asleep)
        .await
        .unwrap();
    revised(&world, "late");
    assert_eq!(wake(&world, "a").await, 1);
    world.until_copied("late").await;
}

/// The replication of a rule runs with the revision of the rule that asked for it, and no other.
#[tokio::test]
async fn the_job_of_a_rule_runs_until_it_changes() {
    let world = World::new().await;
    follow(&world, true).await;
    let mut node = world.node_with("n", eager()).await;
    revised(&world, "early");
    let rev = write_rule(&world, None).await;
    assert!(ask_for(&world, &rev).await);
    assert!(!ask_for(&world, &rev).await, "it is there");
    let row = until_asleep(&world, &mut node, 1).await;
    assert_eq!(
        (&row["dirty"], &row["locked_at"]),
        (&json!(false), &Value::Null)
    );
    revised(&world, "late");
    assert_eq!(wake(&world, "a").await, 1);
    world.until_copied("late").await;
    until_asleep(&world, &mut node, 2).await;

    let rev = write_rule(&world, Some(rev)).await;
    let triggered = world.replications.trigger_rule(&world.db, "x").await;
    assert_eq!(triggered.unwrap(), 0);
    revised(&world, "later");
    assert_eq!(wake(&world, "a").await, 1);
    // It is put back, for the rule to ask for it again.
    world.until_state("x", "pending").await;
    assert!(world.peer.get("b", "later").unwrap().is_none());
    assert!(ask_for(&world, &rev).await);
    world.until_copied("later").await;
}

/// Writes the document of a rule, which has no job of its own.
async fn write_rule(world: &World, before: Option<docstore::Rev>) -> docstore::Rev {
    let mut edit = docstore::Edit::new("x", document::doc::Doc::parse("{}").unwrap()).unwrap();
    edit.revisions = before.map(docstore::Revisions::from);
    let docs = world.replications.docs();
    (docs.put(
        &world.db,
        &edit,
        docstore::EditMode::NewEdits,
        &docstore::NoHook,
    ))
    .await
    .unwrap()
}

async fn ask_for(world: &World, rev: &docstore::Rev) -> bool {
    let body = world.body(&json!({"trigger": "changes"}));
    let ruled = &scheduler::Ruled {
        db: world.db.name().to_string(),
        instance: world.db.instance(),
        doc_id: "x".to_owned(),
        rev: rev.to_string(),
        database: None,
        remote: None,
        is_bulk: false,
        body: document::json::Json::from(&body),
    };
    let (replications, op) = (&world.replications, world.replications.jobs().op());
    (replications.jobs().store())
        .transact("rule", |tx| async move {
            Ok::<_, scheduler::ServiceError>(replications.rule_in(&tx, &op, &[ruled]).await? > 0)
        })
        .await
        .unwrap()
}

/// One series for each reason, however many replications there are.
#[tokio::test]
async fn metrics_say_what_triggered_replications_wait_for_and_why_they_ran() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let value = |series: &str| {
        let text = recorder.handle().render();
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.map(|value| value.trim().parse::<f64>().unwrap())
    };
    let until = async |series: &str, expected: f64| {
        let there = async {
            while value(series) < Some(expected) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let there = tokio::time::timeout(Duration::from_mins(1), there).await;
        there.unwrap_or_else(|_| panic!("{series} is {:?}", value(series)));
    };
    let world = World::new().await;
    follow(&world, true).await;
    let options = Options {
        interval_sec: 1,
        ..eager()
    };
    let mut node = world.node_with("n", options).await;
    revised(&world, "early");
    world.put("x", &json!({"trigger": "changes"})).await;
    until_asleep(&world, &mut node, 1).await;
    assert_eq!(
        value(r#"davenport_triggered_runs_total{reason="start"}"#),
        Some(1.0)
    );
    until(
        r#"davenport_triggered_replications{waits_for="change"}"#,
        1.0,
    )
    .await;
    revised(&world, "late");
    assert_eq!(wake(&world, "a").await, 1);
    world.until_copied("late").await;
    until_asleep(&world, &mut node, 2).await;
    assert_eq!(
        value(r#"davenport_triggered_runs_total{reason="change"}"#),
        Some(1.0)
    );
    assert_eq!(value("davenport_triggered_late_seconds_count"), Some(2.0));
    let started = value("davenport_triggered_last_start_timestamp_seconds");
    assert!(
        started.is_some_and(|seconds| seconds > 1.6e9),
        "{started:?}"
    );

    // By the clock.
    let target = world.peer.database_url("c");
    world.peer.create_database("c").unwrap();
    let clock = json!({"target": target, "trigger": {"every_sec": 1}});
    world.put("y", &clock).await;
    until(r#"davenport_triggered_runs_total{reason="time"}"#, 1.0).await;
    let clock = json!({"target": target, "trigger": {"every_sec": 3600}});
    world.put("y", &clock).await;
    until(r#"davenport_triggered_replications{waits_for="time"}"#, 1.0).await;
    // Sleeping replications without a trigger do not count.
    let target = world.peer.database_url("d");
    world.peer.create_database("d").unwrap();
    let continuous = json!({"target": target, "continuous": true});
    world.put("z", &continuous).await;
    world.until("z", |row| row["info"]["asleep"] == true).await;
    until(r#"davenport_replications{state="idle"}"#, 3.0).await;
    assert_eq!(
        value(r#"davenport_triggered_replications{waits_for="change"}"#),
        Some(1.0)
    );
    for waits_for in ["run", "poll"] {
        let series = format!("davenport_triggered_replications{{waits_for=\"{waits_for}\"}}");
        assert_eq!(value(&series), Some(0.0));
    }
}
