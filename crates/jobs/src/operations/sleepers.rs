//! SLEEPER rows, which wake acceptors.
//!
//! An acceptor that goes to sleep writes its own row and watches it. A transaction that creates work for
//! it clears the row, which wakes it. While no acceptor sleeps there are no such rows, so no row is
//! written by every operation.

use bytes::Bytes;
use store::{KeyRange, KeyValue, RangeOptions, Transaction};

use crate::model::keys::{after_stamp, stamp_template};
use crate::{JobType, Jobs, Op, Result};

/// Maximum sleepers that an acceptor looks at.
const SEEN_MAX: usize = 16;

impl Jobs {
    /// Wakes up to `count` sleepers, and returns how many.
    ///
    /// Reads by snapshot: creators would otherwise conflict with every acceptor that goes to sleep. One
    /// that does so concurrently is missed, and finds the work at its next poll. Sleepers draw a new
    /// number each time, and creators search from a random number on: concurrent creators wake different
    /// sleepers, and no part of the table is read by all.
    pub(crate) async fn wake(
        &self,
        tx: &Transaction,
        ty: &JobType,
        count: usize,
        op: &Op,
    ) -> Result<usize> {
        let all = self.keys().sleepers(ty);
        let middle = Bytes::from(self.keys().sleeper(ty, op.seed()));
        let after = KeyRange::new(middle.clone(), all.end);
        let before = KeyRange::new(all.begin, middle);
        let mut left = count;
        for range in [after, before] {
            let rows = (tx.snapshot()).get_range(range, RangeOptions::limit(left));
            let rows = rows.collect().await?;
            for row in &rows {
                tx.clear(&row.key);
            }
            left = left.saturating_sub(rows.len());
            if left == 0 {
                break;
            }
        }
        Ok(count - left)
    }

    /// Records that an acceptor sleeps, in the transaction in which it found no work.
    pub(crate) fn add_sleeper_in(&self, tx: &Transaction, ty: &JobType, row: u64, acceptor: u64) {
        let value = stamp_template(self.store().incarnation(), &acceptor.to_be_bytes());
        tx.set_versionstamped_value(&self.keys().sleeper(ty, row), &value);
    }

    /// Acceptors that sleep, up to [`SEEN_MAX`].
    pub(crate) async fn sleepers_in(&self, tx: &Transaction, ty: &JobType) -> Result<Vec<u64>> {
        let rows =
            (tx.snapshot()).get_range(self.keys().sleepers(ty), RangeOptions::limit(SEEN_MAX));
        let acceptor =
            |row: &KeyValue| Some(u64::from_be_bytes(*after_stamp(&row.value).first_chunk()?));
        // Rows of earlier versions have no number.
        Ok(rows.collect().await?.iter().filter_map(acceptor).collect())
    }

    /// Removes the row of an acceptor that no longer sleeps. If the row is gone, the acceptor was woken
    /// for work that it will not do: wakes another sleeper instead.
    pub(crate) async fn remove_sleeper(&self, ty: &JobType, sleeper: u64) -> Result<()> {
        let op = self.op();
        let key = self.keys().sleeper(ty, sleeper);
        let key = &key;
        (self.store())
            .transact("wake_another_sleeper", |tx| async move {
                if tx.get(key).await?.is_some() {
                    tx.clear(key);
                    return Ok(());
                }
                self.wake(&tx, ty, 1, &op).await.map(drop)
            })
            .await
    }
}
