//! Feeds.

use std::time::Duration;

use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::answers::{Answer, pick};
use crate::session::Session;

fn ids(answer: &Answer) -> Value {
    let body = answer.json();
    let ids = body["results"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| row["id"].clone());
    Value::Array(ids.collect())
}

/// Rows without their sequences, which mean nothing.
fn rows(answer: &Answer) -> Value {
    let body = answer.json();
    let rows = body["results"].as_array().into_iter().flatten();
    Value::Array(
        rows.map(|row| pick(row, &["id", "changes", "deleted", "doc"]))
            .collect(),
    )
}

fn last_seq(answer: &Answer) -> String {
    let seq = answer.member("last_seq");
    seq.as_str().map_or_else(|| seq.to_string(), str::to_owned)
}

pub(crate) async fn changes(s: &Session) {
    let nothing = s.get("_changes").await;
    s.check(
        "nothing",
        &json!([nothing.status, rows(&nothing), nothing.member("pending")]),
        &json!([200, [], 0]),
    );
    let mut revs = Vec::new();
    for id in ["a", "b", "c"] {
        revs.push(s.put(id, Some(&json!({}))).await.rev());
    }
    let all = s.get("_changes").await;
    let row = |id: &str, rev: &str| json!({"id": id, "changes": [{"rev": rev}]});
    s.check(
        "in order",
        &sorted(&rows(&all)),
        &json!([row("a", &revs[0]), row("b", &revs[1]), row("c", &revs[2])]),
    );
    let seq = all.json()["results"][2]["seq"].clone();
    s.check(
        "the last sequence",
        &json!(seq == all.member("last_seq")),
        &json!(true),
    );
    let etag = all.header("etag");
    let again = Answer::read(
        s.request("GET", "_changes")
            .header("If-None-Match", etag.as_str().unwrap_or("none")),
    )
    .await;
    s.check("nothing new", &json!(again.status), &json!(304));
    let nothing = s.get(&format!("_changes?since={}", last_seq(&all))).await;
    s.check("nothing since", &rows(&nothing), &json!([]));
    s.check(
        "since now",
        &rows(&s.get("_changes?since=now").await),
        &json!([]),
    );
    let two = s.get("_changes?limit=2").await;
    s.check(
        "limit",
        &json!([rows(&two).as_array().map(Vec::len), two.member("pending")]),
        &json!([2, 1]),
    );
    let rest = s.get(&format!("_changes?since={}", last_seq(&two))).await;
    let together: Vec<Value> = [ids(&two), ids(&rest)]
        .iter()
        .filter_map(|it| it.as_array().cloned())
        .flatten()
        .collect();
    s.check(
        "the rest",
        &sorted(&json!(together)),
        &json!(["a", "b", "c"]),
    );
    let none = s.get("_changes?limit=0").await;
    s.check(
        "limit of nothing",
        &json!([rows(&none), none.member("pending")]),
        &json!([[], 3]),
    );
    s.check(
        "malformed",
        &s.get("_changes?since=nonsense").await.kind(),
        &json!([400, "bad_request"]),
    );
    s.check(
        "no such feed",
        &s.get("_changes?feed=sideways").await.kind(),
        &json!([400, "bad_request"]),
    );
    s.check(
        "no limit",
        &s.get("_changes?limit=x").await.kind(),
        &json!([400, "bad_request"]),
    );
    let deleted = s.delete(&format!("b?rev={}", revs[1])).await.rev();
    let later = s.get(&format!("_changes?since={}", last_seq(&all))).await;
    let expected = json!([{"id": "b", "changes": [{"rev": deleted}], "deleted": true}]);
    s.check("a deletion", &rows(&later), &expected);
    let with = s
        .get(&format!(
            "_changes?include_docs=true&since={}",
            last_seq(&all)
        ))
        .await;
    let doc = json!({"_id": "b", "_rev": deleted, "_deleted": true});
    s.check("with documents", &rows(&with)[0]["doc"], &doc);
    s.check(
        "each document once",
        &sorted(&ids(&s.get("_changes").await)),
        &json!(["a", "b", "c"]),
    );
    let branch = json!({"new_edits": false, "docs": [{"_id": "a", "_rev": "1-000"}]});
    s.post("_bulk_docs", &branch).await;
    let main = s.get("_changes?filter=_doc_ids&doc_ids=[%22a%22]").await;
    s.check(
        "the winner",
        &rows(&main)[0]["changes"],
        &json!([{"rev": revs[0]}]),
    );
    let leaves = s
        .get("_changes?filter=_doc_ids&doc_ids=[%22a%22]&style=all_docs")
        .await;
    s.check(
        "all leaves",
        &rows(&leaves)[0]["changes"],
        &json!([{"rev": revs[0]}, {"rev": "1-000"}]),
    );
    let with = s
        .get("_changes?filter=_doc_ids&doc_ids=[%22a%22]&include_docs=true&conflicts=true")
        .await;
    s.check(
        "with conflicts",
        &rows(&with)[0]["doc"]["_conflicts"],
        &json!(["1-000"]),
    );
    let text = s
        .get("_changes?filter=_doc_ids&doc_ids=[%22none%22]")
        .await
        .text();
    let shape: Vec<&str> = text.split('"').filter(|part| !part.contains('-')).collect();
    s.check(
        "to the byte",
        &json!(shape),
        &json!([
            "{",
            "results",
            ":[\n\n],\n",
            "last_seq",
            ":",
            ",",
            "pending",
            ":3}\n\n"
        ]),
    );
    let down = s.get("_changes?descending=true").await;
    s.check("descending", &sorted(&ids(&down)), &json!(["a", "b", "c"]));
}

