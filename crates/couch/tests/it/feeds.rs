//! Feeds for servers and proxies that do not do every kind.

use couch::{ChangesRequest, Error, FeedKind, Idle, Rev, Seq};

use crate::fake::{Fake, Step, answer, chunk, chunked_head, json, last_chunk, open};

#[tokio::test]
async fn longpoll_ends_after_what_there_is() {
    let fake = Fake::new(|seen| {
        let polled = seen.target.contains("feed=longpoll");
        assert!(polled, "{}", seen.target);
        let rows = if seen.target.contains("since=0") {
            r#"{"seq":"1-a","id":"a","changes":[{"rev":"1-x"}]}"#
        } else {
            ""
        };
        let text = format!("{{\"results\":[\n{rows}\n],\n\"last_seq\":\"2-b\",\"pending\":0}}\n");
        vec![Step::Send(json(200, text))]
    })
    .await;
    let db = open(&fake).await;
    let mut request = ChangesRequest {
        feed: FeedKind::Longpoll,
        idle: Idle::TimeoutMs(1000),
        ..ChangesRequest::default()
    };
    let mut changes = db.changes(&request).await.unwrap();
    let change = changes.next().await.unwrap().unwrap();
    assert_eq!(
        (change.id.as_str(), &change.revs[..]),
        ("a", &[Rev::from("1-x")][..])
    );
    assert_eq!(changes.next().await.unwrap(), None);
    let last = changes.last_seq().unwrap().clone();
    assert_eq!(Some(&last), Seq::from_json("\"2-b\"").as_ref());
    // Nothing happened until the time was over.
    request.since = last.clone();
    let mut changes = db.changes(&request).await.unwrap();
    assert_eq!(changes.next().await.unwrap(), None);
    assert_eq!(changes.last_seq(), Some(&last));
    assert_eq!(changes.pending(), Some(0));
    let asked = &fake.seen()[1].target;
    assert!(
        asked.contains("since=2-b") && asked.contains("timeout=1000"),
        "{asked}"
    );
}

#[tokio::test]
async fn events_for_browsers() {
    const EVENTS: &str = "data: {\"seq\":\"1-a\",\"id\":\"a\",\"changes\":[{\"rev\":\"1-x\"}]}\nid: 1-a\n\n\
        event: heartbeat\ndata: \n\n\
        data: {\"seq\":\"2-b\",\"id\":\"b\",\"changes\":[],\"deleted\":true}\nid: 2-b\n\n";
    for size in [1, 10, 1000] {
        let mut bytes = chunked_head("text/event-stream");
        EVENTS
            .as_bytes()
            .chunks(size)
            .for_each(|part| bytes.extend(chunk(part)));
        bytes.extend(last_chunk());
        let fake = Fake::new(move |_| vec![Step::Send(bytes.clone())]).await;
        let request = ChangesRequest {
            feed: FeedKind::EventSource,
            ..ChangesRequest::default()
        };
        let mut changes = open(&fake).await.changes(&request).await.unwrap();
        let first = changes.next().await.unwrap().unwrap();
        let second = changes.next().await.unwrap().unwrap();
        assert_eq!((first.id.as_str(), second.id.as_str()), ("a", "b"));
        assert!(second.deleted);
        assert_eq!(changes.next().await.unwrap(), None);
        assert!(fake.seen()[0].target.contains("feed=eventsource"));
    }
}

/// Who takes a normal feed's end for that of a continuous one loses all rows.
#[tokio::test]
async fn a_server_that_does_not_know_the_kind() {
    let normal = "{\"results\":[{\"seq\":1,\"id\":\"a\",\"changes\":[]}],\"last_seq\":1}";
    let fake = Fake::new(move |_| vec![Step::Send(answer(200, &[], normal.as_bytes()))]).await;
    let request = ChangesRequest {
        feed: FeedKind::Continuous,
        ..ChangesRequest::default()
    };
    let mut changes = open(&fake).await.changes(&request).await.unwrap();
    let error = changes.next().await.unwrap_err();
    assert!(matches!(error, Error::BadAnswer { .. }), "{error:?}");
    assert_eq!(changes.last_seq(), None);
}
