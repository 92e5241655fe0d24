//! SLEEPER rows, by which acceptors are woken.
//!
//! An acceptor that goes to sleep writes a row of its own and watches it. A transaction that makes work
//! for it clears the row, and that change wakes it. While no acceptor sleeps there are no such rows,
//! and so there is no row that every operation writes.

use bytes::Bytes;
use store::{KeyRange, RangeOptions, Transaction};

use crate::model::keys::stamp_template;
use crate::{JobType, Jobs, Op, Result};

impl Jobs {
    /// Wakes up to `count` sleepers.
    ///
    /// By a snapshot read: creators would otherwise conflict with every acceptor that falls asleep. One
    /// that falls asleep at this moment is missed, and finds the work when it looks again. Sleepers draw
    /// a new number each time, and creators look from a random number on: two at the same moment wake
    /// different ones, and no part of the table is read by all.
    pub(crate) async fn wake(
        &self,
        tx: &Transaction,
        ty: &JobType,
        count: usize,
        op: &Op,
    ) -> Result<()> {
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
        Ok(())
    }

    /// Writes that an acceptor sleeps, in the transaction in which it found nothing to do.
    pub(crate) fn add_sleeper_in(&self, tx: &Transaction, ty: &JobType, sleeper: u64) {
        let value = stamp_template(self.store().incarnation(), &[]);
        tx.set_versionstamped_value(&self.keys().sleeper(ty, sleeper), &value);
    }

    /// Removes the row of an acceptor that does not sleep any more. If the row is gone, the acceptor was
    /// woken for work that it will not do: another sleeper is woken in its place.
    pub(crate) async fn remove_sleeper(&self, ty: &JobType, sleeper: u64) -> Result<()> {
        let op = self.op();
        let key = self.keys().sleeper(ty, sleeper);
        let key = &key;
        (self.store())
            .transact("take_bell_down", |tx| async move {
                if tx.get(key).await?.is_some() {
                    tx.clear(key);
                    return Ok(());
                }
                self.wake(&tx, ty, 1, &op).await
            })
            .await
    }
}
