//! What requests look like, and what becomes of answers.

use couch::{DocId, Endpoint, Error, Failure, RequestOptions, Rev, Seq};
use serde_json::json;

use crate::fake::{Fake, Step, answer, endpoint, head, impatient, json, network, open};

const INFO: &str = r#"{"db_name":"db","update_seq":"12-abc","instance_start_time":"0","doc_count":3,"doc_del_count":1}"#;

#[tokio::test]
async fn requests_say_what_couchdb_says() {
    let fake = Fake::answering(&[("/db/", json(200, INFO))]).await;
    let plain = open(&fake).await;
    let info = plain.info().await.unwrap();
    assert_eq!(info.update_seq, Seq::from_json("\"12-abc\"").unwrap());
    assert_eq!(info.instance_start_time, "0");
    assert_eq!((info.doc_count, info.doc_del_count), (Some(3), Some(1)));
    let seen = fake.only();
    assert_eq!(
        (seen.method.as_str(), seen.target.as_str()),
        ("GET", "/db/")
    );
    assert_eq!(seen.header("accept"), Some("application/json"));
    assert_eq!(seen.header("user-agent"), Some(couch::USER_AGENT));
    assert_eq!(seen.header("accept-encoding"), Some("gzip"));
    assert_eq!(seen.header("host"), Some(fake.address.to_string().as_str()));
    assert_eq!(seen.header("authorization"), None);

    let own = endpoint(json!({
        "url": fake.url("/db?own=1"),
        "headers": { "Accept": "a/b", "X-Mine": "y", "Content-Length": "99", "Connection": "close" },
    }));
    let own = network().database(own, impatient()).await.unwrap();
    own.info().await.unwrap();
    let seen = fake.seen().pop().unwrap();
    assert_eq!(seen.target, "/db/?own=1");
    assert_eq!(seen.header("accept"), Some("a/b"));
    assert_eq!(seen.header("x-mine"), Some("y"));
    assert_eq!(seen.header("content-length"), None);
    assert_eq!(seen.header("connection"), None);

    let traffic = own.traffic();
    assert_eq!(
        (traffic.requests, traffic.bytes_read),
        (1, INFO.len() as u64)
    );
    assert_eq!(format!("{}", own.endpoint()), fake.url("/db?own=1"));
}

