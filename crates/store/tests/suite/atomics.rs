//! Atomic addition.

use store::{Error, Transaction};

use crate::support::{Fixture, get, put};

fn number(value: Option<Vec<u8>>) -> i64 {
    i64::from_le_bytes(value.unwrap().try_into().unwrap())
}

pub(crate) async fn a_missing_number_is_zero(f: Fixture) {
    for delta in [5, -7] {
        let body = |tx: Transaction| async move {
            tx.add(b"n", delta);
            Ok::<_, Error>(())
        };
        f.store.transact("add", body).await.unwrap();
    }
    assert_eq!(number(get(&f.store, b"n").await), -2);
}

pub(crate) async fn numbers_wrap_and_are_eight_bytes(f: Fixture) {
    put(
        &f.store,
        &[
            (b"max", &i64::MAX.to_le_bytes()),
            (b"short", &[1, 1]),
            (b"long", &[255, 0, 0, 0, 0, 0, 0, 0, 9, 9]),
        ],
    )
    .await;
    let body = |tx: Transaction| async move {
        for key in [&b"max"[..], b"short", b"long"] {
            tx.add(key, 1);
        }
        Ok::<_, Error>(())
    };
    f.store.transact("add", body).await.unwrap();
    assert_eq!(number(get(&f.store, b"max").await), i64::MIN);
    assert_eq!(number(get(&f.store, b"short").await), 258);
    assert_eq!(number(get(&f.store, b"long").await), 256);
}

pub(crate) async fn own_adds_are_read(f: Fixture) {
    put(&f.store, &[(b"n", &40_i64.to_le_bytes())]).await;
    let body = |tx: Transaction| async move {
        tx.add(b"n", 1);
        tx.add(b"n", 1);
        assert_eq!(number(tx.get(b"n").await?.map(|v| v.to_vec())), 42);
        tx.set(b"n", &1_i64.to_le_bytes());
        tx.add(b"n", 1);
        assert_eq!(number(tx.get(b"n").await?.map(|v| v.to_vec())), 2);
        tx.clear(b"n");
        tx.add(b"n", 9);
        Ok::<_, Error>(())
    };
    f.store.transact("add", body).await.unwrap();
    assert_eq!(number(get(&f.store, b"n").await), 9);
}

pub(crate) async fn adds_do_not_conflict(f: Fixture) {
    let store = &f.store;
    let body = |tx: Transaction| async move {
        // The snapshot is taken, and the other adder commits after it.
        tx.get(b"other").await?;
        let inner = |tx: Transaction| async move {
            tx.add(b"n", 1);
            Ok::<_, Error>(())
        };
        store.transact("inner", inner).await?;
        tx.add(b"n", 1);
        Ok::<_, Error>(tx.attempt())
    };
    assert_eq!(store.transact("outer", body).await.unwrap(), 1);
    assert_eq!(number(get(store, b"n").await), 2);
}
