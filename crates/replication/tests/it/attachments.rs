//! Attachments, small and large, plain and compressed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use peer::{Difference, Fault, Faults, Limits, On, Options};
use serde_json::{Value, json};

use crate::fixture::{World, counts};

/// Bytes that do not compress.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u8::try_from(state >> 56).unwrap()
    };
    std::iter::repeat_with(next).take(length).collect()
}

const BINARY: &str = "application/octet-stream";

#[tokio::test]
async fn small_ones_travel_in_bulk() {
    let world = World::new().await;
    for n in 0..50 {
        let id = format!("doc{n}");
        let rev = world
            .source
            .attach("a", &id, None, "one.bin", BINARY, noise(1000, n))
            .unwrap();
        // Of every second one this is not the first generation any more.
        if n % 2 == 0 {
            world
                .source
                .attach("a", &id, Some(&rev), "two.bin", BINARY, noise(10, n))
                .unwrap();
        }
    }
    let outcome = world.replicate(json!({})).await;
    world.assert_same();
    assert_eq!(counts(&outcome), [50, 50, 50, 50, 0]);
    assert_eq!(outcome.progress.stats.attachments_copied, 75);
    assert_eq!(world.target().count("PUT", "/b/doc*"), 0);
    assert_eq!(world.source.count("GET", "/a/doc*"), 0);
}

#[tokio::test]
async fn compressed_ones_stay_compressed() {
    let world = World::apart(
        Options::default(),
        Options {
            compress: false,
            ..Options::default()
        },
    )
    .await;
    let text = "all work and no play makes jack a dull boy ".repeat(100);
    let rev = world
        .source
        .attach("a", "doc", None, "text.txt", "text/plain", text.clone())
        .unwrap();
    world
        .source
        .attach("a", "doc", Some(&rev), "raw", BINARY, noise(500, 1))
        .unwrap();
    world.replicate(json!({})).await;
    world.assert_same();
    let endpoint = couch::Endpoint::from_url(&world.target().database_url("b")).unwrap();
    let database = world
        .network
        .database(endpoint, couch::RequestOptions::default())
        .await
        .unwrap();
    let mut found = database
        .open_revs(&couch::DocId::from("doc"), couch::WantedRevs::All, &[])
        .await
        .unwrap();
    let Some(couch::Revision::Document(document)) = found.next().await.unwrap() else {
        panic!()
    };
    let couch::Attachments::Following(parts) = document.attachments else {
        panic!()
    };
    let text_part = parts.iter().find(|part| part.name == "text.txt").unwrap();
    assert_eq!(text_part.encoding.as_deref(), Some("gzip"));
    assert!(text_part.length < text.len() as u64);
    assert_eq!(
        parts
            .iter()
            .find(|part| part.name == "raw")
            .unwrap()
            .encoding,
        None
    );
}

#[tokio::test]
async fn large_ones_stream() {
    let world = World::new().await;
    for n in 0..3 {
        let id = format!("doc{n}");
        let text = "0123456789".repeat(200_000);
        let rev = world
            .source
            .attach("a", &id, None, "text", "text/plain", text)
            .unwrap();
        world
            .source
            .attach("a", &id, Some(&rev), "noise", BINARY, noise(6_600_000, n))
            .unwrap();
    }
    world.replicate(json!({})).await;
    world.assert_same();
    assert_eq!(world.target().count("PUT", "/b/doc*"), 3);
}

#[tokio::test]
async fn updates_do_not_carry_what_is_there() {
    let world = World::new().await;
    let mut rev = world
        .source
        .attach("a", "doc", None, "big", BINARY, noise(400_000, 3))
        .unwrap();
    world.replicate(json!({})).await;
    let before = world.source.get("a", "doc").unwrap().unwrap();
    for n in 0..3 {
        let mut next = before.clone();
        (next["_rev"], next["n"]) = (json!(rev.to_string()), json!(n));
        rev = world.source.put("a", &next.to_string()).unwrap();
    }
    let outcome = world.replicate(json!({})).await;
    world.assert_same();
    assert!(
        outcome.progress.stats.bytes_read < 100_000,
        "{:?}",
        outcome.progress.stats
    );
}

/// The target forgot what its revisions had, so stubs are refused and everything is fetched.
#[tokio::test]
async fn missing_stubs_are_fetched_again() {
    for size in [1000, 300_000] {
        let world = World::new().await;
        world.source.set_revs_limit("a", 3).unwrap();
        world.target().set_revs_limit("b", 3).unwrap();
        let mut rev = world
            .source
            .attach("a", "doc", None, "att", BINARY, noise(size, 9))
            .unwrap();
        world.replicate(json!({})).await;
        for n in 0..6 {
            let mut next = world.source.get("a", "doc").unwrap().unwrap();
            (next["_rev"], next["n"]) = (json!(rev.to_string()), json!(n));
            rev = world.source.put("a", &next.to_string()).unwrap();
        }
        world.replicate(json!({})).await;
        // What the target had before has no connection with it any more.
        let extra = |difference: &Difference| matches!(difference, Difference::ExtraLeaf(..));
        assert!(
            world.differences().iter().all(extra),
            "{:?}",
            world.differences()
        );
        assert_eq!(
            world.target().get("b", "doc").unwrap(),
            world.source.get("a", "doc").unwrap()
        );
    }
}

