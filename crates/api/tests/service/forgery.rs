//! Requests of other sites.

use api::{Cors, Options};
use aws_lc_rs::hmac;
use http::Method;
use serde_json::json;

use crate::fixture::{Fixture, Setting, User};

async fn logged_in(fixture: &Fixture) -> User<'_> {
    let login = json!({"name": "root", "password": "s3cret"});
    let answer = fixture.anonymous().post("/_session", &login).await;
    fixture.anonymous().with("cookie", answer.cookie())
}

const REASON: &str = "The request comes from another site.";

#[tokio::test]
async fn a_cookie_alone_changes_nothing() {
    let options = Options {
        trusted_origins: vec!["https://proxy.example".to_owned()],
        ..Options::default()
    };
    let fixture = Fixture::with(options, Setting::default()).await;
    let browser = logged_in(&fixture).await;
    let keys = json!({"keys": []});
    for own in ["http://here.example", "https://proxy.example"] {
        let page = browser.clone().with("origin", own);
        page.post("/_dbs_info", &keys).await.gives(200);
    }
    browser.post("/_dbs_info", &keys).await.gives(200);
    for other in [
        "http://evil.example",
        "null",
        "http://here.example.evil",
        "here.example",
    ] {
        let page = browser.clone().with("origin", other);
        page.post("/_dbs_info", &keys)
            .await
            .refuses(403, "forbidden", REASON);
        page.delete("/_session")
            .await
            .refuses(403, "forbidden", REASON);
        // Reading is harmless: no script of another origin sees the answer.
        page.get("/_session").await.gives(200);
    }
    let page = browser.clone().with("sec-fetch-site", "cross-site");
    page.post("/_dbs_info", &keys)
        .await
        .refuses(403, "forbidden", REASON);
    let form = browser.clone().with("content-type", "text/plain");
    assert_eq!(
        form.send(Method::POST, "/_dbs_info", "{}").await.status,
        415
    );
    // A password is sent on purpose.
    let script = fixture.root().with("origin", "http://evil.example");
    script.post("/_dbs_info", &keys).await.gives(200);
}

/// Browsers send the headers of a proxy that logs users in with every request, like a cookie.
#[tokio::test]
async fn the_word_of_a_proxy_alone_changes_nothing() {
    let secret = b"the proxy's secret".to_vec();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
    let signed = hmac::sign(&key, b"anna");
    let token = wire::hex(signed.as_ref());
    let setting = Setting {
        proxy_secrets: vec![secret],
        ..Setting::default()
    };
    let fixture = Fixture::with(Options::default(), setting).await;
    fixture
        .root()
        .put("/_jobs/mail", &json!({}))
        .await
        .gives(201);
    let anna = fixture
        .anonymous()
        .with("x-auth-couchdb-username", "anna")
        .with("x-auth-couchdb-roles", "_admin")
        .with("x-auth-couchdb-token", &token);
    let pause = "/_jobs/mail/_pause";
    let form = anna.clone().with("content-type", "text/plain");
    let evil = form.clone().with("origin", "https://evil.example");
    evil.send(Method::POST, pause, "{}")
        .await
        .refuses(403, "forbidden", REASON);
    let unknown = form.clone().with("sec-fetch-site", "cross-site");
    unknown
        .send(Method::POST, pause, "{}")
        .await
        .refuses(403, "forbidden", REASON);
    assert_eq!(form.send(Method::POST, pause, "{}").await.status, 415);
    let own = anna.clone().with("origin", "http://here.example");
    for allowed in [anna, own] {
        allowed.post(pause, &json!({})).await.gives(200);
    }
}

#[tokio::test]
async fn nobody_is_logged_in_by_another_site() {
    let fixture = Fixture::new().await;
    let login = json!({"name": "root", "password": "s3cret"});
    let page = fixture.anonymous().with("origin", "http://evil.example");
    page.post("/_session", &login)
        .await
        .refuses(403, "forbidden", REASON);
}

#[tokio::test]
async fn origins_read_answers_when_they_are_listed() {
    let options = Options {
        cors: Cors {
            origins: vec!["https://app.example".to_owned()],
            credentials: true,
            ..Cors::default()
        },
        ..Options::default()
    };
    let fixture = Fixture::with(options, Setting::default()).await;
    let app = fixture.anonymous().with("origin", "https://app.example");
    let answer = app.get("/").await;
    assert_eq!(
        answer.header("access-control-allow-origin"),
        "https://app.example"
    );
    assert_eq!(answer.header("access-control-allow-credentials"), "true");
    assert!(
        answer
            .header("access-control-expose-headers")
            .contains("etag")
    );
    assert_eq!(answer.header("vary"), "Origin");
    let ask = app.clone().with("access-control-request-method", "PUT");
    let asked = ask.send(Method::OPTIONS, "/_replicator/x", "").await;
    assert_eq!(asked.status, 204);
    assert!(asked.header("access-control-allow-methods").contains("PUT"));
    assert!(
        asked
            .header("access-control-allow-headers")
            .contains("content-type")
    );
    let evil = fixture.anonymous().with("origin", "https://evil.example");
    assert_eq!(
        evil.get("/").await.header("access-control-allow-origin"),
        ""
    );
    let ask = evil.clone().with("access-control-request-method", "PUT");
    let asked = ask.send(Method::OPTIONS, "/_replicator/x", "").await;
    assert_eq!(asked.header("access-control-allow-methods"), "");
    // By default there are no other origins at all.
    let closed = Fixture::new().await;
    let app = closed.anonymous().with("origin", "https://app.example");
    assert_eq!(app.get("/").await.header("access-control-allow-origin"), "");
}
