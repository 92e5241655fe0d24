//! The store's own record, at a reserved key: the format of the data and the incarnation number.
//!
//! Each backend counts its own versions, so versionstamps start low again when a store is moved.
//! Callers that order keys by versionstamp prefix the stamp with the incarnation, which an import
//! increments: writes from before the move sort before later ones.

use crate::{Error, KeyRange, RangeOptions, Result, Transaction};

/// Keys from 0xfe on are reserved for the store.
const KEY: &[u8] = b"\xfe/format";
/// Written to test whether the store accepts writes.
const PROBE: &[u8] = b"\xfe/probe";
const MAGIC: &[u8] = b"davenport\0";
const FORMAT: u16 = 1;

const READY: u8 = 0;
/// An import was started and has not finished.
const IMPORTING: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) incarnation: u32,
}

impl Metadata {
    /// Reads the record, or creates it in a new store.
    pub(crate) async fn read_or_create(tx: Transaction) -> Result<Self> {
        match read(&tx).await? {
            Some((metadata, READY)) => Ok(metadata),
            Some(_) => Err(Error::open(
                "an import into this store did not finish: run the import again",
            )),
            None => {
                let metadata = Self { incarnation: 1 };
                write(&tx, metadata, READY);
                Ok(metadata)
            }
        }
    }

    /// Marks an empty store as being imported into; clears one whose import did not finish.
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

    /// Marks the store as ready, with an incarnation above the export's.
    pub(crate) fn end_import(tx: &Transaction, incarnation: u32) {
        write(tx, Self { incarnation }, READY);
    }
}

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
            "this is not a Davenport store: its format record was written by another program",
        ));
    };
    let format = u16::from_be_bytes(*format);
    if format != FORMAT {
        return Err(Error::open(format!(
            "the store has format {format}, and this version of Davenport supports only {FORMAT}: \
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
