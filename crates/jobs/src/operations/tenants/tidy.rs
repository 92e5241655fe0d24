//! Keeps the turns of tenants in order: puts those back that were served, and removes those without ready jobs.
//!
//! A turn that is out of order costs nothing while all turns fit into the window of a claim. One whose tenant has no ready
//! jobs stays for [`GRACE_MS`], because its next job often follows; if there are many of them, they go at once.
//! Claims note what they see, and it is done in a transaction of its own, so that claims do not conflict over it.

use bytes::Bytes;
use futures::future::try_join_all;
use store::{Call, KeyRange, RangeOptions, Transaction};

use super::UNIT;
use crate::model::keys::{InClass, Keys, vtime_in};
use crate::operations::page::page;
use crate::testing::planted::Bug;
use crate::{Class, JobType, Jobs, Result, Sharing, TypeConfig, telemetry};

/// How long a tenant without ready jobs keeps its turn.
const GRACE_MS: i64 = 30_000;
/// So many may have one.
pub(crate) const IDLE_MAX: usize = 8;
/// A turn may be so far behind the virtual time of its tenant.
const LAG: i64 = 2 * UNIT;
/// Turns that are changed after one claim.
const TIDY_MAX: usize = 32;
/// Rows that one transaction of maintenance looks at.
const ROWS: usize = 500;
/// The virtual time of a tenant without a turn is forgotten when it is so far behind that of the others.
const COLD: i64 = 600_000 * UNIT / 100;

/// A turn that a claim has seen.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub(crate) tenant: InClass,
    /// That of its key.
    pub(crate) vtime: i64,
    /// Since when the tenant has been seen without ready jobs; 0 if it has not.
    pub(crate) idle_ms: i64,
}

/// Turns to be changed.
#[derive(Debug, Default)]
pub(crate) struct Untidy {
    late: Vec<Turn>,
    idle: Vec<Turn>,
}

impl Untidy {
    /// A tenant that has now this virtual time.
    pub(crate) fn served(&mut self, turn: &Turn, vtime: i64) {
        if vtime - turn.vtime > LAG && self.late.len() < TIDY_MAX {
            self.late.push(turn.clone());
        }
    }

    pub(crate) fn idle(&mut self, turn: &Turn) {
        if self.idle.len() < TIDY_MAX {
            self.idle.push(turn.clone());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.late.is_empty() && self.idle.is_empty()
    }

    /// Whether there are more turns without ready jobs than are left alone.
    pub(crate) fn is_crowded(&self) -> bool {
        self.idle.len() > IDLE_MAX
    }

    /// Leaves what can wait.
    pub(crate) fn due(mut self, now_ms: i64) -> Option<Self> {
        if !self.is_crowded() {
            let is_due = |turn: &Turn| turn.idle_ms == 0 || turn.is_over(now_ms);
            self.idle.retain(is_due);
        }
        (!self.is_empty()).then_some(self)
    }
}

impl Turn {
    fn is_over(&self, now_ms: i64) -> bool {
        self.idle_ms != 0 && now_ms.saturating_sub(self.idle_ms) >= GRACE_MS
    }
}

impl Jobs {
    /// Changes turns. It is no loss if that fails: the next claim notes them again.
    pub(crate) async fn tidy(&self, ty: &JobType, untidy: Untidy) {
        let now_ms = self.clock().now_ms();
        let Some(untidy) = &untidy.due(now_ms) else {
            return;
        };
        let call = Call::new("clear_tenants").contention_max(0).not_durable();
        let tidied = self.store().transact(call, |tx| async move {
            for turn in &untidy.late {
                self.put_back(&tx, ty, turn).await?;
            }
            let crowded = untidy.is_crowded();
            for turn in &untidy.idle {
                if crowded || turn.is_over(now_ms) {
                    self.remove_turn(&tx, ty, turn).await?;
                } else {
                    let key = self.keys().turn(ty, &turn.tenant, turn.vtime);
                    if tx.get(&key).await?.is_some() {
                        tx.set(&key, &now_ms.to_be_bytes());
                    }
                }
            }
            Ok::<_, crate::Error>(())
        });
        if let Err(error) = tidied.await {
            tracing::debug!(job.ty = %ty, error = %error.chain(), "cannot tidy the turns of tenants");
        }
    }

    /// Moves a turn to just before the virtual time of its tenant.
    async fn put_back(&self, tx: &Transaction, ty: &JobType, turn: &Turn) -> Result<()> {
        let key = self.keys().turn(ty, &turn.tenant, turn.vtime);
        let vtime = self.vtime_of(tx, ty, &turn.tenant.1).await? - 1;
        if vtime > turn.vtime
            && let Some(value) = tx.get(&key).await?
        {
            tx.clear(&key);
            tx.set(&self.keys().turn(ty, &turn.tenant, vtime), &value);
        }
        Ok(())
    }

