//! Checksums of the rows of the tree, since LMDB has none: reading a byte that the disk has changed is
//! an error.
//!
//! A value is followed by a checksum of the key and the value. The sum of all checksums is stored next
//! to the mark, so a scan of the whole tree also detects missing rows, and old rows that a damaged page
//! points to.

use std::io::Write;

use heed::types::Bytes as Raw;
use heed::{Database, RwTxn};
use twox_hash::XxHash3_64;

use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

pub(super) type Table = Database<'static, Raw, Raw>;

const BYTES: usize = size_of::<u64>();

/// A stored row does not match its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damaged;

/// The sum of the checksums of all rows of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Total(pub(super) u64);

fn row_checksum(key: &[u8], value: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(key), value)
}

/// Appends its checksum to a value.
pub(super) fn seal(key: &[u8], mut value: Vec<u8>) -> Vec<u8> {
    let checksum = row_checksum(key, &value);
    value.extend(checksum.to_le_bytes());
    value
}

/// The value of a stored row, if it matches its checksum.
pub(super) fn open<'v>(key: &[u8], stored: &'v [u8]) -> Result<&'v [u8], Damaged> {
    // With a damaged length, computing the checksum could read beyond the end of the file.
    if stored.len() > VALUE_BYTES_MAX + BYTES || key.len() > KEY_BYTES_MAX + 1 {
        return Err(Damaged);
    }
    let (value, checksum) = stored.split_last_chunk::<BYTES>().ok_or(Damaged)?;
    if u64::from_le_bytes(*checksum) != row_checksum(key, value) {
        return Err(Damaged);
    }
    Ok(value)
}

impl Total {
    pub(super) fn add(&mut self, stored: &[u8]) {
        self.0 = self.0.wrapping_add(checksum_in(stored));
    }

    fn remove(&mut self, stored: &[u8]) {
        self.0 = self.0.wrapping_sub(checksum_in(stored));
    }

    /// Puts a row into a table, replacing one with the same key.
    pub(super) fn put(
        &mut self,
        rows: &Table,
        txn: &mut RwTxn<'_>,
        key: &[u8],
        value: &[u8],
    ) -> heed::Result<()> {
        let checksum = row_checksum(key, value);
        let size = value.len() + BYTES;
        let write = |space: &mut heed::ReservedSpace<'_>| {
            space.write_all(value)?;
            space.write_all(&checksum.to_le_bytes())
        };
        // Most rows are new, and this writes them with one lookup.
        if let Some(old) = rows.get_or_put_reserved(txn, key, size, write)? {
            self.remove(old);
            rows.put_reserved(txn, key, size, write)?;
        }
        self.0 = self.0.wrapping_add(checksum);
        Ok(())
    }

    /// Deletes the rows of a range from a table.
    #[expect(
        unsafe_code,
        reason = "heed cannot know what is borrowed from the tree"
    )]
    pub(super) fn delete(
        &mut self,
        rows: &Table,
        txn: &mut RwTxn<'_>,
        range: &(std::ops::Bound<&[u8]>, std::ops::Bound<&[u8]>),
    ) -> heed::Result<()> {
        let mut rows = rows.range_mut(txn, range)?;
        while let Some(row) = rows.next() {
            let (_, stored) = row?;
            self.remove(stored);
            // SAFETY: nothing that was read from the tree is used after this.
            unsafe { rows.del_current()? };
        }
        Ok(())
    }
}

fn checksum_in(stored: &[u8]) -> u64 {
    let checksum = stored.last_chunk().copied();
    checksum.map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_key_and_value_is_seen() {
        let (key, value) = (b"a key".to_vec(), b"a value".to_vec());
        let stored = seal(&key, value.clone());
        assert_eq!(open(&key, &stored), Ok(&value[..]));
        for bit in 0..stored.len() * 8 {
            let mut flipped = stored.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&key, &flipped), Err(Damaged), "bit {bit}");
        }
        for bit in 0..key.len() * 8 {
            let mut flipped = key.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&flipped, &stored), Err(Damaged), "bit {bit}");
        }
        for length in 0..stored.len() {
            assert_eq!(open(&key, &stored[..length]), Err(Damaged), "{length}");
        }
    }

    #[test]
    fn the_largest_row_fits() {
        let (key, value) = (vec![0; KEY_BYTES_MAX + 1], vec![7; VALUE_BYTES_MAX]);
        let stored = seal(&key, value.clone());
        assert_eq!(open(&key, &stored), Ok(&value[..]));
        let longer = seal(&key, vec![7; VALUE_BYTES_MAX + 1]);
        assert_eq!(open(&key, &longer), Err(Damaged));
    }
}
