//! Checkpoints: where they are, what they say, when they count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use couch::Seq;
use peer::{Fault, Faults, On, Options, SeqForm};
use replication::Stats;
use replication::engine::{Gate, Halt, Phase, StartedFrom};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::fixture::{World, counts, newest};

#[tokio::test]
async fn both_sides_have_the_same() {
    let world = World::new().await;
    world.put_docs(0..10);
    let outcome = world.replicate(json!({})).await;
    let locals = world.source.contents("a").unwrap().locals;
    assert_eq!(locals, world.target().contents("b").unwrap().locals);
    let (_, body) = locals.first_key_value().unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(body).unwrap(),
        Value::Object(outcome.result)
    );
}

#[tokio::test]
async fn none_if_not_wanted() {
    let world = World::new().await;
    world.put_docs(0..10);
    let outcome = world.replicate(json!({"use_checkpoints": false})).await;
    assert_eq!(
        Value::Object(outcome.result),
        json!({"use_checkpoints": false})
    );
    assert!(world.source.contents("a").unwrap().locals.is_empty());
    // One that is there counts all the same.
    world.replicate(json!({})).await;
    world.put_docs(10..12);
    let outcome = world.replicate(json!({"use_checkpoints": false})).await;
    assert_eq!(counts(&outcome)[0], 12);
    assert_eq!(outcome.progress.started_from, StartedFrom::Checkpoint);
}

#[tokio::test]
async fn a_run_without_news_stands_where_it_began() {
    let world = World::new().await;
    world.put_docs(0..10);
    world.replicate(json!({})).await;
    let progress = world.replicate(json!({})).await.progress;
    let start = progress.start_seq;
    assert!(start.as_ref().is_some_and(|start| *start != Seq::zero()));
    assert_eq!(progress.checkpointed_seq, start);
    assert_eq!(progress.source_seq, start);
    assert_eq!(progress.through_seq, start);
}

#[tokio::test]
async fn a_source_that_may_only_be_read() {
    let admin = Some(("adm".to_owned(), "pass".to_owned()));
    let options = Options {
        admin,
        admin_only: false,
        ..Options::default()
    };
    let world = World::apart(options, Options::default()).await;
    world.put_docs(0..10);
    // Everybody may write documents there, so let us take that away.
    world.source.set_faults(Faults::script([(
        On::put("/a/_local/*"),
        Fault::Status {
            status: 403,
            retry_after: None,
        },
    )]));
    let error = world.try_replicate(json!({})).await.unwrap_err();
    assert_eq!(error.tag(), "checkpoint_commit_failure");
    assert!(
        error
            .reason()
            .starts_with("Error updating the source checkpoint document: forbidden"),
        "{error}"
    );
    let options = json!({"checkpoints": "target"});
    world.replicate(options.clone()).await;
    world.put_docs(10..15);
    let outcome = world.replicate(options.clone()).await;
    assert_eq!(outcome.progress.started_from, StartedFrom::Checkpoint);
    assert_eq!(
        newest(&outcome)["docs_read"],
        5,
        "the others were there already"
    );
    world.assert_same_docs();
    assert!(world.source.contents("a").unwrap().locals.is_empty());
    // Another database in the source's place.
    world.source.delete_database("a").unwrap();
    world.source.create_database("a").unwrap();
    world.put_docs(20..22);
    let outcome = world.replicate(options).await;
    assert_eq!(outcome.progress.started_from, StartedFrom::Zero);
}

/// One that rests would otherwise read the whole feed again after every change, and never say why.
#[tokio::test]
async fn a_rest_without_a_checkpoint_is_a_failure() {
    let world = World::new().await;
    world.put_docs(0..10);
    let forbidden = Fault::Status {
        status: 403,
        retry_after: None,
    };
    let checkpoints = On::put("/a/_local/*");
    world
        .source
        .set_faults(Faults::script([(checkpoints, forbidden)]));
    let running = world.start(json!({"continuous": true})).await;
    running.until(|now| now.phase == Phase::CaughtUp).await;
    running.control.rest();
    let error = running.end().await.unwrap_err();
    assert_eq!(error.tag(), "checkpoint_commit_failure");
}

