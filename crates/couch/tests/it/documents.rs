//! Documents and attachments, there and back.

use bytes::Bytes;
use couch::{
    Attachments, Database, DocId, Document, Error, Failure, Rev, Revision, Revisions, WantedRev,
    WantedRevs,
};

use crate::fake::{Fake, Step, answer, chunk, chunked_head, head, json, last_chunk, open};

fn wanted(pairs: &[(&str, &str)]) -> Vec<WantedRev> {
    let one = |(id, rev): &(&str, &str)| WantedRev {
        id: DocId::from(*id),
        rev: Rev::from(*rev),
        atts_since: Vec::new(),
    };
    pairs.iter().map(one).collect()
}

#[tokio::test]
async fn bulk_get_by_index() {
    let body = r#"{"results":[
        {"id":"a","docs":[{"ok":{"_id":"a","_rev":"1-x","z":1,"a":2.50}}]},
        {"id":"b","docs":[{"error":{"id":"b","rev":"1-x","error":"not_found","reason":"missing"}}]},
        {"id":"c","docs":[{"ok":{"_id":"c","_rev":"1-x"}},{"ok":{"_id":"c","_rev":"1-y","_deleted":true}}]}]}"#;
    let fake = Fake::answering(&[("/db/_bulk_get", json(200, body))]).await;
    let db = open(&fake).await;
    let mut asked = wanted(&[("a", "1-x"), ("b", "1-x"), ("c", "1-x"), ("c", "1-y")]);
    asked[0].atts_since.push(Rev::from("0-w"));
    let mut answer = db.bulk_get(&asked, false).await.unwrap();
    let mut found = Vec::new();
    while let Some(fetched) = answer.next().await.unwrap() {
        found.push(fetched);
    }
    let indexes: Vec<_> = found.iter().map(|fetched| fetched.index).collect();
    assert_eq!(indexes, [0, 1, 2, 3]);
    let first = found[0].result.as_ref().unwrap();
    assert_eq!(first.json(), r#"{"_id":"a","_rev":"1-x","z":1,"a":2.50}"#);
    assert_eq!(found[1].result.as_ref().unwrap_err().error, "not_found");
    assert!(found[3].result.as_ref().unwrap().deleted);
    let seen = fake.only();
    assert_eq!(
        seen.target,
        "/db/_bulk_get?latest=true&revs=true&att_encoding_info=true&attachments=false"
    );
    assert_eq!(seen.header("accept"), Some("application/json"));
    let body = seen.json();
    assert_eq!(
        body["docs"][0],
        serde_json::json!({"id":"a","rev":"1-x","atts_since":["0-w"]})
    );
    assert_eq!(
        (&body["latest"], &body["revs"], &body["attachments"]),
        (&true.into(), &true.into(), &false.into())
    );
}

