//! Feeds, as servers of all kinds send them.

use std::sync::Arc;
use std::time::Duration;

use couch::{
    Change, Changes, ChangesFilter, ChangesRequest, DocId, Endpoint, Error, Failure, FeedKind,
    Idle, RequestOptions, Rev, Seq,
};
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::Notify;

use crate::fake::{
    Fake, Step, answer, chunk, chunked_head, head, impatient, json, last_chunk, network, open,
};

const NORMAL: &str = "{\"results\":[\n\
    {\"seq\":\"1-a\",\"id\":\"a\",\"changes\":[{\"rev\":\"1-x\"},{\"rev\":\"1-y\"}]},\n\
    {\"seq\":null,\"id\":\"\\u0062\\\"\",\"changes\":[{\"rev\":\"2-z\"}],\"deleted\":true}\n\
    ],\n\"last_seq\":\"9-q\",\"pending\":4}\n";

const CONTINUOUS: &str = "\n\n{\"seq\":1,\"id\":\"a\",\"changes\":[{\"rev\":\"1-x\"},{\"rev\":\"1-y\"}]}\n\n\
    {\"seq\":[2,\"x\"],\"id\":\"b\\\"\",\"changes\":[{\"rev\":\"2-z\"}],\"deleted\":true}\n\n\n";

async fn collect(changes: &mut Changes) -> Result<Vec<Change>, Error> {
    let mut found = Vec::new();
    while let Some(change) = changes.next().await? {
        found.push(change);
    }
    Ok(found)
}

async fn read(fake: &Fake, feed: FeedKind) -> (Changes, Result<Vec<Change>, Error>) {
    let request = ChangesRequest {
        feed,
        ..ChangesRequest::default()
    };
    let mut changes = open(fake).await.changes(&request).await.unwrap();
    let found = collect(&mut changes).await;
    (changes, found)
}

fn check_rows(found: &[Change]) {
    let ids: Vec<_> = found.iter().map(|change| change.id.as_str()).collect();
    assert_eq!(ids, ["a", "b\""]);
    assert_eq!(found[0].revs, [Rev::from("1-x"), Rev::from("1-y")]);
    assert_eq!((found[0].deleted, found[1].deleted), (false, true));
}

fn gzip(text: &str) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn normal_feeds_however_they_are_sent() {
    let compact: String = NORMAL.split('\n').collect();
    let pretty = {
        let value: serde_json::Value = serde_json::from_str(NORMAL).unwrap();
        serde_json::to_string_pretty(&value).unwrap()
    };
    let gzipped = answer(200, &[("Content-Encoding", "gzip")], &gzip(NORMAL));
    let mut chunks = chunked_head("application/json");
    NORMAL
        .as_bytes()
        .chunks(7)
        .for_each(|part| chunks.extend(chunk(part)));
    chunks.extend(last_chunk());
    let until_close = [head(200, &[]), NORMAL.as_bytes().to_vec()].concat();
    for bytes in [
        json(200, NORMAL),
        json(200, compact),
        json(200, pretty),
        gzipped,
        chunks,
        until_close,
    ] {
        for drips in [false, true] {
            let sent = bytes.clone();
            let fake = Fake::new(move |_| {
                let bytes = sent.clone();
                vec![
                    if drips {
                        Step::Drip(bytes)
                    } else {
                        Step::Send(bytes)
                    },
                    Step::Close,
                ]
            })
            .await;
            let (changes, found) = read(&fake, FeedKind::Normal).await;
            let found = found.unwrap();
            check_rows(&found);
            assert_eq!(found[0].seq, Seq::from_json("\"1-a\"").unwrap());
            assert!(found[1].seq.is_null());
            assert_eq!(changes.last_seq(), Seq::from_json("\"9-q\"").as_ref());
            assert_eq!(changes.pending(), Some(4));
        }
    }
}

