//! How far the tree is.

use bytes::Buf;

use crate::lmdb::checksum::Total;
use crate::lmdb::log::Position;

/// The version of the rows in the tree, and the position in the log after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) version: u64,
    pub(crate) position: Position,
}

impl Mark {
    pub(super) fn encode(self, total: Total) -> Vec<u8> {
        let Position {
            segment,
            offset,
            chain,
            bytes,
        } = self.position;
        [self.version, segment, offset, chain, bytes, total.0]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    pub(super) fn decode(mut bytes: &[u8]) -> Option<(Self, Total)> {
        (bytes.len() == 48).then(|| {
            let version = bytes.get_u64_le();
            let position = Position {
                segment: bytes.get_u64_le(),
                offset: bytes.get_u64_le(),
                chain: bytes.get_u64_le(),
                bytes: bytes.get_u64_le(),
            };
            (Self { version, position }, Total(bytes.get_u64_le()))
        })
    }
}
