//! Spiegel's integration and stress tests, smaller, and its replications that fail.

use std::time::Duration;

use jobs::Query;
use rules::source::SourceOptions;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::fixture::World;

const DATABASES: usize = 30;
const MESSAGES: usize = 3;

fn user(nth: usize) -> String {
    format!("user_{nth}")
}

/// A database per user, all empty.
async fn users() -> World {
    let world = World::new().await;
    for nth in 0..DATABASES {
        world.peer.create_database(&user(nth)).unwrap();
    }
    world
}

fn docs(world: &World, database: &str) -> usize {
    world.peer.contents(database).unwrap().documents.len()
}

/// One rule replicates, another one calls; two nodes share the work.
#[tokio::test]
async fn sp_i01_a_new_document_is_replicated_and_called_about() {
    let mut world = World::new().await;
    let options = SourceOptions::default;
    let _nodes = [world.node(options()).await, world.node(options()).await];
    let copy = json!({
        "type": "replicator", "source": world.peer.database_url("a"), "target": world.peer.database_url("b"),
    });
    let call = json!({
        "type": "on_change", "db_name": "^a$", "url": "http://127.0.0.1:1/${change.id}", "since": 0,
    });
    world.rule("copy", Some(&copy)).await;
    world.rule("call", Some(&call)).await;
    let rev = world.peer.put("a", r#"{"_id":"x"}"#).unwrap();
    let second = json!({"_id": "x", "_rev": rev.to_string(), "thing": "jam"});
    world.peer.put("a", &second.to_string()).unwrap();
    let is_equal = async || {
        let contents = |name| world.peer.contents(name).unwrap().without_locals();
        peer::compare(&contents("a"), &contents("b")).is_empty()
    };
    world.until(is_equal).await;
    let called = timeout(Duration::from_mins(1), world.calls.recv()).await;
    assert_eq!(called.unwrap().unwrap().url, "http://127.0.0.1:1/x");
}

/// Messages to one database reach all others, once each.
#[tokio::test]
async fn sp_s01_messages_fan_out() {
    let world = users().await;
    let options = SourceOptions::default;
    let _nodes = [world.node(options()).await, world.node(options()).await];
    for nth in 1..DATABASES {
        let rule = json!({
            "type": "replicator",
            "source": world.peer.database_url(&user(0)), "target": world.peer.database_url(&user(nth)),
        });
        world.rule(&format!("to_{nth}"), Some(&rule)).await;
    }
    for sent in 1..=MESSAGES {
        let body = json!({"_id": format!("m{sent}")}).to_string();
        world.peer.put(&user(0), &body).unwrap();
        let arrived = async || (0..DATABASES).all(|nth| docs(&world, &user(nth)) == sent);
        world.until(arrived).await;
    }
}

/// Each call brings the message to the next database, whose change is the next call. Numbers in the parameters stay numbers.
#[tokio::test]
async fn sp_s02_webhooks_pass_messages_on() {
    let mut world = users().await;
    let _node = world.node(SourceOptions::default()).await;
    world.until_followed("db_updates").await;
    let rule = json!({
        "type": "on_change", "db_name": "^user_(.*)$", "url": "http://127.0.0.1:1/", "method": "POST",
        "debounce": true, "params": {"change": "$change", "db_name": "$db_name", "number": 1000},
    });
    world.rule("chain", Some(&rule)).await;
    world.until_seeded(1).await;
    for sent in 1..=MESSAGES {
        let body = json!({"_id": format!("m{sent}")}).to_string();
        world.peer.put(&user(0), &body).unwrap();
        for nth in 0..DATABASES {
            let call = timeout(Duration::from_mins(1), world.calls.recv()).await;
            let call = call.unwrap().unwrap();
            let body: Value = serde_json::from_str(call.body.as_ref().unwrap()).unwrap();
            let expected = (&json!(user(nth)), &json!(1000), &json!(format!("m{sent}")));
            let found = (&body["db_name"], &body["number"], &body["change"]["_id"]);
            assert_eq!(found, expected);
            if nth + 1 < DATABASES {
                let next = json!({"_id": call.doc_id}).to_string();
                world.peer.put(&user(nth + 1), &next).unwrap();
            }
        }
    }
    assert!((0..DATABASES).all(|nth| docs(&world, &user(nth)) == MESSAGES));
}

/// Spiegel ran a replication that failed again at once, for ever.
#[tokio::test]
async fn d9_replications_that_fail_back_off() {
    let world = World::new().await;
    let _node = world.node(SourceOptions::default()).await;
    let rule = json!({
        "type": "replicator", "source": world.peer.database_url("a"), "target": world.peer.database_url("gone"),
    });
    world.rule("x", Some(&rule)).await;
    let crashes = async || world.rule_row("x").await["state"] == "crashing";
    world.until(crashes).await;
    assert_eq!(world.rule_row("x").await["error_count"], 1);
    // A change does not cut the wait short.
    world.change("one");
    let (jobs, ty) = (world.replications.jobs(), world.replications.job_type());
    let page = jobs.list(ty, &Query::default(), None, 2).await.unwrap();
    let [job] = &page.jobs[..] else {
        panic!("one job");
    };
    let started_ms = job.info.last.as_ref().unwrap().started_ms;
    assert!(job.info.due_ms >= started_ms + 24_000, "{:?}", job.info);
}
