//! Names with slashes, feeds that are missing or forget, databases that are excluded, and rules that answer each other.

use std::time::Duration;

use peer::{Faults, On};
use rules::source::{FeedKind, SourceOptions};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::fixture::{LOSES_ALL, World, answers, no_feeds, quick, without_feed, without_sweeps};

fn copying(world: &World, from: &str, to: &str) -> Value {
    json!({
        "type": "replicator", "source": world.peer.database_url(from),
        "target": world.peer.database_url(to),
    })
}

async fn until_rule_sleeps(world: &World, id: &str) {
    world.until(async || world.rule_sleeps(id).await).await;
}

pub(crate) async fn next_url(world: &mut World) -> String {
    let call = timeout(Duration::from_mins(1), world.calls.recv()).await;
    call.unwrap().unwrap().url
}

/// A server without the feed is asked for sequences, as one that forbids it.
#[tokio::test]
async fn a_missing_feed_is_like_a_forbidden_one() {
    let world = World::new().await;
    world.peer.set_faults(no_feeds(404));
    let options = SourceOptions {
        poll_sec: 1,
        ..SourceOptions::default()
    };
    let _node = world.node(options).await;
    world.until_followed("dbs_info").await;
    world.follows_a_change().await;
}

/// A server that does not know the position any more may have lost any event.
#[tokio::test]
async fn an_unknown_position_wakes_everything() {
    let world = World::new().await;
    let node = world.node(without_sweeps()).await;
    world.until_followed("db_updates").await;
    world.copy("early").await;
    world.until_asleep(1).await;
    node.stop().await;
    world.peer.set_feed_faults(1, LOSES_ALL);
    world.change("late");
    world.peer.set_faults(Faults::script([
        (On::any("/_db_updates").nth(1), answers(400)),
        // The sweep that begins at once would find it, too.
        (On::post("/_dbs_info"), answers(500)),
    ]));
    let _node = world.node(without_sweeps()).await;
    world.until_copied("late").await;
    world.until_followed("db_updates").await;
    world.until_asleep(2).await;
}

