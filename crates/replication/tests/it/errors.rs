//! What goes wrong at the servers, and what the run makes of it.

use std::time::Duration;

use couch::{EgressOptions, Network, NetworkOptions};
use peer::{Fault, Faults, On, Options, Profile};
use serde_json::{Value, json};

use crate::fixture::{World, counts};

fn answer(status: u16, body: &str) -> Fault {
    let kind = if body.starts_with('{') {
        "application/json"
    } else {
        "text/plain"
    };
    Fault::Answer {
        status,
        headers: vec![("Content-Type".to_owned(), kind.to_owned())],
        body: body.to_owned(),
    }
}

/// A world with ten documents and these faults on both sides.
async fn faulty(rules: impl IntoIterator<Item = (On, Fault)>) -> World {
    let world = World::new().await;
    world.put_docs(0..10);
    world.source.set_faults(Faults::script(rules));
    world
}

async fn failure(world: &World, options: Value) -> (String, String) {
    let error = world.try_replicate(options).await.unwrap_err();
    let info = error.to_info();
    (
        info["error"].as_str().unwrap().to_owned(),
        info["reason"].as_str().unwrap().to_owned(),
    )
}

#[tokio::test]
async fn databases_that_are_not_there() {
    let world = World::new().await;
    for (end, name) in [("source", "nope1"), ("target", "nope2")] {
        let url = world.source.database_url(name);
        let found = failure(&world, json!({end: url})).await;
        assert_eq!(
            found,
            ("db_not_found".to_owned(), format!("could not open {url}/"))
        );
    }
    // An address where something else answers.
    let found = failure(&world, json!({"source": world.source.url()})).await;
    assert_eq!(found.0, "db_not_found");
}

#[tokio::test]
async fn no_target_is_made_for_a_source_that_is_not_there() {
    let world = World::new().await;
    let source = world.source.database_url("nope");
    let target = world.source.database_url("made");
    let options = json!({"source": source, "target": target, "create_target": true});
    let found = failure(&world, options).await;
    assert_eq!(found.1, format!("could not open {source}/"));
    assert_eq!(world.source.count("PUT", "/made*"), 0);
}

#[tokio::test]
async fn hosts_that_are_not_there() {
    let world = World::new().await;
    let gone = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for user in ["", "user:secretword@"] {
        let options = json!({"source": format!("http://{user}{gone}/a"), "retries_per_request": 0});
        let (tag, reason) = failure(&world, options).await;
        assert_eq!(tag, "http_request_failed");
        assert!(!reason.contains("secretword"), "{reason}");
    }
}

#[tokio::test]
async fn unauthorized_and_forbidden() {
    let admin = Some(("adm".to_owned(), "pass".to_owned()));
    let world = World::with(Options {
        admin,
        ..Options::default()
    })
    .await;
    world.source.add_user("joe", "pass", &[]).unwrap();
    let url = world.source.database_url("a");
    let found = failure(&world, json!({})).await;
    let reason = format!("unauthorized to access or create database {url}/");
    assert_eq!(found, ("unauthorized".to_owned(), reason));
    let with = |user: &str| url.replace("http://", &format!("http://{user}:pass@"));
    let found = failure(&world, json!({"source": with("joe")})).await;
    assert_eq!(found, ("forbidden".to_owned(), format!("{url}/")));
    let found = failure(&world, json!({"source": with("nobody")})).await;
    assert!(
        ["unauthorized", "replication_auth_error"].contains(&found.0.as_str()),
        "{found:?}"
    );
    let target = world.source.database_url("new");
    let found = failure(
        &world,
        json!({"source": with("adm"), "target": target, "create_target": true}),
    )
    .await;
    assert_eq!(found.0, "unauthorized");
}

