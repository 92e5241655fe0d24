//! Strict serializability, anomaly by anomaly. The second transaction runs inside the body of the
//! first, on its first attempt, so that every interleaving is certain.

use store::{Error, KeyRange, RangeOptions, Store, Transaction};

use crate::support::{Fixture, get, put};

async fn count(tx: &Transaction, range: KeyRange) -> Result<usize, Error> {
    let rows = tx
        .get_range(range, RangeOptions::default())
        .collect()
        .await?;
    Ok(rows.len())
}

/// Runs `read` in a transaction that then writes, while `rows` are written after its reads.
/// Returns how many attempts it took: 2 when the two conflict.
async fn attempts<Fut>(
    store: &Store,
    read: impl Fn(Transaction) -> Fut,
    rows: &[(&[u8], &[u8])],
) -> u32
where
    Fut: Future<Output = Result<(), Error>>,
{
    let read = &read;
    let body = |tx: Transaction| async move {
        read(tx.clone()).await?;
        if tx.attempt() == 1 {
            put(store, rows).await;
        }
        tx.set(b"written by the first", b"");
        Ok::<_, Error>(tx.attempt())
    };
    store.transact("first", body).await.unwrap()
}

pub(crate) async fn no_update_is_lost(f: Fixture) {
    put(&f.store, &[(b"n", &[1])]).await;
    let store = &f.store;
    let body = |tx: Transaction| async move {
        let n = tx.get(b"n").await?.unwrap()[0];
        if tx.attempt() == 1 {
            put(store, &[(b"n", &[n + 10])]).await;
        }
        tx.set(b"n", &[n + 1]);
        Ok::<_, Error>(())
    };
    store.transact("increment", body).await.unwrap();
    assert_eq!(get(store, b"n").await, Some(vec![12]));
}

pub(crate) async fn no_write_skew(f: Fixture) {
    put(&f.store, &[(b"a", b"on call"), (b"b", b"on call")]).await;
    let store = &f.store;
    // Each may leave if the other stays.
    let body = |tx: Transaction| async move {
        let other = tx.get(b"b").await?;
        if tx.attempt() == 1 {
            let inner = |tx: Transaction| async move {
                assert!(tx.get(b"a").await?.is_some());
                tx.clear(b"b");
                Ok::<_, Error>(())
            };
            store.transact("b leaves", inner).await?;
        }
        if other.is_some() {
            tx.clear(b"a");
        }
        Ok::<_, Error>(())
    };
    store.transact("a leaves", body).await.unwrap();
    assert_eq!(get(store, b"a").await, Some(b"on call".to_vec()));
    assert_eq!(get(store, b"b").await, None);
}

pub(crate) async fn no_phantom(f: Fixture) {
    let read = |tx: Transaction| async move { count(&tx, KeyRange::prefix(b"p")).await.map(drop) };
    assert_eq!(attempts(&f.store, read, &[(b"p1", b"")]).await, 2);
    assert_eq!(attempts(&f.store, read, &[(b"q", b"")]).await, 1);
}

/// Fekete, O'Neil, O'Neil 2004: checking and savings, a withdrawal with an overdraft fee, a deposit,
/// and a reader who sees the deposit but not the withdrawal.
pub(crate) async fn no_read_only_anomaly(f: Fixture) {
    let store = &f.store;
    put(
        store,
        &[
            (b"checking", &0_i64.to_le_bytes()),
            (b"savings", &0_i64.to_le_bytes()),
        ],
    )
    .await;
    let number =
        |bytes: Option<bytes::Bytes>| i64::from_le_bytes((*bytes.unwrap()).try_into().unwrap());
    let body = |tx: Transaction| async move {
        let checking = number(tx.get(b"checking").await?);
        let savings = number(tx.get(b"savings").await?);
        if tx.attempt() == 1 {
            put(store, &[(b"savings", &20_i64.to_le_bytes())]).await;
            // The reader commits between deposit and withdrawal: no fee may fall due after this.
            assert_eq!(
                get(store, b"savings").await,
                Some(20_i64.to_le_bytes().to_vec())
            );
        }
        let fee = i64::from(checking + savings < 10);
        tx.set(b"checking", &(checking - 10 - fee).to_le_bytes());
        Ok::<_, Error>(())
    };
    store.transact("withdraw", body).await.unwrap();
    assert_eq!(
        get(store, b"checking").await,
        Some((-10_i64).to_le_bytes().to_vec())
    );
}

