//! The handle on all databases of a store.

use std::sync::Arc;

use store::Store;

use crate::changes::Waits;
use crate::{DbName, Result};

#[derive(Clone, Debug)]
pub struct Options {
    /// The kinds of databases, which are the last parts of their names.
    pub kinds: Vec<String>,
    /// The most bytes of a document's body, as compact JSON.
    pub document_bytes_max: usize,
    /// How many revisions of each branch a new database keeps.
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
#[derive(Clone, Debug)]
pub struct DocStore(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) options: Options,
    pub(crate) waits: Waits,
}

impl DocStore {
    pub fn new(store: Store, options: Options) -> Self {
        Self(Arc::new(Inner {
            store,
            options,
            waits: Waits::default(),
        }))
    }

    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Parses a database's name.
    pub fn name(&self, name: &str) -> Result<DbName> {
        DbName::parse(name, &self.0.options.kinds)
    }
}