#[tokio::test]
async fn short_requests() {
    let fake = Fake::new(|seen| {
        let body = match (seen.method.as_str(), seen.path()) {
            ("GET", "/db/_changes") => r#"{"results":[],"last_seq":"9-x","pending":7}"#,
            ("GET", "/db/") => r#"{"update_seq":20,"instance_start_time":17}"#,
            ("POST", "/db/_ensure_full_commit") => r#"{"ok":true,"instance_start_time":"17"}"#,
            ("PUT", "/db/_local/a%20b") => r#"{"ok":true,"id":"_local/a b","rev":"0-2"}"#,
            ("GET", "/db/_local/there") => r#"{"_id":"_local/there","_rev":"0-1","x":[1]}"#,
            ("GET", "/db/_design/f") => r#"{"_id":"_design/f", "filters": {"a": "code"}}"#,
            ("DELETE" | "PUT", _) => "{\"ok\":true}",
            _ => return vec![Step::Send(json(404, r#"{"error":"not_found"}"#))],
        };
        vec![Step::Send(json(201, body))]
    })
    .await;
    let db = open(&fake).await;
    assert_eq!(
        db.pending(&Seq::from_json("\"5-x\"").unwrap())
            .await
            .unwrap(),
        Some(7)
    );
    assert_eq!(
        db.pending(&Seq::from_json("15").unwrap()).await.unwrap(),
        Some(5)
    );
    assert_eq!(db.ensure_full_commit().await.unwrap(), "17");
    assert_eq!(db.info().await.unwrap().instance_start_time, "17");
    let body = json!({ "_rev": "0-1", "y": 1 });
    assert_eq!(db.put_local("a b", &body).await.unwrap(), Rev::from("0-2"));
    let there: Option<serde_json::Value> = db.local("there").await.unwrap();
    assert_eq!(there.unwrap()["x"], json!([1]));
    assert_eq!(db.local::<serde_json::Value>("gone").await.unwrap(), None);
    db.delete_local("there", &Rev::from("0-1")).await.unwrap();
    let design = db
        .document(&DocId::from("_design/f"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        design.json(),
        r#"{"_id":"_design/f", "filters": {"a": "code"}}"#
    );
    assert!(db.document(&DocId::from("gone")).await.unwrap().is_none());
    db.create(&[
        ("q".to_owned(), "4".to_owned()),
        ("n".to_owned(), "1 2".to_owned()),
    ])
    .await
    .unwrap();

    let seen = fake.seen();
    let find = |method: &str, path: &str| {
        seen.iter()
            .find(|seen| seen.method == method && seen.path() == path)
            .unwrap()
    };
    assert_eq!(
        find("GET", "/db/_changes").target,
        "/db/_changes?since=5-x&limit=0"
    );
    let commit = find("POST", "/db/_ensure_full_commit");
    assert_eq!(commit.header("content-type"), Some("application/json"));
    assert_eq!(commit.header("content-length"), Some("0"));
    let put = find("PUT", "/db/_local/a%20b");
    assert_eq!(put.header("x-couch-full-commit"), Some("false"));
    assert_eq!(put.json(), body);
    assert_eq!(
        find("DELETE", "/db/_local/there").target,
        "/db/_local/there?rev=0-1"
    );
    assert_eq!(find("PUT", "/db/").target, "/db/?q=4&n=1%202");
    assert_eq!(fake.connections(), 1, "one connection for all");
}

#[tokio::test]
async fn the_server_above() {
    let fake = Fake::answering(&[
        (
            "/couch/",
            json(
                200,
                r#"{"couchdb":"Welcome","version":"3.5.1","features":["x"],"vendor":{"name":"V"}}"#,
            ),
        ),
        (
            "/couch/_session",
            json(
                200,
                r#"{"ok":true,"userCtx":{"name":"u","roles":["_admin"]},"info":{}}"#,
            ),
        ),
    ])
    .await;
    let endpoint = Endpoint::from_url(&fake.url("/couch/my%2Fdb?q=1")).unwrap();
    let server = network()
        .database(endpoint, impatient())
        .await
        .unwrap()
        .server();
    let info = server.info().await.unwrap();
    assert_eq!(
        (info.major_version(), info.features),
        (Some(3), vec!["x".to_owned()])
    );
    let session = server.session().await.unwrap();
    assert_eq!(
        (session.name.as_deref(), session.roles),
        (Some("u"), vec!["_admin".to_owned()])
    );
}

#[tokio::test]
async fn statuses_by_what_the_caller_does_next() {
    type Is = fn(&Error) -> bool;
    let cases: [(u16, &str, Is, &str); 11] = [
        (
            401,
            r#"{"error":"unauthorized","reason":"no"}"#,
            |e| matches!(e, Error::Unauthorized(_)),
            "unauthorized: no",
        ),
        (
            403,
            r#"{"error":"forbidden","reason":"no"}"#,
            |e| matches!(e, Error::Forbidden(_)),
            "forbidden: no",
        ),
        (
            404,
            r#"{"error":"not_found"}"#,
            |e| matches!(e, Error::NotFound(_)),
            "not_found",
        ),
        (409, "{}", |e| matches!(e, Error::Conflict(_)), "{}"),
        (
            412,
            r#"{"error":"missing_stub","reason":"x"}"#,
            |e| matches!(e, Error::MissingStub(_)),
            "missing_stub: x",
        ),
        (
            412,
            r#"{"error":"file_exists"}"#,
            |e| matches!(e, Error::Refused(_)),
            "file_exists",
        ),
        (413, "", |e| matches!(e, Error::TooLarge(_)), ""),
        (415, "potato", |e| matches!(e, Error::Refused(_)), "potato"),
        (
            418,
            r#"{"x":"y"}"#,
            |e| matches!(e, Error::Refused(_)),
            r#"{"x":"y"}"#,
        ),
        (
            400,
            r#"{"error":{"a":1},"reason":null}"#,
            |e| matches!(e, Error::Refused(_)),
            r#"{"a":1}"#,
        ),
        (304, "", |e| matches!(e, Error::Refused(_)), ""),
    ];
    for (status, body, is, said) in cases {
        let fake = Fake::answering(&[("/db/", json(status, body))]).await;
        let error = open(&fake).await.info().await.unwrap_err();
        assert!(is(&error), "{status}: {error:?}");
        let shown = error.answer().unwrap().to_string();
        let request = format!("{status} from GET {}", fake.url("/db/"));
        let expected = if said.is_empty() {
            request
        } else {
            format!("{request}: {said}")
        };
        assert_eq!(shown, expected);
        assert_eq!(error.status(), Some(status));
        assert_eq!(
            error.answer().unwrap().is_json,
            body.starts_with('{'),
            "{body}"
        );
    }
}

#[tokio::test]
async fn long_reasons_are_cut() {
    let reason = format!("{{\"error\":\"x\",\"reason\":\"{}\\n\"}}", "é".repeat(5000));
    let fake = Fake::answering(&[("/db/", json(400, reason))]).await;
    let error = open(&fake).await.info().await.unwrap_err();
    assert_eq!(
        error
            .answer()
            .unwrap()
            .reason
            .as_ref()
            .unwrap()
            .chars()
            .count(),
        200
    );
}

/// Fails by `steps` so many times, then works.
async fn recovering(failures: usize, steps: fn() -> Vec<Step>) -> Fake {
    let count = std::sync::atomic::AtomicUsize::new(0);
    Fake::new(move |_| {
        let before = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if before < failures {
            steps()
        } else {
            vec![Step::Send(json(200, INFO))]
        }
    })
    .await
}

fn retrying(retries: u32) -> RequestOptions {
    RequestOptions {
        retries,
        inactivity_ms: 200,
        ..RequestOptions::default()
    }
}

#[tokio::test]
async fn failures_are_repeated() {
    let kinds: [fn() -> Vec<Step>; 7] = [
        || vec![Step::Send(json(500, "{}"))],
        || vec![Step::Send(json(408, "{}"))],
        || vec![Step::Send(answer(503, &[], b"<html>"))],
        || vec![Step::Close],
        || {
            vec![
                Step::Send(b"HTTP/1.1 200 OK\r\nContent-Le".to_vec()),
                Step::Close,
            ]
        },
        || {
            vec![
                Step::Send(head(200, &[("Content-Length", "999")])),
                Step::Send(b"{}".to_vec()),
                Step::Close,
            ]
        },
        || vec![Step::Stall],
    ];
    for steps in kinds {
        let fake = recovering(1, steps).await;
        let url = Endpoint::from_url(&fake.url("/db")).unwrap();
        let db = network().database(url, retrying(1)).await.unwrap();
        assert_eq!(db.info().await.unwrap().doc_count, Some(3));
        assert_eq!(db.traffic().retries, 1);
        assert_eq!(fake.seen().len(), 2);
    }
}

#[tokio::test]
async fn repetition_has_an_end() {
    let fake = recovering(usize::MAX, || {
        vec![Step::Send(json(500, r#"{"error":"e","reason":"r"}"#))]
    })
    .await;
    let url = Endpoint::from_url(&fake.url("/db?secret=1")).unwrap();
    let db = network().database(url, retrying(2)).await.unwrap();
    let error = db.info().await.unwrap_err();
    let Error::Failed {
        attempts: 3,
        cause: Failure::Status(answer),
        ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!(answer.status, 500);
    assert_eq!(
        error.to_string(),
        format!(
            "no answer to GET {0} in 3 attempts: 500 from GET {0}: e: r",
            fake.url("/db/")
        )
    );

    let window = RequestOptions {
        retries: 100,
        retry_window_ms: 0,
        ..RequestOptions::default()
    };
    let url = Endpoint::from_url(&fake.url("/db")).unwrap();
    let db = network().database(url, window).await.unwrap();
    let Error::Failed { attempts: 2, .. } = db.info().await.unwrap_err() else {
        panic!()
    };
}

#[tokio::test]
async fn nobody_listens() {
    let address = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let url = Endpoint::from_url(&format!("http://{address}/db")).unwrap();
    let db = network().database(url, retrying(1)).await.unwrap();
    let error = db.info().await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Failed {
                attempts: 2,
                cause: Failure::Connect(_),
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn answers_that_are_none() {
    let cases: [(Vec<u8>, &str); 6] = [
        (json(200, "potato"), "not the JSON that was expected"),
        (json(200, "[]"), "not the JSON that was expected"),
        (json(200, ""), "not the JSON that was expected"),
        (json(200, r#"{"update_seq":1}"#), "it is no database"),
        (
            json(
                200,
                r#"{"update_seq":1,"instance_start_time":"0"} trailing"#,
            ),
            "not the JSON that was expected",
        ),
        (
            answer(200, &[("Content-Encoding", "gzip")], b"{}"),
            "its gzip is damaged",
        ),
    ];
    for (answer, problem) in cases {
        let fake = Fake::answering(&[("/db/", answer)]).await;
        let error = open(&fake).await.info().await.unwrap_err();
        let Error::BadAnswer { problem: found, .. } = &error else {
            panic!("{error:?}")
        };
        assert!(found.starts_with(problem), "{found}");
    }
}

#[tokio::test]
async fn protocol_nonsense_is_a_failure() {
    for nonsense in [
        b"potato potato potato\r\n\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}".to_vec(),
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}".to_vec(),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n".to_vec(),
        [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'x'; 1 << 20]].concat(),
    ] {
        let sent = nonsense.clone();
        let fake = Fake::new(move |_| vec![Step::Send(sent.clone()), Step::Close]).await;
        let error = open(&fake).await.info().await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::Failed {
                    cause: Failure::Connection(_),
                    ..
                }
            ),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn answers_without_an_end_are_refused() {
    let fake = Fake::new(|_| {
        vec![
            Step::Send(head(200, &[])),
            Step::Endless(vec![b' '; 64 * 1024]),
        ]
    })
    .await;
    let options = RequestOptions {
        answer_bytes_max: 1 << 20,
        ..impatient()
    };
    let url = Endpoint::from_url(&fake.url("/db")).unwrap();
    let db = network().database(url, options).await.unwrap();
    let error = db.info().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "bad answer to GET {}: it has more than 1048576 bytes",
            fake.url("/db/")
        )
    );
    assert!(db.traffic().bytes_read < 3 << 20);
    fake.all_closed().await;
}

#[tokio::test]
async fn slow_answers_are_answers() {
    let fake = Fake::new(|_| vec![Step::Drip(json(200, INFO))]).await;
    assert_eq!(open(&fake).await.info().await.unwrap().doc_count, Some(3));
}

#[tokio::test]
async fn time_outs_tell_which_way() {
    let stalled = Fake::new(|_| vec![Step::Stall]).await;
    let half = Fake::new(|_| {
        vec![
            Step::Send(head(200, &[("Content-Length", "9")])),
            Step::Stall,
        ]
    })
    .await;
    for fake in [&stalled, &half] {
        let url = Endpoint::from_url(&fake.url("/db")).unwrap();
        let db = network().database(url, retrying(0)).await.unwrap();
        let error = db.info().await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::Failed {
                    cause: Failure::ReadTimeout { idle_ms: 200 },
                    ..
                }
            ),
            "{error:?}"
        );
        let total = RequestOptions {
            request_timeout_ms: Some(50),
            ..retrying(0)
        };
        let url = Endpoint::from_url(&fake.url("/db")).unwrap();
        let db = network().database(url, total).await.unwrap();
        let error = db.info().await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::Failed {
                    cause: Failure::RequestTimeout { total_ms: 50 },
                    ..
                }
            ),
            "{error:?}"
        );
    }

    let deaf = Fake::hasty(|_| vec![Step::Stall]).await;
    let url = Endpoint::from_url(&deaf.url("/db")).unwrap();
    let db = network().database(url, retrying(0)).await.unwrap();
    let large = vec![bytes::Bytes::from(vec![b' '; 1 << 20]); 64];
    let error = db.bulk_docs(&large).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Failed {
                cause: Failure::WriteTimeout { idle_ms: 200 },
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_dropped_request_ends_at_once() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/db", listener.local_addr().unwrap());
    let db = network()
        .database(Endpoint::from_url(&url).unwrap(), impatient())
        .await
        .unwrap();
    let mut asking = Box::pin(async move { db.info().await });
    let (mut stream, _) = tokio::select! {
        accepted = listener.accept() => accepted.unwrap(),
        _ = &mut asking => panic!("answered by nobody"),
    };
    let reading = crate::fake::read_request(&mut stream, 0, true);
    tokio::select! {
        seen = reading => assert_eq!(seen.unwrap().target, "/db/"),
        _ = &mut asking => panic!("answered by nobody"),
    }
    drop(asking);
    let mut rest = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest)
        .await
        .unwrap();
    assert!(rest.is_empty());
}
