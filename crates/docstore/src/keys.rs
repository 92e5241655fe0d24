//! The data model. No other module knows the bytes of keys.
//!
//! Keys are tuples. Table numbers are those of CouchDB 4 where it has the table, and are never reused.
//! Every value except counters begins with a format byte.
//!
//! ```text
//! (1, name)                           = instance, revs_limit        a database
//! (3, instance)                       = name                        deleted, but still has rows
//! (15, instance, 16, chunk)           = _security
//! (15, instance, 17, counter, shard)  = 64-bit little endian, added to
//! (15, instance, 18, id)              = winner                      documents that are not deleted
//! (15, instance, 19, incarnation, stamp) = winner, id               changes: one row for each document
//! (15, instance, 20, id, chunk)       = record: the revision tree with the metadata of its leaves
//! (15, instance, 21, id, part, chunk) = a body or attachment of a leaf
//! (15, instance, 22, id, chunk)       = a _local document
//! (15, instance, 27, id)              = sequence: the document's row in 19
//! (15, instance, 28)                  = sequence of the newest write, for watches
//! ```
//!
//! - `instance` is random for every creation of a database, so a database that is deleted and created
//!   again is a different one, and the rows of the old one can be removed later.
//! - A long value is split into chunks: `chunk` counts from 0.
//! - `stamp` is the versionstamp of the document's last write and its number in that transaction. A write
//!   clears the document's row and sets a new one, so the last row of 19 is the newest write. The
//!   sequence has its own rows (27, 28), because a stamped value cannot be read in its own transaction,
//!   and a transaction may write a document twice.
//! - `part` numbers all bodies and attachments that a document ever had; the record refers to them.
//! - `shard` is a hash of the document's id, so that a counter is not a single hot row.
//! - `winner` is what listings need: the revision, the part of its body, and flags.

use store::KeyRange;
use store::tuple::{
    Bytes, TuplePack, Versionstamp, pack, pack_into, pack_into_with_versionstamp, unpack,
};

use crate::{Error, InstanceId, Seq};

const ALL_DBS: u16 = 1;
const DELETED_DBS: u16 = 3;
const DBS: u16 = 15;

const SECURITY: u16 = 16;
const STATS: u16 = 17;
const ALL_DOCS: u16 = 18;
const CHANGES: u16 = 19;
const RECORDS: u16 = 20;
const PARTS: u16 = 21;
const LOCAL_DOCS: u16 = 22;
const SEQS: u16 = 27;
const UPDATE_SEQ: u16 = 28;

/// Below everything that follows a prefix.
const FIRST: u8 = 0x00;
/// Above everything that follows a prefix, and below the continuation of a string with a NUL in it.
const LAST: u8 = 0xff;

/// The longest document id, with NUL counted twice, so that its keys are within the store's limit.
pub(crate) const ID_BYTES_MAX: usize = 900;

pub(crate) fn database(name: &str) -> Vec<u8> {
    pack(&(ALL_DBS, name))
}

/// The prefix of all names.
pub(crate) fn databases() -> Vec<u8> {
    pack(&(ALL_DBS,))
}

pub(crate) fn deleted(instance: InstanceId) -> Vec<u8> {
    pack(&(DELETED_DBS, Bytes::from(&instance.0[..])))
}

pub(crate) fn all_deleted() -> KeyRange {
    below(&pack(&(DELETED_DBS,)))
}

pub(crate) fn parse_deleted(key: &[u8]) -> Result<InstanceId, Error> {
    let (_, instance): (u16, Bytes<'_>) =
        unpack(key).map_err(|_| Error::corrupt("invalid key of a deleted database"))?;
    let bytes =
        <[u8; 16]>::try_from(&*instance).map_err(|_| Error::corrupt("invalid instance id"))?;
    Ok(InstanceId(bytes))
}

/// The keys of one instance of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    prefix: Vec<u8>,
}

impl Keys {
    pub(crate) fn new(instance: InstanceId) -> Self {
        Self {
            prefix: pack(&(DBS, Bytes::from(&instance.0[..]))),
        }
    }

    pub(crate) fn all(&self) -> KeyRange {
        below(&self.prefix)
    }

    pub(crate) fn security(&self) -> Vec<u8> {
        self.key(&(SECURITY,))
    }

    pub(crate) fn counter(&self, counter: u16, shard: u16) -> Vec<u8> {
        self.key(&(STATS, counter, shard))
    }

    pub(crate) fn counters(&self, counter: u16) -> KeyRange {
        below(&self.key(&(STATS, counter)))
    }

