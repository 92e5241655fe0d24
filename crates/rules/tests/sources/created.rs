//! Which databases are new to a rule.

use jobs::{JobType, Query, State};
use peer::{Fault, Faults, FeedFaults, On};
use rules::source::SourceOptions;
use serde_json::{Value, json};

use crate::edges::next_url;
use crate::fixture::{LOSES_ALL, World, quick, without_feed, without_sweeps};

/// A rule that calls `ID/DATABASE/DOCUMENT`.
pub(crate) fn calls(id: &str, matches: &Value) -> Value {
    let url = format!("http://127.0.0.1:1/{id}/${{db_name}}/${{change.id}}");
    json!({"type": "on_change", "match": matches, "url": url})
}

/// A rule that copies `a` and `c` to `copy_a` and `copy_c` if they are new.
pub(crate) fn copies(world: &World) -> Value {
    json!({
        "type": "replicator", "create_target": true,
        "match": {"database": "^(?<name>a|c)$", "events": ["created"]},
        "source": format!("{}/${{name}}", world.peer.url()),
        "target": format!("{}/copy_${{name}}", world.peer.url()),
    })
}

pub(crate) fn create(world: &World, name: &str) {
    world.peer.create_database(name).unwrap();
    put(world, name, "first");
}

pub(crate) fn put(world: &World, name: &str, id: &str) {
    let doc = json!({"_id": id}).to_string();
    world.peer.put(name, &doc).unwrap();
}

pub(crate) async fn called(world: &mut World, expected: &[&str]) {
    let mut urls = Vec::new();
    while urls.len() < expected.len() {
        urls.push(next_url(world).await);
    }
    urls.sort();
    let expected: Vec<_> = (expected.iter())
        .map(|of| format!("http://127.0.0.1:1/{of}"))
        .collect();
    assert_eq!(urls, expected);
}

async fn only_new_databases_are_called_about(options: SourceOptions) {
    let mut world = World::new().await;
    world.change("old");
    let _node = world.node(options).await;
    // Only together with another rule, old databases are looked for.
    world.rule("all", Some(&calls("all", &json!({})))).await;
    let created = json!({"events": ["created"]});
    world.rule("new", Some(&calls("new", &created))).await;
    world.until_seeded(2).await;
    world.change("late");
    called(&mut world, &["all/a/late"]).await;
    create(&world, "c");
    called(&mut world, &["all/c/first", "new/c/first"]).await;
    put(&world, "c", "second");
    called(&mut world, &["all/c/second", "new/c/second"]).await;
    world.change("later");
    called(&mut world, &["all/a/later"]).await;
    assert!(world.calls.try_recv().is_err());
}

#[tokio::test]
async fn a_rule_may_be_about_new_databases_only() {
    only_new_databases_are_called_about(quick()).await;
}

#[tokio::test]
async fn a_rule_may_be_about_new_databases_only_without_a_feed() {
    only_new_databases_are_called_about(without_feed()).await;
}

/// More rules apply to it than fit into one transaction.
#[tokio::test]
async fn a_database_is_new_to_many_rules_although_the_event_was_lost() {
    let mut world = World::new().await;
    let _node = world.node(without_sweeps()).await;
    world.until_followed("db_updates").await;
    let created = json!({"events": ["created"]});
    let ids: Vec<_> = (0..250).map(|nth| format!("r{nth:03}")).collect();
    for id in &ids {
        world.rule(id, Some(&calls(id, &created))).await;
    }
    world.until_seeded(ids.len()).await;
    world.peer.set_feed_faults(1, LOSES_ALL);
    world.peer.create_database("c").unwrap();
    world.peer.set_feed_faults(1, FeedFaults::default());
    put(&world, "c", "first");
    let expected: Vec<_> = ids.iter().map(|id| format!("{id}/c/first")).collect();
    let expected: Vec<_> = expected.iter().map(String::as_str).collect();
    called(&mut world, &expected).await;
}

/// The feed reports nothing of the new database until it changes.
#[tokio::test]
async fn a_new_database_is_one_although_the_event_was_lost() {
    let mut world = World::new().await;
    world.change("old");
    let _node = world.node(without_sweeps()).await;
    world.until_followed("db_updates").await;
    let created = json!({"events": ["created"]});
    world.rule("new", Some(&calls("new", &created))).await;
    let copies = copies(&world);
    world.rule("copy", Some(&copies)).await;
    world.until_seeded(2).await;
    world.change("late");
    world.peer.set_feed_faults(1, LOSES_ALL);
    create(&world, "c");
    world.peer.set_feed_faults(1, FeedFaults::default());
    put(&world, "c", "second");
    let is_copied = |name: &str, id: &str| matches!(world.peer.get(name, id), Ok(Some(_)));
    world.until(async || is_copied("copy_c", "second")).await;
    assert!(!is_copied("copy_a", "late"));
    let expected = [
        "new/c/first",
        "new/c/second",
        "new/copy_c/first",
        "new/copy_c/second",
    ];
    called(&mut world, &expected).await;
}

