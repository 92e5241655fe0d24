//! Reads a range page by page, each in a transaction of its own.

use bytes::Bytes;
use store::{KeyRange, KeyValue, RangeOptions, Transaction};

use crate::Result;

/// Up to `max` rows, by snapshot, from this key on or from the first, and where to continue if there may be more.
pub(crate) async fn page(
    tx: &Transaction,
    all: &KeyRange,
    from: Option<&Bytes>,
    max: usize,
) -> Result<(Vec<KeyValue>, Option<Bytes>)> {
    let range = KeyRange::new(from.unwrap_or(&all.begin).clone(), all.end.clone());
    let rows = (tx.snapshot()).get_range(range, RangeOptions::limit(max));
    let rows = rows.collect().await?;
    let last = rows.last().filter(|_| rows.len() == max);
    let next = last.map(|row| Bytes::from([&*row.key, &[0]].concat()));
    Ok((rows, next))
}
