//! The tree: an LMDB environment that is written by checkpoints only, each of them synced.
//!
//! It holds the rows, and the mark: the version the rows are at and where the log goes on from
//! there. LMDB copies what it changes, so the tree is whole at every moment, at the newest mark.
//!
//! LMDB has no empty key. A key of nothing but zeros is therefore kept with one zero more, which
//! leaves the order of keys as it is.

use std::borrow::Cow;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use heed::types::Bytes as Raw;
use heed::{CommitOrAbort, Database, Env, EnvOpenOptions, MdbError, RoTxn, RwTxn, WithoutTls};

use super::failure;
use super::layer::Layer;
use super::log::Position;
use super::readers::{Reader, Readers};
use crate::limits::PAGE_BYTES;
use crate::pending::{covered, rest_after};
use crate::{Error, KeyRange, KeyValue, Result};

type Table = Database<'static, Raw, Raw>;

/// Which version the rows of the tree are at, and where the log goes on from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) version: u64,
    pub(super) position: Position,
}

#[derive(Debug)]
pub(super) struct Tree {
    env: Env<WithoutTls>,
    rows: Table,
    marks: Table,
    path: PathBuf,
    map_bytes: u64,
}

/// One state of the tree, kept by read transactions of LMDB that all see it.
pub(super) struct TreeState {
    pub(super) mark: Mark,
    tree: Arc<Tree>,
    id: usize,
    readers: Readers,
}

/// The rows of the first part of some ranges.
#[derive(Debug)]
pub(super) struct Rows {
    /// In the direction of the read.
    pub(super) rows: Vec<KeyValue>,
    /// The part of the whole range that was looked at.
    pub(super) covered: KeyRange,
}

const MARK: &[u8] = b"mark";
/// How many read transactions of LMDB all processes of a store have together.
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
        // SAFETY: nobody else writes to the file: other processes use it through LMDB and its locks,
        // and the registry of open stores keeps this process from opening it twice.
        let env = unsafe { options.open(directory) }.map_err(fail)?;
        env.clear_stale_readers().map_err(fail)?;
        let wtxn = env.write_txn().map_err(fail)?;
        let tables = env.create_databases_and_commit(wtxn, |opener, wtxn| {
            let tables = Tables {
                rows: opener.create_database::<Raw, Raw>(wtxn, Some("rows"))?,
                marks: opener.create_database::<Raw, Raw>(wtxn, Some("marks"))?,
            };
            Ok(CommitOrAbort::<_, ()>::Commit(tables))
        });
        let Some((rows, marks)) = tables.map_err(fail)?.commit() else {
            return Err(Error::open("the tables of the tree could not be made"));
        };
        Ok(Self {
            env,
            rows,
            marks,
            path: directory.to_owned(),
            map_bytes,
        })
    }

    /// The mark, or `None` in a tree that was just made.
    pub(super) fn mark(&self) -> Result<Option<Mark>> {
        let txn = self.env.read_txn().map_err(|error| self.fail(error))?;
        self.mark_in(&txn)
    }

    /// Writes the first mark.
    pub(super) fn create(&self, mark: Mark) -> Result<()> {
        self.update(|txn| self.marks.put(txn, MARK, &mark.encode()))
    }

    /// The newest state of the tree.
    pub(super) fn state(self: &Arc<Self>) -> Result<TreeState> {
        let reader = self.reader()?;
        let mark = self.mark_in(&reader)?;
        Ok(TreeState {
            mark: mark.ok_or_else(|| Error::corrupt("the tree has lost its mark"))?,
            tree: Arc::clone(self),
            id: reader.id(),
            readers: Readers::new(reader),
        })
    }

    /// Moves layers, oldest first, into the tree, which is at `since`, and sets its mark. All of it
    /// or nothing; synced.
    pub(super) fn merge(&self, layers: &[Arc<Layer>], since: u64, mark: Mark) -> Result<()> {
        self.update(|txn| {
            // What makes room comes first, so that a full tree can be cleared.
            for layer in layers {
                let content = layer.read();
                for (range, version) in content.cleared() {
                    if version > since {
                        (self.rows).delete_range(txn, &encode_range(&range).as_bounds())?;
                    }
                }
            }
            for value in [false, true] {
                for (number, layer) in layers.iter().enumerate() {
                    let above = &layers[number + 1..];
                    self.merge_rows(txn, layer, above, since, value)?;
                }
            }
            self.marks.put(txn, MARK, &mark.encode())
        })
    }

    /// Moves the rows of one layer that no layer above decides about: those that have a value, or
    /// those that are deleted.
    fn merge_rows(
        &self,
        txn: &mut RwTxn<'_>,
        layer: &Layer,
        above: &[Arc<Layer>],
        since: u64,
        with_value: bool,
    ) -> heed::Result<()> {
        let content = layer.read();
        for (key, state) in content.rows() {
            if state.value.is_some() != with_value
                || state.version <= since
                || content.is_cleared(key, state.version)
                || above.iter().any(|layer| layer.get(key, u64::MAX).is_some())
            {
                continue;
            }
            match &state.value {
                Some(value) => self.rows.put(txn, &encode(key), value)?,
                None => drop(self.rows.delete(txn, &encode(key))?),
            }
        }
        Ok(())
    }

    /// Frees the places of readers whose processes are gone.
    pub(super) fn clear_stale_readers(&self) -> Result<usize> {
        (self.env.clear_stale_readers()).map_err(|error| self.fail(error))
    }

    fn update(&self, write: impl FnOnce(&mut RwTxn<'_>) -> heed::Result<()>) -> Result<()> {
        let mut txn = self.env.write_txn().map_err(|error| self.fail(error))?;
        write(&mut txn).map_err(|error| self.fail(error))?;
        txn.commit().map_err(|error| self.fail(error))
    }

    fn reader(&self) -> Result<Reader> {
        (self.env.clone().static_read_txn()).map_err(|error| self.fail(error))
    }

    fn mark_in(&self, txn: &RoTxn<'_, WithoutTls>) -> Result<Option<Mark>> {
        let bytes = self
            .marks
            .get(txn, MARK)
            .map_err(|error| self.fail(error))?;
        bytes
            .map(|bytes| {
                Mark::decode(bytes).ok_or_else(|| Error::corrupt("the mark makes no sense"))
            })
            .transpose()
    }

    fn fail(&self, error: heed::Error) -> Error {
        failure::of_tree(&self.path, self.map_bytes, error)
    }
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
        // LMDB knows readers by the process id, and refuses the second one of the same number.
        heed::Error::Io(error) if error.kind() == std::io::ErrorKind::WouldBlock => Error::Open {
            message: format!(
                "another process with the same process id uses {path}: containers that share a \
                     store must share their process ids too (pid: \"service:…\" or \"host\")"
            ),
            source: Some(Arc::new(error)),
        },
        heed::Error::Mdb(
            MdbError::Invalid | MdbError::VersionMismatch | MdbError::Incompatible,
        ) => Error::Open {
            message: format!("{path}/data.mdb is not the tree of a Davenport store"),
            source: Some(Arc::new(error)),
        },
        error => match failure::of_tree(directory, map_bytes, error) {
            Error::Unavailable { message, source } => Error::Open { message, source },
            other => other,
        },
    }
}