pub(crate) async fn reads_repeat(f: Fixture) {
    let store = &f.store;
    put(store, &[(b"a", b"1"), (b"b", b"1")]).await;
    let body = |tx: Transaction| async move {
        let a = tx.get(b"a").await?;
        put(store, &[(b"a", b"2"), (b"b", b"2"), (b"c", b"2")]).await;
        assert_eq!(tx.get(b"b").await?, a);
        assert_eq!(tx.get(b"a").await?, a);
        assert_eq!(tx.snapshot().get(b"b").await?, a);
        assert_eq!(count(&tx, KeyRange::all()).await?, 2);
        Ok::<_, Error>(tx.attempt())
    };
    // A transaction that only reads commits, whatever others do: it saw one version.
    assert_eq!(store.transact("read", body).await.unwrap(), 1);
    assert_eq!(get(store, b"c").await, Some(b"2".to_vec()));
}

pub(crate) async fn snapshot_reads_conflict_with_nobody(f: Fixture) {
    let read = |tx: Transaction| async move {
        tx.snapshot().get(b"a").await?;
        let rows = tx
            .snapshot()
            .get_range(KeyRange::prefix(b"a"), RangeOptions::default());
        rows.collect().await?;
        Ok(())
    };
    assert_eq!(
        attempts(&f.store, read, &[(b"a", b""), (b"ab", b"")]).await,
        1
    );
}

pub(crate) async fn explicit_conflicts_count(f: Fixture) {
    let store = &f.store;
    let read = |tx: Transaction| async move {
        tx.add_read_conflict_range(KeyRange::key(b"a"));
        Ok(())
    };
    assert_eq!(attempts(store, read, &[(b"a", b"")]).await, 2);
    assert_eq!(attempts(store, read, &[(b"a\0", b"")]).await, 1);
    let body = |tx: Transaction| async move {
        tx.get(b"gate").await?;
        if tx.attempt() == 1 {
            let inner = |tx: Transaction| async move {
                tx.add_write_conflict_range(KeyRange::key(b"gate"));
                Ok::<_, Error>(())
            };
            store.transact("writes nothing", inner).await?;
        }
        tx.set(b"x", b"");
        Ok::<_, Error>(tx.attempt())
    };
    assert_eq!(store.transact("gate", body).await.unwrap(), 2);
}

pub(crate) async fn blind_writes_do_not_conflict(f: Fixture) {
    let read = |tx: Transaction| async move {
        tx.set(b"a", b"first");
        tx.get(b"elsewhere").await.map(drop)
    };
    assert_eq!(attempts(&f.store, read, &[(b"a", b"second")]).await, 1);
    assert_eq!(get(&f.store, b"a").await, Some(b"first".to_vec()));
}

pub(crate) async fn a_limited_read_conflicts_only_where_it_read(f: Fixture) {
    put(
        &f.store,
        &[(b"a", b""), (b"b", b""), (b"c", b""), (b"d", b"")],
    )
    .await;
    let first_two = |tx: Transaction| async move {
        let rows = tx
            .get_range(KeyRange::all(), RangeOptions::limit(2))
            .collect()
            .await?;
        assert_eq!(rows.len(), 2);
        Ok(())
    };
    assert_eq!(attempts(&f.store, first_two, &[(b"c", b"")]).await, 1);
    assert_eq!(attempts(&f.store, first_two, &[(b"ab", b"")]).await, 2);
    let last_two = |tx: Transaction| async move {
        let range = KeyRange::new(&b"a"[..], &b"e"[..]);
        let rows = tx
            .get_range(range, RangeOptions::limit(2).reverse())
            .collect()
            .await?;
        assert_eq!(rows.len(), 2);
        Ok(())
    };
    assert_eq!(attempts(&f.store, last_two, &[(b"b", b"")]).await, 1);
    assert_eq!(attempts(&f.store, last_two, &[(b"dd", b"")]).await, 2);
}

pub(crate) async fn own_writes_are_no_reads(f: Fixture) {
    let read = |tx: Transaction| async move {
        tx.get(b"snapshot").await?;
        tx.set(b"a", b"own");
        tx.get(b"a").await?;
        Ok(())
    };
    assert_eq!(attempts(&f.store, read, &[(b"a", b"")]).await, 1);
}

pub(crate) async fn counters_under_contention(f: Fixture) {
    put(&f.store, &[(b"n", &0_i64.to_le_bytes())]).await;
    let tasks = (0..16).map(|_| {
        let store = f.store.clone();
        tokio::spawn(async move {
            for _ in 0..10 {
                let body = |tx: Transaction| async move {
                    let n = tx.get(b"n").await?.unwrap();
                    let n = i64::from_le_bytes((*n).try_into().unwrap());
                    tx.set(b"n", &(n + 1).to_le_bytes());
                    Ok::<_, Error>(())
                };
                store.transact("increment", body).await.unwrap();
            }
        })
    });
    for done in futures::future::join_all(tasks).await {
        done.unwrap();
    }
    assert_eq!(
        get(&f.store, b"n").await,
        Some(160_i64.to_le_bytes().to_vec())
    );
}
