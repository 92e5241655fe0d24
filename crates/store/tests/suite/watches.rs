//! Watches.

use std::time::Duration;

use futures::FutureExt;
use store::limits::WATCHES_MAX;
use store::{Error, Store, Transaction, Watch};
use tokio::time::timeout;

use crate::support::{Fixture, put};

/// Far longer than any backend needs to tell.
const PATIENCE: Duration = Duration::from_secs(20);

async fn watch(store: &Store, key: &[u8]) -> Watch {
    let body = |tx: Transaction| async move { tx.watch(key).await };
    store.transact("watch", body).await.unwrap()
}

async fn fires(watch: Watch) {
    timeout(PATIENCE, watch.changed())
        .await
        .expect("the watch did not fire")
        .unwrap();
}

pub(crate) async fn a_watch_fires_on_a_change(f: Fixture) {
    for (key, rows) in [(b"new", b"1"), (b"new", b"2")] {
        let waiting = watch(&f.store, key).await;
        put(&f.store, &[(key, rows)]).await;
        fires(waiting).await;
    }
    let waiting = watch(&f.store, b"new").await;
    let clear = |tx: Transaction| async move {
        tx.clear_range(store::KeyRange::all());
        Ok::<_, Error>(())
    };
    f.store.transact("clear", clear).await.unwrap();
    fires(waiting).await;
}

pub(crate) async fn a_watch_is_quiet_without_one(f: Fixture) {
    let mut waiting = Box::pin(watch(&f.store, b"quiet").await.changed());
    put(&f.store, &[(b"other", b"1")]).await;
    assert!((&mut waiting).now_or_never().is_none());
    put(&f.store, &[(b"quiet", b"1")]).await;
    timeout(PATIENCE, waiting)
        .await
        .expect("the watch did not fire")
        .unwrap();
}

pub(crate) async fn a_change_before_the_commit_counts(f: Fixture) {
    let store = &f.store;
    let body = |tx: Transaction| async move {
        let watch = tx.watch(b"k").await?;
        put(store, &[(b"k", b"changed meanwhile")]).await;
        Ok::<_, Error>(watch)
    };
    fires(store.transact("watch", body).await.unwrap()).await;
}

pub(crate) async fn changes_coalesce(f: Fixture) {
    let waiting = watch(&f.store, b"k").await;
    for n in 0..5 {
        put(&f.store, &[(b"k", &[n])]).await;
    }
    fires(waiting).await;
}

pub(crate) async fn an_uncommitted_watch_says_so(f: Fixture) {
    let kept = &std::sync::Mutex::new(None);
    let body = |tx: Transaction| async move {
        *kept.lock().unwrap() = Some(tx.watch(b"k").await?);
        Err::<(), _>(Error::Misuse("no commit"))
    };
    assert!(f.store.transact("abort", body).await.is_err());
    let watch = kept.lock().unwrap().take().unwrap();
    let told = timeout(PATIENCE, watch.changed())
        .await
        .expect("the watch hangs");
    assert!(told.is_err());
}

pub(crate) async fn there_is_a_most(f: Fixture) {
    let mut watches = Vec::new();
    for _ in 0..WATCHES_MAX / 1_000 {
        // Those of a transaction that has to run again are dropped.
        let body = |tx: Transaction| async move {
            let mut more = Vec::new();
            for n in 0..1_000_u32 {
                more.push(tx.watch(&n.to_be_bytes()).await?);
            }
            Ok::<_, Error>(more)
        };
        watches.extend(f.store.transact("watch", body).await.unwrap());
    }
    let one_more = |tx: Transaction| async move { tx.watch(b"one more").await };
    let error = f.store.transact("watch", one_more).await.unwrap_err();
    assert!(
        matches!(error, Error::TooManyWatches { max: WATCHES_MAX }),
        "{error:?}"
    );
    drop(watches);
    let again = watch(&f.store, b"one more").await;
    put(&f.store, &[(b"one more", b"")]).await;
    fires(again).await;
}

pub(crate) async fn a_watch_reads_its_key(f: Fixture) {
    let store = &f.store;
    let body = |tx: Transaction| async move {
        let watch = tx.watch(b"k").await?;
        if tx.attempt() == 1 {
            put(store, &[(b"k", b"")]).await;
        }
        tx.set(b"x", b"");
        drop(watch);
        Ok::<_, Error>(tx.attempt())
    };
    assert_eq!(store.transact("watch", body).await.unwrap(), 2);
}
