//! `_changes`.

use std::sync::Arc;

use docstore::{ChangesQuery, Document, Filter, ReadOptions, Rev, Seq, Since};
use document::mango::Selector;
use document::matching::Matcher;

use super::support::{Fixture, edit, rev};

fn selected(selector: &str) -> Filter {
    Filter::Selector(Arc::new(Matcher::new(Selector::parse(selector).unwrap())))
}

async fn ids(fixture: &Fixture, query: ChangesQuery) -> Vec<String> {
    let (rows, _) = fixture.changes(query).await;
    rows.into_iter().map(|row| row.id).collect()
}

async fn fill(fixture: &Fixture, ids: &[&str]) -> Vec<Rev> {
    let mut revs = Vec::new();
    for id in ids {
        let body = format!(r#"{{"id":"{id}"}}"#);
        revs.push(fixture.put(id, None, &body).await.unwrap());
    }
    revs
}

pub(crate) async fn each_document_is_told_once(fixture: Fixture) {
    let (rows, seq) = fixture.changes(ChangesQuery::default()).await;
    assert_eq!((rows.len(), seq), (0, Seq::ZERO));
    let revs = fill(&fixture, &["a", "b", "c"]).await;
    let (before, _) = fixture.changes(ChangesQuery::default()).await;
    fixture.put("a", Some(&revs[0]), "{}").await.unwrap();
    fixture.delete("b", &revs[1]).await.unwrap();
    let (rows, last_seq) = fixture.changes(ChangesQuery::default()).await;
    let told: Vec<_> = rows.iter().map(|row| (&*row.id, row.deleted)).collect();
    assert_eq!(told, [("c", false), ("a", false), ("b", true)]);
    assert_eq!(rows[0], before[2]);
    assert_eq!(
        fixture.docstore.info(&fixture.db).await.unwrap().update_seq,
        last_seq
    );
    assert_eq!(
        rows[2].to_json(),
        format!(
            r#"{{"seq":"{}","id":"b","changes":[{{"rev":"{}"}}],"deleted":true}}"#,
            rows[2].seq, rows[2].revs[0]
        )
    );
    let since = |seq: Seq| ChangesQuery {
        since: seq.into(),
        ..ChangesQuery::default()
    };
    assert_eq!(ids(&fixture, since(before[2].seq)).await, ["a", "b"]);
    assert_eq!(ids(&fixture, since(rows[1].seq)).await, ["b"]);
    assert_eq!(ids(&fixture, since(last_seq)).await, [""; 0]);
    let now = ChangesQuery {
        since: Since::Now,
        ..ChangesQuery::default()
    };
    let (rows, seq) = fixture.changes(now).await;
    assert_eq!((rows.len(), seq), (0, last_seq));
    let future: Seq = "4000000000-000000000000000000000000".parse().unwrap();
    assert_eq!(ids(&fixture, since(future)).await.len(), 3, "begins again");
    fixture.check().await;
}

pub(crate) async fn limits_and_pages(fixture: Fixture) {
    let names: Vec<_> = (0..2500).map(|number| format!("d{number:04}")).collect();
    let edits: Vec<_> = names.iter().map(|id| edit(id, None, "{}")).collect();
    let mode = docstore::EditMode::NewEdits;
    let bulk = fixture
        .docstore
        .bulk_docs(&fixture.db, &edits, mode, &docstore::NoHook);
    bulk.await.unwrap();
    let (rows, last_seq) = fixture.changes(ChangesQuery::default()).await;
    assert_eq!(
        rows.iter().map(|row| &row.id).collect::<Vec<_>>(),
        names.iter().collect::<Vec<_>>()
    );
    assert!(rows.is_sorted_by(|a, b| a.seq < b.seq));
    assert!(rows[2499].seq <= last_seq);
    // Page by page, each since the last sequence of the one before.
    let mut told = Vec::new();
    let mut since = Since::default();
    loop {
        let query = ChangesQuery {
            since,
            limit: Some(700),
            ..ChangesQuery::default()
        };
        let (rows, last_seq) = fixture.changes(query).await;
        if rows.is_empty() {
            break;
        }
        assert!(rows.len() <= 700);
        told.extend(rows.into_iter().map(|row| row.id));
        since = last_seq.into();
    }
    assert_eq!(told, names);
    let none = ChangesQuery {
        since: rows[3].seq.into(),
        limit: Some(0),
        ..ChangesQuery::default()
    };
    assert_eq!(fixture.changes(none).await, (Vec::new(), rows[3].seq));
}

pub(crate) async fn descending_feeds(fixture: Fixture) {
    let edits: Vec<_> = (0..1500)
        .map(|number| edit(&format!("d{number:04}"), None, "{}"))
        .collect();
    let mode = docstore::EditMode::NewEdits;
    let bulk = fixture
        .docstore
        .bulk_docs(&fixture.db, &edits, mode, &docstore::NoHook);
    bulk.await.unwrap();
    let down = |limit| ChangesQuery {
        descending: true,
        since: Since::Now,
        limit,
        ..ChangesQuery::default()
    };
    let (rows, last_seq) = fixture.changes(down(None)).await;
    assert_eq!(rows.len(), 1500);
    assert!(rows.is_sorted_by(|a, b| a.seq > b.seq));
    assert_eq!(rows[1499].seq, last_seq);
    assert_eq!(ids(&fixture, down(Some(2))).await, ["d1499", "d1498"]);
}

pub(crate) async fn filters(fixture: Fixture) {
    let revs = fill(&fixture, &["a", "_design/d", "b", "c"]).await;
    fixture
        .put("c", Some(&revs[3]), r#"{"_deleted":true,"id":"c"}"#)
        .await
        .unwrap();
    let through = |filter| ChangesQuery {
        filter,
        ..ChangesQuery::default()
    };
    let names = ["c", "a", "none"].map(str::to_owned).into();
    assert_eq!(
        ids(&fixture, through(Filter::DocIds(Arc::new(names)))).await,
        ["a", "c"]
    );
    assert_eq!(ids(&fixture, through(Filter::Design)).await, ["_design/d"]);
    for (selector, expected) in [
        (r#"{"id":"b"}"#, &["b"][..]),
        (r#"{"_id":{"$gt":"a"}}"#, &["b", "c"]),
        (r#"{"_deleted":true}"#, &["c"]),
        (r#"{"no":1}"#, &[]),
    ] {
        let query = through(selected(selector));
        assert_eq!(ids(&fixture, query.clone()).await, expected, "{selector:?}");
        let (_, last_seq) = fixture.changes(query).await;
        let newest = fixture.docstore.info(&fixture.db).await.unwrap().update_seq;
        assert_eq!(
            last_seq, newest,
            "a filter hides rows, and not how far it looked"
        );
    }
    let limited = ChangesQuery {
        limit: Some(1),
        ..through(Filter::Design)
    };
    assert_eq!(ids(&fixture, limited).await, ["_design/d"]);
}

pub(crate) async fn all_leaves_are_told(fixture: Fixture) {
    fixture
        .replicate("a", &["2-c", "1-a"], r#"{"x":"c"}"#)
        .await;
    fixture
        .replicate("a", &["2-b", "1-a"], r#"{"x":"b"}"#)
        .await;
    fixture
        .replicate("a", &["3-d"], r#"{"_deleted":true,"x":"d"}"#)
        .await;
    let query = ChangesQuery {
        include_docs: Some(ReadOptions::default()),
        ..ChangesQuery::default()
    };
    let (rows, _) = fixture.changes(query.clone()).await;
    assert_eq!(rows[0].revs, [rev("2-c")]);
    assert_eq!(rows[0].doc.as_ref().unwrap().body, r#"{"x":"c"}"#);
    let query = ChangesQuery {
        all_leaves: true,
        ..query
    };
    let (rows, _) = fixture.changes(query.clone()).await;
    assert_eq!(rows[0].revs, [rev("2-c"), rev("2-b"), rev("3-d")]);
    let query = ChangesQuery {
        filter: selected(r#"{"x":{"$in":["b","d"]}}"#),
        ..query
    };
    let (rows, _) = fixture.changes(query.clone()).await;
    assert_eq!(rows[0].revs, [rev("2-b"), rev("3-d")]);
    let query = ChangesQuery {
        all_leaves: false,
        ..query
    };
    assert!(fixture.changes(query).await.0.is_empty());
}

pub(crate) async fn sequences_are_kept_exactly(fixture: Fixture) {
    fill(&fixture, &["a", "b"]).await;
    let (rows, _) = fixture.changes(ChangesQuery::default()).await;
    for row in rows {
        let text = row.seq.to_string();
        assert_eq!(text.parse::<Seq>().unwrap(), row.seq);
        let options = ReadOptions {
            local_seq: true,
            ..ReadOptions::default()
        };
        let document = fixture
            .docstore
            .get(&fixture.db, &row.id, &options)
            .await
            .unwrap();
        assert_eq!(document.meta.local_seq, Some(row.seq));
    }
}

pub(crate) async fn documents_are_seen_through_the_view(fixture: Fixture) {
    fixture.put("a", None, r#"{"secret":"x"}"#).await.unwrap();
    let view = |document: Document| Document {
        body: r#"{"public":1}"#.to_owned(),
        ..document
    };
    let mut query = ChangesQuery {
        include_docs: Some(ReadOptions::default()),
        filter: selected(r#"{"secret":"x"}"#),
        ..ChangesQuery::default()
    };
    let page = fixture
        .docstore
        .changes_page(&fixture.db, &query, &view)
        .await
        .unwrap();
    assert_eq!(page.rows, []);
    query.filter = selected(r#"{"public":1}"#);
    let page = fixture
        .docstore
        .changes_page(&fixture.db, &query, &view)
        .await
        .unwrap();
    assert_eq!(page.rows[0].doc.as_ref().unwrap().body, r#"{"public":1}"#);
}

pub(crate) async fn pending_changes_are_counted(fixture: Fixture) {
    let pending = async |seq| {
        let count = fixture.docstore.changes_pending(&fixture.db, seq);
        count.await.unwrap()
    };
    assert_eq!(pending(Seq::ZERO).await, 0);
    fill(&fixture, &["a", "b", "c"]).await;
    let (rows, last_seq) = fixture.changes(ChangesQuery::default()).await;
    assert_eq!(pending(Seq::ZERO).await, 3);
    assert_eq!(pending(rows[0].seq).await, 2);
    assert_eq!(pending(last_seq).await, 0);
}
