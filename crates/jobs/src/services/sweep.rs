//! Removes expired jobs, and the bells of services that are gone.

#[cfg(test)]
mod tests;

use std::time::Duration;

use futures::future::try_join_all;
use store::{Call, KeyRange, KeyValue, RangeOptions, Transaction};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::model::header::{Order, Place, State};
use crate::model::keys::{Keys, stamp_of};
use crate::model::machine::Event;
use crate::operations::batch::Batch;
use crate::operations::leases::{Lease, buckets};
use crate::services::duties::{Duty, Leased};
use crate::{Error, JobType, Jobs, Op, Result, telemetry};

/// Expired jobs of a bucket that one turn reads, and maximum jobs that one transaction removes.
const EXPIRED_ROWS: usize = 500;
const FORGET_JOBS: usize = 250;
/// Intervals where nothing has expired, and after something had.
const FORGET_EVERY: Duration = Duration::from_secs(30);
const FORGET_AGAIN: Duration = Duration::from_secs(1);
/// Interval of checking whether it is time to read bells.
const BELLS_EVERY: Duration = Duration::from_secs(20);
/// A notifier refreshes its bell every minute, and a sleeper gets a new one for every sleep: a bell that was not
/// touched for this long has no owner, or one that will notice.
pub(crate) const BELL_AGE_MAX: Duration = Duration::from_mins(10);
/// Bells per transaction.
const BELLS: usize = 500;

/// Removes the finished jobs whose retention has expired.
pub(crate) struct Expiry<'a> {
    jobs: &'a Jobs,
    ty: &'a JobType,
    leased: Leased,
    batch: Batch,
}

impl<'a> Expiry<'a> {
    pub(crate) fn new(jobs: &'a Jobs, ty: &'a JobType, leased: Leased) -> Self {
        Self {
            jobs,
            ty,
            leased,
            batch: Batch::new(FORGET_JOBS),
        }
    }
}

impl Duty for Expiry<'_> {
    const NAME: &'static str = "expiry";

    /// Takes a slice of each partition. After a full slice the next turn follows at once, to keep up with a type
    /// that finishes more than a slice in between.
    async fn turn(&mut self, token: &CancellationToken) -> Result<Duration> {
        let leases = self.leased.borrow().leases.clone();
        match self.forget(&leases, token).await? {
            EXPIRED_ROWS.. => Ok(Duration::ZERO),
            1.. => Ok(FORGET_AGAIN),
            0 => {
                let config = self.jobs.type_config(self.ty).await?;
                let timeout = config.map(|config| Duration::from_millis(config.timeout_ms));
                Ok(timeout.unwrap_or(FORGET_EVERY).min(FORGET_EVERY))
            }
        }
    }
}

