//! What is rare in requests about jobs: odd JSON, odd ids, explicit nulls, repeated runs of schedules.

use http::Method;
use serde_json::{Value, json};

use crate::fixture::{Answer, User};
use crate::jobs::{claim, finish, fixture, fixture_with};

async fn send(user: &User<'_>, method: Method, path: &str, body: &str) -> Answer {
    let user = user.clone().with("content-type", "application/json");
    user.send(method, path, body.to_owned()).await
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

#[tokio::test]
async fn schedules_are_shown_with_the_data_that_was_sent() {
    let fixture = fixture().await;
    let root = fixture.root();
    let data = r#"{ "b":1.50, "a" : 1e400,"b":[ ],"x":"\ud800","n":12345678901234567890123 }"#;
    for name in ["odd", "plain"] {
        let data = if name == "odd" { data } else { "1" };
        let body = format!(r#"{{"type":"mail","job":{{"data":{data}}},"every_sec":5}}"#);
        let put = send(&root, Method::PUT, &format!("/_schedules/{name}"), &body).await;
        assert_eq!(put.status, 201, "{}", put.text);
    }
    for path in ["/_schedules/odd", "/_schedules"] {
        let shown = root.get(path).await;
        assert_eq!(shown.status, 200, "{}", shown.text);
        assert!(
            shown.text.contains(&format!(r#""data":{data}"#)),
            "{}",
            shown.text
        );
    }
}

#[tokio::test]
async fn json_that_is_nested_too_deeply_is_refused() {
    let fixture = fixture().await;
    let root = fixture.root();
    let (deepest, deeper) = (nested(100), nested(101));
    let text = format!(r#"{{"id":"text","data":"\"{}"}}"#, "[".repeat(200));
    let wide = format!(r#"{{"id":"wide","data":[{}[]]}}"#, "[],".repeat(200));
    let kept = format!(r#"{{"id":"a","data":{deepest}}}"#);
    for body in [&kept, &text, &wide] {
        let added = send(&root, Method::POST, "/_jobs/mail", body).await;
        assert_eq!(added.status, 201, "{}", added.text);
    }
    let refused = |answer: &Value, part: &str| {
        let reason = answer["reason"].to_string();
        assert!(
            reason.contains(&format!("`{part}` is nested more than 100 deep")),
            "{answer}"
        );
    };
    let body = format!(r#"{{"data":{deeper}}}"#);
    refused(
        &send(&root, Method::POST, "/_jobs/mail", &body)
            .await
            .gives(400),
        "data",
    );
    let many = format!(r#"{{"jobs":[{{"data":1}},{body}]}}"#);
    let many = send(&root, Method::POST, "/_jobs/mail", &many)
        .await
        .gives(201);
    assert_eq!(many["results"][0]["ok"], true);
    refused(&many["results"][1], "data");
    let schedule = format!(r#"{{"type":"mail","job":{body},"every_sec":5}}"#);
    let put = send(&root, Method::PUT, "/_schedules/deep", &schedule).await;
    refused(&put.gives(400), "data");
    let job = claim(&root, 1, 0).await.remove(0);
    let row = |rest: &str| {
        format!(
            r#"{{"jobs":[{{"id":{},"lock":{},{rest}}}]}}"#,
            job["id"], job["lock"]
        )
    };
    for (path, part, outcome) in [
        ("_finish", "result", r#","outcome":"done""#),
        ("_finish", "error", r#","outcome":"failed""#),
    ] {
        let body = row(&format!(r#""{part}":{deeper}{outcome}"#));
        let path = format!("/_jobs/mail/{path}");
        refused(
            &send(&root, Method::POST, &path, &body).await.gives(400),
            part,
        );
    }
}

/// The run that it replaces asks for a retry at once.
#[tokio::test]
async fn a_replaced_running_job_waits_for_its_time() {
    let fixture = fixture().await;
    let root = fixture.root();
    let job = json!({"id": "x", "data": 1});
    root.post("/_jobs/mail", &job).await.gives(201);
    let jobs = claim(&root, 1, 0).await;
    let later = json!({"id": "x", "data": 2, "due": "2099-01-01T00:00:00Z"});
    root.post("/_jobs/mail", &later).await.gives(201);
    finish(
        &root,
        &jobs[0],
        json!({"outcome": "failed", "delay_sec": 0}),
    )
    .await;
    assert!(claim(&root, 1, 0).await.is_empty());
    let shown = root.get("/_jobs/mail/x").await.gives(200);
    assert_eq!(
        (&shown["state"], &shown["data"]),
        (&json!("pending"), &json!(2))
    );
    assert!(shown["due"].as_str().unwrap().starts_with("2099-01-01"));
}

#[tokio::test]
async fn new_data_begins_without_the_failures_of_the_old() {
    let fixture = fixture_with(json!({"retry": {"limit": 1, "delay_sec": 0}})).await;
    let root = fixture.root();
    let job = |data: u8| json!({"id": "x", "data": data});
    root.post("/_jobs/mail", &job(1)).await.gives(201);
    let old = claim(&root, 1, 0).await;
    root.post("/_jobs/mail", &job(2)).await.gives(201);
    let failed = || json!({"outcome": "failed"});
    finish(&root, &old[0], failed()).await;
    for (failures, state) in [(0, "pending"), (1, "dead")] {
        let run = claim(&root, 1, 0).await;
        assert_eq!(
            (&run[0]["data"], &run[0]["failures"]),
            (&json!(2), &json!(failures))
        );
        finish(&root, &run[0], failed()).await;
        let shown = root.get("/_jobs/mail/x").await.gives(200);
        assert_eq!(shown["state"], state);
    }
}

/// A worker that lost a job and claimed it again may still work on its first run.
#[tokio::test]
async fn a_job_may_be_named_twice_in_a_heartbeat() {
    let fixture = fixture().await;
    let root = fixture.root();
    let jobs = json!({"jobs": [{"id": "a", "data": 1}, {"id": "b", "data": 1}]});
    root.post("/_jobs/mail", &jobs).await.gives(201);
    let (mut old, mut new) = (Value::Null, Value::Null);
    let mut other = Value::Null;
    for _ in 0..2 {
        for run in claim(&root, 2, 0).await {
            let row = json!({"id": run["id"], "lock": run["lock"]});
            if run["id"] == "b" {
                other = row;
                continue;
            }
            if old.is_null() {
                finish(&root, &run, json!({"outcome": "again"})).await;
                old = row;
            } else {
                new = row;
            }
        }
    }
    for (first, second) in [(&new, &new), (&new, &old), (&old, &new)] {
        let body = json!({"jobs": [first, second, other]});
        let beaten = root.post("/_jobs/mail/_beat", &body).await.gives(200);
        let rows = beaten["jobs"].as_array().unwrap();
        let status = |row: &Value| if *row == old { "halt" } else { "held" };
        for (row, expected) in rows.iter().zip([first, second, &other]) {
            assert_eq!(row["status"], status(expected), "{beaten}");
        }
    }
}

/// Holds whether the job is requested again during that run or after it. The progress of a failed attempt is kept.
#[tokio::test]
async fn progress_of_a_run_that_was_done_is_not_handed_on() {
    let fixture = fixture_with(json!({"retry": {"limit": 1, "delay_sec": 0}})).await;
    let root = fixture.root();
    let job = json!({"id": "x", "data": 1, "on_exists": "earliest"});
    root.post("/_jobs/mail", &job).await.gives(201);
    for (outcome, asked_early) in [("failed", false), ("done", true), ("done", false)] {
        let run = claim(&root, 1, 0).await;
        let beat = json!({"id": "x", "lock": run[0]["lock"], "progress": outcome});
        root.post("/_jobs/mail/_beat", &json!({"jobs": [beat]}))
            .await
            .gives(200);
        if asked_early {
            root.post("/_jobs/mail", &job).await.gives(201);
        }
        finish(&root, &run[0], json!({"outcome": outcome})).await;
        if outcome == "done" && !asked_early {
            let shown = root.get("/_jobs/mail/x").await.gives(200);
            assert_eq!(
                (&shown["state"], &shown["progress"]),
                (&json!("finished"), &json!("done"))
            );
            root.post("/_jobs/mail", &job).await.gives(201);
        }
        let kept = if outcome == "done" {
            Value::Null
        } else {
            json!(outcome)
        };
        for _ in 0..2 {
            let run = claim(&root, 1, 0).await;
            assert_eq!(run[0]["progress"], kept, "{outcome}, {asked_early}");
            let again = json!({"outcome": "again"});
            finish(&root, &run[0], again).await;
        }
    }
}

/// Even if its error reads like a reason that the service itself gives to returned runs.
#[tokio::test]
async fn a_failed_run_is_not_taken_for_a_returned_one() {
    let fixture = fixture_with(json!({"retry": {"limit": 1, "delay_sec": 0}})).await;
    let root = fixture.root();
    let errors = [
        "left to other nodes: no",
        "no worker waited for it any more",
    ];
    for error in errors {
        root.post("/_jobs/mail", &json!({"id": error, "data": 1}))
            .await
            .gives(201);
        for state in ["pending", "dead"] {
            let run = claim(&root, 1, 0).await;
            finish(&root, &run[0], json!({"outcome": "failed", "error": error})).await;
            let shown = root
                .get(&format!("/_jobs/mail/{error}").replace(' ', "%20"))
                .await
                .gives(200);
            assert_eq!(
                (&shown["state"], &shown["error"]),
                (&json!(state), &json!(error))
            );
            for run in shown["attempts"].as_array().unwrap() {
                assert_eq!(run["outcome"], "failed");
                assert!(run["reason"].as_str().unwrap().ends_with(error), "{run}");
            }
        }
        let all = json!({"state": "dead", "error": error});
        let retried = root.post("/_jobs/mail/_retry", &all).await.gives(200);
        assert_eq!(retried["count"], 1);
        let run = claim(&root, 1, 0).await;
        finish(&root, &run[0], json!({"outcome": "done"})).await;
    }
}

/// Neither that of its job nor that of the other jobs of the worker.
#[tokio::test]
async fn progress_that_is_refused_costs_no_heartbeat() {
    let fixture = fixture_with(json!({"max_data_bytes": 300})).await;
    let root = fixture.root();
    for id in ["large", "deep", "lost", "fine"] {
        let job = json!({"id": id, "data": 1});
        root.post("/_jobs/mail", &job).await.gives(201);
    }
    let jobs = claim(&root, 4, 0).await;
    let lost = jobs.iter().find(|job| job["id"] == "lost").unwrap();
    finish(&root, lost, json!({"outcome": "done"})).await;
    let large = format!("{:?}", "x".repeat(299));
    let rows = jobs.iter().map(|job| {
        let progress = match job["id"].as_str().unwrap() {
            "large" | "lost" => large.clone(),
            "deep" => nested(101),
            _ => "5".to_owned(),
        };
        let (id, lock) = (&job["id"], &job["lock"]);
        format!(r#"{{"id":{id},"lock":{lock},"progress":{progress}}}"#)
    });
    let rows: Vec<_> = rows.collect();
    let body = format!(r#"{{"jobs":[{}]}}"#, rows.join(","));
    let beaten = send(&root, Method::POST, "/_jobs/mail/_beat", &body).await;
    let beaten = beaten.gives(200)["jobs"].clone();
    let row = |id: &str| {
        let rows = beaten.as_array().unwrap();
        rows.iter().find(|row| row["id"] == id).unwrap().clone()
    };
    for (id, status, error, reason) in [
        ("large", "held", json!("too_large"), "`progress` has 301"),
        ("deep", "held", json!("bad_request"), "100 deep"),
        ("lost", "halt", json!("too_large"), "`progress` has 301"),
        ("fine", "held", Value::Null, "null"),
    ] {
        let row = row(id);
        assert_eq!((&row["status"], &row["error"]), (&json!(status), &error));
        assert_eq!(row["deadline"].is_string(), status == "held", "{row}");
        assert!(row["reason"].to_string().contains(reason), "{row}");
        let shown = root.get(&format!("/_jobs/mail/{id}")).await.gives(200);
        let stored = if id == "fine" { json!(5) } else { Value::Null };
        assert_eq!(shown["progress"], stored);
    }
}

/// One of them must not cost a worker its other jobs.
#[tokio::test]
async fn malformed_locks_are_halted() {
    let fixture = fixture().await;
    let root = fixture.root();
    for id in ["a", "b", "c"] {
        let job = json!({"id": id, "data": 1});
        root.post("/_jobs/mail", &job).await.gives(201);
    }
    let jobs = claim(&root, 2, 0).await;
    let lock = jobs[0]["lock"].as_str().unwrap();
    let row = |id: &Value, lock: &str| json!({"id": id, "lock": lock});
    let mut rows = vec![
        row(&jobs[0]["id"], lock),
        row(&json!("x".repeat(1_000)), lock),
    ];
    rows.extend(["", "x", "\u{e4}", &lock[1..]].map(|lock| row(&jobs[0]["id"], lock)));
    rows[2]["progress"] = json!(5);
    rows.push(json!({"id": jobs[1]["id"], "lock": jobs[1]["lock"]}));
    let statuses = |answer: &Value, member: &str| {
        let rows = answer[member].as_array().unwrap().iter();
        rows.map(|row| row["status"].clone()).collect::<Vec<_>>()
    };
    let beat = json!({"jobs": rows});
    let beaten = root.post("/_jobs/mail/_beat", &beat).await.gives(200);
    let expected = ["held", "halt", "halt", "halt", "halt", "halt", "held"];
    assert_eq!(statuses(&beaten, "jobs"), expected);
    assert_eq!(beaten["jobs"][1]["deadline"], Value::Null);
    rows[2].as_object_mut().unwrap().remove("progress");
    for row in &mut rows {
        row["outcome"] = json!("done");
    }
    let (last, bad) = rows.split_last().unwrap();
    let end = json!({"jobs": &bad[1..], "claim": 1, "worker": "w2"});
    let ended = root.post("/_jobs/mail/_finish", &end).await.gives(200);
    assert_eq!(statuses(&ended, "results"), ["halt"; 5]);
    assert_eq!(ended["jobs"].as_array().unwrap().len(), 1);
    let end = json!({"jobs": [&bad[0], &bad[1], &bad[2], last]});
    let ended = root.post("/_jobs/mail/_finish", &end).await.gives(200);
    assert_eq!(statuses(&ended, "results"), ["ok", "halt", "halt", "ok"]);
}

#[tokio::test]
async fn a_plus_in_the_id_of_a_job_is_a_plus() {
    let fixture = fixture().await;
    let root = fixture.root();
    for id in ["a+b", "a b"] {
        let job = json!({"id": id, "data": id});
        root.post("/_jobs/mail", &job).await.gives(201);
    }
    for (path, id) in [("a+b", "a+b"), ("a%2Bb", "a+b"), ("a%20b", "a b")] {
        let shown = root.get(&format!("/_jobs/mail/{path}")).await.gives(200);
        assert_eq!((&shown["id"], &shown["data"]), (&json!(id), &json!(id)));
    }
}

#[tokio::test]
async fn an_explicit_null_is_not_absent() {
    let fixture = fixture().await;
    let root = fixture.root();
    root.post("/_jobs/mail", &json!({"id": "a", "data": 1}))
        .await
        .gives(201);
    let job = claim(&root, 1, 0).await.remove(0);
    let beat = |progress: Option<Value>| {
        let mut row = json!({"id": "a", "lock": job["lock"]});
        if let Some(progress) = progress {
            row["progress"] = progress;
        }
        json!({"jobs": [row]})
    };
    for (progress, shown) in [
        (Some(json!(5)), json!(5)),
        (None, json!(5)),
        (Some(Value::Null), Value::Null),
    ] {
        root.post("/_jobs/mail/_beat", &beat(progress))
            .await
            .gives(200);
        let told = root.get("/_jobs/mail/a").await.gives(200);
        assert_eq!(told["progress"], shown);
    }
    let end = json!({"outcome": "failed", "error": "no route", "retry": false});
    finish(&root, &job, end).await;
    let all = json!({"state": "dead", "error": null});
    let refused = root.post("/_jobs/mail/_retry", &all).await.gives(400);
    let reason = refused["reason"].to_string();
    assert!(reason.contains("leave `error` out to retry"), "{reason}");
    let shown = root.get("/_jobs/mail/a").await.gives(200);
    assert_eq!(shown["state"], "dead");
}

#[tokio::test]
async fn a_repeated_run_of_a_schedule_adds_one_job() {
    let fixture = fixture().await;
    let root = fixture.root();
    let nightly = json!({"type": "mail", "job": {"data": 1}, "cron": "30 2 * * *"});
    root.put("/_schedules/nightly", &nightly).await.gives(201);
    let fixed = json!({"type": "mail", "job": {"id": "one", "data": 1}, "cron": "30 2 * * *"});
    root.put("/_schedules/fixed", &fixed).await.gives(201);
    for name in ["nightly", "fixed"] {
        let path = format!("/_schedules/{name}/_run");
        let keyed = root.clone().with("idempotency-key", "k");
        let first = keyed.post(&path, &Value::Null).await.gives(201);
        let job = claim(&root, 5, 0).await;
        assert_eq!(job.len(), 1, "{name}");
        assert_eq!(job[0]["id"], first["id"]);
        finish(&root, &job[0], json!({"outcome": "done"})).await;
        fixture.clock.set_ms(fixture.clock.now_ms() + 5_000);
        let again = keyed.post(&path, &Value::Null).await.gives(201);
        assert_eq!(again["id"], first["id"]);
        assert_eq!(claim(&root, 5, 0).await.len(), 0, "{name}");
        let other = root.clone().with("idempotency-key", "l");
        other.post(&path, &Value::Null).await.gives(201);
        let job = claim(&root, 5, 0).await.remove(0);
        finish(&root, &job, json!({"outcome": "done"})).await;
    }
    let bad = root.with("idempotency-key", "");
    let bad = bad.with("idempotency-key", &"k".repeat(257));
    let refused = bad.post("/_schedules/nightly/_run", &Value::Null).await;
    let reason = refused.gives(400)["reason"].to_string();
    assert!(reason.contains("`Idempotency-Key` must have"), "{reason}");
}
