//! Connections: how many, how long, and whose.

use std::sync::Arc;

use couch::{Endpoint, Error, RequestOptions, WantedRev};
use tokio::sync::Notify;

use crate::fake::{Fake, Step, impatient, json, network, network_with, open};

const INFO: &str = r#"{"update_seq":1,"instance_start_time":"0"}"#;

#[tokio::test]
async fn an_endpoint_uses_so_many_connections_and_no_more() {
    let go = Arc::new(Notify::new());
    let waiting = Arc::clone(&go);
    let fake = Fake::new(move |_| {
        vec![
            Step::Wait(Arc::clone(&waiting)),
            Step::Send(json(200, INFO)),
        ]
    })
    .await;
    let options = RequestOptions {
        http_connections: 3,
        ..impatient()
    };
    let endpoint = Endpoint::from_url(&fake.url("/db")).unwrap();
    let db = network().database(endpoint, options).await.unwrap();
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let db = db.clone();
        asking.spawn(async move { db.info().await.unwrap() });
    }
    for _ in 0..10 {
        go.notify_one();
        asking.join_next().await.unwrap().unwrap();
    }
    assert_eq!(fake.seen().len(), 10);
    assert!(fake.busy_max() <= 3);
    assert!(fake.connections() <= 3);
}

#[tokio::test]
async fn databases_of_one_server_share_idle_connections() {
    let fake = Fake::new(|_| vec![Step::Send(json(200, INFO))]).await;
    let network = network();
    for path in ["/a", "/b", "/c"] {
        let endpoint = Endpoint::from_url(&fake.url(path)).unwrap();
        network
            .database(endpoint, impatient())
            .await
            .unwrap()
            .info()
            .await
            .unwrap();
    }
    assert_eq!(fake.connections(), 1);
    drop(network);
    fake.all_closed().await;
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let fake = Fake::new(|_| vec![Step::Send(json(200, INFO))]).await;
    let network = network_with(|options| options.connection_close_interval = 100);
    let endpoint = Endpoint::from_url(&fake.url("/db")).unwrap();
    let db = network.database(endpoint, impatient()).await.unwrap();
    db.info().await.unwrap();
    fake.all_closed().await;
    db.info().await.unwrap();
    assert_eq!(fake.connections(), 2);
}

#[tokio::test]
async fn connections_with_unread_requests_are_not_used_again() {
    let fake = Fake::new(|seen| {
        let reply = match seen.path() {
            "/db/_bulk_docs" => json(413, r#"{"error":"too_large"}"#),
            "/db/_bulk_get" => json(400, r#"{"error":"bad_request"}"#),
            _ => json(200, INFO),
        };
        vec![Step::Send(reply)]
    })
    .await;
    let db = open(&fake).await;
    let error = db.bulk_docs(&["{}".into()]).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge(_)));
    let wanted = [WantedRev {
        id: "a".into(),
        rev: Some("1-a".into()),
        atts_since: Vec::new(),
    }];
    assert!(matches!(
        db.bulk_get(&wanted, false).await,
        Err(Error::Refused(_))
    ));
    db.info().await.unwrap();
    let connections: Vec<_> = fake.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 1, 2]);
}

#[tokio::test]
async fn servers_that_close_are_believed() {
    let fake = Fake::new(|_| {
        let reply = crate::fake::answer(200, &[("Connection", "close")], INFO.as_bytes());
        vec![Step::Send(reply), Step::Close]
    })
    .await;
    let db = open(&fake).await;
    for _ in 0..3 {
        db.info().await.unwrap();
    }
    assert_eq!(fake.connections(), 3);
}

#[tokio::test]
async fn connections_that_died_while_idle_are_replaced() {
    let fake = Fake::new(|_| vec![Step::Send(json(200, INFO)), Step::Close]).await;
    let db = open(&fake).await;
    for _ in 0..5 {
        db.info().await.unwrap();
        fake.all_closed().await;
    }
    assert_eq!(fake.connections(), 5);
}
