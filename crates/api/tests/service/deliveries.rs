//! `/_deliveries`.

use jobs::{Finish, Holder};
use rules::rule::call::{Call, Retry, Target};
use serde_json::{Value, json};

use crate::fixture::Fixture;

fn call(nth: usize) -> Call {
    let url = format!("https://bob@hooks.example/{nth}?token=hunter2");
    let target = Target {
        headers: vec![("X-Secret".into(), "hunter2".into())],
        ..Target::new(url.parse().unwrap())
    };
    Call {
        rule: format!("rule {}", nth % 2),
        rules: ["_rules", "spiegel"][nth / 2 % 2].into(),
        method: "POST".into(),
        url: target.shown(),
        query: None,
        body: Some(r#"{"secret":"hunter2"}"#.into()),
        source: "upstream".into(),
        db: "db".into(),
        doc_id: format!("doc {nth}"),
        rev: "1-a".into(),
        seq: nth.to_string(),
        retry: Retry::default(),
        timeout_sec: None,
        debounce: false,
        hops: 0,
        left_out: 0,
        generation: None,
        target: Some(target),
    }
}

/// A service with ten waiting calls.
async fn fixture() -> Fixture {
    let fixture = Fixture::new().await;
    let (deliveries, jobs) = (&fixture.deliveries, fixture.replications.jobs());
    let (op, calls) = (jobs.op(), (0..10).map(call).collect::<Vec<_>>());
    let calls = &calls;
    let enqueue = |tx| async move { deliveries.enqueue_many_in(&tx, &op, calls).await };
    jobs.store().transact("enqueue", enqueue).await.unwrap();
    fixture
}

#[tokio::test]
async fn calls_are_listed_page_by_page() {
    let fixture = fixture().await;
    let root = fixture.root();
    let (mut path, mut found) = ("/_deliveries?limit=3&state=pending".to_owned(), Vec::new());
    loop {
        let page = root.get(&path).await.gives(200);
        found.extend(page["deliveries"].as_array().unwrap().clone());
        let Some(after) = page["after"].as_str() else {
            break;
        };
        path = format!("/_deliveries?limit=3&state=pending&after={after}");
    }
    assert_eq!(found.len(), 10);
    let text = json!(found).to_string();
    assert!(!text.contains("hunter2") && !text.contains("bob"), "{text}");
    let of_rule = root.get("/_deliveries?rule=rule+1").await.gives(200);
    assert_eq!(of_rule["deliveries"].as_array().unwrap().len(), 5);
    // Rules of different databases may have the same id.
    for (query, expected) in [
        ("rule=rule+1&rule_database=spiegel", 2),
        ("rule=rule+1&rule_database=_rules", 3),
        ("rule_database=spiegel", 4),
        ("rule_database=other/_rules", 0),
    ] {
        let page = root.get(&format!("/_deliveries?{query}")).await.gives(200);
        let rows = page["deliveries"].as_array().unwrap();
        assert_eq!(rows.len(), expected, "{query}");
    }
    // A page ends with a call of the rule.
    let (mut path, mut names) = ("/_deliveries?rule=rule+1&limit=2".to_owned(), Vec::new());
    loop {
        let page = root.get(&path).await.gives(200);
        let rows = page["deliveries"].as_array().unwrap();
        assert!(rows.len() <= 2, "{page}");
        names.extend(
            rows.iter()
                .map(|row| row["doc_id"].as_str().unwrap().to_owned()),
        );
        let Some(after) = page["after"].as_str() else {
            break;
        };
        path = format!("/_deliveries?rule=rule+1&limit=2&after={after}");
    }
    names.sort_unstable();
    assert_eq!(names, ["doc 1", "doc 3", "doc 5", "doc 7", "doc 9"]);
    let one = found.iter().find(|row| row["doc_id"] == "doc 3").unwrap();
    let id = one["id"].as_str().unwrap();
    let shown = root.get(&format!("/_deliveries/{id}")).await.gives(200);
    // The clock runs.
    let created = one["created"].as_str().unwrap();
    assert!(created.starts_with("2023-11-14T22:13:2"), "{created}");
    assert_eq!(
        shown,
        json!({
            "id": id, "webhook_id": id, "state": "pending", "rule": "rule 1", "rule_database": "spiegel",
            "source": "upstream", "db": "db", "doc_id": "doc 3", "rev": "1-a", "seq": "3", "method": "POST", "url": "https://hooks.example/3", "created": created,
            "next": created, "attempts": 0, "failures": 0, "reason": null, "last": null, "runs": [],
        })
    );
}

/// Makes this many calls dead letters.
async fn fail(fixture: &Fixture, count: usize) {
    let (jobs, ty) = (fixture.replications.jobs(), fixture.deliveries.job_type());
    let holder = Holder::new("node").unwrap();
    for accepted in jobs.accept(ty, &holder, count).await.unwrap().jobs {
        let finish = Finish::dead("404 in 3 ms");
        assert!(!jobs.finish(&accepted.job, finish).await.unwrap().again);
    }
}

#[tokio::test]
async fn calls_are_removed() {
    let fixture = fixture().await;
    let root = fixture.root();
    let count = async |query: &str| {
        let page = root.get(&format!("/_deliveries{query}")).await.gives(200);
        page["deliveries"].as_array().unwrap().len()
    };
    // Those that wait are not removed with the others.
    let many = root.post("/_deliveries/_remove", &json!({})).await;
    assert_eq!(many.gives(200), json!({"ok": true, "removed": 0}));
    let page = root.get("/_deliveries?limit=1").await.gives(200);
    let path = format!(
        "/_deliveries/{}",
        page["deliveries"][0]["id"].as_str().unwrap()
    );
    assert_eq!(root.delete(&path).await.gives(200), json!({"ok": true}));
    root.get(&path).await.gives(404);
    (root.delete(&path).await).refuses(404, "not_found", "missing");
    fail(&fixture, 9).await;
    assert_eq!(count("?state=dead").await, 9);
    let of_one = count("?rule=rule+1&rule_database=spiegel").await;
    let filter = json!({"rule": "rule 1", "rule_database": "spiegel", "state": "dead"});
    let many = root.post("/_deliveries/_remove", &filter).await;
    assert_eq!(many.gives(200), json!({"ok": true, "removed": of_one}));
    let rest = root.post("/_deliveries/_remove", &json!({})).await;
    assert_eq!(rest.gives(200), json!({"ok": true, "removed": 9 - of_one}));
    assert_eq!(count("").await, 0);
}

#[tokio::test]
async fn calls_are_replayed() {
    let fixture = fixture().await;
    let root = fixture.root();
    fail(&fixture, 10).await;
    let dead = root.get("/_deliveries?state=dead").await.gives(200);
    let dead = dead["deliveries"].as_array().unwrap();
    assert_eq!(dead.len(), 10);
    assert_eq!(dead[0]["reason"], "404 in 3 ms");
    let id = dead[0]["id"].as_str().unwrap();
    let path = format!("/_deliveries/{id}/_replay");
    let replay = root.post(&path, &Value::Null).await;
    assert_eq!(replay.gives(200), json!({"ok": true}));
    let shown = root.get(&format!("/_deliveries/{id}")).await.gives(200);
    assert_eq!(
        (&shown["state"], &shown["runs"][0]["reason"]),
        (&json!("pending"), &json!("404 in 3 ms"))
    );
    let filter = json!({"rule": if shown["rule"] == "rule 0" { "rule 1" } else { "rule 0" }});
    let mut of_one = filter.clone();
    of_one["rule_database"] = json!("spiegel");
    let many = root.post("/_deliveries/_replay", &of_one).await;
    assert_eq!(many.gives(200), json!({"ok": true, "replayed": 2}));
    let many = root.post("/_deliveries/_replay", &filter).await;
    assert_eq!(many.gives(200), json!({"ok": true, "replayed": 3}));
    let many = root
        .post("/_deliveries/_replay", &json!({"state": "dead"}))
        .await;
    assert_eq!(many.gives(200), json!({"ok": true, "replayed": 4}));
}

#[tokio::test]
async fn wrong_requests_are_refused() {
    let fixture = fixture().await;
    let root = fixture.root();
    for path in [
        "/_deliveries?state=lost",
        "/_deliveries?after=%25",
        "/_deliveries?limit=x",
    ] {
        assert_eq!(root.get(path).await.status, 400, "{path}");
    }
    for body in [
        json!({"state": "pending"}),
        json!({"since": "x"}),
        json!({"rule": 1}),
    ] {
        for action in ["_replay", "_remove"] {
            let answer = root.post(&format!("/_deliveries/{action}"), &body).await;
            assert_eq!(answer.status, 400, "{action} {body}");
        }
    }
    let long = "x".repeat(300);
    for id in ["msg_unknown", &long] {
        root.get(&format!("/_deliveries/{id}"))
            .await
            .refuses(404, "not_found", "missing");
        let path = format!("/_deliveries/{id}/_replay");
        let replay = root.post(&path, &Value::Null).await;
        replay.refuses(404, "not_found", "missing");
    }
}
