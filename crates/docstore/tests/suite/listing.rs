//! `_all_docs`.

use docstore::{AllDocsCounts, AllDocsQuery, AllDocsValue, IdRange, ReadOptions};

use super::support::{Fixture, rev};

fn range(change: impl FnOnce(&mut IdRange)) -> AllDocsQuery {
    let mut query = AllDocsQuery::default();
    change(&mut query.range);
    query
}

fn with_docs() -> AllDocsQuery {
    AllDocsQuery {
        include_docs: Some(ReadOptions {
            conflicts: true,
            ..ReadOptions::default()
        }),
        ..AllDocsQuery::default()
    }
}

async fn fill(fixture: &Fixture, ids: &[&str]) {
    for id in ids {
        fixture.put(id, None, "{}").await.unwrap();
    }
}

pub(crate) async fn ids_are_in_order(fixture: Fixture) {
    fill(&fixture, &["b", "a", "C", "é", "_design/x", "ab", "z"]).await;
    let order = ["C", "_design/x", "a", "ab", "b", "z", "é"];
    assert_eq!(fixture.ids(AllDocsQuery::default()).await, order);
    let mut reverse = order;
    reverse.reverse();
    let descending = range(|range| range.descending = true);
    assert_eq!(fixture.ids(descending).await, reverse);
    let rev = fixture.get("b").await.unwrap().rev;
    fixture.delete("b", &rev).await.unwrap();
    assert_eq!(fixture.ids(AllDocsQuery::default()).await.len(), 6);
    let documents = fixture.list(with_docs()).await;
    for row in documents {
        let Some(AllDocsValue { rev, deleted, doc }) = row.value else {
            panic!("a row without value");
        };
        let doc = doc.unwrap();
        assert_eq!((&doc.id, &doc.rev, doc.deleted), (&row.id, &rev, deleted));
    }
    fixture.replicate("a", &["1-0"], r#"{"x":1}"#).await;
    let documents = fixture.list(with_docs()).await;
    let conflicted = documents[2].value.as_ref().unwrap().doc.as_ref().unwrap();
    assert_eq!(conflicted.meta.conflicts, [super::support::rev("1-0")]);
}

pub(crate) async fn bounds_hold(fixture: Fixture) {
    fill(&fixture, &["a", "b", "c", "d"]).await;
    let between = |start: &str, end: &str, inclusive_end: bool, descending: bool| {
        range(|range| {
            range.start = Some(start.to_owned());
            range.end = Some(end.to_owned());
            range.inclusive_end = inclusive_end;
            range.descending = descending;
        })
    };
    for (query, expected) in [
        (between("b", "c", true, false), &["b", "c"][..]),
        (between("b", "c", false, false), &["b"]),
        (between("c", "b", true, true), &["c", "b"]),
        (between("c", "b", false, true), &["c"]),
        (between("c", "b", true, false), &[]),
        (between("b", "c", true, true), &[]),
        (between("aa", "cc", true, false), &["b", "c"]),
        (
            between("", "\u{10ffff}", true, false),
            &["a", "b", "c", "d"],
        ),
        (between("b", "b", true, false), &["b"]),
        (between("b", "b", false, false), &[]),
        (range(|range| range.start = Some("c".into())), &["c", "d"]),
        (range(|range| range.end = Some("b".into())), &["a", "b"]),
        (
            range(|range| {
                range.skip = 1;
                range.limit = Some(2);
            }),
            &["b", "c"],
        ),
        (
            range(|range| {
                range.skip = 3;
                range.descending = true;
            }),
            &["a"],
        ),
        (range(|range| range.skip = 9), &[]),
        (range(|range| range.limit = Some(0)), &[]),
        (range(|range| range.after = Some("b".into())), &["c", "d"]),
    ] {
        assert_eq!(fixture.ids(query.clone()).await, expected, "{query:?}");
    }
    // A bound may be longer than any id.
    let long = "b".repeat(5000);
    let query = between("a", &long, true, false);
    assert_eq!(fixture.ids(query).await, ["a", "b"]);
}

pub(crate) async fn pages_are_resumed(fixture: Fixture) {
    let edits: Vec<_> = (0..2500)
        .map(|number| super::support::edit(&format!("d{number:04}"), None, "{}"))
        .collect();
    let mode = docstore::EditMode::NewEdits;
    let bulk = fixture
        .docstore
        .bulk_docs(&fixture.db, &edits, mode, &docstore::NoHook);
    bulk.await.unwrap();
    let ids = fixture.ids(AllDocsQuery::default()).await;
    assert_eq!(ids.len(), 2500);
    assert!(ids.is_sorted());
    let mut backwards = fixture.ids(range(|range| range.descending = true)).await;
    backwards.reverse();
    assert_eq!(backwards, ids);
    let some = fixture.ids(range(|range| {
        range.skip = 1100;
        range.limit = Some(1200);
        range.start = Some("d0100".to_owned());
    }));
    assert_eq!(some.await, ids[1200..2400]);
    let documents = AllDocsQuery {
        range: range(|range| range.skip = 2).range,
        ..with_docs()
    };
    assert_eq!(fixture.ids(documents).await, ids[2..]);
}

pub(crate) async fn keys_are_answered_in_their_order(fixture: Fixture) {
    fill(&fixture, &["a", "b", "c"]).await;
    let read = fixture.get("b").await.unwrap().rev;
    let gone = fixture.delete("b", &read).await.unwrap();
    let keys = ["c", "none", "b", "a", "c", &"x".repeat(2000)].map(str::to_owned);
    let query = AllDocsQuery {
        keys: Some(keys.to_vec()),
        ..with_docs()
    };
    let rows = fixture.list(query.clone()).await;
    let told = rows.iter().map(|row| match &row.value {
        None => "none",
        Some(value) if value.deleted => {
            assert_eq!((&value.rev, &value.doc), (&gone, &None));
            "deleted"
        }
        Some(value) => &value.doc.as_ref().unwrap().id,
    });
    assert_eq!(
        told.collect::<Vec<_>>(),
        ["c", "none", "deleted", "a", "c", "none"]
    );
    let some = AllDocsQuery {
        range: range(|range| {
            range.descending = true;
            range.skip = 1;
            range.limit = Some(2);
        })
        .range,
        ..query.clone()
    };
    assert_eq!(fixture.ids(some).await, ["c", "a"]);
    let counts = fixture
        .docstore
        .all_docs_counts(&fixture.db, &query)
        .await
        .unwrap();
    let expected = AllDocsCounts {
        total_rows: 2,
        offset: None,
    };
    assert_eq!(counts, expected);
    let many = AllDocsQuery {
        keys: Some(vec!["a".to_owned(); 1000]),
        ..AllDocsQuery::default()
    };
    assert_eq!(fixture.list(many).await.len(), 1000);
}

pub(crate) async fn listed_documents_are_bounded_in_bytes(fixture: Fixture) {
    let body = format!(r#"{{"a":"{}"}}"#, "x".repeat(50_000));
    for number in 0..100 {
        fixture
            .put(&format!("d{number:03}"), None, &body)
            .await
            .unwrap();
    }
    let query = AllDocsQuery {
        range: range(|range| range.limit = Some(90)).range,
        ..with_docs()
    };
    let page = fixture
        .docstore
        .all_docs_page(&fixture.db, &query)
        .await
        .unwrap();
    assert!(
        page.rows.len() < 60,
        "{} documents in a page",
        page.rows.len()
    );
    assert!(page.rest.is_some());
    let ids = fixture.ids(query).await;
    assert_eq!(ids.len(), 90);
    assert!(ids.is_sorted_by(|a, b| a < b));
}

pub(crate) async fn offsets_are_counted(fixture: Fixture) {
    fill(&fixture, &["a", "b", "c", "d"]).await;
    for (query, offset) in [
        (AllDocsQuery::default(), 0),
        (range(|range| range.skip = 3), 3),
        (range(|range| range.skip = 30), 4),
        (range(|range| range.start = Some("c".into())), 2),
        (range(|range| range.start = Some("bb".into())), 2),
        (range(|range| range.start = Some("zz".into())), 4),
        (
            range(|range| {
                range.start = Some("c".into());
                range.descending = true;
            }),
            1,
        ),
        (
            range(|range| {
                range.start = Some("b".into());
                range.skip = 1;
            }),
            2,
        ),
    ] {
        let counts = fixture
            .docstore
            .all_docs_counts(&fixture.db, &query)
            .await
            .unwrap();
        let expected = AllDocsCounts {
            total_rows: 4,
            offset: Some(offset),
        };
        assert_eq!(counts, expected, "{query:?}");
    }
}

pub(crate) async fn ids_are_bytes(fixture: Fixture) {
    let ids = [
        "\0",
        "\0\0",
        "\0a",
        "a",
        "a\0",
        "a\0b",
        "a\u{1}",
        "aa",
        "\u{ffff}",
        "\u{10ffff}",
    ];
    fill(&fixture, &ids).await;
    let mut sorted = ids.map(str::to_owned);
    sorted.sort();
    assert_eq!(fixture.ids(AllDocsQuery::default()).await, sorted);
    for id in ids {
        let read = fixture.get(id).await.unwrap();
        assert_eq!(read.id, id);
        fixture
            .put(id, Some(&read.rev), r#"{"n":2}"#)
            .await
            .unwrap();
        let one = range(|range| {
            range.start = Some(id.to_owned());
            range.end = Some(id.to_owned());
        });
        assert_eq!(fixture.ids(one).await, [id], "{id:?}");
    }
    fixture.replicate("a", &["9-x"], "{}").await;
    assert_eq!(fixture.get("a").await.unwrap().rev, rev("9-x"));
    fixture.check().await;
}
