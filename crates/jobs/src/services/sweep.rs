//! Forgetting: finished jobs whose time is up, and the bells of services that are gone.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::try_join_all;
use store::{Call, KeyRange, RangeOptions, Transaction};
use tokio::time::Instant;

use crate::model::header::{Order, Place, State};
use crate::model::keys::{Keys, stamp_of};
use crate::model::machine::Event;
use crate::operations::leases::{Lease, buckets};
use crate::{Error, JobType, Jobs, Op, Result};

/// How many jobs of a bucket one transaction forgets, and how many transactions a partition gets.
const FORGET_JOBS: usize = 25;
const FORGET_ROUNDS: usize = 20;
/// How often a partition is looked at.
const FORGET_EVERY: Duration = Duration::from_secs(30);
/// A notifier refreshes its bell every minute, a sleeper has a new one for every sleep: one that
/// has not been touched for so long belongs to nobody, or to somebody who will notice.
pub(crate) const BELL_AGE_MAX: Duration = Duration::from_mins(10);
/// How many bells one transaction looks at.
const BELLS: usize = 500;

/// What a node remembers from turn to turn.
#[derive(Debug, Default)]
pub(crate) struct Sweeper {
    /// When bells were looked at last, and at which version.
    bells: Option<(Instant, Order)>,
    /// When each partition was looked at for expired jobs.
    forgot: BTreeMap<u16, Instant>,
}

impl Sweeper {
    /// Removes the finished jobs of a partition that have been kept long enough; not more often than
    /// the type's timeout, or every half minute.
    pub(crate) async fn forget_expired(
        &mut self,
        jobs: &Jobs,
        ty: &JobType,
        lease: &Lease,
        timeout: Duration,
    ) -> Result<()> {
        let (now, wait) = (Instant::now(), timeout.min(FORGET_EVERY));
        if (self.forgot.get(&lease.partition)).is_some_and(|at| now - *at < wait) {
            return Ok(());
        }
        for _ in 0..FORGET_ROUNDS {
            let op = jobs.op();
            let full = (jobs.store())
                .transact(Call::batch("expire"), |tx| async move {
                    forget_some(jobs, &tx, ty, lease, &op).await
                })
                .await?;
            if !full {
                break;
            }
        }
        self.forgot.insert(lease.partition, now);
        Ok(())
    }

    /// Clears the bells, and the notes, of acceptors and notifiers that are gone: those that have
    /// not been touched since a version noted long ago.
    pub(crate) async fn clear_bells(
        &mut self,
        jobs: &Jobs,
        ty: &JobType,
        lease: &Lease,
        order: Order,
    ) -> Result<()> {
        if lease.partition != 0 {
            return Ok(());
        }
        let now = Instant::now();
        match self.bells {
            Some((at, _)) if now - at < BELL_AGE_MAX => return Ok(()),
            None => {}
            Some((_, before)) => {
                clear_bells(jobs, ty, lease, before, jobs.keys().sleepers(ty)).await?;
                clear_bells(jobs, ty, lease, before, jobs.keys().notifiers(ty)).await?;
            }
        }
        self.bells = Some((now, order));
        Ok(())
    }
}

/// Removes some expired jobs; true when there may be more.
async fn forget_some(
    jobs: &Jobs,
    tx: &Transaction,
    ty: &JobType,
    lease: &Lease,
    op: &Op,
) -> Result<bool> {
    let snapshot = tx.snapshot();
    let read = buckets(lease.partition).map(|bucket| {
        let range = jobs.keys().expired(ty, bucket, op.now_ms);
        (snapshot.get_range(range, RangeOptions::limit(FORGET_JOBS))).collect()
    });
    let rows = try_join_all(read).await?;
    let full = rows.iter().any(|rows| rows.len() == FORGET_JOBS);
    if rows.iter().all(Vec::is_empty) || !lease.holds(jobs, tx, ty).await? {
        return Ok(false);
    }
    let mut effects = jobs.effects(tx, op.now_ms).await?;
    for row in rows.iter().flatten() {
        let (_, id) = jobs.keys().position(ty, State::Finished, &row.key)?;
        let mut header = jobs.header(tx, ty, &id).await?;
        match header.as_ref().map(|header| header.place) {
            Some(Place::Finished { expires_ms, .. }) if expires_ms <= op.now_ms => {
                effects.run(ty, &id, &mut header, Event::Expire)?;
            }
            // A row that no such job stands behind: nothing here leaves one.
            _ => tx.clear(&row.key),
        }
    }
    effects.flush(op).await?;
    Ok(full)
}

async fn clear_bells(
    jobs: &Jobs,
    ty: &JobType,
    lease: &Lease,
    before: Order,
    all: KeyRange,
) -> Result<()> {
    let mut range = all.clone();
    loop {
        let (all, from) = (&all, &range);
        let last = (jobs.store())
            .transact(Call::batch("clear_bells"), |tx| async move {
                let rows = (tx.snapshot()).get_range(from.clone(), RangeOptions::limit(BELLS));
                let rows = rows.collect().await?;
                if !lease.holds(jobs, &tx, ty).await? {
                    return Ok(None);
                }
                for row in &rows {
                    let stale = stamp_of(&row.value)? <= before;
                    if stale && tx.get(&row.key).await? == Some(row.value.clone()) {
                        let nonce = Keys::number(all, &row.key)?;
                        tx.clear(&row.key);
                        tx.clear_range(jobs.keys().notes(ty, nonce));
                    }
                }
                let full = rows.len() == BELLS;
                Ok::<_, Error>(rows.last().filter(|_| full).map(|row| row.key.clone()))
            })
            .await?;
        match last {
            Some(last) => range.begin = [&*last, &[0]].concat().into(),
            None => return Ok(()),
        }
    }
}
