//! The store's own record, at a reserved key: the formats of the data and the incarnation number.
//!
//! Rows are in formats from `oldest` to `written`. A build that does not read all of these is refused.
//! Nodes write in format `written`, which is raised once every node reads a newer one: see
//! [`nodes`](crate::nodes).
//!
//! Each backend counts its own versions, so versionstamps start low again when a store is moved.
//! Callers that order keys by versionstamp prefix the stamp with the incarnation, which an import
//! increments: writes from before the move sort before later ones.

use crate::options::Formats;
use crate::{Error, KeyRange, RangeOptions, Result, Transaction};

/// Keys from 0xfe on are reserved for the store.
const KEY: &[u8] = b"\xfe/format";
/// Written to test whether the store accepts writes.
const PROBE: &[u8] = b"\xfe/probe";
const MAGIC: &[u8] = b"davenport\0";

const READY: u8 = 0;
/// An import was started and has not finished.
const IMPORTING: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) incarnation: u32,
    /// The formats of the rows: the newest of them is the one that nodes write.
    pub(crate) formats: Formats,
}

impl Metadata {
    /// Reads the record, or creates it in a new store.
    pub(crate) async fn read_or_create(tx: Transaction, build: Formats) -> Result<Self> {
        match read(&tx, build).await? {
            Some((metadata, READY)) => Ok(metadata),
            Some(_) => Err(Error::open(
                "an import into this store did not finish: run the import again",
            )),
            None => {
                let metadata = Self::new(build);
                write(&tx, metadata, READY);
                Ok(metadata)
            }
        }
    }

    /// The record of a store whose rows `build` will write.
    fn new(build: Formats) -> Self {
        Self {
            incarnation: 1,
            formats: Formats {
                oldest: build.newest,
                newest: build.newest,
            },
        }
    }

    /// Marks an empty store as being imported into; clears one whose import did not finish.
    pub(crate) async fn begin_import(tx: Transaction) -> Result<()> {
        let build = Formats::default();
        let metadata = match read(&tx, build).await? {
            Some((metadata, IMPORTING)) => {
                tx.clear_range(KeyRange::all());
                metadata
            }
            Some((metadata, _)) => {
                let rows = tx.get_range(KeyRange::all(), RangeOptions::limit(1));
                if !rows.collect().await?.is_empty() {
                    return Err(Error::open("the store is not empty: import into a new one"));
                }
                metadata
            }
            None => Self::new(build),
        };
        write(&tx, metadata, IMPORTING);
        Ok(())
    }

    /// Marks the store as ready, with the export's formats and an incarnation above the export's.
    pub(crate) fn end_import(self, tx: &Transaction) {
        write(tx, self, READY);
    }

    /// The record of a store that is open.
    pub(crate) async fn read(tx: &Transaction, build: Formats) -> Result<Self> {
        match read(tx, build).await? {
            Some((metadata, READY)) => Ok(metadata),
            _ => Err(Error::open("the format record of the store is gone")),
        }
    }

    /// From now on rows may be in this format.
    pub(crate) fn raise(self, tx: &Transaction, format: u16) -> Self {
        let mut raised = self;
        raised.formats.newest = format;
        write(tx, raised, READY);
        raised
    }
}

impl Formats {
    /// Refuses rows that are not all in these formats.
    pub(crate) fn check(self, rows: Self) -> Result<()> {
        let Self { oldest, newest } = self;
        if rows.newest > newest {
            return Err(Error::open(format!(
                "the store has format {}, and this version of Davenport supports only {newest}: \
                 run the version that wrote it, or a later one",
                rows.newest
            )));
        }
        if rows.oldest < oldest {
            return Err(Error::open(format!(
                "the store has format {}, and this version of Davenport needs {oldest}: start it on \
                 a new store and copy the documents over (docs/operations.md#older-stores)",
                rows.oldest
            )));
        }
        Ok(())
    }
}

pub(crate) fn touch(tx: &Transaction) {
    tx.set_own(PROBE, &[]);
}

async fn read(tx: &Transaction, build: Formats) -> Result<Option<(Metadata, u8)>> {
    let Some(bytes) = tx.get(KEY).await? else {
        return Ok(None);
    };
    let Some((newest, rest)) = (bytes.strip_prefix(MAGIC)).and_then(|b| b.split_first_chunk())
    else {
        return Err(Error::open(
            "this is not a Davenport store: its format record was written by another program",
        ));
    };
    let newest = u16::from_be_bytes(*newest);
    // Later formats may have longer records, and the first one was shorter.
    let oldest = match rest {
        [_, _, _, _, _, a, b, ..] => u16::from_be_bytes([*a, *b]),
        _ => newest,
    };
    let formats = Formats { oldest, newest };
    build.check(formats)?;
    match rest {
        [a, b, c, d, state, _, _] => {
            let incarnation = u32::from_be_bytes([*a, *b, *c, *d]);
            let metadata = Metadata {
                incarnation,
                formats,
            };
            Ok(Some((metadata, *state)))
        }
        _ => Err(Error::corrupt("the format record has the wrong length")),
    }
}

fn write(tx: &Transaction, metadata: Metadata, state: u8) {
    let mut bytes = MAGIC.to_vec();
    // The first format had its number here, so its builds refuse the later ones.
    bytes.extend(metadata.formats.newest.to_be_bytes());
    bytes.extend(metadata.incarnation.to_be_bytes());
    bytes.push(state);
    bytes.extend(metadata.formats.oldest.to_be_bytes());
    tx.set_own(KEY, &bytes);
}
