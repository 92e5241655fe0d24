//! Replications that sleep until the server of their source reports a change, on an in-memory store, with a peer.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod comparisons;
mod couchdb;
mod created;
mod deleted;
mod edges;
mod fixture;
mod remotes;
mod repeated;
mod rules_of_sources;
mod spiegel;
mod unread;

use metrics_exporter_prometheus::PrometheusBuilder;
use peer::{Faults, On};
use rules::source::{FeedKind, SourceOptions};
use serde_json::{Value, json};

use fixture::{World, answers, no_feeds};

#[tokio::test]
async fn a_change_wakes_what_sleeps() {
    let world = World::new().await;
    let node = world.node(SourceOptions::default()).await;
    world.until_followed("db_updates").await;
    world.copy("early").await;
    world.until_asleep(1).await;
    world.change("late");
    world.until_copied("late").await;
    let row = world.until_asleep(2).await;
    assert_eq!(row["state"], "running", "{row:#}");
    let source = world.source().await;
    assert_eq!(
        (&source["followed"], &source["node"], &source["missed"]),
        (&json!(true), &json!("n"), &json!(0)),
        "{source:#}"
    );
    node.stop().await;
    assert_eq!(world.source().await["followed"], false);
}

/// Nothing is asked twice, and a change while no node runs is found in the feed.
#[tokio::test]
async fn another_node_goes_on_where_the_last_one_stopped() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let node = world.node(SourceOptions::default()).await;
    world.copy("early").await;
    world.until_asleep(1).await;
    node.stop().await;
    let before = world.peer.requests().len();
    let node = world.node(SourceOptions::default()).await;
    world
        .until(async || world.source().await["followed"] == true)
        .await;
    let asked = world.peer.requests();
    let woken = asked[before..]
        .iter()
        .any(|request| request.path.starts_with("/a"));
    assert!(!woken, "{:#?}", &asked[before..]);
    let followed = r#"davenport_source_followed{source="peer",feed="db_updates"} 1"#;
    let shown = async || recorder.handle().render().contains(followed);
    world.until(shown).await;
    node.stop().await;
    world.change("late");
    let _node = world.node(SourceOptions::default()).await;
    world.until_copied("late").await;
    world.until_asleep(2).await;
}

#[tokio::test]
async fn sequences_are_compared_without_a_feed() {
    let world = World::new().await;
    world.peer.set_faults(no_feeds(403));
    let options = SourceOptions {
        poll_sec: 1,
        ..SourceOptions::default()
    };
    let _node = world.node(options).await;
    world.until_followed("dbs_info").await;
    let reason = world.source().await["reason"].to_string();
    assert!(
        reason.contains("403") || reason.contains("forbidden"),
        "{reason}"
    );
    world.follows_a_change().await;
}

#[tokio::test]
async fn global_changes_are_read_directly() {
    let world = World::new().await;
    world.peer.create_database("_global_changes").unwrap();
    let options = SourceOptions {
        feed: FeedKind::GlobalChanges,
        ..SourceOptions::default()
    };
    let _node = world.node(options).await;
    world.until_followed("global_changes").await;
    world.copy("early").await;
    world.until_asleep(1).await;
    world.change("late");
    world
        .peer
        .put("_global_changes", r#"{"_id":"updated:b"}"#)
        .unwrap();
    world
        .peer
        .put("_global_changes", r#"{"_id":"updated:a"}"#)
        .unwrap();
    world.until_copied("late").await;
    world.until_asleep(2).await;
}

/// What the feed does not report is found by comparing sequences; in the end the feed is not trusted any more.
#[tokio::test]
async fn a_feed_that_loses_updates_is_found_out() {
    let world = World::new().await;
    world.peer.create_database("_global_changes").unwrap();
    let options = SourceOptions {
        feed: FeedKind::GlobalChanges,
        sweep_sec: 1,
        ..SourceOptions::default()
    };
    let _node = world.node(options).await;
    world.until_followed("global_changes").await;
    world.follows_a_change().await;
    world
        .until(async || world.source().await["missed"] == 1)
        .await;
}

/// Without any feed nothing may sleep, and what sleeps is woken.
#[tokio::test]
async fn what_cannot_be_followed_lets_nothing_sleep() {
    let world = World::new().await;
    let node = world.node(SourceOptions::default()).await;
    world.copy("early").await;
    world.until_asleep(1).await;
    node.stop().await;
    world.peer.set_faults(Faults::script([
        (On::any("/_db_updates"), answers(403)),
        (On::any("/_global_changes/*"), answers(403)),
        (On::any("/_dbs_info"), answers(403)),
    ]));
    let _node = world.node(SourceOptions::default()).await;
    world
        .until(async || world.source().await["feed"] == Value::Null)
        .await;
    world
        .until(async || world.row().await["info"].get("asleep").is_none())
        .await;
    world.change("late");
    world.until_copied("late").await;
    assert_eq!(world.row().await["info"].get("asleep"), None);
}

/// A replication that fell asleep before its server was followed does not wait for its next poll.
#[tokio::test]
async fn a_feed_that_opens_late_wakes_what_sleeps() {
    let world = World::new().await;
    world
        .peer
        .set_faults(Faults::script([(On::any("/_db_updates"), answers(403))]));
    let options = || SourceOptions {
        feed: FeedKind::DbUpdates,
        ..SourceOptions::default()
    };
    let node = world.node(options()).await;
    world.change("early");
    let body = json!({
        "source": world.peer.database_url("a"), "target": world.peer.database_url("b"), "trigger": "changes",
    });
    world.replicate(&body).await;
    let row = world.until_asleep(1).await;
    assert_eq!(
        row["info"]["waits_for"],
        "its next run: the server of the source is not followed"
    );
    node.stop().await;
    world.peer.set_faults(Faults::none());
    let _node = world.node(options()).await;
    world.until_followed("db_updates").await;
    world.change("late");
    world.until_copied("late").await;
    assert_eq!(world.source().await["woken"], 1);
}
