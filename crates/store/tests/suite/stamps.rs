//! Versionstamps.

use store::tuple::{Versionstamp, pack_with_versionstamp, unpack};
use store::{Error, Transaction};

use crate::support::{Fixture, all, get, put};

pub(crate) async fn stamped_keys_are_in_commit_order(f: Fixture) {
    let mut stamps = Vec::new();
    for n in 0..20_u8 {
        let body = |tx: Transaction| async move {
            let key = pack_with_versionstamp(&("log", Versionstamp::incomplete(0)));
            tx.set_versionstamped_key(&key, &[n]);
            Ok::<_, Error>(tx.commit_stamp())
        };
        let stamp = f.store.transact("append", body).await.unwrap();
        stamps.push(stamp.get().unwrap());
        assert!(stamp.version().unwrap() > 0);
    }
    assert!(stamps.is_sorted());
    let rows = all(&f.store).await;
    assert_eq!(rows.len(), 20);
    for (n, (key, value)) in rows.iter().enumerate() {
        let (_, stamp): (String, Versionstamp) = unpack(key).unwrap();
        assert_eq!(stamp.transaction_version(), &stamps[n]);
        assert_eq!(usize::from(value[0]), n);
    }
}

pub(crate) async fn stamped_values_hold_the_commits_stamp(f: Fixture) {
    let body = |tx: Transaction| async move {
        let mut value = b"before:..........:after".to_vec();
        value.extend(7_u32.to_le_bytes());
        tx.set_versionstamped_value(b"k", &value);
        Ok::<_, Error>(tx.commit_stamp())
    };
    let stamp = f
        .store
        .transact("stamp", body)
        .await
        .unwrap()
        .get()
        .unwrap();
    let value = get(&f.store, b"k").await.unwrap();
    assert_eq!(value, [&b"before:"[..], &stamp, b":after"].concat());
}

pub(crate) async fn one_transaction_makes_many_keys(f: Fixture) {
    let body = |tx: Transaction| async move {
        for n in 0..5 {
            let key = pack_with_versionstamp(&("log", Versionstamp::incomplete(n)));
            tx.set_versionstamped_key(&key, b"");
        }
        Ok::<_, Error>(())
    };
    f.store.transact("append", body).await.unwrap();
    let rows = all(&f.store).await;
    for (n, (key, _)) in rows.iter().enumerate() {
        let (_, stamp): (String, Versionstamp) = unpack(key).unwrap();
        assert_eq!(usize::from(stamp.user_version()), n);
    }
    assert_eq!(rows.len(), 5);
}

pub(crate) async fn a_stamp_cannot_be_read_before(f: Fixture) {
    let by_value = |tx: Transaction| async move {
        tx.set_versionstamped_value(b"k", &[0; 14]);
        tx.get(b"k").await
    };
    let error = f.store.transact("value", by_value).await.unwrap_err();
    assert!(matches!(error, Error::Misuse(_)), "{error:?}");
    let by_range = |tx: Transaction| async move {
        let key = pack_with_versionstamp(&("log", Versionstamp::incomplete(0)));
        tx.set_versionstamped_key(&key, b"");
        let range = store::KeyRange::all();
        tx.get_range(range, store::RangeOptions::default())
            .collect()
            .await
    };
    let error = f.store.transact("range", by_range).await.unwrap_err();
    assert!(matches!(error, Error::Misuse(_)), "{error:?}");
    // A key stamped before is a key like any other, once another commit has moved the version on.
    let append = |tx: Transaction| async move {
        let key = pack_with_versionstamp(&("log", Versionstamp::incomplete(0)));
        tx.set_versionstamped_key(&key, b"old");
        Ok::<_, Error>(())
    };
    f.store.transact("append", append).await.unwrap();
    let (old, _) = all(&f.store).await.remove(0);
    put(&f.store, &[(b"another", b"")]).await;
    let old = &old;
    let both = |tx: Transaction| async move {
        append(tx.clone()).await?;
        tx.get(old).await
    };
    let found = f.store.transact("both", both).await.unwrap();
    assert_eq!(found.as_deref(), Some(&b"old"[..]));
}

pub(crate) async fn a_read_only_transaction_has_no_stamp(f: Fixture) {
    let body = |tx: Transaction| async move {
        tx.get(b"a").await?;
        Ok::<_, Error>(tx.commit_stamp())
    };
    assert_eq!(f.store.transact("read", body).await.unwrap().get(), None);
}

pub(crate) async fn a_wrong_offset_is_refused(f: Fixture) {
    for key in [
        &b"abc"[..],
        b"0123456789\x01\0\0\0",
        b"0123456789\xff\xff\xff\xff",
    ] {
        let body = |tx: Transaction| async move {
            tx.set_versionstamped_key(key, b"");
            Ok::<_, Error>(())
        };
        let error = f.store.transact("wrong", body).await.unwrap_err();
        assert!(matches!(error, Error::Misuse(_)), "{error:?}");
    }
    let body = |tx: Transaction| async move {
        tx.set_versionstamped_value(b"k", b"too short");
        Ok::<_, Error>(())
    };
    assert!(matches!(
        f.store.transact("wrong", body).await,
        Err(Error::Misuse(_))
    ));
}