    /// Removes the turn of a tenant without ready jobs, as this transaction has found by snapshot reads or made it.
    pub(crate) fn leave(&self, tx: &Transaction, ty: &JobType, turn: &Turn) {
        let key = self.keys().turn(ty, &turn.tenant, turn.vtime);
        if !self.planted().is(Bug::TenantLeavesBlindly) {
            tx.add_read_conflict_range(self.keys().shared_by(ty, &turn.tenant));
            tx.add_read_conflict_range(KeyRange::key(&key));
        }
        tx.clear(&key);
        tx.clear(&self.keys().there(ty, &turn.tenant));
    }

    /// Removes a turn, unless there is a ready job.
    async fn remove_turn(&self, tx: &Transaction, ty: &JobType, turn: &Turn) -> Result<()> {
        let key = self.keys().turn(ty, &turn.tenant, turn.vtime);
        let range = self.keys().shared_by(ty, &turn.tenant);
        let ready = if self.planted().is(Bug::TenantLeavesBlindly) {
            let rows = tx.snapshot().get_range(range, RangeOptions::limit(1));
            rows.collect().await?
        } else {
            (tx.get_range(range, RangeOptions::limit(1)))
                .collect()
                .await?
        };
        if ready.is_empty() && tx.get(&key).await?.is_some() {
            tx.clear(&key);
            tx.clear(&self.keys().there(ty, &turn.tenant));
        }
        Ok(())
    }

    /// Forgets tenants that are gone for long, from this key on, or from the first; returns where to continue.
    pub(crate) async fn forget_tenants(
        &self,
        ty: &JobType,
        from: Option<&Bytes>,
    ) -> Result<Option<Bytes>> {
        let call = Call::batch("forget_tenants");
        (self.store())
            .transact(call, |tx| async move {
                self.forget_tenants_in(&tx, ty, from).await
            })
            .await
    }

    async fn forget_tenants_in(
        &self,
        tx: &Transaction,
        ty: &JobType,
        from: Option<&Bytes>,
    ) -> Result<Option<Bytes>> {
        let all = self.keys().vtimes(ty);
        let (rows, next) = page(tx, &all, from, ROWS).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        let turn = (tx.snapshot()).get_range(self.keys().turns(ty, None), RangeOptions::limit(1));
        let idle = turn.collect().await?.is_empty();
        self.find_turns(tx, ty, idle).await?;
        let served = self.last_vtime(tx, ty).await?;
        let floors = Class::ALL.map(|class| self.floor(tx, ty, class));
        let floors = try_join_all(floors).await?;
        // Forgotten only if it is far behind in every class that it may return to.
        let least = floors.into_iter().fold(served, i64::min);
        let (mut latest, mut cold) = (served, Vec::new());
        for row in &rows {
            let Some(tenant) = Keys::tenant_of(&all, &row.key)? else {
                continue;
            };
            let vtime = vtime_in(Some(&row.value));
            let vtime = vtime.inspect_err(|error| telemetry::undecodable(ty, &row.key, error));
            let Ok(vtime) = vtime else { continue };
            latest = latest.max(vtime);
            if vtime < least - COLD {
                cold.push(tenant);
            }
        }
        if idle && latest > served {
            // Holders may have been busy for some tenants while none waited.
            self.set_last_vtime(tx, ty, latest);
        }
        for tenant in cold {
            let mut there = false;
            for class in Class::ALL {
                let key = self.keys().there(ty, &(class, tenant.clone()));
                there |= tx.get(&key).await?.is_some();
            }
            if !there {
                for class in Class::ALL {
                    // A tenant that returns conflicts with this.
                    let key = self.keys().there(ty, &(class, tenant.clone()));
                    tx.add_write_conflict_range(KeyRange::key(&key));
                }
                tx.clear(&self.keys().vtime(ty, &tenant));
            }
        }
        Ok(next)
    }

    /// A type that was registered again without tenants still has their jobs.
    async fn find_turns(&self, tx: &Transaction, ty: &JobType, idle: bool) -> Result<()> {
        let config = self.type_config_in(tx, ty).await?;
        let off = |config: &TypeConfig| config.sharing == Sharing::Off;
        if let Some(config) = config.filter(|config| !idle && off(config)) {
            let sharing = Sharing::Ended;
            self.set_type_in(tx, ty, TypeConfig { sharing, ..config })
                .await?;
        }
        Ok(())
    }
}

/// The turn in a row of ORDER.
pub(crate) fn turn_of(ty: &JobType, all: &KeyRange, row: &store::KeyValue) -> Option<Turn> {
    let turn = Keys::turn_of(all, &row.key);
    let (tenant, vtime) =
        (turn.inspect_err(|error| telemetry::undecodable(ty, &row.key, error))).ok()?;
    let idle_ms = (*row.value).try_into().map_or(0, i64::from_be_bytes);
    Some(Turn {
        tenant,
        vtime,
        idle_ms,
    })
}
