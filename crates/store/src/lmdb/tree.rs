//! The tree: an LMDB environment that only checkpoints write, each of them synced.
//!
//! It holds the rows and the mark: their version and the position in the log after it. LMDB is
//! copy-on-write, so the tree is consistent at all times, at the newest mark.
//!
//! Rows have checksums (see [`checksum`](super::checksum)), which every read verifies, and
//! [`Tree::verify`] for all rows together.

mod keys;
mod mark;

use std::collections::BTreeSet;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use heed::types::Bytes as Raw;
use heed::{CommitOrAbort, Database, Env, EnvOpenOptions, RoTxn, RwTxn, WithoutTls};

use self::keys::{decode, encode, encode_range};
pub(super) use self::mark::Mark;
use super::checksum::{self, Damaged, Table, Total};
use super::damage_signal::{self, TreeAccess};
use super::failure;
use super::layer::Layer;
use super::readers::{Reader, Readers};
use crate::limits::{KEY_BYTES_MAX, PAGE_BYTES};
use crate::pending::{covered, rest_after};
use crate::range::directed;
use crate::{Error, KeyRange, KeyValue, Result};

#[derive(Debug)]
pub(super) struct Tree {
    env: Env<WithoutTls>,
    rows: Table,
    marks: Table,
    path: PathBuf,
    map_bytes: u64,
    /// Printed if LMDB crashes on a damaged file.
    damage_message: String,
}

/// One state of the tree, kept by LMDB read transactions.
pub(super) struct TreeState {
    pub(super) mark: Mark,
    tree: Arc<Tree>,
    id: usize,
    readers: Readers,
}

/// How much of the map of the embedded store is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// The largest size of the file.
    pub map_bytes: u64,
    /// The size of the file.
    pub file_bytes: u64,
    /// The pages with rows. The others of the file are free, or kept for readers of earlier states: a
    /// process that is stopped keeps them for as long as that lasts.
    pub used_bytes: u64,
    /// The slots of LMDB's table of readers that were ever in use at once.
    pub readers: u32,
}

/// The rows of the first part of some ranges.
#[derive(Debug)]
pub(super) struct Rows {
    /// In the direction of the read.
    pub(super) rows: Vec<KeyValue>,
    /// The part of the whole range that was read.
    pub(super) covered: KeyRange,
}

/// A row as LMDB has it.
type Found<'t> = heed::Result<(&'t [u8], &'t [u8])>;

const MARK: &[u8] = b"mark";
const LOST_MARK: &str = "has no mark";
/// What part of the map is a reserve for deletions. One copies every page that it touches, and a
/// checkpoint of removals may touch many.
const RESERVE_PART: u64 = 8;
/// The most read transactions of all processes of a store.
const READERS_MAX: u32 = 2048;

impl Tree {
    #[expect(unsafe_code, reason = "LMDB maps its file")]
    pub(super) fn open(directory: &Path, map_bytes: u64) -> Result<Self> {
        let fail = |error| open_error(directory, map_bytes, error);
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        let map_size = usize::try_from(map_bytes).map_err(|_| {
            Error::open("map_size is larger than the address space of this machine")
        })?;
        (options.map_size(map_size))
            .max_readers(READERS_MAX)
            .max_dbs(2);
        damage_signal::install_handlers();
        let damage_message = failure::damage_message(directory);
        let access = TreeAccess::enter(&damage_message);
        // SAFETY: other processes use the file through LMDB and its locks, and the registry of open
        // stores keeps this process from opening it twice.
        let env = unsafe { options.open(directory) }.map_err(fail)?;
        env.clear_stale_readers().map_err(fail)?;
        let wtxn = env.write_txn().map_err(fail)?;
        let tables = env.create_databases_and_commit(wtxn, |opener, wtxn| {
            let rows = opener.open_database::<Raw, Raw>(wtxn, Some("rows"))?;
            let marks = opener.open_database::<Raw, Raw>(wtxn, Some("marks"))?;
            Ok(CommitOrAbort::Commit(match (rows, marks) {
                (Some(rows), Some(marks)) => Tables { rows, marks },
                (None, None) => Tables {
                    rows: opener.create_database(wtxn, Some("rows"))?,
                    marks: opener.create_database(wtxn, Some("marks"))?,
                },
                // They are created together.
                _ => return Ok(CommitOrAbort::Abort(())),
            }))
        });
        let Some((rows, marks)) = tables.map_err(fail)?.commit() else {
            return Err(failure::damaged(directory, "is missing one of its tables"));
        };
        drop(access);
        Ok(Self {
            env,
            rows,
            marks,
            path: directory.to_owned(),
            map_bytes,
            damage_message,
        })
    }

