//! Tenants of a type that take turns, so that each gets its share of the time of the holders.
//!
//! ```text
//! ready    reads   THERE                             and if it is absent, so that the tenant returns:
//!                  ORDER, TENANT (snapshot)          writes  THERE, ORDER; adds to TENANT
//!          if it adds: THERE of the other classes
//! claim    reads   ORDER, TENANT, SHARES (snapshot)  adds to TENANT; writes TENANT (type)
//!                  PENDING 7 of the first tenants    then as any claim
//!          if it empties many tenants: ORDER,        clears THERE, ORDER
//!                  PENDING 7 of these
//! beat     reads   SHARES (snapshot)                 adds to TENANT; ACTIVITY says until when
//! end      reads   SHARES, ACTIVITY (snapshot)       adds to TENANT; nothing if the start has paid for the run
//! tidy     reads   ORDER, PENDING 7 of the tenant    clears THERE, ORDER
//! ```
//!
//! Start-time fair queueing: the tenant with the least virtual time is next. A start costs [`START_MS`], a longer run what
//! it takes, each divided by the tenant's shares. A tenant that returns continues at its own virtual time, or at the least
//! of those that wait in its class if that is later: to go and come back, or to remove jobs and add them again, gains
//! nothing.
//!
//! Turns are rewritten seldom ([`tidy`]): a claim compares the virtual times of the first tenants as they are in TENANT.

mod check;
pub(crate) mod settle;
pub(crate) mod tidy;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::future::{try_join, try_join_all};
use store::{Call, KeyRange, RangeOptions, Transaction};

use crate::model::codec::{Reader, Writer};
use crate::model::keys::{Keys, vtime_in};
use crate::{Error, JobType, Jobs, Result, Tenant, telemetry};

/// The shares of a tenant without a setting.
pub const SHARES_DEFAULT: u32 = 100;
/// Maximum shares of a tenant.
pub const SHARES_MAX: u32 = 1_000;
/// A start costs this much; the run is charged for what it takes longer.
pub(crate) const START_MS: i64 = 100;
/// Virtual time per millisecond of a tenant with one share.
const UNIT: i64 = 1_000;
/// Tenants that a claim, or a tenant that returns, looks at.
pub(crate) const WINDOW: usize = 16;
/// Maximum tenants of a listing: those of a page of the API, and one that says that there are more.
const PAGE_MAX: usize = 1_001;
/// So many shares are not read at once.
const FEW: usize = 32;
const FORMAT: u8 = 1;

/// Shares by tenant, of those that have their own.
pub(crate) type Few = BTreeMap<Bytes, u32>;

/// A tenant of a type, its shares and its use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantUse {
    /// Its name; `None` for jobs without a tenant.
    pub tenant: Option<Tenant>,
    /// Its shares, from 1 to [`SHARES_MAX`].
    pub shares: u32,
    /// The tenant with the least is next. It grows by 1,000 / shares per millisecond that a holder has one of its jobs.
    pub vtime: i64,
    /// The time for which holders may still have jobs of tenants that were served less, in milliseconds of this one's jobs. 0 if
    /// it is next.
    pub ahead_ms: i64,
}

/// Virtual time of a tenant with these shares for this time.
pub(crate) fn cost(ms: i64, shares: u32) -> i64 {
    ms.saturating_mul(UNIT) / i64::from(shares.max(1))
}

impl Jobs {
    /// Sets the shares of a tenant, or of the jobs without one: 1 to [`SHARES_MAX`], or with `None`
    /// [`SHARES_DEFAULT`]. They apply to the time that its jobs take from then on.
    pub async fn set_shares(
        &self,
        ty: &JobType,
        tenant: Option<&Tenant>,
        shares: Option<u32>,
    ) -> Result<()> {
        self.store()
            .transact("set_shares", |tx| async move {
                self.set_shares_in(&tx, ty, tenant, shares)
            })
            .await
    }

    /// [`Self::set_shares`] in the caller's transaction.
    pub fn set_shares_in(
        &self,
        tx: &Transaction,
        ty: &JobType,
        tenant: Option<&Tenant>,
        shares: Option<u32>,
    ) -> Result<()> {
        let key = self.keys().shares(ty, tenant.map_or(&[], Tenant::as_bytes));
        match shares {
            None => tx.clear(&key),
            Some(1..=SHARES_MAX) => {
                let mut to = Writer::new(FORMAT);
                to.uint(shares.unwrap_or_default());
                tx.set(&key, &to.finish());
            }
            Some(_) => return Err(Error::Invalid("shares are from 1 to 1,000")),
        }
        Ok(())
    }