#[tokio::test]
async fn bulk_get_answers_that_cannot_be_trusted() {
    let ok = r#"{"id":"a","docs":[{"ok":{"_id":"a"}}]}"#;
    for (results, problem) in [
        (String::new(), "0 of 2 results"),
        (ok.to_owned(), "1 of 2 results"),
        (format!("{ok},{ok}"), "results in another order than wanted"),
        (
            format!("{ok},{}", ok.replace("\"a\"", "\"b\""))
                .replace("\"id\":\"b\"", "\"id\":\"c\""),
            "results in another order than wanted",
        ),
        (
            format!(r#"{ok},{{"id":"b","docs":[]}}"#),
            "results in another order than wanted",
        ),
        (
            format!(r#"{ok},{{"id":"b","docs":[{{"ok":1}}]}}"#),
            "not the JSON that was expected",
        ),
        (
            format!(r#"{ok},{{"id":"b","docs":[{{}}]}}"#),
            "a result that is neither ok nor error",
        ),
        (
            format!(r#"{ok},{{"id":"b"}}"#),
            "not the JSON that was expected",
        ),
        (
            format!("{ok},{{\"id\":\"b\",\"docs\":[{{\"ok\":{{\"x\":\"\u{1}\"}}}}]}}"),
            "not the JSON that was expected",
        ),
    ] {
        let body = format!("{{\"results\":[{results}]}}");
        let fake = Fake::answering(&[("/db/_bulk_get", json(200, &body))]).await;
        let db = open(&fake).await;
        let mut answer = db
            .bulk_get(&wanted(&[("a", "1-x"), ("b", "1-x")]), false)
            .await
            .unwrap();
        let error = loop {
            match answer.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("{body}"),
                Err(error) => break error,
            }
        };
        let Error::BadAnswer { problem: found, .. } = &error else {
            panic!("{error:?} {body}")
        };
        assert!(found.starts_with(problem), "{found} {body}");
    }
}

#[tokio::test]
async fn bulk_docs_are_sent_as_they_are() {
    let fake = Fake::new(|seen| {
        let many = seen.body.len() > 100;
        let refused = r#"[{"id":"a","rev":"1-x","error":"forbidden","reason":"no"},{"ok":true,"id":"b","rev":"1-y"}]"#;
        vec![Step::Send(if many { json(201, "[]") } else { json(417, refused) })]
    })
    .await;
    let db = open(&fake).await;
    let documents = [
        Bytes::from_static(b"{\"b\":1.0, \"a\":1e400}"),
        Bytes::from_static(b"{}"),
    ];
    let refused = db.bulk_docs(&documents).await.unwrap();
    assert_eq!(refused.len(), 1);
    assert_eq!(
        (
            refused[0].id.as_ref().unwrap().as_str(),
            refused[0].error.as_str()
        ),
        ("a", "forbidden")
    );
    let seen = fake.only();
    assert_eq!(
        seen.body,
        br#"{"new_edits":false,"docs":[{"b":1.0, "a":1e400},{}]}"#
    );
    assert_eq!(seen.header("x-couch-full-commit"), Some("false"));
    let first_bytes = seen.body.len();
    assert_eq!(db.bulk_docs(&[]).await.unwrap(), []);
    assert_eq!(fake.seen().len(), 1, "nothing is not sent");

    let many: Vec<_> = (0..5000)
        .map(|n| Bytes::from(format!("{{\"n\":{n}}}")))
        .collect();
    assert_eq!(db.bulk_docs(&many).await.unwrap(), []);
    let seen = fake.seen().pop().unwrap();
    assert_eq!(seen.json()["docs"][4999]["n"], 4999);
    assert_eq!(
        db.traffic().bytes_written,
        (first_bytes + seen.body.len()) as u64
    );
}

const DOC: &str = r#"{"_id":"d/1","_rev":"3-c","_revisions":{"start":3,"ids":["c","b"]},"n":1.10,"_attachments":{"z.txt":{"content_type":"text/plain","revpos":2,"digest":"md5-x","length":100,"follows":true,"encoding":"gzip","encoded_length":12},"stub":{"stub":true,"length":3},"a \"q\".bin":{"content_type":"a/b","length":5,"follows":true}}}"#;

/// A revision with attachments as CouchDB sends it.
fn related(first: &str, second: &[u8]) -> Vec<u8> {
    [
        b"--out\r\nContent-Type: multipart/related; boundary=\"in\"\r\n\r\n".as_slice(),
        b"--in\r\nContent-Type: application/json\r\n\r\n",
        DOC.as_bytes(),
        b"\r\n--in\r\nContent-Disposition: attachment; filename=\"z.txt\"\r\nContent-Type: text/plain\r\n\
          Content-Length: 12\r\nContent-Encoding: gzip\r\n\r\n",
        first.as_bytes(),
        b"\r\n--in\r\nContent-Disposition: attachment; filename=\"a \"q\".bin\"\r\nContent-Type: a/b\r\n\
          Content-Length: 5\r\n\r\n",
        second,
        b"\r\n--in--\r\n",
    ]
    .concat()
}

pub(crate) fn mixed() -> Vec<u8> {
    [
        b"--out\r\nContent-Type: application/json\r\n\r\n{\"_id\":\"d/1\",\"_rev\":\"2-p\"}\r\n".as_slice(),
        &related("--in--out\r\n-", b"\r\n--i"),
        b"--out\r\nContent-Type: application/json; error=\"true\"\r\n\r\n{\"missing\":\"1-gone\"}\r\n--out--",
    ]
    .concat()
}

pub(crate) const MIXED: &str = "multipart/mixed; boundary=\"out\"";

async fn source(bytes: Vec<u8>, drips: bool) -> Fake {
    Fake::new(move |_| {
        let bytes = bytes.clone();
        vec![
            if drips {
                Step::Drip(bytes)
            } else {
                Step::Send(bytes)
            },
            Step::Close,
        ]
    })
    .await
}

async fn revisions(fake: &Fake) -> Revisions {
    let revs = [Rev::from("3-c")];
    let db = open(fake).await;
    db.open_revs(
        &DocId::from("d/1"),
        WantedRevs::These(&revs),
        &[Rev::from("1-a")],
    )
    .await
    .unwrap()
}

async fn next_document(revisions: &mut Revisions) -> Document {
    match revisions.next().await.unwrap().unwrap() {
        Revision::Document(document) => document,
        missing @ Revision::Missing(_) => panic!("{missing:?}"),
    }
}

fn chunked(content_type: &str, body: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = chunked_head(content_type);
    body.chunks(size).for_each(|part| bytes.extend(chunk(part)));
    bytes.extend(last_chunk());
    bytes
}

#[tokio::test]
async fn revisions_stream() {
    for (bytes, drips) in [
        (answer(200, &[("Content-Type", MIXED)], &mixed()), false),
        (answer(200, &[("Content-Type", MIXED)], &mixed()), true),
        (chunked(MIXED, &mixed(), 1), false),
        (chunked(MIXED, &mixed(), 9), false),
        (chunked(MIXED, &mixed(), 400), false),
    ] {
        let fake = source(bytes, drips).await;
        let mut revisions = revisions(&fake).await;
        let plain = next_document(&mut revisions).await;
        assert_eq!(plain.rev, Some(Rev::from("2-p")));
        assert_eq!(revisions.next_attachment().await.unwrap(), None);

        let document = next_document(&mut revisions).await;
        assert_eq!(document.json(), DOC);
        let mut found = Vec::new();
        while let Some(attachment) = revisions.next_attachment().await.unwrap() {
            let mut data = Vec::new();
            while let Some(part) = revisions.attachment_chunk().await.unwrap() {
                data.extend_from_slice(&part);
            }
            found.push((attachment.name, data));
        }
        let expected = [
            ("z.txt".to_owned(), b"--in--out\r\n-".to_vec()),
            ("a \"q\".bin".to_owned(), b"\r\n--i".to_vec()),
        ];
        assert_eq!(found, expected);
        assert_eq!(
            revisions.next().await.unwrap(),
            Some(Revision::Missing(Rev::from("1-gone")))
        );
        assert_eq!(revisions.next().await.unwrap(), None);
        let seen = fake.only();
        assert_eq!(
            seen.target,
            "/db/d%2F1?revs=true&open_revs=%5B%223-c%22%5D&latest=true&attachments=true&atts_since=%5B%221-a%22%5D"
        );
        assert_eq!(seen.header("accept"), Some("multipart/mixed"));
    }
}

#[tokio::test]
async fn attachments_that_nobody_reads_are_skipped() {
    for reads in 0..3 {
        let fake = source(chunked(MIXED, &mixed(), 30), false).await;
        let mut revisions = revisions(&fake).await;
        revisions.next().await.unwrap();
        revisions.next().await.unwrap();
        for _ in 0..reads {
            revisions.next_attachment().await.unwrap().unwrap();
        }
        assert_eq!(
            revisions.next().await.unwrap(),
            Some(Revision::Missing(Rev::from("1-gone")))
        );
        assert_eq!(revisions.next().await.unwrap(), None);
    }
}

#[tokio::test]
async fn revisions_as_json() {
    let inline =
        r#"{"_id":"d","_rev":"1-x","_attachments":{"a":{"data":"AAAA","content_type":"x/y"}}}"#;
    let body = format!(r#"[{{"ok":{inline}}},{{"missing":"2-y"}}]"#);
    let fake = Fake::answering(&[("/db/d%2F1", json(200, body))]).await;
    let mut revisions = revisions(&fake).await;
    let document = next_document(&mut revisions).await;
    assert_eq!(
        (document.json(), document.attachments.clone()),
        (&Bytes::from(inline), Attachments::Inline)
    );
    assert_eq!(revisions.next_attachment().await.unwrap(), None);
    assert_eq!(
        revisions.next().await.unwrap(),
        Some(Revision::Missing(Rev::from("2-y")))
    );
    assert_eq!(revisions.next().await.unwrap(), None);
}

/// Reads everything there is.
async fn drain(revisions: &mut Revisions) -> Result<(), Error> {
    while revisions.next().await?.is_some() {
        while revisions.next_attachment().await?.is_some() {
            while revisions.attachment_chunk().await?.is_some() {}
        }
    }
    Ok(())
}

#[tokio::test]
async fn revisions_that_cannot_be_trusted() {
    let good = String::from_utf8(mixed()).unwrap();
    let cut = |text: &str| good[..good.find(text).unwrap() + text.len()].to_owned();
    for (body, problem) in [
        (
            good.replace("\"z.txt\":{", "\"y.txt\":{"),
            "attachments in another order",
        ),
        (
            good.replace("\"encoded_length\":12", "\"encoded_length\":13"),
            "an attachment of another length",
        ),
        (
            good.replace("Content-Length: 12\r\n", "")
                .replace("\"encoded_length\":12", "\"encoded_length\":13"),
            "an attachment shorter than announced",
        ),
        (
            good.replace("Content-Length: 12\r\n", "")
                .replace("\"encoded_length\":12", "\"encoded_length\":11"),
            "an attachment longer than announced",
        ),
        (
            good.replace(
                "\"a \\\"q\\\".bin\":{",
                "\"a \\\"q\\\".bin\":{\"x\":1},\"b\":{",
            ),
            "attachments in another order",
        ),
        (
            good.replace("\"stub\":true", "\"follows\":true"),
            "attachments in another order",
        ),
        (
            good.replace("\"follows\":true}}}", "\"follows\":false}}}"),
            "more attachments than",
        ),
        (
            good.replace("boundary=\"in\"", "boundary="),
            "multipart without a boundary",
        ),
        (
            good.replace("boundary=\"in\"", "boundary=other"),
            "a revision that ends before",
        ),
        (
            good.replace(
                "application/json\r\n\r\n{\"_id\"",
                "text/html\r\n\r\n{\"_id\"",
            ),
            "a part of type `text/html`",
        ),
        (
            good.replace("{\"_id\":\"d/1\",\"_rev\":\"2-p\"}", "potato"),
            "not the JSON",
        ),
        (
            good.replace("{\"_id\":\"d/1\",\"_rev\":\"2-p\"}", DOC),
            "attachments are announced and do not follow",
        ),
        (
            good.replace("{\"missing\":\"1-gone\"}", "{}"),
            "not the JSON",
        ),
        (
            good.replace("--in--\r\n", ""),
            "a revision that ends before",
        ),
        ("--out\r\n: x\0\r\n\r\n".to_owned(), "a part of type"),
        (
            "--out\r\nnothing\r\n\r\n".to_owned(),
            "a part has headers that are none",
        ),
    ] {
        let fake = source(
            answer(200, &[("Content-Type", MIXED)], body.as_bytes()),
            false,
        )
        .await;
        let error = drain(&mut revisions(&fake).await).await.unwrap_err();
        let Error::BadAnswer { problem: found, .. } = &error else {
            panic!("{error:?}: {problem}")
        };
        assert!(found.starts_with(problem), "{found}, not {problem}");
    }
    for body in [
        String::new(),
        cut("2-p"),
        cut("Content-Encoding"),
        cut("--in--out"),
        cut("1-gone"),
        cut("--in--\r\n"),
    ] {
        for bytes in [answer(200, &[("Content-Type", MIXED)], body.as_bytes()), {
            let mut bytes = chunked_head(MIXED);
            bytes.extend(chunk(body.as_bytes()));
            if body.is_empty() {
                chunked_head(MIXED)
            } else {
                bytes
            }
        }] {
            let fake = source(bytes, false).await;
            let error = drain(&mut revisions(&fake).await).await.unwrap_err();
            assert!(
                matches!(error, Error::Interrupted { .. }),
                "{error:?}: {body}"
            );
        }
    }
    for content_type in [
        "text/html",
        "multipart/mixed",
        "multipart/mixed; boundary=\"\"",
    ] {
        let fake = source(answer(200, &[("Content-Type", content_type)], b"x"), false).await;
        let error = open(&fake)
            .await
            .open_revs(&"d".into(), WantedRevs::All, &[])
            .await
            .err()
            .unwrap();
        assert!(matches!(error, Error::BadAnswer { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn requests_are_shortened_for_servers_that_want_it() {
    let fake = Fake::new(|seen| {
        let refused = seen.target.len() > 1000;
        let empty = answer(200, &[("Content-Type", MIXED)], b"--out--");
        vec![Step::Send(if refused { json(414, "{}") } else { empty })]
    })
    .await;
    let since: Vec<_> = (0..1000)
        .map(|n| Rev::from(format!("{n}-abcdefabcdefabcdef").as_str()))
        .collect();
    let db = open(&fake).await;
    let mut revisions = db
        .open_revs(&"d".into(), WantedRevs::All, &since)
        .await
        .unwrap();
    assert_eq!(revisions.next().await.unwrap(), None);
    let lengths: Vec<_> = fake.seen().iter().map(|seen| seen.target.len()).collect();
    assert_eq!(lengths.len(), 4);
    assert!(
        lengths[0] > 6800 && lengths[0] < 7000 && lengths[3] > 600,
        "{lengths:?}"
    );

    let fake = Fake::new(|_| vec![Step::Send(json(414, "{}"))]).await;
    let error = open(&fake)
        .await
        .open_revs(&"d".into(), WantedRevs::All, &since)
        .await
        .err()
        .unwrap();
    assert_eq!(error.status(), Some(414));
    assert_eq!(fake.seen().len(), 6);
}

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
