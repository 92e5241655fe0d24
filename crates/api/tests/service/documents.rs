//! Documents, one at a time; expectations are answers of `CouchDB` 3.5.

use http::Method;
use serde_json::{Value, json};

use crate::fixture::{Fixture, User, replication};

const DB: &str = "/_replicator";

/// Writes a replication and returns its revision.
async fn put(user: &User<'_>, id: &str, body: &Value) -> String {
    let answer = user.put(&format!("{DB}/{id}"), body).await.gives(201);
    answer["rev"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn documents_are_written_read_and_deleted() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    let design = json!({"language": "javascript"});
    // The revision is the one that CouchDB makes of the same document.
    let answer = root.put("/_replicator/_design/x", &design).await;
    let rev = "1-ac85fc9abd1578d42425e6186d27ceb0";
    assert_eq!(
        answer.gives(201),
        json!({"ok": true, "id": "_design/x", "rev": rev})
    );
    assert_eq!(answer.header("etag"), format!("\"{rev}\""));
    let location = "http://here.example/_replicator/_design%2Fx";
    assert_eq!(answer.header("location"), location);
    let again = root.put("/_replicator/_design/x", &design).await;
    again.refuses(409, "conflict", "Document update conflict.");

    let rev = put(&root, "a", &replication()).await;
    let read = root.get("/_replicator/a").await;
    assert_eq!(read.header("etag"), format!("\"{rev}\""));
    let mut expected = json!({"_id": "a", "_rev": rev});
    for (name, value) in replication().as_object().unwrap() {
        expected[name] = value.clone();
    }
    expected["owner"] = json!("root");
    assert_eq!(read.gives(200), expected);
    for (known, status) in [
        (format!("\"{rev}\""), 304),
        (format!("\"1-xx\", \"{rev}\""), 304),
        (format!("W/\"{rev}\""), 304),
        ("\"1-xx\"".to_owned(), 200),
    ] {
        let conditional = root.clone().with("if-none-match", &known);
        assert_eq!(
            conditional.get("/_replicator/a").await.status.as_u16(),
            status,
            "{known}"
        );
    }
    let head = root.head("/_replicator/a").await;
    assert_eq!(
        (head.text.as_str(), head.header("etag")),
        ("", read.header("etag"))
    );

    let gone = root.delete("/_replicator/none").await;
    gone.refuses(404, "not_found", "missing");
    root.delete("/_replicator/a")
        .await
        .refuses(409, "conflict", "Document update conflict.");
    let bad = root.delete("/_replicator/a?rev=bad").await;
    bad.refuses(400, "bad_request", "Invalid rev format");
    let deleted = root.delete(&format!("/_replicator/a?rev={rev}")).await;
    assert_eq!(deleted.gives(200)["ok"], true);
    root.get("/_replicator/a")
        .await
        .refuses(404, "not_found", "deleted");
    root.delete("/_replicator/a?rev=bad")
        .await
        .refuses(404, "not_found", "deleted");
    // It can be recreated without a revision.
    let again = root.put("/_replicator/a", &replication()).await.gives(201);
    assert!(again["rev"].as_str().unwrap().starts_with("3-"));
}

#[tokio::test]
async fn revisions_are_named_once() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    let rev = put(&root, "a", &replication()).await;
    let mut other = replication();
    other["_rev"] = json!("1-abc");
    let answer = root.put(&format!("/_replicator/a?rev={rev}"), &other).await;
    let reason = "Document rev from request body and query string have different values";
    answer.refuses(400, "bad_request", reason);
    let etag = root.clone().with("if-match", "\"1-abc\"");
    let answer = etag
        .put(&format!("/_replicator/a?rev={rev}"), &replication())
        .await;
    answer.refuses(
        400,
        "bad_request",
        "Document rev and etag have different values",
    );
    let etag = root.clone().with("if-match", &format!("\"{rev}\""));
    assert_eq!(etag.put("/_replicator/a", &replication()).await.status, 201);
    let stale = etag.delete("/_replicator/a").await;
    stale.refuses(409, "conflict", "Document update conflict.");
}

