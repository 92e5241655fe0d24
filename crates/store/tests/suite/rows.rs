//! Single keys.

use store::{Error, KeyRange, Transaction};

use crate::support::{Fixture, all, get, put};

pub(crate) async fn a_missing_key_has_no_value(f: Fixture) {
    assert_eq!(get(&f.store, b"nothing").await, None);
}

pub(crate) async fn what_was_set_is_read(f: Fixture) {
    put(&f.store, &[(b"a", b"1"), (b"b", b"")]).await;
    assert_eq!(get(&f.store, b"a").await, Some(b"1".to_vec()));
    assert_eq!(get(&f.store, b"b").await, Some(Vec::new()));
    put(&f.store, &[(b"a", b"2")]).await;
    assert_eq!(get(&f.store, b"a").await, Some(b"2".to_vec()));
}

pub(crate) async fn the_empty_key_is_a_key(f: Fixture) {
    put(&f.store, &[(b"", b"empty"), (b"\0", b"zero")]).await;
    assert_eq!(get(&f.store, b"").await, Some(b"empty".to_vec()));
    assert_eq!(all(&f.store).await[0].1, b"empty");
    assert_eq!(all(&f.store).await[1].1, b"zero");
}

pub(crate) async fn keys_are_bytes_in_order(f: Fixture) {
    let keys: [&[u8]; 7] = [
        b"\x00",
        b"\x00\x00",
        b"\x00\xff",
        b"a",
        b"a\x00",
        b"b",
        b"\xfd\xff\xff",
    ];
    for key in keys.iter().rev() {
        put(&f.store, &[(key, key)]).await;
    }
    let stored: Vec<_> = all(&f.store).await.into_iter().map(|row| row.0).collect();
    assert_eq!(stored, keys);
}

pub(crate) async fn a_cleared_key_is_gone(f: Fixture) {
    put(&f.store, &[(b"a", b"1"), (b"b", b"2")]).await;
    let clear = f.store.transact("clear", |tx: Transaction| async move {
        tx.clear(b"a");
        tx.clear(b"never set");
        Ok::<_, Error>(())
    });
    clear.await.unwrap();
    assert_eq!(get(&f.store, b"a").await, None);
    assert_eq!(all(&f.store).await.len(), 1);
}

pub(crate) async fn a_range_is_cleared_up_to_its_end(f: Fixture) {
    put(
        &f.store,
        &[(b"a", b"1"), (b"b", b"2"), (b"b\0", b"3"), (b"c", b"4")],
    )
    .await;
    let clear = f.store.transact("clear", |tx: Transaction| async move {
        tx.clear_range((&b"b"[..], &b"c"[..]));
        tx.clear_range((&b"x"[..], &b"x"[..]));
        Ok::<_, Error>(())
    });
    clear.await.unwrap();
    let left: Vec<_> = all(&f.store).await.into_iter().map(|row| row.0).collect();
    assert_eq!(left, [b"a", b"c"]);
}

pub(crate) async fn a_transaction_sees_its_own_writes(f: Fixture) {
    put(&f.store, &[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]).await;
    let body = |tx: Transaction| async move {
        tx.set(b"a", b"own");
        tx.clear(b"b");
        assert_eq!(tx.get(b"a").await?.as_deref(), Some(&b"own"[..]));
        assert_eq!(tx.snapshot().get(b"a").await?.as_deref(), Some(&b"own"[..]));
        assert_eq!(tx.get(b"b").await?, None);
        tx.clear_range(KeyRange::all());
        assert_eq!(tx.get(b"a").await?, None);
        assert_eq!(tx.get(b"c").await?, None);
        tx.set(b"c", b"again");
        assert_eq!(tx.get(b"c").await?.as_deref(), Some(&b"again"[..]));
        Ok::<_, Error>(())
    };
    f.store.transact("own", body).await.unwrap();
    assert_eq!(all(&f.store).await, [(b"c".to_vec(), b"again".to_vec())]);
}

pub(crate) async fn the_last_write_wins(f: Fixture) {
    let body = |tx: Transaction| async move {
        tx.set(b"a", b"1");
        tx.clear_range((&b"a"[..], &b"b"[..]));
        tx.set(b"a", b"2");
        tx.set(b"b", b"1");
        tx.clear(b"b");
        tx.clear(b"c");
        tx.set(b"c", b"1");
        tx.clear_range((&b"c"[..], &b"d"[..]));
        Ok::<_, Error>(())
    };
    f.store.transact("writes", body).await.unwrap();
    assert_eq!(all(&f.store).await, [(b"a".to_vec(), b"2".to_vec())]);
}

pub(crate) async fn an_aborted_body_writes_nothing(f: Fixture) {
    let body = |tx: Transaction| async move {
        tx.set(b"a", b"1");
        Err::<(), _>(Error::Misuse("changed my mind"))
    };
    assert!(f.store.transact("abort", body).await.is_err());
    assert_eq!(all(&f.store).await, []);
}
