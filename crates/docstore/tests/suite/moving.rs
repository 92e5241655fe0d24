//! Moving a store to another backend.

use docstore::{ChangesQuery, Seq};
use store::Store;
use testkit::Backend;

use super::support::{Fixture, open};

/// What was seen before a move stays seen, and what is written after it is new, however low the
/// versions of the new backend are.
#[tokio::test]
async fn sequences_survive_a_move() {
    let old = Fixture::memory().await;
    for number in 0..50 {
        old.put(&format!("d{number:02}"), None, "{}").await.unwrap();
    }
    let (rows, last_seq) = old.changes(ChangesQuery::default()).await;
    let mut stream = Vec::new();
    old.docstore.store().export(&mut stream).await.unwrap();
    let place = Backend::Lmdb.place().unwrap();
    Store::import(&place.url, &mut &stream[..]).await.unwrap();
    let docstore = open(Store::open(&place.url).await.unwrap());
    let db = docstore.open(old.db.name()).await.unwrap();
    assert_eq!(db, old.db);
    let new = Fixture {
        docstore,
        db,
        _place: Some(place),
    };
    assert_eq!(
        new.changes(ChangesQuery::default()).await,
        (rows.clone(), last_seq)
    );
    new.check().await;
    let since = |seq: Seq| ChangesQuery {
        since: seq.into(),
        ..ChangesQuery::default()
    };
    let ids = async |seq| {
        let (rows, _) = new.changes(since(seq)).await;
        rows.into_iter().map(|row| row.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(last_seq).await, [""; 0]);
    assert_eq!(ids(rows[47].seq).await, ["d48", "d49"]);
    new.put("new", None, "{}").await.unwrap();
    let first = new.get("d00").await.unwrap().rev;
    new.delete("d00", &first).await.unwrap();
    assert_eq!(ids(last_seq).await, ["new", "d00"]);
    assert_eq!(ids(rows[48].seq).await, ["d49", "new", "d00"]);
    new.check().await;
}
