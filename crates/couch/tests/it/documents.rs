//! Documents in bulk, there and back.

use bytes::Bytes;
use couch::{DocId, Error, Rev, WantedRev, WantedRevs};

use crate::fake::{Fake, Step, answer, json, open};

fn wanted(pairs: &[(&str, &str)]) -> Vec<WantedRev> {
    let one = |(id, rev): &(&str, &str)| WantedRev {
        id: DocId::from(*id),
        rev: Some(Rev::from(*rev)),
        atts_since: Vec::new(),
    };
    pairs.iter().map(one).collect()
}

#[tokio::test]
async fn bulk_get_by_index() {
    let body = r#"{"results":[
        {"id":"a","docs":[{"ok":{"_id":"a","_rev":"1-x","z":1,"a":2.50}}]},
        {"id":"b","docs":[{"error":{"id":"b","rev":"1-x","error":"not_found","reason":"missing"}}]},
        {"id":"c","docs":[{"ok":{"_id":"c","_rev":"1-x"}},{"ok":{"_id":"c","_rev":"1-y","_deleted":true}}]}]}"#;
    let fake = Fake::answering(&[("/db/_bulk_get", json(200, body))]).await;
    let db = open(&fake).await;
    let mut asked = wanted(&[("a", "1-x"), ("b", "1-x"), ("c", "1-x"), ("c", "1-y")]);
    asked[0].atts_since.push(Rev::from("0-w"));
    let mut answer = db.bulk_get(&asked, false).await.unwrap();
    let mut found = Vec::new();
    while let Some(fetched) = answer.next().await.unwrap() {
        found.push(fetched);
    }
    let indexes: Vec<_> = found.iter().map(|fetched| fetched.index).collect();
    assert_eq!(indexes, [0, 1, 2, 3]);
    let first = found[0].result.as_ref().unwrap();
    assert_eq!(first.json(), r#"{"_id":"a","_rev":"1-x","z":1,"a":2.50}"#);
    assert_eq!(found[1].result.as_ref().unwrap_err().error, "not_found");
    assert!(found[3].result.as_ref().unwrap().deleted);
    let seen = fake.only();
    assert_eq!(
        seen.target,
        "/db/_bulk_get?latest=true&revs=true&att_encoding_info=true&attachments=false"
    );
    assert_eq!(seen.header("accept"), Some("application/json"));
    let body = seen.json();
    assert_eq!(
        body["docs"][0],
        serde_json::json!({"id":"a","rev":"1-x","atts_since":["0-w"]})
    );
    assert_eq!(
        (&body["latest"], &body["revs"], &body["attachments"]),
        (&true.into(), &true.into(), &false.into())
    );
}

#[tokio::test]
async fn bulk_get_of_all_leaves() {
    let body = r#"{"results":[
        {"id":"a","docs":[{"ok":{"_id":"a","_rev":"1-a"}},{"ok":{"_id":"a","_rev":"2-b"}}]},
        {"id":"b","docs":[{"ok":{"_id":"b","_rev":"1-c"}}]},
        {"id":"c","docs":[]},
        {"id":"d","docs":[{"error":{"id":"d","rev":"undefined","error":"not_found","reason":"missing"}}]}
    ]}"#;
    let fake = Fake::new(move |_| vec![Step::Send(json(200, body))]).await;
    let mut wanted = wanted(&[("a", ""), ("b", "1-c"), ("c", ""), ("d", "")]);
    for place in [0, 2, 3] {
        wanted[place].rev = None;
    }
    let mut answer = open(&fake).await.bulk_get(&wanted, false).await.unwrap();
    let mut found = Vec::new();
    while let Some(fetched) = answer.next().await.unwrap() {
        found.push((fetched.index, fetched.result.is_ok()));
    }
    assert_eq!(found, [(0, true), (0, true), (1, true), (3, false)]);
    let asked: serde_json::Value = serde_json::from_slice(&fake.seen()[0].body).unwrap();
    assert_eq!(asked["docs"][0], serde_json::json!({"id": "a"}));
    assert_eq!(asked["docs"][1]["rev"], "1-c");
}

