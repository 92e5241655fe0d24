//! Many documents at once.

use serde_json::{Value, json};

use crate::answers::{Answer, pick};
use crate::session::Session;

pub(crate) async fn bulk_docs(s: &Session) {
    let written = s
        .post(
            "_bulk_docs",
            &json!({"docs": [{"_id": "a", "a": 1}, {"_id": "b"}, {"_id": "a", "a": 2}]}),
        )
        .await;
    let first = written.json()[0]["rev"].clone();
    let rows: Vec<Value> = written
        .json()
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| pick(row, &["ok", "id", "rev", "error"]))
        .collect();
    let expected = json!([201, [
        {"ok": true, "id": "a", "rev": "1-23202479633c2b380f79507a776743d5"},
        {"ok": true, "id": "b", "rev": "1-967a00dff5e02add41819138abb3284d"},
        {"id": "a", "error": "conflict"},
    ]]);
    s.check("write", &json!([written.status, rows]), &expected);
    let written = s
        .post(
            "_bulk_docs",
            &json!({"docs": [{"a": 1}, {"_id": "b", "b": 1}]}),
        )
        .await;
    // Under load, PouchDB Server lists the conflict first.
    let rows = written.json();
    let is_b = |row: &&Value| row["id"] == "b";
    let all = rows.as_array().map(Vec::as_slice).unwrap_or_default();
    let made = all.iter().find(|row| !is_b(row));
    let made = made.and_then(|row| row["id"].as_str().map(str::len));
    s.check("an id is made", &json!(made), &json!(32));
    let conflict = all.iter().find(is_b).unwrap_or(&Value::Null);
    s.check(
        "a conflict",
        &pick(conflict, &["id", "error"]),
        &json!({"id": "b", "error": "conflict"}),
    );
    let empty = s.post("_bulk_docs", &json!({"docs": []})).await;
    s.check("nothing to write", &empty.whole(), &json!([201, []]));
    let none = s.post("_bulk_docs", &json!({})).await;
    let reason = "POST body must include `docs` parameter.";
    s.check(
        "no documents",
        &none.outcome(),
        &json!([400, "bad_request", reason]),
    );
    let text = s.post("_bulk_docs", &json!({"docs": "all"})).await;
    s.check(
        "documents are text",
        &text.outcome(),
        &json!([400, "bad_request", "`docs` parameter must be an array."]),
    );
    let bad = s
        .post("_bulk_docs", &json!({"docs": [{"_id": "c"}, 7]}))
        .await;
    s.check(
        "one is a number",
        &bad.outcome(),
        &json!([400, "bad_request", "Document must be a JSON object"]),
    );
    s.check(
        "then none is written",
        &s.get("c").await.kind(),
        &json!([404, "not_found"]),
    );
    let bad = s
        .post("_bulk_docs", &json!({"docs": [{"_id": "_x"}]}))
        .await;
    s.check("a reserved id", &bad.kind(), &json!([400, "illegal_docid"]));
    let bad = s
        .post(
            "_bulk_docs",
            &json!({"new_edits": false, "docs": [{"_id": "c"}]}),
        )
        .await;
    s.check(
        "a replica without revision",
        &bad.kind(),
        &json!([400, "bad_request"]),
    );
    let deletion = json!({"docs": [
        {"_id": "a", "_rev": first, "_deleted": true},
    ]});
    let deleted = s.post("_bulk_docs", &deletion).await;
    s.check("delete", &json!(deleted.json()[0]["ok"]), &json!(true));
    s.check(
        "deleted",
        &s.get("a").await.outcome(),
        &json!([404, "not_found", "deleted"]),
    );
}

pub(crate) async fn bulk_get(s: &Session) {
    s.post(
        "_bulk_docs",
        &json!({"new_edits": false, "docs": [
            {"_id": "t", "_revisions": {"start": 2, "ids": ["b", "a"]}, "v": "b"},
            {"_id": "t", "_revisions": {"start": 2, "ids": ["x", "a"]}, "v": "x"},
        ]}),
    )
    .await;
    let asked = json!({"docs": [
        {"id": "t", "rev": "2-x"}, {"id": "t", "rev": "9-q"}, {"id": "n", "rev": "1-a"}, {"id": "t"}, {"id": "t", "rev": "1-a"},
    ]});
    let got = s.post("_bulk_get?revs=true", &asked).await;
    let error = |id: &str, rev: &str| json!([{"error": {"id": id, "rev": rev, "error": "not_found", "reason": "missing"}}]);
    let doc = |id: &str| json!({"ok": {"_id": "t", "_rev": format!("2-{id}"), "v": id, "_revisions": {"start": 2, "ids": [id, "a"]}}});
    let expected = json!({"results": [
        {"id": "t", "docs": [doc("x")]},
        {"id": "t", "docs": error("t", "9-q")},
        {"id": "n", "docs": error("n", "1-a")},
        {"id": "t", "docs": [doc("b"), doc("x")]},
        {"id": "t", "docs": error("t", "1-a")},
    ]});
    s.check("revisions", &got.whole(), &json!([200, expected]));
    let got = s
        .post(
            "_bulk_get?latest=true",
            &json!({"docs": [{"id": "t", "rev": "1-a"}]}),
        )
        .await;
    let revs: Vec<Value> = (got.json()["results"][0]["docs"]
        .as_array()
        .into_iter()
        .flatten())
    .map(|doc| doc["ok"]["_rev"].clone())
    .collect();
    s.check("latest", &json!(revs), &json!(["2-b", "2-x"]));
    let got = s
        .post("_bulk_get", &json!({"docs": [{"id": "t", "rev": "x"}]}))
        .await;
    let error = got.json()["results"][0]["docs"][0]["error"].clone();
    s.check(
        "no revision",
        &pick(&error, &["id", "error"]),
        &json!({"id": "t", "error": "bad_request"}),
    );
    let none = s.post("_bulk_get", &json!({})).await;
    s.check("no documents", &none.kind(), &json!([400, "bad_request"]));
    if !s.spares("a parameter of single documents") {
        let bad = s.post("_bulk_get?rev=1-a", &json!({"docs": []})).await;
        s.check(
            "a parameter of single documents",
            &bad.kind(),
            &json!([400, "bad_request"]),
        );
    }
    let parts = Answer::read(
        s.accepting("POST", "_bulk_get", "multipart/mixed")
            .json(&json!({"docs": [{"id": "t", "rev": "2-x"}]})),
    )
    .await;
    let kind = parts.header("content-type");
    let kind = kind.as_str().unwrap_or_default();
    s.check(
        "multipart",
        &json!(kind.starts_with("multipart/mixed; boundary=\"")),
        &json!(true),
    );
    let boundary = kind.split('"').nth(1).unwrap_or_default();
    let expected = format!(
        "\r\n--{boundary}\r\nContent-Type: application/json\r\n\r\n{{\"_id\":\"t\",\"_rev\":\"2-x\",\"v\":\"x\"}}\r\n--{boundary}--\r\n"
    );
    s.check("its parts", &json!(parts.text()), &json!(expected));
}