/// The order of changes of different documents is that of shards, and means nothing.
fn sorted(list: &Value) -> Value {
    let mut list: Vec<Value> = list.as_array().cloned().unwrap_or_default();
    list.sort_by_key(ToString::to_string);
    Value::Array(list)
}

pub(crate) async fn filters(s: &Session) {
    for (id, kind) in [("a", "x"), ("b", "y"), ("c", "x")] {
        s.put(id, Some(&json!({"kind": kind}))).await;
    }
    s.put("_design/d", Some(&json!({"filters": {}}))).await;
    let ids_of = async |answer: Answer| sorted(&ids(&answer));
    let by_post = s
        .post("_changes?filter=_doc_ids", &json!({"doc_ids": ["a", "z"]}))
        .await;
    s.check("ids", &ids_of(by_post).await, &json!(["a"]));
    let bad = s
        .post("_changes?filter=_doc_ids", &json!({"doc_ids": "a"}))
        .await;
    let reason = "`doc_ids` filter parameter is not a list of doc ids.";
    s.check(
        "ids are text",
        &bad.outcome(),
        &json!([400, "bad_request", reason]),
    );
    if !s.spares("selector") {
        let selected = s
            .post(
                "_changes?filter=_selector",
                &json!({"selector": {"kind": "x"}}),
            )
            .await;
        let pending = selected.member("pending");
        s.check(
            "selector",
            &json!([ids_of(selected).await, pending]),
            &json!([["a", "c"], 0]),
        );
    }
    if !s.spares("bad selector") {
        let bad = s
            .post(
                "_changes?filter=_selector",
                &json!({"selector": {"kind": {"$nonsense": 1}}}),
            )
            .await;
        s.check("bad selector", &bad.kind(), &json!([400, "bad_request"]));
    }
    if !s.spares("selector without body") {
        let bad = s.get("_changes?filter=_selector").await;
        let reason = "Selector must be specified in POST payload";
        s.check(
            "selector without body",
            &bad.outcome(),
            &json!([400, "bad_request", reason]),
        );
    }
    s.check(
        "design documents",
        &ids_of(s.get("_changes?filter=_design").await).await,
        &json!(["_design/d"]),
    );
    if !s.spares("unknown") {
        let bad = s.get("_changes?filter=_nonsense").await;
        s.check(
            "unknown",
            &bad.outcome(),
            &json!([400, "bad_request", "unknown builtin filter name"]),
        );
    }
    if !s.spares("view without a name") {
        let bad = s.get("_changes?filter=_view").await;
        s.check(
            "view without a name",
            &bad.kind(),
            &json!([400, "bad_request"]),
        );
    }
    if !s.spares("no such function") {
        let bad = s.get("_changes?filter=d/none").await;
        s.check(
            "no such function",
            &bad.outcome(),
            &json!([404, "not_found", "missing json key: none"]),
        );
    }
    if !s.spares("no such design document") {
        let bad = s.get("_changes?filter=none/none").await;
        s.check(
            "no such design document",
            &bad.outcome(),
            &json!([404, "not_found", "missing"]),
        );
    }
    if !s.spares("limit counts what passes") {
        let limited = s
            .post(
                "_changes?filter=_selector&limit=1",
                &json!({"selector": {"kind": "x"}}),
            )
            .await;
        s.check(
            "limit counts what passes",
            &json!(ids(&limited).as_array().map(Vec::len)),
            &json!(1),
        );
    }
    let last = s.get("_changes").await.member("last_seq");
    let filtered = s
        .post("_changes?filter=_doc_ids", &json!({"doc_ids": []}))
        .await;
    let reached = prefix(&filtered.member("last_seq")) == prefix(&last);
    s.check(
        "the last sequence is the feed's",
        &json!(reached),
        &json!(true),
    );
}