    pub(crate) fn live(&self, id: &str) -> Vec<u8> {
        self.key(&(ALL_DOCS, id))
    }

    /// The prefix of all documents that are not deleted.
    pub(crate) fn all_live(&self) -> Vec<u8> {
        self.key(&(ALL_DOCS,))
    }

    pub(crate) fn change(&self, seq: Seq) -> Vec<u8> {
        self.key(&(CHANGES, seq.incarnation, Versionstamp::from(seq.stamp)))
    }

    /// The changes after a sequence, or all.
    pub(crate) fn changes(&self, after: Option<Seq>) -> KeyRange {
        let mut range = below(&self.key(&(CHANGES,)));
        if let Some(seq) = after {
            let mut begin = self.change(seq);
            begin.push(FIRST);
            range.begin = begin.into();
        }
        range
    }

    /// The key of a change, completed by the commit.
    pub(crate) fn change_template(&self, incarnation: u32, ordinal: u16) -> Vec<u8> {
        let mut key = self.prefix.clone();
        let stamp = Versionstamp::incomplete(ordinal);
        pack_into_with_versionstamp(&(CHANGES, incarnation, stamp), &mut key);
        key
    }

    pub(crate) fn parse_change(&self, key: &[u8]) -> Result<Seq, Error> {
        let corrupt = || Error::corrupt("invalid key of a change");
        let rest = key.strip_prefix(&*self.prefix).ok_or_else(corrupt)?;
        let (_, incarnation, stamp): (u16, u32, Versionstamp) =
            unpack(rest).map_err(|_| corrupt())?;
        let stamp = *stamp.as_bytes();
        Ok(Seq { incarnation, stamp })
    }

    pub(crate) fn record(&self, id: &str) -> Vec<u8> {
        self.key(&(RECORDS, id))
    }

    /// The prefix of all records.
    pub(crate) fn all_records(&self) -> Vec<u8> {
        self.key(&(RECORDS,))
    }

    pub(crate) fn part(&self, id: &str, part: u64) -> Vec<u8> {
        self.key(&(PARTS, id, part))
    }

    pub(crate) fn local(&self, id: &str) -> Vec<u8> {
        self.key(&(LOCAL_DOCS, id))
    }

    pub(crate) fn seq(&self, id: &str) -> Vec<u8> {
        self.key(&(SEQS, id))
    }

    pub(crate) fn update_seq(&self) -> Vec<u8> {
        self.key(&(UPDATE_SEQ,))
    }

    fn key(&self, tuple: &impl TuplePack) -> Vec<u8> {
        let mut key = self.prefix.clone();
        pack_into(tuple, &mut key);
        key
    }
}

/// The keys of tuples that begin with this one and have more elements.
pub(crate) fn below(tuple: &[u8]) -> KeyRange {
    KeyRange::new(with(tuple, FIRST), with(tuple, LAST))
}

/// The key of a chunk of the value at `tuple`.
pub(crate) fn chunk(tuple: &[u8], chunk: usize) -> Vec<u8> {
    let mut key = tuple.to_vec();
    pack_into(&chunk, &mut key);
    key
}

/// The key of `id` in a table, as the bound of a range. `id` may have any length.
pub(crate) fn bound(table: &[u8], id: &str) -> Vec<u8> {
    // Truncated after the longest id: further letters make no difference to the order.
    let mut bytes = 0;
    let end = (id.char_indices()).find(|(_, letter)| {
        let over = bytes > ID_BYTES_MAX;
        bytes += letter.len_utf8() + usize::from(*letter == '\0');
        over
    });
    let mut key = table.to_vec();
    pack_into(&&id[..end.map_or(id.len(), |(at, _)| at)], &mut key);
    key
}

pub(crate) fn parse_id(table: &[u8], key: &[u8]) -> Result<String, Error> {
    let corrupt = || Error::corrupt("invalid key of an id");
    let rest = key.strip_prefix(table).ok_or_else(corrupt)?;
    let (id,): (String,) = unpack(rest).map_err(|_| corrupt())?;
    Ok(id)
}

pub(crate) fn parse_chunk(table: &[u8], key: &[u8]) -> Result<String, Error> {
    let corrupt = || Error::corrupt("invalid key of a chunk");
    let rest = key.strip_prefix(table).ok_or_else(corrupt)?;
    let (id, _): (String, usize) = unpack(rest).map_err(|_| corrupt())?;
    Ok(id)
}

fn with(key: &[u8], byte: u8) -> Vec<u8> {
    let mut longer = Vec::with_capacity(key.len() + 1);
    longer.extend_from_slice(key);
    longer.push(byte);
    longer
}
