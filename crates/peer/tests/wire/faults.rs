//! Faults of single requests.

use std::time::Duration;

use peer::{Fault, Faults, On, Options, Peer};
use reqwest::{Client, Response};
use tokio::time::Instant;

const LONG: Duration = Duration::from_secs(20);

pub(crate) fn client() -> Client {
    Client::builder()
        .timeout(LONG)
        .pool_max_idle_per_host(0)
        .build()
        .unwrap()
}

/// A peer with a database whose first document read meets a fault.
async fn faulty(fault: Fault) -> (Peer, String) {
    let peer = Peer::start(Options::default()).await.unwrap();
    peer.create_database("db").unwrap();
    peer.put("db", r#"{"_id":"a","text":"0123456789"}"#)
        .unwrap();
    peer.set_faults(Faults::script([(On::get("/db/a").nth(1), fault)]));
    let url = format!("{}/a", peer.database_url("db"));
    (peer, url)
}

async fn get(url: &str) -> reqwest::Result<Response> {
    client().get(url).send().await
}

/// Whether the answer breaks off, be it before its head has left.
async fn breaks_off(url: &str) -> bool {
    match get(url).await {
        Ok(answer) => answer.text().await.is_err(),
        Err(_) => true,
    }
}

/// The document as it is without any fault.
async fn whole(url: &str) -> String {
    get(url).await.unwrap().text().await.unwrap()
}

#[tokio::test]
async fn statuses_and_answers() {
    let (peer, url) = faulty(Fault::Status {
        status: 429,
        retry_after: Some("7".to_owned()),
    })
    .await;
    let refused = get(&url).await.unwrap();
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["retry-after"]),
        (429, &"7".parse().unwrap())
    );
    assert!(refused.text().await.unwrap().contains("too_many_requests"));
    assert!(whole(&url).await.contains("0123456789"), "it happens once");
    assert_eq!(peer.injected().len(), 1);
    assert_eq!(peer.count("GET", "/db/a"), 2);

    let (_peer, url) = faulty(Fault::Status {
        status: 503,
        retry_after: Some("date+3600".to_owned()),
    })
    .await;
    let refused = get(&url).await.unwrap();
    let date = refused.headers()["retry-after"]
        .to_str()
        .unwrap()
        .to_owned();
    assert!(date.ends_with(" GMT") && refused.status() == 503, "{date}");

    let (_peer, url) = faulty(Fault::Answer {
        status: 418,
        headers: vec![("X-Tea".to_owned(), "green".to_owned())],
        body: "potato".to_owned(),
    })
    .await;
    let answer = get(&url).await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), answer.headers()["x-tea"].clone()),
        (418, "green".parse().unwrap())
    );
    assert_eq!(answer.text().await.unwrap(), "potato");
}

#[tokio::test]
async fn bodies_that_end_too_early() {
    let (_peer, url) = faulty(Fault::CutBody { after_bytes: 5 }).await;
    assert!(breaks_off(&url).await);
    let whole = whole(&url).await;

    let (_peer, url) = faulty(Fault::TruncateBody { after_bytes: 5 }).await;
    let short = get(&url).await.unwrap();
    assert_eq!(short.content_length(), None);
    assert_eq!(short.text().await.unwrap(), whole[..5]);
}

#[tokio::test]
async fn bodies_that_are_slow_or_endless() {
    let (_peer, url) = faulty(Fault::Dribble).await;
    let first = whole(&url).await;
    assert_eq!(first, whole(&url).await);

    let (_peer, url) = faulty(Fault::SlowBody {
        bytes_per_second: 1000,
    })
    .await;
    let begun = Instant::now();
    assert_eq!(whole(&url).await, first);
    assert!(begun.elapsed() >= Duration::from_millis(40));

    let (_peer, url) = faulty(Fault::EndlessBody).await;
    let mut endless = get(&url).await.unwrap();
    let mut bytes = 0;
    while bytes < 1 << 20 {
        bytes += endless.chunk().await.unwrap().unwrap().len();
    }
}

#[tokio::test]
async fn lengths_that_are_wrong() {
    let (_peer, url) = faulty(Fault::DeclareLength { by: 3 }).await;
    assert!(breaks_off(&url).await, "three bytes do not come");
    let length = whole(&url).await.len() as u64;

    let (_peer, url) = faulty(Fault::DeclareLength { by: -3 }).await;
    let answer = get(&url).await.unwrap();
    assert_eq!(answer.content_length(), Some(length - 3));
}

#[tokio::test]
async fn connections_that_break() {
    let (_peer, url) = faulty(Fault::Reset).await;
    assert!(get(&url).await.is_err());
    whole(&url).await;

    // The request takes effect, but its response is lost.
    let (peer, _) = faulty(Fault::Reset).await;
    peer.set_faults(Faults::script([(
        On::put("/db/b").nth(1),
        Fault::LoseAnswer,
    )]));
    let url = format!("{}/b", peer.database_url("db"));
    assert!(client().put(&url).body("{}").send().await.is_err());
    assert!(peer.get("db", "b").unwrap().is_some());
    let lost = peer
        .requests()
        .into_iter()
        .find(|request| request.method == "PUT");
    assert_eq!(lost.unwrap().status, 0);
}

#[tokio::test]
async fn a_refusal_before_the_body_is_read() {
    let (peer, _) = faulty(Fault::Reset).await;
    let refuse = Fault::RefuseEarly {
        status: 413,
        after_bytes: 10,
    };
    peer.set_faults(Faults::script([(On::post("*/_bulk_docs"), refuse)]));
    let url = format!("{}/_bulk_docs", peer.database_url("db"));
    let docs = format!(
        r#"{{"docs":[{{"_id":"big","text":"{}"}}]}}"#,
        "x".repeat(100)
    );
    let request = client()
        .post(&url)
        .header("content-type", "application/json");
    let refused = request.body(docs).send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 413);
    assert_eq!(refused.headers()["connection"], "close");
    assert!(peer.get("db", "big").unwrap().is_none());
}

#[tokio::test]
async fn a_hang_ends_with_the_clients_patience() {
    let (_peer, url) = faulty(Fault::Hang).await;
    let hasty = Client::builder()
        .timeout(Duration::from_millis(100))
        .build();
    let error = hasty.unwrap().get(&url).send().await.unwrap_err();
    assert!(error.is_timeout());
    whole(&url).await;
}
