//! When a node compares the sequences of databases, and which of the differences count as missed by the feed.

use peer::{Fault, Faults, On, SeqForm};
use rules::source::{FeedKind, SourceOptions};
use serde_json::{Value, json};

use crate::edges::next_url;
use crate::fixture::{LOSES_ALL, World, answers, quick, without_feed, without_sweeps};

/// An answer instead of a feed, or instead of what the server knows of databases.
fn says(body: &Value) -> Fault {
    Fault::Answer {
        status: 200,
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        body: body.to_string(),
    }
}

/// Copies databases named by the pattern's group `name` to `b`, and waits until all of them sleep.
async fn copy_all(world: &World, pattern: &str, databases: usize) {
    let rule = json!({
        "type": "replicator", "match": {"database": pattern},
        "source": format!("{}/${{name}}", world.peer.url()),
        "target": world.peer.database_url("b"),
    });
    world.rule("all", Some(&rule)).await;
    let server = world.source().await["server"].as_str().unwrap().to_owned();
    let all_sleep = async || {
        let sleepers = world.replications.sleepers(&server, None, 1_000).await;
        sleepers.unwrap().len() == databases && world.has_no_runs().await
    };
    world.until(all_sleep).await;
}

/// Waits for this many further comparisons, each of one request.
async fn compared(world: &World, times: usize) {
    let count = || world.peer.count("POST", "/_dbs_info");
    let before = count();
    world.until(async || count() >= before + times).await;
}

/// A replication sleeps, and the server is not followed meanwhile.
async fn asleep(world: &World) {
    let node = world.node(without_sweeps()).await;
    world.until_followed("db_updates").await;
    world.copy("early").await;
    world.until_asleep(1).await;
    node.stop().await;
}

async fn reported_all(world: &World) {
    let source = world.source().await;
    assert_eq!(
        (&source["missed"], &source["feed"]),
        (&json!(0), &json!("db_updates")),
        "{source:#}"
    );
}

#[tokio::test]
async fn a_feed_that_cannot_be_opened_stops_no_comparison() {
    let world = World::new().await;
    asleep(&world).await;
    let fails = (On::any("/_db_updates"), answers(500));
    world.peer.set_faults(Faults::script([fails]));
    world.change("late");
    let _node = world.node(SourceOptions::default()).await;
    world.until_copied("late").await;
    world.until_asleep(2).await;
    assert_eq!(world.source().await["missed"], 0);
}

/// As behind a server or proxy that knows no continuous feeds.
#[tokio::test]
async fn a_feed_that_ends_at_once_is_opened_with_pauses() {
    let world = World::new().await;
    asleep(&world).await;
    let ends = says(&json!({"results": [], "last_seq": "1-x"}));
    let opened = On::any("/_db_updates?*feed=continuous*");
    world.peer.set_faults(Faults::script([(opened, ends)]));
    world.change("late");
    let _node = world.node(SourceOptions::default()).await;
    world.until_copied("late").await;
    world.until_asleep(2).await;
    assert!(world.peer.count("GET", "/_db_updates") < 15);
    let source = world.source().await;
    assert!(source["reason"].is_string(), "{source:#}");
}

