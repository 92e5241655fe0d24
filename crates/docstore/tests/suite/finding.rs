//! `_find`.

use docstore::{Document, Error, FindQuery};

use super::support::{Fixture, edit};

async fn find(fixture: &Fixture, query: &str) -> (Vec<String>, Option<String>) {
    let mut query = FindQuery::parse(query).unwrap();
    let mut docs = Vec::new();
    loop {
        let page = fixture
            .docstore
            .find_page(&fixture.db, &query, &|doc| doc)
            .await
            .unwrap();
        docs.extend(page.docs);
        match page.rest {
            Some(rest) => query = rest,
            None => return (docs, page.bookmark),
        }
    }
}

async fn fill(fixture: &Fixture, count: usize) {
    let edits: Vec<_> = (0..count)
        .map(|number| {
            let body = format!(
                r#"{{"n":{number},"even":{},"deep":{{"a":[{number}]}}}}"#,
                number % 2 == 0
            );
            edit(&format!("d{number:04}"), None, &body)
        })
        .chain([edit("_design/x", None, r#"{"even":true}"#)])
        .collect();
    let mode = docstore::EditMode::NewEdits;
    let bulk = fixture
        .docstore
        .bulk_docs(&fixture.db, &edits, mode, &docstore::NoHook);
    bulk.await.unwrap();
}

pub(crate) async fn documents_that_match(fixture: Fixture) {
    fill(&fixture, 10).await;
    let ids = async |query: &str| find(&fixture, query).await.0.join(" ");
    assert_eq!(
        ids(r#"{"selector":{"even":true},"fields":["_id"]}"#).await,
        r#"{"_id":"d0000"} {"_id":"d0002"} {"_id":"d0004"} {"_id":"d0006"} {"_id":"d0008"}"#
    );
    assert_eq!(
        ids(r#"{"selector":{"n":{"$gt":5}},"fields":["n","deep.a"],"skip":1,"limit":2}"#).await,
        r#"{"n":7,"deep":{"a":[7]}} {"n":8,"deep":{"a":[8]}}"#
    );
    assert_eq!(
        ids(r#"{"selector":{},"sort":[{"_id":"desc"}],"limit":2,"fields":["n"]}"#).await,
        r#"{"n":9} {"n":8}"#
    );
    let all = find(
        &fixture,
        r#"{"selector":{"n":3},"use_index":[],"r":1,"sort":["_id"]}"#,
    )
    .await
    .0;
    let read = fixture.get("d0003").await.unwrap();
    assert_eq!(all, [read.to_json()]);
    fixture.replicate("d0003", &["1-"], "{}").await;
    let all = find(&fixture, r#"{"selector":{"n":3},"conflicts":true}"#)
        .await
        .0;
    assert!(all[0].contains(r#""_conflicts":["1-"]"#), "{all:?}");
    let view = |document: Document| Document {
        body: "{}".to_owned(),
        ..document
    };
    let query = FindQuery::parse(r#"{"selector":{"n":3}}"#).unwrap();
    let page = fixture
        .docstore
        .find_page(&fixture.db, &query, &view)
        .await
        .unwrap();
    assert_eq!((page.docs.len(), page.examined), (0, 10));
}

pub(crate) async fn pages_and_bookmarks(fixture: Fixture) {
    fill(&fixture, 2300).await;
    let all = r#"{"selector":{"even":true},"limit":5000,"fields":["n"]}"#;
    let (all, _) = find(&fixture, all).await;
    assert_eq!(all.len(), 1150);
    let mut told = Vec::new();
    let mut bookmark = "nil".to_owned();
    loop {
        let query = format!(
            r#"{{"selector":{{"even":true}},"limit":400,"fields":["n"],"bookmark":"{bookmark}"}}"#
        );
        let (docs, next) = find(&fixture, &query).await;
        if docs.is_empty() {
            assert_eq!(next, Some(bookmark), "the end stays where it is");
            break;
        }
        told.extend(docs);
        bookmark = next.unwrap();
    }
    assert_eq!(told, all);
    let (docs, bookmark) = find(&fixture, r#"{"selector":{"none":1}}"#).await;
    assert_eq!((docs.len(), bookmark), (0, None));
    let (docs, _) = find(&fixture, r#"{"selector":{}}"#).await;
    assert_eq!(docs.len(), 25);
    let (docs, _) = find(&fixture, r#"{"selector":{},"limit":0}"#).await;
    assert_eq!(docs.len(), 0);
}

pub(crate) async fn bad_queries_are_refused(_: Fixture) {
    for (query, expected) in [
        ("", "bad_request"),
        ("[]", "bad_request"),
        ("{}", "missing_required_key"),
        (r#"{"selector":7}"#, "invalid_selector_json"),
        (r#"{"selector":{"a":{"$no":1}}}"#, "invalid_operator"),
        (r#"{"selector":{},"limit":-1}"#, "invalid_non_neg_integer"),
        (r#"{"selector":{},"skip":"1"}"#, "invalid_non_neg_integer"),
        (r#"{"selector":{},"conflicts":1}"#, "invalid_boolean"),
        (r#"{"selector":{},"fields":"a"}"#, "invalid_fields"),
        (r#"{"selector":{},"sort":"_id"}"#, "invalid_sort_json"),
        (r#"{"selector":{},"sort":[7]}"#, "invalid_sort_field"),
        (
            r#"{"selector":{},"sort":[{"_id":"up"}]}"#,
            "invalid_sort_dir",
        ),
        (r#"{"selector":{},"sort":["name"]}"#, "no_usable_index"),
        (
            r#"{"selector":{},"sort":["_id","name"]}"#,
            "no_usable_index",
        ),
        (r#"{"selector":{},"bookmark":"?"}"#, "invalid_bookmark"),
        (r#"{"selector":{},"bookmark":7}"#, "invalid_bookmark"),
        (r#"{"selector":{},"index":7}"#, "invalid_key"),
    ] {
        match FindQuery::parse(query) {
            Err(Error::BadQuery { error, .. }) => assert_eq!(error, expected, "{query}"),
            other => panic!("{query}: {other:?}"),
        }
    }
}
