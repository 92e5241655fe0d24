//! The revisions of one document: a forest in which every edit is a child of the revision it replaced.
//!
//! ```text
//!   1-a ── 2-b ── 3-c      leaf: the winner, greatest (not deleted, generation, id)
//!             └── 3-a      leaf: a conflict
//!   7-x ── 8-y             leaf of a tree whose root was stemmed away (or that never shared one)
//! ```
//!
//! A node is identified by its revision alone: two nodes never have the same one. So trees that turn out to be parts of
//! one history are joined as soon as a new revision's history connects them. (CouchDB keeps such parts side by side
//! until its next stemming repairs them.) Unless histories were stemmed before they arrived, their order of arrival
//! makes no difference.
//!
//! Nodes are in one array sorted by revision, parents before children; a document without conflicts edited n times has
//! n entries in order, and an edit appends one. Each may have a value (where the body is, or the body); revisions known
//! only by their id have none.

mod codec;
mod merge;
mod stem;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use crate::rev::{Rev, Revisions};

pub use merge::{Conflict, Merged, Path};

/// The parent index of a root.
const NONE: u32 = u32::MAX;

/// The revisions of a document; `V` is the owner's value for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevTree<V> {
    nodes: Vec<Slot<V>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Slot<V> {
    rev: Rev,
    /// Index of the parent, always lower than its own, or `NONE`.
    parent: u32,
    leaf: bool,
    deleted: bool,
    value: Option<V>,
}

/// One revision in a tree.
#[derive(Debug)]
pub struct Node<'a, V> {
    pub rev: &'a Rev,
    pub deleted: bool,
    /// Nothing replaced it.
    pub leaf: bool,
    /// Its value; `None` if only its id is known.
    pub value: Option<&'a V>,
}

impl<V> Clone for Node<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Node<'_, V> {}

/// The status of a revision in `_revs_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Its body is available.
    Available,
    Deleted,
    /// Only its id is known.
    Missing,
}

impl Status {
    /// The status in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Deleted => "deleted",
            Self::Missing => "missing",
        }
    }
}

impl<V> Default for RevTree<V> {
    fn default() -> Self {
        Self { nodes: Vec::new() }
    }
}

impl<V> RevTree<V> {
    /// No revisions: a document that does not exist.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The number of known revisions, leaves and ancestors.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Every revision, ascending.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = Node<'_, V>> {
        self.nodes.iter().map(Slot::node)
    }

    pub fn get(&self, rev: &Rev) -> Option<Node<'_, V>> {
        self.find(rev).map(|index| self.nodes[index].node())
    }

    /// The leaf that readers get: live before deleted, then the greatest.
    pub fn winner(&self) -> Option<Node<'_, V>> {
        self.unsorted_leaves()
            .max_by_key(|leaf| (!leaf.deleted, leaf.rev))
    }

    /// All leaves, the winner first, in order of precedence.
    pub fn leaves(&self) -> Vec<Node<'_, V>> {
        let mut leaves: Vec<_> = self.unsorted_leaves().collect();
        leaves.sort_unstable_by_key(|leaf| Reverse((!leaf.deleted, leaf.rev)));
        leaves
    }

    /// Whether no leaf is live; false for a document that never existed.
    pub fn is_deleted(&self) -> bool {
        !self.is_empty() && self.unsorted_leaves().all(|leaf| leaf.deleted)
    }

    /// The leaves that are not the winner: the live ones (`_conflicts`) or the deleted ones (`_deleted_conflicts`),
    /// greatest first.
    pub fn conflicts(&self, deleted: bool) -> Vec<&Rev> {
        let losers = self.leaves().into_iter().skip(1);
        losers
            .filter(|leaf| leaf.deleted == deleted)
            .map(|leaf| leaf.rev)
            .collect()
    }

    /// A known revision and its known ancestors (`_revisions`).
    pub fn revisions(&self, rev: &Rev) -> Option<Revisions> {
        let ids = self
            .path(rev)
            .map(|node| node.rev.id.clone())
            .collect::<Vec<_>>();
        (!ids.is_empty()).then_some(Revisions {
            start: rev.generation,
            ids,
        })
    }

    /// A revision and its ancestors, newest first, each with its status (`_revs_info`). Empty if the revision is
    /// unknown.
    pub fn revs_info(&self, rev: &Rev) -> Vec<(&Rev, Status)> {
        self.path(rev)
            .map(|node| match (node.value, node.deleted) {
                (None, _) => (node.rev, Status::Missing),
                (Some(_), true) => (node.rev, Status::Deleted),
                (Some(_), false) => (node.rev, Status::Available),
            })
            .collect()
    }

    /// A revision and its ancestors, newest first.
    pub fn path(&self, rev: &Rev) -> impl Iterator<Item = Node<'_, V>> {
        let parent = |index: &usize| self.parent(*index);
        std::iter::successors(self.find(rev), parent).map(|index| self.nodes[index].node())
    }

    /// The unknown ones of `revs`, ascending and without duplicates (`_revs_diff`).
    pub fn missing(&self, revs: &[Rev]) -> Vec<Rev> {
        let mut missing: Vec<_> = revs
            .iter()
            .filter(|rev| self.find(rev).is_none())
            .cloned()
            .collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Leaves that the newest of the missing revisions may descend from, winner first (`possible_ancestors`).
    pub fn possible_ancestors(&self, missing: &[Rev]) -> Vec<Rev> {
        let Some(newest) = missing.iter().map(|rev| rev.generation).max() else {
            return Vec::new();
        };
        let leaves = self.leaves().into_iter();
        leaves
            .filter(|leaf| leaf.rev.generation < newest)
            .map(|leaf| leaf.rev.clone())
            .collect()
    }

    /// The leaves that are, or descend from, the given revisions, and the given revisions that are unknown; both
    /// ascending (`open_revs` with `latest`).
    pub fn latest(&self, revs: &[Rev]) -> (Vec<Node<'_, V>>, Vec<Rev>) {
        let mut wanted = vec![false; self.nodes.len()];
        for index in revs.iter().filter_map(|rev| self.find(rev)) {
            wanted[index] = true;
        }
        for index in 0..self.nodes.len() {
            if let Some(parent) = self.parent(index) {
                wanted[index] |= wanted[parent];
            }
        }
        let descend = self
            .nodes
            .iter()
            .zip(wanted)
            .filter(|(slot, wanted)| *wanted && slot.leaf);
        (
            descend.map(|(slot, _)| slot.node()).collect(),
            self.missing(revs),
        )
    }

    /// Drops the values of revisions that are not leaves, as compaction does.
    pub fn compact(&mut self) {
        for slot in self.nodes.iter_mut().filter(|slot| !slot.leaf) {
            slot.value = None;
        }
    }

    fn unsorted_leaves(&self) -> impl Iterator<Item = Node<'_, V>> {
        self.nodes().filter(|node| node.leaf)
    }

    fn find(&self, rev: &Rev) -> Option<usize> {
        self.nodes.binary_search_by(|slot| slot.rev.cmp(rev)).ok()
    }

    fn parent(&self, index: usize) -> Option<usize> {
        let parent = self.nodes[index].parent;
        (parent != NONE).then_some(parent as usize)
    }
}

impl<V> Slot<V> {
    fn node(&self) -> Node<'_, V> {
        Node {
            rev: &self.rev,
            deleted: self.deleted,
            leaf: self.leaf,
            value: self.value.as_ref(),
        }
    }
}
