//! Documents with their attachments in parts, and the memory they take.

use std::io::Write as _;

use api::Options;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::Method;
use serde_json::{Value, json};

use crate::fixture::{Answer, Fixture, Setting, replication};

/// Sends a document with parts that are `zeros` bytes each, gzipped.
async fn send(fixture: &Fixture, parts: usize, zeros: usize) -> Answer {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&vec![0; zeros]).unwrap();
    let packed = packed.finish().unwrap();
    let mut body = b"--b\r\ncontent-type: application/json\r\n\r\n{}".to_vec();
    for _ in 0..parts {
        body.extend_from_slice(b"\r\n--b\r\ncontent-encoding: gzip\r\n\r\n");
        body.extend_from_slice(&packed);
    }
    body.extend_from_slice(b"\r\n--b--");
    let root = (fixture.root()).with("content-type", "multipart/related; boundary=b");
    root.send(Method::PUT, "/_users/org.couchdb.user:eve", body)
        .await
}

/// A megabyte that becomes gigabytes, part by part.
#[tokio::test]
async fn parts_have_an_end() {
    let options = Options {
        request_bytes_max: 1_000_000,
        bodies_bytes_max: 10_000_000,
        ..Options::default()
    };
    let fixture = Fixture::with(options, Setting::default()).await;
    let accepted = "doc.type must be user";
    let fits = send(&fixture, 9, 100_000).await;
    fits.refuses(403, "forbidden", accepted);
    let reason = "the request entity is too large";
    let large = send(&fixture, 11, 100_000).await;
    large.refuses(413, "too_large", reason);
    let many = send(&fixture, 10_001, 0).await;
    let reason = "Invalid multipart body: the body has more than 10000 parts.";
    many.refuses(400, "bad_request", reason);
    // All memory is free again.
    let fits = send(&fixture, 9, 100_000).await;
    fits.refuses(403, "forbidden", accepted);
}

/// What parts become counts towards the memory of all bodies.
#[tokio::test]
async fn parts_share_the_memory_of_bodies() {
    let options = Options {
        request_bytes_max: 1_000_000,
        bodies_bytes_max: 1_000_000,
        ..Options::default()
    };
    let fixture = Fixture::with(options, Setting::default()).await;
    let large = send(&fixture, 1, 900_000).await;
    large.refuses(413, "too_large", "the request entity is too large");
    let fits = send(&fixture, 1, 100_000).await;
    fits.refuses(403, "forbidden", "doc.type must be user");
}

/// Every revision once, however often it is named, and not all in memory.
#[tokio::test]
async fn revisions_come_in_pages() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    let data = BASE64_STANDARD.encode(vec![b'x'; 600_000]);
    let leaves = ["1-a", "1-b", "1-c", "1-d"];
    for rev in leaves {
        let mut doc = replication();
        doc["_id"] = json!("a");
        doc["_rev"] = json!(rev);
        doc["_attachments"] = json!({
            "big": {"content_type": "text/plain", "data": data},
            "small": {"content_type": "text/plain", "data": "aGk="},
        });
        let docs = json!({"docs": [doc], "new_edits": false});
        let rows = root.post("/_replicator/_bulk_docs", &docs).await;
        assert_eq!(rows.gives(201), json!([]));
    }
    assert_eq!(root.get("/_replicator/a/small").await.text, "hi");
    let revs = |rows: &Value, of: &str| {
        let revs = rows.as_array().unwrap().iter();
        let mut revs: Vec<_> = revs
            .map(|row| row[of]["_rev"].as_str().unwrap().to_owned())
            .collect();
        revs.sort();
        revs
    };
    let json_only = root.clone().with("accept", "application/json");
    let all = json_only.get("/_replicator/a?open_revs=all&attachments=true");
    let all = all.await.gives(200);
    assert_eq!(revs(&all, "ok"), leaves);
    for row in all.as_array().unwrap() {
        let attached = &row["ok"]["_attachments"]["big"];
        assert_eq!(attached["data"].as_str().unwrap().len(), data.len());
    }
    let named = "%5B%221-b%22,%229-z%22,%221-b%22,%221-a%22,%221-b%22%5D";
    let path = format!("/_replicator/a?attachments=true&open_revs={named}");
    let some = json_only.get(&path).await.gives(200);
    assert_eq!(some.as_array().unwrap().len(), 3);
    assert_eq!(some[2], json!({"missing": "9-z"}));
    let parts = root.clone().with("accept", "multipart/mixed");
    let parts = parts.get(&path).await;
    let kind = parts.header("content-type");
    let boundary = wire::multipart::boundary(kind).unwrap();
    let body = Bytes::from(parts.text.clone());
    let parts = wire::multipart::split(&body, &boundary).unwrap();
    assert_eq!(parts.len(), 3);
    let docs = json!({"docs": [{"id": "a"}, {"id": "none"}, {"id": "a"}]});
    let got = root.post("/_replicator/_bulk_get?attachments=true", &docs);
    let got = got.await.gives(200);
    for (index, found) in [(0, 4), (1, 1), (2, 4)] {
        let docs = &got["results"][index]["docs"];
        assert_eq!(docs.as_array().unwrap().len(), found);
    }
    assert_eq!(revs(&got["results"][2]["docs"], "ok"), leaves);
}