/// They go on being copied after the rule was edited, and no older ones are.
#[tokio::test]
async fn an_edited_rule_keeps_the_databases_that_were_new_to_it() {
    let world = World::new().await;
    world.change("old");
    let _node = world.node(quick()).await;
    world.until_followed("db_updates").await;
    let mut copies = copies(&world);
    world.rule("copy", Some(&copies)).await;
    world.until_seeded(1).await;
    create(&world, "c");
    let is_copied = |name: &str, id: &str| matches!(world.peer.get(name, id), Ok(Some(_)));
    world.until(async || is_copied("copy_c", "first")).await;
    let (jobs, ty) = (world.replications.jobs(), world.replications.job_type());
    let job = async || {
        let listed = jobs.list(ty, &Query::default(), None, 10).await.unwrap();
        listed.jobs.into_iter().next().map(|job| job.info)
    };
    let is_asleep = async || job().await.is_some_and(|job| job.state == State::Pending);
    world.until(is_asleep).await;
    let runs = job().await.unwrap().attempts;
    for enabled in [false, true] {
        copies["enabled"] = json!(enabled);
        world.rule("copy", Some(&copies)).await;
        if !enabled {
            put(&world, "c", "second");
            let has_run = async || job().await.is_none_or(|job| job.attempts > runs);
            world.until(has_run).await;
            world.until(is_asleep).await;
        }
    }
    let rules = rules::rule::Rules::new(world.replications.clone());
    let found = rules.named("_rules", "copy").await.unwrap();
    let rev = found.unwrap().unwrap().rev;
    world
        .until(async || world.stores(&format!("{rev}|")).await)
        .await;
    world.change("late");
    world.until(async || is_copied("copy_c", "second")).await;
    assert!(!is_copied("copy_a", "late"));
}

/// A look for the databases of all rules is no look for those of a rule that was written since it began.
#[tokio::test]
async fn a_rule_that_is_written_during_a_look_begins_now() {
    let mut world = World::new().await;
    world.change("old");
    let _node = world.node(quick()).await;
    world.rule("x", Some(&calls("x", &json!({})))).await;
    world.until_seeded(1).await;
    let late = (On::post("/_dbs_info").first(1), Fault::Latency { ms: 500 });
    world.peer.set_faults(Faults::script([late]));
    world
        .until(async || !world.peer.injected().is_empty())
        .await;
    world.rule("y", Some(&calls("y", &json!({})))).await;
    world.until_seeded(2).await;
    world.change("new");
    called(&mut world, &["x/a/new", "y/a/new"]).await;
}

/// The look for a new rule's databases sees the new one before the feed reports it.
#[tokio::test]
async fn a_database_created_during_the_first_look_is_new() {
    let mut world = World::new().await;
    world.change("old");
    world.rule("x", Some(&calls("x", &json!({})))).await;
    let late = |ms| Fault::Latency { ms };
    let faults = [
        (On::get("/_all_dbs").first(1), late(500)),
        // The second request opens the feed after the position that the first one returned.
        (On::get("/_db_updates").nth(2), late(2_000)),
    ];
    world.peer.set_faults(Faults::script(faults));
    let _node = world.node(without_sweeps()).await;
    world.until(async || world.peer.injected().len() == 2).await;
    create(&world, "c");
    world.until_seeded(1).await;
    called(&mut world, &["x/c/first"]).await;
    world.change("new");
    called(&mut world, &["x/a/new"]).await;
}

/// The node that repeats the look comes across the database, which no feed reports.
#[tokio::test]
async fn a_database_created_after_a_node_died_in_a_first_look_is_new() {
    let mut world = World::new().await;
    world.change("old");
    let faults = [(On::post("/_dbs_info"), Fault::Hang)];
    world.peer.set_faults(Faults::script(faults));
    let some = json!({"database": "^(a|c)$"});
    world.rule("x", Some(&calls("x", &some))).await;
    let node = world.node(without_feed()).await;
    world.until(async || !world.there().await.is_empty()).await;
    node.stop().await;
    create(&world, "c");
    world.peer.set_faults(Faults::none());
    let _node = world.node(without_feed()).await;
    called(&mut world, &["x/c/first"]).await;
    world.until_seeded(1).await;
    world.change("new");
    called(&mut world, &["x/a/new"]).await;
}

/// Nothing looks between the first look for a rule and the one for its next revision.
#[tokio::test]
async fn a_database_created_before_a_rule_is_edited_is_new() {
    let mut world = World::new().await;
    world.change("old");
    let slow = SourceOptions {
        poll_sec: 86_400,
        ..without_feed()
    };
    let _node = world.node(slow).await;
    let some = |pattern: &str| calls("x", &json!({"database": pattern}));
    world.rule("x", Some(&some("^[bcd]"))).await;
    world.until_seeded(1).await;
    world.until_listening(1).await;
    create(&world, "c");
    world.rule("x", Some(&some("^[abcd]"))).await;
    called(&mut world, &["x/c/first"]).await;
    world.until_listening(3).await;
    assert!(world.calls.try_recv().is_err());
}

