//! What requests look like, and what becomes of answers.

use couch::{DocId, Endpoint, Error, Rev, Seq};
use serde_json::json;

use crate::fake::{Fake, Step, endpoint, impatient, json, network, open};

pub(crate) const INFO: &str = r#"{"db_name":"db","update_seq":"12-abc","instance_start_time":"0","doc_count":3,"doc_del_count":1}"#;

#[tokio::test]
async fn requests_say_what_couchdb_says() {
    let fake = Fake::answering(&[("/db/", json(200, INFO))]).await;
    let plain = open(&fake).await;
    let info = plain.info().await.unwrap();
    assert_eq!(info.update_seq, Seq::from_json("\"12-abc\"").unwrap());
    assert_eq!(info.instance_start_time, "0");
    assert_eq!((info.doc_count, info.doc_del_count), (Some(3), Some(1)));
    let seen = fake.only();
    assert_eq!(
        (seen.method.as_str(), seen.target.as_str()),
        ("GET", "/db/")
    );
    assert_eq!(seen.header("accept"), Some("application/json"));
    assert_eq!(seen.header("user-agent"), Some(couch::USER_AGENT));
    assert_eq!(seen.header("accept-encoding"), Some("gzip"));
    assert_eq!(seen.header("host"), Some(fake.address.to_string().as_str()));
    assert_eq!(seen.header("authorization"), None);

    let own = endpoint(json!({
        "url": fake.url("/db?own=1"),
        "headers": { "Accept": "a/b", "X-Mine": "y" },
    }));
    let own = network().database(own, impatient()).await.unwrap();
    own.info().await.unwrap();
    let seen = fake.seen().pop().unwrap();
    assert_eq!(seen.target, "/db/?own=1");
    assert_eq!(seen.header("accept"), Some("a/b"));
    assert_eq!(seen.header("x-mine"), Some("y"));
    assert_eq!(seen.header("content-length"), None);
    assert_eq!(seen.header("connection"), None);

    let traffic = own.traffic();
    assert_eq!(
        (traffic.requests, traffic.bytes_read),
        (1, INFO.len() as u64)
    );
    assert_eq!(format!("{}", own.endpoint()), fake.url("/db"));
}

