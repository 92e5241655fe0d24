//! Too much of everything.

use std::io::Write as _;

use api::Options;
use axum::body::Body;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::{StreamExt as _, stream};
use http::Method;
use serde_json::json;
use tokio::time::Instant;

use crate::fixture::{Fixture, Setting};

fn options() -> Options {
    Options {
        request_bytes_max: 100_000,
        bodies_bytes_max: 150_000,
        body_timeout_sec: 5,
        request_timeout_sec: 60,
        ..Options::default()
    }
}

#[tokio::test]
async fn bodies_have_an_end() {
    let options = Options {
        bodies_bytes_max: 1_000_000,
        ..options()
    };
    let fixture = Fixture::with(options, Setting::default()).await;
    let root = fixture.root().with("content-type", "application/json");
    let fits = format!("{{\"keys\":[]{}}}", " ".repeat(99_989));
    assert_eq!(fits.len(), 100_000);
    let answer = root.send(Method::POST, "/_dbs_info", fits.clone()).await;
    assert_eq!(answer.status, 200);
    let large = root
        .send(Method::POST, "/_dbs_info", format!("{fits} "))
        .await;
    large.refuses(413, "too_large", "the request entity is too large");
    let declared = root.clone().with("content-length", "100001");
    assert_eq!(
        declared.send(Method::POST, "/_dbs_info", "").await.status,
        413
    );
    // A hundred kilobytes that become a hundred megabytes.
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    for _ in 0..100 {
        bomb.write_all(&vec![b' '; 1_000_000]).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() <= 100_000);
    let zipped = root.clone().with("content-encoding", "gzip");
    assert_eq!(
        zipped.send(Method::POST, "/_dbs_info", bomb).await.status,
        413
    );
    let mut small = GzEncoder::new(Vec::new(), Compression::fast());
    small.write_all(b"{\"keys\":[]}").unwrap();
    let small = small.finish().unwrap();
    assert_eq!(
        zipped.send(Method::POST, "/_dbs_info", small).await.status,
        200
    );
    assert_eq!(
        zipped.send(Method::POST, "/_dbs_info", "{}").await.status,
        400
    );
    let odd = root.clone().with("content-encoding", "br");
    assert_eq!(odd.send(Method::POST, "/_dbs_info", "{}").await.status, 415);
    // All room is free again.
    assert_eq!(
        root.send(Method::POST, "/_dbs_info", fits).await.status,
        200
    );
}

#[tokio::test(start_paused = true)]
async fn who_does_not_go_on_is_given_up() {
    let fixture = Fixture::with(options(), Setting::default()).await;
    let root = fixture.root().with("content-type", "application/json");
    let stuck = stream::iter([Ok::<_, std::io::Error>("{\"keys\"")]).chain(stream::pending());
    let answer = root
        .send(Method::POST, "/_dbs_info", Body::from_stream(stuck))
        .await;
    answer.refuses(408, "timeout", "Timed out reading the request body.");
}

#[tokio::test]
async fn bodies_share_room() {
    let fixture = Fixture::with(options(), Setting::default()).await;
    let root = fixture.root().with("content-type", "application/json");
    let (sender, receiver) = tokio::sync::oneshot::channel::<&str>();
    let (reading, read) = tokio::sync::oneshot::channel();
    let first = stream::iter([Ok::<_, std::io::Error>(" ".repeat(90_000))]);
    let rest = stream::once(async move {
        reading.send(()).unwrap();
        Ok(receiver.await.unwrap().to_owned())
    });
    let slow = root.send(
        Method::POST,
        "/_dbs_info",
        Body::from_stream(first.chain(rest)),
    );
    let other = async {
        // The slow one holds most of the room by then.
        read.await.unwrap();
        let busy = root
            .send(Method::POST, "/_dbs_info", " ".repeat(90_000))
            .await;
        sender.send("{\"keys\":[]}").unwrap();
        busy
    };
    let (slow, busy) = tokio::join!(slow, other);
    assert_eq!(slow.status, 200);
    assert_eq!(busy.status, 503);
    assert_eq!(busy.header("retry-after"), "1");
}

