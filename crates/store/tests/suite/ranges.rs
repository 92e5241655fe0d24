//! Range reads.

use store::{Error, KeyRange, RangeOptions, Store, Transaction};

use crate::support::{Fixture, put};

async fn keys(store: &Store, range: KeyRange, options: RangeOptions) -> Vec<Vec<u8>> {
    let range = &range;
    let read = store.transact("range", |tx: Transaction| async move {
        tx.get_range(range.clone(), options).collect().await
    });
    let rows = read.await.unwrap();
    rows.into_iter().map(|row| row.key.to_vec()).collect()
}

async fn letters(store: &Store) {
    put(
        store,
        &[(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"4")],
    )
    .await;
}

pub(crate) async fn rows_come_in_order_both_ways(f: Fixture) {
    letters(&f.store).await;
    let all = KeyRange::all();
    assert_eq!(
        keys(&f.store, all.clone(), RangeOptions::default()).await,
        [b"a", b"b", b"c", b"d"]
    );
    let backwards = RangeOptions::default().reverse();
    assert_eq!(
        keys(&f.store, all, backwards).await,
        [b"d", b"c", b"b", b"a"]
    );
}

pub(crate) async fn a_limit_takes_the_first_rows(f: Fixture) {
    letters(&f.store).await;
    let all = KeyRange::all();
    assert_eq!(
        keys(&f.store, all.clone(), RangeOptions::limit(2)).await,
        [b"a", b"b"]
    );
    assert_eq!(
        keys(&f.store, all.clone(), RangeOptions::limit(2).reverse()).await,
        [b"d", b"c"]
    );
    assert_eq!(
        keys(&f.store, all.clone(), RangeOptions::limit(9))
            .await
            .len(),
        4
    );
    assert_eq!(
        keys(&f.store, all, RangeOptions::limit(0)).await,
        Vec::<Vec<u8>>::new()
    );
}

pub(crate) async fn bounds_are_half_open(f: Fixture) {
    letters(&f.store).await;
    let range = KeyRange::new(&b"b"[..], &b"d"[..]);
    assert_eq!(
        keys(&f.store, range.clone(), RangeOptions::default()).await,
        [b"b", b"c"]
    );
    assert_eq!(
        keys(&f.store, range, RangeOptions::limit(1).reverse()).await,
        [b"c"]
    );
    let empty = KeyRange::new(&b"b"[..], &b"b"[..]);
    assert_eq!(
        keys(&f.store, empty, RangeOptions::default()).await,
        Vec::<Vec<u8>>::new()
    );
}

pub(crate) async fn own_writes_are_in_the_range(f: Fixture) {
    letters(&f.store).await;
    let body = |tx: Transaction| async move {
        tx.set(b"aa", b"own");
        tx.set(b"b", b"own");
        tx.clear(b"c");
        tx.add(b"e", 7);
        tx.clear_range((&b"d"[..], &b"dd"[..]));
        let forwards = tx
            .get_range(KeyRange::all(), RangeOptions::default())
            .collect()
            .await?;
        let mut backwards = (tx.snapshot())
            .get_range(KeyRange::all(), RangeOptions::default().reverse())
            .collect()
            .await?;
        backwards.reverse();
        assert_eq!(forwards, backwards);
        Ok::<_, Error>(forwards)
    };
    let rows = f.store.transact("own", body).await.unwrap();
    let rows: Vec<_> = rows.iter().map(|row| (&*row.key, &*row.value)).collect();
    let seven = 7_i64.to_le_bytes();
    let expected: [(&[u8], &[u8]); 4] = [
        (b"a", b"1"),
        (b"aa", b"own"),
        (b"b", b"own"),
        (b"e", &seven),
    ];
    assert_eq!(rows, expected);
}

pub(crate) async fn a_limit_counts_what_is_left(f: Fixture) {
    letters(&f.store).await;
    let body = |tx: Transaction| async move {
        tx.clear(b"a");
        tx.clear(b"b");
        tx.set(b"ba", b"own");
        let rows = tx
            .get_range(KeyRange::all(), RangeOptions::limit(2))
            .collect()
            .await?;
        let keys: Vec<_> = rows.iter().map(|row| row.key.to_vec()).collect();
        assert_eq!(keys, [&b"ba"[..], b"c"]);
        let rows = tx
            .get_range(KeyRange::all(), RangeOptions::limit(3).reverse())
            .collect()
            .await?;
        let keys: Vec<_> = rows.iter().map(|row| row.key.to_vec()).collect();
        assert_eq!(keys, [&b"d"[..], b"c", b"ba"]);
        Ok::<_, Error>(())
    };
    f.store.transact("limit", body).await.unwrap();
}

pub(crate) async fn a_large_range_comes_in_pages(f: Fixture) {
    let value = [7; 10_000];
    for batch in 0..4_u8 {
        let body = |tx: Transaction| async move {
            for n in 0..50_u8 {
                tx.set(&[batch, n], &value);
            }
            Ok::<_, Error>(())
        };
        f.store.transact("fill", body).await.unwrap();
    }
    for reverse in [false, true] {
        let body = |tx: Transaction| async move {
            let options = RangeOptions {
                limit: Some(190),
                reverse,
            };
            let mut read = tx.get_range(KeyRange::all(), options);
            let (mut pages, mut keys) = (0, Vec::new());
            while let Some(page) = read.next_page().await? {
                assert!(page.len() < 190, "two megabytes came in one page");
                pages += 1;
                keys.extend(page.into_iter().map(|row| row.key));
            }
            assert!(pages > 1);
            if reverse {
                keys.reverse();
            }
            assert_eq!(keys.len(), 190);
            assert!(keys.is_sorted());
            Ok::<_, Error>(())
        };
        f.store.transact("pages", body).await.unwrap();
    }
}

pub(crate) async fn an_inverted_range_is_refused(f: Fixture) {
    let body = |tx: Transaction| async move {
        tx.get_range((&b"b"[..], &b"a"[..]), RangeOptions::default())
            .collect()
            .await
    };
    assert!(matches!(
        f.store.transact("inverted", body).await,
        Err(Error::Misuse(_))
    ));
    let body = |tx: Transaction| async move {
        tx.clear_range((&b"b"[..], &b"a"[..]));
        Ok::<_, Error>(())
    };
    assert!(matches!(
        f.store.transact("inverted", body).await,
        Err(Error::Misuse(_))
    ));
}

pub(crate) async fn a_prefix_is_a_range(f: Fixture) {
    put(
        &f.store,
        &[
            (b"a", b""),
            (b"a\xff", b""),
            (b"a\xff\xff", b""),
            (b"b", b""),
        ],
    )
    .await;
    let found = keys(
        &f.store,
        KeyRange::prefix(b"a\xff"),
        RangeOptions::default(),
    )
    .await;
    assert_eq!(found, [&b"a\xff"[..], b"a\xff\xff"]);
    let found = keys(&f.store, KeyRange::prefix(b"a"), RangeOptions::default()).await;
    assert_eq!(found.len(), 3);
}
