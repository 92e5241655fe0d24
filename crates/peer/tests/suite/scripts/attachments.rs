//! Attachments.

use serde_json::{Value, json};

use crate::answers::{Answer, pick};
use crate::session::Session;

const BINARY: &str = "application/octet-stream";

async fn attach(s: &Session, path: &str, kind: &str, data: &'static str) -> Answer {
    Answer::read(
        s.request("PUT", path)
            .header("Content-Type", kind)
            .body(data),
    )
    .await
}

/// A stub of `My hovercraft is full of eels!`.
fn eels(revpos: u64) -> Value {
    json!({"content_type": BINARY, "revpos": revpos, "digest": "md5-uoLJeG8NfCWNzP/3AI2Ytw==", "length": 30, "stub": true})
}

const EELS: &str = "My hovercraft is full of eels!";

pub(crate) async fn attachments(s: &Session) {
    let created = attach(s, "doc/file.txt", BINARY, EELS).await;
    let rev = "1-f46b1869202d04376d7016b284816667";
    s.check(
        "create",
        &created.whole(),
        &json!([201, {"ok": true, "id": "doc", "rev": rev}]),
    );
    let stub = s.get("doc").await.member("_attachments")["file.txt"].clone();
    let kept = pick(&stub, &["content_type", "revpos", "length", "stub"]);
    let expected = json!({"content_type": BINARY, "revpos": 1, "length": 30, "stub": true});
    s.check("stub", &kept, &expected);
    let digest = stub["digest"].as_str().unwrap_or_default().to_owned();
    s.check("digest", &json!(digest.starts_with("md5-")), &json!(true));
    let read = s.get("doc/file.txt").await;
    s.check(
        "read",
        &json!([read.status, read.text()]),
        &json!([200, EELS]),
    );
    s.check("its type", &read.header("content-type"), &json!(BINARY));
    s.check(
        "its etag",
        &read.header("etag"),
        &json!(format!("\"{}\"", digest.trim_start_matches("md5-"))),
    );
    s.check("its length", &read.header("content-length"), &json!("30"));
    s.check("ranges", &read.header("accept-ranges"), &json!("bytes"));
    let part = Answer::read(
        s.request("GET", "doc/file.txt")
            .header("Range", "bytes=0-12"),
    )
    .await;
    let range = json!([part.status, part.text(), part.header("content-range")]);
    s.check(
        "a range",
        &range,
        &json!([206, "My hovercraft", "bytes 0-12/30"]),
    );
    let known = Answer::read(s.request("GET", "doc/file.txt").header(
        "If-None-Match",
        read.header("etag").as_str().unwrap_or_default(),
    ))
    .await;
    s.check("known already", &json!(known.status), &json!(304));
    s.check(
        "no revision",
        &attach(s, "doc/file.txt", BINARY, "x").await.kind(),
        &json!([409, "conflict"]),
    );
    let wrong = attach(
        s,
        "doc/file.txt?rev=1-adae8575ecea588919bd08eb020c708e",
        BINARY,
        "x",
    )
    .await;
    s.check(
        "wrong revision",
        &wrong.outcome(),
        &json!([409, "not_found", "missing_rev"]),
    );
    let second = attach(
        s,
        &format!("doc/a%2Fb%20c?rev={}", created.rev()),
        "text/plain",
        "hello hello hello",
    )
    .await;
    s.check("a name with a slash", &json!(second.status), &json!(201));
    let read = s.get("doc/a/b%20c").await;
    s.check("read it", &json!(read.text()), &json!("hello hello hello"));
    let names = s.get("doc").await.member("_attachments");
    let names: Vec<&String> = names
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name)
        .collect();
    s.check(
        "the new one is first",
        &json!(names),
        &json!(["a/b c", "file.txt"]),
    );
    let missing = s.get("doc/none").await;
    s.check(
        "missing",
        &missing.outcome(),
        &json!([404, "not_found", "Document is missing attachment"]),
    );
    s.check(
        "missing document",
        &s.get("none/none").await.outcome(),
        &json!([404, "not_found", "missing"]),
    );
    let bad = attach(s, "other/_x", BINARY, "x").await;
    s.check("bad name", &bad.kind(), &json!([400, "bad_request"]));
    let updated = s
        .put(
            &format!("doc?rev={}", second.rev()),
            Some(&json!({"_attachments": {"file.txt": {"stub": true}}})),
        )
        .await;
    s.check("keep one", &json!(updated.status), &json!(201));
    let kept = s.get("doc").await.member("_attachments");
    let kept: Vec<Value> = kept
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, it)| json!([name, it["revpos"]]))
        .collect();
    s.check("the other is gone", &json!(kept), &json!([["file.txt", 1]]));
    s.check(
        "in an old revision it is not",
        &json!(
            s.get(&format!("doc/a/b%20c?rev={}", second.rev()))
                .await
                .status
        ),
        &json!(200),
    );
    let deleted = s
        .delete(&format!("doc/file.txt?rev={}", updated.rev()))
        .await;
    s.check(
        "delete",
        &json!([deleted.status, deleted.member("ok")]),
        &json!([200, true]),
    );
    s.check(
        "none is left",
        &s.get("doc").await.member("_attachments"),
        &Value::Null,
    );
}

