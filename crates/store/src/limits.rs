//! `FoundationDB`'s limits, enforced alike on every backend.
//!
//! The size of a transaction is counted by one formula here, which never counts less than
//! `FoundationDB` does, so that no transaction fits one backend and not another.

use std::time::Duration;

use crate::{Error, Limit};

/// The longest key. `FoundationDB` would take 10,000 bytes; LMDB sets ours.
pub const KEY_BYTES_MAX: usize = 1_024;
/// The longest value.
pub const VALUE_BYTES_MAX: usize = 100_000;
/// The largest transaction: its writes and its conflict ranges.
pub const TRANSACTION_BYTES_MAX: usize = 10_000_000;
/// The age at which a transaction's snapshot is gone.
pub const TRANSACTION_AGE_MAX: Duration = Duration::from_secs(5);
/// How many watches one store handle holds.
pub const WATCHES_MAX: usize = 10_000;
/// About how many bytes one page of a range read holds.
pub const PAGE_BYTES: usize = 128 * 1024;

/// What a mutation costs beside its key (counted thrice: itself and its conflict range) and value:
/// `FoundationDB`'s own records, and the prefix that its keys get, which has at most 26 bytes.
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
        Some(0xfe..) => Err(Error::Misuse(
            "keys from 0xfe on belong to the store itself",
        )),
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