/// The checkpoint at the target was written together with one at the source, and does not say which database that was.
#[tokio::test]
async fn a_source_that_was_replaced_before_only_the_target_has_checkpoints() {
    let options = Options {
        seqs: SeqForm::Number,
        ..Options::default()
    };
    let world = World::with(options).await;
    let only_target = json!({"checkpoints": "target"});
    world.put_docs(0..10);
    world.replicate(json!({})).await;
    let outcome = world.replicate(only_target.clone()).await;
    assert_eq!(outcome.progress.started_from, StartedFrom::Checkpoint);
    world.source.delete_database("a").unwrap();
    world.source.create_database("a").unwrap();
    world.put_docs(20..22);
    let outcome = world.replicate(only_target).await;
    assert_eq!(outcome.progress.started_from, StartedFrom::Zero);
    assert_eq!(world.target_ids().len(), 12);
}

#[tokio::test]
async fn one_side_that_was_replaced() {
    for side in ["a", "b"] {
        let world = World::new().await;
        world.put_docs(0..10);
        world.replicate(json!({})).await;
        world.source.delete_database(side).unwrap();
        world.source.create_database(side).unwrap();
        if side == "a" {
            world.put_docs(5..15);
        }
        let outcome = world.replicate(json!({})).await;
        assert_eq!(outcome.progress.started_from, StartedFrom::Zero, "{side}");
        assert_eq!(outcome.result["history"].as_array().unwrap().len(), 1);
        assert_eq!(world.target_ids().len(), if side == "a" { 15 } else { 10 });
    }
}

/// The second write of a checkpoint fails: the next run goes on from the last common one.
#[tokio::test]
async fn half_a_checkpoint() {
    let world = World::new().await;
    world.put_docs(0..10);
    world.replicate(json!({})).await;
    world.put_docs(10..20);
    world.target().set_faults(Faults::script([(
        On::put("/b/_local/*"),
        Fault::Status {
            status: 400,
            retry_after: None,
        },
    )]));
    let error = world.try_replicate(json!({})).await.unwrap_err();
    assert!(
        error
            .reason()
            .starts_with("Error updating the target checkpoint document"),
        "{error}"
    );
    world.target().set_faults(Faults::none());
    world.put_docs(20..22);
    let outcome = world.replicate(json!({})).await;
    assert_eq!(outcome.progress.started_from, StartedFrom::Checkpoint);
    assert_eq!(newest(&outcome)["missing_checked"], 12);
    assert_eq!(
        newest(&outcome)["missing_found"],
        2,
        "ten were there already"
    );
    world.assert_same();
}

#[tokio::test]
async fn an_answer_that_was_lost_is_no_conflict() {
    let world = World::new().await;
    world.put_docs(0..10);
    for side in ["a", "b"] {
        let path = format!("/{side}/_local/*");
        world
            .source
            .set_faults(Faults::script([(On::put(&path).nth(1), Fault::LoseAnswer)]));
        world.put_docs(if side == "a" { 10..20 } else { 20..30 });
        world.replicate(json!({})).await;
        assert!(!world.source.injected().is_empty());
        world.assert_same();
    }
}

#[tokio::test]
async fn somebody_else_writes_the_checkpoint() {
    let world = World::new().await;
    world.put_docs(0..10);
    let conflict = Fault::Answer {
        status: 409,
        headers: vec![("Content-Type".to_owned(), "application/json".to_owned())],
        body: r#"{"error":"conflict","reason":"Document update conflict."}"#.to_owned(),
    };
    world
        .target()
        .set_faults(Faults::script([(On::put("/b/_local/*"), conflict)]));
    let error = world.try_replicate(json!({})).await.unwrap_err();
    assert_eq!(error.tag(), "checkpoint_commit_failure");
    assert!(
        error
            .reason()
            .starts_with("Error updating the target checkpoint document: conflict"),
        "{error}"
    );
}

