//! `/_jobs`: jobs of users.

use std::time::Duration;

use http::{Method, StatusCode};
use jobs::Clock;
use serde_json::{Value, json};

use crate::fixture::{Fixture, Setting, User};

/// A service with a type `mail`, and roles for it.
pub(crate) async fn fixture() -> Fixture {
    fixture_with(json!({})).await
}

pub(crate) async fn fixture_with(settings: Value) -> Fixture {
    let fixture = Fixture::new().await;
    fixture
        .root()
        .put("/_jobs/mail", &settings)
        .await
        .gives(201);
    fixture
}

pub(crate) async fn claim(user: &User<'_>, count: usize, wait_sec: u32) -> Vec<Value> {
    let body = json!({"worker": "w", "count": count, "wait_sec": wait_sec});
    let claimed = user.post("/_jobs/mail/_claim", &body).await.gives(200);
    claimed["jobs"].as_array().unwrap().clone()
}

/// One run's end; returns its status and the whole answer.
pub(crate) async fn finish(user: &User<'_>, job: &Value, end: Value) -> (String, Value) {
    let mut row = json!({"id": job["id"], "lock": job["lock"]});
    for (name, value) in end.as_object().unwrap() {
        row[name] = value.clone();
    }
    let answer = user
        .post("/_jobs/mail/_finish", &json!({"jobs": [row]}))
        .await
        .gives(200);
    (
        answer["results"][0]["status"].as_str().unwrap().to_owned(),
        answer,
    )
}

