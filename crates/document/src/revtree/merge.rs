//! Adding revisions: histories that arrive by replication, and edits.

use super::{NONE, RevTree, Slot};
use crate::rev::{Rev, RevId, Revisions};

/// A revision to add, with its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path<V> {
    /// The revision and its ancestors.
    pub revisions: Revisions,
    pub deleted: bool,
    /// Its value.
    pub value: V,
}

/// The effect of adding a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// It created the document or continued a leaf.
    NewLeaf,
    /// It created another leaf: a conflict, unless one of them is deleted.
    NewBranch,
    /// The revision was known, as a leaf or an ancestor; nothing changed.
    Known,
}

/// An edit of something other than a current leaf (HTTP 409).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Document update conflict.")]
pub struct Conflict;

impl<V> RevTree<V> {
    /// Adds a revision with its history, as replication does (`new_edits=false`): never a conflict. A history that
    /// contradicts the tree (another parent for a known revision) continues the known history.
    pub fn merge(&mut self, path: Path<V>) -> Merged {
        let Revisions { start, ids } = path.revisions;
        // A history cannot be longer than its generation; the oldest part of one that claims to be is dropped.
        let length = ids
            .len()
            .min(usize::try_from(start).unwrap_or(usize::MAX).max(1));
        let ids = &ids[..length];
        if ids.is_empty() {
            return Merged::Known;
        }
        let rev = |age: usize| Rev {
            generation: start - age as u64,
            id: ids[age].clone(),
        };
        let known = (0..ids.len()).find(|&age| self.find(&rev(age)).is_some());
        let merged = match known {
            Some(0) => return Merged::Known,
            Some(age) => self.connect(&rev(age), &ids[age + 1..]),
            None if self.is_empty() => Merged::NewLeaf,
            None => Merged::NewBranch,
        };
        let first_new = known.unwrap_or(ids.len());
        let mut parent = known
            .and_then(|age| self.find(&rev(age)))
            .map_or(NONE, as_index);
        self.nodes.reserve_exact(first_new);
        for age in (1..first_new).rev() {
            parent = self.insert(rev(age), parent, false, None);
        }
        self.insert(rev(0), parent, path.deleted, Some(path.value));
        merged
    }

    /// Checks an edit against the leaves and returns the revision that it continues; `None` for a new document. `base`
    /// is the revision that the client read, if it named one; `deleted` means that the edit deletes the document.
    /// Creating a deleted document again continues its winning tombstone.
    pub fn edit(&self, base: Option<&Rev>, deleted: bool) -> Result<Option<Rev>, Conflict> {
        let Some(winner) = self.winner() else {
            return base.map_or(Ok(None), |_| Err(Conflict));
        };
        match base {
            None if winner.deleted && !deleted => Ok(Some(winner.rev.clone())),
            Some(base) if !winner.deleted && self.get(base).is_some_and(|node| node.leaf) => {
                Ok(Some(base.clone()))
            }
            _ => Err(Conflict),
        }
    }

    /// Makes the known revision `rev` descend from `ancestors` (newest first) where its own history ends earlier.
    fn connect(&mut self, rev: &Rev, ancestors: &[RevId]) -> Merged {
        let merged = match self.get(rev) {
            Some(node) if node.leaf => Merged::NewLeaf,
            _ => Merged::NewBranch,
        };
        let mut child = rev.clone();
        for id in ancestors {
            let ancestor = Rev {
                generation: child.generation - 1,
                id: id.clone(),
            };
            let index = self
                .find(&child)
                .expect("the child was found or inserted before");
            match self.parent(index) {
                Some(parent) if self.nodes[parent].rev == ancestor => {}
                Some(_) => break,
                None => {
                    if self.find(&ancestor).is_none() {
                        self.insert(ancestor.clone(), NONE, false, None);
                    }
                    let parent = self
                        .find(&ancestor)
                        .expect("the ancestor was just inserted");
                    let index = self.find(&child).expect("inserting removes nothing");
                    self.nodes[parent].leaf = false;
                    self.nodes[index].parent = as_index(parent);
                }
            }
            child = ancestor;
        }
        merged
    }

    /// Inserts a leaf below `parent`, whose index is lower than that of the new one, and returns its index.
    fn insert(&mut self, rev: Rev, parent: u32, deleted: bool, value: Option<V>) -> u32 {
        let at = self.nodes.partition_point(|slot| slot.rev < rev);
        self.nodes.insert(
            at,
            Slot {
                rev,
                parent,
                leaf: true,
                deleted,
                value,
            },
        );
        if parent != NONE {
            self.nodes[parent as usize].leaf = false;
        }
        let at = as_index(at);
        for slot in &mut self.nodes[at as usize + 1..] {
            if slot.parent != NONE && slot.parent >= at {
                slot.parent += 1;
            }
        }
        at
    }
}

fn as_index(index: usize) -> u32 {
    u32::try_from(index).expect("a document has fewer than 2^32 revisions")
}
