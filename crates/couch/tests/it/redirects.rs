//! Redirects, and what does not travel along.

use couch::{Error, Failure};
use serde_json::json;

use crate::fake::{Fake, Step, answer, endpoint, impatient, json, network};

const INFO: &str = r#"{"update_seq":1,"instance_start_time":"0"}"#;

fn to(status: u16, location: &str) -> Vec<u8> {
    answer(status, &[("Location", location)], b"")
}

async fn ask(fake: &Fake) -> Result<couch::DatabaseInfo, Error> {
    let endpoint = endpoint(json!({
        "url": format!("http://user:pass@{}/db", fake.address),
        "headers": { "X-Key": "secret", "Cookie": "own=1" },
    }));
    network()
        .database(endpoint, impatient())
        .await
        .unwrap()
        .info()
        .await
}

#[tokio::test]
async fn within_an_origin_credentials_stay() {
    for status in [301, 302, 303, 307, 308] {
        let fake = Fake::answering(&[
            ("/db/", to(status, "../new/db?x=1")),
            ("/new/db", json(200, INFO)),
        ])
        .await;
        ask(&fake).await.unwrap();
        let last = fake.seen().pop().unwrap();
        assert_eq!(last.target, "/new/db?x=1");
        assert_eq!(last.header("authorization"), Some("Basic dXNlcjpwYXNz"));
        assert_eq!(last.header("x-key"), Some("secret"));
    }
}

#[tokio::test]
async fn other_origins_get_nothing_of_ours() {
    let other = Fake::answering(&[("/db", json(200, INFO))]).await;
    for location in [
        other.url("/db"),
        format!("//{}/db", other.address),
        format!("http://u:p@{}/db#f", other.address),
    ] {
        let fake = Fake::answering(&[("/db/", to(302, &location))]).await;
        ask(&fake).await.unwrap();
        let last = other.seen().pop().unwrap();
        for name in ["authorization", "cookie", "x-key"] {
            assert_eq!(last.header(name), None, "{name}");
        }
        assert_eq!(last.header("accept"), Some("application/json"));
        assert_eq!(last.target, "/db");
    }
}

#[tokio::test]
async fn nothing_comes_back_after_an_excursion() {
    let home = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let home_url = std::sync::Arc::clone(&home);
    let relay = Fake::new(move |_| vec![Step::Send(to(302, &home_url.lock().unwrap()))]).await;
    let relay_url = relay.url("/");
    let origin = Fake::new(move |seen| {
        let reply = if seen.path() == "/home" {
            json(200, INFO)
        } else {
            to(302, &relay_url)
        };
        vec![Step::Send(reply)]
    })
    .await;
    *home.lock().unwrap() = origin.url("/home");
    ask(&origin).await.unwrap();
    let last = origin.seen().pop().unwrap();
    assert_eq!(
        (last.target.as_str(), last.header("authorization")),
        ("/home", None)
    );
}

#[tokio::test]
async fn bodies_travel_unless_the_result_is_elsewhere() {
    for (status, method, body) in [
        (303, "GET", ""),
        (307, "POST", "{\"a\":[\"1-x\"]}"),
        (308, "POST", "{\"a\":[\"1-x\"]}"),
        (302, "POST", "{\"a\":[\"1-x\"]}"),
    ] {
        let fake = Fake::answering(&[
            ("/db/_revs_diff", to(status, "/there")),
            ("/there", json(200, "{}")),
        ])
        .await;
        let db = network()
            .database(endpoint(json!(fake.url("/db"))), impatient())
            .await
            .unwrap();
        db.revs_diff(&[("a".into(), vec!["1-x".into()])])
            .await
            .unwrap();
        let last = fake.seen().pop().unwrap();
        assert_eq!(
            (
                last.method.as_str(),
                std::str::from_utf8(&last.body).unwrap()
            ),
            (method, body),
            "{status}"
        );
        assert_eq!(last.header("content-type").is_some(), status != 303);
    }
}

#[tokio::test]
async fn redirects_that_lead_nowhere() {
    let fake = Fake::answering(&[("/db/", to(302, "/db/"))]).await;
    let error = ask(&fake).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Failed {
                cause: Failure::BadAnswer(_),
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(fake.seen().len(), 6);
    for location in [
        "ftp://h/db",
        "file:///etc/passwd",
        "http://",
        "http://[::1",
        "javascript:alert(1)",
    ] {
        let fake = Fake::answering(&[("/db/", to(302, location))]).await;
        let error = ask(&fake).await.unwrap_err();
        assert!(matches!(error, Error::BadAnswer { .. }), "{error:?}");
    }
    let fake = Fake::answering(&[("/db/", answer(302, &[], b"{}"))]).await;
    assert_eq!(ask(&fake).await.unwrap_err().status(), Some(302));
}
