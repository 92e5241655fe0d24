//! `/_jobs`: requests that are repeated, too many, too large, or that meet a job in an unusual state.

use api::{Cors, Options};
use axum::body::Body;
use futures::StreamExt as _;
use http::Method;
use seal::Sealer;
use serde_json::{Value, json};

use crate::fixture::{Fixture, Setting, User};
use crate::jobs::{claim, finish, fixture, fixture_with};
use crate::tokens::token;
use crate::waits;

async fn state(root: &User<'_>, id: &str) -> Value {
    let shown = root.get(&format!("/_jobs/mail/{id}")).await.gives(200);
    shown["state"].clone()
}

async fn sealed_fixture() -> Fixture {
    let setting = Setting {
        replications: scheduler::Setup {
            sealer: Sealer::new(vec![("k1".to_owned(), [7; 32])]).unwrap(),
            ..scheduler::Setup::default()
        },
        ..Setting::default()
    };
    let fixture = Fixture::with(Options::default(), setting).await;
    let settings = json!({"retry": {"limit": 0}, "sealed": true});
    let root = fixture.root();
    root.put("/_jobs/mail", &settings).await.gives(201);
    fixture
}

/// Runs the only job that is due, once.
async fn run(root: &User<'_>, end: Value) {
    let jobs = claim(root, 5, 0).await;
    assert_eq!(jobs.len(), 1);
    assert_eq!(finish(root, &jobs[0], end).await.0, "ok");
}

#[tokio::test]
async fn repeated_signals_run_a_job_once() {
    let fixture = fixture().await;
    let root = fixture.root();
    let signal = json!({"id": "a", "data": 1, "on_exists": "earliest"});
    let send = async |key: &str| {
        let with_key = root.clone().with("idempotency-key", key);
        with_key.post("/_jobs/mail", &signal).await.gives(201);
    };
    send("k1").await;
    run(&root, json!({"outcome": "done"})).await;
    send("k1").await;
    assert_eq!(state(&root, "a").await, "finished");
    send("k2").await;
    let job = claim(&root, 1, 0).await.remove(0);
    send("k2").await;
    send("k3").await;
    send("k3").await;
    finish(&root, &job, json!({"outcome": "done"})).await;
    run(&root, json!({"outcome": "done"})).await;
    for key in ["k1", "k2", "k3"] {
        send(key).await;
    }
    assert_eq!(state(&root, "a").await, "finished");
}

/// Only jobs without an id are made for one request alone.
#[tokio::test]
async fn a_key_is_refused_for_another_job() {
    for fixture in [fixture().await, sealed_fixture().await] {
        let root = fixture.root();
        for on_exists in ["replace", "keep", "earliest"] {
            let with_key = root.clone().with("idempotency-key", on_exists);
            let job = |data: Value| json!({"data": data, "on_exists": on_exists});
            let send = async |data: Value| with_key.post("/_jobs/mail", &job(data)).await;
            let first = send(json!({"to": "bob"})).await.gives(201);
            assert_eq!(send(json!({"to": "bob"})).await.gives(201), first);
            let refused = send(json!({"to": "eve"})).await.gives(422);
            let reason = refused["reason"].to_string();
            assert!(reason.contains("used for another job"), "{reason}");
            let path = format!("/_jobs/mail/{}", first["id"].as_str().unwrap());
            let shown = root.get(&path).await.gives(200);
            assert_eq!(shown["data"], json!({"to": "bob"}));
        }
    }
    let fixture = fixture().await;
    let with_key = fixture.root().with("idempotency-key", "many");
    let send = async |second: u32| {
        let many = json!({"jobs": [{"data": 1}, {"data": second}, {"id": "a", "data": second}]});
        with_key.post("/_jobs/mail", &many).await.gives(201)["results"].clone()
    };
    let first = send(2).await;
    let second = send(3).await;
    assert_eq!((&second[0], &second[2]), (&first[0], &first[2]));
    assert_eq!(second[1]["error"], "unprocessable");
}

