//! Rules, from the document to the replication or call.

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use peer::FeedFaults;
use rules::source::SourceOptions;
use scheduler::Passwords;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::fixture::{LOSES_ALL, World, quick, without_sweeps};

fn is_copied(world: &World, target: &str, id: &str) -> bool {
    matches!(world.peer.get(target, id), Ok(Some(_)))
}

/// As Spiegel's documents do: it runs when it is written, and after each change.
#[tokio::test]
async fn a_rule_about_one_database_replicates_it() {
    let world = World::new().await;
    world.change("early");
    let _node = world.node(SourceOptions::default()).await;
    let rule = json!({
        "type": "replicator", "source": world.peer.database_url("a"),
        "target": world.peer.database_url("b"),
    });
    world.rule("x", Some(&rule)).await;
    world.until_copied("early").await;
    let sleeps = async || world.rule_sleeps("x").await;
    world.until(sleeps).await;
    assert_eq!(world.rule_row("x").await["dirty"], false);
    world.change("late");
    world.until_copied("late").await;
    world.until(sleeps).await;
    world.rule("x", None).await;
    world.change("later");
    world
        .until(async || world.rule_row("x").await == Value::Null)
        .await;
    assert!(!is_copied(&world, "b", "later"));
}

/// One rule covers the databases that are there, and those to come.
#[tokio::test]
async fn a_rule_about_many_databases_replicates_each() {
    let world = World::new().await;
    for name in ["user_ann", "user_bob", "other"] {
        world.peer.create_database(name).unwrap();
        world.peer.put(name, r#"{"_id":"early"}"#).unwrap();
    }
    let _node = world.node(quick()).await;
    let rule = json!({
        "type": "replicator", "create_target": true,
        "match": {"database": "^user_(?<name>[a-z]+)$"},
        "source": format!("{}/user_${{name}}", world.peer.url()),
        "target": format!("{}/copy_${{name}}", world.peer.url()),
    });
    world.rule("x", Some(&rule)).await;
    world
        .until(async || is_copied(&world, "copy_ann", "early"))
        .await;
    world
        .until(async || is_copied(&world, "copy_bob", "early"))
        .await;
    world.peer.create_database("user_cy").unwrap();
    world.peer.put("user_cy", r#"{"_id":"early"}"#).unwrap();
    world
        .until(async || is_copied(&world, "copy_cy", "early"))
        .await;
    world.peer.put("user_ann", r#"{"_id":"late"}"#).unwrap();
    world
        .until(async || is_copied(&world, "copy_ann", "late"))
        .await;
    assert!(world.peer.get("copy_other", "early").is_err());
    // The document has no job of its own: its row sums up those of its databases.
    let summed_up = async || {
        let row = world.rule_row("x").await;
        row["info"] == json!({"replications": 3, "states": {"idle": 3}})
            && row["state"] == "running"
    };
    world.until(summed_up).await;
}

/// A rule begins with what changes after it was written, and sees every change from then on.
#[tokio::test]
async fn a_rule_calls_for_each_change() {
    let mut world = World::new().await;
    world.change("old");
    let _node = world.node(quick()).await;
    world.until_followed("db_updates").await;
    let rule = json!({
        "type": "on_change", "db_name": "^a$", "url": "http://127.0.0.1:1/${change.id}",
        "method": "POST", "params": {"db": "$db_name", "n": 1},
    });
    world.rule("x", Some(&rule)).await;
    // Its databases have been looked for once it has a job that has ended.
    let ty = jobs::JobType::new("listen").unwrap();
    let ended = async || {
        let counts = world.replications.jobs().counts(&ty).await.unwrap();
        counts.finished == 1
    };
    world.until(ended).await;
    for id in ["one", "two", "three"] {
        world.change(id);
    }
    let mut urls = Vec::new();
    while urls.len() < 3 {
        let call = timeout(Duration::from_mins(1), world.calls.recv()).await;
        urls.push(call.unwrap().unwrap().url);
    }
    let expected = ["one", "two", "three"].map(|id| format!("http://127.0.0.1:1/{id}"));
    assert_eq!(urls, expected);
}

/// A rule that calls has no job of a replication, and a paused one has none any more.
#[tokio::test]
async fn rules_without_replications_have_states() {
    let world = World::new().await;
    world.change("early");
    let _node = world.node(quick()).await;
    let rules = [
        json!({"type": "on_change", "url": "http://127.0.0.1:1/"}),
        json!({
            "type": "replicator", "source": world.peer.database_url("a"),
            "target": world.peer.database_url("b"),
        }),
        json!({
            "type": "replicator", "match": {"database": "^(?<name>a)$"},
            "source": format!("{}/${{name}}", world.peer.url()),
            "target": world.peer.database_url("c"), "create_target": true,
        }),
    ];
    for (nth, rule) in rules.iter().enumerate() {
        let (id, mut rule) = (&nth.to_string(), rule.clone());
        let shows = async |state: &str, paused: Value| {
            let row = world.rule_row(id).await;
            row["state"] == state && row["info"]["paused"] == paused
        };
        world.rule(id, Some(&rule)).await;
        world
            .until(async || shows("running", Value::Null).await)
            .await;
        rule["enabled"] = json!(false);
        world.rule(id, Some(&rule)).await;
        world
            .until(async || shows("pending", json!(true)).await)
            .await;
        rule["enabled"] = json!(true);
        world.rule(id, Some(&rule)).await;
        world
            .until(async || shows("running", Value::Null).await)
            .await;
    }
    let row = world.rule_row("0").await;
    assert_eq!(
        row["info"]["waits_for"], "changes of its databases",
        "{row:#}"
    );
}

/// As Spiegel's documents do, whose users have their passwords in a file.
#[tokio::test]
async fn passwords_of_the_file_are_used_and_not_stored() {
    let world = World::with(peer::Options {
        admin: Some(("bob".to_owned(), "s3cr3t".to_owned())),
        require_valid_user: true,
        ..peer::Options::default()
    })
    .await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), r#"{"127.0.0.1": {"bob": "s3cr3t"}}"#).unwrap();
    world.passwords.set(Passwords::load(file.path()).unwrap());
    let url = |of: &str| {
        world
            .peer
            .url()
            .replace("http://", &format!("http://{of}@"))
    };
    let node = world
        .node(SourceOptions {
            url: url("bob:s3cr3t"),
            ..quick()
        })
        .await;
    world.change("early");
    let copy = json!({
        "type": "replicator", "source": format!("{}/a", url("bob")), "target": {"url": format!("{}/b", url("bob"))},
    });
    world.rule("copy", Some(&copy)).await;
    world.until_copied("early").await;
    world.change("late");
    world.until_copied("late").await;
    let row = world.rule_row("copy").await;
    assert!(!row.to_string().contains("s3cr3t"), "{row:#}");
    node.stop().await;
    assert!(!world.stores("s3cr3t").await);
}

/// The work of a gathered batch fails, and nothing else changes. Spiegel did not try again until a batch was full.
#[tokio::test]
async fn d8_work_that_failed_is_done_again() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let mut world = World::new().await;
    let rule = json!({"type": "on_change", "url": "http://127.0.0.1:1/${change.id}"});
    world.rule("x", Some(&rule)).await;
    let _node = world.node(without_sweeps()).await;
    world.until_seeded(1).await;
    world.faults.set_full(true);
    world.change("one");
    let failed = async || {
        let shown = recorder.handle().render();
        let mut lines = shown
            .lines()
            .filter(|line| line.contains(r#"transaction="follow""#));
        lines.any(|line| line.contains(r#"outcome="full""#))
    };
    world.until(failed).await;
    world.faults.set_full(false);
    let call = timeout(Duration::from_mins(1), world.calls.recv()).await;
    assert_eq!(call.unwrap().unwrap().url, "http://127.0.0.1:1/one");
}

/// The node that follows a source may have started just now, and not have read the rules yet.
#[tokio::test]
async fn a_node_does_not_skip_events_before_it_knows_the_rules() {
    let mut world = World::new().await;
    let rule = json!({"type": "on_change", "url": "http://127.0.0.1:1/${change.id}"});
    world.rule("x", Some(&rule)).await;
    let node = world.node(without_sweeps()).await;
    world.until_seeded(1).await;
    node.stop().await;
    let _early = world.early_node(without_sweeps()).await;
    world.change("one");
    let call = timeout(Duration::from_mins(1), world.calls.recv()).await;
    assert_eq!(call.unwrap().unwrap().url, "http://127.0.0.1:1/one");
}

/// The events of a new database may be lost, until the database changes once more.
#[tokio::test]
async fn a_new_database_is_listened_to_from_its_start() {
    let mut world = World::new().await;
    let _node = world.node(SourceOptions::default()).await;
    world.until_followed("db_updates").await;
    for id in ["x", "y"] {
        let url = format!("http://127.0.0.1:1/{id}/${{change.id}}");
        let rule = json!({"type": "on_change", "url": url});
        world.rule(id, Some(&rule)).await;
    }
    world.until_seeded(2).await;
    world.peer.set_feed_faults(1, LOSES_ALL);
    world.peer.create_database("new").unwrap();
    world.peer.put("new", r#"{"_id":"one"}"#).unwrap();
    world.peer.set_feed_faults(1, FeedFaults::default());
    world.peer.put("new", r#"{"_id":"two"}"#).unwrap();
    let mut urls = Vec::new();
    while urls.len() < 4 {
        let call = timeout(Duration::from_mins(1), world.calls.recv()).await;
        urls.push(call.unwrap().unwrap().url);
    }
    urls.sort();
    let expected =
        ["x/one", "x/two", "y/one", "y/two"].map(|of| format!("http://127.0.0.1:1/{of}"));
    assert_eq!(urls, expected);
}

/// The event that a database is there again may be lost, like any other.
#[tokio::test]
async fn a_database_made_anew_is_replicated_again() {
    let world = World::new().await;
    let name = "user_ann";
    world.peer.create_database(name).unwrap();
    world.peer.put(name, r#"{"_id":"early"}"#).unwrap();
    let _node = world.node(quick()).await;
    let rule = json!({
        "type": "replicator", "create_target": true, "match": {"database": "^user_(?<name>[a-z]+)$"},
        "source": format!("{}/user_${{name}}", world.peer.url()),
        "target": format!("{}/copy_${{name}}", world.peer.url()),
    });
    world.rule("x", Some(&rule)).await;
    world
        .until(async || is_copied(&world, "copy_ann", "early"))
        .await;
    // A sweep has seen it.
    let sweeps = || world.peer.count("GET", "/_all_dbs");
    let before = sweeps();
    world.until(async || sweeps() > before + 1).await;
    world.peer.delete_database(name).unwrap();
    let (jobs, ty) = (world.replications.jobs(), world.replications.job_type());
    let is_gone = async || jobs.list(ty, &jobs::Query::default(), None, 1).await;
    world
        .until(async || is_gone().await.unwrap().jobs.is_empty())
        .await;
    world.peer.set_feed_faults(1, LOSES_ALL);
    world.peer.create_database(name).unwrap();
    world.peer.put(name, r#"{"_id":"late"}"#).unwrap();
    world
        .until(async || is_copied(&world, "copy_ann", "late"))
        .await;
}

/// Receivers that write into each other's databases, and pass on the number of the call, are called 16 times.
#[tokio::test]
async fn loops_of_receivers_end() {
    let mut world = World::new().await;
    let _node = world.node(quick()).await;
    world.until_followed("db_updates").await;
    // One makes its calls in order; the other names the member.
    let first = json!({"type": "on_change", "db_name": "^a$", "url": "http://127.0.0.1:1/"});
    let second = json!({
        "type": "on_change", "db_name": "^b$", "url": "http://127.0.0.1:1/", "block": false,
        "hops": "/meta/hops",
    });
    world.rule("x", Some(&first)).await;
    world.rule("y", Some(&second)).await;
    world.until_seeded(2).await;
    world.change("start");
    let mut hops = Vec::new();
    loop {
        let call = timeout(Duration::from_mins(1), world.calls.recv()).await;
        let call = call.unwrap().unwrap();
        hops.push(call.hops);
        if call.loops() {
            // Such a call is not made, but becomes a dead letter.
            break;
        }
        let (id, hop) = (format!("doc{}", call.hops), call.hops + 1);
        let (target, body) = match &*call.db {
            "a" => ("b", json!({"_id": id, "meta": {"hops": hop}})),
            _ => ("a", json!({"_id": id, "webhook_hop": hop.to_string()})),
        };
        world.peer.put(target, &body.to_string()).unwrap();
    }
    assert_eq!(hops, (0..=16).collect::<Vec<_>>());
    world.change("other");
    let call = timeout(Duration::from_mins(1), world.calls.recv()).await;
    assert_eq!(call.unwrap().unwrap().doc_id, "other");
}

/// The names of databases stand in URLs, ids of jobs and variables.
#[tokio::test]
async fn databases_of_any_name_are_called_about() {
    let mut world = World::new().await;
    let name = "team/shop+eu/$x";
    world.peer.create_database(name).unwrap();
    let _node = world.node(quick()).await;
    world.until_followed("db_updates").await;
    let url = "http://127.0.0.1:1/${db_name}/${part}/${change.id}";
    let rule = |block: bool| {
        json!({
            "type": "on_change", "match": {"database": "^team/(?<part>.+)$"}, "url": url, "since": 0,
            "block": block, "method": "POST", "params": {"db": "$db_name"},
        })
    };
    world.rule("x", Some(&rule(true))).await;
    world.rule("y", Some(&rule(false))).await;
    world.until_seeded(2).await;
    world.peer.put(name, r#"{"_id":"a/b"}"#).unwrap();
    let mut rules = Vec::new();
    for _ in 0..2 {
        let call = timeout(Duration::from_mins(1), world.calls.recv()).await;
        let call = call.unwrap().unwrap();
        assert_eq!((&*call.db, &*call.doc_id), (name, "a/b"));
        assert_eq!(
            call.url,
            "http://127.0.0.1:1/team%2Fshop%2Beu%2F%24x/shop%2Beu%2F%24x/a%2Fb"
        );
        assert_eq!(call.body, Some(json!({"db": name}).to_string()));
        rules.push(call.rule);
    }
    rules.sort();
    assert_eq!(rules, ["x", "y"]);
}

/// Together, the replications of 100 databases have more data than a transaction may.
#[tokio::test]
async fn rules_may_be_large() {
    let world = World::new().await;
    let create = |kind: &str| {
        for nth in 0..100 {
            let name = format!("{kind}_{nth:02}");
            world.peer.create_database(&name).unwrap();
        }
    };
    create("old");
    let ids: Vec<_> = (0..2_300)
        .map(|nth| format!("document-{nth:028}"))
        .collect();
    for id in ["x", "y"] {
        let rule = json!({
            "type": "replicator", "match": {"database": "^(?<name>(old|new)_.*)$"}, "doc_ids": ids,
            "source": format!("{}/${{name}}", world.peer.url()),
            "target": format!("http://127.0.0.1:1/{id}/${{name}}"),
        });
        world.rule(id, Some(&rule)).await;
    }
    let _node = world.node(without_sweeps()).await;
    world.until_seeded(2).await;
    create("new");
    let (jobs, ty) = (world.replications.jobs(), world.replications.job_type());
    let are_there = async || {
        let counts = jobs.counts(ty).await.unwrap();
        counts.pending + counts.running == 400
    };
    world.until(are_there).await;
}
