//! The records of the redo log. Each holds the commits of one group.
//!
//! ```text
//!  0  checksum of all that follows         u64
//!  8  magic                                u32
//! 12  bytes of the payload                 u32
//! 16  version of the last commit           u64
//! 24  commits in the payload               u32   0: the log continues in the next segment
//! 28  reserved                             u32
//! 32  checksum of the record before        u64
//! 40  version known durable when written   u64
//! 48  payload, padded to 8 bytes
//! ```
//! Numbers are little endian. A record contains the checksum of the one before it, so records of an
//! earlier use of the file never continue the log.
//!
//! A payload is, for each commit, the number of its operations (u32) and the operations: a tag (u8),
//! the key or the beginning of the range, then the value or the end of the range, if any; each as its
//! length (u32) and its bytes. Additions are stored as their sums, and stamps are filled in.

use bytes::{Buf, Bytes};
use twox_hash::XxHash3_64;

use crate::KeyRange;

/// One write, as it is replayed from the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Op {
    Put {
        key: Bytes,
        value: Bytes,
    },
    Clear {
        key: Bytes,
    },
    ClearRange {
        range: KeyRange,
    },
    /// Changes nothing, but conflicts with reads of the range.
    Touch {
        range: KeyRange,
    },
}

/// The commits of one group, oldest first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) header: Header,
    pub(super) commits: Vec<Vec<Op>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) checksum: u64,
    pub(super) payload_bytes: u32,
    /// The version of the last commit.
    pub(super) version: u64,
    pub(super) commits: u32,
    /// The checksum of the record before.
    pub(super) previous: u64,
    /// The durable version when the record was written.
    pub(super) durable: u64,
}

pub(super) const HEADER_BYTES: usize = 48;
const MAGIC: u32 = u32::from_le_bytes(*b"DVRL");

impl Header {
    /// Parses a header without verifying the checksum.
    pub(super) fn parse(mut bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEADER_BYTES {
            return None;
        }
        let checksum = bytes.get_u64_le();
        if bytes.get_u32_le() != MAGIC {
            return None;
        }
        let payload_bytes = bytes.get_u32_le();
        let version = bytes.get_u64_le();
        let commits = bytes.get_u32_le();
        let _reserved = bytes.get_u32_le();
        Some(Self {
            checksum,
            payload_bytes,
            version,
            commits,
            previous: bytes.get_u64_le(),
            durable: bytes.get_u64_le(),
        })
    }

    /// The size of the whole record.
    pub(super) fn record_bytes(&self) -> usize {
        HEADER_BYTES + (self.payload_bytes as usize).next_multiple_of(8)
    }

    /// True for the last record of a segment.
    pub(super) fn ends_segment(&self) -> bool {
        self.commits == 0
    }

    /// True if `record`, which begins with this header, is complete and undamaged.
    pub(super) fn matches(&self, record: &[u8]) -> bool {
        record.len() == self.record_bytes() && XxHash3_64::oneshot(&record[8..]) == self.checksum
    }
}

/// A record under construction.
#[derive(Debug)]
pub(super) struct RecordWriter {
    bytes: Vec<u8>,
    commits: u32,
}

impl RecordWriter {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; HEADER_BYTES],
            commits: 0,
        }
    }

    pub(super) fn push(&mut self, ops: &[Op]) {
        self.commits += 1;
        self.bytes.extend(length(ops.len()).to_le_bytes());
        for op in ops {
            let (tag, first, second): (u8, &Bytes, Option<&Bytes>) = match op {
                Op::Put { key, value } => (1, key, Some(value)),
                Op::Clear { key } => (2, key, None),
                Op::ClearRange { range } => (3, &range.begin, Some(&range.end)),
                Op::Touch { range } => (4, &range.begin, Some(&range.end)),
            };
            self.bytes.push(tag);
            for part in std::iter::once(first).chain(second) {
                self.bytes.extend(length(part.len()).to_le_bytes());
                self.bytes.extend_from_slice(part);
            }
        }
    }

    /// The size of the record.
    pub(super) fn record_bytes(&self) -> usize {
        self.bytes.len().next_multiple_of(8)
    }

    /// Completes the record. Returns its bytes and its checksum, for the next record.
    pub(super) fn finish(mut self, version: u64, previous: u64, durable: u64) -> (Vec<u8>, u64) {
        let payload = length(self.bytes.len() - HEADER_BYTES);
        self.bytes.resize(self.record_bytes(), 0);
        let mut header = Vec::with_capacity(HEADER_BYTES - 8);
        header.extend(MAGIC.to_le_bytes());
        header.extend(payload.to_le_bytes());
        header.extend(version.to_le_bytes());
        header.extend(self.commits.to_le_bytes());
        header.extend([0; 4]);
        header.extend(previous.to_le_bytes());
        header.extend(durable.to_le_bytes());
        self.bytes[8..HEADER_BYTES].copy_from_slice(&header);
        let checksum = XxHash3_64::oneshot(&self.bytes[8..]);
        self.bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        (self.bytes, checksum)
    }
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a transaction has at most ten million bytes")
}

