//! Single documents.

use serde_json::{Value, json};

use crate::answers::{Answer, pick};
use crate::session::Session;

const FIRST: &str = "1-23202479633c2b380f79507a776743d5";

pub(crate) async fn documents(s: &Session) {
    let created = s.put("a", Some(&json!({"a": 1}))).await;
    s.check(
        "create",
        &created.whole(),
        &json!([201, {"ok": true, "id": "a", "rev": FIRST}]),
    );
    let first = created.rev();
    s.check(
        "etag of a write",
        &created.header("etag"),
        &json!(format!("\"{first}\"")),
    );
    let location = created.header("location");
    let location = location
        .as_str()
        .is_some_and(|it| it.ends_with(&format!("/{}/a", s.db)));
    s.check("location", &json!(location), &json!(true));
    let read = s.get("a").await;
    s.check(
        "read",
        &read.whole(),
        &json!([200, {"_id": "a", "_rev": first, "a": 1}]),
    );
    s.check("etag", &read.header("etag"), &json!(format!("\"{first}\"")));
    let known = Answer::read(
        s.request("GET", "a")
            .header("If-None-Match", format!("\"{first}\"")),
    )
    .await;
    s.check(
        "known already",
        &json!([known.status, known.text()]),
        &json!([304, ""]),
    );
    let conflict = s.put("a", Some(&json!({"a": 2}))).await;
    let refused = json!([409, "conflict", "Document update conflict."]);
    s.check("no revision", &conflict.outcome(), &refused);
    let old = s
        .put(
            "a?rev=1-967a00dff5e02add41819138abb3284d",
            Some(&json!({"a": 2})),
        )
        .await;
    s.check("wrong revision", &old.outcome(), &refused);
    let second = s.put("a", Some(&json!({"_rev": first, "a": 2}))).await;
    s.check("update", &second.kind(), &json!(201));
    let third = s
        .put(&format!("a?rev={}", second.rev()), Some(&json!({"a": 3})))
        .await;
    s.check("revision in the query", &third.kind(), &json!(201));
    let old = s.get(&format!("a?rev={first}")).await;
    s.check(
        "an old revision",
        &old.whole(),
        &json!([200, {"_id": "a", "_rev": first, "a": 1}]),
    );
    s.check(
        "no such revision",
        &s.get("a?rev=9-abc").await.outcome(),
        &json!([404, "not_found", "missing"]),
    );
    let revs: Vec<String> = [&third, &second, &created]
        .iter()
        .map(|it| it.rev())
        .collect();
    let ids: Vec<&str> = revs
        .iter()
        .filter_map(|rev| Some(rev.split_once('-')?.1))
        .collect();
    let history = s.get("a?revs=true").await.member("_revisions");
    s.check("history", &history, &json!({"start": 3, "ids": ids}));
    let info = s.get("a?revs_info=true").await;
    let available: Vec<Value> = revs
        .iter()
        .map(|rev| json!({"rev": rev, "status": "available"}))
        .collect();
    s.check(
        "history with bodies",
        &info.member("_revs_info"),
        &json!(available),
    );
    s.check(
        "no etag with more than the document",
        &info.header("etag"),
        &Value::Null,
    );
    let head = Answer::read(s.request("HEAD", "a")).await;
    s.check(
        "head",
        &json!([head.status, head.header("etag")]),
        &json!([200, etag_of(&third)]),
    );
    let posted = s.post("", &json!({"p": 1})).await;
    let id = posted.member("id");
    s.check(
        "id from the server",
        &json!([posted.status, id.as_str().map(str::len)]),
        &json!([201, 32]),
    );
    let posted = s.post("", &json!({"_id": "b", "p": 1})).await;
    s.check(
        "id in the body",
        &json!([posted.status, posted.member("id")]),
        &json!([201, "b"]),
    );
    let copied = Answer::read(s.request("COPY", "b").header("Destination", "c")).await;
    s.check(
        "copy",
        &json!([copied.status, copied.member("id")]),
        &json!([201, "c"]),
    );
    s.check("the copy", &s.get("c").await.member("p"), &json!(1));
    let etag = format!("\"{}\"", third.rev());
    let fourth = Answer::read(
        s.request("PUT", "a")
            .header("If-Match", &etag)
            .json(&json!({"a": 4})),
    )
    .await;
    s.check("revision in a header", &fourth.kind(), &json!(201));
    s.check("count", &s.get("").await.member("doc_count"), &json!(4));
}

fn etag_of(written: &Answer) -> String {
    format!("\"{}\"", written.rev())
}