pub(crate) async fn inline(s: &Session) {
    let doc = json!({"_attachments": {
        "b.bin": {"content_type": BINARY, "data": "AQID"},
        "a.txt": {"content_type": "text/plain", "data": "aGVsbG8gaGVsbG8gaGVsbG8="},
    }});
    let created = s.put("doc", Some(&doc)).await;
    s.check("create", &json!(created.status), &json!(201));
    let stubs = s.get("doc").await.member("_attachments");
    let stubs: Vec<Value> = (stubs.as_object().into_iter().flatten())
        .map(|(name, it)| {
            json!([
                name,
                it["content_type"],
                it["revpos"],
                it["length"],
                it["stub"]
            ])
        })
        .collect();
    let expected = json!([
        ["b.bin", BINARY, 1, 3, true],
        ["a.txt", "text/plain", 1, 17, true]
    ]);
    s.check("stubs in order", &json!(stubs), &expected);
    let whole = s.get("doc?attachments=true").await.member("_attachments");
    let data = json!([
        whole["b.bin"]["data"],
        whole["a.txt"]["data"],
        whole["a.txt"]["stub"]
    ]);
    s.check(
        "with data",
        &data,
        &json!(["AQID", "aGVsbG8gaGVsbG8gaGVsbG8=", null]),
    );
    let encoded = s
        .get("doc?att_encoding_info=true")
        .await
        .member("_attachments");
    let encodings = json!([encoded["a.txt"]["encoding"], encoded["b.bin"]["encoding"]]);
    s.check("text is compressed", &encodings, &json!(["gzip", null]));
    let missing = s
        .put("new", Some(&json!({"_attachments": {"x": {"stub": true}}})))
        .await;
    let reason = "Invalid attachment stub in new for x";
    s.check(
        "a stub of nothing",
        &missing.outcome(),
        &json!([412, "missing_stub", reason]),
    );
    let bulk = json!({"new_edits": false, "docs": [
        {"_id": "ok", "_rev": "1-a"}, {"_id": "new", "_rev": "2-b", "_attachments": {"x": {"stub": true, "revpos": 1}}},
    ]});
    s.check(
        "a stub of nothing in bulk",
        &s.post("_bulk_docs", &bulk).await.kind(),
        &json!([412, "missing_stub"]),
    );
    let bad = s
        .put(
            "new",
            Some(&json!({"_attachments": {"x": {"data": "***"}}})),
        )
        .await;
    let reason = "Invalid attachment data for x";
    s.check(
        "no base64",
        &bad.outcome(),
        &json!([400, "bad_request", reason]),
    );
    let replica = json!({"new_edits": false, "docs": [{
        "_id": "far", "_revisions": {"start": 3, "ids": ["c", "b", "a"]},
        "_attachments": {"x": {"content_type": BINARY, "revpos": 2, "data": "AQID"}},
    }]});
    s.post("_bulk_docs", &replica).await;
    let revpos = s.get("far").await.member("_attachments")["x"]["revpos"].clone();
    s.check("replicas keep the generation", &revpos, &json!(2));
    odd_generations(s).await;
    let since = s
        .get("far?open_revs=[%223-c%22]&atts_since=[%222-b%22]")
        .await;
    let part = since.json()[0]["ok"]["_attachments"]["x"].clone();
    s.check(
        "known since",
        &json!([part["stub"], part["data"]]),
        &json!([true, null]),
    );
    let since = s
        .get("far?open_revs=[%223-c%22]&atts_since=[%221-a%22]")
        .await;
    let part = since.json()[0]["ok"]["_attachments"]["x"].clone();
    s.check(
        "not known since",
        &json!([part["stub"], part["data"]]),
        &json!([null, "AQID"]),
    );
    let bulk = s
        .post(
            "_bulk_get?attachments=true",
            &json!({"docs": [{"id": "far", "rev": "3-c"}]}),
        )
        .await;
    let data = bulk.json()["results"][0]["docs"][0]["ok"]["_attachments"]["x"]["data"].clone();
    s.check("in bulk", &data, &json!("AQID"));
    let feed = s
        .get("_changes?include_docs=true&attachments=true&filter=_doc_ids&doc_ids=[%22far%22]")
        .await;
    let data = feed.json()["results"][0]["doc"]["_attachments"]["x"]["data"].clone();
    s.check("in a feed", &data, &json!("AQID"));
}