#[tokio::test]
async fn what_is_no_document_is_refused() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    for (id, body, error, reason) in [
        ("a", "[]", "bad_request", "Document must be a JSON object"),
        ("a", "{", "bad_request", "invalid UTF-8 JSON"),
        (
            "a",
            "{\"_foo\":1}",
            "doc_validation",
            "Bad special document member: _foo",
        ),
        ("a", "{\"_rev\":\"x\"}", "bad_request", "Invalid rev format"),
        (
            "a",
            "{\"_sealed\":\"x\"}",
            "doc_validation",
            "Bad special document member: _sealed",
        ),
    ] {
        let answer = root.send(Method::PUT, &format!("{DB}/{id}"), body).await;
        answer.refuses(400, error, reason);
    }
    let form = root.send(Method::POST, DB, "{}").await;
    form.refuses(
        415,
        "bad_content_type",
        "Content-Type must be application/json",
    );
    let number = root.post(DB, &json!({"_id": 7})).await;
    number.refuses(400, "illegal_docid", "Document id must be a string");
    let reserved = root.post(DB, &json!({"_id": "_x"})).await;
    let reason = "Only reserved document ids may start with underscore.";
    reserved.refuses(400, "illegal_docid", reason);
    let reserved = root.put("/_replicator/_mine", &json!({})).await;
    reserved.refuses(400, "illegal_docid", reason);
    let none = root.get("/_replicator/_mine").await;
    none.refuses(404, "not_found", "missing");
    let verb = root.send(Method::PATCH, "/_replicator/a", "").await;
    assert_eq!(verb.status, 405);
    let mut guarded = json!({"validate_doc_update": "function() {}"});
    let refused = root
        .put("/_replicator/_design/auth", &guarded)
        .await
        .gives(403);
    assert!(
        refused["reason"]
            .as_str()
            .unwrap()
            .contains("validate_doc_update")
    );
    guarded["_id"] = json!("_design/auth");
    let rows = root
        .post("/_replicator/_bulk_docs", &json!({"docs": [guarded]}))
        .await;
    assert_eq!(rows.gives(201)[0]["error"], "forbidden");
}

#[tokio::test]
async fn documents_without_an_id_get_one() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    let answer = root.post(DB, &replication()).await;
    let made = answer.gives(201);
    let id = made["id"].as_str().unwrap();
    assert_eq!(id.len(), 32);
    assert_eq!(
        answer.header("location"),
        format!("http://here.example/_replicator/{id}")
    );
    assert_eq!(answer.header("etag"), "");
    let lazy = root.post("/_replicator?batch=ok", &replication()).await;
    assert_eq!(lazy.gives(202)["ok"], true);
    assert_eq!(root.get(DB).await.json()["doc_count"], 2);
}

#[tokio::test]
async fn deletions_leave_more_than_a_stub_when_they_are_put() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    let rev = put(&root, "a", &replication()).await;
    let tombstone = json!({"_rev": rev, "_deleted": true, "why": "no longer needed"});
    let deleted = root.put("/_replicator/a", &tombstone).await.gives(200);
    let rev = deleted["rev"].as_str().unwrap();
    let read = root
        .get(&format!("/_replicator/a?rev={rev}"))
        .await
        .gives(200);
    assert_eq!(
        (&read["_deleted"], &read["why"]),
        (&json!(true), &tombstone["why"])
    );
}

/// Makes a document with two leaves.
async fn conflict(user: &User<'_>) {
    let leaf = |rev: &str| {
        let mut doc = replication();
        doc["_id"] = json!("a");
        doc["_rev"] = json!(rev);
        doc
    };
    let docs = json!({"docs": [leaf("1-a"), leaf("1-b")], "new_edits": false});
    let rows = user.post("/_replicator/_bulk_docs", &docs).await;
    assert_eq!(rows.gives(201), json!([]));
}

#[tokio::test]
async fn history_and_conflicts_are_told() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    conflict(&root).await;
    let meta = root
        .get("/_replicator/a?meta=true&revs=true&local_seq=true")
        .await;
    assert_eq!(meta.header("etag"), "");
    let meta = meta.gives(200);
    assert_eq!(meta["_rev"], "1-b");
    assert_eq!(meta["_conflicts"], json!(["1-a"]));
    assert_eq!(meta["_revisions"], json!({"start": 1, "ids": ["b"]}));
    assert_eq!(
        meta["_revs_info"],
        json!([{"rev": "1-b", "status": "available"}])
    );
    assert!(meta["_local_seq"].is_string());
    let old = root.get("/_replicator/a?rev=1-a").await.gives(200);
    assert_eq!(old["_rev"], "1-a");
    root.get("/_replicator/a?rev=1-c")
        .await
        .refuses(404, "not_found", "missing");
    root.get("/_replicator/a?rev=x")
        .await
        .refuses(400, "bad_request", "Invalid rev format");
}

#[tokio::test]
async fn revisions_are_opened() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    conflict(&root).await;
    let json_only = root.clone().with("accept", "application/json");
    let open = json_only
        .get("/_replicator/a?open_revs=%5B%221-a%22,%229-z%22%5D")
        .await
        .gives(200);
    assert_eq!(open[0]["ok"]["_rev"], "1-a");
    assert_eq!(open[1], json!({"missing": "9-z"}));
    let all = json_only
        .get("/_replicator/a?open_revs=all")
        .await
        .gives(200);
    assert_eq!(all.as_array().unwrap().len(), 2);
    for (revs, reason) in [
        ("x", "invalid UTF-8 JSON"),
        ("7", "Invalid list of revisions"),
    ] {
        let bad = root.get(&format!("/_replicator/a?open_revs={revs}")).await;
        bad.refuses(400, "bad_request", reason);
    }
    json_only
        .get("/_replicator/none?open_revs=all")
        .await
        .refuses(404, "not_found", "missing");

    // As in CouchDB, a client that accepts anything gets multipart.
    let parts = root
        .get("/_replicator/a?open_revs=%5B%221-a%22,%229-z%22%5D")
        .await;
    let boundary = parts
        .header("content-type")
        .split("boundary=\"")
        .nth(1)
        .unwrap();
    let boundary = boundary.trim_end_matches('"');
    let pieces: Vec<_> = parts.text.split(&format!("--{boundary}")).collect();
    assert_eq!(pieces.len(), 4);
    assert!(pieces[1].starts_with("\r\nContent-Type: application/json\r\n\r\n{\"_id\":\"a\""));
    assert!(pieces[2].contains("; error=\"true\"\r\n\r\n{\"missing\":\"9-z\"}"));
    assert_eq!(pieces[3], "--");
}

