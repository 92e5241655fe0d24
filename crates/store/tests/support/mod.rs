//! What the suites share: a fresh store of each backend.

use store::{Call, Error, Store, Transaction};
use tempfile::TempDir;

/// A store nobody else sees, removed with the fixture.
pub(crate) struct Fixture {
    pub(crate) store: Store,
    pub(crate) url: String,
    /// Time can only be paused where nothing outside of the process waits.
    pub(crate) local: bool,
    _directory: Option<TempDir>,
}

/// One backend of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Memory,
    Lmdb,
    Fdb,
}

impl Fixture {
    /// `None` when the backend needs a server that is not there.
    pub(crate) async fn open(backend: Backend) -> Option<Self> {
        let mut directory = None;
        let url = match backend {
            Backend::Memory => "memory:".to_owned(),
            Backend::Lmdb => {
                let dir = tempfile::tempdir().unwrap();
                let url = format!("lmdb:{}", dir.path().display());
                directory = Some(dir);
                url
            }
            Backend::Fdb => fdb_url()?,
        };
        let store = Store::open(&url).await.unwrap();
        Some(Self {
            store,
            url,
            local: backend != Backend::Fdb,
            _directory: directory,
        })
    }
}

/// A prefix of its own in the cluster that `TEST_FDB_CLUSTER_FILE` names.
#[expect(
    clippy::disallowed_methods,
    reason = "test runs share one cluster and must not meet"
)]
fn fdb_url() -> Option<String> {
    let Some(file) = std::env::var_os("TEST_FDB_CLUSTER_FILE") else {
        assert!(
            std::env::var_os("TEST_FDB_REQUIRED").is_none(),
            "TEST_FDB_REQUIRED is set, but TEST_FDB_CLUSTER_FILE names no cluster"
        );
        println!("skipped: TEST_FDB_CLUSTER_FILE names no cluster");
        return None;
    };
    let unique: u64 = rand::random();
    Some(format!("fdb:{}?prefix=test-{unique:016x}", file.display()))
}

/// One attempt and no second.
pub(crate) fn once(name: &'static str) -> Call {
    Call::new(name).retries_max(0)
}

/// Sets a few keys in one transaction.
pub(crate) async fn put(store: &Store, rows: &[(&[u8], &[u8])]) {
    let result = store.transact("put", |tx: Transaction| async move {
        for (key, value) in rows {
            tx.set(key, value);
        }
        Ok::<_, Error>(())
    });
    result.await.unwrap();
}

/// One key, read in a transaction of its own.
pub(crate) async fn get(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
    let result = store.transact("get", |tx: Transaction| async move { tx.get(key).await });
    result.await.unwrap().map(|value| value.to_vec())
}

/// Every row of a layer's key space.
pub(crate) async fn all(store: &Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let read = store.transact("all", |tx: Transaction| async move {
        let rows = tx.get_range(store::KeyRange::all(), store::RangeOptions::default());
        rows.collect().await
    });
    (read.await.unwrap().into_iter())
        .map(|row| (row.key.to_vec(), row.value.to_vec()))
        .collect()
}
