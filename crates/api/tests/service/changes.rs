//! Feeds of changes.

use std::time::Duration;

use axum::body::Body;
use futures::StreamExt as _;
use http::Method;
use serde_json::{Value, json};

use crate::fixture::{Fixture, replication};

const CHANGES: &str = "/_replicator/_changes";

async fn filled(ids: &[&str]) -> Fixture {
    let fixture = Fixture::new().await;
    for id in ids {
        fixture
            .root()
            .put(&format!("/_replicator/{id}"), &replication())
            .await
            .gives(201);
    }
    fixture
}

fn ids(answer: &Value) -> Vec<&str> {
    let rows = answer["results"].as_array().unwrap();
    rows.iter().map(|row| row["id"].as_str().unwrap()).collect()
}

/// A feed that stays open.
struct Open(axum::body::BodyDataStream);

impl Open {
    async fn new(fixture: &Fixture, path: &str) -> Self {
        let response = fixture.root().open(Method::GET, path, Body::empty()).await;
        assert_eq!(response.status(), 200);
        Self(response.into_body().into_data_stream())
    }

    /// The next piece that says something.
    async fn piece(&mut self) -> String {
        loop {
            let piece = self.0.next().await.unwrap().unwrap();
            if !piece.is_empty() {
                return String::from_utf8(piece.to_vec()).unwrap();
            }
        }
    }

    /// All that is left.
    async fn rest(mut self) -> String {
        let mut rest = String::new();
        while let Some(piece) = self.0.next().await {
            rest.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
        }
        rest
    }
}

#[tokio::test]
async fn changes_are_told_from_anywhere() {
    let fixture = filled(&["a", "b", "c"]).await;
    let root = fixture.root();
    let all = root.get(CHANGES).await;
    assert!(all.text.starts_with("{\"results\":[\n{\"seq\":"));
    let all = all.gives(200);
    assert_eq!(ids(&all), ["a", "b", "c"]);
    assert_eq!(all["pending"], 0);
    let last = format!("{CHANGES}?since={}", all["last_seq"].as_str().unwrap());
    let none = root.get(&last).await.gives(200);
    assert_eq!((ids(&none), &none["last_seq"]), (vec![], &all["last_seq"]));
    let first = all["results"][0]["seq"].as_str().unwrap();
    for (query, expected) in [
        (format!("since={first}"), vec!["b", "c"]),
        (format!("since=%22{first}%22"), vec!["b", "c"]),
        ("since=now".to_owned(), vec![]),
        ("since=0&limit=1".to_owned(), vec!["a"]),
        ("descending=true&limit=2".to_owned(), vec!["c", "b"]),
        ("filter=_design".to_owned(), vec![]),
        (
            "filter=_doc_ids&doc_ids=%5B%22b%22%5D".to_owned(),
            vec!["b"],
        ),
        (
            "style=all_docs&include_docs=true&limit=1".to_owned(),
            vec!["a"],
        ),
    ] {
        let answer = root.get(&format!("{CHANGES}?{query}")).await.gives(200);
        assert_eq!(ids(&answer), expected, "{query}");
    }
    let limited = root.get(&format!("{CHANGES}?limit=1")).await.gives(200);
    assert_eq!(limited["pending"], 2);
    let none = root.get(&format!("{CHANGES}?limit=0")).await.gives(200);
    assert_eq!((ids(&none), &none["pending"]), (vec![], &json!(3)));
    let docs = root
        .get(&format!("{CHANGES}?include_docs=true"))
        .await
        .gives(200);
    assert_eq!(docs["results"][0]["doc"]["source"], "http://src.example/a");
}

#[tokio::test]
async fn filters_may_be_posted() {
    let fixture = filled(&["a", "b"]).await;
    let root = fixture.root();
    for (filter, body, expected) in [
        ("_doc_ids", json!({"doc_ids": ["b", "zz"]}), vec!["b"]),
        ("_selector", json!({"selector": {"_id": "a"}}), vec!["a"]),
        ("_design", json!({}), vec![]),
        ("", json!({}), vec!["a", "b"]),
    ] {
        let path = format!("{CHANGES}?filter={filter}");
        assert_eq!(
            ids(&root.post(&path, &body).await.gives(200)),
            expected,
            "{filter}"
        );
    }
    for (query, status, error) in [
        ("filter=_doc_ids", 400, "bad_request"),
        ("filter=_selector", 400, "bad_request"),
        ("filter=nope", 400, "bad_request"),
        ("filter=x/y", 501, "not_implemented"),
        ("filter=_view&view=a/b", 501, "not_implemented"),
        ("feed=other", 400, "bad_request"),
        ("since=bad", 400, "bad_request"),
        ("limit=x", 400, "query_parse_error"),
        ("timeout=x", 400, "query_parse_error"),
        ("style=x", 400, "query_parse_error"),
        ("heartbeat=x", 400, "bad_request"),
        ("heartbeat=0", 400, "bad_request"),
    ] {
        let refused = root.post(&format!("{CHANGES}?{query}"), &json!({})).await;
        assert_eq!(refused.gives(status)["error"], error, "{query}");
    }
    let undeclared = root.send(Method::POST, CHANGES, "").await;
    assert_eq!(undeclared.status, 415);
    assert_eq!(root.delete(CHANGES).await.header("allow"), "GET,POST,HEAD");
}

