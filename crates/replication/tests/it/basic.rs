//! Documents, deletions, design documents, results.

use replication::engine::{Phase, StartedFrom};
use serde_json::{Value, json};

use crate::fixture::{World, counts, newest};

#[tokio::test]
async fn everything_is_copied_once() {
    let world = World::new().await;
    world.put_docs(0..20);
    world.put(&json!({"_id": "_design/d", "language": "javascript"}));
    let first = world.replicate(json!({})).await;
    world.assert_same();
    assert_eq!(counts(&first), [21, 21, 21, 21, 0]);
    assert_eq!(first.result["replication_id_version"], 4);
    assert_eq!(first.result["session_id"], newest(&first)["session_id"]);
    assert_eq!(newest(&first)["start_last_seq"], 0);
    assert_eq!(newest(&first)["docs_written"], 21);
    assert_eq!(
        newest(&first)["recorded_seq"],
        first.result["source_last_seq"]
    );
    assert_eq!(
        (first.progress.phase, first.progress.started_from),
        (Phase::Ended, StartedFrom::Zero)
    );

    // Nothing to do: the same checkpoint again.
    let second = world.replicate(json!({})).await;
    assert_eq!(second.result["no_changes"], true);
    assert_eq!(second.result["session_id"], first.result["session_id"]);
    assert_eq!(second.progress.started_from, StartedFrom::Checkpoint);
    assert_eq!(counts(&second), counts(&first), "numbers are cumulative");

    // Six more, a deletion, an update.
    world.put_docs(20..26);
    let third = world.replicate(json!({})).await;
    assert_eq!(counts(&third), [27, 27, 27, 27, 0]);
    assert_eq!(third.result["history"].as_array().unwrap().len(), 2);
    let rev = world.source.get("a", "doc0003").unwrap().unwrap()["_rev"].clone();
    world.put(&json!({"_id": "doc0003", "_rev": rev, "_deleted": true}));
    let fourth = world.replicate(json!({})).await;
    assert_eq!(counts(&fourth), [28, 28, 28, 28, 0]);
    assert_eq!(world.target().get("b", "doc0003").unwrap(), None);
    world.assert_same();
}

#[tokio::test]
async fn an_empty_source_leaves_nothing() {
    let world = World::new().await;
    let outcome = world.replicate(json!({})).await;
    assert_eq!(Value::Object(outcome.result), json!({"no_changes": true}));
    assert_eq!(world.source.contents("a").unwrap().locals.len(), 0);
}

#[tokio::test]
async fn bodies_stay_as_they_are() {
    let world = World::new().await;
    for (n, body) in [
        r#""z":1,"a":{"y":1,"x":[]}"#,
        r#""n":[1.10,-0.0,1e2,123456789012345678901234567890,5e-324]"#,
        r#""text":"\u00e9 \ud83d\ude00 \u0000 \" \\ / \t""#,
        r#""":{"":""}," ":null"#,
    ]
    .iter()
    .enumerate()
    {
        let id = ["a/b c", "é%2F+", "_x", "1-2"][n].trim_start_matches('_');
        let json = format!(r#"{{"_id":"{id}",{body}}}"#);
        let rev = world.source.put("a", &json).unwrap();
        // The second revision takes another way than the first.
        world
            .source
            .put("a", &format!(r#"{{"_id":"{id}-2",{body}}}"#))
            .unwrap();
        world
            .source
            .put(
                "a",
                &format!(r#"{{"_id":"{id}","_rev":"{rev}",{body},"more":1}}"#),
            )
            .unwrap();
    }
    world.replicate(json!({})).await;
    world.assert_same();
}

#[tokio::test]
async fn batches_and_workers_of_any_size() {
    for (batch, workers) in [(1, 1), (3, 4), (100, 2), (7, 1)] {
        let world = World::new().await;
        world.put_docs(0..120);
        let options =
            json!({"worker_batch_size": batch, "worker_processes": workers, "http_connections": 1});
        let outcome = world.replicate(options).await;
        assert_eq!(
            counts(&outcome),
            [120, 120, 120, 120, 0],
            "{batch} {workers}"
        );
        world.assert_same();
    }
}

#[tokio::test]
async fn targets_are_created_if_asked_for() {
    let world = World::new().await;
    world.put_docs(0..3);
    let url = world.target().database_url("new");
    let params = json!({"q": "2", "n": "1"});
    let error = world
        .try_replicate(json!({"target": url, "create_target_params": params}))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_info(),
        json!({"error": "db_not_found", "reason": format!("could not open {url}/")})
    );
    assert_eq!(world.target().count("PUT", "/new*"), 0);

    world
        .replicate(json!({"target": url, "create_target": true, "create_target_params": params}))
        .await;
    let requests = world.target().requests();
    let created = requests
        .iter()
        .find(|request| request.is("PUT", "/new*"))
        .unwrap();
    assert_eq!((created.query.as_str(), created.status), ("q=2&n=1", 201));
    assert_eq!(world.target().contents("new").unwrap().documents.len(), 3);
    // It is there now, which is no error.
    world
        .replicate(json!({"target": url, "create_target": true}))
        .await;
}

#[tokio::test]
async fn since_seq_counts_without_checkpoint_only() {
    let world = World::new().await;
    world.put_docs(0..5);
    let third = world.source_seq_after(3).await;
    let outcome = world.replicate(json!({"since_seq": third})).await;
    assert_eq!(counts(&outcome), [2, 2, 2, 2, 0]);
    assert_eq!(outcome.progress.started_from, StartedFrom::SinceSeq);
    assert_eq!(world.target_ids(), ["doc0003", "doc0004"]);
    world.put_docs(5..6);
    let outcome = world.replicate(json!({"since_seq": third})).await;
    assert_eq!(outcome.progress.started_from, StartedFrom::Checkpoint);
    assert_eq!(counts(&outcome), [3, 3, 3, 3, 0]);
    // Another place to start is another replication.
    let outcome = world
        .replicate(json!({"since_seq": world.source_seq_after(4).await}))
        .await;
    assert_eq!(outcome.progress.started_from, StartedFrom::SinceSeq);
    assert_eq!(counts(&outcome)[0], 2);
}

impl World {
    /// The sequence of the nth change.
    pub(crate) async fn source_seq_after(&self, n: u64) -> Value {
        let endpoint = couch::Endpoint::from_url(&self.source.database_url("a")).unwrap();
        let database = self
            .network
            .database(endpoint, couch::RequestOptions::default())
            .await
            .unwrap();
        let request = couch::ChangesRequest {
            limit: Some(n),
            ..couch::ChangesRequest::default()
        };
        let mut feed = database.changes(&request).await.unwrap();
        while feed.next().await.unwrap().is_some() {}
        serde_json::from_str(feed.last_seq().unwrap().as_json()).unwrap()
    }
}

#[tokio::test]
async fn servers_may_count_as_they_like() {
    for seqs in [
        peer::SeqForm::Number,
        peer::SeqForm::Array,
        peer::SeqForm::Opaque,
    ] {
        let world = World::with(peer::Options {
            seqs,
            ..peer::Options::default()
        })
        .await;
        world.put_docs(0..250);
        world.replicate(json!({})).await;
        world.put_docs(250..255);
        let outcome = world.replicate(json!({})).await;
        assert_eq!(counts(&outcome)[0], 255);
        world.assert_same();
    }
}