#[tokio::test]
async fn signals_revive_dead_jobs_and_keep_back_offs() {
    let fixture = fixture_with(json!({"retry": {"limit": 0}})).await;
    let root = fixture.root();
    let signal =
        |delay: u32| json!({"id": "a", "data": 2, "delay_sec": delay, "on_exists": "earliest"});
    let failed = json!({"outcome": "failed", "error": "no route"});
    root.post("/_jobs/mail", &json!({"id": "a", "data": 1}))
        .await
        .gives(201);
    run(&root, failed.clone()).await;
    let keep = json!({"id": "a", "data": 3, "on_exists": "keep"});
    root.post("/_jobs/mail", &keep).await.gives(201);
    assert_eq!(state(&root, "a").await, "dead");
    let with_key = root.clone().with("idempotency-key", "k1");
    with_key.post("/_jobs/mail", &signal(0)).await.gives(201);
    let shown = root.get("/_jobs/mail/a").await.gives(200);
    assert_eq!(
        (&shown["state"], &shown["data"], &shown["failures"]),
        (&json!("pending"), &json!(1), &json!(0))
    );
    run(&root, failed.clone()).await;
    with_key.post("/_jobs/mail", &signal(0)).await.gives(201);
    assert_eq!(state(&root, "a").await, "dead");
    // The earlier of several in one request.
    let many = json!({"jobs": [signal(900), signal(60), signal(300)]});
    root.post("/_jobs/mail", &many).await.gives(201);
    let due = root.get("/_jobs/mail/a").await.gives(200)["due"].clone();
    let created = json!({"id": "b", "data": 1, "delay_sec": 200});
    root.post("/_jobs/mail", &created).await.gives(201);
    let later = root.get("/_jobs/mail/b").await.gives(200)["due"].clone();
    assert!(due.as_str() < later.as_str(), "{due} {later}");
    let later = json!({"retry": {"delay_sec": 600, "jitter": 0}});
    root.put("/_jobs/mail", &later).await.gives(200);
    root.post("/_jobs/mail", &signal(0)).await.gives(201);
    run(&root, failed).await;
    let due = root.get("/_jobs/mail/a").await.gives(200)["due"].clone();
    root.post("/_jobs/mail", &signal(0)).await.gives(201);
    assert_eq!(root.get("/_jobs/mail/a").await.gives(200)["due"], due);
}

#[tokio::test]
async fn a_full_type_takes_what_adds_nothing() {
    let fixture = fixture_with(json!({"max_pending": 2})).await;
    let root = fixture.root();
    let with_key = root.clone().with("idempotency-key", "k1");
    let unnamed = json!({"data": 1});
    let first = with_key.post("/_jobs/mail", &unnamed).await.gives(201);
    let named = json!({"id": "a", "data": 1});
    root.post("/_jobs/mail", &named).await.gives(201);
    root.post("/_jobs/mail", &unnamed).await.gives(429);
    let newer = json!({"id": "a", "data": 2});
    root.post("/_jobs/mail", &newer).await.gives(201);
    assert_eq!(root.get("/_jobs/mail/a").await.gives(200)["data"], 2);
    let again = with_key.post("/_jobs/mail", &unnamed).await.gives(201);
    assert_eq!(first, again);
    let both = json!({"jobs": [newer, {"id": "b", "data": 1}]});
    let full = root.post("/_jobs/mail", &both).await;
    assert_eq!(full.header("retry-after"), "1");
    full.gives(429);
    root.get("/_jobs/mail/b").await.gives(404);
    let three = json!({"jobs": [unnamed, unnamed, unnamed]});
    let large = root.post("/_jobs/mail", &three).await;
    assert_eq!(large.header("retry-after"), "");
    let reason = large.gives(413)["reason"].to_string();
    assert!(reason.contains("send fewer jobs per request"), "{reason}");
    let counts = &root.get("/_jobs/mail/_type").await.gives(200)["counts"];
    assert_eq!(counts["pending"], 2);
}

#[tokio::test]
async fn jobs_are_retried_by_long_errors_of_any_form() {
    for sealed in [false, true] {
        let fixture = if sealed {
            sealed_fixture().await
        } else {
            fixture_with(json!({"retry": {"limit": 0}})).await
        };
        let root = fixture.root();
        let errors = [json!("x".repeat(400)), json!({"code": 7, "in": [1, 2]})];
        for error in errors {
            root.post("/_jobs/mail", &json!({"data": 1}))
                .await
                .gives(201);
            run(&root, json!({"outcome": "failed", "error": error})).await;
            let grouped = root.get("/_jobs/mail/_failures").await.gives(200);
            let shown = grouped["failures"][0]["error"].clone();
            assert!(shown.as_str().unwrap().len() <= 300, "{shown}");
            for given in [error, shown] {
                let retry = json!({"state": "dead", "error": given});
                let retried = root.post("/_jobs/mail/_retry", &retry).await.gives(200);
                assert_eq!(retried["count"], 1, "{given}");
                run(&root, json!({"outcome": "failed", "error": given})).await;
            }
            let all = json!({"state": "dead"});
            root.post("/_jobs/mail/_retry", &all).await.gives(200);
            run(&root, json!({"outcome": "done"})).await;
        }
    }
}

