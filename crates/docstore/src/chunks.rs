//! Values that may exceed the store's limit, split into rows.

use store::{KeyValue, RangeRead, Transaction};

use crate::{Result, keys};

/// The size of a row: whole LMDB pages, including the header.
const CHUNK_BYTES: usize = 16 * 4096 - 64;

/// Writes a new value and returns the number of its rows.
pub(crate) fn write(tx: &Transaction, key: &[u8], value: &[u8]) -> usize {
    let chunks = value.chunks(CHUNK_BYTES);
    let count = chunks.len();
    for (number, chunk) in chunks.enumerate() {
        tx.set(&keys::chunk(key, number), chunk);
    }
    count
}

/// Replaces a value that has `before` rows.
pub(crate) fn replace(tx: &Transaction, key: &[u8], value: &[u8], before: usize) {
    let count = write(tx, key, value);
    if count < before {
        tx.clear_range((keys::chunk(key, count), keys::chunk(key, before)));
    }
}

/// Reads a value, which is empty if there is none, and the number of its rows.
pub(crate) async fn read(mut rows: RangeRead) -> Result<(Vec<u8>, usize)> {
    let mut value = Vec::new();
    let mut count = 0;
    while let Some(page) = rows.next_page().await? {
        count += page.len();
        value.reserve(page.iter().map(|row| row.value.len()).sum());
        for KeyValue { value: chunk, .. } in page {
            value.extend_from_slice(&chunk);
        }
    }
    Ok((value, count))
}