#[tokio::test]
async fn bulk_get_answers_that_cannot_be_trusted() {
    let ok = r#"{"id":"a","docs":[{"ok":{"_id":"a"}}]}"#;
    for (results, problem) in [
        (String::new(), "0 of 2 results"),
        (ok.to_owned(), "1 of 2 results"),
        (format!("{ok},{ok}"), "results in another order than wanted"),
        (
            format!("{ok},{}", ok.replace("\"a\"", "\"b\""))
                .replace("\"id\":\"b\"", "\"id\":\"c\""),
            "results in another order than wanted",
        ),
        (
            format!(r#"{ok},{{"id":"b","docs":[]}}"#),
            "results in another order than wanted",
        ),
        (
            format!(r#"{ok},{{"id":"b","docs":[{{"ok":1}}]}}"#),
            "not the JSON that was expected",
        ),
        (
            format!(r#"{ok},{{"id":"b","docs":[{{}}]}}"#),
            "a result that is neither ok nor error",
        ),
        (
            format!(r#"{ok},{{"id":"b"}}"#),
            "not the JSON that was expected",
        ),
        (
            format!("{ok},{{\"id\":\"b\",\"docs\":[{{\"ok\":{{\"x\":\"\u{1}\"}}}}]}}"),
            "not the JSON that was expected",
        ),
    ] {
        let body = format!("{{\"results\":[{results}]}}");
        let fake = Fake::answering(&[("/db/_bulk_get", json(200, &body))]).await;
        let db = open(&fake).await;
        let mut answer = db
            .bulk_get(&wanted(&[("a", "1-x"), ("b", "1-x")]), false)
            .await
            .unwrap();
        let error = loop {
            match answer.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("{body}"),
                Err(error) => break error,
            }
        };
        let Error::BadAnswer { problem: found, .. } = &error else {
            panic!("{error:?} {body}")
        };
        assert!(found.starts_with(problem), "{found} {body}");
    }
}

#[tokio::test]
async fn bulk_docs_are_sent_as_they_are() {
    let fake = Fake::new(|seen| {
        let many = seen.body.len() > 100;
        let refused = r#"[{"id":"a","rev":"1-x","error":"forbidden","reason":"no"},{"ok":true,"id":"b","rev":"1-y"}]"#;
        vec![Step::Send(if many { json(201, "[]") } else { json(417, refused) })]
    })
    .await;
    let db = open(&fake).await;
    let documents = [
        Bytes::from_static(b"{\"b\":1.0, \"a\":1e400}"),
        Bytes::from_static(b"{}"),
    ];
    let refused = db.bulk_docs(&documents).await.unwrap();
    assert_eq!(refused.len(), 1);
    assert_eq!(
        (
            refused[0].id.as_ref().unwrap().as_str(),
            refused[0].error.as_str()
        ),
        ("a", "forbidden")
    );
    let seen = fake.only();
    assert_eq!(
        seen.body,
        br#"{"new_edits":false,"docs":[{"b":1.0, "a":1e400},{}]}"#
    );
    assert_eq!(seen.header("x-couch-full-commit"), Some("false"));
    let first_bytes = seen.body.len();
    assert_eq!(db.bulk_docs(&[]).await.unwrap(), []);
    assert_eq!(fake.seen().len(), 1, "nothing is not sent");

    let many: Vec<_> = (0..5000)
        .map(|n| Bytes::from(format!("{{\"n\":{n}}}")))
        .collect();
    assert_eq!(db.bulk_docs(&many).await.unwrap(), []);
    let seen = fake.seen().pop().unwrap();
    assert_eq!(seen.json()["docs"][4999]["n"], 4999);
    assert_eq!(
        db.traffic().bytes_written,
        (first_bytes + seen.body.len()) as u64
    );
}

#[tokio::test]
async fn texts_of_servers_are_cut() {
    let long = "x".repeat(1000);
    let row = serde_json::json!([{ "id": "a", "error": &long, "reason": &long }]).to_string();
    let refused = serde_json::json!({ "error": &long, "reason": &long });
    let fetched = serde_json::json!({ "results": [{ "id": "a", "docs": [{ "error": refused }] }] });
    let fake = Fake::answering(&[
        ("/db/_bulk_docs", json(201, row)),
        ("/db/_bulk_get", json(200, fetched.to_string())),
        ("/db/c", answer(200, &[("Content-Type", &long)], b"{}")),
        ("/db/_revs_diff", json(200, format!(r#"{{"a":"{long}"}}"#))),
    ])
    .await;
    let db = open(&fake).await;
    let mut rejected = db.bulk_docs(&[Bytes::from_static(b"{}")]).await.unwrap();
    let mut answers = db.bulk_get(&wanted(&[("a", "1-x")]), false).await.unwrap();
    let fetched = answers.next().await.unwrap().unwrap();
    rejected.push(fetched.result.unwrap_err());
    for error in rejected {
        assert_eq!(error.error.len(), 200);
        assert_eq!(error.reason.unwrap().len(), 200);
    }

    let asked = ("a".into(), vec!["1-x".into()]);
    let error = db.revs_diff(&[asked]).await.unwrap_err();
    let Error::BadAnswer { problem, .. } = &error else {
        panic!("{error:?}")
    };
    let expected = r#"invalid type: string "…", expected struct Revs at line 1 column 1007"#;
    assert!(problem.ends_with(expected), "{problem}");

    let error = db.open_revs(&"c".into(), WantedRevs::All, &[]).await;
    let Some(Error::BadAnswer { problem, .. }) = error.err() else {
        panic!("a response of a long type")
    };
    assert_eq!(problem.len(), 200, "{problem}");
}