    /// The mark; `None` in a new tree.
    pub(super) fn mark(&self) -> Result<Option<Mark>> {
        let _access = self.enter();
        let txn = self.env.read_txn().map_err(|error| self.fail(error))?;
        Ok(self.mark_in(&txn)?.map(|(mark, _)| mark))
    }

    /// Writes the first mark.
    pub(super) fn create(&self, mark: Mark) -> Result<()> {
        self.update(|txn| self.put_mark(txn, mark, Total::default()))
    }

    /// Reads all rows and verifies their checksums, their order and the sum of the checksums.
    pub(super) fn verify(&self) -> Result<()> {
        let _access = self.enter();
        let fail = |error| self.fail(error);
        let txn = self.env.read_txn().map_err(fail)?;
        let mut found = Total::default();
        let mut last: Option<&[u8]> = None;
        for row in self.rows.iter(&txn).map_err(fail)? {
            let (key, stored) = row.map_err(fail)?;
            if last.is_some_and(|last| last >= key) || checksum::open(key, stored).is_err() {
                return Err(self.damaged(key));
            }
            found.add(stored);
            last = Some(key);
        }
        match self.mark_in(&txn)? {
            Some((_, total)) if total != found => Err(failure::damaged(
                &self.path,
                "is missing rows, or has older versions of them",
            )),
            _ => Ok(()),
        }
    }

    /// The newest state of the tree.
    pub(super) fn state(self: &Arc<Self>) -> Result<TreeState> {
        let access = self.enter();
        let reader = self.reader()?;
        let mark = self.mark_in(&reader)?;
        drop(access);
        let Some((mark, _)) = mark else {
            return Err(failure::damaged(&self.path, LOST_MARK));
        };
        Ok(TreeState {
            mark,
            tree: Arc::clone(self),
            id: reader.id(),
            readers: Readers::new(reader),
        })
    }

    /// Moves layers, oldest first, into the tree, which is at version `since`, and sets its mark, in one
    /// synced transaction.
    pub(super) fn merge(&self, layers: &[Arc<Layer>], since: u64, mark: Mark) -> Result<()> {
        let fail = |error| self.fail(error);
        self.update(|txn| {
            let old = self.mark_in(txn)?;
            let (_, mut total) = old.ok_or_else(|| failure::damaged(&self.path, LOST_MARK))?;
            // Deletions free pages and come first, so that a full tree can be cleared.
            for layer in layers {
                let content = layer.read();
                for (range, version) in content.cleared() {
                    if version > since {
                        let range = encode_range(&range);
                        (total.delete(&self.rows, txn, &range.as_bounds())).map_err(fail)?;
                    }
                }
            }
            // In the order of their keys: a page that becomes empty is used for the copy of the next one.
            let mut deleted = BTreeSet::new();
            for (number, layer) in layers.iter().enumerate() {
                newest(layer, &layers[number + 1..], since, |key, value| {
                    if value.is_none() {
                        deleted.insert(Bytes::copy_from_slice(key));
                    }
                    Ok(())
                })
                .map_err(fail)?;
            }
            for key in deleted {
                let key = encode(&key);
                let key = Bound::Included(&*key);
                (total.delete(&self.rows, txn, &(key, key))).map_err(fail)?;
            }
            for (number, layer) in layers.iter().enumerate() {
                newest(
                    layer,
                    &layers[number + 1..],
                    since,
                    |key, value| match value {
                        Some(value) => total.put(&self.rows, txn, &encode(key), value),
                        None => Ok(()),
                    },
                )
                .map_err(fail)?;
            }
            self.put_mark(txn, mark, total)
        })
    }

