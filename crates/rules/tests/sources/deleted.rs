//! Databases of rules that are deleted, and made anew.

use jobs::{Query, State};
use peer::{Fault, Faults, On};
use rules::source::SourceOptions;
use serde_json::{Value, json};

use crate::fixture::{LOSES_ALL, Node, World, quick, without_feed};

/// A rule that copies `a` to `b`, and sleeps.
async fn copies(world: &World) {
    world.change("early");
    let rule = json!({
        "type": "replicator", "source": world.peer.database_url("a"),
        "target": world.peer.database_url("b"),
    });
    world.rule("x", Some(&rule)).await;
    world.until_copied("early").await;
    world.until(async || world.rule_sleeps("x").await).await;
}

/// Waits until several looks at the databases of rules have begun and ended. They ask for the sequence of `b`, which
/// another rule is about.
async fn sweeps(world: &World) {
    let asked = || world.peer.count("POST", "/_dbs_info");
    let before = asked();
    world.until(async || asked() > before + 4).await;
}

/// A rule about `b` makes looks visible, and `a`, which has been copied, is deleted.
async fn deleted(world: &World, options: SourceOptions, feed: &str) -> Node {
    let node = world.node(options).await;
    world.until_followed(feed).await;
    copies(world).await;
    listens_to_b(world).await;
    world.peer.delete_database("a").unwrap();
    node
}

/// It is forgotten, and copied again once it is there.
async fn is_forgotten(world: &World) {
    world.until(async || !has_job(world).await).await;
    sweeps(world).await;
    assert!(!has_job(world).await);
    make_anew(world);
    world.until_copied("late").await;
}

async fn listens_to_b(world: &World) {
    let rule = json!({"type": "on_change", "db_name": "^b$", "url": "http://127.0.0.1:1/"});
    world.rule("y", Some(&rule)).await;
    world.until_seeded(2).await;
}

async fn has_job(world: &World) -> bool {
    !world.rule_row("x").await["job_id"].is_null()
}

/// The id of the only replication.
async fn job(world: &World) -> jobs::JobId {
    let (jobs, ty) = (world.replications.jobs(), world.replications.job_type());
    let page = jobs.list(ty, &Query::default(), None, 10).await.unwrap();
    assert_eq!(page.jobs.len(), 1);
    page.jobs[0].info.id.clone()
}

async fn until_crashing(world: &World) {
    world
        .until(async || world.rule_row("x").await["state"] == "crashing")
        .await;
    let row = world.rule_row("x").await;
    assert!(row.to_string().contains("db_not_found"), "{row:#}");
}

/// Lets the next run of the replication wait as long as after many failures.
async fn back_off(world: &World) {
    let (jobs, ty) = (world.replications.jobs(), world.replications.job_type());
    let (id, due_ms) = (job(world).await, jobs.clock().now_ms() + 86_400_000);
    jobs.resubmit(ty, &id, Some(due_ms), None).await.unwrap();
}

fn make_anew(world: &World) {
    world.peer.create_database("a").unwrap();
    world.change("late");
}

/// Its replication is not there again before the database is.
#[tokio::test]
async fn a_deleted_database_is_not_replicated() {
    let world = World::new().await;
    let _node = deleted(&world, quick(), "db_updates").await;
    is_forgotten(&world).await;
}

/// The event that it was deleted was lost, so that its replication failed.
#[tokio::test]
async fn a_created_database_ends_the_back_off() {
    let world = World::new().await;
    let _node = world.node(quick()).await;
    world.until_followed("db_updates").await;
    copies(&world).await;
    world.peer.set_feed_faults(1, LOSES_ALL);
    world.peer.delete_database("a").unwrap();
    until_crashing(&world).await;
    back_off(&world).await;
    world.peer.set_feed_faults(1, peer::FeedFaults::default());
    make_anew(&world);
    world.until_copied("late").await;
    let (jobs, ty) = (world.replications.jobs(), world.replications.job_type());
    let info = jobs.info(ty, &job(&world).await).await.unwrap().unwrap();
    assert_ne!(info.state, State::Finished);
}

#[tokio::test]
async fn a_database_that_is_found_again_ends_the_back_off() {
    let world = World::new().await;
    let _node = deleted(&world, without_feed(), "dbs_info").await;
    until_crashing(&world).await;
    back_off(&world).await;
    sweeps(&world).await;
    make_anew(&world);
    world.until_copied("late").await;
}

/// No feed says that it is gone, and its replication fails for minutes.
#[tokio::test]
async fn a_database_that_stays_away_is_forgotten() {
    let world = World::new().await;
    let _node = deleted(&world, without_feed(), "dbs_info").await;
    until_crashing(&world).await;
    run_for_the_last_time(&world).await;
    is_forgotten(&world).await;
}

/// Lets a replication run whose source has been missing for long.
async fn run_for_the_last_time(world: &World) {
    let (jobs, ty) = (world.replications.jobs(), world.replications.job_type());
    let id = job(world).await;
    let (_, data) = jobs.get(ty, &id).await.unwrap().unwrap();
    let mut data: Value = serde_json::from_slice(&data).unwrap();
    let since = data["missing_since"].as_i64().unwrap();
    data["missing_since"] = (since - 300).into();
    let data = jobs::encode(&data).unwrap();
    jobs.resubmit(ty, &id, Some(0), Some(data)).await.unwrap();
}

#[tokio::test]
async fn a_database_that_returns_during_the_last_run_is_not_forgotten() {
    let world = World::new().await;
    let _node = deleted(&world, without_feed(), "dbs_info").await;
    until_crashing(&world).await;
    back_off(&world).await;
    sweeps(&world).await;
    let opens = || On::get("/a/").first(1);
    let missing = Fault::Answer {
        status: 404,
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        body: r#"{"error":"not_found","reason":"Database does not exist."}"#.to_owned(),
    };
    let faults = [(opens(), Fault::Latency { ms: 4_000 }), (opens(), missing)];
    world.peer.set_faults(Faults::script(faults));
    run_for_the_last_time(&world).await;
    world
        .until(async || !world.peer.injected().is_empty())
        .await;
    make_anew(&world);
    world.until_copied("late").await;
}
