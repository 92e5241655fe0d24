//! What the README promises of a store, on memory.

use store::{Error, RangeOptions, Store};

#[tokio::test]
async fn what_is_committed_is_read() -> Result<(), Error> {
    let store = Store::open("memory:").await?;
    store
        .transact("write", |tx| async move {
            tx.set(b"a", b"1");
            tx.add(b"n", 41);
            tx.add(b"n", 1);
            Ok::<_, Error>(())
        })
        .await?;
    let rows = store
        .transact("read", |tx| async move {
            tx.get_range((b"a".to_vec(), b"z".to_vec()), RangeOptions::default())
                .collect()
                .await
        })
        .await?;
    assert_eq!(rows.len(), 2);
    assert_eq!(*rows[1].value, 42_i64.to_le_bytes());
    Ok(())
}