    /// How much of the map is in use.
    pub(super) fn space(&self) -> Result<Space> {
        let _access = self.enter();
        let txn = self.env.read_txn().map_err(|error| self.fail(error))?;
        let rows = (self.rows.stat(&txn)).map_err(|error| self.fail(error))?;
        let file = std::fs::metadata(self.path.join("data.mdb"));
        let file = file.map_err(|error| self.fail(heed::Error::Io(error)))?;
        Ok(Space {
            map_bytes: self.map_bytes,
            file_bytes: file.len(),
            used_bytes: rows.non_free_page_size() as u64,
            readers: self.env.info().number_of_readers,
        })
    }

    /// False when only the reserve is left: LMDB changes copies of pages, so deleting takes some, too.
    pub(super) fn has_room(&self) -> Result<bool> {
        let reserve = self.map_bytes / RESERVE_PART;
        Ok(self.space()?.used_bytes + reserve <= self.map_bytes)
    }

    /// Frees the reader slots of dead processes.
    pub(super) fn clear_stale_readers(&self) -> Result<usize> {
        (self.env.clear_stale_readers()).map_err(|error| self.fail(error))
    }

    fn update(&self, write: impl FnOnce(&mut RwTxn<'_>) -> Result<()>) -> Result<()> {
        let _access = self.enter();
        let mut txn = self.env.write_txn().map_err(|error| self.fail(error))?;
        write(&mut txn)?;
        txn.commit().map_err(|error| self.fail(error))
    }

    fn reader(&self) -> Result<Reader> {
        (self.env.clone().static_read_txn()).map_err(|error| self.fail(error))
    }

    fn mark_in(&self, txn: &RoTxn<'_>) -> Result<Option<(Mark, Total)>> {
        let stored = (self.marks.get(txn, MARK)).map_err(|error| self.fail(error))?;
        let decode = |stored| Mark::decode(checksum::open(MARK, stored).ok()?);
        let damaged = || failure::damaged(&self.path, "has a malformed mark");
        stored
            .map(|stored| decode(stored).ok_or_else(damaged))
            .transpose()
    }

    fn put_mark(&self, txn: &mut RwTxn<'_>, mark: Mark, total: Total) -> Result<()> {
        let stored = checksum::seal(MARK, mark.encode(total));
        (self.marks.put(txn, MARK, &stored)).map_err(|error| self.fail(error))
    }

    fn enter(&self) -> TreeAccess<'_> {
        TreeAccess::enter(&self.damage_message)
    }

    fn damaged(&self, key: &[u8]) -> Error {
        // A damaged key can have any length.
        let shown = &key[..key.len().min(KEY_BYTES_MAX)];
        let what = format!("is damaged at key \"{}\"", shown.escape_ascii());
        failure::damaged(&self.path, &what)
    }

    fn fail(&self, error: heed::Error) -> Error {
        failure::tree_error(&self.path, self.map_bytes, error)
    }
}

/// The rows of one layer, with their values or deleted, that no layer above overrides.
fn newest(
    layer: &Layer,
    above: &[Arc<Layer>],
    since: u64,
    mut each: impl FnMut(&[u8], Option<&Bytes>) -> heed::Result<()>,
) -> heed::Result<()> {
    let content = layer.read();
    for (key, state) in content.rows() {
        let overridden =
            state.version <= since || above.iter().any(|layer| layer.get(key, u64::MAX).is_some());
        if !overridden {
            each(key, state.value.as_ref())?;
        }
    }
    Ok(())
}

struct Tables<'e> {
    rows: Database<'e, Raw, Raw>,
    marks: Database<'e, Raw, Raw>,
}

impl heed::OnCommit for Tables<'_> {
    type Committed = (Table, Table);

    fn on_commit(self, token: &heed::CommitToken) -> Self::Committed {
        (self.rows.on_commit(token), self.marks.on_commit(token))
    }
}

fn open_error(directory: &Path, map_bytes: u64, error: heed::Error) -> Error {
    let path = directory.display();
    match error {
        // LMDB identifies readers by process id and rejects a second process with the same id.
        heed::Error::Io(error) if error.kind() == std::io::ErrorKind::WouldBlock => Error::Open {
            message: format!(
                "another process with the same process id uses {path}: containers that share a \
                     store must share their process ids too (pid: \"service:…\" or \"host\")"
            ),
            source: Some(Arc::new(error)),
        },
        error => match failure::tree_error(directory, map_bytes, error) {
            Error::Unavailable { message, source } => Error::Open { message, source },
            other => other,
        },
    }
}