pub(crate) async fn refusals(s: &Session) {
    s.check(
        "missing",
        &s.get("nothing").await.outcome(),
        &json!([404, "not_found", "missing"]),
    );
    for (step, body) in [("no JSON", "{\"a\":"), ("nothing", "")] {
        let bad = Answer::read(
            s.request("PUT", "a")
                .header("Content-Type", "application/json")
                .body(body),
        )
        .await;
        s.check(step, &bad.kind(), &json!([400, "bad_request"]));
    }
    let array = s.put("a", Some(&json!([]))).await;
    s.check(
        "no object",
        &array.outcome(),
        &json!([400, "bad_request", "Document must be a JSON object"]),
    );
    let member = s.put("a", Some(&json!({"_foo": 1}))).await;
    let reason = "Bad special document member: _foo";
    s.check(
        "unknown member",
        &member.outcome(),
        &json!([400, "doc_validation", reason]),
    );
    let id = s.put("_foo", Some(&json!({}))).await;
    let reason = "Only reserved document ids may start with underscore.";
    s.check(
        "reserved id",
        &id.outcome(),
        &json!([400, "illegal_docid", reason]),
    );
    let id = s.post("", &json!({"_id": 7})).await;
    s.check(
        "id is a number",
        &id.outcome(),
        &json!([400, "illegal_docid", "Document id must be a string"]),
    );
    let id = s.post("", &json!({"_id": ""})).await;
    s.check(
        "id is empty",
        &id.outcome(),
        &json!([400, "illegal_docid", "Document id must not be empty"]),
    );
    let rev = s.put("a?rev=abc", Some(&json!({}))).await;
    s.check(
        "no revision",
        &rev.outcome(),
        &json!([400, "bad_request", "Invalid rev format"]),
    );
    let rev = s.put("a?rev=1-a", Some(&json!({"_rev": "1-b"}))).await;
    s.check("two revisions", &rev.kind(), &json!([400, "bad_request"]));
    let rev = Answer::read(
        s.request("PUT", "a?rev=1-a")
            .header("If-Match", "1-b")
            .json(&json!({})),
    )
    .await;
    s.check(
        "two revisions, one in a header",
        &rev.kind(),
        &json!([400, "bad_request"]),
    );
    let rev = s.put("a?new_edits=false", Some(&json!({"a": 1}))).await;
    s.check(
        "a replica without revision",
        &rev.kind(),
        &json!([400, "bad_request"]),
    );
    let method = Answer::read(s.request("PATCH", "a")).await;
    s.check("no such method", &json!(method.status), &json!(405));
    let design = s.get("_design/none").await;
    s.check(
        "no design document",
        &design.outcome(),
        &json!([404, "not_found", "missing"]),
    );
}

pub(crate) async fn deletions(s: &Session) {
    let first = s.put("a", Some(&json!({}))).await.rev();
    s.check(
        "the empty document",
        &json!(first),
        &json!("1-967a00dff5e02add41819138abb3284d"),
    );
    let deleted = s.delete(&format!("a?rev={first}")).await;
    s.check(
        "delete",
        &json!([deleted.status, deleted.member("id")]),
        &json!([200, "a"]),
    );
    let second = deleted.rev();
    s.check(
        "the empty deletion",
        &json!(second),
        &json!("2-eec205a9d413992850a6e32678485900"),
    );
    s.check(
        "read",
        &s.get("a").await.outcome(),
        &json!([404, "not_found", "deleted"]),
    );
    let tombstone = s.get(&format!("a?rev={second}")).await;
    s.check(
        "tombstone",
        &tombstone.whole(),
        &json!([200, {"_id": "a", "_rev": second, "_deleted": true}]),
    );
    let again = s.delete(&format!("a?rev={second}")).await;
    s.check("delete again", &again.kind(), &json!([404, "not_found"]));
    let counts = pick(&s.get("").await.json(), &["doc_count", "doc_del_count"]);
    s.check(
        "counts",
        &counts,
        &json!({"doc_count": 0, "doc_del_count": 1}),
    );
    let again = s.put("a", Some(&json!({"b": 1}))).await;
    s.check(
        "make it again",
        &json!([again.status, generation(&again)]),
        &json!([201, "3"]),
    );
    let history = s.get("a?revs=true").await.member("_revisions");
    s.check("its history goes on", &history["start"], &json!(3));
    let with_body = s
        .put("b", Some(&json!({"_deleted": true, "why": "spam"})))
        .await;
    s.check(
        "begin deleted",
        &json!([with_body.status, generation(&with_body)]),
        &json!([200, "1"]),
    );
    let tombstone = s.get(&format!("b?rev={}", with_body.rev())).await;
    s.check(
        "a tombstone has a body",
        &tombstone.member("why"),
        &json!("spam"),
    );
    let revived = s
        .put(
            &format!("b?rev={}", with_body.rev()),
            Some(&json!({"c": 1})),
        )
        .await;
    s.check(
        "update a tombstone",
        &revived.kind(),
        &json!([409, "conflict"]),
    );
    s.check(
        "delete what is not there",
        &s.delete("c").await.outcome(),
        &json!([404, "not_found", "missing"]),
    );
    s.check(
        "delete without revision",
        &s.delete("a").await.kind(),
        &json!([409, "conflict"]),
    );
}