impl Expiry<'_> {
    /// Removes a slice of the expired jobs of these partitions; returns the size of the largest bucket's. A failure
    /// in one partition does not affect the others.
    pub(crate) async fn forget(
        &self,
        leases: &[Lease],
        token: &CancellationToken,
    ) -> Result<usize> {
        let (mut op, ahead_ms) = (self.jobs.op(), self.leased.borrow().ahead_ms);
        op.now_ms = op.now_ms.saturating_sub(ahead_ms);
        let op = &op;
        let expired = (self.jobs)
            .read(Call::batch("scan_expired"), |tx| async move {
                let read = leases.iter().map(|lease| {
                    let buckets = buckets(lease.partition).map(|bucket| {
                        let range = self.jobs.keys().expired(self.ty, bucket, op.now_ms);
                        let options = RangeOptions::limit(EXPIRED_ROWS);
                        tx.snapshot().get_range(range, options).collect()
                    });
                    try_join_all(buckets)
                });
                Ok(try_join_all(read).await?)
            })
            .await?;
        let most = expired.iter().flatten().map(Vec::len).max().unwrap_or(0);
        let (mut forgotten, mut failed) = (0, None);
        for (lease, rows) in leases.iter().zip(expired) {
            let rows = rows.concat();
            if rows.is_empty() {
                continue;
            }
            if token.is_cancelled() {
                break;
            }
            let work = |tx: Transaction, rows| async move {
                self.remove_expired_in(&tx, lease, rows, op).await
            };
            let done = |_: &[KeyValue], ended: Result<usize>| match ended {
                Ok(jobs) => forgotten += jobs,
                Err(error) => failed = Some(error),
            };
            let call = Call::batch("expire");
            (self.batch).each(self.jobs, call, &rows, work, done).await;
        }
        // Without the lease a full slice stays full.
        let most = if forgotten == 0 { most.min(1) } else { most };
        failed.map_or(Ok(most), Err)
    }

    async fn remove_expired_in(
        &self,
        tx: &Transaction,
        lease: &Lease,
        rows: &[KeyValue],
        op: &Op,
    ) -> Result<usize> {
        let (jobs, ty) = (self.jobs, self.ty);
        if !lease.holds(jobs, tx, ty).await? {
            return Ok(0);
        }
        let expired = rows.iter().map(|row| async move {
            let Ok((_, id)) = (jobs.keys().position(ty, State::Finished, &row.key))
                .inspect_err(|error| telemetry::undecodable(ty, &row.key, error))
            else {
                return Ok(None);
            };
            let header = jobs.try_header(tx, ty, &id).await?;
            Ok::<_, Error>(Some((id, header)))
        });
        let expired = try_join_all(expired).await?;
        let mut effects = jobs.effects(tx, op.now_ms).await?;
        let mut forgotten = 0;
        for (row, expired) in rows.iter().zip(expired) {
            let Some((id, header)) = expired else {
                continue;
            };
            forgotten += 1;
            let mut header = match header {
                Ok(header) => header,
                Err(error) => {
                    jobs.quarantine(tx, ty, &id, (State::Finished, &row.key), &error);
                    continue;
                }
            };
            match header.as_ref().map(|header| header.place) {
                Some(Place::Finished { expires_ms, .. }) if expires_ms <= op.now_ms => {
                    effects.run(ty, &id, &mut header, Event::Expire)?;
                }
                // A row without an expired job; this crate leaves none.
                _ => tx.clear(&row.key),
            }
        }
        effects.flush(op).await?;
        Ok(forgotten)
    }
}

/// Clears the bells and notes of dead acceptors and notifiers: those not touched since a version noted long ago. At
/// the same interval it returns repaired jobs from quarantine.
pub(crate) struct Bells<'a> {
    jobs: &'a Jobs,
    ty: &'a JobType,
    leased: Leased,
    /// When bells were last read, and at which version.
    looked: Option<(Instant, Order)>,
}

impl<'a> Bells<'a> {
    pub(crate) fn new(jobs: &'a Jobs, ty: &'a JobType, leased: Leased) -> Self {
        Self {
            jobs,
            ty,
            leased,
            looked: None,
        }
    }
}

impl Duty for Bells<'_> {
    const NAME: &'static str = "bells";

    async fn turn(&mut self, _: &CancellationToken) -> Result<Duration> {
        let held = self.leased.borrow().clone();
        let lease = held.leases.iter().find(|lease| lease.partition == 0);
        if let Some((lease, order)) = lease.zip(held.order) {
            self.clear(lease, order).await?;
        }
        Ok(BELLS_EVERY)
    }
}

impl Bells<'_> {
    pub(crate) async fn clear(&mut self, lease: &Lease, order: Order) -> Result<()> {
        let now = Instant::now();
        match self.looked {
            Some((at, _)) if now - at < BELL_AGE_MAX => return Ok(()),
            None => {}
            Some((_, before)) => {
                let keys = self.jobs.keys();
                for bells in [keys.sleepers(self.ty), keys.notifiers(self.ty)] {
                    clear_bells(self.jobs, self.ty, lease, before, bells).await?;
                }
                self.jobs.release(self.ty, lease).await?;
            }
        }
        self.looked = Some((now, order));
        Ok(())
    }
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
                let stale = rows.iter().filter_map(|row| {
                    let bell = stamp_of(&row.value)
                        .and_then(|touched| Ok((touched, Keys::number(all, &row.key)?)))
                        .inspect_err(|error| telemetry::undecodable(ty, &row.key, error));
                    let (touched, nonce) = bell.ok()?;
                    (touched <= before).then_some((row, nonce))
                });
                let clear = stale.map(|(row, nonce)| {
                    let tx = &tx;
                    async move {
                        if tx.get(&row.key).await? == Some(row.value.clone()) {
                            tx.clear(&row.key);
                            tx.clear_range(jobs.keys().notes(ty, nonce));
                        }
                        Ok::<_, Error>(())
                    }
                });
                try_join_all(clear).await?;
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
