//! Replications that go on.

use std::time::Duration;

use couch::Seq;
use peer::{Fault, Faults, On, Options, SeqForm};
use replication::engine::{Ahead, Phase, ahead};
use serde_json::json;
use tokio::time::Instant;

use crate::fixture::{World, counts};

#[tokio::test]
async fn follows_what_happens() {
    let world = World::new().await;
    world.put_docs(0..10);
    let running = world.start(json!({"continuous": true})).await;
    let progress = running
        .until(|progress| progress.phase == Phase::CaughtUp)
        .await;
    assert_eq!(
        (progress.changes_pending, progress.behind_since),
        (Some(0), None)
    );
    assert_eq!(progress.stats.docs_written, 10);
    world.put_docs(10..30);
    world
        .source
        .attach("a", "att", None, "x", "a/b", vec![3; 5000])
        .unwrap();
    world.put(&json!({"_id": "_design/d"}));
    running
        .until(|progress| progress.stats.docs_written == 32)
        .await;
    let rev = world.source.get("a", "doc0001").unwrap().unwrap()["_rev"].clone();
    world.put(&json!({"_id": "doc0001", "_rev": rev, "_deleted": true}));
    running
        .until(|progress| progress.stats.docs_written == 33 && progress.phase == Phase::CaughtUp)
        .await;
    let outcome = running.stop().await;
    world.assert_same();
    assert_eq!(
        counts(&outcome),
        [33; 4].into_iter().chain([0]).collect::<Vec<_>>()[..]
    );
    // What happens after the end is not copied.
    world.put_docs(40..41);
    assert!(!world.target_ids().contains(&"doc0040".to_owned()));
}

#[tokio::test]
async fn survives_compaction_and_writers() {
    let world = World::new().await;
    let running = world
        .start(json!({"continuous": true, "checkpoint_interval": 30}))
        .await;
    for round in 0..3 {
        for n in 0..10 {
            world.put_docs(round * 50 + n * 5..round * 50 + n * 5 + 5);
            tokio::task::yield_now().await;
        }
        world.source.compact("a").unwrap();
        world.source.compact("b").unwrap();
    }
    running
        .until(|progress| progress.stats.docs_written == 150)
        .await;
    running.stop().await;
    world.assert_same();
}

#[tokio::test]
async fn a_server_that_restarts() {
    let world = World::new().await;
    world.put_docs(0..10);
    let running = world.start(json!({"continuous": true})).await;
    running
        .until(|progress| progress.phase == Phase::CaughtUp)
        .await;
    world.source.restart(Duration::from_millis(300)).await;
    world.put_docs(10..20);
    running
        .until(|progress| progress.stats.docs_written == 20)
        .await;
    running.stop().await;
    world.assert_same();
}

/// A server, or a proxy before it, that does not send the empty lines that it was asked for.
#[tokio::test]
async fn silence_is_noticed() {
    let world = World::new().await;
    world.put_docs(0..5);
    world.source.set_faults(Faults::script([(
        On::get("/a/_changes?*feed=continuous*"),
        Fault::Hang,
    )]));
    let running = world
        .start(json!({"continuous": true, "connection_timeout": 1000, "retries_per_request": 1}))
        .await;
    running
        .until(|progress| progress.phase == Phase::CaughtUp)
        .await;
    world.put_docs(5..10);
    running
        .until(|progress| progress.stats.docs_written == 10)
        .await;
    running.stop().await;
    let mut feeds = feeds(&world);
    feeds.dedup();
    assert_eq!(feeds, ["normal", "continuous", "longpoll"]);
}

/// The kinds of the feeds that were opened.
fn feeds(world: &World) -> Vec<String> {
    let requests = world.source.requests().into_iter();
    let feeds = requests.filter_map(|request| {
        let after = request.query.split_once("feed=")?.1;
        Some(after.split('&').next()?.to_owned())
    });
    feeds.collect()
}