#[tokio::test]
async fn a_database_that_is_recreated_meanwhile() {
    for (side, reason) in [("a", "source"), ("b", "target")] {
        let world = World::new().await;
        world.put_docs(0..10);
        // Before its checkpoint the run asks, and waits until the database is another one.
        let (asks, mut asked) = mpsc::channel::<oneshot::Sender<()>>(1);
        let gate = Gate::new(move |_| {
            let (done, waits) = oneshot::channel();
            let asks = asks.clone();
            async move {
                asks.send(done).await.unwrap();
                waits.await.unwrap();
                Ok(())
            }
        });
        let running = world.start_from(json!({}), Stats::default(), gate).await;
        let go_on = asked.recv().await.unwrap();
        world.source.delete_database(side).unwrap();
        world.source.create_database(side).unwrap();
        go_on.send(()).unwrap();
        let error = running.end().await.unwrap_err();
        let expected =
            format!("instance_start_time on {reason} database has changed since last checkpoint.");
        assert_eq!(error.reason(), expected);
    }
}

#[tokio::test]
async fn no_checkpoint_without_the_lock() {
    let world = World::new().await;
    world.put_docs(0..10);
    let asked = Arc::new(AtomicU64::new(0));
    let held = Arc::new(AtomicBool::new(true));
    let gate = {
        let (asked, held) = (Arc::clone(&asked), Arc::clone(&held));
        Gate::new(move |checkpoint| {
            asked.fetch_add(1, Ordering::SeqCst);
            assert!(!checkpoint.through.is_null());
            std::future::ready(if held.load(Ordering::SeqCst) {
                Ok(())
            } else {
                Err(Halt)
            })
        })
    };
    let options = json!({"continuous": true, "checkpoint_interval": 20});
    let running = world.start_from(options, Stats::default(), gate).await;
    running
        .until(|progress| progress.checkpointed_seq.is_some())
        .await;
    assert!(asked.load(Ordering::SeqCst) >= 1);
    let locals = world.source.contents("a").unwrap().locals;
    held.store(false, Ordering::SeqCst);
    world.put_docs(10..12);
    let error = running.end().await.unwrap_err();
    assert_eq!(error.tag(), "halt");
    assert_eq!(world.source.contents("a").unwrap().locals, locals);
}

/// Validation refuses odd documents; numbers go on over runs, also when those were cancelled.
#[tokio::test]
async fn numbers_are_retained() {
    let world = World::new().await;
    let validation =
        json!({"_id": "_design/v", "validate_doc_update": peer::sources::VALIDATE_EVEN});
    world.target().put("b", &validation.to_string()).unwrap();
    for round in 1..=3 {
        world.put_docs((round - 1) * 10..round * 10);
        let running = world.start(json!({"continuous": true})).await;
        let n = u64::from(round);
        let progress = running
            .until(|progress| {
                progress.stats.docs_read == n * 10 && progress.changes_pending == Some(0)
            })
            .await;
        let outcome = running.stop().await;
        assert_eq!(counts(&outcome), [n * 10, n * 10, n * 10, n * 5, n * 5]);
        assert_eq!(progress.stats.docs_written, n * 5);
        assert_eq!(outcome.progress.failures.len(), 5);
        assert_eq!(outcome.progress.failures[0].error, "forbidden");
    }
}

#[tokio::test]
async fn old_names_are_looked_up_once() {
    let world = World::new().await;
    world.put_docs(0..10);
    let prepared = world.prepare(&json!({}), Stats::default()).await.unwrap();
    let old = prepared.identity.older[0].as_str().to_owned();
    let seventh = world.source_seq_after(7).await;
    let body = json!({"session_id": "x", "source_last_seq": seventh, "history": [
        {"session_id": "x", "recorded_seq": seventh, "docs_read": 7, "docs_written": 7}]});
    for side in ["a", "b"] {
        world
            .source
            .put(side, &json!({"_id": format!("_local/{old}")}).to_string())
            .ok();
        let endpoint = couch::Endpoint::from_url(&world.source.database_url(side)).unwrap();
        let database = world
            .network
            .database(endpoint, couch::RequestOptions::default())
            .await
            .unwrap();
        database.put_local(&old, &body).await.unwrap();
    }
    let outcome = world.replicate(json!({})).await;
    assert_eq!(outcome.progress.started_from, StartedFrom::Checkpoint);
    assert_eq!(outcome.progress.stats.docs_read, 10);
    assert_eq!(outcome.result["history"].as_array().unwrap().len(), 2);
}
