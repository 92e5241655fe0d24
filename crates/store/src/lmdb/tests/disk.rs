//! Disks that fail or fill up.

use std::path::Path;

use super::{blind, commit, engine, lmdb, manual, rows, set};
use crate::call::Until;
use crate::lmdb::Lmdb;
use crate::pending::Mutation;
use crate::{AsStoreError, Durability, Durable, Error, KeyRange, OpenOptions, Store, Transaction};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

#[tokio::test]
async fn a_failed_sync_is_never_a_success() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = lmdb(directory.path());
    let put =
        |value: &'static str| store.commit(blind(vec![set("k", value)]), None, &Until::Durable);
    put("1").await.expect("committed");
    store.engine().log.trace.fail_sync(EIO);
    let error = put("2").await.expect_err("the outcome is unknown");
    assert!(matches!(error, Error::MaybeCommitted), "{error}");
    // The next sync would succeed, and prove nothing.
    for _ in 0..2 {
        let error = put("3").await.expect_err("stopped");
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains("could not be synced"), "{error}");
    }
    let seen = store.snapshot().expect("a snapshot");
    assert_eq!(seen.get(b"k").expect("read").as_deref(), Some(&b"2"[..]));
    let told = store
        .commit(blind(Vec::new()), Some(seen), &Until::Durable)
        .await;
    assert!(matches!(told, Err(Error::Corrupt { .. })), "{told:?}");
    drop(store);
    let store = lmdb(directory.path());
    let value = store.latest(b"k").expect("read");
    assert!(matches!(value.as_deref(), Some(b"1" | b"2")), "{value:?}");
    store
        .commit(blind(vec![set("k", "4")]), None, &Until::Durable)
        .await
        .expect("committed");
}

#[tokio::test]
async fn a_full_disk_refuses_and_recovers() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = lmdb(directory.path());
    let put =
        |value: &'static str| store.commit(blind(vec![set("k", value)]), None, &Until::Durable);
    put("1").await.expect("committed");
    store.engine().log.trace.fail_writes(Some(ENOSPC));
    for _ in 0..2 {
        let error = put("2").await.expect_err("full");
        assert!(matches!(error, Error::Full { .. }), "{error}");
        assert!(error.to_string().contains("no space left"), "{error}");
    }
    assert_eq!(
        store.latest(b"k").expect("read").as_deref(),
        Some(&b"1"[..])
    );
    store.engine().log.trace.fail_writes(None);
    put("3").await.expect("committed");
    drop(store);
    let store = lmdb(directory.path());
    assert_eq!(
        store.latest(b"k").expect("read").as_deref(),
        Some(&b"3"[..])
    );
}

fn with_map(path: &Path, map_size_bytes: u64) -> std::sync::Arc<Lmdb> {
    let options = OpenOptions {
        map_size_bytes,
        ..OpenOptions::default()
    };
    Lmdb::open_tuned(path, &options, manual()).expect("opened")
}

#[tokio::test]
async fn a_full_map_says_how_to_raise_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = with_map(directory.path(), 1 << 20);
    let value = vec![7; 50_000];
    let key = |number: u32| format!("k{number:03}");
    let fill = |number: u32| {
        store.commit(
            blind(vec![set(key(number), value.clone())]),
            None,
            &Until::Durable,
        )
    };
    let mut count = 0;
    let error = loop {
        match fill(count).await {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
        // The log has it, and the tree cannot take it.
        let _ = store.engine().checkpoint();
        assert!(count < 100, "the map is never full");
    };
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert!(error.to_string().contains("map_size"), "{error}");
    let all = |store: &Lmdb| rows(store.engine()).len();
    assert_eq!(all(&store), count as usize);
    // A deletion is accepted, and makes room.
    let range = KeyRange::prefix(b"k0");
    let clear = Mutation::ClearRange { range };
    store
        .commit(blind(vec![clear]), None, &Until::Durable)
        .await
        .expect("committed");
    store.engine().checkpoint().expect("in the tree");
    fill(0).await.expect("committed");
    drop(store);
    let store = with_map(directory.path(), 64 << 20);
    for number in 0..100 {
        let request = blind(vec![set(key(number), value.clone())]);
        store
            .commit(request, None, &Until::Durable)
            .await
            .expect("committed");
    }
    store.engine().checkpoint().expect("in the tree");
    assert_eq!(all(&store), 100);
}