impl TreeState {
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.with(|txn| {
            let value = self.tree.rows.get(txn, &encode(key))?;
            Ok(value.map(Bytes::copy_from_slice))
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
            let mut parts = parts.iter();
            while let Some(part) = if reverse {
                parts.next_back()
            } else {
                parts.next()
            } {
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

    /// Adds the rows of one range; true when it stopped because they are enough.
    fn part(
        &self,
        txn: &Reader,
        range: &KeyRange,
        rows: &mut Vec<KeyValue>,
        bytes: &mut usize,
        limit: usize,
        reverse: bool,
    ) -> heed::Result<bool> {
        let range = encode_range(range);
        let mut push = |row: heed::Result<(&[u8], &[u8])>| {
            let (key, value) = row?;
            *bytes += key.len() + value.len();
            rows.push(KeyValue {
                key: decode(key),
                value: Bytes::copy_from_slice(value),
            });
            heed::Result::Ok(*bytes >= PAGE_BYTES || rows.len() >= limit)
        };
        if reverse {
            for row in self.tree.rows.rev_range(txn, &range.as_bounds())? {
                if push(row)? {
                    return Ok(true);
                }
            }
        } else {
            for row in self.tree.rows.range(txn, &range.as_bounds())? {
                if push(row)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Gives the state up, so that LMDB can use its pages again. Later reads find it too old.
    pub(super) fn close(&self) {
        self.readers.close();
    }

    fn with<T>(&self, read: impl FnOnce(&Reader) -> heed::Result<T>) -> Result<T> {
        let another = || (self.tree.reader().ok()).filter(|reader| reader.id() == self.id);
        let reader = self.readers.take(another)?;
        let result = read(&reader);
        self.readers.give_back(reader);
        result.map_err(|error| self.tree.fail(error))
    }
}

impl std::fmt::Debug for TreeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TreeState")
            .field("mark", &self.mark)
            .finish_non_exhaustive()
    }
}

impl Mark {
    fn encode(self) -> Vec<u8> {
        let Position {
            segment,
            offset,
            chain,
            bytes,
        } = self.position;
        [self.version, segment, offset, chain, bytes]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        (bytes.len() == 40).then(|| Self {
            version: bytes.get_u64_le(),
            position: Position {
                segment: bytes.get_u64_le(),
                offset: bytes.get_u64_le(),
                chain: bytes.get_u64_le(),
                bytes: bytes.get_u64_le(),
            },
        })
    }
}

/// A range of keys as the tree has them.
struct TreeRange<'k> {
    begin: Cow<'k, [u8]>,
    end: Cow<'k, [u8]>,
}

impl TreeRange<'_> {
    fn as_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Included(&self.begin), Bound::Excluded(&self.end))
    }
}

fn encode_range(range: &KeyRange) -> TreeRange<'_> {
    TreeRange {
        begin: encode(&range.begin),
        end: encode(&range.end),
    }
}

fn encode(key: &[u8]) -> Cow<'_, [u8]> {
    if key.iter().all(|byte| *byte == 0) {
        Cow::Owned(vec![0; key.len() + 1])
    } else {
        Cow::Borrowed(key)
    }
}

fn decode(key: &[u8]) -> Bytes {
    let zeros = key.iter().all(|byte| *byte == 0);
    Bytes::copy_from_slice(&key[..key.len() - usize::from(zeros && !key.is_empty())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_zeros_keep_their_place() {
        let keys: [&[u8]; 8] = [
            b"",
            b"\0",
            b"\0\0",
            b"\0\0\x01",
            b"\0\x01",
            b"\0a\0",
            b"a",
            b"a\0",
        ];
        for pair in keys.windows(2) {
            assert!(encode(pair[0]) < encode(pair[1]), "{pair:?}");
        }
        for key in keys {
            assert_eq!(decode(&encode(key)), key);
            assert!(!encode(key).is_empty());
        }
    }
}
