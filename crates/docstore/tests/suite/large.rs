//! Large documents, and many.

use docstore::{AllDocsQuery, ChangesQuery, EditMode, Error, NoHook, Swept};

use super::support::{Fixture, edit};

/// A document whose body has this many bytes.
fn body(bytes: usize) -> String {
    format!(r#"{{"a":"{}"}}"#, "x".repeat(bytes - 8))
}

pub(crate) async fn the_largest_document_works(fixture: Fixture) {
    let largest = body(8_000_000);
    let first = fixture.put("a", None, &largest).await.unwrap();
    assert_eq!(fixture.get("a").await.unwrap().body, largest);
    let refused = fixture.put("a", Some(&first), &body(8_000_001)).await;
    match refused {
        Err(Error::TooLarge {
            id,
            bytes,
            bytes_max,
            ..
        }) => {
            assert_eq!((&*id, bytes, bytes_max), ("a", 8_000_001, 8_000_000));
        }
        other => panic!("{other:?}"),
    }
    let refused = fixture.put("_local/a", None, &body(8_000_001)).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })));
    fixture.put("_local/a", None, &largest).await.unwrap();
    fixture.put("a", Some(&first), &largest).await.unwrap();
    fixture.replicate("a", &["9-x"], &largest).await;
    fixture.check().await;
    // Blanks are not part of it.
    let blanks = largest.replacen(':', ":   ", 1);
    fixture.put("b", None, &blanks).await.unwrap();
}

pub(crate) async fn bulk_writes_are_cut(fixture: Fixture) {
    let edits: Vec<_> = [
        3_000_000, 8_000_000, 100, 4_000_000, 8_000_001, 100, 5_000_000,
    ]
    .iter()
    .enumerate()
    .map(|(number, bytes)| edit(&format!("d{number}"), None, &body(*bytes)))
    .collect();
    let written = (fixture.docstore)
        .bulk_docs(&fixture.db, &edits, EditMode::NewEdits, &NoHook)
        .await
        .unwrap();
    let ok: Vec<_> = written.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, true, true, true, false, true, true]);
    fixture.check().await;
}

pub(crate) async fn fifty_thousand_documents(fixture: Fixture) {
    const COUNT: usize = 50_000;
    let Fixture { docstore, db, .. } = &fixture;
    let edits: Vec<_> = (0..COUNT)
        .map(|number| {
            edit(
                &format!("d{number:05}"),
                None,
                r#"{"source":"http://a/x","target":"http://b/x"}"#,
            )
        })
        .collect();
    let written = docstore
        .bulk_docs(db, &edits, EditMode::NewEdits, &NoHook)
        .await
        .unwrap();
    assert!(written.iter().all(Result::is_ok));
    assert_eq!(docstore.info(db).await.unwrap().doc_count, COUNT as u64);
    let mut listed = 0;
    let mut rest = Some(AllDocsQuery::default());
    while let Some(query) = rest {
        let page = docstore.all_docs_page(db, &query).await.unwrap();
        assert!(page.rows.len() <= 1000);
        listed += page.rows.len();
        rest = page.rest;
    }
    assert_eq!(listed, COUNT);
    // A page far inside costs no more than one at the start, so that not everything before it is counted.
    for (start, offset) in [("d05000", Some(5_000)), ("d05001", None), ("d49999", None)] {
        let mut query = AllDocsQuery::default();
        query.range.start = Some(start.to_owned());
        let counts = docstore.all_docs_counts(db, &query).await.unwrap();
        assert_eq!((counts.total_rows, counts.offset), (COUNT as u64, offset));
    }
    let (changes, _) = fixture.changes(ChangesQuery::default()).await;
    assert_eq!(changes.len(), COUNT);
    let pending = docstore.changes_pending(db, changes[9].seq).await.unwrap();
    assert_eq!(pending, COUNT as u64 - 10);
    docstore.delete_database(db).await.unwrap();
    let mut pieces = 0;
    while docstore.sweep(&NoHook).await.unwrap() != Swept::Nothing {
        pieces += 1;
    }
    assert!(pieces > COUNT / 1000, "{pieces} pieces");
    assert_eq!(fixture.rows().await, 0);
}
