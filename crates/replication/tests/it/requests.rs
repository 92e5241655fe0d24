//! How many requests a run takes, and when a repeated run must not save any.

use std::collections::BTreeMap;

use peer::{Fault, Faults, On};
use replication::Stats;
use replication::engine::{
    Ending, Gate, Handles, Phase, Progress, Report, Resume, StartedFrom, run,
};
use serde_json::{Value, json};

use crate::fixture::{Running, World, counts};

impl World {
    /// The requests since the last call, by kind.
    fn take_requests(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for request in self.source.requests() {
            let is_local = request.path.contains("/_local/");
            let path = request.path.split("/_local/").next().unwrap();
            let local = if is_local { "/_local" } else { "" };
            let kind = format!("{} {path}{local}", request.method);
            *kinds.entry(kind).or_default() += 1;
        }
        self.source.clear_requests();
        kinds
    }

    fn update(&self, id: &str, integer: u64) {
        let rev = self.source.get("a", id).unwrap().unwrap()["_rev"].clone();
        self.put(&json!({"_id": id, "_rev": rev, "integer": integer}));
    }

    /// Replaces a database by what a backup of it would restore: the documents and the checkpoint of that time.
    fn restore(&self, side: &str, until: u32, checkpoint: &Value) {
        self.source.delete_database(side).unwrap();
        self.source.create_database(side).unwrap();
        let docs =
            (0..until).map(|n| json!({"_id": format!("doc{n:04}"), "integer": n}).to_string());
        self.source.put_all(side, docs).unwrap();
        let mut checkpoint = checkpoint.clone();
        checkpoint.as_object_mut().unwrap().remove("_rev");
        self.source.put(side, &checkpoint.to_string()).unwrap();
    }

    /// The checkpoint of a side.
    fn checkpoint(&self, side: &str) -> Value {
        let locals = self.source.contents(side).unwrap().locals;
        let (id, _) = locals.first_key_value().unwrap();
        self.source.get(side, id).unwrap().unwrap()
    }
}

/// Two runs, of which the second left the checkpoints to the first.
async fn repeated(world: &World) -> Report {
    world.put_docs(0..10);
    let first = world.replicate(json!({})).await;
    let before = world.checkpoint("b");
    world.put_docs(10..12);
    let second = world.repeat(json!({}), &first).await;
    assert_eq!(world.checkpoint("b"), before);
    second
}

#[tokio::test]
async fn a_repeated_run_with_one_change() {
    let world = World::new().await;
    world.put_docs(0..10);
    let mut last = world.replicate(json!({})).await;
    println!("first run: {:#?}", world.take_requests());
    let mut sums = Vec::new();
    for round in 1..30 {
        world.update(&format!("doc{:04}", round % 10), round);
        world.take_requests();
        last = world.repeat(json!({}), &last).await;
        let requests = world.take_requests();
        if round == 1 {
            println!("repeated run: {requests:#?}");
        }
        sums.push(requests.values().sum::<usize>());
        assert_eq!(last.progress.started_from, StartedFrom::Checkpoint);
        assert_eq!(
            counts(&last),
            [10 + round, 10 + round, 10 + round, 10 + round, 0]
        );
        assert_eq!(last.result.get("no_changes"), None);
        world.assert_same_docs();
    }
    println!("repeated runs: {sums:?}");
    assert!(sums[..10].iter().all(|sum| *sum <= 6));
    let writing = sums.iter().filter(|sum| **sum > 6).count();
    assert!(
        (1..=3).contains(&writing),
        "the checkpoints follow from time to time"
    );
    assert_eq!(world.checkpoint("a"), world.checkpoint("b"));
}

#[tokio::test]
async fn a_repeated_run_without_a_change() {
    let world = World::new().await;
    let last = repeated(&world).await;
    world.take_requests();
    let nothing = world.repeat(json!({}), &last).await;
    assert_eq!(nothing.result["no_changes"], true);
    assert_eq!(counts(&nothing), counts(&last));
    let requests = world.take_requests();
    assert_eq!(requests.values().sum::<usize>(), 4, "{requests:?}");
}

