//! The data of a job, in its header or in rows of its own.

use std::num::NonZeroU8;

use bytes::Bytes;

use crate::model::codec::{Reader, Writer};
use crate::model::ids::check;
use crate::{Error, Result};

/// Maximum bytes of a job's data.
pub const DATA_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Data up to this size is stored in the header itself, which saves most jobs a row.
pub(crate) const INLINE_BYTES_MAX: usize = 512;
/// The position of the label in the number that holds it and the slot.
const LABEL_SHIFT: u32 = 32;

/// A job's data, or its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blob {
    /// 0: in the header.
    pub(crate) slot: u32,
    pub(crate) len: u32,
    /// Always set in slot 0; in another one only before it is written.
    pub(crate) bytes: Option<Bytes>,
    /// The label it is counted by, if computed.
    pub(crate) label: Option<NonZeroU8>,
}

impl Blob {
    pub(crate) fn new(slot: u32, bytes: Bytes) -> Self {
        Self {
            slot,
            len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            bytes: Some(bytes),
            label: None,
        }
    }

    pub(super) fn encode(&self, to: &mut Writer) {
        let label = self.label.map_or(0, NonZeroU8::get);
        to.uint(u64::from(label) << LABEL_SHIFT | u64::from(self.slot));
        match &self.bytes {
            Some(bytes) if self.slot == 0 => to.bytes(bytes),
            _ => to.uint(self.len),
        }
    }

    pub(super) fn decode(from: &mut Reader) -> Result<Self> {
        let tag: u64 = from.uint()?;
        let corrupt = |_| Error::corrupt("invalid slot of a job's data");
        let slot = u32::try_from(tag & u64::from(u32::MAX)).map_err(corrupt)?;
        let label = NonZeroU8::new(u8::try_from(tag >> LABEL_SHIFT).map_err(corrupt)?);
        if slot == 0 {
            let blob = Self::new(0, from.bytes()?);
            return Ok(Self { label, ..blob });
        }
        let len: u32 = from.uint()?;
        if len as usize > DATA_BYTES_MAX {
            return Err(Error::corrupt(format!("a job with {len} bytes of data")));
        }
        Ok(Self {
            slot,
            len,
            bytes: None,
            label,
        })
    }
}

/// Rejects data above the limit.
pub(crate) fn check_data(data: Option<&Bytes>) -> Result<()> {
    check("job data", data.map_or(0, Bytes::len), DATA_BYTES_MAX)
}