fn generation(written: &Answer) -> Value {
    json!(
        written
            .rev()
            .split_once('-')
            .map(|(generation, _)| generation.to_owned())
    )
}

pub(crate) async fn odd_values(s: &Session) {
    let odd = [
        ("a%2Fb", "a/b"),
        ("c%2Bd%20e", "c+d e"),
        ("%25%26%3F%23", "%&?#"),
        ("%C3%A9%F0%9F%90%99", "é🐙"),
        ("%22quoted%5C", "\"quoted\\"),
        ("%3A;@$,=", ":;@$,="),
    ];
    for (path, id) in odd {
        let created = s.put(path, Some(&json!({"v": id}))).await;
        s.check(
            &format!("create {id}"),
            &json!([created.status, created.member("id")]),
            &json!([201, id]),
        );
        let read = s.get(path).await;
        s.check(
            &format!("read {id}"),
            &json!([read.member("_id"), read.member("v")]),
            &json!([id, id]),
        );
    }
    let text = r#"{"z":1,"a":2,"big":9007199254740993,"float":1.5,"zero":0,"neg":-7,"deep":[[[{"x":[]}]]],"":"","é":"\u00e9\n\t\u0001"}"#;
    let put = Answer::read(
        s.request("PUT", "values")
            .header("Content-Type", "application/json")
            .body(text),
    )
    .await;
    s.check("create values", &json!(put.status), &json!(201));
    let read = s.get("values").await.text();
    let members = read
        .split_once(",\"z\"")
        .map(|(_, members)| format!("{{\"z\"{}", members.trim_end()));
    let expected = text.replace("\\u00e9", "é");
    s.check(
        "order, numbers and escapes",
        &json!(members.map(|it| it.replace("\\u00e9", "é"))),
        &json!(expected),
    );
    let huge = r#"{"n":123456789012345678901234567890}"#;
    Answer::read(
        s.request("PUT", "huge")
            .header("Content-Type", "application/json")
            .body(huge),
    )
    .await;
    let read = s.get("huge").await.text();
    s.check(
        "integers of any size",
        &json!(read.contains("123456789012345678901234567890")),
        &json!(true),
    );
}

pub(crate) async fn locals(s: &Session) {
    let created = s.put("_local/x", Some(&json!({"a": 1}))).await;
    s.check(
        "create",
        &created.whole(),
        &json!([201, {"ok": true, "id": "_local/x", "rev": "0-1"}]),
    );
    let read = s.get("_local/x").await;
    s.check(
        "read",
        &read.whole(),
        &json!([200, {"_id": "_local/x", "_rev": "0-1", "a": 1}]),
    );
    let updated = s
        .put("_local/x", Some(&json!({"_rev": "0-1", "a": 2})))
        .await;
    s.check(
        "update",
        &updated.whole(),
        &json!([201, {"ok": true, "id": "_local/x", "rev": "0-2"}]),
    );
    let forced = s.put("_local/x", Some(&json!({"a": 3}))).await;
    s.check(
        "update without revision",
        &json!([forced.status, forced.rev()]),
        &json!([201, "0-1"]),
    );
    let deleted = s.delete("_local/x?rev=0-1").await;
    s.check(
        "delete",
        &json!([deleted.status, deleted.rev()]),
        &json!([200, "0-0"]),
    );
    s.check(
        "gone",
        &s.get("_local/x").await.outcome(),
        &json!([404, "not_found", "missing"]),
    );
    let slash = s.put("_local/a%2Fb", Some(&json!({}))).await;
    s.check(
        "slash in the name",
        &slash.member("id"),
        &json!("_local/a/b"),
    );
    let changes = s.get("_changes").await.member("results");
    s.check("not in the feed", &changes, &json!([]));
    s.check(
        "not counted",
        &s.get("").await.member("doc_count"),
        &json!(0),
    );
}