    /// Gives these tenants shares, and the others the default.
    pub async fn replace_shares(&self, ty: &JobType, wanted: &BTreeMap<Tenant, u32>) -> Result<()> {
        self.store()
            .transact("set_shares", |tx| async move {
                self.replace_shares_in(&tx, ty, wanted).await
            })
            .await
    }

    /// [`Self::replace_shares`] in the caller's transaction.
    pub async fn replace_shares_in(
        &self,
        tx: &Transaction,
        ty: &JobType,
        wanted: &BTreeMap<Tenant, u32>,
    ) -> Result<()> {
        let set = self.shares_in(tx, ty).await?;
        for tenant in set.keys().filter(|tenant| !wanted.contains_key(*tenant)) {
            self.set_shares_in(tx, ty, Some(tenant), None)?;
        }
        for (tenant, shares) in wanted {
            if set.get(tenant) != Some(shares) {
                self.set_shares_in(tx, ty, Some(tenant), Some(*shares))?;
            }
        }
        Ok(())
    }

    /// The named tenants of a type that have shares of their own, by a snapshot read.
    async fn shares_in(&self, tx: &Transaction, ty: &JobType) -> Result<BTreeMap<Tenant, u32>> {
        let all = self.keys().all_shares(ty);
        let mut rows = (tx.snapshot()).get_range(all.clone(), RangeOptions::default());
        let mut shares = BTreeMap::new();
        while let Some(row) = rows.next().await? {
            if let Some(name) = tenant_of(ty, &all, &row.key).filter(|name| !name.is_empty()) {
                // 0 if it cannot be decoded: it is replaced in any case.
                shares.insert(Tenant(name), decode(row.value).unwrap_or_default());
            }
        }
        Ok(shares)
    }

    /// The tenants of a type that have shares of their own or were served lately, by name from the one after `after` on.
    pub async fn tenants(
        &self,
        ty: &JobType,
        after: Option<&Tenant>,
        limit: usize,
    ) -> Result<Vec<TenantUse>> {
        self.read(Call::batch("tenants"), |tx| async move {
            let limit = limit.clamp(1, PAGE_MAX);
            let [vtimes, shares] = [self.keys().vtimes(ty), self.keys().all_shares(ty)];
            let after = after.map(Tenant::as_bytes);
            let first = |all: KeyRange, row: Option<Vec<u8>>| {
                let begin = row.map(|row| [&*row, &[0]].concat().into());
                let range = KeyRange::new(begin.unwrap_or(all.begin.clone()), all.end.clone());
                let options = RangeOptions::limit(limit + 1);
                let rows = tx.snapshot().get_range(range, options).collect();
                async move {
                    let names = rows.await?.into_iter();
                    let names = names.filter_map(|row| tenant_of(ty, &all, &row.key));
                    Ok::<_, Error>(names.collect::<Vec<Bytes>>())
                }
            };
            let (used, set) = try_join(
                first(vtimes, after.map(|name| self.keys().vtime(ty, name))),
                first(shares, after.map(|name| self.keys().shares(ty, name))),
            )
            .await?;
            let names: BTreeSet<Bytes> = used.into_iter().chain(set).collect();
            let served = self.last_vtime(&tx, ty).await?;
            let uses = names.into_iter().take(limit);
            try_join_all(uses.map(|name| self.use_of(&tx, ty, name, served))).await
        })
        .await
    }

    /// The [virtual times](TenantUse::vtime) of these tenants.
    pub async fn vtimes(&self, ty: &JobType, tenants: &[Option<Tenant>]) -> Result<Vec<i64>> {
        self.read(Call::batch("tenants"), |tx| async move {
            let vtimes = tenants.iter().map(|tenant| {
                let name = tenant.as_ref().map_or(&[][..], Tenant::as_bytes);
                self.vtime_of(&tx, ty, name)
            });
            try_join_all(vtimes).await
        })
        .await
    }

    async fn use_of(
        &self,
        tx: &Transaction,
        ty: &JobType,
        name: Bytes,
        served: i64,
    ) -> Result<TenantUse> {
        let (vtime, shares) =
            try_join(self.vtime_of(tx, ty, &name), self.shares_of(tx, ty, &name)).await?;
        let ahead = vtime.saturating_sub(served).max(0);
        Ok(TenantUse {
            tenant: (!name.is_empty()).then_some(Tenant(name)),
            shares,
            vtime,
            ahead_ms: ahead.saturating_mul(i64::from(shares)) / UNIT,
        })
    }

