//! The handle on all databases.

use std::sync::Arc;

use store::Store;

use crate::changes::Waits;
use crate::{DbName, Result};

/// What a service may set.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kinds of databases there may be, by the last part of their names.
    pub kinds: Vec<String>,
    /// How large the body of a document may be, as compact JSON.
    pub document_bytes_max: usize,
    /// How many revisions of each branch a new database remembers.
    pub revs_limit: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kinds: vec!["_replicator".to_owned()],
            document_bytes_max: 8_000_000,
            revs_limit: 1000,
        }
    }
}

/// The databases in a store, cheap to clone.
///
/// Every operation has two forms: `foo_in(&tx, …)` is part of a transaction, and `foo(…)` is a
/// transaction.
#[derive(Clone, Debug)]
pub struct DocStore(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) options: Options,
    pub(crate) waits: Waits,
}

impl DocStore {
    /// The databases in `store`.
    pub fn new(store: Store, options: Options) -> Self {
        Self(Arc::new(Inner {
            store,
            options,
            waits: Waits::default(),
        }))
    }

    /// Where the databases are.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Checks a database's name.
    pub fn name(&self, name: &str) -> Result<DbName> {
        DbName::parse(name, &self.0.options.kinds)
    }
}