#[tokio::test]
async fn local_documents_stay_here() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    let body = json!({"history": [1]});
    let answer = root.put("/_replicator/_local/x", &body).await.gives(201);
    assert_eq!(answer, json!({"ok": true, "id": "_local/x", "rev": "0-1"}));
    let read = root.get("/_replicator/_local%2Fx").await.gives(200);
    assert_eq!(
        read,
        json!({"_id": "_local/x", "_rev": "0-1", "history": [1]})
    );
    assert_eq!(root.get(DB).await.json()["doc_count"], 0);
    assert_eq!(
        root.delete("/_replicator/_local/x").await.gives(200)["rev"],
        "0-0"
    );
    root.get("/_replicator/_local/x")
        .await
        .refuses(404, "not_found", "missing");
    let reason = "_local documents do not accept attachments.";
    root.get("/_replicator/_local/x/y")
        .await
        .refuses(400, "bad_request", reason);
}

#[tokio::test]
async fn attachments_come_and_go() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    let rev = put(&root, "a", &replication()).await;
    let text = root.clone().with("content-type", "text/html");
    let path = format!("/_replicator/a/notes.html?rev={rev}");
    let rev = text.send(Method::PUT, &path, "<b>hi</b>").await.gives(201)["rev"].clone();
    let read = root.get("/_replicator/a/notes.html").await;
    assert_eq!(
        (read.status.as_u16(), read.text.as_str()),
        (200, "<b>hi</b>")
    );
    assert_eq!(read.header("content-type"), "text/html");
    assert_eq!(read.header("content-security-policy"), "sandbox");
    let doc = root.get("/_replicator/a").await.gives(200);
    assert_eq!(doc["_attachments"]["notes.html"]["stub"], true);
    assert_eq!(doc["source"], replication()["source"]);
    let whole = root.get("/_replicator/a?attachments=true").await.gives(200);
    assert_eq!(whole["_attachments"]["notes.html"]["data"], "PGI+aGk8L2I+");
    let stale = text.send(Method::PUT, &path, "x").await;
    stale.refuses(409, "conflict", "Document update conflict.");
    let path = format!("/_replicator/a/notes.html?rev={}", rev.as_str().unwrap());
    root.delete(&path).await.gives(200);
    let gone = root.get("/_replicator/a/notes.html").await;
    gone.refuses(404, "not_found", "Document is missing attachment");
    assert_eq!(root.get("/_replicator/_design/x/_view/y").await.status, 501);
}

#[tokio::test]
async fn documents_come_with_their_attachments_in_parts() {
    let fixture = Fixture::new().await;
    let related = fixture
        .root()
        .with("content-type", "multipart/related; boundary=\"zz\"");
    let mut doc = replication();
    doc["_revisions"] = json!({"start": 2, "ids": ["b", "a"]});
    doc["_attachments"] = json!({
        "one": {"content_type": "text/plain", "revpos": 1, "follows": true, "length": 3},
        "two": {"content_type": "text/plain", "revpos": 2, "data": "dHdv"},
    });
    let body = format!(
        "--zz\r\nContent-Type: application/json\r\n\r\n{doc}\r\n--zz\r\n\
         Content-Disposition: attachment; filename=\"one\"\r\nContent-Type: text/plain\r\n\r\n\
         one\r\n--zz--"
    );
    let path = "/_replicator/a?new_edits=false";
    assert_eq!(
        related.send(Method::PUT, path, body).await.gives(201)["rev"],
        "2-b"
    );
    assert_eq!(fixture.root().get("/_replicator/a/one").await.text, "one");
    assert_eq!(fixture.root().get("/_replicator/a/two").await.text, "two");
    for broken in ["", "--zz\r\n\r\n{}", "--zz--"] {
        let answer = related.send(Method::PUT, path, broken).await;
        assert_eq!(answer.status, 400, "{broken}");
    }
}

#[tokio::test]
async fn eight_megabytes_fit_and_not_a_byte_more() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    let body = |bytes: usize| {
        let mut doc = replication();
        doc["owner"] = json!("root");
        doc["pad"] = json!("");
        let pad = bytes - doc.to_string().len();
        doc["pad"] = json!("x".repeat(pad));
        doc
    };
    let large = root.put("/_replicator/a", &body(8_000_001)).await;
    large.refuses(413, "document_too_large", "a");
    root.put("/_replicator/a", &body(8_000_000))
        .await
        .gives(201);
    let read = root.get("/_replicator/a").await.gives(200);
    assert!(read["pad"].as_str().unwrap().len() > 7_999_000);
}