/// In replication a server believes what is said of an attachment's generation. Where revisions are known, one that is not
/// above 0 counts as known, even if those are no ancestors; what is no number counts as new.
async fn odd_generations(s: &Session) {
    let odd = [
        ("none", None, false),
        ("zero", Some(json!(0)), false),
        ("low", Some(json!(-1)), false),
        ("high", Some(json!(9)), true),
        ("text", Some(json!("2")), true),
    ];
    for (name, revpos, is_always_new) in odd {
        let id = format!("odd_{name}");
        let mut part = json!({"content_type": BINARY, "data": "AQID"});
        if let Some(revpos) = &revpos {
            part["revpos"] = revpos.clone();
        }
        let doc = json!({"_id": id, "_rev": "2-b", "_attachments": {"x": part}});
        s.post("_bulk_docs", &json!({"new_edits": false, "docs": [doc]}))
            .await;
        let mut seen = Vec::new();
        for query in [
            "attachments=true",
            "atts_since=[]",
            "atts_since=[%221-z%22]",
            "atts_since=[%222-b%22]",
        ] {
            let document = s.get(&format!("{id}?{query}")).await;
            seen.push(document.member("_attachments")["x"].clone());
        }
        for since in [json!([]), json!(["1-z"]), json!(["2-b"])] {
            let wanted = json!({"docs": [{"id": id, "rev": "2-b", "atts_since": since}]});
            let bulk = s.post("_bulk_get?attachments=true", &wanted).await;
            let document = &bulk.json()["results"][0]["docs"][0]["ok"];
            seen.push(document["_attachments"]["x"].clone());
        }
        let revpos = revpos.unwrap_or(json!(0));
        let kept = seen.iter().filter(|part| part["revpos"] == revpos).count();
        s.check(
            &format!("generation {name} is kept"),
            &json!(kept),
            &json!(7),
        );
        let with_data: Vec<bool> = seen.iter().map(|part| part["data"] == "AQID").collect();
        let new = is_always_new;
        s.check(
            &format!("generation {name} is new"),
            &json!(with_data),
            &json!([true, new, new, new, true, new, new]),
        );
        let open = format!("{id}?open_revs=[%222-b%22]");
        let open = Answer::read(s.accepting("GET", &open, "multipart/mixed")).await;
        let follows = open.text().matches("\"follows\":true").count();
        s.check(
            &format!("generation {name} follows"),
            &json!(follows),
            &json!(1),
        );
    }
}

