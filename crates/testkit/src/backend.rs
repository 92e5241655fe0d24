//! A temporary store on each backend, and test suites that run on all of them.

use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Memory,
    Lmdb,
    Fdb,
}

/// The location of a test's store; removed on drop.
#[derive(Debug)]
pub struct Place {
    pub url: String,
    _directory: Option<TempDir>,
}

impl Backend {
    /// `None`, with a message, if the backend needs a cluster that is not available.
    pub fn place(self) -> Option<Place> {
        let (url, directory) = match self {
            Self::Memory => ("memory:".to_owned(), None),
            Self::Lmdb => {
                let directory = tempfile::tempdir().unwrap();
                let url = format!("lmdb:{}", directory.path().display());
                (url, Some(directory))
            }
            Self::Fdb => (fdb_url()?, None),
        };
        Some(Place {
            url,
            _directory: directory,
        })
    }
}

/// The cluster file in `TEST_FDB_CLUSTER_FILE`. If it is unset and `TEST_FDB_REQUIRED` is set, the test fails.
pub fn fdb_cluster_file() -> Option<String> {
    let file = std::env::var("TEST_FDB_CLUSTER_FILE").ok();
    if file.is_none() {
        assert!(
            std::env::var_os("TEST_FDB_REQUIRED").is_none(),
            "TEST_FDB_REQUIRED is set, but TEST_FDB_CLUSTER_FILE names no cluster"
        );
        println!("skipped: TEST_FDB_CLUSTER_FILE names no cluster");
    }
    file
}

/// An empty store in the cluster of `TEST_FDB_CLUSTER_FILE`.
#[expect(
    clippy::disallowed_methods,
    reason = "test runs share one cluster and need different prefixes"
)]
pub fn fdb_url() -> Option<String> {
    static STORES: AtomicU64 = AtomicU64::new(0);
    let file = fdb_cluster_file()?;
    let (run, store) = (
        rand::random::<u32>(),
        STORES.fetch_add(1, Ordering::Relaxed),
    );
    Some(format!("fdb:{file}?prefix=test-{run:08x}-{store}"))
}

/// Generates a test module per backend from one list of cases: functions in the caller's `suite` that take a `Fixture`,
/// which `Fixture::open` creates for a backend.
#[macro_export]
#[expect(
    clippy::crate_in_macro_def,
    reason = "the cases and their fixture are the caller's"
)]
macro_rules! on_every_backend {
    (@backend $name:ident, $backend:ident; $($area:ident: $($case:ident),*;)*) => {
        mod $name {
            $(mod $area {
                $(#[tokio::test]
                async fn $case() {
                    if let Some(fixture) = crate::Fixture::open($crate::Backend::$backend).await {
                        crate::suite::$area::$case(fixture).await;
                    }
                })*
            })*
        }
    };
    ($($area:ident: $($case:ident),* $(,)?;)*) => {
        $crate::on_every_backend!(@backend memory, Memory; $($area: $($case),*;)*);
        $crate::on_every_backend!(@backend lmdb, Lmdb; $($area: $($case),*;)*);
        $crate::on_every_backend!(@backend fdb, Fdb; $($area: $($case),*;)*);
    };
}
