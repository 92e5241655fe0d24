//! Which of the things that transactions noted were committed, and in which order: each writes a versionstamped row with the
//! number of its note. So that is known exactly, although the store often does not report it.

use store::{KeyRange, RangeOptions, Store, Transaction};

/// Writes the row of a note. The number orders those of one transaction.
pub(crate) fn mark(tx: &Transaction, prefix: &[u8], number: u64) {
    let offset = u32::try_from(prefix.len()).unwrap();
    let mut key = prefix.to_vec();
    key.extend([0; 10]);
    key.extend(number.to_be_bytes());
    key.extend(offset.to_le_bytes());
    tx.set_versionstamped_key(&key, &[]);
}

/// The versions and numbers of committed notes, in order.
pub(crate) async fn committed(store: &Store, prefix: &[u8]) -> Vec<(u64, usize)> {
    let mut range = KeyRange::prefix(prefix);
    let mut rows = Vec::new();
    loop {
        let from = &range;
        let page = store
            .transact("log", |tx| async move {
                let rows = tx
                    .snapshot()
                    .get_range(from.clone(), RangeOptions::limit(5_000));
                rows.collect().await
            })
            .await
            .unwrap();
        let Some(last) = page.last() else {
            return rows;
        };
        range.begin = [&*last.key, &[0]].concat().into();
        for row in &page {
            let rest = &row.key[prefix.len()..];
            let version = u64::from_be_bytes(rest[..8].try_into().unwrap());
            let number = u64::from_be_bytes(rest[10..].try_into().unwrap());
            rows.push((version, usize::try_from(number).unwrap()));
        }
    }
}