#[tokio::test]
async fn a_long_poll_waits_for_a_change() {
    let fixture = filled(&["a"]).await;
    let waiting =
        format!("{CHANGES}?feed=longpoll&since=now&filter=_doc_ids&doc_ids=%5B%22c%22%5D");
    let poll = Open::new(&fixture, &waiting).await;
    let root = fixture.root();
    let (answer, ()) = tokio::join!(poll.rest(), async {
        // What the filter leaves out does not end it.
        root.put("/_replicator/b", &replication()).await.gives(201);
        root.put("/_replicator/c", &replication()).await.gives(201);
    });
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(ids(&answer), ["c"]);
    let at_once = root
        .get(&format!("{CHANGES}?feed=longpoll"))
        .await
        .gives(200);
    assert_eq!(ids(&at_once), ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_long_poll_ends_in_time() {
    let fixture = filled(&["a"]).await;
    let path = format!("{CHANGES}?feed=longpoll&since=now&timeout=1000");
    let answer = fixture.root().get(&path).await.gives(200);
    assert_eq!((ids(&answer), &answer["pending"]), (vec![], &json!(0)));
    let kept = Open::new(&fixture, &format!("{path}&heartbeat=500")).await;
    let beats = tokio::time::timeout(Duration::from_secs(10), kept.rest()).await;
    assert!(beats.is_err(), "a heartbeat keeps it open");
}

#[tokio::test(start_paused = true)]
async fn a_continuous_feed_goes_on() {
    let fixture = filled(&["a"]).await;
    let mut feed = Open::new(
        &fixture,
        &format!("{CHANGES}?feed=continuous&heartbeat=1000"),
    )
    .await;
    let row: Value = serde_json::from_str(&feed.piece().await).unwrap();
    assert_eq!(row["id"], "a");
    assert_eq!(feed.piece().await, "\n", "a heartbeat");
    let (row, _) = tokio::join!(
        async {
            loop {
                let piece = feed.piece().await;
                if piece != "\n" {
                    return piece;
                }
            }
        },
        async {
            fixture
                .root()
                .put("/_replicator/b", &replication())
                .await
                .gives(201)
        }
    );
    assert!(row.ends_with("}\n"));
    assert_eq!(serde_json::from_str::<Value>(&row).unwrap()["id"], "b");
    let limited = Open::new(&fixture, &format!("{CHANGES}?feed=continuous&limit=1")).await;
    let lines = limited.rest().await;
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!((lines.lines().count(), &last["pending"]), (2, &json!(1)));
    let quiet = Open::new(
        &fixture,
        &format!("{CHANGES}?feed=continuous&since=now&timeout=10"),
    )
    .await;
    assert!(quiet.rest().await.starts_with("{\"last_seq\":"));
}

#[tokio::test(start_paused = true)]
async fn events_are_sent_to_browsers() {
    let fixture = filled(&["a", "b"]).await;
    let path = format!("{CHANGES}?feed=eventsource&timeout=10");
    let answer = fixture.root().get(&path).await;
    assert_eq!(answer.header("content-type"), "text/event-stream");
    let events: Vec<_> = answer
        .text
        .split("\n\n")
        .filter(|event| !event.is_empty())
        .collect();
    assert_eq!(events.len(), 2);
    let (data, id) = events[0].split_once("\nid: ").unwrap();
    let row: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(
        (
            &row["id"],
            format!("\"{}\"", row["seq"].as_str().unwrap()).as_str()
        ),
        (&json!("a"), id)
    );
    let resumed = fixture.root().with("last-event-id", id).get(&path).await;
    assert!(!resumed.text.contains("\"id\":\"a\"") && resumed.text.contains("\"id\":\"b\""));
    let mut kept = Open::new(
        &fixture,
        &format!("{CHANGES}?feed=eventsource&since=now&heartbeat=500"),
    )
    .await;
    assert_eq!(kept.piece().await, "event: heartbeat\ndata: \n\n");
}

#[tokio::test]
async fn a_feed_ends_with_its_database() {
    let fixture = filled(&["a"]).await;
    let feed = Open::new(&fixture, &format!("{CHANGES}?feed=continuous&since=now")).await;
    let root = fixture.root();
    let (rest, _) = tokio::join!(feed.rest(), root.delete("/_replicator"));
    assert!(rest.starts_with("{\"last_seq\":"));
}
