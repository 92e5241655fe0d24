//! What a transaction changes for tenants: it charges them for runs, and gives a turn to those that return.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::future::{try_join, try_join_all};
use store::{KeyRange, RangeOptions, Transaction};

use super::tidy::turn_of;
use super::{START_MS, WINDOW, cost};
use crate::model::clock::millis;
use crate::model::header::Header;
use crate::model::keys::{InClass, Position, charged_until, promised};
use crate::operations::effects::Effects;
use crate::{Class, Error, JobId, JobType, Jobs, Result};

/// Milliseconds by type and tenant.
pub(crate) type Charges = BTreeMap<(JobType, Bytes), i64>;

/// Shares by type and tenant.
type Shares = BTreeMap<(JobType, Bytes), u32>;

/// What a transaction changes for tenants.
#[derive(Debug, Default)]
pub(crate) struct Sharers {
    charges: Charges,
    /// Those that the transaction has read, and need not be read again.
    shares: Shares,
    /// Tenants that have ready jobs.
    ready: BTreeSet<(JobType, InClass)>,
    /// Runs that end, of these tenants.
    ended: Vec<(JobType, JobId, Bytes)>,
}

impl Sharers {
    pub(crate) fn ready(&mut self, ty: &JobType, class: Class, tenant: &Bytes) {
        self.ready.insert((ty.clone(), (class, tenant.clone())));
    }

    pub(crate) fn end(&mut self, ty: &JobType, id: &JobId, tenant: Bytes) {
        self.ended.push((ty.clone(), id.clone(), tenant));
    }

    pub(crate) fn charge(&mut self, ty: &JobType, tenant: Bytes, ms: i64) {
        if ms > 0 {
            *self.charges.entry((ty.clone(), tenant)).or_default() += ms;
        }
    }

    pub(crate) fn know(&mut self, ty: &JobType, tenant: &Bytes, shares: u32) {
        self.shares.insert((ty.clone(), tenant.clone()), shares);
    }

    /// The charges, for a caller that adds them to others.
    pub(crate) fn take_charges(&mut self) -> Charges {
        std::mem::take(&mut self.charges)
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.charges.is_empty() && self.ready.is_empty() && self.ended.is_empty()
    }
}

/// What a run with this heartbeat costs until now, and until when it is charged then. A holder is never silent for long, so
/// what is longer comes from another clock.
fn due(beat: &Bytes, now_ms: i64) -> (i64, i64) {
    let Some(until_ms) = charged_until(beat) else {
        return (0, now_ms);
    };
    let timeout_ms = promised(beat).map_or(0, millis);
    let ms = now_ms.saturating_sub(until_ms).clamp(0, 2 * timeout_ms);
    // A start is charged in advance.
    let ahead = until_ms.saturating_sub(now_ms);
    let until_ms = if (0..=START_MS).contains(&ahead) {
        until_ms
    } else {
        now_ms
    };
    (ms, until_ms)
}

/// The last heartbeat in this row, unless this transaction has written it: then it is charged already.
async fn uncharged(tx: &Transaction, key: &[u8]) -> Result<Option<Bytes>> {
    match tx.snapshot().get(key).await {
        Err(store::Error::Misuse(_)) => Ok(None),
        beat => Ok(beat?),
    }
}

impl Effects<'_> {
    /// Charges the tenant of a running job for the time since its last heartbeat; returns until when it is charged.
    pub(crate) fn charge(
        &mut self,
        ty: &JobType,
        header: Option<&Header>,
        beat: Option<&Bytes>,
    ) -> Option<i64> {
        let tenant = header?.sharer()?;
        let now_ms = self.now_ms();
        let (ms, until_ms) = beat.map_or((0, now_ms), |beat| due(beat, now_ms));
        self.sharers.charge(ty, tenant, ms);
        Some(until_ms)
    }
}

impl Jobs {
    /// The last heartbeat of a job whose tenant is charged, as far as it can be read.
    pub(crate) async fn charged_beat(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
        header: Option<&Header>,
    ) -> Result<Option<Bytes>> {
        if header.and_then(Header::sharer).is_none() {
            return Ok(None);
        }
        let key = self.keys().index(ty, id, &Position::Active);
        uncharged(tx, &key).await
    }

    /// Charges tenants, and gives a turn to those that return.
    pub(crate) async fn settle_tenants(
        &self,
        effects: &mut Effects<'_>,
        tx: &Transaction,
    ) -> Result<()> {
        let sharers = &mut effects.sharers;
        let (ended, ready) = (
            std::mem::take(&mut sharers.ended),
            std::mem::take(&mut sharers.ready),
        );
        let beats = ended.iter().map(|(ty, id, _)| async move {
            let key = self.keys().index(ty, id, &Position::Active);
            let beat = uncharged(tx, &key).await?;
            tx.clear(&key);
            Ok::<_, Error>(beat)
        });
        let unknown: BTreeSet<_> = (ended.iter())
            .map(|(ty, _, tenant)| (ty.clone(), tenant.clone()))
            .filter(|of| !sharers.shares.contains_key(of))
            .collect();
        let shares = unknown.into_iter().map(|of| async move {
            let shares = self.shares_of(tx, &of.0, &of.1).await?;
            Ok::<_, Error>((of, shares))
        });
        let (beats, shares) = try_join(try_join_all(beats), try_join_all(shares)).await?;
        sharers.shares.extend(shares);
        let now_ms = effects.now_ms();
        for ((ty, _, tenant), beat) in ended.iter().zip(beats) {
            let ms = beat.map_or(0, |beat| due(&beat, now_ms).0);
            effects.sharers.charge(ty, tenant.clone(), ms);
        }
        let charges = effects.sharers.take_charges();
        self.add_charges(tx, charges, &effects.sharers.shares)
            .await?;
        self.return_all(tx, ready).await
    }