/// A log full of commits that a full tree cannot take is opened, read and continued.
#[test]
fn a_store_is_opened_when_its_tree_is_full() {
    let directory = tempfile::tempdir().expect("a directory");
    let small = OpenOptions {
        map_size_bytes: 1 << 20,
        ..OpenOptions::default()
    };
    let open = |options| {
        let directory = super::Directory::prepare(directory.path()).expect("prepared");
        super::open::open(directory, options, manual()).expect("opened")
    };
    let store = open(&small);
    for number in 0..40u8 {
        commit(&store, blind(vec![set(vec![number], vec![7; 50_000])])).expect("committed");
    }
    assert!(matches!(store.checkpoint(), Err(Error::Full { .. })));
    store.close();
    drop(store);
    let store = open(&small);
    assert_eq!(rows(&store).len(), 40);
    store.close();
    drop(store);
    let store = open(&OpenOptions::default());
    store.checkpoint().expect("in the tree");
    assert_eq!(rows(&store).len(), 40);
}

#[tokio::test]
async fn what_was_read_is_durable_before_it_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = lmdb(directory.path());
    store
        .commit(blind(vec![set("old", "1")]), None, &Until::Durable)
        .await
        .expect("committed");
    let gate = store.engine().log.trace.hold_syncs();
    let writing = store.commit(blind(vec![set("new", "1")]), None, &Until::Durable);
    tokio::pin!(writing);
    while store.latest(b"new").expect("read").is_none() {
        assert!(futures::poll!(writing.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    let read = |key: &'static [u8]| {
        let snapshot = store.snapshot().expect("a snapshot");
        snapshot.get(key).expect("read");
        Some(snapshot)
    };
    // A transaction that read only durable data returns at once.
    store
        .commit(blind(Vec::new()), read(b"old"), &Until::Durable)
        .await
        .expect("told");
    let told = store.commit(blind(Vec::new()), read(b"new"), &Until::Durable);
    tokio::pin!(told);
    let version = store.snapshot().expect("a snapshot");
    version.see_version();
    let told_version = store.commit(blind(Vec::new()), Some(version), &Until::Durable);
    tokio::pin!(told_version);
    for _ in 0..100 {
        assert!(futures::poll!(told.as_mut()).is_pending());
        assert!(futures::poll!(told_version.as_mut()).is_pending());
        assert!(futures::poll!(writing.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    drop(gate);
    told.await.expect("told");
    told_version.await.expect("told");
    writing.await.expect("committed");
}

#[tokio::test]
async fn a_transaction_that_is_ahead_says_when_it_is_durable() {
    let directory = tempfile::tempdir().expect("a directory");
    let disk = lmdb(directory.path());
    let url = format!("lmdb:{}", directory.path().display());
    let store = Store::open(&url).await.expect("the same store");
    let add = || {
        store.transact_ahead("add", async |tx: Transaction| {
            tx.add(b"n", 1);
            Ok::<_, Error>(())
        })
    };
    let read = || store.transact_ahead("read", async |tx: Transaction| tx.get(b"n").await);
    let gate = disk.engine().log.trace.hold_syncs();
    let ((), first) = add().await.expect("visible");
    let ((), second) = add().await.expect("visible");
    let (seen, third) = read().await.expect("visible");
    assert_eq!(seen.as_deref(), Some(&2_u64.to_le_bytes()[..]));
    let all = [first, second, third];
    assert!(all.iter().all(|durable| !durable.is_now()));
    let all = futures::future::try_join_all(all.map(Durable::wait));
    tokio::pin!(all);
    for _ in 0..100 {
        assert!(futures::poll!(all.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    drop(gate);
    all.await.expect("durable");
    let (_, durable) = read().await.expect("visible");
    assert!(durable.is_now());
    // Not the sync that may still be under way for the first of them.
    let gate = disk.engine().log.trace.hold_syncs();
    let ((), lost) = add().await.expect("visible");
    disk.engine().log.trace.fail_sync(EIO);
    drop(gate);
    let told = lost.wait().await;
    assert!(matches!(told, Err(Error::MaybeCommitted)), "{told:?}");
}

/// An error also reveals what was read: "the document already exists".
#[tokio::test]
async fn what_was_read_is_durable_before_a_body_refuses() {
    #[derive(Debug, thiserror::Error)]
    enum Refusal {
        #[error("there is one already")]
        Exists,
        #[error(transparent)]
        Store(#[from] Error),
    }
    impl AsStoreError for Refusal {
        fn as_store_error(&self) -> Option<&Error> {
            match self {
                Self::Exists => None,
                Self::Store(error) => Some(error),
            }
        }
    }
    let directory = tempfile::tempdir().expect("a directory");
    let disk = lmdb(directory.path());
    let url = format!("lmdb:{}", directory.path().display());
    let store = Store::open(&url).await.expect("the same store");
    let refuse = |key: &'static [u8]| {
        store.transact("refuse", async move |tx: Transaction| {
            match tx.get(key).await? {
                Some(_) => Err(Refusal::Exists),
                None => Ok(()),
            }
        })
    };
    // An error of the store may depend on what was read, too.
    let misuse = |key: &'static [u8]| {
        store.transact("misuse", async move |tx: Transaction| {
            match tx.get(key).await? {
                Some(_) => Err(Error::corrupt("a row that cannot be decoded")),
                None => Ok(()),
            }
        })
    };
    let too_large = |key: &'static [u8]| {
        store.transact("too_large", async move |tx: Transaction| {
            let size = usize::from(tx.get(key).await?.is_some()) * 200_000;
            tx.set(b"large", &vec![0; size]);
            Ok::<_, Error>(())
        })
    };
    disk.commit(blind(vec![set("old", "1")]), None, &Until::Durable)
        .await
        .expect("committed");
    let gate = disk.engine().log.trace.hold_syncs();
    let writing = disk.commit(blind(vec![set("new", "1")]), None, &Until::Durable);
    tokio::pin!(writing);
    while disk.latest(b"new").expect("read").is_none() {
        assert!(futures::poll!(writing.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    assert!(matches!(refuse(b"old").await, Err(Refusal::Exists)));
    let refused = refuse(b"new");
    let (misused, large) = (misuse(b"new"), too_large(b"new"));
    tokio::pin!(refused, misused, large);
    for _ in 0..100 {
        assert!(futures::poll!(refused.as_mut()).is_pending());
        assert!(futures::poll!(misused.as_mut()).is_pending());
        assert!(futures::poll!(large.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    drop(gate);
    assert!(matches!(refused.await, Err(Refusal::Exists)));
    assert!(matches!(misused.await, Err(Error::Corrupt { .. })));
    assert!(matches!(large.await, Err(Error::TooLarge { .. })));
    writing.await.expect("committed");
}

#[tokio::test]
async fn relaxed_commits_do_not_wait() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = OpenOptions {
        durability: Durability::Relaxed,
        ..OpenOptions::default()
    };
    let store = Lmdb::open_tuned(directory.path(), &options, manual()).expect("opened");
    let gate = store.engine().log.trace.hold_syncs();
    store
        .commit(blind(vec![set("k", "1")]), None, &Until::Durable)
        .await
        .expect("committed");
    let snapshot = store.snapshot().expect("a snapshot");
    assert!(snapshot.get(b"k").expect("read").is_some());
    store
        .commit(blind(Vec::new()), Some(snapshot), &Until::Durable)
        .await
        .expect("told");
    drop(gate);
    drop(store);
    let store = Lmdb::open_tuned(directory.path(), &options, manual()).expect("opened");
    assert!(store.latest(b"k").expect("read").is_some());
}

#[test]
fn one_process_has_one_store_per_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = lmdb(directory.path());
    let again = lmdb(&directory.path().join("."));
    assert!(std::sync::Arc::ptr_eq(&store, &again));
    let other = OpenOptions {
        durability: Durability::Relaxed,
        ..OpenOptions::default()
    };
    let error = Lmdb::open_tuned(directory.path(), &other, manual()).expect_err("refused");
    assert!(error.to_string().contains("other options"), "{error}");
    drop((store, again));
    Lmdb::open_tuned(directory.path(), &other, manual()).expect("opened");
}

#[test]
fn a_lost_segment_is_corrupt() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = engine(directory.path()).expect("opened");
    commit(&store, blind(vec![set("k", "1")])).expect("committed");
    store.close();
    drop(store);
    std::fs::remove_file(directory.path().join("redo-0000000000000001")).expect("removed");
    let error = engine(directory.path()).expect_err("corrupt");
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

#[tokio::test]
async fn who_does_not_wait_for_the_disk_is_told_before_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = lmdb(directory.path());
    let gate = store.engine().log.trace.hold_syncs();
    let put =
        |value: &'static str| store.commit(blind(vec![set("k", value)]), None, &Until::Visible);
    for value in ["1", "2"] {
        put(value).await.expect("seen by others");
        let seen = store.snapshot().expect("a snapshot");
        assert_eq!(
            seen.get(b"k").expect("read").as_deref(),
            Some(value.as_bytes())
        );
        // A transaction that has read it need not wait either.
        (store
            .commit(blind(Vec::new()), Some(seen), &Until::Visible)
            .await)
            .expect("told");
    }
    drop(gate);
    // It will be synced, although no transaction waits for it.
    while store.engine().control.durable() < store.snapshot().expect("a snapshot").version() {
        tokio::task::yield_now().await;
    }
    drop(store);
    let store = lmdb(directory.path());
    assert_eq!(
        store.latest(b"k").expect("read").as_deref(),
        Some(&b"2"[..])
    );
}
