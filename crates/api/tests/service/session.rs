//! Logging in and out.

use api::{Options, SameSite};
use http::Method;
use serde_json::json;

use crate::fixture::{Fixture, Setting};

#[tokio::test]
async fn a_session_is_begun_renewed_and_ended() {
    let fixture = Fixture::new().await;
    let anonymous = fixture.anonymous();
    let login = json!({"name": "root", "password": "s3cret"});
    let answer = anonymous.post("/_session", &login).await;
    let expected = json!({"ok": true, "name": "root", "roles": ["_admin"]});
    assert_eq!(answer.gives(200), expected);
    let attributes = "; Version=1; Expires=Tue, 14-Nov-2023 22:23:20 GMT; Max-Age=600; Path=/; HttpOnly; SameSite=Strict";
    assert!(answer.header("set-cookie").ends_with(attributes));
    let form = anonymous
        .clone()
        .with("content-type", "application/x-www-form-urlencoded");
    let by_form = form
        .send(Method::POST, "/_session", "name=root&password=s3cret")
        .await;
    assert_eq!(by_form.cookie(), answer.cookie());

    let browser = anonymous.clone().with("cookie", answer.cookie());
    let session = browser.get("/_session").await;
    assert_eq!(
        session.gives(200)["userCtx"],
        json!({"name": "root", "roles": ["_admin"]})
    );
    assert_eq!(session.json()["info"]["authenticated"], "cookie");
    assert_eq!(session.header("set-cookie"), "", "it is fresh");
    fixture.clock.set_skew_ms(120_000);
    let renewed = browser.get("/_all_dbs").await;
    assert_eq!(renewed.status, 200);
    assert!(renewed.header("set-cookie").starts_with("AuthSession="));
    assert_ne!(renewed.cookie(), answer.cookie());
    fixture.clock.set_skew_ms(600_000);
    assert_eq!(browser.get("/_all_dbs").await.status, 401);
    assert_eq!(
        browser.get("/_session").await.gives(200)["userCtx"]["name"],
        json!(null)
    );

    let ended = browser.delete("/_session").await;
    assert_eq!(ended.gives(200), json!({"ok": true}));
    assert!(ended.header("set-cookie").contains("Max-Age=0"));
}

#[tokio::test]
async fn wrong_passwords_are_all_the_same() {
    let fixture = Fixture::new().await;
    let anonymous = fixture.anonymous();
    for login in [
        json!({"name": "root", "password": "wrong"}),
        json!({"name": "anonymous", "password": "s3cret"}),
        json!({"name": "root"}),
        json!({}),
    ] {
        let answer = anonymous.post("/_session", &login).await;
        answer.refuses(401, "unauthorized", "Name or password is incorrect.");
        assert!(answer.header("set-cookie").starts_with("AuthSession=;"));
    }
    let list = anonymous.post("/_session", &json!([])).await;
    list.refuses(400, "bad_request", "Request body must be a JSON object");
    let please = anonymous.get("/_session?basic=true").await;
    please.refuses(401, "unauthorized", "Please login.");
    let junk = anonymous
        .clone()
        .with("cookie", "AuthSession=junk")
        .get("/")
        .await;
    assert_eq!(junk.status, 400);
}

#[tokio::test]
async fn guessing_is_slowed_down() {
    let fixture = Fixture::new().await;
    let guess = json!({"name": "root", "password": "wrong"});
    let mut last = None;
    for _ in 0..8 {
        last = Some(fixture.anonymous().post("/_session", &guess).await);
    }
    let last = last.unwrap();
    assert_eq!(last.status, 429);
    assert_ne!(last.header("retry-after"), "");
}

#[tokio::test]
async fn users_are_documents() {
    let fixture = Fixture::new().await;
    fixture
        .add_user("joe", "joes password", &["writers", "_admin"])
        .await;
    let joe = fixture.user("joe", "joes password");
    let session = joe.get("/_session").await.gives(200);
    assert_eq!(
        session["userCtx"],
        json!({"name": "joe", "roles": ["writers"]})
    );
    assert_eq!(session["info"]["authenticated"], "default");
    joe.get("/_all_dbs")
        .await
        .refuses(401, "unauthorized", "You are not a server admin.");
}

#[tokio::test]
async fn redirects_after_a_login_stay_here() {
    let fixture = Fixture::new().await;
    let login = json!({"name": "root", "password": "s3cret"});
    let answer = fixture
        .anonymous()
        .post("/_session?next=/_utils", &login)
        .await;
    assert_eq!(answer.status, 302);
    assert_eq!(answer.header("location"), "http://here.example/_utils");
    let away = fixture
        .anonymous()
        .post("/_session?next=//evil.example", &login)
        .await;
    assert_eq!((away.status.as_u16(), away.header("location")), (200, ""));
}

#[tokio::test]
async fn anonymous_callers_can_be_refused_altogether() {
    let options = Options {
        require_valid_user: true,
        same_site: SameSite::None,
        secure_cookies: true,
        ..Options::default()
    };
    let fixture = Fixture::with(options, Setting::default()).await;
    let refused = fixture.anonymous().get("/_uuids").await;
    refused.refuses(401, "unauthorized", "Authentication required.");
    for open in ["/", "/_up", "/_session"] {
        assert_eq!(fixture.anonymous().get(open).await.status, 200, "{open}");
    }
    let login = json!({"name": "root", "password": "s3cret"});
    let answer = fixture.anonymous().post("/_session", &login).await;
    assert!(
        answer
            .header("set-cookie")
            .ends_with("; SameSite=None; Secure")
    );
}