#[tokio::test]
async fn too_large_for_the_target() {
    for (limit, written) in [(1000, 1), (999, 0)] {
        let limits = Limits {
            attachment_bytes_max: limit,
            ..Limits::default()
        };
        let world = World::apart(
            Options::default(),
            Options {
                limits,
                ..Options::default()
            },
        )
        .await;
        world
            .source
            .attach("a", "doc", None, "att", BINARY, noise(1000, 5))
            .unwrap();
        let outcome = world.replicate(json!({})).await;
        assert_eq!(counts(&outcome)[3..], [written, 1 - written]);
        assert_eq!(world.target_ids().len() as u64, written);
        assert_eq!(outcome.progress.failures.len() as u64, 1 - written);
    }
}

#[tokio::test]
async fn odd_names_survive() {
    let world = World::new().await;
    for size in [10, 200_000] {
        let id = format!("doc{size}");
        let mut rev = None;
        for name in ["a b", "é", "q\"uote", "back\\slash", "a/b", "x;y=z"] {
            rev = Some(
                world
                    .source
                    .attach(
                        "a",
                        &id,
                        rev.as_ref(),
                        name,
                        "text/x; p=\"1\"",
                        noise(size, 2),
                    )
                    .unwrap(),
            );
        }
    }
    world.replicate(json!({})).await;
    world.assert_same();
}

/// A replica of `doc` with an attachment `x`.
fn replica(rev: &str, ids: &Value, data: &[u8], revpos: Option<&Value>) -> String {
    let mut attachment = json!({"content_type": BINARY, "data": BASE64.encode(data)});
    if let Some(revpos) = revpos {
        attachment["revpos"] = revpos.clone();
    }
    let (generation, _) = rev.split_once('-').unwrap();
    let start: u64 = generation.parse().unwrap();
    let doc = json!({"_id": "doc", "_rev": rev, "_revisions": {"start": start, "ids": ids},
        "_attachments": {"x": attachment}});
    doc.to_string()
}

/// Servers believe the generation that a replica says of its attachment, and take it for 0 when none is said.
#[tokio::test]
async fn odd_generations_do_no_harm() {
    let odd = [
        None,
        Some(json!(0)),
        Some(json!(9)),
        Some(json!(-1)),
        Some(json!("2")),
    ];
    let sizes = [0, 10, 200_000, 2_000_000];
    let histories = [("1-a", json!(["a"])), ("3-c", json!(["c", "b", "a"]))];
    for (revpos, size) in odd
        .iter()
        .flat_map(|revpos| sizes.map(|size| (revpos, size)))
    {
        for ((rev, ids), is_known) in histories.iter().zip([false, true]) {
            let world = World::new().await;
            if is_known {
                // Something else of the same name, so there are ancestors that are none.
                let known = json!({"_id": "doc", "_rev": "1-z"}).to_string();
                world.target().put_replicas("b", [known.clone()]).unwrap();
                world.source.put_replicas("a", [known]).unwrap();
            }
            let doc = replica(rev, ids, &noise(size, 1), revpos.as_ref());
            world.source.put_replicas("a", [doc]).unwrap();
            world.replicate(json!({})).await;
            world.assert_same();
            let mut next = world.source.get("a", "doc").unwrap().unwrap();
            next["n"] = json!(1);
            world.source.put("a", &next.to_string()).unwrap();
            world.replicate(json!({})).await;
            world.assert_same();
        }
    }
}

#[tokio::test]
async fn what_comes_in_bulk_is_counted_once() {
    let world = World::new().await;
    for n in 0..3 {
        let id = format!("plain{n}");
        let rev = world
            .source
            .put("a", &json!({"_id": id}).to_string())
            .unwrap();
        world.put(&json!({"_id": id, "_rev": rev, "n": n}));
    }
    for n in 0..2 {
        let id = format!("attached{n}");
        let rev = (world.source)
            .attach("a", &id, None, "one", BINARY, noise(100, n))
            .unwrap();
        if n == 1 {
            (world.source)
                .attach("a", &id, Some(&rev), "two", BINARY, noise(100, n))
                .unwrap();
        }
    }
    let outcome = world.replicate(json!({})).await;
    let stats = outcome.progress.stats;
    assert_eq!((stats.bulk_get_attempts, stats.bulk_get_docs), (5, 5));
    world.assert_same();
}

/// What came inline is checked as well as what is streamed.
#[tokio::test]
async fn damaged_ones_are_not_passed_on() {
    for generations in [1, 2] {
        let world = World::new().await;
        let mut rev = None;
        for _ in 0..generations {
            let written = world
                .source
                .attach("a", "doc", rev.as_ref(), "x", BINARY, "right")
                .unwrap();
            rev = Some(written);
        }
        let stored = world.source.get("a", "doc").unwrap().unwrap();
        let mut damaged = stored.clone();
        let attachment = damaged["_attachments"]["x"].as_object_mut().unwrap();
        attachment.remove("stub");
        attachment.insert("data".to_owned(), json!(BASE64.encode("wrong")));
        let body = json!({"results": [{"id": "doc", "docs": [{"ok": damaged}]}]});
        let answer = Fault::Answer {
            status: 200,
            headers: vec![("Content-Type".to_owned(), "application/json".to_owned())],
            body: body.to_string(),
        };
        let rules = [(On::post("/a/_bulk_get?*attachments=true*"), answer)];
        world.source.set_faults(Faults::script(rules));
        let outcome = world.replicate(json!({})).await;
        assert_eq!(counts(&outcome), [1, 1, 1, 1, 0]);
        assert!(!world.source.injected().is_empty());
        assert_eq!(world.target().get("b", "doc").unwrap().unwrap(), stored);
        world.assert_same();
    }
}
