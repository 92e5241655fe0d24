//! Calls about replications.

use std::sync::Arc;

use ::jobs::{Acceptor, Holder};
use couch::{EgressOptions, NamedSecret, Network, NetworkOptions};
use docstore::{DocStore, Edit, EditMode};
use document::doc::Doc;
use peer::{Fault, Faults, On, Peer};
use replication::engine::Budget;
use rules::deliver::{EventCalls, EventOptions};
use scheduler::{Options, Rank, Replications, Server, ServerSetup, Setup, Writer};
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Fixture;
use crate::endpoint::Endpoint;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Replications whose events go to an endpoint, and a node that runs them.
async fn replications(fixture: &Fixture, endpoint: &Endpoint) -> (Replications, JoinSet<()>) {
    let events = EventOptions {
        url: endpoint.url("/events"),
        secret: "events".into(),
        ..EventOptions::default()
    };
    let events = EventCalls::new(fixture.deliveries.clone(), &events).unwrap();
    let setup = Setup {
        events: Some(Arc::new(events)),
        options: Options {
            min_backoff_penalty_sec: 0,
            lagging_after_sec: 1,
            stats_update_interval_sec: 0,
            connection_timeout: 2_000,
            retries_per_request: 30,
            ..Options::default()
        },
        ..Setup::default()
    };
    let docs = DocStore::new(fixture.jobs.store().clone(), docstore::Options::default());
    let replications = Replications::open(fixture.jobs.clone(), docs, setup)
        .await
        .unwrap();
    let holder = Holder::new("node").unwrap();
    let (acceptor, handle) = Acceptor::new(
        fixture.jobs.clone(),
        replications.job_type().clone(),
        holder.clone(),
    );
    let network = NetworkOptions {
        egress: EgressOptions::open(),
        ..NetworkOptions::default()
    };
    let setup = ServerSetup {
        node: holder,
        network: Network::new(network, [2; 32]).unwrap(),
        budget: Budget::default(),
    };
    let (server, _) = Server::new(replications.clone(), handle, setup);
    let mut tasks = JoinSet::new();
    tasks.spawn(acceptor.run(CancellationToken::new()));
    tasks.spawn(server.run(CancellationToken::new()));
    (replications, tasks)
}

async fn write(replications: &Replications, body: &Value) {
    let db = replications.create_database("_replicator").await.unwrap();
    let writer = Writer::User {
        name: Some("joe".to_owned()),
        rank: Rank::Member,
    };
    let edit = Edit::new("one", Doc::parse(&body.to_string()).unwrap()).unwrap();
    let edit = replications.prepare(&db, edit, &writer).unwrap();
    let hook = replications.hook(writer);
    replications
        .docs()
        .put(&db, &edit, EditMode::NewEdits, &hook)
        .await
        .unwrap();
}

pub(crate) async fn failed_and_recovered_replications_are_reported(mut fixture: Fixture) {
    let endpoint = Endpoint::with_status(204).await;
    let secret = json!({"origins": [endpoint.url("")], "signing": SECRET});
    fixture.secrets.insert(
        "events".into(),
        NamedSecret::parse(secret.as_object().unwrap()).unwrap(),
    );
    let _node = fixture.node();
    let (replications, _tasks) = replications(&fixture, &endpoint).await;
    let peer = Peer::start(peer::Options::default()).await.unwrap();
    peer.create_database("b").unwrap();
    let body = json!({"source": peer.database_url("late"), "target": peer.database_url("b")});
    write(&replications, &body).await;

    let failed = endpoint.received(1).await.remove(0);
    Webhook::new(SECRET)
        .unwrap()
        .verify(&failed.body, &failed.headers)
        .unwrap();
    let failed: Value = serde_json::from_slice(&failed.body).unwrap();
    assert_eq!(failed["type"], "replication.failed");
    let data = &failed["data"];
    assert_eq!(
        (&data["state"], &data["database"], &data["doc_id"]),
        (&json!("crashing"), &json!("_replicator"), &json!("one"))
    );
    assert_eq!(
        data["source"],
        json!(format!("{}/", peer.database_url("late")))
    );
    assert!(
        data["reason"].as_str().unwrap().starts_with("db_not_found"),
        "{data}"
    );

    // The next attempt finds it.
    peer.create_database("late").unwrap();
    let recovered = endpoint.received(2).await.remove(1);
    let recovered: Value = serde_json::from_slice(&recovered.body).unwrap();
    assert_eq!(recovered["type"], "replication.recovered");
    let data = &recovered["data"];
    assert_eq!(
        (&data["state"], &data["doc_id"], &data["reason"]),
        (&json!("completed"), &json!("one"), &Value::Null)
    );
    let calls = fixture.all().await;
    assert_eq!(calls.len(), 2, "an event in between was reported, too");
    assert!(calls.iter().all(|shown| shown.rule == "_events"));
}

/// A replication whose target does not respond is behind without failing, once it has something to copy.
pub(crate) async fn lagging_replications_are_reported(mut fixture: Fixture) {
    let endpoint = Endpoint::with_status(204).await;
    let secret = json!({"origins": [endpoint.url("")], "signing": SECRET});
    fixture.secrets.insert(
        "events".into(),
        NamedSecret::parse(secret.as_object().unwrap()).unwrap(),
    );
    let _node = fixture.node();
    let (replications, _tasks) = replications(&fixture, &endpoint).await;
    let peer = Peer::start(peer::Options::default()).await.unwrap();
    for name in ["a", "b"] {
        peer.create_database(name).unwrap();
    }
    peer.put("a", r#"{"_id":"one"}"#).unwrap();
    let hangs = || Faults::script([(On::post("/b/*"), Fault::Hang)]);
    peer.set_faults(hangs());
    let (source, target) = (peer.database_url("a"), peer.database_url("b"));
    let body = json!({"source": source, "target": target, "continuous": true});
    write(&replications, &body).await;

    // Each time it is told once, however long it lasts.
    for (nth, doc) in ["two", "three"].into_iter().enumerate() {
        let lagging = endpoint.received(2 * nth + 1).await.remove(2 * nth);
        let lagging: Value = serde_json::from_slice(&lagging.body).unwrap();
        assert_eq!(lagging["type"], "replication.lagging");
        let data = &lagging["data"];
        assert_eq!(
            (&data["state"], &data["doc_id"]),
            (&json!("running"), &json!("one"))
        );
        let reason = data["reason"].as_str().unwrap();
        assert!(reason.starts_with("has not caught up since 20"), "{reason}");

        peer.set_faults(Faults::none());
        let recovered = endpoint.received(2 * nth + 2).await.remove(2 * nth + 1);
        let recovered: Value = serde_json::from_slice(&recovered.body).unwrap();
        assert_eq!(recovered["type"], "replication.recovered");
        peer.set_faults(hangs());
        peer.put("a", &json!({"_id": doc}).to_string()).unwrap();
    }
}
