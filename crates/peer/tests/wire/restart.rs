//! Restarts, sessions and clocks.

use std::time::Duration;

use peer::{Fault, Faults, On, Options, Peer};
use reqwest::StatusCode;

use crate::faults::client;

async fn with_admin() -> Peer {
    let options = Options {
        admin: Some(("anna".to_owned(), "secret".to_owned())),
        ..Options::default()
    };
    let peer = Peer::start(options).await.unwrap();
    peer.create_database("db").unwrap();
    peer.put("db", r#"{"_id":"a"}"#).unwrap();
    peer
}

/// Logs in; returns the cookie.
async fn log_in(peer: &Peer) -> String {
    let form = "name=anna&password=secret";
    let request = client()
        .post(format!("{}/_session", peer.url()))
        .header("content-type", "application/x-www-form-urlencoded");
    let answer = request.body(form).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let cookie = answer.headers()["set-cookie"].to_str().unwrap();
    cookie.split(';').next().unwrap().to_owned()
}

async fn read(peer: &Peer, cookie: &str) -> StatusCode {
    let url = format!("{}/a", peer.database_url("db"));
    let request = client().get(url).header("cookie", cookie);
    request.send().await.unwrap().status()
}

#[tokio::test]
async fn sessions_are_lost_and_data_is_not() {
    let peer = with_admin().await;
    let cookie = log_in(&peer).await;
    assert_eq!(read(&peer, &cookie).await, StatusCode::OK);
    let address = peer.address();
    peer.restart(Duration::from_millis(1)).await;
    assert_eq!(peer.address(), address);
    assert_eq!(read(&peer, &cookie).await, StatusCode::UNAUTHORIZED);
    let cookie = log_in(&peer).await;
    assert_eq!(read(&peer, &cookie).await, StatusCode::OK);
    peer.end_sessions();
    assert_eq!(read(&peer, &cookie).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn feeds_are_cut_by_a_restart() {
    let peer = Peer::start(Options::default()).await.unwrap();
    peer.create_database("db").unwrap();
    let url = format!("{}/_changes?feed=continuous", peer.database_url("db"));
    let mut feed = client().get(url).send().await.unwrap();
    peer.put("db", r#"{"_id":"a"}"#).unwrap();
    assert!(feed.chunk().await.unwrap().is_some());
    peer.restart(Duration::ZERO).await;
    // Heartbeats that were under way may still come.
    while let Ok(chunk) = feed.chunk().await {
        assert!(chunk.is_some(), "a cut is no end");
    }
    let begins_again = client().get(peer.database_url("db")).send().await;
    assert_eq!(begins_again.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_request_may_cause_one() {
    let peer = with_admin().await;
    let cookie = log_in(&peer).await;
    peer.set_faults(Faults::script([(
        On::any("/db/a").nth(1),
        Fault::Restart { down_ms: 0 },
    )]));
    let url = format!("{}/a", peer.database_url("db"));
    assert!(client().get(&url).send().await.is_err());
    let back = async {
        while client().get(peer.url()).send().await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), back)
        .await
        .unwrap();
    assert_eq!(read(&peer, &cookie).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_clock_that_is_wrong_ends_sessions() {
    let peer = with_admin().await;
    let cookie = log_in(&peer).await;
    peer.set_clock_skew(3600);
    assert_eq!(read(&peer, &cookie).await, StatusCode::UNAUTHORIZED);
    let cookie = log_in(&peer).await;
    assert_eq!(read(&peer, &cookie).await, StatusCode::OK);
    let answer = client().get(peer.url()).send().await.unwrap();
    assert!(answer.headers().contains_key("date"));
}
