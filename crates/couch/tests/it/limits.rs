//! 429, `Retry-After`, and what they slow down.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use couch::{Endpoint, Error, RateLimitScope};

use crate::fake::{Fake, Step, answer, impatient, json, network, network_with, open};

const INFO: &str = r#"{"update_seq":1,"instance_start_time":"0"}"#;

/// Answers so many times by `refusal` before it works.
async fn refusing(times: usize, refusal: Vec<u8>) -> Fake {
    let count = AtomicUsize::new(0);
    Fake::new(move |_| {
        let before = count.fetch_add(1, Ordering::SeqCst);
        vec![Step::Send(if before < times {
            refusal.clone()
        } else {
            json(200, INFO)
        })]
    })
    .await
}

#[tokio::test]
async fn too_many_requests_cost_no_retries() {
    for refusal in [
        json(429, "{}"),
        answer(429, &[("Retry-After", "0")], b"slow down"),
        answer(503, &[("Retry-After", "0")], b"slow down"),
    ] {
        let fake = refusing(4, refusal).await;
        open(&fake).await.info().await.unwrap();
        assert_eq!(fake.seen().len(), 5);
    }
    let fake = refusing(1, json(503, "{}")).await;
    assert!(matches!(
        open(&fake).await.info().await,
        Err(Error::Failed { attempts: 1, .. })
    ));
}

#[tokio::test]
async fn the_limit_is_the_whole_nodes() {
    let fake = refusing(1, answer(429, &[("Retry-After", "60")], b"")).await;
    let network = network();
    let open = |path: &str| {
        let endpoint = Endpoint::from_url(&fake.url(path)).unwrap();
        let network = network.clone();
        async move { network.database(endpoint, impatient()).await.unwrap() }
    };
    let (first, again, other) = (open("/db").await, open("/db/").await, open("/other").await);
    for db in [&first, &again] {
        let error = db.info().await.unwrap_err();
        assert!(matches!(error, Error::MaxBackoff { .. }), "{error:?}");
    }
    assert_eq!(fake.seen().len(), 1, "nothing more is sent");
    other.info().await.unwrap();
    first.create(&[]).await.unwrap();
    assert_eq!(
        fake.seen().len(),
        3,
        "other databases and methods are not slowed down"
    );
}

#[tokio::test]
async fn a_server_that_is_given_up_is_tried_again() {
    let fake = refusing(1, answer(429, &[("Retry-After", "60")], b"")).await;
    let db = open(&fake).await;
    for seconds in [0, 30, 15] {
        pass(seconds).await;
        let error = db.info().await.unwrap_err();
        assert!(matches!(error, Error::MaxBackoff { .. }), "{error:?}");
    }
    assert_eq!(fake.seen().len(), 1, "nothing is sent meanwhile");
    pass(60).await;
    db.info().await.unwrap();
}

/// Lets time pass while no request is sent.
async fn pass(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn the_limit_can_be_the_hosts() {
    let fake = refusing(1, answer(429, &[("Retry-After", "60")], b"")).await;
    let network = network_with(|options| options.rate_limit_scope = RateLimitScope::Host);
    for path in ["/db", "/other"] {
        let endpoint = Endpoint::from_url(&fake.url(path)).unwrap();
        let db = network.database(endpoint, impatient()).await.unwrap();
        assert!(matches!(db.info().await, Err(Error::MaxBackoff { .. })));
    }
    assert_eq!(fake.seen().len(), 1);
}
