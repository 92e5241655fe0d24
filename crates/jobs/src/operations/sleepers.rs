//! SLEEPER rows, by which acceptors are woken.
//!
//! An acceptor that goes to sleep writes a row of its own and watches it. A transaction that makes work
//! for it clears the row, and that change wakes it. While no acceptor sleeps there are no such rows,
//! and so there is no row that every operation writes.

use store::{RangeOptions, Transaction};

use crate::model::keys::stamp_template;
use crate::{JobType, Jobs, Op, Result};

/// How many sleepers are chosen from.
const SLEEPERS_SEEN: usize = 64;

impl Jobs {
    /// Wakes up to `count` sleepers.
    ///
    /// By a snapshot read: creators would otherwise conflict with every acceptor that falls asleep. One
    /// that falls asleep at this moment is missed, and finds the work when it looks again. Sleepers draw
    /// a new number each time, so the first ones in the table are no particular ones; the seed makes
    /// two creators at the same moment wake different ones.
    pub(crate) async fn wake(
        &self,
        tx: &Transaction,
        ty: &JobType,
        count: usize,
        op: &Op,
    ) -> Result<()> {
        let range = self.keys().sleepers(ty);
        let rows = tx
            .snapshot()
            .get_range(range, RangeOptions::limit(SLEEPERS_SEEN));
        let rows = rows.collect().await?;
        let start = usize::try_from(op.seed() % (rows.len().max(1) as u64)).unwrap_or(0);
        for row in (rows.iter().cycle().skip(start)).take(count.min(rows.len())) {
            tx.clear(&row.key);
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
