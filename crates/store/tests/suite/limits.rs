//! Every limit at its edge, and what the error says.

use std::time::Duration;

use store::limits::{KEY_BYTES_MAX, TRANSACTION_AGE_MAX, TRANSACTION_BYTES_MAX, VALUE_BYTES_MAX};
use store::{Error, KeyRange, Limit, Store, Transaction};

use crate::support::{Fixture, all, get, once};

async fn set(store: &Store, key: &[u8], value: &[u8]) -> Result<(), Error> {
    let body = |tx: Transaction| async move {
        tx.set(key, value);
        Ok(())
    };
    store.transact("set", body).await
}

pub(crate) async fn a_key_at_its_limit(f: Fixture) {
    let key = vec![b'k'; KEY_BYTES_MAX + 1];
    set(&f.store, &key[..KEY_BYTES_MAX - 1], b"1")
        .await
        .unwrap();
    set(&f.store, &key[..KEY_BYTES_MAX], b"2").await.unwrap();
    let error = set(&f.store, &key, b"3").await.unwrap_err();
    assert!(matches!(
        error,
        Error::TooLarge {
            limit: Limit::Key,
            size: 1_025,
            max: 1_024
        }
    ));
    assert_eq!(
        error.to_string(),
        "key of 1025 bytes is 1 over the limit of 1024"
    );
    assert_eq!(all(&f.store).await.len(), 2);
    assert_eq!(
        get(&f.store, &key[..KEY_BYTES_MAX]).await,
        Some(b"2".to_vec())
    );
}

pub(crate) async fn a_value_at_its_limit(f: Fixture) {
    let value = vec![0xab; VALUE_BYTES_MAX + 1];
    set(&f.store, b"a", &value[..VALUE_BYTES_MAX - 1])
        .await
        .unwrap();
    set(&f.store, b"b", &value[..VALUE_BYTES_MAX])
        .await
        .unwrap();
    let error = set(&f.store, b"c", &value).await.unwrap_err();
    assert!(matches!(
        error,
        Error::TooLarge {
            limit: Limit::Value,
            ..
        }
    ));
    assert_eq!(
        error.to_string(),
        "value of 100001 bytes is 1 over the limit of 100000"
    );
    assert_eq!(get(&f.store, b"b").await.unwrap().len(), VALUE_BYTES_MAX);
    assert_eq!(get(&f.store, b"c").await, None);
}

pub(crate) async fn a_transaction_at_its_limit(f: Fixture) {
    let value = vec![1; VALUE_BYTES_MAX];
    let value = &value;
    let fill = |extra: usize| {
        move |tx: Transaction| async move {
            let mut n = 0_u32;
            // Stop less than one value short, and fill up with one that fits to the byte.
            while tx.approximate_size() < TRANSACTION_BYTES_MAX - VALUE_BYTES_MAX {
                tx.set(&n.to_be_bytes(), &value[..VALUE_BYTES_MAX / 2]);
                n += 1;
            }
            let before = tx.approximate_size();
            tx.set(b"rest", b"");
            let overhead = tx.approximate_size() - before;
            let room = TRANSACTION_BYTES_MAX - tx.approximate_size() - overhead;
            tx.set(b"rest", &value[..room + extra]);
            Ok::<_, Error>(n)
        }
    };
    let error = f.store.transact("too large", fill(1)).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::TooLarge {
                limit: Limit::Transaction,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        "transaction of 10000001 bytes is 1 over the limit of 10000000"
    );
    assert_eq!(all(&f.store).await, []);
    let n = f
        .store
        .transact("as large as can be", fill(0))
        .await
        .unwrap();
    assert_eq!(all(&f.store).await.len(), n as usize + 1);
}

pub(crate) async fn an_old_snapshot_is_gone(f: Fixture) {
    let local = f.local;
    let body = |tx: Transaction| async move {
        tx.get(b"a").await?;
        if local {
            tokio::time::pause();
            tokio::time::advance(TRANSACTION_AGE_MAX).await;
            tokio::time::resume();
        } else {
            // A cluster counts its own five seconds, and then some.
            tokio::time::sleep(TRANSACTION_AGE_MAX + Duration::from_secs(3)).await;
        }
        tx.get(b"b").await?;
        tx.set(b"c", b"");
        Ok::<_, Error>(())
    };
    let error = f.store.transact(once("old"), body).await.unwrap_err();
    assert!(matches!(error, Error::TooOld), "{error:?}");
    assert_eq!(get(&f.store, b"c").await, None);
}

pub(crate) async fn reserved_keys_are_refused(f: Fixture) {
    for key in [&b"\xfe"[..], b"\xfe/format", b"\xff", b"\xff\xff/status"] {
        assert!(matches!(
            set(&f.store, key, b"").await,
            Err(Error::Misuse(_))
        ));
    }
    let body = |tx: Transaction| async move {
        tx.clear_range((&b"a"[..], &b"\xff"[..]));
        Ok::<_, Error>(())
    };
    assert!(matches!(
        f.store.transact("clear", body).await,
        Err(Error::Misuse(_))
    ));
    let body = |tx: Transaction| async move {
        tx.clear_range(KeyRange::all());
        Ok::<_, Error>(())
    };
    f.store.transact("clear", body).await.unwrap();
}
