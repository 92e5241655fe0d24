//! Bells: rows by which sleeping services are woken, and nobody else.
//!
//! An acceptor that goes to sleep hangs one; whoever makes work for it takes it down, and that the
//! row has changed wakes the sleeper. While nobody sleeps there is no bell, and so no row that every
//! operation writes.

use store::{RangeOptions, Transaction};

use crate::model::keys::stamp_template;
use crate::{JobType, Jobs, Op, Result};

/// How many sleepers are chosen from.
const SLEEPERS_SEEN: usize = 64;

impl Jobs {
    /// Wakes up to `count` sleepers.
    ///
    /// By a snapshot read: who falls asleep at this very moment looks again by itself, so nobody has
    /// to conflict with anybody. A sleeper's number is new each time, so the first ones are any
    /// ones; the seed keeps two creators of the same moment from waking the same one.
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

    /// Says that an acceptor sleeps, in the transaction in which it found nothing to do.
    pub(crate) fn hang_bell_in(&self, tx: &Transaction, ty: &JobType, bell: u64) {
        let value = stamp_template(self.store().incarnation(), &[]);
        tx.set_versionstamped_value(&self.keys().sleeper(ty, bell), &value);
    }

    /// Says that an acceptor sleeps no more. If it was woken meanwhile, another one is.
    pub(crate) async fn take_bell_down(&self, ty: &JobType, bell: u64) -> Result<()> {
        let op = self.op();
        let key = self.keys().sleeper(ty, bell);
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
