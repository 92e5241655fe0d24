//! A document that a transaction edits.

use std::collections::BTreeMap;

use bytes::Bytes;
use document::doc::Invalid;
use document::rev::{Rev, Revisions};
use document::revtree::{Merged, Node, Path};
use store::Transaction;

use super::EditMode;
use super::name::{find_own, new_rev, resolve};
use crate::database::{Counter, add};
use crate::error::INVALID_REV;
use crate::record::{self, Record, leaf};
use crate::rows::{AttachmentRow, DbRow, Leaf, Mark, RecordRow, Winner};
use crate::{Change, Db, Document, Edit, Error, Result, Seq, WriteHook, chunks, keys, seq};

/// A document with the edits so far.
pub(super) struct Draft<'a> {
    pub(super) id: &'a str,
    record: Record,
    /// The stored parts and their sizes.
    stored: BTreeMap<u64, u64>,
    stored_winner: Option<Winner>,
    new_parts: BTreeMap<u64, Bytes>,
    changed: bool,
}

/// A revision to add.
struct Addition {
    revisions: Revisions,
    attachments: Vec<AttachmentRow>,
}

impl<'a> Draft<'a> {
    pub(super) async fn load(tx: &Transaction, db: &Db, id: &'a str) -> Result<Self> {
        let record = Record::load(tx, db, id).await?;
        Ok(Self {
            id,
            stored: record.parts(),
            stored_winner: record.winner()?,
            record,
            new_parts: BTreeMap::new(),
            changed: false,
        })
    }

    /// Checks that the document exists and is not deleted.
    pub(super) fn exists(&self) -> Result<()> {
        match &self.stored_winner {
            None => Err(Error::Missing),
            Some(winner) if winner.deleted => Err(Error::Deleted),
            Some(_) => Ok(()),
        }
    }

    pub(super) fn is_changed(&self) -> bool {
        self.changed
    }

    fn knows(&self, rev: &Rev) -> bool {
        self.record.tree.get(rev).is_some()
    }

    /// Adds the revision of an edit. After an error the document is unchanged.
    pub(super) async fn edit<H: WriteHook>(
        &mut self,
        tx: &Transaction,
        db: &Db,
        row: DbRow,
        edit: &Edit,
        mode: EditMode,
        hook: &H,
    ) -> Result<Rev, H::Error> {
        let addition = match mode {
            EditMode::Replicated => {
                let revisions = history(edit)?;
                if let Some(rev) = revisions.rev().filter(|rev| self.knows(rev)) {
                    return Ok(rev);
                }
                self.replicate(revisions, edit)?
            }
            EditMode::NewEdits => match self.continue_leaf(edit) {
                Err(Error::Conflict) if tx.maybe_committed() => {
                    return Ok(find_own(&self.record.tree, edit).ok_or(Error::Conflict)?);
                }
                addition => addition?,
            },
        };
        let rev =
            (addition.revisions.rev()).ok_or_else(|| Error::corrupt("a new revision has no id"))?;
        let (next, new_parts) = self.add(addition, edit, row.revs_limit);
        if hook.watches(db, self.id) {
            let before = match self.record.tree.winner() {
                Some(node) => Some(self.read(tx, db, node, &BTreeMap::new()).await?),
                None => None,
            };
            let written = (next.tree.get(&rev))
                .ok_or_else(|| Error::corrupt("a new revision is missing from its tree"))?;
            let written = self.read(tx, db, written, &new_parts).await?;
            let winner = (next.tree.winner())
                .ok_or_else(|| Error::corrupt("a revision tree has no leaves"))?;
            let after = self.read(tx, db, winner, &new_parts).await?;
            let (old, new) = (live_leaves(&self.record), live_leaves(&next));
            let change = Change {
                db,
                id: self.id,
                before: before.as_ref(),
                written: &written,
                after: &after,
                adds_conflict: old > 0 && new > old,
            };
            hook.changed(tx, &change).await?;
        }
        self.record = next;
        self.new_parts.extend(new_parts);
        self.changed = true;
        Ok(rev)
    }

    fn replicate(&self, revisions: Revisions, edit: &Edit) -> Result<Addition> {
        // Stubs refer to the attachments of the nearest stored ancestor.
        let generations = (1..=revisions.start).rev();
        let known = generations
            .zip(&revisions.ids)
            .find_map(|(generation, id)| {
                let id = id.clone();
                self.record.tree.get(&Rev { generation, id })?.value
            });
        let known = known.map_or(&[][..], |leaf| &leaf.attachments);
        let attachments = resolve(edit, known, revisions.start)?;
        Ok(Addition {
            revisions,
            attachments,
        })
    }

    fn continue_leaf(&self, edit: &Edit) -> Result<Addition> {
        let tree = &self.record.tree;
        let parent = (tree.edit(edit.rev().as_ref(), edit.deleted)).map_err(|_| Error::Conflict)?;
        let known = (parent.as_ref()).and_then(|parent| tree.get(parent));
        let known = known.and_then(|node| node.value);
        let known = known.map_or(&[][..], |leaf| &leaf.attachments);
        let generation = parent.as_ref().map_or(0, |parent| parent.generation) + 1;
        let attachments = resolve(edit, known, generation)?;
        let rev = new_rev(parent.as_ref(), edit, &attachments);
        let ids = [rev.id].into_iter().chain(parent.map(|parent| parent.id));
        Ok(Addition {
            revisions: Revisions {
                start: generation,
                ids: ids.collect(),
            },
            attachments,
        })
    }