/// Some servers know no continuous feeds, and some that do not answer with another kind.
#[tokio::test]
async fn servers_without_continuous_feeds_are_polled() {
    let refused = Fault::Status {
        status: 400,
        retry_after: None,
    };
    let mistaken = Fault::Answer {
        status: 200,
        headers: vec![],
        body: r#"{"results":[{"seq":9,"id":"x","changes":[]}],"last_seq":9}"#.to_owned(),
    };
    let unknown = Fault::Status {
        status: 501,
        retry_after: None,
    };
    for (fault, retries) in [(refused, 5), (mistaken, 5), (unknown, 0)] {
        let world = World::new().await;
        world.put_docs(0..5);
        let feed = On::get("/a/_changes?*feed=continuous*");
        world.source.set_faults(Faults::script([(feed, fault)]));
        let running = world
            .start(json!({"continuous": true, "retries_per_request": retries}))
            .await;
        for round in 1..4 {
            running
                .until(|progress| progress.stats.docs_written == 5 * u64::from(round))
                .await;
            world.put_docs(round * 5..round * 5 + 5);
        }
        running
            .until(|progress| progress.stats.docs_written == 20)
            .await;
        running.stop().await;
        world.assert_same();
        let feeds = feeds(&world);
        assert_eq!(feeds[..2], ["normal", "continuous"]);
        assert!(feeds.len() > 2 && feeds[2..].iter().all(|feed| feed == "longpoll"));
    }
}

#[tokio::test]
async fn pauses_and_goes_on() {
    let world = World::new().await;
    world.put_docs(0..10);
    let running = world.start(json!({"continuous": true})).await;
    running
        .until(|progress| progress.phase == Phase::CaughtUp)
        .await;
    running.control.pause(true);
    let progress = running
        .until(|progress| progress.phase == Phase::Paused)
        .await;
    assert_eq!(progress.checkpointed_seq, progress.through_seq);
    world.put_docs(10..20);
    world.source.clear_requests();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(world.source.requests(), [], "nothing is asked in a pause");
    running.control.pause(false);
    running
        .until(|progress| progress.stats.docs_written == 20)
        .await;
    running.control.pause(true);
    running
        .until(|progress| progress.phase == Phase::Paused)
        .await;
    let outcome = running.stop().await;
    assert_eq!(counts(&outcome)[0], 20);
    world.assert_same();
}

/// A batch cut off by a pause starts over, and later changes count again.
#[tokio::test]
async fn a_pause_in_the_middle_of_a_batch() {
    let mut world = World::new().await;
    world.settings.stop_grace = Duration::from_millis(10);
    world.put_docs(0..10);
    let writes = On::post("/b/_bulk_docs");
    world
        .target()
        .set_faults(Faults::script([(writes, Fault::Hang)]));
    let running = world.start(json!({})).await;
    while world.target().injected().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    running.control.pause(true);
    running
        .until(|progress| progress.phase == Phase::Paused)
        .await;
    world.target().set_faults(Faults::none());
    running.control.pause(false);
    let outcome = running.end().await.unwrap();
    assert_eq!(counts(&outcome)[3], 10);
    let progress = outcome.progress;
    assert_eq!(progress.through_seq, progress.source_seq);
    assert_eq!(progress.checkpointed_seq, progress.source_seq);
    world.assert_same();
}

#[tokio::test]
async fn a_stop_leaves_a_checkpoint() {
    let world = World::new().await;
    world.put_docs(0..400);
    world.target().set_faults(Faults::script([(
        On::post("/b/_bulk_docs"),
        Fault::Latency { ms: 30 },
    )]));
    let running = world
        .start(json!({"worker_batch_size": 10, "worker_processes": 2}))
        .await;
    running
        .until(|progress| progress.stats.docs_written >= 50)
        .await;
    let outcome = running.stop().await;
    let written = outcome.progress.stats.docs_written;
    assert!((50..400).contains(&written));
    world.target().set_faults(Faults::none());
    let outcome = world.replicate(json!({})).await;
    assert_eq!(
        outcome.progress.stats.missing_checked, 400,
        "nothing was looked at twice"
    );
    world.assert_same();
}

#[tokio::test]
async fn an_abort_stops_every_write() {
    let world = World::new().await;
    world.put_docs(0..400);
    world.target().set_faults(Faults::script([(
        On::post("/b/_bulk_docs"),
        Fault::Latency { ms: 20 },
    )]));
    let running = world
        .start(json!({"worker_batch_size": 10, "worker_processes": 2}))
        .await;
    running
        .until(|progress| progress.stats.docs_written >= 50)
        .await;
    running.control.abort();
    assert_eq!(running.end().await.unwrap_err().tag(), "halt");
    let requests = world.target().requests().len();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let later = world.target().requests();
    let writes = later[requests..]
        .iter()
        .filter(|request| request.method != "GET" && request.status != 0);
    assert!(
        writes.count() <= 2,
        "only what the server had already taken"
    );
    assert!(world.source.contents("a").unwrap().locals.is_empty());
}

