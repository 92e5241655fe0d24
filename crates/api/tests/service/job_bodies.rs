//! `/_jobs`, `/_schedules` and `/_tokens`: bodies that are refused.

use http::Method;
use serde_json::json;

use crate::jobs::{fixture, fixture_with};

const REASON: &str = "Request body must be a JSON object";

#[tokio::test]
async fn a_body_that_is_no_object_is_refused() {
    let fixture = fixture().await;
    let root = fixture.root();
    let json = root.clone().with("content-type", "application/json");
    let requests = [
        (Method::PUT, "/_jobs/arr", "[45]"),
        (Method::POST, "/_jobs/mail", r#"["a",1]"#),
        (Method::POST, "/_jobs/mail/_claim", r#"["w1"]"#),
        (Method::POST, "/_jobs/mail/_finish", "[[],null,null]"),
        (Method::POST, "/_jobs/mail/_beat", "[[]]"),
        (Method::POST, "/_jobs/mail/_retry", r#"["dead"]"#),
        (
            Method::PUT,
            "/_schedules/s",
            r#"["mail",null,null,60,{"data":1}]"#,
        ),
        (Method::POST, "/_tokens", r#"["arr1",null,["read"],null]"#),
    ];
    for (method, path, array) in requests {
        for body in [array, "[]", "7", "\"a\"", "null", "", " \n"] {
            let answer = json.send(method.clone(), path, body).await;
            answer.refuses(400, "bad_request", REASON);
        }
        let answer = json.send(method, path, "[").await;
        answer.refuses(400, "bad_request", "invalid UTF-8 JSON");
    }
    let made = root.get("/_tokens").await.gives(200)["tokens"].clone();
    assert_eq!(made, json!([]));
}

#[tokio::test]
async fn no_body_keeps_the_settings_of_a_type() {
    let fixture = fixture_with(json!({"limits": {"a": 1}, "max_pending": 5})).await;
    let root = fixture.root();
    let json = root.clone().with("content-type", "application/json");
    for body in ["", "[]"] {
        let put = json.send(Method::PUT, "/_jobs/mail", body).await;
        put.refuses(400, "bad_request", REASON);
    }
    let settings = root.get("/_jobs/mail/_type").await.gives(200)["settings"].clone();
    assert_eq!(
        (&settings["limits"], &settings["max_pending"]),
        (&json!({"a": 1}), &json!(5))
    );
}

#[tokio::test]
async fn an_entry_that_is_no_object_is_refused_by_its_number() {
    let fixture = fixture().await;
    let root = fixture.root();
    let many = json!({"jobs": [{"data": 1}, 7, ["a", 1]]});
    let rows = root.post("/_jobs/mail", &many).await.gives(201)["results"].clone();
    assert_eq!(rows[0]["ok"], true);
    for (nth, found) in [(1, "a number"), (2, "a list")] {
        let reason = format!(
            "entry {} of `jobs` must be a JSON object, not {found}",
            nth + 1
        );
        assert_eq!(
            rows[nth],
            json!({"error": "bad_request", "reason": reason, "id": null})
        );
    }
    let lock = "1";
    let beats = json!({"jobs": [{"id": "a", "lock": lock}, ["a", lock]]});
    let ends = json!({"jobs": [{"id": "a", "lock": lock, "outcome": "done"}, 7]});
    for (path, body) in [("_beat", beats), ("_finish", ends)] {
        let answer = root.post(&format!("/_jobs/mail/{path}"), &body).await;
        let reason = answer.gives(400)["reason"].to_string();
        let expected = "\"entry 2 of `jobs` must be a JSON object";
        assert!(reason.starts_with(expected), "{reason}");
    }
}

#[tokio::test]
async fn a_member_that_is_no_object_is_refused() {
    let fixture = fixture().await;
    let json = fixture.root().with("content-type", "application/json");
    for (method, path, body, member) in [
        (Method::PUT, "/_jobs/arr", r#"{"retry":[3]}"#, "`retry`"),
        (Method::PUT, "/_jobs/arr", r#"{"roles":[["a"]]}"#, "`roles`"),
        (
            Method::PUT,
            "/_schedules/s",
            r#"{"type":"mail","job":["a",1]}"#,
            "`job`",
        ),
    ] {
        let answer = json.send(method, path, body).await;
        let reason = format!("{member} must be a JSON object, not a list");
        answer.refuses(400, "bad_request", &reason);
    }
    let rate = json
        .send(Method::PUT, "/_jobs/arr", r#"{"limits":{"a":[10,1]}}"#)
        .await;
    let reason = rate.gives(400)["reason"].to_string();
    assert!(reason.starts_with("\"`limits.a` must be"), "{reason}");
    json.get("/_jobs/arr").await.gives(404);
}

/// They are not ignored: a misspelt one could mean another request.
#[tokio::test]
async fn requests_without_members_refuse_some() {
    let fixture = fixture().await;
    let json = fixture.root().with("content-type", "application/json");
    let schedule = r#"{"type":"mail","job":{"data":1},"every_sec":3600}"#;
    json.send(Method::PUT, "/_schedules/s", schedule)
        .await
        .gives(201);
    for path in [
        "/_jobs/mail/_pause",
        "/_jobs/mail/_resume",
        "/_jobs/mail/a/_retry",
        "/_schedules/s/_run",
    ] {
        let refused = json.send(Method::POST, path, r#"{"delay_sec":5}"#).await;
        let reason = "`delay_sec` is unknown: this request has no members; send `{}`, or no body";
        refused.refuses(400, "bad_request", reason);
        let refused = json.send(Method::POST, path, "[1]").await;
        refused.refuses(400, "bad_request", REASON);
    }
    for body in ["", "{}", " {} "] {
        json.send(Method::POST, "/_jobs/mail/_resume", body)
            .await
            .gives(200);
        json.send(Method::POST, "/_schedules/s/_run", body)
            .await
            .gives(201);
    }
    let paused = fixture.root().get("/_jobs/mail/_type").await.gives(200)["paused"].clone();
    assert_eq!(paused, false);
}

/// A misspelt one would list or remove something else.
#[tokio::test]
async fn a_parameter_that_is_unknown_is_refused() {
    let fixture = fixture().await;
    let root = fixture.root();
    root.post("/_jobs/mail", &json!({"id": "a", "data": 1}))
        .await
        .gives(201);
    let refused = |known: &str| format!("`states` is unknown; use {known}");
    for (path, known) in [
        ("/_jobs", "`q`, `limit`, `after`"),
        ("/_jobs/mail", "`state`, `limit`, `after`, `data`"),
        ("/_jobs/mail/_failures", "`state`"),
        ("/_jobs/mail/a/_wait", "`timeout_sec`"),
        ("/_schedules", "`limit`, `after`"),
    ] {
        let answer = root.get(&format!("{path}?states=dead")).await;
        answer.refuses(400, "query_parse_error", &refused(known));
    }
    let none = "`states` is unknown; this request has no parameters";
    for path in ["/_jobs/mail", "/_jobs/mail/a"] {
        let answer = root.delete(&format!("{path}?states=dead")).await;
        answer.refuses(400, "query_parse_error", none);
    }
    root.get("/_jobs/mail/a?states=dead")
        .await
        .refuses(400, "query_parse_error", none);
    root.get("/_jobs/mail/a").await.gives(200);
}

#[tokio::test]
async fn a_time_that_is_refused_says_why() {
    let fixture = fixture().await;
    let root = fixture.root();
    let form = "`due` must be a time such as `2030-01-31T08:00:00Z` or `2030-01-31T09:00:00+01:00`";
    let late = "`due` is too far in the future";
    for (due, reason) in [
        ("9999-12-31T23:59:59Z", late),
        ("9999-12-31T23:59:59+01:00", late),
        ("2030-01-31", form),
        ("tomorrow", form),
        ("", form),
        ("ääääääääää", form),
    ] {
        let job = json!({"data": 1, "due": due});
        let answer = root.post("/_jobs/mail", &job).await;
        answer.refuses(400, "bad_request", reason);
    }
}