/// The node that repeats the first look for an edited rule does not know what the rule was about before.
#[tokio::test]
async fn a_database_is_new_to_an_edited_rule_although_a_node_died() {
    let mut world = World::new().await;
    world.change("old");
    let slow = SourceOptions {
        poll_sec: 86_400,
        ..without_feed()
    };
    let node = world.node(slow).await;
    let some = |pattern: &str| calls("x", &json!({"database": pattern}));
    world.rule("x", Some(&some("^[cde]"))).await;
    world.until_seeded(1).await;
    create(&world, "c");
    let faults = [(On::post("/_dbs_info"), Fault::Hang)];
    world.peer.set_faults(Faults::script(faults));
    let before = world.there().await;
    world.rule("x", Some(&some("^[abcde]"))).await;
    let begun = async || {
        let there = world.there().await;
        !there.is_empty() && there != before
    };
    world.until(begun).await;
    node.stop().await;
    world.peer.set_faults(Faults::none());
    let _node = world.node(without_feed()).await;
    called(&mut world, &["x/c/first"]).await;
    // Those that the rule was not about are not new.
    world.change("new");
    called(&mut world, &["x/a/new"]).await;
}

/// The look for the databases of another rule comes across the database first.
#[tokio::test]
async fn a_database_is_new_although_another_rule_is_written() {
    let mut world = World::new().await;
    world.change("old");
    let slow = SourceOptions {
        poll_sec: 86_400,
        ..without_feed()
    };
    let _node = world.node(slow).await;
    let created = json!({"events": ["created"]});
    world.rule("new", Some(&calls("new", &created))).await;
    let mut all = calls("all", &json!({}));
    world.rule("all", Some(&all)).await;
    world.until_seeded(2).await;
    create(&world, "c");
    let late = calls("late", &json!({}));
    world.rule("late", Some(&late)).await;
    called(&mut world, &["all/c/first", "new/c/first"]).await;
    world.until_seeded(3).await;
    create(&world, "d");
    all["comment"] = json!("edited");
    world.rule("all", Some(&all)).await;
    let expected = ["all/d/first", "late/d/first", "new/d/first"];
    called(&mut world, &expected).await;
    assert!(world.calls.try_recv().is_err());
}

/// How much later a rule that begins now looks at an old database than one that begins with the first change.
async fn wait_ms(options: SourceOptions) -> i64 {
    let world = World::new().await;
    world.change("old");
    for since in ["0", "now"] {
        let mut rule = calls(since, &json!({"database": "^a$"}));
        (rule["since"], rule["delay_sec"]) = (json!(since), json!(60));
        world.rule(since, Some(&rule)).await;
    }
    let _node = world.node(options).await;
    world.until_seeded(2).await;
    let (jobs, ty) = (world.replications.jobs(), JobType::new("listen").unwrap());
    let query = Query {
        data: true,
        ..Query::default()
    };
    let listed = jobs.list(&ty, &query, None, 10).await.unwrap().jobs;
    let due_ms = |since: &str| {
        let is_of_rule = |data: &[u8]| {
            let place: Value = serde_json::from_slice(data).unwrap();
            place["rule"] == since
        };
        let mut listed = listed.iter();
        let job = listed.find(|job| is_of_rule(job.data.as_ref().unwrap()));
        job.unwrap().info.due_ms
    };
    due_ms("now") - due_ms("0")
}

#[tokio::test]
async fn only_rules_that_begin_now_wait_for_the_feed() {
    assert_eq!(wait_ms(without_sweeps()).await, 5_000);
    assert_eq!(wait_ms(without_feed()).await, 0);
}

/// It was there before.
#[tokio::test]
async fn a_database_that_is_excluded_no_longer_is_not_new() {
    let mut world = World::new().await;
    world.change("old");
    world.rule("x", Some(&calls("x", &json!({})))).await;
    let exclude = |names: &[&str]| SourceOptions {
        exclude: names.iter().map(|&name| name.to_owned()).collect(),
        ..quick()
    };
    let node = world.node(exclude(&["^a$"])).await;
    world.until_seeded(1).await;
    put(&world, "b", "one");
    called(&mut world, &["x/b/one"]).await;
    node.stop().await;
    let ty = &JobType::new("listen").unwrap();
    let _node = world.node(exclude(&["^other$"])).await;
    let finished = async || {
        let counts = world.replications.jobs().counts(ty).await.unwrap();
        counts.finished >= 2
    };
    world.until(finished).await;
    world.change("new");
    called(&mut world, &["x/a/new"]).await;
}