/// Each feed of a filtered replication ends after the time that it was asked to last, which is no failure.
#[tokio::test]
async fn feeds_that_end_when_they_should_are_opened_again_at_once() {
    let world = World::new().await;
    let options = json!({
        "continuous": true, "selector": {"integer": {"$gte": 0}}, "connection_timeout": 1500,
    });
    let running = world.start(options).await;
    running.until(|now| now.phase == Phase::CaughtUp).await;
    // With growing pauses, these would take 38 seconds.
    until_opened(&world, 8, Duration::from_secs(25)).await;
    running.stop().await;
}

/// They are opened once a second, however short they are.
#[tokio::test]
async fn feeds_that_shall_be_short_are_not_opened_without_pause() {
    let world = World::new().await;
    let options = json!({
        "continuous": true, "selector": {"integer": {"$gte": 0}}, "connection_timeout": 300,
    });
    let running = world.start(options).await;
    running.until(|now| now.phase == Phase::CaughtUp).await;
    let (began, before) = (Instant::now(), feeds(&world).len());
    until_opened(&world, 6, Duration::from_secs(30)).await;
    let opened = u64::try_from(feeds(&world).len() - before).unwrap();
    assert!(opened <= began.elapsed().as_secs() + 2, "{opened}");
    running.stop().await;
}

/// Waits until so many continuous feeds were opened.
async fn until_opened(world: &World, count: usize, time: Duration) {
    let opened = async {
        while feeds(world)
            .iter()
            .filter(|feed| *feed == "continuous")
            .count()
            < count
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(time, opened).await.unwrap();
}

/// The feed is alive and tells nothing, although there is something to tell.
#[tokio::test]
async fn zombies_are_found() {
    let mut world = World::new().await;
    world.settings.no_progress_timeout = Some(Duration::from_millis(400));
    world.put_docs(0..5);
    // What the second feed says is wrong: no changes, forever.
    world.source.set_faults(Faults::script([
        (
            On::get("/a/_changes").nth(3),
            Fault::Answer {
                status: 200,
                headers: Vec::new(),
                body: "\n".repeat(10),
            },
        ),
        (On::get("/a/_changes").nth(3), Fault::EndlessBody),
    ]));
    let running = world.start(json!({"continuous": true})).await;
    running
        .until(|progress| progress.phase == Phase::CaughtUp)
        .await;
    world.put_docs(5..6);
    let ended = tokio::time::timeout(Duration::from_secs(20), running.end()).await;
    match ended {
        Ok(Err(error)) => assert_eq!(error.tag(), "no_progress"),
        other => panic!("{other:?} {:?}", world.source.injected()),
    }
}

#[tokio::test]
async fn a_target_that_hangs_is_no_progress() {
    let mut world = World::new().await;
    world.settings.no_progress_timeout = Some(Duration::from_millis(400));
    world.put_docs(0..5);
    world
        .target()
        .set_faults(Faults::script([(On::post("/b/_bulk_docs"), Fault::Hang)]));
    let error = world.try_replicate(json!({})).await.unwrap_err();
    assert_eq!(error.to_info()["error"], "no_progress");
}

/// The feed of another database, after a sequence that it has not come to, is empty.
#[tokio::test]
async fn a_source_that_was_replaced_has_changes() {
    let options = Options {
        seqs: SeqForm::Number,
        ..Options::default()
    };
    let world = World::with(options).await;
    world.put_docs(0..10);
    let replication = world.replication(&json!({"continuous": true}));
    let seq = Seq::from_json("10").unwrap();
    let of = (&world.network, &world.settings);
    assert_eq!(
        ahead(of, &replication, &seq, 1).await,
        Ahead::Fewer(seq.clone())
    );
    world.source.delete_database("a").unwrap();
    world.source.create_database("a").unwrap();
    world.put_docs(20..23);
    for count in [1, 5] {
        assert_eq!(ahead(of, &replication, &seq, count).await, Ahead::More);
    }
}