#[tokio::test]
async fn short_requests() {
    let fake = Fake::new(|seen| {
        let body = match (seen.method.as_str(), seen.path()) {
            ("GET", "/db/_changes") => r#"{"results":[],"last_seq":"9-x","pending":7}"#,
            ("GET", "/db/") => r#"{"update_seq":20,"instance_start_time":17}"#,
            ("POST", "/db/_ensure_full_commit") => r#"{"ok":true,"instance_start_time":"17"}"#,
            ("PUT", "/db/_local/a%20b") => r#"{"ok":true,"id":"_local/a b","rev":"0-2"}"#,
            ("GET", "/db/_local/there") => r#"{"_id":"_local/there","_rev":"0-1","x":[1]}"#,
            ("GET", "/db/_design/f") => r#"{"_id":"_design/f", "filters": {"a": "code"}}"#,
            ("PUT", _) => "{\"ok\":true}",
            _ => return vec![Step::Send(json(404, r#"{"error":"not_found"}"#))],
        };
        vec![Step::Send(json(201, body))]
    })
    .await;
    let db = open(&fake).await;
    assert_eq!(
        db.pending(&Seq::from_json("\"5-x\"").unwrap())
            .await
            .unwrap(),
        Some(7)
    );
    assert_eq!(
        db.pending(&Seq::from_json("15").unwrap()).await.unwrap(),
        Some(5)
    );
    assert_eq!(db.ensure_full_commit().await.unwrap(), "17");
    assert_eq!(db.info().await.unwrap().instance_start_time, "17");
    let body = json!({ "_rev": "0-1", "y": 1 });
    assert_eq!(db.put_local("a b", &body).await.unwrap(), Rev::from("0-2"));
    let there: Option<serde_json::Value> = db.local("there").await.unwrap();
    assert_eq!(there.unwrap()["x"], json!([1]));
    assert_eq!(db.local::<serde_json::Value>("gone").await.unwrap(), None);
    let design = db
        .document(&DocId::from("_design/f"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        design.json(),
        r#"{"_id":"_design/f", "filters": {"a": "code"}}"#
    );
    assert!(db.document(&DocId::from("gone")).await.unwrap().is_none());
    db.create(&[
        ("q".to_owned(), "4".to_owned()),
        ("n".to_owned(), "1 2".to_owned()),
    ])
    .await
    .unwrap();

    let seen = fake.seen();
    let find = |method: &str, path: &str| {
        seen.iter()
            .find(|seen| seen.method == method && seen.path() == path)
            .unwrap()
    };
    assert_eq!(
        find("GET", "/db/_changes").target,
        "/db/_changes?since=5-x&limit=0"
    );
    let commit = find("POST", "/db/_ensure_full_commit");
    assert_eq!(commit.header("content-type"), Some("application/json"));
    assert_eq!(commit.header("content-length"), Some("0"));
    let put = find("PUT", "/db/_local/a%20b");
    assert_eq!(put.header("x-couch-full-commit"), Some("false"));
    assert_eq!(put.json(), body);
    assert_eq!(find("PUT", "/db/").target, "/db/?q=4&n=1%202");
    assert_eq!(fake.connections(), 1, "one connection for all");
}

#[tokio::test]
async fn the_server_above() {
    let rows = r#"[{"key":"a","info":{"update_seq":"1-x"}},{"key":"b","error":"not_found"}]"#;
    let fake = Fake::answering(&[("/couch/_dbs_info", json(200, rows))]).await;
    let endpoint = Endpoint::from_url(&fake.url("/couch/my%2Fdb?q=1")).unwrap();
    let server = network()
        .database(endpoint, impatient())
        .await
        .unwrap()
        .server();
    let names = ["a", "b"].map(str::to_owned);
    let listed = server.dbs_info(&names).await.unwrap();
    let listed = listed
        .iter()
        .map(|db| (db.name.as_str(), db.update_seq.is_some()));
    assert_eq!(listed.collect::<Vec<_>>(), [("a", true), ("b", false)]);
}

#[tokio::test]
async fn statuses_by_what_the_caller_does_next() {
    type Is = fn(&Error) -> bool;
    let cases: [(u16, &str, Is, &str); 11] = [
        (
            401,
            r#"{"error":"unauthorized","reason":"no"}"#,
            |e| matches!(e, Error::Unauthorized(_)),
            "unauthorized: no",
        ),
        (
            403,
            r#"{"error":"forbidden","reason":"no"}"#,
            |e| matches!(e, Error::Forbidden(_)),
            "forbidden: no",
        ),
        (
            404,
            r#"{"error":"not_found"}"#,
            |e| matches!(e, Error::NotFound(_)),
            "not_found",
        ),
        (409, "{}", |e| matches!(e, Error::Conflict(_)), "{}"),
        (
            412,
            r#"{"error":"missing_stub","reason":"x"}"#,
            |e| matches!(e, Error::MissingStub(_)),
            "missing_stub: x",
        ),
        (
            412,
            r#"{"error":"file_exists"}"#,
            |e| matches!(e, Error::Refused(_)),
            "file_exists",
        ),
        (413, "", |e| matches!(e, Error::TooLarge(_)), ""),
        (415, "potato", |e| matches!(e, Error::Refused(_)), "potato"),
        (
            418,
            r#"{"x":"y"}"#,
            |e| matches!(e, Error::Refused(_)),
            r#"{"x":"y"}"#,
        ),
        (
            400,
            r#"{"error":{"a":1},"reason":null}"#,
            |e| matches!(e, Error::Refused(_)),
            r#"{"a":1}"#,
        ),
        (304, "", |e| matches!(e, Error::Refused(_)), ""),
    ];
    for (status, body, is, said) in cases {
        let fake = Fake::answering(&[("/db/", json(status, body))]).await;
        let error = open(&fake).await.info().await.unwrap_err();
        assert!(is(&error), "{status}: {error:?}");
        let shown = error.answer().unwrap().to_string();
        let request = format!("{status} from GET {}", fake.url("/db/"));
        let expected = if said.is_empty() {
            request
        } else {
            format!("{request}: {said}")
        };
        assert_eq!(shown, expected);
        assert_eq!(error.status(), Some(status));
        assert_eq!(
            error.answer().unwrap().is_json,
            body.starts_with('{'),
            "{body}"
        );
    }
}

#[tokio::test]
async fn long_reasons_are_cut() {
    let reason = format!("{{\"error\":\"x\",\"reason\":\"{}\\n\"}}", "é".repeat(5000));
    let fake = Fake::answering(&[("/db/", json(400, reason))]).await;
    let error = open(&fake).await.info().await.unwrap_err();
    assert_eq!(
        error
            .answer()
            .unwrap()
            .reason
            .as_ref()
            .unwrap()
            .chars()
            .count(),
        200
    );
}