/// Ids of the rows, and total and offset.
fn rows(answer: &Answer) -> Value {
    let body = answer.json();
    let ids: Vec<Value> = (body["rows"].as_array().into_iter().flatten())
        .map(|row| {
            row.get("id")
                .or(row.get("error"))
                .cloned()
                .unwrap_or_default()
        })
        .collect();
    json!([ids, body["total_rows"], body["offset"]])
}

pub(crate) async fn all_docs(s: &Session) {
    let docs: Vec<Value> = ["a", "b", "c", "d", "é"]
        .iter()
        .map(|id| json!({"_id": id}))
        .collect();
    let written = s.post("_bulk_docs", &json!({"docs": docs})).await;
    let rev = written.json()[3]["rev"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let deleted = s.delete(&format!("d?rev={rev}")).await;
    s.put("_design/x", Some(&json!({}))).await;
    let list = async |query: &str| rows(&s.get(&format!("_all_docs{query}")).await);
    s.check(
        "all",
        &list("").await,
        &json!([["_design/x", "a", "b", "c", "é"], 5, 0]),
    );
    s.check(
        "down",
        &list("?descending=true&limit=2").await,
        &json!([["é", "c"], 5, 0]),
    );
    s.check(
        "from",
        &list("?startkey=%22b%22").await,
        &json!([["b", "c", "é"], 5, 2]),
    );
    s.check(
        "to",
        &list("?endkey=%22b%22").await,
        &json!([["_design/x", "a", "b"], 5, 0]),
    );
    let exclusive = list("?endkey=%22b%22&inclusive_end=false").await;
    s.check("to, exclusive", &exclusive[0], &json!(["_design/x", "a"]));
    let between = list("?startkey=%22c%22&endkey=%22a%22&descending=true").await;
    s.check("down between", &between[0], &json!(["c", "b", "a"]));
    s.check(
        "skip and limit",
        &list("?skip=1&limit=2").await,
        &json!([["a", "b"], 5, 1]),
    );
    s.check("key", &list("?key=%22b%22").await[0], &json!(["b"]));
    s.check(
        "nothing between",
        &list("?startkey=%22x%22&endkey=%22a%22").await[0],
        &json!([]),
    );
    s.check("limit of nothing", &list("?limit=0").await[0], &json!([]));
    let keys = json!({"keys": ["b", "n", "d", "b"]});
    let by_keys = s.post("_all_docs?include_docs=true", &keys).await;
    let first = "1-967a00dff5e02add41819138abb3284d";
    let b =
        json!({"id": "b", "key": "b", "value": {"rev": first}, "doc": {"_id": "b", "_rev": first}});
    let expected = json!([
        b, {"key": "n", "error": "not_found"},
        {"id": "d", "key": "d", "value": {"rev": deleted.rev(), "deleted": true}, "doc": null}, b,
    ]);
    s.check("keys", &by_keys.member("rows"), &expected);
    let by_keys = s.get("_all_docs?keys=[%22c%22,%22a%22]").await;
    s.check("keys in the query", &rows(&by_keys)[0], &json!(["c", "a"]));
    let bad = s.get("_all_docs?keys=7").await;
    s.check(
        "keys are a number",
        &bad.kind(),
        &json!([400, "bad_request"]),
    );
    let text = s.get("_all_docs?startkey=%22b%22&limit=1").await.text();
    let expected = format!(
        "{{\"total_rows\":5,\"offset\":2,\"rows\":[\r\n{{\"id\":\"b\",\"key\":\"b\",\"value\":{{\"rev\":\"{first}\"}}}}\r\n]}}\n"
    );
    s.check("to the byte", &json!(text), &json!(expected));
}