/// The source reads all of them in every run until the checkpoint has passed them.
#[tokio::test]
async fn checkpoints_pass_what_the_source_filters() {
    let world = World::new().await;
    let options = json!({"selector": {"integer": {"$lt": 10}}});
    world.put_docs(0..10);
    let first = world.replicate(options.clone()).await;
    world.put_docs(10..20);
    let second = world.repeat(options.clone(), &first).await;
    assert_eq!(
        world.checkpoint("a")["source_last_seq"],
        first.result["source_last_seq"]
    );
    world.put_docs(20..1_100);
    let third = world.repeat(options, &second).await;
    assert_eq!(counts(&third)[0], 10);
    let passed = third.progress.checkpointed_seq;
    assert_eq!(passed, third.progress.through_seq);
    let checkpoint = world.checkpoint("a");
    let recorded = checkpoint["source_last_seq"].to_string();
    assert_eq!(
        Some(recorded.as_str()),
        passed.as_ref().map(couch::Seq::as_json)
    );
}

/// A continuous replication that rests between changes.
#[tokio::test]
async fn a_run_that_rests() {
    let world = World::new().await;
    world.put_docs(0..10);
    let options = json!({"continuous": true});
    let mut kept = None;
    for round in 0..3 {
        let mut prepared = world.prepare(&options, Stats::default()).await.unwrap();
        prepared.resume = kept.take();
        let running = Running::of(prepared, Gate::open());
        let progress = running.until(|now| now.phase == Phase::CaughtUp).await;
        world.assert_same_docs();
        running.control.rest();
        let ended = running.end().await.unwrap();
        assert_eq!(ended.progress.through_seq, progress.through_seq);
        kept = ended.progress.resume;
        let requests = world.take_requests();
        let writes = requests
            .keys()
            .filter(|kind| kind.starts_with("PUT"))
            .count();
        assert_eq!(writes, if round == 0 { 2 } else { 0 }, "{requests:?}");
        world.update("doc0003", round);
    }
}

#[tokio::test]
async fn new_documents_come_with_the_feed() {
    let world = World::new().await;
    world.put_docs(0..10);
    let mut last = world.replicate(json!({})).await;
    for n in 10..13 {
        world.put_docs(n..n + 1);
        world.take_requests();
        last = world.repeat(json!({}), &last).await;
    }
    world.assert_same_docs();
    let requests = world.take_requests();
    assert_eq!(requests.values().sum::<usize>(), 5, "{requests:?}");
}

#[tokio::test]
async fn a_source_that_may_only_be_read() {
    let world = World::new().await;
    let options = json!({"checkpoints": "target"});
    world.put_docs(0..10);
    let first = world.replicate(options.clone()).await;
    world.update("doc0003", 1);
    world.take_requests();
    let second = world.repeat(options.clone(), &first).await;
    let requests = world.take_requests();
    assert_eq!(requests.values().sum::<usize>(), 6, "{requests:?}");
    world.assert_same_docs();
    world.source.delete_database("a").unwrap();
    world.source.create_database("a").unwrap();
    world.put_docs(20..22);
    let third = world.repeat(options, &second).await;
    assert_eq!(third.progress.started_from, StartedFrom::Zero);
    assert_eq!(world.target_ids().len(), 12);
}

#[tokio::test]
async fn many_changes_and_old_checkpoints_are_recorded() {
    let world = World::new().await;
    world.put_docs(0..10);
    let first = world.replicate(json!({})).await;
    let before = world.checkpoint("b");
    world.put_docs(10..111);
    let second = world.repeat(json!({}), &first).await;
    assert_ne!(world.checkpoint("b"), before);
    let before = world.checkpoint("b");
    world.put_docs(111..122);
    let options = json!({"checkpoint_interval": 1});
    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    world.repeat(options, &second).await;
    assert_ne!(world.checkpoint("b"), before);
    world.assert_same();
}

#[tokio::test]
async fn a_database_that_was_recreated() {
    for side in ["a", "b"] {
        let world = World::new().await;
        let last = repeated(&world).await;
        world.source.delete_database(side).unwrap();
        world.source.create_database(side).unwrap();
        if side == "a" {
            world.put_docs(5..9);
            world.put_docs(20..30);
        }
        let outcome = world.repeat(json!({}), &last).await;
        assert_eq!(outcome.progress.started_from, StartedFrom::Zero, "{side}");
        let expected = if side == "a" { 22 } else { 12 };
        assert_eq!(world.target_ids().len(), expected);
    }
}