    /// All shares that are set, in one read, unless there are many.
    pub(crate) async fn few_shares(&self, tx: &Transaction, ty: &JobType) -> Result<Option<Few>> {
        let all = self.keys().all_shares(ty);
        let rows = (tx.snapshot()).get_range(all.clone(), RangeOptions::limit(FEW));
        let rows = rows.collect().await?;
        if rows.len() == FEW {
            return Ok(None);
        }
        let mut few = Few::new();
        for row in rows {
            if let Some(name) = tenant_of(ty, &all, &row.key) {
                few.insert(name, shares_or_default(ty, &row.key, row.value));
            }
        }
        Ok(Some(few))
    }

    /// The virtual time and the shares of a tenant.
    pub(crate) async fn standing(
        &self,
        tx: &Transaction,
        ty: &JobType,
        tenant: &[u8],
        few: Option<&Few>,
    ) -> Result<(i64, u32)> {
        let shares = async {
            match few {
                Some(few) => Ok(few.get(tenant).copied().unwrap_or(SHARES_DEFAULT)),
                None => self.shares_of(tx, ty, tenant).await,
            }
        };
        try_join(self.sound_vtime_of(tx, ty, tenant), shares).await
    }

    /// The virtual time of a tenant. One that cannot be decoded counts as that of the tenant served last.
    pub(crate) async fn vtime_of(
        &self,
        tx: &Transaction,
        ty: &JobType,
        tenant: &[u8],
    ) -> Result<i64> {
        match self.stored_vtime(tx, ty, tenant).await? {
            Some(vtime) => Ok(vtime),
            None => self.last_vtime(tx, ty).await,
        }
    }

    /// [`Self::vtime_of`] for a transaction that adds to it. One that cannot be decoded is replaced: the sum would make sense
    /// only by chance.
    pub(crate) async fn sound_vtime_of(
        &self,
        tx: &Transaction,
        ty: &JobType,
        tenant: &[u8],
    ) -> Result<i64> {
        if let Some(vtime) = self.stored_vtime(tx, ty, tenant).await? {
            return Ok(vtime);
        }
        let vtime = self.last_vtime(tx, ty).await?;
        tx.set(&self.keys().vtime(ty, tenant), &vtime.to_le_bytes());
        Ok(vtime)
    }

    async fn stored_vtime(
        &self,
        tx: &Transaction,
        ty: &JobType,
        tenant: &[u8],
    ) -> Result<Option<i64>> {
        let key = self.keys().vtime(ty, tenant);
        let value = tx.snapshot().get(&key).await?;
        let vtime = vtime_in(value.as_ref());
        Ok((vtime.inspect_err(|error| telemetry::undecodable(ty, &key, error))).ok())
    }

    /// The virtual time at which tenants were served last.
    pub(crate) async fn last_vtime(&self, tx: &Transaction, ty: &JobType) -> Result<i64> {
        let key = self.keys().last_vtime(ty);
        let value = tx.snapshot().get(&key).await?;
        let vtime = vtime_in(value.as_ref());
        // Claims write it again.
        let vtime = vtime.inspect_err(|error| telemetry::undecodable(ty, &key, error));
        Ok(vtime.unwrap_or_default())
    }

    pub(crate) fn set_last_vtime(&self, tx: &Transaction, ty: &JobType, vtime: i64) {
        tx.set(&self.keys().last_vtime(ty), &vtime.to_le_bytes());
    }

    async fn shares_of(&self, tx: &Transaction, ty: &JobType, tenant: &[u8]) -> Result<u32> {
        let key = self.keys().shares(ty, tenant);
        let value = tx.snapshot().get(&key).await?;
        Ok(value.map_or(SHARES_DEFAULT, |value| shares_or_default(ty, &key, value)))
    }
}

/// The tenant of a row that has one and can be decoded.
fn tenant_of(ty: &JobType, all: &KeyRange, key: &[u8]) -> Option<Bytes> {
    let tenant = Keys::tenant_of(all, key);
    (tenant.inspect_err(|error| telemetry::undecodable(ty, key, error))).ok()?
}

/// The shares in a row; the default if it cannot be decoded.
fn shares_or_default(ty: &JobType, key: &[u8], value: Bytes) -> u32 {
    let shares = decode(value);
    (shares.inspect_err(|error| telemetry::undecodable(ty, key, error))).unwrap_or(SHARES_DEFAULT)
}

pub(crate) fn decode(value: Bytes) -> Result<u32> {
    let mut from = Reader::new(value, "the shares of a tenant", FORMAT)?;
    let shares = from.uint()?;
    from.end()?;
    Ok(shares)
}