#[tokio::test]
async fn a_job_lives_from_post_to_result() {
    let fixture = fixture().await;
    let root = fixture.root();
    let data = r#"{"id":"a/b","data":{ "to":"bob", "n":1.50, "to":[] }}"#;
    let posted = root.clone().with("content-type", "application/json");
    let posted = posted.send(Method::POST, "/_jobs/mail", data).await;
    assert_eq!(posted.gives(201), json!({"ok": true, "id": "a/b"}));
    let shown = root.get("/_jobs/mail/a%2Fb").await;
    assert!(
        shown
            .text
            .contains(r#""data":{ "to":"bob", "n":1.50, "to":[] }"#),
        "{}",
        shown.text
    );
    let jobs = claim(&root, 5, 0).await;
    assert_eq!((jobs.len(), &jobs[0]["attempt"]), (1, &json!(1)));
    let deadline = jobs[0]["deadline"].as_str().unwrap();
    assert!(deadline.starts_with("2023-11-14T22:13:"), "{deadline}");
    let beat = json!({"jobs": [{"id": "a/b", "lock": jobs[0]["lock"], "progress": {"done": 3}}]});
    let beaten = root.post("/_jobs/mail/_beat", &beat).await.gives(200);
    assert_eq!(
        (&beaten["jobs"][0]["status"], &beaten["drain"]),
        (&json!("held"), &json!(false))
    );
    let shown = root.get("/_jobs/mail/a%2Fb").await.gives(200);
    assert_eq!(
        (&shown["state"], &shown["progress"]),
        (&json!("running"), &json!({"done": 3}))
    );
    let (status, _) = finish(&root, &jobs[0], json!({"outcome": "done", "result": [1]})).await;
    assert_eq!(status, "ok");
    let (status, _) = finish(&root, &jobs[0], json!({"outcome": "done"})).await;
    assert_eq!(status, "repeated");
    let beaten = root.post("/_jobs/mail/_beat", &beat).await.gives(200);
    assert_eq!(
        beaten["jobs"][0],
        json!({"id": "a/b", "status": "halt", "deadline": null})
    );
    let shown = root.get("/_jobs/mail/a%2Fb").await.gives(200);
    assert_eq!(
        (&shown["state"], &shown["result"]),
        (&json!("finished"), &json!([1]))
    );
    let attempt = &shown["attempts"][0];
    assert_eq!(
        (&attempt["worker"], &attempt["outcome"]),
        (&json!("w"), &json!("done"))
    );
    root.delete("/_jobs/mail/a%2Fb").await.gives(200);
    assert_eq!(root.get("/_jobs/mail/a%2Fb").await.status, 404);
    assert_eq!(root.delete("/_jobs/mail/a%2Fb").await.status, 404);
}

#[tokio::test]
async fn failed_jobs_are_retried_and_die() {
    let fixture = fixture_with(json!({"retry": {"limit": 1, "delay_sec": 0}})).await;
    let root = fixture.root();
    root.post("/_jobs/mail", &json!({"id": "a", "data": 1}))
        .await
        .gives(201);
    let first = claim(&root, 1, 0).await.remove(0);
    let failed = json!({"outcome": "failed", "error": {"message": "no route"}});
    assert_eq!(finish(&root, &first, failed.clone()).await.0, "ok");
    let second = claim(&root, 1, 0).await.remove(0);
    assert_eq!(
        (&second["attempt"], &second["failures"]),
        (&json!(2), &json!(1))
    );
    // A request that was repeated by a proxy, while another run is in progress.
    assert_eq!(finish(&root, &first, failed.clone()).await.0, "repeated");
    assert_eq!(finish(&root, &second, failed).await.0, "ok");
    let shown = root.get("/_jobs/mail/a").await.gives(200);
    assert_eq!(
        (&shown["state"], &shown["error"]["message"]),
        (&json!("dead"), &json!("no route"))
    );
    assert_eq!(shown["failures"], 2);
    let outcomes: Vec<_> = shown["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["outcome"].clone())
        .collect();
    assert_eq!(outcomes, ["failed", "failed"]);
    let other = json!({"state": "dead", "error": "other"});
    assert_eq!(
        root.post("/_jobs/mail/_retry", &other).await.gives(200)["count"],
        0
    );
    let this = json!({"state": "dead", "error": "no route"});
    assert_eq!(
        root.post("/_jobs/mail/_retry", &this).await.gives(200)["count"],
        1
    );
    // A run that succeeds removes the error.
    let third = claim(&root, 1, 0).await.remove(0);
    assert_eq!(
        finish(&root, &third, json!({"outcome": "done"})).await.0,
        "ok"
    );
    assert_eq!(
        root.get("/_jobs/mail/a").await.gives(200)["error"],
        Value::Null
    );
    assert_eq!(
        root.post("/_jobs/mail/a/_retry", &Value::Null).await.status,
        409
    );
}

#[tokio::test]
async fn runs_end_and_jobs_are_claimed_in_one_request() {
    let fixture = fixture().await;
    let root = fixture.root();
    let jobs: Vec<_> = (0..4)
        .map(|n| json!({"id": format!("j{n}"), "data": n}))
        .collect();
    root.post("/_jobs/mail", &json!({"jobs": jobs}))
        .await
        .gives(201);
    let two = claim(&root, 2, 0).await;
    let ends = two
        .iter()
        .map(|job| json!({"id": job["id"], "lock": job["lock"], "outcome": "done"}));
    let mut ends: Vec<_> = ends.collect();
    ends.push(json!({"id": "j9", "lock": two[0]["lock"], "outcome": "done"}));
    let body = json!({"jobs": ends, "claim": 5, "worker": "w2"});
    let answer = root.post("/_jobs/mail/_finish", &body).await.gives(200);
    let statuses: Vec<_> = answer["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["status"].clone())
        .collect();
    assert_eq!(statuses, ["ok", "ok", "halt"]);
    assert_eq!(answer["jobs"].as_array().unwrap().len(), 2);
    let repeated = root.post("/_jobs/mail/_finish", &body).await.gives(200);
    assert_eq!(repeated["results"][0]["status"], "repeated");
    assert_eq!(repeated["jobs"], json!([]));
    let id = answer["jobs"][0]["id"].as_str().unwrap();
    let shown = root.get(&format!("/_jobs/mail/{id}")).await.gives(200);
    assert_eq!(shown["attempts"][0]["worker"], "w2");
}

#[tokio::test]
async fn a_claim_waits_for_a_job_and_one_job_wakes_one() {
    let fixture = fixture().await;
    let root = fixture.root();
    let waiting = async { tokio::join!(claim(&root, 1, 20), claim(&root, 1, 20)) };
    let adding = async {
        // The first is claimed by one of the two.
        root.post("/_jobs/mail", &json!({"id": "a", "data": 1}))
            .await
            .gives(201);
        loop {
            let shown = root.get("/_jobs/mail/a").await.gives(200);
            if shown["state"] == "running" {
                break;
            }
            tokio::task::yield_now().await;
        }
        root.post("/_jobs/mail", &json!({"id": "b", "data": 2}))
            .await
            .gives(201);
    };
    let ((a, b), ()) = tokio::join!(waiting, adding);
    let mut ids = [a, b].map(|jobs| {
        jobs.iter()
            .map(|job| job["id"].to_string())
            .collect::<String>()
    });
    ids.sort();
    assert_eq!(ids, ["\"a\"", "\"b\""]);
}

#[tokio::test]
async fn a_claim_whose_client_is_gone_gives_its_job_back() {
    let fixture = fixture_with(json!({"retry": {"limit": 1, "delay_sec": 0}})).await;
    let root = fixture.root();
    root.post("/_jobs/mail", &json!({"id": "a", "data": 1}))
        .await
        .gives(201);
    let first = claim(&root, 1, 0).await.remove(0);
    finish(&root, &first, json!({"outcome": "failed"})).await;
    let json = root.clone().with("content-type", "application/json");
    let response = json
        .open(Method::POST, "/_jobs/mail/_claim", r#"{"worker":"gone"}"#)
        .await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(
        root.get("/_jobs/mail/a").await.gives(200)["state"],
        "running"
    );
    // Nobody reads it.
    drop(response);
    let again = claim(&root, 1, 20).await.remove(0);
    assert_eq!(
        (&again["id"], &again["attempt"], &again["failures"]),
        (&json!("a"), &json!(3), &json!(1))
    );
    let shown = root.get("/_jobs/mail/a").await.gives(200);
    assert_eq!(shown["attempts"][1]["outcome"], "returned");
    // The client goes while it waits.
    let waiting = json.open(
        Method::POST,
        "/_jobs/mail/_claim",
        r#"{"worker":"gone","wait_sec":60}"#,
    );
    assert!(
        tokio::time::timeout(Duration::from_millis(50), waiting)
            .await
            .is_err()
    );
    root.post("/_jobs/mail", &json!({"id": "b", "data": 1}))
        .await
        .gives(201);
    assert_eq!(claim(&root, 1, 20).await[0]["id"], "b");
}

/// A request, and what its refusal says.
const REFUSED: &[(&str, &str, &str)] = &[
    (
        "/_jobs/mail",
        r#"{"data":1,"dela_sec":1}"#,
        "`dela_sec` is unknown; use `id`, `data`",
    ),
    ("/_jobs/mail", r#"{"id":"a"}"#, "`data` is missing; add it"),
    ("/_jobs/mail", r#"{"id":"_a","data":1}"#, "`id` must not"),
    (
        "/_jobs/mail",
        r#"{"id":"..","data":1}"#,
        "`id` must not be `.` or `..`, because HTTP clients remove them from URLs; give another one",
    ),
    (
        "/_jobs/mail",
        r#"{"data":1,"due":"tomorrow"}"#,
        "`due` must be a time",
    ),
    (
        "/_jobs/mail",
        r#"{"data":1,"due":"2030-01-01T00:00:00Z","delay_sec":1}"#,
        "not both",
    ),
    (
        "/_jobs/mail",
        r#"{"data":1,"delay_sec":-1}"#,
        "a duration must not be negative",
    ),
    (
        "/_jobs/mail",
        r#"{"data":1,"class":"vip"}"#,
        "`class` must be one of urgent, normal, bulk, not \"vip\"",
    ),
    (
        "/_jobs/mail",
        r#"{"data":1,"key":""}"#,
        "`key`: a limit needs a name",
    ),
    (
        "/_jobs/mail",
        r#"{"data":1,"tenant":""}"#,
        "a tenant needs a name",
    ),
    (
        "/_jobs/mail/_claim",
        r#"{"count":1}"#,
        "`worker` is missing; add it",
    ),
    ("/_jobs/mail/_claim", r#"{"worker":""}"#, "`worker`"),
    (
        "/_jobs/mail/_claim",
        r#"{"worker":"w","count":501}"#,
        "1 to 500",
    ),
    (
        "/_jobs/mail/_claim",
        r#"{"worker":"w","wait_sec":61}"#,
        "at most 60",
    ),
    (
        "/_jobs/mail/_beat",
        r#"{"jobs":[{"lock":"x"}]}"#,
        "entry 1 of `jobs`: `id` is missing; add it",
    ),
    (
        "/_jobs/mail/_finish",
        r#"{"jobs":[{"id":"a","lock":5,"outcome":"done"}]}"#,
        "entry 1 of `jobs`: `lock` must be a string, not a number",
    ),
    (
        "/_jobs/mail/_finish",
        r#"{"jobs":[],"claim":1}"#,
        "needs `worker`",
    ),
    (
        "/_jobs/mail/_retry",
        r#"{"state":"finished"}"#,
        "must be dead",
    ),
];

#[tokio::test]
async fn wrong_requests_are_refused_with_advice() {
    let fixture = fixture_with(json!({"max_data_bytes": 10})).await;
    let root = fixture.root();
    for (path, body, reason) in REFUSED {
        let json = root.clone().with("content-type", "application/json");
        let answer = json.send(Method::POST, path, *body).await;
        let answer = answer.gives(400);
        let told = answer["reason"].as_str().unwrap();
        assert!(told.contains(reason), "{body}: {told}");
    }
    let large = root
        .post("/_jobs/mail", &json!({"data": "0123456789"}))
        .await;
    assert!(
        large.gives(413)["reason"]
            .to_string()
            .contains("max_data_bytes")
    );
    let missing = root.post("/_jobs/none", &json!({"data": 1})).await;
    assert!(
        missing.gives(404)["reason"]
            .to_string()
            .contains("PUT /_jobs/none")
    );
    for name in ["rep_jobs", "webhooks", "Mail", "a.b"] {
        let put = root.put(&format!("/_jobs/{name}"), &json!({})).await;
        let reason = put.gives(400)["reason"].to_string();
        assert!(
            reason.contains("choose another name") || reason.contains("a-z"),
            "{reason}"
        );
    }
    let many = json!({"jobs": [{"data": 1}, {"id": "b"}, {"id": "c", "data": 1, "x": 1}, {"id": "_d", "data": 1}, {"id": 5}, 6]});
    let rows = root.post("/_jobs/mail", &many).await.gives(201);
    assert_eq!(rows["results"][0]["ok"], true);
    assert_eq!(rows["results"][1]["error"], "bad_request");
    assert!(rows["results"][2]["reason"].to_string().contains("`x`"));
    let ids = rows["results"].as_array().unwrap()[1..].iter();
    let ids: Vec<_> = ids.map(|row| row["id"].clone()).collect();
    let none = Value::Null;
    assert_eq!(
        ids,
        [json!("b"), json!("c"), json!("_d"), none.clone(), none]
    );
    assert_eq!(
        root.get("/_jobs/mail/_type").await.gives(200)["counts"]["pending"],
        1
    );
}

#[tokio::test]
async fn repeated_requests_add_nothing_twice() {
    let fixture = fixture().await;
    let root = fixture.root();
    let with_key = root.clone().with("idempotency-key", "k1");
    let many = json!({"jobs": [{"data": 1}, {"id": "b", "data": 2}]});
    let first = with_key.post("/_jobs/mail", &many).await.gives(201);
    let jobs = claim(&root, 5, 0).await;
    assert_eq!(jobs.len(), 2);
    for job in &jobs {
        assert_eq!(finish(&root, job, json!({"outcome": "done"})).await.0, "ok");
    }
    let second = with_key.post("/_jobs/mail", &many).await.gives(201);
    assert_eq!(first, second);
    assert!(claim(&root, 5, 0).await.is_empty());
    root.with("idempotency-key", "k2")
        .post("/_jobs/mail", &many)
        .await
        .gives(201);
    assert_eq!(claim(&fixture.root(), 5, 0).await.len(), 2);
    let long = "k".repeat(257);
    for key in ["schl\u{fc}ssel", &long] {
        let with_key = fixture.root().with("idempotency-key", key);
        let refused = with_key.post("/_jobs/mail", &many).await.gives(400);
        assert!(refused["reason"].to_string().contains("256 ASCII"));
    }
}

#[tokio::test]
async fn a_job_that_exists_is_replaced_kept_or_hurried() {
    let fixture = fixture().await;
    let root = fixture.root();
    let post = |n: u32, delay: u32, on_exists: &str| json!({"id": "a", "data": n, "delay_sec": delay, "on_exists": on_exists});
    let shown = || async { root.get("/_jobs/mail/a").await.gives(200) };
    root.post("/_jobs/mail", &post(1, 100, "keep"))
        .await
        .gives(201);
    root.post("/_jobs/mail", &post(2, 0, "keep"))
        .await
        .gives(201);
    let kept = shown().await;
    assert_eq!(kept["data"], 1);
    root.post("/_jobs/mail", &post(3, 10, "earliest"))
        .await
        .gives(201);
    let hurried = shown().await;
    assert!(hurried["due"].as_str() < kept["due"].as_str() && hurried["data"] == 1);
    root.post("/_jobs/mail", &post(4, 0, "replace"))
        .await
        .gives(201);
    assert_eq!(shown().await["data"], 4);
}

#[tokio::test]
async fn urgent_jobs_come_first() {
    let fixture = fixture().await;
    let root = fixture.root();
    for class in ["bulk", "normal", "urgent"] {
        let job = json!({"id": class, "data": 1, "class": class});
        root.post("/_jobs/mail", &job).await.gives(201);
    }
    for class in ["urgent", "normal", "bulk"] {
        assert_eq!(claim(&root, 1, 0).await[0]["id"], class);
    }
}

#[tokio::test]
async fn a_paused_type_gives_no_jobs() {
    let fixture = fixture().await;
    let root = fixture.root();
    assert!(claim(&root, 1, 0).await.is_empty());
    root.post("/_jobs/mail/_pause", &Value::Null)
        .await
        .gives(200);
    root.post("/_jobs/mail", &json!({"id": "a", "data": 1}))
        .await
        .gives(201);
    assert!(root.get("/_jobs/mail/_type").await.gives(200)["paused"] == true);
    let resume = async {
        tokio::time::timeout(Duration::from_millis(100), claim(&root, 1, 60))
            .await
            .unwrap_err();
        root.post("/_jobs/mail/_resume", &Value::Null)
            .await
            .gives(200);
    };
    let (jobs, ()) = tokio::join!(claim(&root, 1, 60), resume);
    assert_eq!(jobs[0]["id"], "a");
    // Settings can be changed without resuming.
    root.post("/_jobs/mail/_pause", &Value::Null)
        .await
        .gives(200);
    root.put("/_jobs/mail", &json!({"timeout_sec": 5}))
        .await
        .gives(200);
    let info = root.get("/_jobs/mail/_type").await.gives(200);
    assert_eq!(
        (&info["paused"], &info["settings"]["timeout_sec"]),
        (&json!(true), &json!(5))
    );
}

#[tokio::test]
async fn a_full_type_refuses_jobs() {
    let fixture = fixture_with(json!({"max_pending": 2})).await;
    let root = fixture.root();
    let one = json!({"data": 1});
    for _ in 0..2 {
        root.post("/_jobs/mail", &one).await.gives(201);
    }
    let full = root.post("/_jobs/mail", &one).await;
    assert_eq!(full.header("retry-after"), "1");
    full.gives(429);
    claim(&root, 1, 0).await;
    root.post("/_jobs/mail", &one).await.gives(201);
}

/// A request, and the statuses that enqueuer, worker, reader, an unrelated user and an anonymous caller get.
pub(crate) const TABLE: &str = "
GET    /_jobs                  200 200 200 200 401
PUT    /_jobs/mail             401 401 401 401 401
POST   /_jobs/mail             400 403 403 403 401
GET    /_jobs/mail             403 403 200 403 401
GET    /_jobs/mail/_type       403 403 200 403 401
GET    /_jobs/mail/_failures   403 403 200 403 401
POST   /_jobs/mail/_claim      403 400 403 403 401
POST   /_jobs/mail/_beat       403 400 403 403 401
POST   /_jobs/mail/_finish     403 400 403 403 401
POST   /_jobs/mail/_retry      401 401 401 401 401
POST   /_jobs/mail/_pause      401 401 401 401 401
POST   /_jobs/mail/_resume     401 401 401 401 401
GET    /_jobs/mail/_feed       403 403 400 403 401
GET    /_jobs/mail/a           403 403 404 403 401
DELETE /_jobs/mail/a           401 401 401 401 401
GET    /_jobs/mail/a/_wait     403 403 404 403 401
POST   /_jobs/mail/a/_retry    401 401 401 401 401
DELETE /_jobs/mail             401 401 401 401 401
";

#[tokio::test]
async fn every_route_has_its_role() {
    let roles = json!({"enqueue": ["adder", "_admin"], "work": ["robot"], "read": ["auditor"]});
    let fixture = fixture_with(json!({"roles": roles})).await;
    for (name, role) in [
        ("ann", "adder"),
        ("bob", "robot"),
        ("cid", "auditor"),
        ("dan", "none"),
    ] {
        fixture.add_user(name, "password", &[role]).await;
    }
    let named = ["ann", "bob", "cid", "dan"].map(|name| fixture.user(name, "password"));
    let users: Vec<User<'_>> = named.into_iter().chain([fixture.anonymous()]).collect();
    let root = fixture.root().with("content-type", "application/json");
    for row in TABLE.trim().lines() {
        let mut columns = row.split_whitespace();
        let method: Method = columns.next().unwrap().parse().unwrap();
        let path = columns.next().unwrap();
        for user in &users {
            let expected: u16 = columns.next().unwrap().parse().unwrap();
            let json = user.clone().with("content-type", "application/json");
            let answer = json.send(method.clone(), path, r#"{"x":1}"#).await;
            assert_eq!(answer.status, expected, "{row}: {}", answer.text);
        }
        let status = root.send(method, path, r#"{"x":1}"#).await.status;
        assert!(
            status != 401 && status != 403,
            "{row}: an administrator gets {status}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_worker_loses_its_job() {
    let clock = Clock::simulated(1_700_000_000_000);
    let setting = Setting {
        clock: Some(clock),
        ..Setting::default()
    };
    let fixture = Fixture::with(api::Options::default(), setting).await;
    let root = fixture.root();
    root.put("/_jobs/mail", &json!({"timeout_sec": 3}))
        .await
        .gives(201);
    let options = jobs::Options::default();
    let maintenance = jobs::Maintenance::new(fixture.replications.jobs().clone(), options);
    let stop = tokio_util::sync::CancellationToken::new();
    let maintaining = tokio::spawn(maintenance.serve_prefix(queue::PREFIX).run(stop.clone()));
    root.post("/_jobs/mail", &json!({"id": "a", "data": 1}))
        .await
        .gives(201);
    let first = claim(&root, 1, 0).await.remove(0);
    let second = claim(&root, 1, 60).await.remove(0);
    assert_eq!(
        (&second["id"], &second["attempt"], &second["failures"]),
        (&json!("a"), &json!(2), &json!(1))
    );
    assert_eq!(
        finish(&root, &first, json!({"outcome": "done"})).await.0,
        "halt"
    );
    let shown = root.get("/_jobs/mail/a").await.gives(200);
    assert_eq!(shown["attempts"][0]["outcome"], "silent");
    stop.cancel();
    maintaining.await.unwrap();
}