/// Bodies whose values take far more memory than their text.
#[tokio::test]
async fn values_are_counted() {
    let fixture = Fixture::with(Options::default(), Setting::default()).await;
    let root = fixture.root().with("content-type", "application/json");
    let many = format!("{{\"keys\":[{}0]}}", "[],".repeat(1_000_000));
    let answer = root.send(Method::POST, "/_dbs_info", many.clone()).await;
    let reason = "the JSON has more than 1000000 values; split the request";
    answer.refuses(413, "too_large", reason);
    let deep = format!("{{\"keys\":{}{}}}", "[".repeat(200), "]".repeat(200));
    let answer = root.send(Method::POST, "/_dbs_info", deep).await;
    let reason = "the JSON is nested more than 127 levels deep";
    answer.refuses(400, "bad_request", reason);
    // Less room than the values of one request take.
    let options = Options {
        request_bytes_max: 4_000_000,
        bodies_bytes_max: 50_000_000,
        ..Options::default()
    };
    let fixture = Fixture::with(options, Setting::default()).await;
    let root = fixture.root().with("content-type", "application/json");
    let answer = root.send(Method::POST, "/_dbs_info", many).await;
    answer.refuses(413, "too_large", "the request entity is too large");
    // A document is parsed, too.
    let document = format!(
        "{{\"source\":\"http://s/\",\"target\":\"http://t/\",\"x\":[{}0]}}",
        "0,".repeat(900_000)
    );
    let bulk = format!("{{\"docs\":[{document}]}}");
    for (method, path, body) in [
        (Method::PUT, "/_replicator/x", document.clone()),
        (Method::POST, "/_replicator", document),
        (Method::POST, "/_replicator/_bulk_docs", bulk),
    ] {
        let answer = root.send(method, path, body).await;
        answer.refuses(413, "too_large", "the request entity is too large");
    }
    let docs = format!("{{\"docs\":[{}{{}}]}}", "{},".repeat(10_000));
    let answer = root
        .send(Method::POST, "/_replicator/_bulk_docs", docs.clone())
        .await;
    answer.refuses(413, "max_bulk_docs_count_exceeded", "10000");
    let answer = root
        .send(Method::POST, "/_replicator/_bulk_get", docs)
        .await;
    answer.refuses(413, "max_bulk_get_count_exceeded", "10000");
}

#[tokio::test]
async fn expensive_selectors_are_refused() {
    let fixture = Fixture::with(Options::default(), Setting::default()).await;
    let root = fixture.root().with("content-type", "application/json");
    let text = "a".repeat(5_000);
    let document = format!("{{\"_id\":\"_design/x\",\"x\":\"{text}\"}}");
    let put = root
        .send(Method::PUT, "/_replicator/_design/x", document)
        .await;
    assert_eq!(put.status, 201);
    let selector = r#"{"selector":{"x":{"$regex":"^(?:(a+)\\1?)+b"}}}"#;
    let changes = "/_replicator/_changes?filter=_selector";
    let answer = root.send(Method::POST, changes, selector).await;
    assert_eq!(answer.gives(400)["error"], "filter_too_expensive");
}

#[tokio::test(start_paused = true)]
async fn slow_logins_take_no_permits() {
    let options = Options {
        anonymous_requests_max: 2,
        ..Options::default()
    };
    let fixture = Fixture::with(options, Setting::default()).await;
    let anonymous = fixture.anonymous();
    let slow = async || {
        let stuck = stream::iter([Ok::<_, std::io::Error>("{")]).chain(stream::pending());
        let json = anonymous.clone().with("content-type", "application/json");
        json.send(Method::POST, "/_session", Body::from_stream(stuck))
            .await
    };
    let others = async {
        anonymous.get("/").await.gives(200);
        let login = json!({"name": "root", "password": "s3cret"});
        anonymous.post("/_session", &login).await.gives(200);
    };
    let began = Instant::now();
    let (first, second, third, ()) = tokio::join!(biased; slow(), slow(), slow(), others);
    for slow in [first, second, third] {
        slow.refuses(408, "timeout", "Timed out reading the request body.");
    }
    assert!(began.elapsed().as_secs() < 10);
}
