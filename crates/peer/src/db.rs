//! One database in memory.

mod write;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use document::rev::Rev;
use document::revtree::{Node, RevTree};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::attachment::Attachment;
use crate::events::{Events, Kind};
use crate::functions::Functions;
use crate::security::Security;

pub(crate) use write::{Incoming, Slot, local_rev};

pub(crate) type Id = Arc<str>;

/// The contents of one revision.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// The client's members as a JSON object without whitespace.
    pub(crate) body: Box<str>,
    /// In the order of the document.
    pub(crate) attachments: Vec<Attachment>,
}

pub(crate) type Tree = RevTree<Arc<Version>>;

/// A document with all its revisions.
#[derive(Debug, Default)]
pub(crate) struct Document {
    /// The update sequence of its latest change.
    pub(crate) seq: u64,
    pub(crate) tree: Tree,
}

impl Document {
    pub(crate) fn winner(&self) -> Node<'_, Arc<Version>> {
        self.tree.winner().expect("a stored document has revisions")
    }
}

/// A `_local` document: not replicated, no history.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) generation: u64,
    pub(crate) body: Box<str>,
}

#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) name: String,
    /// Seconds since 1970, unique per name.
    pub(crate) created: i64,
    /// Distinguishes this database from earlier ones of the same name.
    pub(crate) uuid: [u8; 8],
    pub(crate) functions: Functions,
    events: Arc<Events>,
    state: RwLock<State>,
    updates: watch::Sender<u64>,
    /// Cancelled when the database is deleted.
    pub(crate) gone: CancellationToken,
}

/// The mutable state of a database.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) docs: BTreeMap<Id, Document>,
    /// Each document once, at its latest change.
    by_seq: BTreeMap<u64, Id>,
    pub(crate) seq: u64,
    /// The number of documents whose winner is a deletion.
    pub(crate) deleted_docs: usize,
    /// Bytes of bodies and attachments ever written.
    pub(crate) bytes: u64,
    pub(crate) locals: BTreeMap<Id, Local>,
    pub(crate) security: Security,
    pub(crate) revs_limit: usize,
    validations: Vec<write::Validation>,
}

impl Database {
    pub(crate) fn new(
        name: &str,
        created: i64,
        uuid: [u8; 8],
        security: Security,
        functions: Functions,
        events: Arc<Events>,
    ) -> Self {
        let state = State {
            security,
            revs_limit: 1000,
            ..State::default()
        };
        Self {
            name: name.to_owned(),
            created,
            uuid,
            functions,
            events,
            state: RwLock::new(state),
            updates: watch::Sender::new(0),
            gone: CancellationToken::new(),
        }
    }

    /// Locks the state for reading; never held across an await.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the latest update sequence.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.updates.subscribe()
    }

    /// Wakes the feeds after a write.
    fn announce(&self, seq: u64) {
        self.updates.send_replace(seq);
        self.events.add(Kind::Updated, &self.name);
    }

    /// Deletes the bodies of replaced revisions, as compaction does.
    pub(crate) fn compact(&self) {
        for document in self.write().docs.values_mut() {
            document.tree.compact();
        }
    }
}

impl State {
    pub(crate) fn live_docs(&self) -> usize {
        self.docs.len() - self.deleted_docs
    }

    pub(crate) fn document(&self, id: &str) -> Option<&Document> {
        self.docs.get(id)
    }

    /// Documents in order of their latest change, after `since` and up to `until`.
    pub(crate) fn changes(
        &self,
        since: u64,
        until: u64,
    ) -> impl DoubleEndedIterator<Item = (u64, &Id, &Document)> {
        // `BTreeMap::range` panics if the start is after the end.
        let until = until.max(since);
        self.by_seq
            .range((Bound::Excluded(since), Bound::Included(until)))
            .map(|(seq, id)| {
                (
                    *seq,
                    id,
                    self.docs
                        .get(id)
                        .expect("every change belongs to a document"),
                )
            })
    }

    /// Changes after `since` and up to `until`.
    pub(crate) fn count_changes(&self, since: u64, until: u64) -> usize {
        if since == 0 && until >= self.seq {
            return self.by_seq.len();
        }
        self.changes(since, until).count()
    }

    /// The newest revision of a branch whose body is known.
    fn nearest<'a>(
        &'a self,
        id: &str,
        mut revs: impl Iterator<Item = &'a Rev>,
    ) -> Option<&'a Arc<Version>> {
        let tree = &self.docs.get(id)?.tree;
        revs.find_map(|rev| tree.get(rev).and_then(|node| node.value))
    }
}
