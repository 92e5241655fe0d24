//! Shares of the nodes' time, of databases, users and remotes.
//!
//! Each is a tenant of the queue: see `docs/jobs.md`. Their shares are kept in the store, where all nodes see them.

use std::collections::{BTreeMap, HashMap, HashSet};

use jobs::{SHARES_MAX, Tenant};
use serde_json::{Value, json};

use crate::data::tenant_named;
use crate::fault::ServiceError;
use crate::options::Options;
use crate::service::Replications;
use replication::params::Invalid;

/// Maximum tenants with shares: they are written in one transaction.
const TENANTS_MAX: usize = 10_000;

impl Options {
    pub(crate) fn validate_shares(&self) -> Result<(), Invalid> {
        if self.shares.len() > TENANTS_MAX {
            return Err(Invalid::new(format!(
                "`shares` has more than {TENANTS_MAX} entries; tenants not listed have 100 shares"
            )));
        }
        Ok(())
    }

    /// As in CouchDB, what is too low or too high means the least or the most shares.
    fn shares_by_tenant(&self) -> BTreeMap<Tenant, u32> {
        let shares = self.shares.iter().map(|(name, shares)| {
            let shares = u32::try_from(*shares).unwrap_or(SHARES_MAX);
            (tenant_named(name), shares.clamp(1, SHARES_MAX))
        });
        shares.collect()
    }
}

impl Replications {
    /// Writes the shares of the settings. Those of the node that does it last apply to all.
    pub(crate) async fn apply_shares(&self) -> Result<(), ServiceError> {
        let wanted = self.options().shares_by_tenant();
        let (jobs, ty) = (&self.0.jobs, &self.0.ty);
        Ok(jobs.replace_shares(ty, &wanted).await?)
    }

    /// How much of their shares these tenants have used: more is later in turn.
    pub(crate) async fn used(
        &self,
        tenants: HashSet<Option<Tenant>>,
    ) -> jobs::Result<HashMap<Option<Tenant>, i64>> {
        let tenants = Vec::from_iter(tenants);
        let used = self.0.jobs.vtimes(&self.0.ty, &tenants).await?;
        Ok(tenants.into_iter().zip(used).collect())
    }

    /// `GET /_scheduler/shares`: up to `limit` tenants with work or with shares of their own, by name, from the one after
    /// `after` on.
    pub async fn shares(&self, after: Option<&str>, limit: usize) -> Result<Value, ServiceError> {
        let snapshot = self.snapshot().await?;
        let place = after.map(tenant_named);
        let uses = (self.0.jobs)
            .tenants(&self.0.ty, place.as_ref(), limit.saturating_add(1))
            .await?;
        let mut more = uses.len() > limit;
        let mut rows = BTreeMap::new();
        for used in uses {
            // Jobs of an earlier version may have none.
            if let Some(tenant) = used.tenant {
                rows.insert(tenant, (used.shares, used.ahead_ms));
            }
        }
        let later = |tenant: &&Tenant| place.as_ref().is_none_or(|place| *tenant > place);
        for tenant in snapshot.tenants.keys().filter(later) {
            rows.entry(tenant.clone())
                .or_insert((jobs::SHARES_DEFAULT, 0));
        }
        more |= rows.len() > limit;
        let shown = rows
            .into_iter()
            .take(limit)
            .map(|(tenant, (shares, ahead_ms))| {
                let work = snapshot.tenants.get(&tenant).copied().unwrap_or_default();
                json!({
                    "name": String::from_utf8_lossy(tenant.as_bytes()),
                    "shares": shares,
                    "running": work.running,
                    "idle": work.idle,
                    "waiting": work.waiting,
                    "ahead_sec": ahead_ms.div_euclid(1000),
                })
            });
        let shown: Vec<Value> = shown.collect();
        let mut page = snapshot.head();
        if let Some(last) = shown.last().filter(|_| more) {
            page["after"] = last["name"].clone();
        }
        page["shares"] = shown.into();
        Ok(page)
    }
}
