//! Answers that were damaged on the way: an error or an answer, never a panic or a hang.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use couch::{
    ChangesRequest, Database, Endpoint, Error, FeedKind, RequestOptions, Rev, WantedRev, WantedRevs,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::fake::{Fake, Step, answer, chunk, chunked_head, json, last_chunk, network};
use crate::revisions::{MIXED, mixed};

/// One way of damaging an answer.
#[derive(Debug, Clone)]
enum Damage {
    Cut(prop::sample::Index),
    Change(prop::sample::Index, u8),
    Repeat(prop::sample::Index, prop::sample::Index),
    Remove(prop::sample::Index, prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        at().prop_map(Damage::Cut),
        (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Change(at, byte)),
        (at(), at()).prop_map(|(from, to)| Damage::Repeat(from, to)),
        (at(), at()).prop_map(|(from, to)| Damage::Remove(from, to)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damages: &[Damage]) {
    for damage in damages {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        let range = |a: &prop::sample::Index, b: &prop::sample::Index| {
            let (a, b) = (a.index(length), b.index(length));
            a.min(b)..a.max(b)
        };
        match damage {
            Damage::Cut(at) => bytes.truncate(at.index(length)),
            Damage::Change(at, byte) => bytes[at.index(length)] = *byte,
            Damage::Repeat(from, to) => {
                let part = bytes[range(from, to)].to_vec();
                bytes.splice(from.index(length)..from.index(length), part);
            }
            Damage::Remove(from, to) => drop(bytes.drain(range(from, to))),
        }
    }
}

/// Sound answers to each kind of request.
fn sound() -> Vec<Vec<u8>> {
    let changes = "{\"results\":[\n{\"seq\":\"1-a\",\"id\":\"a\",\"changes\":[{\"rev\":\"1-x\"}],\"doc\":{\"_id\":\"a\"}},\n{\"seq\":2,\"id\":\"b\",\"changes\":[]}\n],\"last_seq\":2}";
    let mut pieces = chunked_head(MIXED);
    mixed()
        .chunks(50)
        .for_each(|part| pieces.extend(chunk(part)));
    pieces.extend(last_chunk());
    vec![
        json(200, r#"{"update_seq":"1-a","instance_start_time":"0"}"#),
        json(200, changes),
        json(
            200,
            "{\"seq\":1,\"id\":\"a\",\"changes\":[{\"rev\":\"1-x\"}]}\n\n{\"last_seq\":2}\n",
        ),
        json(
            200,
            r#"{"results":[{"id":"a","docs":[{"ok":{"_id":"a"}}]}]}"#,
        ),
        json(
            200,
            r#"{"a":{"missing":["1-x"],"possible_ancestors":["1-y"]}}"#,
        ),
        json(
            201,
            r#"[{"id":"a","rev":"1-x","error":"forbidden","reason":"x"}]"#,
        ),
        answer(200, &[("Content-Type", MIXED)], &mixed()),
        pieces,
        json(400, r#"{"error":"bad_request","reason":"x"}"#),
    ]
}

#[test]
fn damaged_answers() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let reply: Arc<Mutex<Vec<u8>>> = Arc::default();
    let said = Arc::clone(&reply);
    let fake = runtime.block_on(Fake::new(move |_| {
        vec![Step::Send(said.lock().unwrap().clone()), Step::Close]
    }));
    let options = RequestOptions {
        retries: 0,
        inactivity_ms: 5000,
        document_bytes_max: 1 << 20,
        answer_bytes_max: 1 << 20,
        ..RequestOptions::default()
    };
    let endpoint = Endpoint::from_url(&fake.url("/db")).unwrap();
    let case = (
        prop::sample::select(sound()),
        prop::collection::vec(damage(), 0..4),
        0_usize..9,
    );
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::with_cases(2000)
    });
    let run = |(mut bytes, damages, which): (Vec<u8>, Vec<Damage>, usize)| {
        apply(&mut bytes, &damages);
        *reply.lock().unwrap() = bytes;
        let asking = async {
            let db = network()
                .database(endpoint.clone(), options.clone())
                .await
                .unwrap();
            let _ = ask(&db, which).await;
        };
        runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(30), asking).await })
            .map_err(|_| TestCaseError::fail("it hangs"))
    };
    runner.run(&case, run).unwrap();
}

/// Asks in one of nine ways, and reads all there is.
async fn ask(db: &Database, which: usize) -> Result<(), Error> {
    let wanted = [WantedRev {
        id: "a".into(),
        rev: Some("1-x".into()),
        atts_since: Vec::new(),
    }];
    match which {
        0 | 1 => {
            let feed = if which == 0 {
                FeedKind::Normal
            } else {
                FeedKind::Continuous
            };
            let request = ChangesRequest {
                feed,
                include_docs: true,
                ..ChangesRequest::default()
            };
            let mut changes = db.changes(&request).await?;
            while changes.next().await?.is_some() {}
        }
        2 => {
            let mut fetched = db.bulk_get(&wanted, false).await?;
            while fetched.next().await?.is_some() {}
        }
        3 => drop(
            db.revs_diff(&[("a".into(), vec![Rev::from("1-x")])])
                .await?,
        ),
        4 => drop(db.bulk_docs(&[Bytes::from_static(b"{}")]).await?),
        5 => drop(db.document(&"a".into()).await?),
        6 => drop(db.ensure_full_commit().await?),
        7 => drop(db.info().await?),
        _ => {
            let mut revisions = db.open_revs(&"a".into(), WantedRevs::All, &[]).await?;
            while revisions.next().await?.is_some() {
                while revisions.next_attachment().await?.is_some() {
                    while revisions.attachment_chunk().await?.is_some() {}
                }
            }
        }
    }
    Ok(())
}
