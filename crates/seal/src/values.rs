//! Sealed values that are no data of jobs: a table of this crate, so that a pass finds them.

use bytes::Bytes;
use store::{RangeOptions, Transaction};

use crate::{Error, Result, Sealer, Unreadable, keys, sealing_in};

/// Values per transaction.
const VALUES_MAX: usize = 20;

/// The progress of a rewrite.
#[derive(Debug, Default)]
pub struct Rewritten {
    /// The value to continue after; `None` at the end.
    pub after: Option<String>,
    pub looked: u64,
    pub written: u64,
}

/// Writes a value. Without a key, it is refused.
pub async fn write_in(tx: &Transaction, sealer: &Sealer, name: &str, plain: &[u8]) -> Result<()> {
    let sealed = sealer.seal_data(name.as_bytes(), plain);
    let (sealed, key) = sealed.zip(sealer.newest()).ok_or(Unreadable::NoKeys)?;
    sealing_in(tx, sealer, key).await?;
    tx.set(&keys::value(name), &sealed);
    Ok(())
}

/// Reads a value.
pub async fn read_in(tx: &Transaction, sealer: &Sealer, name: &str) -> Result<Bytes> {
    let sealed = tx.get(&keys::value(name)).await?;
    let sealed = sealed.ok_or_else(|| Error::corrupt("a sealed value is missing"))?;
    Ok(sealer.open_data(name.as_bytes(), &sealed)?)
}

pub fn clear_in(tx: &Transaction, name: &str) {
    tx.clear(&keys::value(name));
}

/// Replaces values after one by what `rewrite` returns for their context.
pub async fn rewrite_in(
    tx: &Transaction,
    after: Option<&str>,
    rewrite: &(dyn Fn(&[u8], &Bytes) -> Option<Bytes> + Sync),
) -> Result<Rewritten> {
    let mut range = keys::values();
    if let Some(after) = after {
        range.begin = [&*keys::value(after), &[0]].concat().into();
    }
    let rows = tx.get_range(range, RangeOptions::limit(VALUES_MAX));
    let rows = rows.collect().await?;
    let mut page = Rewritten::default();
    for row in &rows {
        let name = keys::name(&row.key)?;
        if let Some(new) = rewrite(name.as_bytes(), &row.value) {
            tx.set(&row.key, &new);
            page.written += 1;
        }
        page.looked += 1;
        page.after = Some(name);
    }
    if rows.len() < VALUES_MAX {
        page.after = None;
    }
    Ok(page)
}
