//! What the suites share: a fresh store of each backend.

use store::{Call, Error, Store, Transaction};
use testkit::{Backend, Place};

/// A fresh store, removed with the fixture.
pub(crate) struct Fixture {
    pub(crate) store: Store,
    /// Time can only be paused where nothing outside of the process waits.
    pub(crate) local: bool,
    pub(crate) place: Place,
}

impl Fixture {
    /// `None` when the backend needs a cluster that is not there.
    pub(crate) async fn open(backend: Backend) -> Option<Self> {
        let place = backend.place()?;
        let store = Store::open(&place.url).await.unwrap();
        Some(Self {
            store,
            local: backend != Backend::Fdb,
            place,
        })
    }
}

/// A single attempt.
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
