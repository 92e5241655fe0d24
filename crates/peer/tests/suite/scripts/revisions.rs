//! Revision trees.

use serde_json::{Value, json};

use crate::answers::Answer;
use crate::session::Session;

/// A tree with three leaves: `3-c` and `2-x` below `1-a`, and the tombstone `4-z` of another root.
async fn plant(s: &Session) -> Answer {
    s.post(
        "_bulk_docs",
        &json!({"new_edits": false, "docs": [
            {"_id": "t", "_revisions": {"start": 3, "ids": ["c", "b", "a"]}, "v": "c"},
            {"_id": "t", "_revisions": {"start": 2, "ids": ["x", "a"]}, "v": "x"},
            {"_id": "t", "_revisions": {"start": 4, "ids": ["z"]}, "_deleted": true, "v": "z"},
        ]}),
    )
    .await
}

pub(crate) async fn conflicts(s: &Session) {
    let planted = plant(s).await;
    s.check("plant", &planted.whole(), &json!([201, []]));
    let again = plant(s).await;
    s.check("plant again", &again.whole(), &json!([201, []]));
    let all = s
        .get("t?conflicts=true&deleted_conflicts=true&revs=true")
        .await;
    s.check(
        "winner",
        &json!([all.member("_rev"), all.member("v")]),
        &json!(["3-c", "c"]),
    );
    s.check("conflicts", &all.member("_conflicts"), &json!(["2-x"]));
    s.check(
        "deleted conflicts",
        &all.member("_deleted_conflicts"),
        &json!(["4-z"]),
    );
    s.check(
        "history",
        &all.member("_revisions"),
        &json!({"start": 3, "ids": ["c", "b", "a"]}),
    );
    let meta = s.get("t?meta=true").await;
    let statuses: Vec<Value> = meta
        .member("_revs_info")
        .as_array()
        .into_iter()
        .flatten()
        .map(|it| it["status"].clone())
        .collect();
    s.check(
        "meta",
        &json!([meta.member("_conflicts"), statuses]),
        &json!([["2-x"], ["available", "missing", "missing"]]),
    );
    let loser = s.put("t?rev=2-x", Some(&json!({"v": "y"}))).await;
    let generation = loser
        .rev()
        .split_once('-')
        .map(|(generation, _)| generation.to_owned());
    s.check(
        "edit the loser",
        &json!([loser.status, generation]),
        &json!([201, "3"]),
    );
    let winner = s.get("t").await.member("_rev");
    let greater = if loser.rev().as_str() > "3-c" {
        loser.rev()
    } else {
        "3-c".to_owned()
    };
    s.check("the greater wins", &json!(winner), &json!(greater));
    s.delete("t?rev=3-c").await;
    let left = s.get("t?conflicts=true").await;
    let left = json!([left.member("_rev"), left.member("_conflicts")]);
    s.check("resolve", &left, &json!([loser.rev(), null]));
    s.delete(&format!("t?rev={}", loser.rev())).await;
    s.check(
        "delete the rest",
        &s.get("t").await.outcome(),
        &json!([404, "not_found", "deleted"]),
    );
    let branch = json!({"new_edits": false, "docs": [{"_id": "t", "_revisions": {"start": 3, "ids": ["q", "b", "a"]}}]});
    s.check(
        "branch in the middle",
        &s.post("_bulk_docs", &branch).await.whole(),
        &json!([201, []]),
    );
    s.check(
        "a live leaf wins again",
        &s.get("t").await.member("_rev"),
        &json!("3-q"),
    );
    let put = s
        .put("t?new_edits=false", Some(&json!({"_rev": "9-r", "v": "r"})))
        .await;
    s.check(
        "a replica by PUT",
        &json!([put.status, put.rev()]),
        &json!([201, "9-r"]),
    );
    let hex = "1-00000000000000000000000000000000";
    let docs = json!({"new_edits": false, "docs": [{"_id": "h", "_rev": hex}, {"_id": "h", "_rev": "1-A"}]});
    s.post("_bulk_docs", &docs).await;
    s.check(
        "hexadecimal ids sort as bytes",
        &s.get("h").await.member("_rev"),
        &json!("1-A"),
    );
}

