//! What a store says about itself, at one key below every layer's: the format of what is stored and
//! the incarnation number.
//!
//! Each backend counts its own versions, so a store that was moved starts again at low versionstamps.
//! Layers that keep keys in the order of versionstamps put the incarnation in front of the stamp,
//! and an import raises it: what was written before the move stays before what is written after.

use bytes::Bytes;

use crate::{Error, Result, Transaction};

/// `0xfe` keys belong to the store itself.
const KEY: &[u8] = b"\xfe/format";
const MAGIC: &[u8] = b"davenport\0";
/// The only format so far.
const FORMAT: u16 = 1;

/// The store's record of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) incarnation: u32,
}

impl Metadata {
    fn encode(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT.to_be_bytes());
        bytes.extend(self.incarnation.to_be_bytes());
        bytes
    }

    fn decode(bytes: &Bytes) -> Result<Self> {
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
        match rest.try_into() {
            Ok(incarnation) => Ok(Self {
                incarnation: u32::from_be_bytes(incarnation),
            }),
            Err(_) => Err(Error::corrupt("the format record has the wrong length")),
        }
    }

    /// Reads the record, or makes it on a store that was never used.
    pub(crate) async fn read_or_create(tx: Transaction) -> Result<Self> {
        if let Some(bytes) = tx.get(KEY).await? {
            return Self::decode(&bytes);
        }
        let metadata = Self { incarnation: 1 };
        metadata.write(&tx);
        Ok(metadata)
    }

    pub(crate) fn write(self, tx: &Transaction) {
        tx.set_own(KEY, &self.encode());
    }
}
