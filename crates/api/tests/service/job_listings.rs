//! `/_jobs`: lists of jobs, of their types and of failures.

use http::Method;
use serde_json::{Value, json};

use crate::jobs::{claim, finish, fixture, fixture_with};

#[tokio::test]
async fn jobs_are_listed_by_state_and_followed_to_their_end() {
    let fixture = fixture().await;
    let root = fixture.root();
    let jobs: Vec<_> = (0..7)
        .map(|n| json!({"id": format!("j{n}"), "data": n}))
        .collect();
    root.post("/_jobs/mail", &json!({"jobs": jobs}))
        .await
        .gives(201);
    let (mut path, mut found) = ("/_jobs/mail?limit=3&data=true".to_owned(), Vec::new());
    loop {
        let page = root.get(&path).await.gives(200);
        found.extend(
            page["jobs"]
                .as_array()
                .unwrap()
                .iter()
                .map(|job| job["data"].clone()),
        );
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/_jobs/mail?limit=3&data=true&after={next}");
    }
    assert_eq!(json!(found), json!([0, 1, 2, 3, 4, 5, 6]));
    let job = claim(&root, 1, 0).await.remove(0);
    let id = job["id"].as_str().unwrap();
    let running = root.get("/_jobs/mail?state=running").await.gives(200);
    assert_eq!(running["jobs"][0]["id"], id);
    let wait = format!("/_jobs/mail/{id}/_wait?timeout_sec=0");
    assert_eq!(root.get(&wait).await.gives(200)["state"], "running");
    let (wait, feed) = (
        format!("/_jobs/mail/{id}/_wait"),
        format!("/_jobs/mail/_feed?ids={id}"),
    );
    let ending = async {
        let feed = root.open(Method::GET, &feed, "").await;
        assert_eq!(feed.status(), 200);
        let end = finish(&root, &job, json!({"outcome": "done", "result": 7}));
        let read = axum::body::to_bytes(feed.into_body(), usize::MAX);
        tokio::join!(end, read).1.unwrap()
    };
    let (waited, told) = tokio::join!(root.get(&wait), ending);
    let waited = waited.gives(200);
    assert_eq!(
        (&waited["state"], &waited["result"]),
        (&json!("finished"), &json!(7))
    );
    let told = String::from_utf8(told.to_vec()).unwrap();
    assert!(
        told.contains(r#""state":"running""#) && told.contains(r#""result":7"#),
        "{told}"
    );
}

/// A browser that reconnects after a restart names all jobs again.
#[tokio::test]
async fn a_feed_tells_which_jobs_are_gone() {
    let fixture = fixture().await;
    let root = fixture.root();
    for id in ["a", "b"] {
        let job = json!({"id": id, "data": 1});
        root.post("/_jobs/mail", &job).await.gives(201);
    }
    root.delete("/_jobs/mail/a").await.gives(200);
    let path = "/_jobs/mail/_feed?ids=a,b";
    let feed = root.open(Method::GET, path, "").await;
    assert_eq!(feed.status(), 200);
    let ending = async {
        let job = claim(&root, 1, 0).await.remove(0);
        finish(&root, &job, json!({"outcome": "done"})).await
    };
    let read = axum::body::to_bytes(feed.into_body(), usize::MAX);
    let (told, _) = tokio::join!(read, ending);
    let told = String::from_utf8(told.unwrap().to_vec()).unwrap();
    for part in [r#"{"id":"a","state":"removed"}"#, r#""state":"finished""#] {
        assert!(told.contains(part), "{told}");
    }
    let (_, last) = told.rsplit_once("id: ").unwrap();
    let again = root
        .clone()
        .with("last-event-id", last.lines().next().unwrap());
    assert_eq!(again.get(path).await.status, 204);
    root.delete("/_jobs/mail/b").await.gives(200);
    root.get(path).await.gives(404);
}

/// As in `CouchDB`.
#[tokio::test]
async fn a_limit_of_nothing_lists_nothing() {
    let fixture = fixture().await;
    let root = fixture.root();
    let job = json!({"id": "a", "data": 1});
    root.post("/_jobs/mail", &job).await.gives(201);
    let daily = json!({"type": "mail", "job": {"data": 1}, "every_sec": 86_400});
    root.put("/_schedules/daily", &daily).await.gives(201);
    for (path, rows) in [
        ("/_jobs/mail", "jobs"),
        ("/_jobs", "types"),
        ("/_schedules", "schedules"),
    ] {
        let none = root.get(&format!("{path}?limit=0")).await.gives(200);
        assert_eq!(none, json!({rows: [], "next": null}));
    }
}

#[tokio::test]
async fn own_types_are_counted_for_administrators() {
    let fixture = fixture_with(json!({"roles": {"read": ["auditor"]}})).await;
    let types = fixture.root().get("/_jobs").await.gives(200);
    let names: Vec<_> = types["types"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ty| ty["type"].clone())
        .collect();
    assert!(
        names.contains(&json!("mail")) && names.contains(&json!("webhooks")),
        "{names:?}"
    );
    fixture.add_user("eve", "password", &["auditor"]).await;
    let seen = fixture
        .user("eve", "password")
        .get("/_jobs")
        .await
        .gives(200);
    assert_eq!(seen["types"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn types_are_listed_page_by_page() {
    let fixture = fixture_with(json!({"roles": {"read": ["auditor"]}})).await;
    let root = fixture.root();
    for name in ["a", "b-mail", "c", "d"] {
        root.put(&format!("/_jobs/{name}"), &json!({}))
            .await
            .gives(201);
    }
    fixture.add_user("eve", "password", &["auditor"]).await;
    let names = |page: &Value| -> Vec<String> {
        let types = page["types"].as_array().unwrap().iter();
        let users = types.filter(|ty| ty["internal"] == false);
        users
            .map(|ty| ty["type"].as_str().unwrap().to_owned())
            .collect()
    };
    let (mut path, mut found) = ("/_jobs?limit=2".to_owned(), Vec::new());
    loop {
        let page = root.get(&path).await.gives(200);
        found.push(names(&page));
        // The service's own are at the end.
        let has_own = page["types"].to_string().contains("\"webhooks\"");
        assert_eq!(has_own, page["next"].is_null());
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/_jobs?limit=2&after={next}");
    }
    assert_eq!(found, [vec!["a", "b-mail"], vec!["c", "d"], vec!["mail"]]);
    let mails = root.get("/_jobs?q=mail&limit=9").await.gives(200);
    assert_eq!(names(&mails), ["b-mail", "mail"]);
    assert_eq!(mails["types"].as_array().unwrap().len(), 2);
    // What a user may not read does not fill pages.
    let eve = fixture.user("eve", "password");
    let seen = eve.get("/_jobs?limit=1").await.gives(200);
    assert_eq!(
        (names(&seen), &seen["next"]),
        (vec!["mail".to_owned()], &Value::Null)
    );
    root.get("/_jobs?after=%20").await.gives(400);
}

#[tokio::test]
async fn failures_are_grouped_by_error() {
    let fixture = fixture_with(json!({"retry": {"limit": 0}})).await;
    let root = fixture.root();
    let jobs: Vec<_> = (0..5)
        .map(|n| json!({"id": format!("j{n}"), "data": n}))
        .collect();
    root.post("/_jobs/mail", &json!({"jobs": jobs}))
        .await
        .gives(201);
    for job in claim(&root, 4, 0).await {
        let error = match job["id"].as_str().unwrap() {
            "j0" => json!({"message": "no route"}),
            _ => json!("refused"),
        };
        finish(&root, &job, json!({"outcome": "failed", "error": error})).await;
    }
    let grouped = root.get("/_jobs/mail/_failures").await.gives(200);
    let rows = grouped["failures"].as_array().unwrap();
    let counts: Vec<_> = rows
        .iter()
        .map(|row| (row["error"].as_str().unwrap(), row["count"].as_u64()))
        .collect();
    // Which of them were claimed does not matter.
    let mut expected = [("refused", Some(3)), ("no route", Some(1))].to_vec();
    if counts.len() == 1 {
        expected = vec![("refused", Some(4))];
    }
    assert_eq!(counts, expected);
    assert_eq!(rows[0]["outcome"], "failed");
    let example = rows[0]["example"].as_str().unwrap();
    let shown = root.get(&format!("/_jobs/mail/{example}")).await.gives(200);
    assert_eq!(
        (&shown["state"], &shown["reason"]),
        (&json!("dead"), &json!("refused"))
    );
    assert_eq!(
        (
            &grouped["complete"],
            &grouped["jobs_read"],
            &grouped["other_errors"]
        ),
        (&json!(true), &json!(4), &json!(0))
    );
    // A job that has not run has not failed.
    let pending = root
        .get("/_jobs/mail/_failures?state=pending")
        .await
        .gives(200);
    assert_eq!(
        (&pending["failures"], &pending["jobs_read"]),
        (&json!([]), &json!(1))
    );
    root.put("/_jobs/mail", &json!({"retry": {"delay_sec": 60}}))
        .await
        .gives(200);
    let last = claim(&root, 1, 0).await.remove(0);
    finish(&root, &last, json!({"outcome": "failed"})).await;
    let pending = root
        .get("/_jobs/mail/_failures?state=pending")
        .await
        .gives(200);
    assert_eq!(pending["failures"][0]["count"], 1);
    root.get("/_jobs/mail/_failures?state=lost")
        .await
        .gives(400);
}

#[tokio::test]
async fn administrators_read_own_jobs_without_their_data() {
    let fixture = fixture_with(json!({"roles": {"read": ["auditor"]}})).await;
    let root = fixture.root();
    root.put("/_replicator", &Value::Null).await;
    let doc = json!({"source": "http://bob:s3cr3t@a.example/x", "target": "http://b.example/x"});
    root.put("/_replicator/a", &doc).await.gives(201);
    let info = root.get("/_jobs/rep_jobs/_type").await.gives(200);
    assert_eq!(
        (
            &info["internal"],
            &info["counts"]["pending"],
            &info["settings"]
        ),
        (&json!(true), &json!(1), &Value::Null)
    );
    let listed = root.get("/_jobs/rep_jobs?data=true").await;
    assert!(!listed.text.contains("s3cr3t") && !listed.text.contains("\"data\""));
    let listed = listed.gives(200);
    let id = listed["jobs"][0]["id"].as_str().unwrap();
    let path = format!("/_jobs/rep_jobs/{}", id.replace('/', "%2F"));
    let shown = root.get(&path).await;
    assert!(!shown.text.contains("s3cr3t") && !shown.text.contains("\"data\""));
    let shown = shown.gives(200);
    assert_eq!(
        (&shown["state"], &shown["internal"]),
        (&json!("pending"), &json!(true))
    );
    root.get("/_jobs/rep_jobs/_failures").await.gives(200);
    assert_eq!(root.get("/_jobs/rep_jobs/nothing").await.status, 404);
    // They are changed elsewhere.
    root.delete(&path).await.gives(400);
    root.post(&format!("{path}/_retry"), &Value::Null)
        .await
        .gives(400);
    root.post("/_jobs/rep_jobs/_pause", &Value::Null)
        .await
        .gives(400);
    root.post("/_jobs/rep_jobs", &json!({"data": 1}))
        .await
        .gives(400);
    fixture.add_user("eve", "password", &["auditor"]).await;
    let eve = fixture.user("eve", "password");
    for path in ["/_jobs/rep_jobs", "/_jobs/rep_jobs/_type", &path] {
        eve.get(path).await.gives(400);
    }
}