/// The number in front of an opaque sequence.
fn prefix(seq: &Value) -> String {
    let text = seq.as_str().map_or_else(|| seq.to_string(), str::to_owned);
    text.split('-').next().unwrap_or_default().to_owned()
}

pub(crate) async fn waiting(s: &Session) {
    let timeout = s.get("_changes?feed=longpoll&timeout=50").await;
    s.check(
        "longpoll ends",
        &json!([timeout.status, rows(&timeout)]),
        &json!([200, []]),
    );
    let since = last_seq(&timeout);
    let path = format!("_changes?feed=longpoll&timeout=20000&since={since}");
    let empty = json!({});
    let (poll, _) = tokio::join!(s.get(&path), s.put("a", Some(&empty)));
    s.check("longpoll wakes", &ids(&poll), &json!(["a"]));
    let there = s.get("_changes?feed=longpoll").await;
    s.check(
        "longpoll does not wait for what is there",
        &ids(&there),
        &json!(["a"]),
    );
    if !s.spares("continuous ends") {
        let lines = s.get("_changes?feed=continuous&timeout=50").await.text();
        let lines: Vec<Value> = lines
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let shape = json!([
            lines.len(),
            lines.first().map(|row| row["id"].clone()),
            lines.last().map(|row| row["pending"].clone())
        ]);
        s.check("continuous ends", &shape, &json!([2, "a", 0]));
    }
    if !s.spares("continuous with a limit ends at once") {
        let lines = s.get("_changes?feed=continuous&limit=1").await.text();
        s.check(
            "continuous with a limit ends at once",
            &json!(lines.contains("last_seq")),
            &json!(true),
        );
    }
    s.check("heartbeats", &json!(listen(s).await), &json!([true, true]));
    let events = s.get("_changes?feed=eventsource&timeout=50").await;
    s.check(
        "events' type",
        &events.header("content-type"),
        &json!("text/event-stream"),
    );
    let data = events
        .text()
        .lines()
        .filter(|line| line.starts_with("data: {"))
        .count();
    let ids = events
        .text()
        .lines()
        .filter(|line| line.starts_with("id: "))
        .count();
    s.check("events", &json!([data, ids]), &json!([2, 2]));
    let bad = s.get("_changes?feed=continuous&heartbeat=0").await;
    s.check("no heartbeat", &bad.kind(), &json!([400, "bad_request"]));
}

/// Whether a continuous feed tells of a change, and sends signs of life.
async fn listen(s: &Session) -> [bool; 2] {
    let request = s.request("GET", "_changes?feed=continuous&heartbeat=50");
    let Ok(response) = request.send().await else {
        return [false; 2];
    };
    let mut pieces = response.bytes_stream();
    let mut text = String::new();
    s.put("b", Some(&json!({}))).await;
    let mut heard = [false; 2];
    while heard != [true; 2]
        && let Ok(Some(Ok(piece))) =
            tokio::time::timeout(Duration::from_secs(10), pieces.next()).await
    {
        text.push_str(&String::from_utf8_lossy(&piece));
        heard = [
            text.contains("\"b\""),
            text.lines().filter(|line| line.is_empty()).count() >= 2,
        ];
    }
    heard
}