/// Of each two requests for sequences, the second one fails.
#[tokio::test]
async fn comparisons_go_on_where_they_failed() {
    let world = World::new().await;
    let name = |nth: usize| format!("user_{nth:03}");
    for nth in 0..=100 {
        world.peer.create_database(&name(nth)).unwrap();
    }
    let node = world.node(without_sweeps()).await;
    world.until_followed("db_updates").await;
    copy_all(&world, "^(?<name>user_[0-9]+)$", 101).await;
    node.stop().await;
    world.peer.set_feed_faults(1, LOSES_ALL);
    world.peer.put(&name(100), r#"{"_id":"late"}"#).unwrap();
    let fails = |nth: u64| (On::post("/_dbs_info").nth(2 * nth), answers(400));
    world.peer.set_faults(Faults::script((1..100).map(fails)));
    let _node = world.node(quick()).await;
    world.until_copied("late").await;
}

/// What changed before a feed was opened is in no feed.
#[tokio::test]
async fn what_a_new_feed_cannot_know_it_does_not_miss() {
    let world = World::new().await;
    let names = ["a", "c", "d", "e"];
    for name in &names[1..] {
        world.peer.create_database(name).unwrap();
    }
    let node = world.node(without_feed()).await;
    world.until_followed("dbs_info").await;
    copy_all(&world, "^(?<name>[acde])$", 4).await;
    node.stop().await;
    for name in names {
        let body = json!({"_id": format!("late_{name}")}).to_string();
        world.peer.put(name, &body).unwrap();
    }
    let _node = world.node(quick()).await;
    for name in names {
        world.until_copied(&format!("late_{name}")).await;
    }
    compared(&world, 10).await;
    reported_all(&world).await;
}

/// Even if the node that opened it stops before it has compared all sequences.
#[tokio::test]
async fn a_feed_that_is_taken_over_misses_nothing_from_before() {
    let world = World::new().await;
    let names = ["a", "c", "d", "e"];
    for name in &names[1..] {
        world.peer.create_database(name).unwrap();
    }
    let node = world.node(without_feed()).await;
    world.until_followed("dbs_info").await;
    copy_all(&world, "^(?<name>[acde])$", 4).await;
    node.stop().await;
    for name in names {
        let body = json!({"_id": format!("late_{name}")}).to_string();
        world.peer.put(name, &body).unwrap();
    }
    let hangs = (On::post("/_dbs_info"), Fault::Latency { ms: 60_000 });
    world.peer.set_faults(Faults::script([hangs]));
    let node = world.node(quick()).await;
    world.until_followed("db_updates").await;
    node.stop().await;
    world.peer.set_faults(Faults::none());
    let _node = world.node(quick()).await;
    for name in names {
        world.until_copied(&format!("late_{name}")).await;
    }
    compared(&world, 10).await;
    reported_all(&world).await;
}

/// Some answer late or never, and the others do not wait for them one by one.
#[tokio::test]
async fn many_databases_are_asked_for_changes_at_once() {
    let world = World::new().await;
    let name = |nth: usize| format!("user_{nth:02}");
    for nth in 0..20 {
        world.peer.create_database(&name(nth)).unwrap();
    }
    let node = world.node(without_feed()).await;
    world.until_followed("dbs_info").await;
    copy_all(&world, "^(?<name>user_[0-9]+)$", 20).await;
    node.stop().await;
    for nth in 0..20 {
        world.peer.put(&name(nth), r#"{"_id":"late"}"#).unwrap();
    }
    let hangs = (On::get("/user_*/_changes"), Fault::Latency { ms: 60_000 });
    world.peer.set_faults(Faults::script([hangs]));
    let _node = world.node(without_feed()).await;
    world
        .until(async || world.peer.injected().len() >= 16)
        .await;
}

/// As where CouchDB writes an error into a stream that has begun, each time at the same place.
#[tokio::test]
async fn a_feed_goes_on_behind_a_row_that_it_cannot_send() {
    let world = World::new().await;
    let options = || SourceOptions {
        feed: FeedKind::DbUpdates,
        ..without_sweeps()
    };
    let node = world.node(options()).await;
    world.until_followed("db_updates").await;
    node.stop().await;
    let since = |query: &str| {
        let mut params = query.split('&');
        let since = params.find(|one| one.starts_with("since="));
        since.map(str::to_owned)
    };
    // Where each feed was opened.
    let opened = || {
        let requests = world.peer.requests().into_iter();
        let feeds = requests.filter(|one| one.query.contains("feed=continuous"));
        let feeds = feeds.filter(|one| one.path == "/_db_updates");
        let opened: Vec<_> = feeds.filter_map(|one| since(&one.query)).collect();
        opened
    };
    let here = opened().pop().unwrap();
    world.change("later");
    let bad_row = On::any(&format!("/_db_updates?*{here}*"));
    let fails = says(&json!({"error": "x", "reason": "y"}));
    world.peer.set_faults(Faults::script([(bad_row, fails)]));
    let _node = world.node(options()).await;
    world
        .until(async || opened().iter().any(|one| *one != here))
        .await;
    assert!(!world.peer.injected().is_empty());
}

/// Only the feed could have told what has changed.
#[tokio::test]
async fn what_a_feed_cannot_send_is_found_without_sequences() {
    let mut world = World::new().await;
    let options = || SourceOptions {
        feed: FeedKind::DbUpdates,
        ..without_sweeps()
    };
    let node = world.node(options()).await;
    world.until_followed("db_updates").await;
    world.copy("early").await;
    let calls = json!({
        "type": "on_change", "db_name": "^a$", "url": "http://127.0.0.1:1/${change.id}",
    });
    world.rule("call", Some(&calls)).await;
    world.until_seeded(1).await;
    world.until_asleep(1).await;
    node.stop().await;
    world.change("late");
    let fails = says(&json!({"error": "x", "reason": "y"}));
    world.peer.set_faults(Faults::script([
        // After two of these, the next one begins at the present.
        (On::any("/_db_updates?*feed=continuous*").first(2), fails),
        (On::post("/_dbs_info"), answers(403)),
    ]));
    let _node = world.node(options()).await;
    world.until_copied("late").await;
    // If the rule heard of it before its databases were looked for, it calls about the first document, too.
    while next_url(&mut world).await != "http://127.0.0.1:1/late" {}
}

/// As of CouchDB 1: its sequence does not tell that it is not the same database.
#[tokio::test]
async fn a_database_with_fewer_changes_than_before_is_another_one() {
    let numbers = peer::Options {
        seqs: SeqForm::Number,
        ..peer::Options::default()
    };
    let world = World::with(numbers).await;
    for id in ["one", "two"] {
        world.change(id);
    }
    let node = world.node(without_feed()).await;
    world.until_followed("dbs_info").await;
    world.copy("three").await;
    world.until_asleep(3).await;
    node.stop().await;
    world.peer.delete_database("a").unwrap();
    world.peer.create_database("a").unwrap();
    world.change("late");
    let _node = world.node(without_feed()).await;
    world.until_copied("late").await;
}

/// The same, while no run for the rule's calls found it missing.
#[tokio::test]
async fn a_database_with_fewer_changes_than_were_called_about_is_another_one() {
    let numbers = peer::Options {
        seqs: SeqForm::Number,
        ..peer::Options::default()
    };
    let mut world = World::with(numbers).await;
    for id in ["one", "two", "three"] {
        world.change(id);
    }
    let calls = json!({
        "type": "on_change", "db_name": "^a$", "since": 0,
        "url": "http://127.0.0.1:1/${change.id}",
    });
    world.rule("call", Some(&calls)).await;
    let node = world.node(without_feed()).await;
    for id in ["one", "two", "three"] {
        let url = format!("http://127.0.0.1:1/{id}");
        assert_eq!(next_url(&mut world).await, url);
    }
    let ty = &jobs::JobType::new("listen").unwrap();
    let ended = async || world.replications.jobs().counts(ty).await.unwrap().finished == 1;
    world.until(ended).await;
    node.stop().await;
    world.peer.delete_database("a").unwrap();
    world.peer.create_database("a").unwrap();
    world.change("late");
    let _node = world.node(without_feed()).await;
    assert_eq!(next_url(&mut world).await, "http://127.0.0.1:1/late");
}

/// The feed reported the change during the run that could not copy it any more.
#[tokio::test]
async fn a_delayed_run_misses_nothing() {
    let world = World::new().await;
    let _node = world.node(quick()).await;
    world.until_followed("db_updates").await;
    let slow = On::post("/b/_bulk_docs").first(1);
    let slow = (slow, Fault::Latency { ms: 2_000 });
    world.peer.set_faults(Faults::script([slow]));
    world.change("early");
    let body = json!({
        "source": world.peer.database_url("a"), "target": world.peer.database_url("b"),
        "trigger": {"min_interval_sec": 3_600},
    });
    world.replicate(&body).await;
    let copies = async || world.peer.injected().len() == 1;
    world.until(copies).await;
    world.change("late");
    let waits = async || world.row().await["info"]["next_run"].is_string();
    world.until(waits).await;
    compared(&world, 10).await;
    reported_all(&world).await;
    assert_eq!(world.peer.get("b", "late").unwrap(), None);
}

/// CouchDB counts what is no change, as new rights of users, and adds up the sequences of other copies of shards.
#[tokio::test]
async fn another_sequence_is_not_yet_a_change() {
    let world = World::new().await;
    let _node = world.node(quick()).await;
    world.until_followed("db_updates").await;
    world.copy("early").await;
    world.until_asleep(1).await;
    let asked = || world.peer.count("GET", "/a/_changes");
    let (before, woken) = (asked(), world.source().await["woken"].clone());
    let counts_more = json!([{"key": "a", "info": {"update_seq": "99-x"}}]);
    let listed = On::post("/_dbs_info");
    (world.peer).set_faults(Faults::script([(listed, says(&counts_more))]));
    compared(&world, 12).await;
    reported_all(&world).await;
    assert_eq!(world.source().await["woken"], woken);
    assert_eq!(asked(), before + 3);
    // The sequence is not taken for one that was copied.
    world.peer.set_feed_faults(1, LOSES_ALL);
    world.peer.set_faults(Faults::none());
    world.change("late");
    world.until_copied("late").await;
}

/// The copy of the database that is asked may lag behind the one whose sequence is listed.
#[tokio::test]
async fn a_change_that_is_not_there_at_the_first_look_is_found() {
    let world = World::new().await;
    let node = world.node(without_feed()).await;
    world.until_followed("dbs_info").await;
    world.copy("early").await;
    world.until_asleep(1).await;
    node.stop().await;
    world.change("late");
    let nothing = json!({"results": [], "last_seq": "0", "pending": 0});
    let look = On::get("/a/_changes?since=*&limit=1").first(2);
    world
        .peer
        .set_faults(Faults::script([(look, says(&nothing))]));
    let _node = world.node(without_feed()).await;
    world.until_copied("late").await;
}

/// Nor is it for rules with calls, whose databases have no sleepers.
#[tokio::test]
async fn another_sequence_is_not_yet_a_change_to_call_about() {
    let world = World::new().await;
    world.peer.create_database("c").unwrap();
    let _node = world.node(quick()).await;
    world.until_followed("db_updates").await;
    let calls = json!({"type": "on_change", "url": "http://127.0.0.1:1/${change.id}"});
    world.rule("call", Some(&calls)).await;
    world.until_seeded(1).await;
    // What was reported before the feed was opened is not known.
    compared(&world, 10).await;
    let counts_more =
        ["a", "b", "c"].map(|name| json!({"key": name, "info": {"update_seq": "99-x"}}));
    let listed = On::post("/_dbs_info");
    (world.peer).set_faults(Faults::script([(listed, says(&json!(counts_more)))]));
    compared(&world, 20).await;
    reported_all(&world).await;
}

/// As for a user who may list databases, but not read them.
#[tokio::test]
async fn a_database_that_cannot_be_read_does_not_wake_its_sleepers_for_ever() {
    let world = World::new().await;
    let _node = world.node(without_feed()).await;
    world.until_followed("dbs_info").await;
    world.copy("early").await;
    world.until_asleep(1).await;
    let lists = async |seq: &str| {
        let before = world.source().await["woken"].as_u64().unwrap();
        let listed = json!([{"key": "a", "info": {"update_seq": seq}}]);
        let faults = [
            (On::post("/_dbs_info"), says(&listed)),
            (On::get("/a/_changes?since=*&limit=1"), answers(403)),
        ];
        world.peer.set_faults(Faults::script(faults));
        compared(&world, 14).await;
        world.source().await["woken"].as_u64().unwrap() - before
    };
    assert_eq!(lists("99-x").await, 3);
    assert_eq!(lists("100-x").await, 3);
}

/// Such as a timeout of one of its nodes.
#[tokio::test]
async fn what_the_server_does_not_know_is_not_missed() {
    let world = World::new().await;
    let _node = world.node(quick()).await;
    world.until_followed("db_updates").await;
    world.copy("early").await;
    world.until_asleep(1).await;
    let woken = async || world.source().await["woken"].as_u64().unwrap();
    let before = woken().await;
    let fails = says(&json!([{"key": "a", "error": "not_found"}]));
    let listed = On::post("/_dbs_info");
    world.peer.set_faults(Faults::script([(listed, fails)]));
    world.until(async || woken().await >= before + 2).await;
    reported_all(&world).await;
}

/// The source that followed a server before gets another URL, and another source that one.
#[tokio::test]
async fn a_server_stays_followed_if_its_source_is_renamed() {
    let world = World::new().await;
    let server = async |name: &str| {
        let sources = rules::source::list(world.replications.jobs()).await;
        let sources = sources.unwrap();
        let source = sources.into_iter().find(|one| one["name"] == name);
        source.map(|source| source["server"].as_str().unwrap().to_owned())
    };
    for renamed in [false, true] {
        let node = if renamed {
            world.renaming_node(without_sweeps()).await
        } else {
            world.node(without_sweeps()).await
        };
        let name = if renamed { "renamed" } else { "peer" };
        let is_followed = async || server(name).await.is_some_and(|url| !url.is_empty());
        world.until(is_followed).await;
        node.stop().await;
    }
    let other = peer::Peer::start(peer::Options::default()).await.unwrap();
    let to_other = SourceOptions {
        url: other.url(),
        ..without_sweeps()
    };
    let before = server("peer").await.unwrap();
    let sources = [("peer", to_other), ("renamed", without_sweeps())];
    let _node = world.node_with(sources).await;
    let moved = async || server("peer").await.unwrap() != before;
    world.until(moved).await;
    world.until(async || world.following(&before).await).await;
}

#[tokio::test]
async fn a_reason_goes_away_with_its_cause() {
    let world = World::new().await;
    let refuses = (On::post("/_dbs_info"), answers(401));
    world.peer.set_faults(Faults::script([refuses]));
    let node = world.node(without_feed()).await;
    let is_refused = async || world.source().await["reason"].is_string();
    world.until(is_refused).await;
    node.stop().await;
    world.peer.set_faults(Faults::none());
    let _node = world.node(without_feed()).await;
    world.until_followed("dbs_info").await;
    assert_eq!(world.source().await["reason"], Value::Null);
}