impl Record {
    /// Parses the commits of a record with a correct checksum. `None` if they are malformed: another
    /// program wrote them.
    pub(super) fn parse(header: Header, record: &[u8]) -> Option<Self> {
        let end = HEADER_BYTES + header.payload_bytes as usize;
        let mut payload = Bytes::copy_from_slice(record.get(HEADER_BYTES..end)?);
        let mut commits = Vec::with_capacity(header.commits.min(4096) as usize);
        for _ in 0..header.commits {
            let count = payload.try_get_u32_le().ok()?;
            let mut ops = Vec::with_capacity(count.min(4096) as usize);
            for _ in 0..count {
                ops.push(op(&mut payload)?);
            }
            commits.push(ops);
        }
        payload.is_empty().then_some(Self { header, commits })
    }

    /// The version of the first commit.
    pub(super) fn first_version(&self) -> u64 {
        let before = self.header.version.checked_sub(self.commits.len() as u64);
        before.map_or(0, |before| before.saturating_add(1))
    }
}

fn op(payload: &mut Bytes) -> Option<Op> {
    Some(match payload.try_get_u8().ok()? {
        1 => Op::Put {
            key: part(payload)?,
            value: part(payload)?,
        },
        2 => Op::Clear {
            key: part(payload)?,
        },
        3 => Op::ClearRange {
            range: range(payload)?,
        },
        4 => Op::Touch {
            range: range(payload)?,
        },
        _ => return None,
    })
}

fn range(payload: &mut Bytes) -> Option<KeyRange> {
    let range = KeyRange::new(part(payload)?, part(payload)?);
    range.check().ok()?;
    Some(range)
}

fn part(payload: &mut Bytes) -> Option<Bytes> {
    let bytes = payload.try_get_u32_le().ok()? as usize;
    (bytes <= payload.len()).then(|| payload.split_to(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commits() -> Vec<Vec<Op>> {
        vec![
            vec![
                Op::Put {
                    key: "a".into(),
                    value: "one".into(),
                },
                Op::Clear { key: "".into() },
            ],
            vec![
                Op::ClearRange {
                    range: KeyRange::new("b", "c"),
                },
                Op::Touch {
                    range: KeyRange::key(b"t"),
                },
            ],
        ]
    }

    fn written() -> (Vec<u8>, u64) {
        let mut writer = RecordWriter::new();
        for ops in &commits() {
            writer.push(ops);
        }
        writer.finish(7, 11, 5)
    }

    #[test]
    fn a_record_reads_back() {
        let (bytes, checksum) = written();
        let header = Header::parse(&bytes).expect("a header");
        assert!(header.matches(&bytes));
        assert_eq!(header.checksum, checksum);
        assert_eq!((header.previous, header.durable), (11, 5));
        let record = Record::parse(header, &bytes).expect("a record");
        assert_eq!(record.commits, commits());
        assert_eq!((record.first_version(), record.header.version), (6, 7));
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let (bytes, _) = written();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let whole = Header::parse(&flipped).is_some_and(|header| header.matches(&flipped));
            assert!(!whole, "bit {bit}");
        }
    }

    #[test]
    fn a_cut_payload_is_refused() {
        let (bytes, _) = written();
        let header = Header::parse(&bytes).expect("a header");
        for payload_bytes in 0..header.payload_bytes {
            let cut = Header {
                payload_bytes,
                ..header
            };
            assert_eq!(Record::parse(cut, &bytes), None, "{payload_bytes} bytes");
        }
    }
}