#[tokio::test]
async fn continuous_feeds_end_with_or_without_a_word() {
    let ended = format!("{CONTINUOUS}{{\"last_seq\":17,\"pending\":0}}\n");
    for (text, last) in [(ended.as_str(), Some("17")), (CONTINUOUS, None)] {
        let mut bytes = chunked_head("application/json");
        text.as_bytes()
            .chunks(11)
            .for_each(|part| bytes.extend(chunk(part)));
        bytes.extend(last_chunk());
        let fake = Fake::new(move |_| vec![Step::Send(bytes.clone())]).await;
        let (mut changes, found) = read(&fake, FeedKind::Continuous).await;
        let found = found.unwrap();
        check_rows(&found);
        assert_eq!(found[1].seq.as_json(), r#"[2,"x"]"#);
        assert_eq!(changes.last_seq().map(Seq::as_json), last);
        assert_eq!(changes.next().await.unwrap(), None);
    }
}

#[tokio::test]
async fn rows_are_told_as_they_come() {
    let go = Arc::new(Notify::new());
    let waiting = Arc::clone(&go);
    let fake = Fake::new(move |_| {
        let row =
            |n: u8| chunk(format!("{{\"seq\":{n},\"id\":\"d{n}\",\"changes\":[]}}\n").as_bytes());
        vec![
            Step::Send(chunked_head("application/json")),
            Step::Send(row(1)),
            Step::Wait(Arc::clone(&waiting)),
            Step::Send(row(2)),
            Step::Stall,
        ]
    })
    .await;
    let request = ChangesRequest {
        feed: FeedKind::Continuous,
        ..ChangesRequest::default()
    };
    let mut changes = open(&fake).await.changes(&request).await.unwrap();
    assert_eq!(changes.next().await.unwrap().unwrap().id, DocId::from("d1"));
    // Giving up waiting loses nothing.
    let waited = tokio::time::timeout(Duration::from_millis(20), changes.next()).await;
    assert!(waited.is_err());
    go.notify_one();
    assert_eq!(changes.next().await.unwrap().unwrap().id, DocId::from("d2"));
}

#[tokio::test]
async fn feeds_that_break_off_are_interrupted() {
    let row = "{\"seq\":1,\"id\":\"a\",\"changes\":[]}";
    let partial = |text: &str| {
        let mut bytes = chunked_head("application/json");
        bytes.extend(chunk(text.as_bytes()));
        bytes
    };
    let cases = [
        (
            FeedKind::Normal,
            partial(&format!("{{\"results\":[\n{row},\n")),
        ),
        (
            FeedKind::Normal,
            partial(&format!("{{\"results\":[\n{row},\n{{\"seq\":2,")),
        ),
        (
            FeedKind::Normal,
            [
                head(200, &[]),
                format!("{{\"results\":[\n{row}").into_bytes(),
            ]
            .concat(),
        ),
        (
            FeedKind::Normal,
            [
                head(200, &[]),
                format!("{{\"results\":[\n{row}],\"last_").into_bytes(),
            ]
            .concat(),
        ),
        (
            FeedKind::Normal,
            [
                head(200, &[("Content-Length", "5000")]),
                format!("{{\"results\":[\n{row}").into_bytes(),
            ]
            .concat(),
        ),
        (FeedKind::Continuous, partial(&format!("{row}\n"))),
        (
            FeedKind::Continuous,
            partial(&format!("{row}\n{{\"seq\":2,")),
        ),
        (
            FeedKind::Continuous,
            [head(200, &[]), format!("{row}\n{{\"seq\":2,").into_bytes()].concat(),
        ),
        (
            FeedKind::Continuous,
            [
                partial(&format!(
                    "{row}\n{{\"error\":\"timeout\",\"reason\":\"r\"}}\n"
                )),
                last_chunk(),
            ]
            .concat(),
        ),
    ];
    for (kind, bytes) in cases {
        let sent = bytes.clone();
        let fake = Fake::new(move |_| vec![Step::Send(sent.clone()), Step::Close]).await;
        let request = ChangesRequest {
            feed: kind,
            ..ChangesRequest::default()
        };
        let mut changes = open(&fake).await.changes(&request).await.unwrap();
        assert_eq!(changes.next().await.unwrap().unwrap().id, DocId::from("a"));
        let error = changes.next().await.unwrap_err();
        let shown = String::from_utf8_lossy(&bytes).into_owned();
        assert!(
            matches!(
                error,
                Error::Interrupted {
                    cause: Failure::Connection(_),
                    ..
                }
            ),
            "{error:?} {shown}"
        );
        assert_eq!(
            changes.next().await.unwrap(),
            None,
            "nothing comes after an error"
        );
    }
}

#[tokio::test]
async fn feeds_that_make_no_sense() {
    for (text, problem) in [
        ("<html></html>", "it is not JSON"),
        (r#"{"rows":[]}"#, "it has no rows"),
        (r#"{"results":[{"seq":1}]}"#, "a row without an id"),
        (
            r#"{"results":[{"seq":1,"id":7,"changes":[]}]}"#,
            "not the JSON that was expected",
        ),
        (
            r#"{"results":[{"seq":1,"id":"a","changes":{}}]}"#,
            "not the JSON that was expected",
        ),
        (
            r#"{"results":[{"seq":1,"id":"a","changes":[{}]}]}"#,
            "not the JSON that was expected",
        ),
        (r#"{"results":[1]}"#, "not the JSON that was expected"),
        (r#"{"results":[],"last_seq":1} x"#, "it is not JSON"),
    ] {
        let fake = Fake::answering(&[("/db/_changes", json(200, text))]).await;
        let (_, found) = read(&fake, FeedKind::Normal).await;
        let error = found.unwrap_err();
        let Error::BadAnswer { problem: found, .. } = &error else {
            panic!("{error:?} {text}")
        };
        assert!(found.starts_with(problem), "{found} {text}");
    }
}

/// A document that cannot be read does not end the feed.
#[tokio::test]
async fn a_document_that_makes_no_sense_is_left_out() {
    let rows = r#"{"results":[
        {"seq":1,"id":"a","changes":[{"rev":"1-a"}],"doc":{"_id":7}},
        {"seq":2,"id":"b","changes":[{"rev":"1-b"}],"doc":{"_id":"b","_rev":"1-b"}}],"last_seq":2}"#;
    let fake = Fake::answering(&[("/db/_changes", json(200, rows))]).await;
    let (_, found) = read(&fake, FeedKind::Normal).await;
    let found = found.unwrap();
    let with_document: Vec<_> = found.iter().map(|it| it.document.is_some()).collect();
    assert_eq!(with_document, [false, true]);
}

#[tokio::test]
async fn an_endless_row_is_refused() {
    let fake = Fake::new(|_| {
        vec![
            Step::Send(head(200, &[])),
            Step::Send(b"{\"results\":[{\"id\":\"".to_vec()),
            Step::Endless(vec![b'x'; 64 * 1024]),
        ]
    })
    .await;
    let options = RequestOptions {
        document_bytes_max: 1 << 20,
        ..impatient()
    };
    let endpoint = Endpoint::from_url(&fake.url("/db")).unwrap();
    let db = network().database(endpoint, options).await.unwrap();
    let mut changes = db.changes(&ChangesRequest::default()).await.unwrap();
    let error = changes.next().await.unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("a row has more than 1048576 bytes"),
        "{error}"
    );
    drop(changes);
    fake.all_closed().await;
}

#[tokio::test]
async fn silence_ends_a_feed_and_a_slow_reader_does_not() {
    let fake = Fake::new(|_| {
        let row = |n: u8| format!("{{\"seq\":{n},\"id\":\"d{n}\",\"changes\":[]}}\n").into_bytes();
        vec![
            Step::Send(head(200, &[])),
            Step::Send(row(1)),
            Step::Send(row(2)),
            Step::Stall,
        ]
    })
    .await;
    let options = RequestOptions {
        inactivity_ms: 100,
        request_timeout_ms: Some(1),
        ..impatient()
    };
    let endpoint = Endpoint::from_url(&fake.url("/db")).unwrap();
    let db = network().database(endpoint, options).await.unwrap();
    let request = ChangesRequest {
        feed: FeedKind::Continuous,
        ..ChangesRequest::default()
    };
    let mut changes = db.changes(&request).await.unwrap();
    changes.next().await.unwrap().unwrap();
    // Not to synchronise: the reader is slower than the time-out.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(changes.next().await.unwrap().unwrap().id, DocId::from("d2"));
    let error = changes.next().await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Interrupted {
                cause: Failure::ReadTimeout { idle_ms: 100 },
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn heartbeats_keep_a_feed_alive() {
    let go = Arc::new(Notify::new());
    let waiting = Arc::clone(&go);
    let fake = Fake::new(move |_| {
        let mut steps = vec![Step::Send(head(200, &[]))];
        for _ in 0..6 {
            steps.push(Step::Wait(Arc::clone(&waiting)));
            steps.push(Step::Send(b"\n".to_vec()));
        }
        steps.push(Step::Send(b"{\"last_seq\":5}\n".to_vec()));
        steps
    })
    .await;
    let options = RequestOptions {
        inactivity_ms: 1000,
        ..impatient()
    };
    let endpoint = Endpoint::from_url(&fake.url("/db")).unwrap();
    let db = network().database(endpoint, options).await.unwrap();
    let idle = Idle::HeartbeatMs(300);
    let request = ChangesRequest {
        feed: FeedKind::Continuous,
        idle,
        ..ChangesRequest::default()
    };
    let mut changes = db.changes(&request).await.unwrap();
    let beating = async {
        for _ in 0..6 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            go.notify_one();
        }
    };
    let (next, ()) = tokio::join!(changes.next(), beating);
    assert_eq!(next.unwrap(), None);
    assert_eq!(changes.last_seq().unwrap().as_json(), "5");
    assert!(fake.only().target.contains("&heartbeat=300"));
}

#[tokio::test]
async fn filters_are_posted_and_documents_included() {
    let body = r#"{"results":[
        {"seq":1,"id":"a","changes":[{"rev":"1-x"}],"doc":{"_id":"a","_rev":"1-x","n":1.10,"n":1e400}},
        {"seq":2,"id":"b","changes":[{"rev":"1-x"},{"rev":"2-y"}],"removed":true,"doc":null}
    ],"last_seq":2}"#;
    let fake = Fake::answering(&[("/db/_changes", json(200, body))]).await;
    let request = ChangesRequest {
        filter: ChangesFilter::Selector(r#"{"a":{"$gt":1.0}}"#.to_owned()),
        include_docs: true,
        ..ChangesRequest::default()
    };
    let mut changes = open(&fake).await.changes(&request).await.unwrap();
    let found = collect(&mut changes).await.unwrap();
    let document = found[0].document.as_ref().unwrap();
    assert_eq!(
        document.json(),
        r#"{"_id":"a","_rev":"1-x","n":1.10,"n":1e400}"#
    );
    assert_eq!(
        found[1].revs,
        [Rev::from("2-y")],
        "access to the first was removed"
    );
    assert_eq!(found[1].document, None);
    let seen = fake.only();
    assert_eq!(
        (seen.method.as_str(), seen.body.as_slice()),
        ("POST", br#"{"selector":{"a":{"$gt":1.0}}}"#.as_slice())
    );
    assert_eq!(seen.header("content-type"), Some("application/json"));
}

#[tokio::test]
async fn old_servers_are_filtered_for() {
    let body = r#"{"results":[{"seq":1,"id":"a","changes":[]},{"seq":2,"id":"b","changes":[]}],"last_seq":2}"#;
    let fake = Fake::new(move |seen| {
        vec![Step::Send(if seen.method == "POST" {
            json(405, "{}")
        } else {
            json(200, body)
        })]
    })
    .await;
    let filter = ChangesFilter::DocIds(vec!["b".into(), "c".into()]);
    let request = ChangesRequest {
        filter,
        ..ChangesRequest::default()
    };
    let mut changes = open(&fake).await.changes(&request).await.unwrap();
    let found = collect(&mut changes).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].id, DocId::from("b"));
    assert_eq!(
        fake.seen()[1].target,
        "/db/_changes?feed=normal&style=all_docs&since=0"
    );
}

#[tokio::test]
async fn feeds_of_servers() {
    let continuous = "{\"db_name\":\"a\",\"type\":\"created\",\"seq\":\"1-x\"}\n\n{\"dbname\":\"b\",\"type\":\"updated\"}\n{\"last_seq\":\"2-y\"}\n";
    let normal = r#"{"results":[{"db_name":"a","type":"deleted","seq":"1-x"}],"last_seq":"1-x"}"#;
    let fake = Fake::new(move |seen| {
        let reply = match seen.path() {
            "/_db_updates" if seen.target.contains("feed=continuous") => continuous,
            "/_db_updates" => normal,
            "/_dbs_info" => {
                r#"[{"key":"a","info":{"update_seq":"5-x"}},{"key":"b","error":"not_found"}]"#
            }
            _ => "{}",
        };
        vec![Step::Send(json(200, reply))]
    })
    .await;
    let server = crate::fake::open_server(&fake).await;
    let since = Seq::from_json("\"now\"").unwrap();
    let mut feed = server
        .db_updates(FeedKind::Continuous, &since, Idle::TimeoutMs(5))
        .await
        .unwrap();
    let first = feed.next().await.unwrap().unwrap();
    assert_eq!(
        (first.db_name.as_str(), first.kind.as_str()),
        ("a", "created")
    );
    let second = feed.next().await.unwrap().unwrap();
    assert_eq!((second.db_name.as_str(), second.seq.is_null()), ("b", true));
    assert_eq!(feed.next().await.unwrap(), None);
    assert_eq!(feed.last_seq().unwrap().as_json(), "\"2-y\"");
    let mut feed = server
        .db_updates(FeedKind::Longpoll, &since, Idle::Default)
        .await
        .unwrap();
    assert_eq!(feed.next().await.unwrap().unwrap().kind, "deleted");
    assert_eq!(feed.next().await.unwrap(), None);
    assert_eq!(feed.last_seq().unwrap().as_json(), "\"1-x\"");

    let listed = server
        .dbs_info(&["a".to_owned(), "b".to_owned()])
        .await
        .unwrap();
    assert_eq!(listed[0].update_seq, Seq::from_json("\"5-x\""));
    assert_eq!(
        (listed[1].name.as_str(), &listed[1].update_seq),
        ("b", &None)
    );
    let targets: Vec<_> = fake.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(
        targets[0],
        "/_db_updates?feed=continuous&since=now&timeout=5"
    );
}

/// As from servers and proxies that ignore `feed=continuous`: its rows must not be taken for the end of a feed.
#[tokio::test]
async fn a_whole_answer_is_no_continuous_feed() {
    let whole = r#"{"results":[{"db_name":"a","type":"updated","seq":"2-x"}],"last_seq":"2-x"}"#;
    let fake = Fake::new(move |_| vec![Step::Send(json(200, whole))]).await;
    let server = crate::fake::open_server(&fake).await;
    let since = Seq::from_json("\"now\"").unwrap();
    let mut feed = server
        .db_updates(FeedKind::Continuous, &since, Idle::Default)
        .await
        .unwrap();
    let error = feed.next().await.unwrap_err();
    assert!(matches!(error, Error::BadAnswer { .. }), "{error}");
}

#[tokio::test]
async fn a_server_tells_whether_a_database_has_changes() {
    let fake = Fake::new(|seen| {
        let reply = match seen.path() {
            "/a%2Fb/_changes" => r#"{"results":[],"last_seq":"5-x","pending":0}"#,
            _ => {
                r#"{"results":[{"seq":"6-y","id":"d","changes":[{"rev":"1-a"}]}],"last_seq":"6-y"}"#
            }
        };
        vec![Step::Send(json(200, reply))]
    })
    .await;
    let server = crate::fake::open_server(&fake).await;
    let since = Seq::from_json("\"5-x\"").unwrap();
    assert!(!server.has_changes("a/b", &since).await.unwrap());
    assert!(server.has_changes("c", &since).await.unwrap());
    assert_eq!(fake.seen()[1].target, "/c/_changes?since=5-x&limit=1");
}