#[tokio::test]
async fn runs_end_however_many_claims_wait() {
    let fixture = waits::fixture(1).await;
    let root = fixture.root();
    let jobs = json!({"jobs": [{"data": 1}, {"data": 1}]});
    root.post("/_jobs/mail", &jobs).await.gives(201);
    let jobs = claim(&root, 2, 0).await;
    let end = |job: &Value, more: Value| {
        let mut body = json!({"jobs": [{"id": job["id"], "lock": job["lock"], "outcome": "done"}]});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    };
    let ending = async {
        // The claim is polled first, and has the only permit to wait.
        let refused = json!({"worker": "w", "wait_sec": 60});
        let refused = root.post("/_jobs/mail/_claim", &refused).await;
        assert_eq!(refused.header("retry-after"), "1");
        refused.gives(503);
        for (job, more) in [
            (&jobs[0], json!({})),
            (&jobs[1], json!({"claim": 1, "worker": "w", "wait_sec": 60})),
        ] {
            let ended = root.post("/_jobs/mail/_finish", &end(job, more)).await;
            let ended = ended.gives(200);
            assert_eq!(
                (&ended["results"][0]["status"], &ended["jobs"]),
                (&json!("ok"), &json!([]))
            );
        }
        root.post("/_jobs/mail", &json!({"id": "a", "data": 1}))
            .await
            .gives(201);
    };
    let (claimed, ()) = tokio::join!(biased; claim(&root, 1, 60), ending);
    assert_eq!(claimed[0]["id"], "a");
}

#[tokio::test(start_paused = true)]
async fn a_feed_lasts_as_long_as_the_right_of_its_token() {
    let fixture = fixture().await;
    let root = fixture.root();
    root.post("/_jobs/mail", &json!({"id": "a", "data": 1}))
        .await
        .gives(201);
    let new = json!({"rights": ["read"], "types": ["mail"]});
    let reader = token(&fixture, "reader", new).await.1;
    let feed = reader
        .open(Method::GET, "/_jobs/mail/_feed?ids=a", "")
        .await;
    assert_eq!(feed.status(), 200);
    let mut pieces = feed.into_body().into_data_stream();
    let first = pieces.next().await.unwrap().unwrap();
    assert!(first.starts_with(b"data: "), "{first:?}");
    for _ in 0..3 {
        assert_eq!(pieces.next().await.unwrap().unwrap(), ":\n\n");
    }
    root.delete("/_tokens/reader").await.gives(200);
    assert!(pieces.next().await.is_none());
}

#[tokio::test]
async fn a_browser_that_has_seen_the_end_stops() {
    let fixture = fixture().await;
    let root = fixture.root();
    let jobs = json!({"jobs": [{"id": "a", "data": 1}, {"id": "b", "data": 1}]});
    root.post("/_jobs/mail", &jobs).await.gives(201);
    let path = "/_jobs/mail/_feed?ids=a,b";
    let feed = root.open(Method::GET, path, "").await;
    for job in claim(&root, 2, 0).await {
        finish(&root, &job, json!({"outcome": "done"})).await;
    }
    let told = axum::body::to_bytes(feed.into_body(), usize::MAX);
    let told = String::from_utf8(told.await.unwrap().to_vec()).unwrap();
    let ids: Vec<&str> = told
        .lines()
        .filter_map(|line| line.strip_prefix("id: "))
        .collect();
    assert_eq!(ids.len(), 1, "{told}");
    let again = root.clone().with("last-event-id", ids[0]);
    let over = again.get(path).await;
    assert_eq!((over.status.as_u16(), over.text.as_str()), (204, ""));
    // Without it, or when a job has run since, the states are told.
    let told = root.get(path).await;
    assert!(
        told.status == 200 && told.text.contains(ids[0]),
        "{}",
        told.text
    );
    root.post("/_jobs/mail", &json!({"id": "b", "data": 2}))
        .await
        .gives(201);
    run(&root, json!({"outcome": "done"})).await;
    let told = again.get(path).await;
    assert_eq!(told.status, 200);
    assert!(!told.text.contains(ids[0]), "{}", told.text);
}

