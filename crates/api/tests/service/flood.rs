//! Anonymous callers who send too much, too slowly or too often: administrators are still answered.

use api::Options;
use axum::body::Body;
use futures::stream::{self, FuturesUnordered, StreamExt as _};
use http::Method;
use serde_json::json;
use tokio::time::{Duration, sleep};

use crate::fixture::{Fixture, Setting};

/// A body whose first byte never comes.
fn stuck() -> Body {
    Body::from_stream(stream::pending::<Result<&str, std::io::Error>>())
}

fn crowded() -> Options {
    Options {
        requests_max: 4,
        ..Options::default()
    }
}

#[tokio::test(start_paused = true)]
async fn slow_bodies_of_anonymous_callers_leave_room_for_others() {
    let fixture = Fixture::with(crowded(), Setting::default()).await;
    fixture.add_user("anna", "password", &[]).await;
    let anonymous = fixture.anonymous().with("content-type", "application/json");
    let mut slow: FuturesUnordered<_> = (0..600)
        .map(|_| anonymous.send(Method::POST, "/_session", stuck()))
        .collect();
    // All of them are on their way.
    assert!(futures::poll!(slow.next()).is_pending());
    for _ in 0..10 {
        assert_eq!(fixture.root().get("/_all_dbs").await.status, 200);
        let anna = fixture.user("anna", "password");
        assert_eq!(anna.get("/_users/org.couchdb.user:anna").await.status, 200);
        assert!(futures::poll!(slow.next()).is_pending());
    }
}

#[tokio::test]
async fn a_login_is_small() {
    let fixture = Fixture::new().await;
    let login = json!({"name": "root", "password": "x".repeat(20_000)});
    let large = fixture.anonymous().post("/_session", &login).await;
    large.refuses(413, "too_large", "the request entity is too large");
    let zipped = fixture.anonymous().with("content-encoding", "gzip");
    let zipped = zipped.send(Method::POST, "/_session", "{}").await;
    assert_eq!(zipped.status, 415);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_trickles_is_given_up() {
    let fixture = Fixture::new().await;
    let root = fixture.root().with("content-type", "application/json");
    let drops = stream::repeat(()).then(async |()| {
        sleep(Duration::from_secs(1)).await;
        Ok::<_, std::io::Error>(" ")
    });
    let answer = root
        .send(Method::POST, "/_dbs_info", Body::from_stream(drops))
        .await;
    answer.refuses(408, "timeout", "The request body arrives too slowly.");
    // One that comes steadily may take its time.
    let steady = stream::iter(0..30).then(async |n| {
        sleep(Duration::from_secs(1)).await;
        let spaces = " ".repeat(1000);
        let end = "{\"keys\":[]}".to_owned();
        Ok::<_, std::io::Error>(if n == 29 { end } else { spaces })
    });
    let answer = root
        .send(Method::POST, "/_dbs_info", Body::from_stream(steady))
        .await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn parallel_guesses_are_counted_before_they_are_judged() {
    let fixture = Fixture::new().await;
    let anonymous = fixture.anonymous();
    let guesses = (0..100).map(async |n| {
        let guess = json!({"name": "root", "password": format!("guess {n}")});
        anonymous.post("/_session", &guess).await.status.as_u16()
    });
    let statuses = futures::future::join_all(guesses).await;
    let judged = statuses.iter().filter(|status| **status == 401).count();
    assert!(judged <= 6, "{judged} of 100 guesses were judged");
}

#[tokio::test]
async fn wrong_logins_fill_a_queue_that_administrators_pass() {
    const QUEUE_MAX: usize = api::auth::hashing::QUEUE_MAX;
    let options = Options {
        trusted_proxies: vec!["10.0.0.1".to_owned()],
        ..Options::default()
    };
    let fixture = Fixture::with(options, Setting::default()).await;
    let guess = async |n: u16| {
        let user = fixture.user(&format!("user {n}"), "guess");
        let user = user.with(
            "x-forwarded-for",
            &format!("198.51.{}.{}", n / 256, n % 256),
        );
        user.get("/_session").await
    };
    let mut guesses: FuturesUnordered<_> = (0..500).map(guess).collect();
    // Those that find no room in the queue are answered at once.
    for _ in QUEUE_MAX..500 {
        let refused = guesses.next().await.unwrap();
        assert_eq!(refused.status, 503, "{}", refused.text);
        assert_eq!(refused.header("retry-after"), "1");
    }
    assert!(
        futures::poll!(guesses.next()).is_pending(),
        "the others wait"
    );
    fixture.root().get("/_all_dbs").await.gives(200);
    assert!(guesses.len() >= QUEUE_MAX - 4, "it was not last");
}

#[tokio::test]
async fn one_password_sent_often_at_once_is_one_guess() {
    let fixture = Fixture::new().await;
    let asked = (0..30).map(async |_| fixture.root().get("/_all_dbs").await.status.as_u16());
    let statuses = futures::future::join_all(asked).await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
}

#[tokio::test]
async fn users_cannot_make_logins_expensive() {
    let fixture = Fixture::new().await;
    let user = |iterations: u64| {
        json!({
            "type": "user", "name": "joe", "roles": [], "password_scheme": "pbkdf2",
            "pbkdf2_prf": "sha256", "iterations": iterations, "salt": "salt",
            "derived_key": "ae4d0c95af6b46d32d0adff928f06dd02a303f8ef3c251dfd6e2d85a95474c43",
        })
    };
    let path = "/_users/org.couchdb.user:joe";
    let refused = fixture.root().put(path, &user(1_000_001)).await;
    let reason = "`iterations` must be at most 1000000";
    refused.refuses(403, "forbidden", reason);
    fixture.root().put(path, &user(1_000_000)).await.gives(201);
}
