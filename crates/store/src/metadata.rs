//! What a store says about itself, at one key below every layer's: the format of what is stored and
//! the incarnation number.
//!
//! Each backend counts its own versions, so a store that was moved starts again at low versionstamps.
//! Layers that keep keys in the order of versionstamps put the incarnation in front of the stamp,
//! and an import raises it: what was written before the move stays before what is written after.

use crate::{Error, KeyRange, RangeOptions, Result, Transaction};

/// `0xfe` keys belong to the store itself.
const KEY: &[u8] = b"\xfe/format";
/// Written to find out whether anything can be: its value says nothing.
const PROBE: &[u8] = b"\xfe/probe";
const MAGIC: &[u8] = b"davenport\0";
/// The only format so far.
const FORMAT: u16 = 1;

const READY: u8 = 0;
/// An import has begun and not ended.
const IMPORTING: u8 = 1;

/// The store's record of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) incarnation: u32,
}

impl Metadata {
    /// Reads the record, or makes it on a store that was never used.
    pub(crate) async fn read_or_create(tx: Transaction) -> Result<Self> {
        match read(&tx).await? {
            Some((metadata, READY)) => Ok(metadata),
            Some(_) => Err(Error::open(
                "an import into this store broke off: run the import again",
            )),
            None => {
                let metadata = Self { incarnation: 1 };
                write(&tx, metadata, READY);
                Ok(metadata)
            }
        }
    }

    /// Marks an empty store as being filled; empties one whose import broke off.
    pub(crate) async fn begin_import(tx: Transaction) -> Result<()> {
        let metadata = match read(&tx).await? {
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
            None => Self { incarnation: 1 },
        };
        write(&tx, metadata, IMPORTING);
        Ok(())
    }

    /// Opens the store for use, with an incarnation above the export's.
    pub(crate) fn end_import(tx: &Transaction, incarnation: u32) {
        write(tx, Self { incarnation }, READY);
    }
}

/// Writes what makes no difference.
pub(crate) fn touch(tx: &Transaction) {
    tx.set_own(PROBE, &[]);
}

async fn read(tx: &Transaction) -> Result<Option<(Metadata, u8)>> {
    let Some(bytes) = tx.get(KEY).await? else {
        return Ok(None);
    };
    let Some((format, rest)) = (bytes.strip_prefix(MAGIC)).and_then(|b| b.split_first_chunk())
    else {
        return Err(Error::open(
            "this is not a Davenport store: its format record is somebody else's",
        ));
    };
    let format = u16::from_be_bytes(*format);
    if format != FORMAT {
        return Err(Error::open(format!(
            "the store has format {format}, and this version of Davenport knows only {FORMAT}: \
             run the version that wrote it"
        )));
    }
    match rest {
        [a, b, c, d, state] => {
            let incarnation = u32::from_be_bytes([*a, *b, *c, *d]);
            Ok(Some((Metadata { incarnation }, *state)))
        }
        _ => Err(Error::corrupt("the format record has the wrong length")),
    }
}

fn write(tx: &Transaction, metadata: Metadata, state: u8) {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(FORMAT.to_be_bytes());
    bytes.extend(metadata.incarnation.to_be_bytes());
    bytes.push(state);
    tx.set_own(KEY, &bytes);
}