pub(crate) async fn open_revs(s: &Session) {
    plant(s).await;
    let revs = |answer: &Answer| {
        let rows = answer.json();
        let rows = rows.as_array().into_iter().flatten();
        let rows = rows.map(|row| {
            row["ok"]
                .get("_rev")
                .cloned()
                .unwrap_or_else(|| row.clone())
        });
        Value::Array(rows.collect())
    };
    let all = s.get("t?open_revs=all").await;
    let mut sorted: Vec<Value> = revs(&all).as_array().cloned().unwrap_or_default();
    sorted.sort_by_key(Value::to_string);
    let leaves = json!(["2-x", "3-c", "4-z"]);
    s.check(
        "all",
        &json!([all.status, sorted]),
        &json!([200, leaves.clone()]),
    );
    if !s.spares("in order") {
        s.check("in order", &revs(&all), &leaves);
    }
    let rows = all.json().as_array().cloned().unwrap_or_default();
    let tombstone = rows.into_iter().find(|row| row["ok"]["_rev"] == "4-z");
    let tombstone = tombstone.unwrap_or_default();
    let expected = json!({"ok": {"_id": "t", "_rev": "4-z", "v": "z", "_deleted": true}});
    s.check("a deleted leaf", &tombstone, &expected);
    let some = s.get("t?open_revs=[%222-x%22,%229-q%22]&revs=true").await;
    s.check("some", &revs(&some), &json!(["2-x", {"missing": "9-q"}]));
    let history = some.json()[0]["ok"]["_revisions"].clone();
    s.check(
        "with history",
        &history,
        &json!({"start": 2, "ids": ["x", "a"]}),
    );
    let known = s.get("t?open_revs=[%221-a%22]").await;
    s.check(
        "known by name only",
        &revs(&known),
        &json!([{"missing": "1-a"}]),
    );
    let latest = s.get("t?open_revs=[%221-a%22]&latest=true").await;
    s.check("latest", &revs(&latest), &json!(["2-x", "3-c"]));
    s.check(
        "all of nothing",
        &s.get("n?open_revs=all").await.kind(),
        &json!([404, "not_found"]),
    );
    let some = s.get("n?open_revs=[%221-a%22]").await;
    s.check(
        "some of nothing",
        &revs(&some),
        &json!([{"missing": "1-a"}]),
    );
    s.check(
        "no revisions",
        &s.get("t?open_revs=[7]").await.kind(),
        &json!([400, "bad_request"]),
    );
    let mixed = Answer::read(s.accepting(
        "GET",
        "t?open_revs=[%222-x%22,%229-q%22]",
        "multipart/mixed",
    ));
    let mixed = mixed.await;
    let kind = mixed.header("content-type");
    let kind = kind.as_str().unwrap_or_default();
    s.check(
        "multipart",
        &json!(kind.starts_with("multipart/mixed; boundary=\"")),
        &json!(true),
    );
    let boundary = kind.split('"').nth(1).unwrap_or_default();
    let expected = format!(
        "--{boundary}\r\nContent-Type: application/json\r\n\r\n{{\"_id\":\"t\",\"_rev\":\"2-x\",\"v\":\"x\"}}\
         \r\n--{boundary}\r\nContent-Type: application/json; error=\"true\"\r\n\r\n{{\"missing\":\"9-q\"}}\r\n--{boundary}--"
    );
    s.check("its parts", &json!(mixed.text()), &json!(expected));
}

pub(crate) async fn revs_diff(s: &Session) {
    plant(s).await;
    let asked = json!({"t": ["3-c", "1-a", "2-q"], "n": ["1-a", "2-b"], "k": [], "u": ["1-a"]});
    let diff = s.post("_revs_diff", &asked).await;
    let expected = json!({
        "t": {"missing": ["2-q"]},
        "n": {"missing": ["1-a", "2-b"]},
        "u": {"missing": ["1-a"]},
    });
    s.check(
        "missing",
        &json!([diff.status, sorted(&diff.json())]),
        &json!([200, sorted(&expected)]),
    );
    let diff = s.post("_revs_diff", &json!({"t": ["5-q", "9-q"]})).await;
    let expected =
        json!({"t": {"missing": ["5-q", "9-q"], "possible_ancestors": ["3-c", "2-x", "4-z"]}});
    s.check("possible ancestors", &diff.json(), &expected);
    let diff = s.post("_revs_diff", &json!({"t": ["3-c"]})).await;
    s.check("nothing missing", &diff.whole(), &json!([200, {}]));
    let bad = s.post("_revs_diff", &json!({"t": ["x"]})).await;
    s.check(
        "no revision",
        &bad.outcome(),
        &json!([400, "bad_request", "Invalid rev format"]),
    );
}

/// Members by name: the order of this answer's members means nothing.
fn sorted(object: &Value) -> Value {
    let mut members: Vec<_> = object
        .as_object()
        .cloned()
        .unwrap_or_default()
        .into_iter()
        .collect();
    members.sort_by(|a, b| a.0.cmp(&b.0));
    Value::Object(members.into_iter().collect())
}

pub(crate) async fn stemming(s: &Session) {
    s.check(
        "the usual limit",
        &s.get("_revs_limit").await.json(),
        &json!(1000),
    );
    let set = Answer::read(s.request("PUT", "_revs_limit").json(&json!(3))).await;
    s.check("set it", &set.whole(), &json!([200, {"ok": true}]));
    s.check("it is set", &s.get("_revs_limit").await.json(), &json!(3));
    let mut rev = String::new();
    for value in 0..6 {
        let query = if rev.is_empty() {
            "a".to_owned()
        } else {
            format!("a?rev={rev}")
        };
        rev = s.put(&query, Some(&json!({"v": value}))).await.rev();
    }
    let history = s.get("a?revs=true").await.member("_revisions");
    let length = history["ids"].as_array().map(Vec::len);
    s.check(
        "history is cut",
        &json!([history["start"], length]),
        &json!([6, 3]),
    );
    let long = json!({"new_edits": false, "docs": [
        {"_id": "b", "_revisions": {"start": 9, "ids": ["i", "h", "g", "f", "e"]}},
    ]});
    s.post("_bulk_docs", &long).await;
    let history = s.get("b?revs=true").await.member("_revisions");
    s.check(
        "histories that come are cut",
        &history,
        &json!({"start": 9, "ids": ["i", "h", "g"]}),
    );
}