pub(crate) async fn multipart(s: &Session) {
    let document =
        json!({"_attachments": {"e.txt": {"content_type": BINARY, "follows": true, "length": 30}}});
    let body = format!(
        "--bd\r\nContent-Type: application/json\r\n\r\n{document}\r\n--bd\r\nContent-Disposition: attachment; filename=\"e.txt\"\r\n\
         Content-Type: {BINARY}\r\nContent-Length: 30\r\n\r\n{EELS}\r\n--bd--"
    );
    let put = async |path: &str, body: String| {
        let kind = "multipart/related; boundary=\"bd\"";
        Answer::read(
            s.request("PUT", path)
                .header("Content-Type", kind)
                .body(body),
        )
        .await
    };
    let created = put("doc", body.clone()).await;
    s.check(
        "create",
        &json!([created.status, created.member("ok")]),
        &json!([201, true]),
    );
    s.check(
        "read",
        &json!(s.get("doc/e.txt").await.text()),
        &json!(EELS),
    );
    let replica = put(
        "far?new_edits=false",
        body.replace("{\"_att", "{\"_rev\":\"1-a\",\"_att"),
    )
    .await;
    s.check(
        "a replica",
        &json!([replica.status, replica.rev()]),
        &json!([201, "1-a"]),
    );
    let short = put("short", body.replace("\"length\":30", "\"length\":31")).await;
    s.check(
        "shorter than declared",
        &json!(short.status >= 400),
        &json!(true),
    );
    let parts = s.accepting(
        "GET",
        "doc?attachments=true",
        "multipart/related, application/json;q=0.5",
    );
    let parts = Answer::read(parts).await;
    let kind = parts.header("content-type");
    let kind = kind.as_str().unwrap_or_default();
    s.check(
        "in parts",
        &json!(kind.starts_with("multipart/related; boundary=\"")),
        &json!(true),
    );
    let boundary = kind.split('"').nth(1).unwrap_or_default();
    let stub = s.get("doc").await.member("_attachments")["e.txt"].clone();
    let digest = stub["digest"].as_str().unwrap_or_default();
    let expected = format!(
        "--{boundary}\r\nContent-Type: application/json\r\n\r\n{{\"_id\":\"doc\",\"_rev\":\"{}\",\"_attachments\":{{\"e.txt\":{{\
         \"content_type\":\"{BINARY}\",\"revpos\":1,\"digest\":\"{digest}\",\"length\":30,\"follows\":true}}}}}}\r\n--{boundary}\r\n\
         Content-Disposition: attachment; filename=\"e.txt\"\r\nContent-Type: {BINARY}\r\nContent-Length: 30\r\n\r\n{EELS}\r\n--{boundary}--",
        created.rev()
    );
    s.check("its parts", &json!(parts.text()), &json!(expected));
    s.check(
        "its length",
        &parts.header("content-length"),
        &json!(expected.len().to_string()),
    );
    let mixed = s.accepting(
        "GET",
        &format!("doc?open_revs=[%22{}%22]", created.rev()),
        "multipart/mixed",
    );
    let mixed = Answer::read(mixed).await.text();
    let nested = mixed
        .matches("Content-Type: multipart/related; boundary=")
        .count();
    s.check(
        "parts in parts",
        &json!([nested, mixed.matches(EELS).count()]),
        &json!([1, 1]),
    );
    let known = format!(
        "doc?open_revs=[%22{0}%22]&atts_since=[%22{0}%22]",
        created.rev()
    );
    let known = Answer::read(s.accepting("GET", &known, "multipart/mixed"))
        .await
        .text();
    s.check(
        "known since",
        &json!([
            known.matches("\"stub\":true").count(),
            known.matches(EELS).count()
        ]),
        &json!([1, 0]),
    );
    let bulk = json!({"docs": [{"id": "doc", "rev": created.rev()}, {"id": "none", "rev": "1-a"}]});
    let bulk = s
        .accepting("POST", "_bulk_get?attachments=true", "multipart/related")
        .json(&bulk);
    let bulk = Answer::read(bulk).await.text();
    let heads = [
        format!("X-Doc-Id: doc\r\nX-Rev-Id: {}", created.rev()),
        "error=\"true\"".to_owned(),
        EELS.to_owned(),
    ];
    let heads: Vec<usize> = heads
        .iter()
        .map(|head| bulk.matches(head.as_str()).count())
        .collect();
    s.check("in bulk", &json!(heads), &json!([1, 1, 1]));
    s.check("the stub's digest", &stub, &eels(1));
}