#[tokio::test]
async fn names_with_slashes_are_followed() {
    let mut world = World::new().await;
    world.peer.create_database("x/y").unwrap();
    let node = world.node(without_sweeps()).await;
    world.until_followed("db_updates").await;
    let rule = copying(&world, "x/y", "b");
    world.rule("copy", Some(&rule)).await;
    let calls = json!({
        "type": "on_change", "match": {"database": "^x/"},
        "url": "http://127.0.0.1:1/${db_name}/${change.id}",
    });
    world.rule("call", Some(&calls)).await;
    world.until_seeded(2).await;
    until_rule_sleeps(&world, "copy").await;
    world.peer.put("x/y", r#"{"_id":"one"}"#).unwrap();
    world.until_copied("one").await;
    assert_eq!(next_url(&mut world).await, "http://127.0.0.1:1/x%2Fy/one");
    // By comparison of sequences, too.
    until_rule_sleeps(&world, "copy").await;
    world.peer.set_feed_faults(1, LOSES_ALL);
    world.peer.put("x/y", r#"{"_id":"two"}"#).unwrap();
    node.stop().await;
    let _node = world.node(without_feed()).await;
    world.until_copied("two").await;
    assert_eq!(next_url(&mut world).await, "http://127.0.0.1:1/x%2Fy/two");
}

/// Spiegel's rules know names only as they stand in URLs.
#[tokio::test]
async fn a_rule_about_one_name_as_in_urls_begins_now() {
    let mut world = World::new().await;
    world.peer.create_database("x/y").unwrap();
    world.peer.put("x/y", r#"{"_id":"old"}"#).unwrap();
    let _node = world.node(without_sweeps()).await;
    world.until_followed("db_updates").await;
    let calls = json!({
        "type": "on_change", "db_name": "^x%2Fy$", "url": "http://127.0.0.1:1/${change.id}",
    });
    world.rule("call", Some(&calls)).await;
    world.until_seeded(1).await;
    world.peer.put("x/y", r#"{"_id":"new"}"#).unwrap();
    assert_eq!(next_url(&mut world).await, "http://127.0.0.1:1/new");
}

/// Whatever keeps its databases from being looked for at first.
#[tokio::test]
async fn a_rule_begins_now_although_the_server_failed() {
    let mut world = World::new().await;
    world.change("old");
    let looked = On::post("/_dbs_info").first(1);
    (world.peer).set_faults(Faults::script([(looked, answers(400))]));
    let calls = json!({
        "type": "on_change", "db_name": "^a$", "url": "http://127.0.0.1:1/${change.id}",
    });
    world.rule("call", Some(&calls)).await;
    let _node = world.node(quick()).await;
    world.until_seeded(1).await;
    assert_eq!(world.peer.injected().len(), 1);
    world.change("new");
    assert_eq!(next_url(&mut world).await, "http://127.0.0.1:1/new");
}

#[tokio::test]
async fn another_name_of_a_source_repeats_nothing() {
    let mut world = World::new().await;
    world.change("old");
    let calls = json!({
        "type": "on_change", "db_name": "^a$", "url": "http://127.0.0.1:1/${change.id}",
    });
    world.rule("call", Some(&calls)).await;
    let ty = &jobs::JobType::new("listen").unwrap();
    let counts = |world: &World| {
        let jobs = world.replications.jobs().clone();
        async move { jobs.counts(ty).await.unwrap().finished }
    };
    let node = world.node(quick()).await;
    world.until(async || counts(&world).await == 1).await;
    node.stop().await;
    let _node = world.renaming_node(quick()).await;
    // Its databases have been looked for again.
    world.until(async || counts(&world).await == 2).await;
    world.change("new");
    assert_eq!(next_url(&mut world).await, "http://127.0.0.1:1/new");
}

/// Each wakes the other once, which finds nothing to do.
#[tokio::test]
async fn rules_that_answer_each_other_end() {
    let world = World::new().await;
    world.peer.create_database("c").unwrap();
    world.peer.create_database("d").unwrap();
    let _node = world.node(without_sweeps()).await;
    world.until_followed("db_updates").await;
    for (id, from, to) in [("x", "a", "b"), ("y", "b", "a"), ("z", "c", "d")] {
        let rule = copying(&world, from, to);
        world.rule(id, Some(&rule)).await;
        until_rule_sleeps(&world, id).await;
    }
    let woken = async || world.source().await["woken"].as_u64().unwrap();
    let before = woken().await;
    world.change("one");
    world.until_copied("one").await;
    world.until(async || woken().await >= before + 2).await;
    for id in ["x", "y"] {
        until_rule_sleeps(&world, id).await;
    }
    // Once this is copied, the follower has read all events before it.
    world.peer.put("c", r#"{"_id":"marker"}"#).unwrap();
    let marked = async || matches!(world.peer.get("d", "marker"), Ok(Some(_)));
    world.until(marked).await;
    assert_eq!(woken().await, before + 3);
}

/// The feed has reported their changes, which is not its fault.
#[tokio::test]
async fn excluded_databases_are_no_misses() {
    let world = World::new().await;
    let options = SourceOptions {
        exclude: vec!["^a$".to_owned()],
        ..quick()
    };
    let _node = world.node(options).await;
    world.copy("early").await;
    for nth in 1..=4 {
        world.until_asleep(nth).await;
        let id = format!("late{nth}");
        world.change(&id);
        // Only the comparison of sequences, which asks about every sleeper, finds it.
        world.until_copied(&id).await;
    }
    let source = world.source().await;
    assert_eq!(
        (&source["missed"], &source["feed"]),
        (&json!(0), &json!("db_updates")),
        "{source:#}"
    );
}

/// Neither when they are named exactly, nor when they were listened to before.
#[tokio::test]
async fn rules_are_not_about_excluded_databases() {
    let mut world = World::new().await;
    let options = |exclude: &[&str]| SourceOptions {
        exclude: exclude.iter().map(|&name| name.to_owned()).collect(),
        ..quick()
    };
    let calls = json!({"type": "on_change", "url": "http://127.0.0.1:1/${db_name}/${change.id}"});
    world.rule("call", Some(&calls)).await;
    let node = world.node(options(&[])).await;
    world.until_followed("db_updates").await;
    world.until_seeded(1).await;
    world.change("one");
    assert_eq!(next_url(&mut world).await, "http://127.0.0.1:1/a/one");
    node.stop().await;
    world.peer.set_feed_faults(1, LOSES_ALL);
    let _node = world.node(options(&["^a$"])).await;
    world.until_followed("db_updates").await;
    let rule = copying(&world, "a", "b");
    world.rule("copy", Some(&rule)).await;
    for id in ["two", "three"] {
        world.change(id);
        world
            .peer
            .put("b", &json!({"_id": id}).to_string())
            .unwrap();
        assert_eq!(
            next_url(&mut world).await,
            format!("http://127.0.0.1:1/b/{id}")
        );
    }
    assert_eq!(world.rule_row("copy").await["job_id"], Value::Null);
}

/// Databases that changed and new ones are found every `poll_sec`.
#[tokio::test]
async fn rules_do_not_wait_for_a_sweep_without_a_feed() {
    let mut world = World::new().await;
    let options = SourceOptions {
        feed: FeedKind::DbsInfo,
        poll_sec: 1,
        ..without_sweeps()
    };
    let _node = world.node(options).await;
    world.until_followed("dbs_info").await;
    let calls = json!({"type": "on_change", "url": "http://127.0.0.1:1/${db_name}/${change.id}"});
    world.rule("call", Some(&calls)).await;
    world.until_seeded(1).await;
    world.change("one");
    assert_eq!(next_url(&mut world).await, "http://127.0.0.1:1/a/one");
    world.peer.create_database("new").unwrap();
    world.peer.put("new", r#"{"_id":"two"}"#).unwrap();
    assert_eq!(next_url(&mut world).await, "http://127.0.0.1:1/new/two");
}

/// Rules with calls keep no sleepers that would show that the feed delivers nothing.
#[tokio::test]
async fn a_silent_feed_is_found_out_by_calls() {
    let mut world = World::new().await;
    world.peer.create_database("c").unwrap();
    let _node = world.node(quick()).await;
    world.until_followed("db_updates").await;
    let calls = json!({"type": "on_change", "url": "http://127.0.0.1:1/${db_name}/${change.id}"});
    world.rule("call", Some(&calls)).await;
    world.until_seeded(1).await;
    world.peer.set_feed_faults(1, LOSES_ALL);
    for nth in 0..30 {
        if world.source().await["feed"] == "dbs_info" {
            break;
        }
        let body = json!({"_id": nth.to_string()}).to_string();
        for name in ["a", "b", "c"] {
            world.peer.put(name, &body).unwrap();
        }
        for _ in 0..3 {
            next_url(&mut world).await;
        }
    }
    let source = world.source().await;
    assert_eq!(source["feed"], "dbs_info", "{source:#}");
    let reason = source["reason"].as_str().unwrap();
    assert!(reason.starts_with("the feed missed "), "{reason}");
    assert!(source["missed"].as_u64().unwrap() >= 3, "{source:#}");
}

/// A database that changes at every look was reported each time.
#[tokio::test]
async fn reported_changes_are_no_misses() {
    let mut world = World::new().await;
    let _node = world.node(quick()).await;
    world.until_followed("db_updates").await;
    let calls = json!({"type": "on_change", "url": "http://127.0.0.1:1/${change.id}"});
    world.rule("call", Some(&calls)).await;
    world.until_seeded(1).await;
    // For longer than a feed may take to report the first of them.
    let looks = || world.peer.count("POST", "/_dbs_info");
    let (before, mut nth) = (looks(), 0);
    while looks() < before + 10 {
        nth += 1;
        world.change(&nth.to_string());
        let call = timeout(Duration::from_mins(1), world.calls.recv()).await;
        assert!(call.unwrap().is_some());
    }
    let source = world.source().await;
    assert_eq!(
        (&source["missed"], &source["feed"]),
        (&json!(0), &json!("db_updates")),
        "{source:#}"
    );
}

/// The first of two requests for the sequences of what sleeps finds a change, and the second one fails.
#[tokio::test]
async fn what_is_found_does_not_wait_for_the_end_of_a_sweep() {
    let world = World::new().await;
    let name = |nth: usize| format!("user_{nth:03}");
    for nth in 0..=100 {
        world.peer.create_database(&name(nth)).unwrap();
    }
    let node = world.node(without_sweeps()).await;
    world.until_followed("db_updates").await;
    let rule = json!({
        "type": "replicator", "match": {"database": "^user_(?<name>[0-9]+)$"},
        "source": format!("{}/user_${{name}}", world.peer.url()),
        "target": world.peer.database_url("b"),
    });
    world.rule("x", Some(&rule)).await;
    let server = world.source().await["server"].as_str().unwrap().to_owned();
    let all_sleep = async || {
        let sleepers = world.replications.sleepers(&server, None, 1_000).await;
        sleepers.unwrap().len() == 101
    };
    world.until(all_sleep).await;
    node.stop().await;
    world.peer.set_feed_faults(1, LOSES_ALL);
    world.peer.put(&name(0), r#"{"_id":"late"}"#).unwrap();
    // The first request asks whether there is an answer at all.
    world.peer.set_faults(Faults::script([(
        On::post("/_dbs_info").from(3),
        answers(500),
    )]));
    let options = SourceOptions {
        feed: FeedKind::DbsInfo,
        ..without_sweeps()
    };
    let _node = world.node(options).await;
    world.until_copied("late").await;
}
