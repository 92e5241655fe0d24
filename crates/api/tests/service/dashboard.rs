//! The dashboard's files, and what they draw.

use http::Method;
use serde_json::json;

use crate::fixture::Fixture;

#[tokio::test]
async fn the_files_are_served_to_anybody_and_hold_nothing() {
    let fixture = Fixture::new().await;
    let page = fixture.nobody().get("/_dashboard").await;
    assert_eq!(
        (page.status.as_u16(), page.header("location")),
        (302, "_dashboard/")
    );
    for (path, content_type) in [
        ("/_dashboard/", "text/html; charset=utf-8"),
        ("/_dashboard/index.html", "text/html; charset=utf-8"),
        ("/_dashboard/app.js", "text/javascript; charset=utf-8"),
        ("/_dashboard/app.css", "text/css; charset=utf-8"),
    ] {
        let answer = fixture.nobody().get(path).await;
        assert_eq!(answer.status.as_u16(), 200, "{path}");
        assert_eq!(answer.header("content-type"), content_type);
        assert_eq!(answer.header("cache-control"), "no-cache");
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'self';") && !policy.contains("unsafe"));
        // Whoever has it needs it once.
        let etag = answer.header("etag").to_owned();
        let again = fixture.nobody().with("if-none-match", &etag);
        let again = again.get(path).await;
        assert_eq!((again.status.as_u16(), again.text.as_str()), (304, ""));
        let other = fixture.nobody().with("if-none-match", "\"old\"");
        assert_eq!(other.get(path).await.status.as_u16(), 200);
        // Where to log in is shown to whoever has a wrong password.
        let wrong = fixture.user("root", "wrong").get(path).await;
        assert_eq!(wrong.status.as_u16(), 200);
    }
    let missing = fixture.nobody().get("/_dashboard/app.rs").await;
    missing.refuses(404, "not_found", "missing");
    let put = (fixture.root())
        .send(Method::PUT, "/_dashboard/app.js", "alert()")
        .await;
    assert_eq!(
        (put.status.as_u16(), put.header("allow")),
        (405, "GET,HEAD")
    );
}

#[tokio::test]
async fn the_page_does_what_its_policy_allows() {
    let fixture = Fixture::new().await;
    let page = fixture.nobody().get("/_dashboard/").await.text;
    for forbidden in ["<style", " style=", "<script>", " onclick="] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    let script = fixture.nobody().get("/_dashboard/app.js").await.text;
    for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "eval("] {
        assert!(!script.contains(forbidden), "{forbidden}");
    }
}

#[tokio::test]
async fn a_summary_is_for_administrators() {
    let fixture = Fixture::new().await;
    let refused = fixture.nobody().get("/_scheduler/summary").await;
    refused.refuses(401, "unauthorized", "You are not a server admin.");
    let summary = fixture.root().get("/_scheduler/summary").await.gives(200);
    assert_eq!(
        (&summary["exact"], &summary["nodes"]),
        (&json!(true), &json!([]))
    );
    assert_eq!(summary["jobs"]["running"], 0);
}
