//! A feed may repeat that a database was deleted after it was made anew.

use jobs::{JobInfo, Query};
use peer::{Fault, FeedFaults, On};
use serde_json::{Value, json};

use crate::edges::next_url;
use crate::fixture::{World, answers, without_sweeps};

fn put(world: &World, name: &str, id: &str) {
    let doc = json!({"_id": id}).to_string();
    world.peer.put(name, &doc).unwrap();
}

async fn until_copied(world: &World, target: &str, id: &str) {
    let is_copied = async || matches!(world.peer.get(target, id), Ok(Some(_)));
    world.until(is_copied).await;
}

/// All replications, the oldest first.
async fn replications(world: &World) -> Vec<JobInfo> {
    let (jobs, ty) = (world.replications.jobs(), world.replications.job_type());
    let page = jobs.list(ty, &Query::default(), None, 10).await.unwrap();
    let mut found: Vec<_> = page.jobs.into_iter().map(|listed| listed.info).collect();
    found.sort_by_key(|job| job.created_ms);
    found
}

/// The feed repeats the deletion of a database while the server has these faults.
async fn is_not_believed(faults: Vec<(On, Fault)>) {
    let mut world = World::new().await;
    world.peer.create_database("user_ann").unwrap();
    world.peer.delete_database("user_ann").unwrap();
    world.peer.create_database("user_ann").unwrap();
    put(&world, "user_ann", "early");
    let _node = world.node(without_sweeps()).await;
    world.until_followed("db_updates").await;
    let rule = json!({
        "type": "replicator", "create_target": true, "match": {"database": "^user_(?<name>[a-z]+)$"},
        "source": format!("{}/user_${{name}}", world.peer.url()),
        "target": format!("{}/copy_${{name}}", world.peer.url()),
    });
    world.rule("x", Some(&rule)).await;
    let calls = |id: &str, matches: Value| {
        let url = format!("http://127.0.0.1:1/{id}/${{change.id}}");
        json!({"type": "on_change", "match": matches, "url": url})
    };
    let (all, new) = (
        json!({"database": "^user_"}),
        json!({"database": "^user_", "events": ["created"]}),
    );
    world.rule("all", Some(&calls("all", all))).await;
    world.rule("new", Some(&calls("new", new))).await;
    until_copied(&world, "copy_ann", "early").await;
    world.until_seeded(3).await;
    let before = replications(&world).await.remove(0);
    // Each event is followed by the oldest one.
    let repeats = FeedFaults {
        repeat: 1000,
        ..FeedFaults::default()
    };
    world.peer.set_faults(peer::Faults::script(faults));
    world.peer.set_feed_faults(1, repeats);
    for id in ["one", "two", "three"] {
        put(&world, "b", id);
    }
    world.peer.set_feed_faults(1, FeedFaults::default());
    // Once this is copied, the follower has read all of them.
    world.peer.create_database("user_bob").unwrap();
    put(&world, "user_bob", "early");
    until_copied(&world, "copy_bob", "early").await;
    let after = replications(&world).await;
    assert_eq!(after.len(), 2);
    assert_eq!(
        (&after[0].id, after[0].created_ms),
        (&before.id, before.created_ms)
    );
    put(&world, "user_ann", "late");
    let mut urls = Vec::new();
    while urls
        .last()
        .is_none_or(|url| url != "http://127.0.0.1:1/all/late")
    {
        urls.push(next_url(&mut world).await);
    }
    until_copied(&world, "copy_ann", "late").await;
    urls.extend(std::iter::from_fn(|| {
        Some(world.calls.try_recv().ok()?.url)
    }));
    assert!(
        !urls.contains(&"http://127.0.0.1:1/new/late".to_owned()),
        "{urls:?}"
    );
}

#[tokio::test]
async fn a_repeated_deletion_is_not_believed() {
    is_not_believed(Vec::new()).await;
}

#[tokio::test]
async fn a_repeated_deletion_is_not_believed_while_databases_cannot_be_listed() {
    is_not_believed(vec![(On::post("/_dbs_info"), answers(503))]).await;
}

/// CouchDB lists a database as missing whenever it cannot read it.
#[tokio::test]
async fn a_repeated_deletion_is_not_believed_because_it_is_listed() {
    let unreadable = Fault::Answer {
        status: 200,
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        body: r#"[{"key":"user_ann","error":"not_found"}]"#.to_owned(),
    };
    is_not_believed(vec![(On::post("/_dbs_info"), unreadable)]).await;
}