#[tokio::test]
async fn a_checkpoint_that_was_deleted() {
    for side in ["a", "b"] {
        let world = World::new().await;
        let last = repeated(&world).await;
        // A user deletes the checkpoint to have everything copied again.
        let checkpoint = world.checkpoint(side);
        let (id, rev) = (&checkpoint["_id"], &checkpoint["_rev"]);
        let gone = json!({"_id": id, "_rev": rev, "_deleted": true});
        world.source.put(side, &gone.to_string()).unwrap();
        let rev = world.target().get("b", "doc0001").unwrap().unwrap()["_rev"].clone();
        let lost = json!({"_id": "doc0001", "_rev": rev, "_deleted": true});
        world.target().put("b", &lost.to_string()).unwrap();
        let outcome = world.repeat(json!({}), &last).await;
        assert_eq!(outcome.progress.started_from, StartedFrom::Zero, "{side}");
        assert_eq!(outcome.result["history"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_checkpoint_that_another_replicator_moved() {
    let world = World::new().await;
    let last = repeated(&world).await;
    world.put_docs(12..20);
    let theirs = world.replicate(json!({})).await;
    world.put_docs(20..22);
    let outcome = world.repeat(json!({}), &last).await;
    assert_eq!(outcome.progress.start_seq, theirs.progress.through_seq);
    world.assert_same();
}

/// A target that was restored from a backup made between the checkpoint and the writes after it, or before both.
#[tokio::test]
async fn a_target_that_was_rolled_back() {
    for until in [10, 11] {
        let world = World::new().await;
        let last = repeated(&world).await;
        let checkpoint = world.checkpoint("b");
        world.restore("b", until, &checkpoint);
        world.put_docs(12..14);
        let outcome = world.repeat(json!({}), &last).await;
        assert_eq!(world.target_ids().len(), 14);
        // When the checkpoints are written again, the database is another one, which is no failure.
        world.put_docs(14..130);
        world.repeat(json!({}), &outcome).await;
        world.assert_same();
    }
    let world = World::new().await;
    world.put_docs(0..5);
    let first = world.replicate(json!({})).await;
    let checkpoint = world.checkpoint("b");
    world.put_docs(5..10);
    let second = world.replicate(json!({})).await;
    world.restore("b", 5, &checkpoint);
    drop(first);
    world.repeat(json!({}), &second).await;
    assert_eq!(world.target_ids().len(), 10);
    world.assert_same();
}

#[tokio::test]
async fn a_source_that_was_rolled_back() {
    let world = World::new().await;
    let last = repeated(&world).await;
    let checkpoint = world.checkpoint("a");
    world.restore("a", 10, &checkpoint);
    // They get the sequences of those that were lost.
    world.put_docs(30..32);
    world.repeat(json!({}), &last).await;
    assert_eq!(world.target_ids().len(), 14);
}

#[tokio::test]
async fn rejected_documents_are_not_tried_again() {
    let world = World::new().await;
    let validation =
        json!({"_id": "_design/v", "validate_doc_update": peer::sources::VALIDATE_EVEN});
    world.target().put("b", &validation.to_string()).unwrap();
    world.put_docs(0..2);
    let mut last = world.replicate(json!({})).await;
    for n in [4, 6] {
        world.put_docs(n..n + 2);
        last = world.repeat(json!({}), &last).await;
        world.put_docs(n + 10..n + 11);
        last = world.repeat(json!({}), &last).await;
    }
    assert_eq!(counts(&last), [8, 8, 8, 5, 3]);
}

/// A run that is stopped before it reads anything forgets nothing.
#[tokio::test]
async fn what_is_read_twice_is_counted_once_after_a_stop() {
    let world = World::new().await;
    let last = repeated(&world).await;
    assert_eq!(counts(&last)[0], 12);
    let feed = On::get("/a/_changes");
    world
        .source
        .set_faults(Faults::script([(feed, Fault::Hang)]));
    let mut prepared = world
        .prepare(&json!({}), last.progress.stats)
        .await
        .unwrap();
    prepared.resume.clone_from(&last.progress.resume);
    let running = Running::of(prepared, Gate::open());
    running.until(|now| now.phase == Phase::CatchingUp).await;
    let stopped = running.stop().await;
    world.source.set_faults(Faults::none());
    let outcome = world.repeat(json!({}), &stopped).await;
    assert_eq!(counts(&outcome)[0], 12);
}

#[tokio::test]
async fn a_run_that_is_stopped_before_it_begins_changes_nothing() {
    let world = World::new().await;
    let last = repeated(&world).await;
    let mut prepared = world
        .prepare(&json!({}), last.progress.stats)
        .await
        .unwrap();
    prepared.resume.clone_from(&last.progress.resume);
    let (control, handles) = Handles::new(Gate::open());
    control.stop();
    let stopped = run(prepared, handles).await.unwrap();
    assert_eq!(stopped.ending, Ending::Stopped);
    assert_eq!(stopped.progress.phase, Phase::Starting);
    assert_eq!(stopped.progress.resume, last.progress.resume);
}

/// The target is made anew while a run follows that began with the checkpoint of an earlier one.
#[tokio::test]
async fn statistics_go_on_when_a_run_begins_anew() {
    let world = World::new().await;
    world.put_docs(0..10);
    let first = world.replicate(json!({})).await;
    let options = json!({"continuous": true, "checkpoint_interval": 300});
    let mut prepared = world.prepare(&options, first.progress.stats).await.unwrap();
    prepared.resume.clone_from(&first.progress.resume);
    let running = Running::of(prepared, Gate::open());
    running.until(|now| now.phase == Phase::CaughtUp).await;
    world.put_docs(10..15);
    running.until(|now| now.stats.docs_written == 15).await;
    world.source.delete_database("b").unwrap();
    world.source.create_database("b").unwrap();
    world.put_docs(15..20);
    let again =
        |now: &Progress| now.phase == Phase::CaughtUp && now.started_from == StartedFrom::Zero;
    let now = running.until(again).await;
    assert!(now.stats.docs_written >= 35, "{:?}", now.stats);
    running.stop().await;
    world.assert_same_docs();
}

/// The changes are too many to do without a checkpoint.
#[tokio::test]
async fn a_run_does_not_rest_if_its_target_was_made_anew() {
    let world = World::new().await;
    world.put_docs(0..10);
    let first = world.replicate(json!({})).await;
    let options = json!({"continuous": true, "checkpoint_interval": 300_000});
    let mut prepared = world.prepare(&options, first.progress.stats).await.unwrap();
    prepared.resume.clone_from(&first.progress.resume);
    let running = Running::of(prepared, Gate::open());
    running.until(|now| now.phase == Phase::CaughtUp).await;
    world.put_docs(10..150);
    running.until(|now| now.stats.docs_written == 150).await;
    world.source.delete_database("b").unwrap();
    world.source.create_database("b").unwrap();
    running.control.rest();
    let error = running.end().await.unwrap_err();
    assert_eq!(error.tag(), "checkpoint_commit_failure");
}

#[tokio::test]
async fn a_run_without_a_change_makes_no_progress() {
    let world = World::new().await;
    world.put_docs(0..10);
    let last = world.replicate(json!({})).await;
    assert!(last.progress.last_progress.is_some());
    let outcome = world.replicate(json!({})).await;
    assert_eq!(outcome.progress.last_progress, None);
}

/// It writes requests, but copies nothing.
#[tokio::test]
async fn a_run_that_finds_everything_at_the_target_makes_no_progress() {
    let world = World::new().await;
    world.put_docs(0..400);
    let first = json!({"use_checkpoints": false});
    world.replicate(first).await;
    let slow = Fault::Latency { ms: 300 };
    let asked = On::post("/b/_revs_diff");
    world.target().set_faults(Faults::script([(asked, slow)]));
    let outcome = world.replicate(json!({"worker_batch_size": 50})).await;
    assert_eq!(outcome.progress.stats.docs_written, 0);
    assert_eq!(outcome.progress.last_progress, None);
}

#[tokio::test]
async fn nothing_is_kept_that_cannot_be_used() {
    let world = World::new().await;
    world.put_docs(0..3);
    let outcome = world.replicate(json!({"use_checkpoints": false})).await;
    assert_eq!(outcome.progress.resume, None);
    let outcome = world.replicate(json!({})).await;
    let kept = outcome.progress.resume.unwrap();
    let text = serde_json::to_string(&kept).unwrap();
    assert!(text.len() < 300, "{text}");
    assert_eq!(serde_json::from_str::<Resume>(&text).unwrap(), kept);
}
