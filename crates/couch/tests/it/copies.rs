//! Attachments on their way from one server to the other.

use bytes::Bytes;
use couch::{Database, Document, Error, Failure, Revisions};

use crate::fake::{Fake, Step, answer, chunk, chunked_head, head, json, open};
use crate::revisions::{DOC, MIXED, chunked, next_document, related, revisions, source};

/// A source whose answer has one revision with attachments, and that revision.
async fn one_revision(bytes: Vec<u8>) -> (Fake, Revisions, Document) {
    let fake = source(bytes, false).await;
    let mut revisions = revisions(&fake).await;
    let document = next_document(&mut revisions).await;
    (fake, revisions, document)
}

fn whole() -> Vec<u8> {
    let body = [related("gzip\0bytes12", b"\r\n\r\n\r"), b"--out--".to_vec()].concat();
    chunked(MIXED, &body, 100)
}

#[tokio::test]
async fn attachments_flow_from_source_to_target() {
    let target = Fake::new(|_| vec![Step::Send(json(201, r#"{"ok":true}"#))]).await;
    let (_source, mut revisions, document) = one_revision(whole()).await;
    let db = open(&target).await;
    db.put_with_attachments(&document, &mut revisions)
        .await
        .unwrap();
    assert_eq!(revisions.next().await.unwrap(), None);

    let seen = target.only();
    assert_eq!(
        (seen.method.as_str(), seen.target.as_str()),
        ("PUT", "/db/d%2F1?new_edits=false")
    );
    assert_eq!(
        seen.header("content-length"),
        Some(seen.body.len().to_string().as_str())
    );
    let content_type = seen.header("content-type").unwrap();
    let boundary = content_type
        .strip_prefix("multipart/related; boundary=\"")
        .unwrap()
        .trim_end_matches('"');
    assert_eq!(boundary.len(), 32);
    let expected = [
        format!("--{boundary}\r\nContent-Type: application/json\r\n\r\n{DOC}\r\n--{boundary}\r\n")
            .as_bytes(),
        b"Content-Disposition: attachment; filename=\"z.txt\"\r\nContent-Type: text/plain\r\n\
          Content-Length: 12\r\nContent-Encoding: gzip\r\n\r\ngzip\0bytes12",
        format!("\r\n--{boundary}\r\n").as_bytes(),
        b"Content-Disposition: attachment; filename=\"a \\\"q\\\".bin\"\r\nContent-Type: a/b\r\n\
          Content-Length: 5\r\n\r\n\r\n\r\n\r",
        format!("\r\n--{boundary}--").as_bytes(),
    ]
    .concat();
    assert_eq!(
        String::from_utf8_lossy(&seen.body),
        String::from_utf8_lossy(&expected)
    );

    let plain = Document::parse(Bytes::from_static(br#"{"_id":"_design/x"}"#)).unwrap();
    db.put(&plain).await.unwrap();
    let seen = target.seen().pop().unwrap();
    assert_eq!(seen.target, "/db/_design/x?new_edits=false");
    assert_eq!(
        (seen.header("content-type"), seen.json()["_id"].as_str()),
        (Some("application/json"), Some("_design/x"))
    );
}

#[tokio::test]
async fn a_source_that_breaks_off_breaks_off_the_target() {
    for (bytes, is_cut) in [
        (
            {
                let body = related("gzip\0bytes12", b"\r\n\r\n\r");
                let mut bytes = chunked_head(MIXED);
                bytes.extend(chunk(&body[..body.len() - 60]));
                bytes
            },
            true,
        ),
        (
            answer(200, &[("Content-Type", MIXED)], &related("short", b"12345")),
            false,
        ),
    ] {
        let target = Fake::hasty(|_| vec![Step::Stall]).await;
        let (_source, mut revisions, document) = one_revision(bytes).await;
        let error = open(&target)
            .await
            .put_with_attachments(&document, &mut revisions)
            .await
            .unwrap_err();
        assert!(error.request().unwrap().url.contains("d%2F1"), "{error}");
        assert_eq!(
            matches!(error, Error::Interrupted { .. }),
            is_cut,
            "{error:?}"
        );
        assert_eq!(
            matches!(error, Error::BadAnswer { .. }),
            !is_cut,
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_target_may_refuse_at_any_time() {
    type Is = fn(&Error) -> bool;
    let cases: [(u16, &str, Is); 6] = [
        (401, r#"{"error":"unauthorized"}"#, |e| {
            matches!(e, Error::Unauthorized(_))
        }),
        (403, r#"{"error":"forbidden"}"#, |e| {
            matches!(e, Error::Forbidden(_))
        }),
        (412, r#"{"error":"missing_stub"}"#, |e| {
            matches!(e, Error::MissingStub(_))
        }),
        (413, "too large", |e| matches!(e, Error::TooLarge(_))),
        (
            400,
            "potato",
            |e| matches!(e, Error::Refused(answer) if !answer.is_json),
        ),
        (500, "{}", |e| {
            matches!(
                e,
                Error::Failed {
                    attempts: 1,
                    cause: Failure::Status(_),
                    ..
                }
            )
        }),
    ];
    for (status, body, is) in cases {
        let target = Fake::new(move |_| vec![Step::Send(json(status, body))]).await;
        let (_source, mut revisions, document) = one_revision(whole()).await;
        let error = open(&target)
            .await
            .put_with_attachments(&document, &mut revisions)
            .await
            .unwrap_err();
        assert!(is(&error), "{error:?}");
        assert_eq!(target.seen().len(), 1, "what has streamed is not repeated");
        assert_eq!(revisions.next().await.unwrap(), None, "the rest is skipped");
    }
}

/// A revision with one attachment of `length` bytes, which the source sends for as long as they are
/// taken.
async fn large(length: u64) -> (Fake, Revisions, Document) {
    let json =
        format!(r#"{{"_id":"d","_attachments":{{"a":{{"length":{length},"follows":true}}}}}}"#);
    let start = format!(
        "--out\r\nContent-Type: multipart/related; boundary=in\r\n\r\n--in\r\n\r\n{json}\r\n--in\r\n\r\n"
    );
    let fake = Fake::new(move |_| {
        vec![
            Step::Send(head(200, &[("Content-Type", MIXED)])),
            Step::Send(start.clone().into_bytes()),
            Step::Endless(vec![b'x'; 64 * 1024]),
        ]
    })
    .await;
    let mut revisions = revisions(&fake).await;
    let document = next_document(&mut revisions).await;
    (fake, revisions, document)
}

#[tokio::test]
async fn a_large_attachment_is_refused_early() {
    for closes in [false, true] {
        let target = Fake::hasty(move |_| {
            let end = if closes { Step::Close } else { Step::Stall };
            vec![Step::Send(json(413, r#"{"error":"too_large"}"#)), end]
        })
        .await;
        let (_source, mut revisions, document) = large(1 << 40).await;
        let db: Database = open(&target).await;
        let error = db
            .put_with_attachments(&document, &mut revisions)
            .await
            .unwrap_err();
        // A target that closes with our data unread may take its answer back.
        let is_lost = matches!(
            error,
            Error::Failed {
                cause: Failure::Connection(_),
                ..
            }
        );
        assert!(
            matches!(error, Error::TooLarge(_)) || (closes && is_lost),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_slow_target_slows_the_source() {
    let target = Fake::hasty(|_| vec![Step::Stall]).await;
    let (source, mut revisions, document) = large(1 << 40).await;
    let endpoint = couch::Endpoint::from_url(&target.url("/db")).unwrap();
    let options = couch::RequestOptions {
        inactivity_ms: 500,
        retries: 0,
        ..couch::RequestOptions::default()
    };
    let db = crate::fake::network()
        .database(endpoint, options)
        .await
        .unwrap();
    let error = db
        .put_with_attachments(&document, &mut revisions)
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::Failed {
                cause: Failure::WriteTimeout { .. },
                ..
            }
        ),
        "{error:?}"
    );
    let held = db.traffic().bytes_written;
    assert!(held < 32 << 20, "{held} bytes went into the connection");
    drop(revisions);
    source.all_closed().await;
}

/// A revision with one attachment of five bytes and this digest.
async fn with_digest(digest: &str) -> (Fake, Revisions, Document) {
    let json = format!(
        r#"{{"_id":"d","_attachments":{{"a":{{"length":5,"follows":true,"digest":"{digest}"}}}}}}"#
    );
    let body = format!(
        "--out\r\nContent-Type: multipart/related; boundary=in\r\n\r\n--in\r\n\r\n{json}\r\n--in\r\n\r\nhello\r\n--in--\r\n--out--"
    );
    one_revision(answer(200, &[("Content-Type", MIXED)], body.as_bytes())).await
}

#[tokio::test]
async fn damaged_attachments_are_not_passed_on() {
    for (digest, is_whole) in [
        ("md5-XUFAKrxLKna5cZ2REBfFkg==", true),
        ("md5-AAAAKrxLKna5cZ2REBfFkg==", false),
        // Nothing that could be checked.
        ("sha1-AAAA", true),
        ("md5-AAAA", true),
    ] {
        let target = Fake::new(|_| vec![Step::Send(json(201, r#"{"ok":true}"#))]).await;
        let (_source, mut revisions, document) = with_digest(digest).await;
        let db = open(&target).await;
        let put = db.put_with_attachments(&document, &mut revisions).await;
        match put {
            Ok(()) => assert!(is_whole, "{digest}"),
            Err(error) => {
                assert!(!is_whole, "{digest} {error:?}");
                assert!(error.to_string().contains("digest"), "{error}");
                assert!(target.seen().is_empty(), "the target saw a whole request");
            }
        }
    }
}