#[tokio::test]
async fn a_feed_reads_large_results_when_they_are_told() {
    let fixture = fixture().await;
    let root = fixture.root();
    let jobs = ["a", "b", "c", "d"].map(|id| json!({"id": id, "data": 1}));
    let jobs = json!({"jobs": jobs});
    root.post("/_jobs/mail", &jobs).await.gives(201);
    let result = "x".repeat(600_000);
    for job in claim(&root, 4, 0).await {
        finish(&root, &job, json!({"outcome": "done", "result": result})).await;
    }
    let path = "/_jobs/mail/_feed?ids=a,b,c,d";
    let feed = root.open(Method::GET, path, "").await;
    // What is removed before it is read is told as that.
    let mut pieces = feed.into_body().into_data_stream();
    let mut told = pieces.next().await.unwrap().unwrap().to_vec();
    assert!(told.len() < 1_000_000, "{} bytes at once", told.len());
    root.delete("/_jobs/mail/d").await.gives(200);
    while let Some(piece) = pieces.next().await {
        told.extend(piece.unwrap());
    }
    let told = String::from_utf8(told).unwrap();
    let events: Vec<Value> = (told.lines())
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let known: Vec<_> = (events.iter())
        .map(|event| {
            (
                event["id"].as_str().unwrap(),
                event["state"].as_str().unwrap(),
            )
        })
        .collect();
    let ends = [
        ("a", "finished"),
        ("b", "finished"),
        ("c", "finished"),
        ("d", "removed"),
    ];
    assert_eq!(known, ends);
    assert!(events[..3].iter().all(|event| event["result"] == result));
    assert_eq!(told.matches("id: ").count(), 1, "at the end");
    assert!(told.rsplit_once("id: ").unwrap().1.contains("removed"));
}

#[tokio::test]
async fn sizes_and_pages_are_checked() {
    let fixture = fixture_with(json!({"max_data_bytes": 10})).await;
    let root = fixture.root();
    root.post("/_jobs/mail", &json!({"id": "a", "data": 1}))
        .await
        .gives(201);
    let job = claim(&root, 1, 0).await.remove(0);
    let large = "0123456789";
    for (part, outcome) in [("result", "done"), ("error", "failed")] {
        let row = json!({"id": "a", "lock": job["lock"], "outcome": outcome, part: large});
        let body = json!({"jobs": [row]});
        let refused = root.post("/_jobs/mail/_finish", &body).await;
        let reason = refused.gives(413)["reason"].to_string();
        assert!(
            reason.contains(&format!("`{part}` has 12 bytes")),
            "{reason}"
        );
    }
    assert_eq!(state(&root, "a").await, "running");
    // Of several, it names the one, and ends none.
    root.post("/_jobs/mail", &json!({"id": "b", "data": 1}))
        .await
        .gives(201);
    let other = claim(&root, 1, 0).await.remove(0);
    let done = json!({"id": "b", "lock": other["lock"], "outcome": "done"});
    let row = json!({"id": "a", "lock": job["lock"], "outcome": "done", "result": large});
    let body = json!({"jobs": [done, row]});
    let refused = root.post("/_jobs/mail/_finish", &body).await;
    let reason = refused.gives(413)["reason"].to_string();
    let expected = "\"entry 2 of `jobs`, with the id `a`: `result` has 12 bytes";
    assert!(reason.starts_with(expected), "{reason}");
    assert!(reason.ends_with("; no run was ended\""), "{reason}");
    assert_eq!(state(&root, "b").await, "running");
    let row = json!({"id": "a", "lock": job["lock"], "outcome": "done", "data": 1});
    for (path, kept) in [
        ("", &["data"][..]),
        ("/_beat", &["id", "lock"]),
        ("/_finish", &["id", "lock", "outcome"]),
    ] {
        let row: Value = kept
            .iter()
            .map(|name| ((*name).to_owned(), row[*name].clone()))
            .collect();
        let many = json!({"jobs": vec![row; 501]});
        let refused = root
            .post(&format!("/_jobs/mail{path}"), &many)
            .await
            .gives(400);
        let reason = refused["reason"].to_string();
        assert!(reason.contains("501 entries; send at most 500"), "{reason}");
    }
    for after in ["***", "%20"] {
        let refused = root
            .get(&format!("/_jobs/mail?after={after}"))
            .await
            .gives(400);
        assert!(refused["reason"].to_string().contains("`after` must be"));
    }
}

#[tokio::test]
async fn scripts_of_other_origins_can_add_jobs() {
    let options = Options {
        cors: Cors {
            origins: vec!["https://app.example".to_owned()],
            ..Cors::default()
        },
        ..Options::default()
    };
    let fixture = Fixture::with(options, Setting::default()).await;
    let script = fixture.root().with("origin", "https://app.example");
    let preflight = script
        .clone()
        .with("access-control-request-method", "POST")
        .send(Method::OPTIONS, "/_jobs/mail", Body::empty())
        .await;
    let allowed = preflight.header("access-control-allow-headers");
    for sent in ["idempotency-key", "content-type", "authorization"] {
        assert!(allowed.split(", ").any(|name| name == sent), "{allowed}");
    }
    let answer = script.get("/_jobs").await;
    let exposed = answer.header("access-control-expose-headers");
    assert!(
        exposed.split(", ").any(|name| name == "retry-after"),
        "{exposed}"
    );
}
