//! Shares of databases and users.

use std::time::Duration;

use jobs::JobInfo;
use peer::{Fault, Faults, On};
use scheduler::{Caller, Options, Started};
use serde_json::{Value, json};

use crate::fixture::{Node, World};

/// The jobs that a node runs keep their permits, and make room for others at any time.
fn options(max_jobs: usize, shares: &[(&str, u64)]) -> Options {
    let shares = shares
        .iter()
        .map(|(name, shares)| ((*name).to_owned(), *shares));
    Options {
        max_jobs,
        max_churn: 1,
        interval_sec: 1,
        park_after_sec: 0,
        min_run_time_sec: 0,
        stats_update_interval_sec: 0,
        shares: shares.collect(),
        ..Options::default()
    }
}

async fn request(world: &World, user: Option<&str>, target: &str) -> String {
    let caller = Caller {
        name: user.map(str::to_owned),
        is_admin: user.is_none(),
    };
    let target = world.peer.database_url(target);
    let options = json!({"continuous": true, "create_target": true, "target": target});
    match world.request(&options, &caller).await.unwrap() {
        Started::Job { job, .. } => job,
        cancelled @ Started::Cancelled { .. } => panic!("{cancelled:?}"),
    }
}

/// Names with these members of their rows.
async fn shown(world: &World, members: &[&str]) -> Value {
    let page = world.replications.shares(None, 100).await.unwrap();
    let rows = page["shares"].as_array().unwrap().iter().map(|row| {
        let values: Vec<_> = members.iter().map(|member| row[*member].clone()).collect();
        (row["name"].as_str().unwrap().to_owned(), values.into())
    });
    Value::Object(rows.collect())
}