    /// Adds to the virtual times of tenants.
    pub(crate) async fn charge_all(&self, tx: &Transaction, charges: Charges) -> Result<()> {
        self.add_charges(tx, charges, &Shares::new()).await
    }

    async fn add_charges(&self, tx: &Transaction, charges: Charges, known: &Shares) -> Result<()> {
        let add = charges.iter().map(|(of @ (ty, tenant), ms)| async move {
            let shares = match known.get(of) {
                Some(shares) => *shares,
                None => self.shares_of(tx, ty, tenant).await?,
            };
            tx.add(&self.keys().vtime(ty, tenant), cost(*ms, shares));
            Ok::<_, Error>(())
        });
        try_join_all(add).await.map(drop)
    }

    /// Gives a turn to those of these tenants that have none.
    async fn return_all(
        &self,
        tx: &Transaction,
        ready: BTreeSet<(JobType, InClass)>,
    ) -> Result<()> {
        if ready.is_empty() {
            return Ok(());
        }
        let _alone = tx.alone();
        let absent = ready.into_iter().map(|(ty, tenant)| async move {
            let there = tx.get(&self.keys().there(&ty, &tenant)).await?;
            Ok::<_, Error>(there.is_none().then_some((ty, tenant)))
        });
        let absent: Vec<_> = (try_join_all(absent).await?.into_iter().flatten()).collect();
        let classes: BTreeSet<_> = absent.iter().map(|(ty, (class, _))| (ty, *class)).collect();
        let floors = classes.into_iter().map(|of| async move {
            let floor = self.floor(tx, of.0, of.1).await?;
            Ok::<_, Error>((of, floor))
        });
        let tenants: BTreeSet<_> = absent
            .iter()
            .map(|(ty, (_, tenant))| (ty, tenant))
            .collect();
        let vtimes = tenants.into_iter().map(|of| async move {
            let vtime = self.sound_vtime_of(tx, of.0, of.1).await?;
            Ok::<_, Error>((of, vtime))
        });
        let (floors, vtimes) = try_join(try_join_all(floors), try_join_all(vtimes)).await?;
        let floors: BTreeMap<_, _> = floors.into_iter().collect();
        let mut vtimes: BTreeMap<_, _> = vtimes.into_iter().collect();
        for (ty, tenant) in &absent {
            let own = vtimes.entry((ty, &tenant.1)).or_default();
            let floor = floors.get(&(ty, tenant.0)).copied().unwrap_or_default();
            if floor > *own {
                // A transaction that gives it a turn in another class would add the same. To conflict with that costs less than
                // to read the virtual time with conflict, to which every run adds.
                for class in Class::ALL.into_iter().filter(|class| *class != tenant.0) {
                    let other = self.keys().there(ty, &(class, tenant.1.clone()));
                    tx.add_read_conflict_range(KeyRange::key(&other));
                }
                tx.add(&self.keys().vtime(ty, &tenant.1), floor - *own);
                *own = floor;
            }
            tx.set(&self.keys().turn(ty, tenant, *own), &0_i64.to_be_bytes());
            tx.set(&self.keys().there(ty, tenant), &[]);
        }
        Ok(())
    }

    /// Where a tenant that returns to a class continues: at the least of the tenants with turns in it, or else in any class.
    /// The one served last does not count: in another class, it may have used far more or far less.
    pub(super) async fn floor(&self, tx: &Transaction, ty: &JobType, class: Class) -> Result<i64> {
        let (last, least) =
            try_join(self.last_vtime(tx, ty), self.least_vtime(tx, ty, class)).await?;
        let mut least: Vec<_> = least.into_iter().collect();
        if least.is_empty() {
            let others = Class::ALL.map(|class| self.least_vtime(tx, ty, class));
            least.extend(try_join_all(others).await?.into_iter().flatten());
        }
        // Tenants beyond those that were read may have used less, unless turns lag behind.
        let floors = least.into_iter();
        let floors = floors.map(|(least, after)| {
            let beyond = after.map_or(i64::MAX, |after| after.max(last));
            least.min(beyond)
        });
        Ok(floors.min().unwrap_or(last))
    }

    /// The least virtual time of those with the first turns in a class, and the turn after which there may be more.
    async fn least_vtime(
        &self,
        tx: &Transaction,
        ty: &JobType,
        class: Class,
    ) -> Result<Option<(i64, Option<i64>)>> {
        let all = &self.keys().turns(ty, None);
        let range = self.keys().turns(ty, Some(class));
        let rows = (tx.snapshot()).get_range(range, RangeOptions::limit(WINDOW));
        let rows = rows.collect().await?;
        let full = rows.len() == WINDOW;
        let turns: Vec<_> = rows
            .iter()
            .filter_map(|row| turn_of(ty, all, row))
            .collect();
        let vtimes = turns.iter().map(|turn| async move {
            let vtime = self.vtime_of(tx, ty, &turn.tenant.1).await?;
            // Before those that were served, but not before those that have waited for their first turn.
            Ok::<_, Error>((vtime - 1).max(turn.vtime))
        });
        let least = try_join_all(vtimes).await?.into_iter().min();
        let after = turns.last().filter(|_| full).map(|turn| turn.vtime);
        Ok(least.map(|least| (least, after)))
    }
}
