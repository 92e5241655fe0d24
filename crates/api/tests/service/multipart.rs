//! Documents with their attachments in parts, and the memory they take.

use std::io::Write as _;

use api::Options;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::Method;

use crate::fixture::{Answer, Fixture, Setting};

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