#[tokio::test]
async fn requests_that_end_the_run() {
    let body = r#"{"error":"x","reason":"y"}"#;
    for (on, status, tag, path) in [
        (
            On::post("/b/_bulk_docs"),
            403,
            "bulk_docs_failed",
            "POST {}/b/_bulk_docs",
        ),
        (
            On::get("/a/_changes"),
            418,
            "changes_req_failed",
            "GET {}/a/_changes",
        ),
        (
            On::post("/b/_revs_diff"),
            407,
            "revs_diff_failed",
            "POST {}/b/_revs_diff",
        ),
    ] {
        let world = faulty([(on, answer(status, body))]).await;
        // So that the target is asked what it has.
        world.target().put("b", r#"{"_id":"other"}"#).unwrap();
        let (found, reason) = failure(&world, json!({"retries_per_request": 1})).await;
        let path = path.replace("{}", &world.source.url());
        assert_eq!(found, tag);
        assert!(
            reason.ends_with(&format!("{status} from {path}: x: y")),
            "{reason}"
        );
    }
}

#[tokio::test]
async fn a_start_that_fails() {
    let world = faulty([(On::get("/a/"), answer(503, "{}"))]).await;
    let found = failure(&world, json!({"retries_per_request": 0})).await;
    assert_eq!(
        found,
        (
            "http_error_code".to_owned(),
            format!("503 GET {}/", world.source.database_url("a"))
        )
    );
}

/// Documents that are written one by one, and answers to that which the replication survives.
#[tokio::test]
async fn documents_that_are_passed_over() {
    for (status, body, error) in [
        (
            401,
            r#"{"error":"unauthorized","reason":"vdu"}"#,
            "unauthorized",
        ),
        (403, r#"{"error":"forbidden","reason":"vdu"}"#, "forbidden"),
        (
            413,
            r#"{"error":"too_large","reason":"vdu"}"#,
            "request_entity_too_large",
        ),
        (
            415,
            r#"{"error":"bad_ctype","reason":"vdu"}"#,
            "unsupported_media_type",
        ),
        (
            400,
            r#"{"error":"bad_request","reason":"Attachment name '_x' is prohibited"}"#,
            "invalid_attachment_name",
        ),
    ] {
        let world = faulty([(On::put("/b/att"), answer(status, body))]).await;
        world
            .source
            .attach("a", "att", None, "x", "a/b", vec![1; 200_000])
            .unwrap();
        let outcome = world.replicate(json!({})).await;
        assert_eq!(counts(&outcome), [11, 11, 11, 10, 1], "{status}");
        let failed = &outcome.progress.failures[0];
        assert_eq!((failed.id.as_str(), failed.error.as_str()), ("att", error));
    }
}

#[tokio::test]
async fn documents_that_end_the_run() {
    for (status, body, reason) in [
        (400, r#"{"error":"x","reason":"y"}"#, "x: y"),
        (400, r#"{"a":"b"}"#, r#"{"a":"b"}"#),
        (400, "potato", "potato"),
        (418, "", ""),
    ] {
        let world = faulty([(On::put("/b/att"), answer(status, body))]).await;
        world
            .source
            .attach("a", "att", None, "x", "a/b", vec![1; 200_000])
            .unwrap();
        let (tag, found) = failure(&world, json!({})).await;
        assert_eq!(tag, "doc_write_failed");
        let url = world.source.database_url("b");
        let expected = format!("{status} from PUT {url}/att: {reason}");
        assert!(found.ends_with(expected.trim_end_matches(": ")), "{found}");
    }
}

#[tokio::test]
async fn bulk_get_is_no_necessity() {
    for fault in [
        answer(501, "{}"),
        answer(418, "{}"),
        answer(200, "<html>"),
        answer(200, r#"{"results":[]}"#),
        answer(
            200,
            r#"{"results":[{"id":"doc0000","docs":[{"ok":{"_id":"doc0000""#,
        ),
        Fault::CutBody { after_bytes: 100 },
        Fault::Reset,
    ] {
        let world = faulty([(On::post("/a/_bulk_get"), fault.clone())]).await;
        // Of a second generation, so that the feed's documents do not do.
        let mut doc = world.source.get("a", "doc0003").unwrap().unwrap();
        doc["more"] = json!(1);
        world.put(&doc);
        let outcome = world.replicate(json!({"retries_per_request": 1})).await;
        assert_eq!(counts(&outcome), [10, 10, 10, 10, 0], "{fault:?}");
        assert_eq!(world.source.count("GET", "/a/doc0003"), 1, "{fault:?}");
        world.assert_same();
    }
}

#[tokio::test]
async fn without_bulk_get() {
    let world = World::new().await;
    world.put_docs(0..10);
    world.put(&json!({"_id": "_design/d"}));
    world
        .source
        .attach("a", "att", None, "x", "a/b", vec![1; 10])
        .unwrap();
    world.replicate(json!({"use_bulk_get": false})).await;
    world.assert_same();
    assert_eq!(world.source.count("POST", "/a/_bulk_get"), 0);
    assert_eq!(world.source.count("GET", "/a/doc*"), 10);
    assert_eq!(world.source.count("GET", "/a/_design/d"), 1);
    assert_eq!(
        world.target().count("PUT", "/b/doc*"),
        0,
        "they are written together all the same"
    );
    assert_eq!(world.target().count("PUT", "/b/_design/d"), 1);
    assert_eq!(world.target().count("PUT", "/b/att"), 1);
}

#[tokio::test]
async fn with_bulk_get() {
    let world = World::new().await;
    world.put_docs(0..10);
    world.replicate(json!({})).await;
    for n in 0..10 {
        let mut doc = world
            .source
            .get("a", &format!("doc{n:04}"))
            .unwrap()
            .unwrap();
        doc["more"] = json!(n);
        world.put(&doc);
    }
    world.put(&json!({"_id": "_design/d"}));
    let outcome = world.replicate(json!({})).await;
    world.assert_same();
    assert_eq!(outcome.progress.stats.bulk_get_docs, 10);
    assert_eq!(outcome.progress.stats.bulk_get_attempts, 10);
    assert_eq!(world.source.count("POST", "/a/_bulk_get"), 1);
    assert_eq!(world.source.count("GET", "/a/doc*"), 0);
    assert_eq!(world.source.count("GET", "/a/_design/d"), 1);
    assert_eq!(world.target().count("PUT", "/b/_design/d"), 1);
    assert_eq!(world.target().count("PUT", "/b/doc*"), 0);
}

#[tokio::test]
async fn revisions_that_cannot_be_read() {
    let rule = (On::get("/a/doc0000"), answer(200, "no multipart"));
    let world = faulty([rule]).await;
    let options = json!({"use_bulk_get": false, "retries_per_request": 2});
    let (tag, _) = failure(&world, options).await;
    assert_eq!(tag, "open_doc_revs_failed");
    assert_eq!(world.source.count("GET", "/a/doc0000"), 3);
}

#[tokio::test]
async fn a_revision_that_comes_late() {
    let missing = r#"[{"missing":"1-967a00dff5e02add41819138abb3284d"}]"#;
    let mut fault = answer(200, missing);
    if let Fault::Answer { headers, .. } = &mut fault {
        headers[0].1 = "application/json".to_owned();
    }
    let world = faulty([(On::get("/a/doc0000").nth(1), fault)]).await;
    let outcome = world.replicate(json!({"use_bulk_get": false})).await;
    assert_eq!(counts(&outcome)[3], 10);
    world.assert_same();
}

/// The target is asked what it has only while that pays.
#[tokio::test]
async fn questions_that_pay() {
    let batches = json!({"worker_batch_size": 10, "worker_processes": 1});
    let world = World::new().await;
    world.put_docs(0..400);
    world.target().put("b", r#"{"_id":"other"}"#).unwrap();
    world.replicate(batches.clone()).await;
    let asked = world.target().count("POST", "/b/_revs_diff");
    assert!((1..=20).contains(&asked), "{asked} of 40");
    // An empty target is never asked.
    let world = World::new().await;
    world.put_docs(0..400);
    world.replicate(batches.clone()).await;
    assert_eq!(world.target().count("POST", "/b/_revs_diff"), 0);
    // A target that has everything is asked for every batch.
    let again = json!({"worker_batch_size": 10, "since_seq": "0"});
    world.replicate(again).await;
    assert_eq!(world.target().count("POST", "/b/_revs_diff"), 40);
    assert_eq!(world.source.count("POST", "/a/_bulk_get"), 0);
}

#[tokio::test]
async fn a_server_that_wants_less() {
    let world = World::new().await;
    world.put_docs(0..500);
    let too_many = |n: u64, retry_after: Option<&str>| {
        (
            On::post("/b/_bulk_docs").nth(n),
            Fault::Status {
                status: 429,
                retry_after: retry_after.map(str::to_owned),
            },
        )
    };
    world.target().set_faults(Faults::script([
        too_many(1, None),
        too_many(2, Some("1")),
        too_many(4, None),
    ]));
    let outcome = world
        .replicate(json!({"worker_batch_size": 100, "retries_per_request": 0}))
        .await;
    assert_eq!(counts(&outcome), [500, 500, 500, 500, 0]);
    world.assert_same();
}

/// Documents that stream cannot be sent again, but being asked for patience is no failure of theirs either.
#[tokio::test]
async fn a_server_that_wants_less_of_what_streams() {
    for (status, retry_after) in [(429, None), (503, Some("0".to_owned()))] {
        let busy = Fault::Status {
            status,
            retry_after,
        };
        let world = faulty([(On::put("/b/att").first(4), busy)]).await;
        world
            .source
            .attach("a", "att", None, "x", "a/b", vec![1; 300_000])
            .unwrap();
        let outcome = world.replicate(json!({"retries_per_request": 1})).await;
        assert_eq!(counts(&outcome), [11, 11, 11, 11, 0]);
        world.assert_same();
    }
}

#[tokio::test]
async fn feeds_that_break_off() {
    for after_bytes in [10, 1000, 20_000] {
        let world = World::new().await;
        world.put_docs(0..1000);
        let rule = (
            On::get("/a/_changes").first(6),
            Fault::CutBody { after_bytes },
        );
        world.source.set_faults(Faults::script([rule]));
        let outcome = world.replicate(json!({"retries_per_request": 10})).await;
        assert_eq!(counts(&outcome)[3], 1000);
        world.assert_same();
    }
}

/// A world with sessions and a document that streams, whose first writes are answered by this; and the options.
async fn streams_into(refusal: Fault, times: u64) -> (World, Value) {
    let admin = Some(("adm".to_owned(), "pass".to_owned()));
    let options = Options {
        admin,
        ..Options::default()
    };
    let mut world = World::with(options).await;
    let options = NetworkOptions {
        egress: EgressOptions::open(),
        // As if each upload took longer than that.
        session_min_update_interval: 0,
        ..NetworkOptions::default()
    };
    world.network = Network::new(options, [7; 32]).unwrap();
    let attached = (world.source).attach("a", "att", None, "x", "a/b", vec![1; 200_000]);
    attached.unwrap();
    let rule = (On::put("/b/att").first(times), refusal);
    world.source.set_faults(Faults::script([rule]));
    let url = |db: &str| {
        let url = world.source.database_url(db);
        url.replace("http://", "http://adm:pass@")
    };
    let options = json!({"source": url("a"), "target": url("b")});
    (world, options)
}

/// The refusal of a request is not that of its document.
#[tokio::test]
async fn a_session_that_is_lost_before_a_stream() {
    let lost = r#"{"error":"unauthorized","reason":"You are not authorized to access this db."}"#;
    for (status, times) in [(401, 1), (401, 2), (403, 1)] {
        let (world, options) = streams_into(answer(status, lost), times).await;
        let outcome = world.replicate(options).await;
        assert_eq!(counts(&outcome), [1, 1, 1, 1, 0], "{status} {times}");
        assert!(world.source.get("b", "att").unwrap().is_some());
    }
}

#[tokio::test]
async fn a_stream_that_is_refused_for_good() {
    for (status, name) in [(401, "unauthorized"), (403, "forbidden")] {
        let refusal = json!({"error": name, "reason": "no"}).to_string();
        let (world, mut options) = streams_into(answer(status, &refusal), 1_000).await;
        options["retries_per_request"] = json!(1);
        let outcome = world.replicate(options).await;
        assert_eq!(counts(&outcome), [1, 1, 1, 0, 1]);
        assert_eq!(world.source.count("PUT", "/b/att"), 3);
    }
}

#[tokio::test]
async fn a_target_that_closes_early() {
    let fault = Fault::RefuseEarly {
        status: 413,
        after_bytes: 100_000,
    };
    let world = faulty([(On::put("/b/att"), fault)]).await;
    world
        .source
        .attach("a", "att", None, "x", "a/b", vec![1; 5_000_000])
        .unwrap();
    let outcome = world.replicate(json!({})).await;
    assert_eq!(counts(&outcome), [11, 11, 11, 10, 1]);
}

#[tokio::test]
async fn secrets_are_not_shown() {
    let secret = "pa:ss@w%rd/";
    let admin = Some(("adm".to_owned(), secret.to_owned()));
    let world = World::with(Options {
        admin,
        ..Options::default()
    })
    .await;
    world.put_docs(0..3);
    let end = |database: &str| json!({"url": world.source.database_url(database), "auth": {"basic": {"username": "adm", "password": secret}}});
    let options = json!({"source": end("a"), "target": end("b"), "retries_per_request": 0});
    for rule in [
        (
            On::get("/a/_changes"),
            answer(
                400,
                &json!({"error": secret, "reason": format!("your password {secret}")}).to_string(),
            ),
        ),
        (On::post("/b/_bulk_docs"), answer(400, secret)),
        (On::post("/b/_ensure_full_commit"), Fault::Reset),
    ] {
        world.source.set_faults(Faults::script([rule]));
        let error = world.try_replicate(options.clone()).await.unwrap_err();
        for text in [
            error.to_info().to_string(),
            format!("{error:?}"),
            error.to_string(),
        ] {
            assert!(!text.contains("w%rd") && !text.contains("pa:ss"), "{text}");
        }
    }
}

/// A server with too much to do slows the replication down and does not end it.
#[tokio::test]
async fn overload() {
    let world = World::new().await;
    world.put_docs(0..300);
    let profile = Profile {
        faults_max: 40,
        ..Profile::overload()
    };
    world.source.set_faults(Faults::seeded(11, profile));
    let outcome = world
        .replicate(json!({"worker_batch_size": 20, "retries_per_request": 20}))
        .await;
    assert_eq!(counts(&outcome)[3], 300);
    world.assert_same();
}

/// A feed of future changes may be quiet for so long; one of existing changes has failed.
#[tokio::test]
async fn a_feed_of_existing_changes_that_breaks_off_is_not_read_for_ever() {
    let feed = || On::get("/a/_changes?*feed=normal*");
    let world = faulty([
        (feed(), Fault::Latency { ms: 5_000 }),
        (
            feed(),
            Fault::SlowBody {
                bytes_per_second: 10,
            },
        ),
        (feed(), Fault::CutBody { after_bytes: 56 }),
    ])
    .await;
    let failing = failure(&world, json!({"retries_per_request": 1}));
    let failed = tokio::time::timeout(Duration::from_secs(60), failing).await;
    assert_eq!(failed.unwrap().0, "changes_req_failed");
}

#[tokio::test]
async fn what_cannot_be_written_in_any_way_is_counted() {
    let refused = r#"[{"id":"doc0000","error":"missing_stub","reason":"gone"}]"#;
    let world = World::new().await;
    world.put_docs(0..1);
    let bulk = On::post("/b/_bulk_docs");
    (world.target()).set_faults(Faults::script([(bulk, answer(201, refused))]));
    let outcome = world.replicate(json!({})).await;
    assert_eq!(counts(&outcome), [1, 1, 1, 0, 1]);
    assert_eq!(outcome.progress.failures[0].error, "missing_stub");
}
