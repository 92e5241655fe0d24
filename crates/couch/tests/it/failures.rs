//! What becomes of requests that fail, and of answers that are none.

use couch::{Endpoint, Error, Failure, RequestOptions};

use crate::fake::{Fake, Step, answer, head, impatient, json, network, open};
use crate::requests::INFO;

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
        (json(200, r#"{"update_seq":1}"#), "it is not a database"),
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

#[tokio::test]
async fn interim_answers_without_an_end_are_a_failure_at_once() {
    let hints = b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(100);
    let fake = Fake::new(move |_| vec![Step::Endless(hints.clone())]).await;
    let url = Endpoint::from_url(&fake.url("/db")).unwrap();
    let options = RequestOptions {
        retries: 0,
        inactivity_ms: 600_000,
        ..RequestOptions::default()
    };
    let db = network().database(url, options).await.unwrap();
    let text = db.info().await.unwrap_err().to_string();
    assert!(text.contains("interim responses"), "{text}");
}
