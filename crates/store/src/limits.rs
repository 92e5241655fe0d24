//! `FoundationDB`'s limits, the same on every backend.
//!
//! The size of a transaction is computed here and never less than `FoundationDB` computes it, so a
//! transaction that fits one backend fits all.

use std::time::Duration;

use crate::{Error, Limit};

/// The longest key. `FoundationDB` would take 10,000 bytes; LMDB sets ours.
pub const KEY_BYTES_MAX: usize = 1_024;
/// The longest value.
pub const VALUE_BYTES_MAX: usize = 100_000;
/// The largest transaction: its writes and its conflict ranges.
pub const TRANSACTION_BYTES_MAX: usize = 10_000_000;
/// How long a transaction can read from its snapshot.
pub const TRANSACTION_AGE_MAX: Duration = Duration::from_secs(5);
/// The most watches of one store handle.
pub const WATCHES_MAX: usize = 10_000;
/// The approximate size of a page of a range read.
pub const PAGE_BYTES: usize = 128 * 1024;

/// The cost of a mutation besides its value and key (counted three times: itself and both ends of
/// its conflict range): `FoundationDB`'s own structures and the store's prefix of up to 26 bytes.
const MUTATION_OVERHEAD_BYTES: usize = 192;
const RANGE_OVERHEAD_BYTES: usize = 96;

pub(crate) fn mutation_bytes(key: usize, value: usize) -> usize {
    3 * key + value + MUTATION_OVERHEAD_BYTES
}

pub(crate) fn range_bytes(begin: usize, end: usize) -> usize {
    begin + end + RANGE_OVERHEAD_BYTES
}

pub(crate) fn check_key(key: &[u8]) -> Result<(), Error> {
    check(Limit::Key, key.len(), KEY_BYTES_MAX)?;
    match key.first() {
        Some(0xfe..) => Err(Error::Misuse("keys from 0xfe on are reserved")),
        _ => Ok(()),
    }
}

pub(crate) fn check_value(value: &[u8]) -> Result<(), Error> {
    check(Limit::Value, value.len(), VALUE_BYTES_MAX)
}

pub(crate) fn check_transaction(size: usize) -> Result<(), Error> {
    check(Limit::Transaction, size, TRANSACTION_BYTES_MAX)
}

fn check(limit: Limit, size: usize, max: usize) -> Result<(), Error> {
    if size > max {
        return Err(Error::TooLarge { limit, size, max });
    }
    Ok(())
}
