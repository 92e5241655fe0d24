//! Revisions and their attachments, as a source sends them.

use bytes::Bytes;
use couch::{Attachments, DocId, Document, Error, Rev, Revision, Revisions, WantedRevs};

use crate::fake::{Fake, Step, answer, chunk, chunked_head, json, last_chunk, open};

pub(crate) const DOC: &str = r#"{"_id":"d/1","_rev":"3-c","_revisions":{"start":3,"ids":["c","b"]},"n":1.10,"_attachments":{"z.txt":{"content_type":"text/plain","revpos":2,"digest":"md5-x","length":100,"follows":true,"encoding":"gzip","encoded_length":12},"stub":{"stub":true,"length":3},"a \"q\".bin":{"content_type":"a/b","length":5,"follows":true}}}"#;

/// A revision with attachments as CouchDB sends it.
pub(crate) fn related(first: &str, second: &[u8]) -> Vec<u8> {
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

pub(crate) async fn source(bytes: Vec<u8>, drips: bool) -> Fake {
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

pub(crate) async fn revisions(fake: &Fake) -> Revisions {
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

pub(crate) async fn next_document(revisions: &mut Revisions) -> Document {
    match revisions.next().await.unwrap().unwrap() {
        Revision::Document(document) => document,
        missing @ Revision::Missing(_) => panic!("{missing:?}"),
    }
}

pub(crate) fn chunked(content_type: &str, body: &[u8], size: usize) -> Vec<u8> {
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
            "a part has malformed headers",
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