async fn until_shown(world: &World, members: &[&str], expected: &Value) {
    let mut last = Value::Null;
    let look = async {
        while last != *expected {
            last = shown(world, members).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(45), look).await;
    assert!(waited.is_ok(), "{last:#}, not {expected:#}");
}

async fn info(world: &World, job: &jobs::JobId) -> JobInfo {
    let replications = &world.replications;
    let (jobs, ty) = (replications.jobs(), replications.job_type());
    jobs.info(ty, job).await.unwrap().unwrap()
}

/// Waits until a node has sent so many heartbeats more.
async fn until_beats(node: &Node, count: u64) {
    let store = node.replications.jobs().store();
    let beats = || store.stats().get("keep").map_or(0, |keep| keep.attempts);
    let wanted = beats() + count;
    while beats() < wanted {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn shares_are_of_databases_and_users() {
    let world = World::new().await;
    world.put("x", &json!({})).await;
    request(&world, None, "t0").await;
    request(&world, Some("joe"), "t1").await;
    let work = ["shares", "running", "idle", "waiting", "ahead_sec"];
    let expected = json!({"_replicator": [100, 0, 0, 2, 0], "joe": [100, 0, 0, 1, 0]});
    assert_eq!(shown(&world, &work).await, expected);
    let page = world.replications.shares(None, 1).await.unwrap();
    assert_eq!(page["after"], "_replicator");
    let page = world.replications.shares(Some("_replicator"), 1).await;
    let page = page.unwrap();
    assert_eq!(page["shares"][0]["name"], "joe");
    assert_eq!(page.get("after"), None);
}

#[tokio::test]
async fn the_largest_page_of_shares_says_whether_there_are_more() {
    let world = World::new().await;
    let names: Vec<_> = (0..1_001).map(|nth| format!("u{nth:04}")).collect();
    let given: Vec<_> = names.iter().map(|name| (name.as_str(), 50)).collect();
    let _node = world.node_with("n1", options(9, &given)).await;
    let listed = async {
        loop {
            let page = world.replications.shares(None, 1_000).await.unwrap();
            if let Some(after) = page["after"].as_str() {
                break after.to_owned();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let after = tokio::time::timeout(Duration::from_mins(1), listed).await;
    assert_eq!(after.unwrap(), "u0999");
}

/// They may be those of databases that do not exist.
#[tokio::test]
async fn shares_change_while_nodes_run() {
    let world = World::new().await;
    world.put("x", &json!({"continuous": true})).await;
    let given = [("_replicator", 300), ("gone", 1_001), ("low", 0)];
    let node: Node = world.node_with("n1", options(9, &given)).await;
    let shares =
        |of: u64, gone: u64| json!({"_replicator": [of, 1], "gone": [gone, 0], "low": [1, 0]});
    until_shown(&world, &["shares", "idle"], &shares(300, 1_000)).await;
    let given = [("_replicator", 7), ("gone", 50), ("low", 0)];
    node.replications.set_options(options(9, &given)).unwrap();
    until_shown(&world, &["shares", "idle"], &shares(7, 50)).await;
    node.replications.set_options(options(9, &[])).unwrap();
    let restored = json!({"_replicator": [100, 1]});
    until_shown(&world, &["shares", "idle"], &restored).await;
}

#[tokio::test]
async fn the_tenant_that_has_used_most_makes_room_first() {
    let world = World::new().await;
    let given = [("_replicator", 1_000), ("joe", 1)];
    let mut node = world.node_with("n1", options(2, &given)).await;
    let shares = json!({"_replicator": [1_000], "joe": [1]});
    until_shown(&world, &["shares"], &shares).await;
    world.put("first", &json!({"continuous": true})).await;
    world.until_state("first", "running").await;
    let joes = jobs::JobId::new(request(&world, Some("joe"), "t1").await).unwrap();
    node.until_running(2).await;
    node.replications.set_options(options(1, &given)).unwrap();
    // It makes room as often as it gets to run, although the other has run longer.
    let stopped = async {
        while info(&world, &joes).await.attempts < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(45), stopped).await;
    waited.expect("it is not stopped");
    assert_eq!(info(&world, &world.job("first")).await.attempts, 1);
}

#[tokio::test]
async fn idle_replications_use_no_shares() {
    let world = World::with_timeout(Some(Duration::from_secs(3))).await;
    let options = Options {
        park_after_sec: 1,
        ..options(9, &[])
    };
    let mut node = world.node_with("n1", options).await;
    world.put("x", &json!({"continuous": true})).await;
    node.until_parked(1).await;
    let used = async || {
        let (jobs, ty) = (world.replications.jobs(), world.replications.job_type());
        jobs.tenants(ty, None, 10).await.unwrap()
    };
    // The time before it was idle is charged.
    until_beats(&node, 2).await;
    let before = used().await;
    until_beats(&node, 3).await;
    assert_eq!(used().await, before);
}

/// They do not all run before a tenant that has used less.
#[tokio::test]
async fn idle_replications_that_wake_take_turns() {
    const MANY: usize = 10;
    let world = World::new().await;
    let options = Options {
        max_churn: 0,
        park_after_sec: 1,
        ..options(1, &[])
    };
    let mut node = world.node_with("n1", options).await;
    for n in 0..MANY {
        let source = format!("s{n}");
        world.peer.create_database(&source).unwrap();
        let body = json!({
            "source": world.peer.database_url(&source), "continuous": true,
            "target": world.peer.database_url(&format!("t{n}")), "create_target": true,
        });
        world.put(&format!("x{n}"), &body).await;
    }
    request(&world, Some("joe"), "joes").await;
    node.until_parked(MANY + 1).await;
    let writes = || On::any("*/_bulk_docs");
    let slow = |ms| Fault::Latency { ms };
    let faults = [(writes().nth(1), slow(5_000)), (writes(), slow(200))];
    world.peer.set_faults(Faults::script(faults));
    for n in 0..MANY {
        let source = format!("s{n}");
        world.peer.put(&source, r#"{"_id":"new"}"#).unwrap();
    }
    let waiting = |many: usize, joes: usize| json!({"_replicator": [many], "joe": [joes]});
    until_shown(&world, &["waiting"], &waiting(MANY - 1, 0)).await;
    world.peer.put("a", r#"{"_id":"new"}"#).unwrap();
    until_shown(&world, &["waiting"], &waiting(MANY - 1, 1)).await;
    let copied = |target: &str| world.peer.get(target, "new").unwrap().is_some();
    let joes = async {
        while !copied("joes") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(45), joes)
        .await
        .expect("joe's is not copied");
    let others = (0..MANY).filter(|n| copied(&format!("t{n}"))).count();
    assert!(others <= 5, "{others}");
}

/// One tenant has three times the shares of another, whose runs cost it three times as much of its turns.
#[tokio::test]
async fn idle_replications_that_wake_use_shares() {
    const MANY: usize = 6;
    let world = World::with_timeout(Some(Duration::from_secs(3))).await;
    let options = |shares: &[_]| Options {
        max_churn: 0,
        park_after_sec: 1,
        ..options(1, shares)
    };
    let given = [("ann", 300), ("joe", 100)];
    let mut node = world.node_with("n1", options(&given)).await;
    for n in 0..MANY {
        for user in ["ann", "joe"] {
            request(&world, Some(user), &format!("{user}{n}")).await;
        }
    }
    node.until_parked(2 * MANY).await;
    until_beats(&node, 2).await;
    let used = async || {
        let (jobs, ty) = (world.replications.jobs(), world.replications.job_type());
        let tenants = jobs.tenants(ty, None, 10).await.unwrap();
        let [ann, joe] = &tenants[..] else {
            panic!("{tenants:?}");
        };
        [ann.vtime, joe.vtime]
    };
    let before = used().await;
    let slow = (On::any("*/_bulk_docs"), Fault::Latency { ms: 500 });
    world.peer.set_faults(Faults::script([slow]));
    world.peer.put("a", r#"{"_id":"new"}"#).unwrap();
    let all_copied = async || {
        let users = (0..MANY).flat_map(|n| [format!("ann{n}"), format!("joe{n}")]);
        let is_copied = |to: String| world.peer.get(&to, "new").unwrap().is_some();
        while !users.clone().all(is_copied) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(45), all_copied())
        .await
        .expect("not all are copied");
    // All of it is charged.
    node.until_parked(2 * MANY).await;
    until_beats(&node, 2).await;
    let after = used().await;
    let [ann, joe] = [0, 1].map(|nth| after[nth] - before[nth]);
    assert!(ann > 0 && 3 * ann < 2 * joe, "{ann} and {joe}");
}