impl TreeState {
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let key = &*encode(key);
        self.with(|txn| {
            let stored = self.tree.rows.get(txn, key);
            let stored = stored.map_err(|error| self.tree.fail(error))?;
            let value = stored.map(|stored| checksum::open(key, stored)).transpose();
            let value = value.map_err(|Damaged| self.tree.damaged(key))?;
            Ok(value.map(Bytes::copy_from_slice))
        })
    }

    /// Those of these keys that it does not have.
    pub(super) fn without(&self, mut keys: Vec<Bytes>) -> Result<Vec<Bytes>> {
        self.with(|txn| {
            let mut gone = Vec::with_capacity(keys.len());
            // In order, neighbours are on the same page.
            keys.sort_unstable();
            for key in keys {
                let stored = (self.tree.rows).get(txn, &encode(&key));
                if stored.map_err(|error| self.tree.fail(error))?.is_none() {
                    gone.push(key);
                }
            }
            Ok(gone)
        })
    }

    /// The first rows of `range` that lie in `parts`, disjoint and in key order.
    pub(super) fn rows(
        &self,
        range: &KeyRange,
        parts: &[KeyRange],
        limit: usize,
        reverse: bool,
    ) -> Result<Rows> {
        self.with(|txn| {
            let mut found = Rows {
                rows: Vec::new(),
                covered: range.clone(),
            };
            let mut bytes = 0;
            for part in directed(parts.iter(), reverse) {
                let more = self.part(txn, part, &mut found.rows, &mut bytes, limit, reverse)?;
                if let (true, Some(last)) = (more, found.rows.last()) {
                    let rest = rest_after(range, &last.key, reverse);
                    found.covered = covered(range, rest.as_ref(), reverse);
                    break;
                }
            }
            Ok(found)
        })
    }

    /// Adds the rows of one range; true if it stopped at a limit.
    fn part(
        &self,
        txn: &Reader,
        range: &KeyRange,
        rows: &mut Vec<KeyValue>,
        bytes: &mut usize,
        limit: usize,
        reverse: bool,
    ) -> Result<bool> {
        let range = encode_range(range);
        let fail = |error| self.tree.fail(error);
        let bounds = range.as_bounds();
        let found: Box<dyn Iterator<Item = Found<'_>>> = if reverse {
            Box::new(self.tree.rows.rev_range(txn, &bounds).map_err(fail)?)
        } else {
            Box::new(self.tree.rows.range(txn, &bounds).map_err(fail)?)
        };
        // In a damaged tree a cursor may go anywhere, or in circles.
        let mut expected = bounds;
        for row in found {
            let (key, stored) = row.map_err(fail)?;
            let value = (checksum::open(key, stored).ok())
                .filter(|_| RangeBounds::<[u8]>::contains(&expected, key))
                .ok_or_else(|| self.tree.damaged(key))?;
            *bytes += key.len() + value.len();
            rows.push(KeyValue {
                key: decode(key),
                value: Bytes::copy_from_slice(value),
            });
            if *bytes >= PAGE_BYTES || rows.len() >= limit {
                return Ok(true);
            }
            if reverse {
                expected.1 = Bound::Excluded(key);
            } else {
                expected.0 = Bound::Excluded(key);
            }
        }
        Ok(false)
    }

    /// Ends the read transactions, so that LMDB can reuse the pages. Later reads fail as too old.
    pub(super) fn close(&self) {
        self.readers.close();
    }

    fn with<T>(&self, read: impl FnOnce(&Reader) -> Result<T>) -> Result<T> {
        let _access = self.tree.enter();
        let another = || (self.tree.reader().ok()).filter(|reader| reader.id() == self.id);
        let reader = self.readers.take(another)?;
        let result = read(&reader);
        self.readers.give_back(reader);
        result
    }
}

impl std::fmt::Debug for TreeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TreeState")
            .field("mark", &self.mark)
            .finish_non_exhaustive()
    }
}