    /// The record with the new revision, and the new parts.
    fn add(
        &self,
        addition: Addition,
        edit: &Edit,
        revs_limit: u32,
    ) -> (Record, BTreeMap<u64, Bytes>) {
        let mut next = self.record.clone();
        let mut new_parts = BTreeMap::new();
        let mut store = |bytes: Bytes| {
            let part = next.next_part;
            next.next_part += 1;
            new_parts.insert(part, bytes);
            part
        };
        let body = edit.stored_body();
        let part = store(Bytes::copy_from_slice(body.as_bytes()));
        let mut attachments = addition.attachments;
        for (row, new) in attachments.iter_mut().zip(&edit.attachments) {
            if let Some(content) = &new.content {
                row.part = store(content.data.clone());
            }
        }
        let merged = next.tree.merge(Path {
            revisions: addition.revisions,
            deleted: edit.deleted,
            value: Leaf {
                part,
                bytes: body.len() as u64,
                attachments,
            },
        });
        debug_assert_ne!(merged, Merged::Known, "the caller has checked");
        next.tree.compact();
        next.tree
            .stem(usize::try_from(revs_limit).unwrap_or(usize::MAX));
        (next, new_parts)
    }

    /// The document of a leaf, whose body may not be stored yet.
    async fn read(
        &self,
        tx: &Transaction,
        db: &Db,
        node: Node<'_, Leaf>,
        new_parts: &BTreeMap<u64, Bytes>,
    ) -> Result<Document> {
        let leaf = leaf(node)?;
        let body = match (new_parts.get(&leaf.part)).or_else(|| self.new_parts.get(&leaf.part)) {
            Some(body) => String::from_utf8(body.to_vec())
                .map_err(|_| Error::corrupt("a body is not text"))?,
            None => record::body(tx, db, self.id, leaf.part).await?,
        };
        Ok(record::document(
            self.id,
            node.rev,
            node.deleted,
            leaf,
            body,
        ))
    }

    pub(super) async fn save(&mut self, tx: &Transaction, db: &Db, incarnation: u32) -> Result<()> {
        let read_version = tx.read_version().await?;
        let own =
            |mark: &Mark| mark.incarnation == incarnation && mark.read_version == read_version;
        // A second write in the same transaction replaces the first one in the feed.
        let ordinal = match self.record.mark {
            Some(mark) if own(&mark) => mark.ordinal,
            before => {
                if before.is_some() {
                    let seq = tx.snapshot().get(&db.keys.seq(self.id)).await?;
                    let seq = seq.ok_or_else(|| Error::corrupt("a document without sequence"))?;
                    tx.clear(&db.keys.change(Seq::decode(&seq)?));
                }
                seq::ordinal(tx)
            }
        };
        let mark = Mark {
            incarnation,
            read_version,
            ordinal,
        };
        let winner = self
            .record
            .winner()?
            .ok_or_else(|| Error::corrupt("a revision tree has no leaves"))?;
        let value = RecordRow {
            mark,
            next_part: self.record.next_part,
            tree: std::mem::take(&mut self.record.tree),
        };
        let record = db.keys.record(self.id);
        chunks::replace(tx, &record, &value.encode(), self.record.chunks);
        self.record.tree = value.tree;
        self.save_parts(tx, db);
        self.save_winner(tx, db, &winner);
        let change = db.keys.change_template(incarnation, ordinal);
        tx.set_versionstamped_key(&change, &winner.encode_change(self.id));
        tx.set_versionstamped_value(&db.keys.seq(self.id), &seq::template(incarnation, ordinal));
        Ok(())
    }

    fn save_parts(&mut self, tx: &Transaction, db: &Db) {
        let parts = self.record.parts();
        let sum = |parts: &BTreeMap<u64, u64>| parts.values().sum::<u64>();
        let delta = sum(&parts).wrapping_sub(sum(&self.stored)).cast_signed();
        add(tx, db, Counter::Bytes, self.id, delta);
        for part in self.stored.keys().filter(|part| !parts.contains_key(part)) {
            tx.clear_range(keys::below(&db.keys.part(self.id, *part)));
        }
        for (part, bytes) in &self.new_parts {
            if parts.contains_key(part) {
                chunks::write(tx, &db.keys.part(self.id, *part), bytes);
            }
        }
    }

    fn save_winner(&self, tx: &Transaction, db: &Db, winner: &Winner) {
        let live = |winner: &Winner| i64::from(!winner.deleted);
        let before = self.stored_winner.as_ref();
        let live_before = before.map_or(0, live);
        let deleted_before = before.map_or(0, |winner| 1 - live(winner));
        add(
            tx,
            db,
            Counter::Documents,
            self.id,
            live(winner) - live_before,
        );
        add(
            tx,
            db,
            Counter::Deleted,
            self.id,
            1 - live(winner) - deleted_before,
        );
        if !winner.deleted {
            tx.set(&db.keys.live(self.id), &winner.encode());
        } else if live_before == 1 {
            tx.clear(&db.keys.live(self.id));
        }
    }
}

fn live_leaves(record: &Record) -> usize {
    let leaves = record
        .tree
        .nodes()
        .filter(|node| node.leaf && !node.deleted);
    leaves.count()
}

fn history(edit: &Edit) -> Result<Revisions> {
    const NO_REV: Invalid = Invalid::Request(
        "When `new_edits: false`, the document needs `_rev` or `_revisions` specified",
    );
    let revisions = edit.history().filter(|revisions| !revisions.ids.is_empty());
    let revisions = revisions.ok_or(NO_REV)?;
    if revisions.start == 0 {
        return Err(INVALID_REV.into());
    }
    Ok(revisions)
}
