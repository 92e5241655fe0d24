//! API tokens, and schedules.

use http::Method;
use serde_json::{Value, json};

use crate::fixture::{Fixture, Setting, User};
use crate::jobs::{TABLE, claim, finish, fixture};

/// A token with these rights; its text, and a client that sends it.
pub(crate) async fn token<'a>(fixture: &'a Fixture, name: &str, new: Value) -> (String, User<'a>) {
    let mut body = json!({"name": name});
    for (member, value) in new.as_object().unwrap() {
        body[member] = value.clone();
    }
    let made = fixture.root().post("/_tokens", &body).await.gives(201);
    let text = made["token"].as_str().unwrap().to_owned();
    let user = fixture
        .anonymous()
        .with("authorization", &format!("Bearer {text}"));
    (text, user)
}

/// Tokens get what users with one role get, but never an administrator's rights.
#[tokio::test]
async fn every_route_has_its_right_for_tokens() {
    let fixture = fixture().await;
    let root = fixture.root();
    root.put("/_jobs/news", &json!({})).await.gives(201);
    let mut users = Vec::new();
    for right in ["enqueue", "work", "read"] {
        let new = json!({"rights": [right], "types": ["mail"], "expires_sec": 60});
        users.push(token(&fixture, right, new).await.1);
    }
    let all = json!(["enqueue", "work", "read"]);
    users.push(
        token(&fixture, "other", json!({"rights": all, "types": ["news"]}))
            .await
            .1,
    );
    users.push(token(&fixture, "gone", json!({"rights": all})).await.1);
    root.delete("/_tokens/gone").await.gives(200);
    users.push(
        token(&fixture, "over", json!({"rights": all, "expires_sec": 1}))
            .await
            .1,
    );
    fixture.clock.set_skew_ms(2_000);
    for row in TABLE.trim().lines() {
        let columns: Vec<&str> = row.split_whitespace().collect();
        let (method, path): (Method, _) = (columns[0].parse().unwrap(), columns[1]);
        let other = if path == "/_jobs" { "200" } else { "403" };
        let others = [other, "gone", "gone"];
        let expected = columns[2..5].iter().chain(&others);
        for (user, expected) in users.iter().zip(expected) {
            let expected = match *expected {
                "gone" => 401,
                "401" => 403,
                status => status.parse().unwrap(),
            };
            let json = user.clone().with("content-type", "application/json");
            let answer = json.send(method.clone(), path, r#"{"x":1}"#).await;
            assert_eq!(answer.status, expected, "{row}: {}", answer.text);
        }
    }
    let seen = users[2].get("/_jobs").await.gives(200);
    assert_eq!(seen["types"].as_array().unwrap().len(), 1);
    assert_eq!(users[0].get("/_jobs").await.gives(200)["types"], json!([]));
}

#[tokio::test]
async fn tokens_are_for_jobs_only() {
    let options = api::Options {
        require_valid_user: true,
        ..api::Options::default()
    };
    let fixture = Fixture::with(options, Setting::default()).await;
    let root = fixture.root();
    root.put("/_jobs/mail", &json!({})).await.gives(201);
    let all = json!({"rights": ["enqueue", "work", "read"]});
    let (text, ci) = token(&fixture, "ci", all.clone()).await;
    for path in [
        "/_all_dbs",
        "/_uuids",
        "/_users",
        "/_replicator",
        "/_replicator/doc",
        "/_tokens",
        "/_schedules",
        "/_scheduler/jobs",
        "/_metrics",
        "/_users/org.couchdb.user:token:ci",
    ] {
        assert_eq!(ci.get(path).await.status, 403, "{path}");
    }
    assert_eq!(ci.post("/_replicate", &json!({})).await.status, 403);
    assert_eq!(ci.post("/_tokens", &all).await.status, 403);
    let session = ci.get("/_session").await.gives(200);
    assert_eq!(session["userCtx"], json!({"name": "token:ci", "roles": []}));
    assert_eq!(session["info"]["authenticated"], "token");
    // A whole life.
    ci.post("/_jobs/mail", &json!({"id": "a", "data": 1}))
        .await
        .gives(201);
    let job = claim(&ci, 1, 0).await.remove(0);
    assert_eq!(finish(&ci, &job, json!({"outcome": "done"})).await.0, "ok");
    assert_eq!(
        ci.get("/_jobs/mail/a").await.gives(200)["state"],
        "finished"
    );
    let tokens = root.get("/_tokens").await;
    assert!(!tokens.text.contains(&text));
    let row = &tokens.gives(200)["tokens"][0];
    assert_eq!(
        (
            &row["name"],
            &row["created_by"],
            &row["expires"],
            &row["types"]
        ),
        (&json!("ci"), &json!("root"), &Value::Null, &Value::Null)
    );
    let twice = root
        .post("/_tokens", &json!({"name": "ci", "rights": ["read"]}))
        .await;
    twice.gives(409);
    // Other ways to log in still work.
    assert_eq!(fixture.anonymous().get("/_jobs").await.status, 401);
    let other = fixture.anonymous().with("authorization", "Bearer a.b.c");
    assert_eq!(other.get("/_jobs").await.status, 401);
    root.delete("/_tokens/ci").await.gives(200);
    assert_eq!(root.delete("/_tokens/ci").await.status, 404);
    let refused = ci.get("/_jobs").await.gives(401);
    assert!(
        refused["reason"].to_string().contains("revoked"),
        "{refused}"
    );
}

#[tokio::test]
async fn schedules_are_made_shown_run_and_removed() {
    let fixture = fixture().await;
    let root = fixture.root();
    let nightly = json!({"type": "mail", "job": {"data": {"a": 1}, "class": "bulk"}, "cron": "30 2 * * *", "zone": "Europe/Berlin"});
    let put = root.put("/_schedules/nightly", &nightly).await.gives(201);
    assert_eq!(put["next"], "2023-11-15T01:30:00.000Z");
    root.put("/_schedules/nightly", &nightly).await.gives(200);
    let shown = root.get("/_schedules/nightly").await.gives(200);
    assert_eq!(
        (
            &shown["next"],
            &shown["overlap"],
            &shown["catch_up"],
            &shown["last"]
        ),
        (&put["next"], &json!("skip"), &json!("one"), &Value::Null)
    );
    assert_eq!(
        shown["job"],
        json!({"data": {"a": 1}, "class": "bulk", "on_exists": "replace"})
    );
    let all = root.get("/_schedules").await.gives(200);
    assert_eq!(all["schedules"], json!([shown]));
    root.put("/_schedules/weekly", &nightly).await.gives(201);
    let first = root.get("/_schedules?limit=1").await.gives(200);
    assert_eq!(
        (&first["schedules"], &first["next"]),
        (&json!([shown]), &json!("nightly"))
    );
    let rest = root.get("/_schedules?limit=1&after=nightly").await;
    let rest = rest.gives(200);
    assert_eq!(
        (&rest["schedules"][0]["name"], &rest["next"]),
        (&json!("weekly"), &Value::Null)
    );
    root.delete("/_schedules/weekly").await.gives(200);
    let run = root
        .post("/_schedules/nightly/_run", &Value::Null)
        .await
        .gives(201);
    let job = claim(&root, 1, 0).await.remove(0);
    assert_eq!((&job["id"], &job["data"]), (&run["id"], &json!({"a": 1})));
    for (bad, reason) in [
        (
            json!({"type": "mail", "job": {"data": 1}, "cron": "61 * * * *"}),
            "not valid as minute",
        ),
        (
            json!({"type": "none", "job": {"data": 1}, "every_sec": 5}),
            "PUT /_jobs/none",
        ),
        (
            json!({"type": "mail", "job": {"data": 1}, "every": 5}),
            "`every` is unknown; use `type`, `job`, `cron`, `every_sec`, ",
        ),
    ] {
        let answer = root.put("/_schedules/bad", &bad).await;
        assert!(
            matches!(answer.status.as_u16(), 400 | 404),
            "{}",
            answer.text
        );
        assert!(answer.text.contains(reason), "{}", answer.text);
    }
    root.delete("/_schedules/nightly").await.gives(200);
    assert_eq!(root.get("/_schedules/nightly").await.status, 404);
    assert_eq!(root.delete("/_schedules/nightly").await.status, 404);
}
