//! `_local` documents.

use docstore::{AllDocsQuery, ChangesQuery, Error, NoHook};

use super::support::{Fixture, rev};

pub(crate) async fn local_documents_count_their_writes(fixture: Fixture) {
    let Fixture { docstore, db, .. } = &fixture;
    let read = async || docstore.local_doc(db, "_local/x").await;
    assert!(matches!(read().await, Err(Error::Missing)));
    let first = fixture.put("_local/x", None, r#"{"n":1}"#).await.unwrap();
    assert_eq!(first, rev("0-1"));
    let second = fixture
        .put("_local/x", Some(&first), r#"{"n":2}"#)
        .await
        .unwrap();
    assert_eq!(
        read().await.unwrap().to_json(),
        r#"{"_id":"_local/x","_rev":"0-2","n":2}"#
    );
    assert_eq!(second, rev("0-2"));
    let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(300_000));
    fixture.put("_local/x", None, &long).await.unwrap();
    assert_eq!(read().await.unwrap().body, long);
    fixture.put("_local/x", None, "{}").await.unwrap();
    assert_eq!(read().await.unwrap().body, "{}");
    for bad in ["1-a", "0-x", "0-18446744073709551615"] {
        let refused = fixture.put("_local/x", Some(&rev(bad)), "{}").await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{bad}");
    }
    let deleted = docstore
        .delete(db, "_local/x", Some(&rev("0-1")), &NoHook)
        .await;
    assert_eq!(deleted.unwrap(), rev("0-0"));
    assert!(matches!(read().await, Err(Error::Missing)));
    let again = docstore.delete(db, "_local/x", None, &NoHook).await;
    assert!(matches!(again, Err(Error::Missing)));
}

pub(crate) async fn local_documents_are_in_no_listing(fixture: Fixture) {
    let before = fixture.docstore.info(&fixture.db).await.unwrap();
    fixture.put("_local/x", None, r#"{"n":1}"#).await.unwrap();
    assert_eq!(fixture.docstore.info(&fixture.db).await.unwrap(), before);
    assert!(fixture.list(AllDocsQuery::default()).await.is_empty());
    assert!(fixture.changes(ChangesQuery::default()).await.0.is_empty());
    assert!(matches!(fixture.get("_local/x").await, Err(Error::Missing)));
}
