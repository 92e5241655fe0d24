//! Limits of a type: their settings, and who uses them.
//!
//! ```text
//! claim     reads   LIMIT (type), SLOT it takes          writes  SLOT
//!           or, if there is none, all SLOT of the limit  writes  PENDING 2: the job waits
//!                                                                SLOT: jobs may wait ([`contended`]), unless known
//!           of a limit that was lowered, all SLOT        writes  SLOT, cleared: a job that was given one gives it back
//!           or, if jobs wait, JOB of those with slots    writes  SLOT, cleared: of pending jobs of later classes
//! end       reads   SLOT: may jobs wait                  writes  SLOT, cleared
//!           or PENDING 2 of the type, for several limits
//!           and, if they may, LIMIT (type), PENDING 2    writes  SLOT: for the first job that waits
//!           of the limit
//! ```
//!
//! So two claims of one slot conflict, and so do a claim that finds no slot and an end that finds no job: one of them
//! runs again and sees the other. Settings are cached with their version, and a transaction that relies on them
//! reads the version.

mod changed;
mod check;
mod cold;
pub(crate) mod contended;
mod orphans;
mod outrank;
mod relax;
pub(crate) mod settings;
pub(crate) mod slots;
mod waiting;
pub(crate) mod walk;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use futures::future::try_join_all;
use store::{RangeOptions, Transaction};

use crate::model::keys::Keys;
use crate::model::limits::{LIMIT_SLOTS_MAX, LimitName, Rule, Rules, Slot};
use crate::{Error, JobId, JobType, Jobs, Limit, Op, Result, telemetry};

/// Waiting jobs that are counted.
const WAITING_MAX: usize = 1_000;
/// Jobs that one transaction gives slots, or takes them from.
const GRANTS: usize = 100;
/// Maximum settings of a type.
const SETTINGS_MAX: usize = 1_000;

/// Who uses a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitUse {
    /// Its setting, or that of its group.
    pub limit: Limit,
    /// The jobs that have a slot. Those not running will start soon, or when the rate lets them.
    pub jobs: Vec<JobId>,
    /// The number of jobs that wait for a slot, counted up to 1,000.
    pub waiting: usize,
}

impl Jobs {
    /// Sets a limit of a type, or of the group of this name, or with `None` removes the setting: then it is that of its
    /// group, or else one at a time. Where more jobs run than the new limit allows, none starts until enough have ended.
    ///
    /// A limit that changes between concurrent runs and a rate counts runs that start from then on.
    pub async fn set_limit(
        &self,
        ty: &JobType,
        name: &LimitName,
        limit: Option<Limit>,
    ) -> Result<()> {
        let op = self.op();
        (self.store())
            .transact("set_limit", |tx| async move {
                self.set_limit_in(&tx, &op, ty, name, limit).await
            })
            .await?;
        self.serve_limit(ty, name).await
    }

    /// [`Self::set_limit`] in the caller's transaction, with an `op` of its own. Jobs that wait for a limit that was raised
    /// wait until maintenance serves it, unless it is [served](Self::serve_limit): for up to a minute, or longer if jobs
    /// wait for tens of thousands of limits.
    pub async fn set_limit_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &JobType,
        name: &LimitName,
        limit: Option<Limit>,
    ) -> Result<()> {
        let mut rules = self.limit_rules(tx, ty).await?;
        if self.write_limit(tx, ty, Arc::make_mut(&mut rules), name, limit)? {
            self.change_limits(tx, ty, op);
        }
        Ok(())
    }

    /// Makes these the limits of a type that have a setting, in the caller's transaction, like [`Self::set_limit_in`].
    pub async fn replace_limits_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &JobType,
        wanted: &BTreeMap<LimitName, Limit>,
    ) -> Result<()> {
        // Those that this process knows may have been damaged since.
        let mut rules = self.rules_after(tx, ty, None).await?;
        let set = rules.set().map(|(name, _)| LimitName(name.clone()));
        let damaged = rules.damaged.iter().cloned().map(LimitName);
        let gone = set.chain(damaged);
        let gone: Vec<_> = gone.filter(|name| !wanted.contains_key(name)).collect();
        let gone = gone.iter().map(|name| (name, None));
        let mut changed = false;
        for (name, limit) in gone.chain(wanted.iter().map(|(name, limit)| (name, Some(*limit)))) {
            changed |= self.write_limit(tx, ty, Arc::make_mut(&mut rules), name, limit)?;
        }
        if changed {
            self.change_limits(tx, ty, op);
        }
        Ok(())
    }

    /// Sets a limit, or removes its setting, in `rules` as well; false if it already is as it shall be.
    fn write_limit(
        &self,
        tx: &Transaction,
        ty: &JobType,
        rules: &mut Rules,
        name: &LimitName,
        limit: Option<Limit>,
    ) -> Result<bool> {
        if limit.is_some_and(|limit| limit.max > LIMIT_SLOTS_MAX) {
            return Err(Error::Invalid(
                "a limit is at most 10,000; a higher rate needs a shorter period",
            ));
        }
        if limit.is_some_and(|limit| limit.per_ms == Some(0)) {
            return Err(Error::Invalid("the period of a limit is at least 1 ms"));
        }
        let old = rules.of(name.as_bytes());
        let known = rules.set().any(|(known, _)| *known == name.0);
        let damaged = rules.damaged.remove(&name.0);
        if !damaged && known == limit.is_some() && limit.is_none_or(|limit| limit == old.limit) {
            return Ok(false);
        }
        if limit.is_some() && !known && rules.set().count() >= SETTINGS_MAX {
            return Err(Error::Invalid(
                "a type has at most 1,000 limits with a setting: set one for a group, as in GROUP|NAME",
            ));
        }
        // A damaged setting may have been as high as any.
        let end = if damaged { LIMIT_SLOTS_MAX } else { old.end() };
        let rule = match limit {
            Some(limit) => Some(Rule::new(limit, end)),
            None => rules.without(&name.0, end),
        };
        self.write_rule(tx, ty, &name.0, rule);
        match rule {
            Some(rule) => rules.by_name.insert(name.0.clone(), rule),
            None => rules.by_name.remove(&name.0),
        };
        Ok(true)
    }

    fn write_rule(&self, tx: &Transaction, ty: &JobType, name: &[u8], rule: Option<Rule>) {
        let key = self.keys().limit(ty, name);
        match rule {
            Some(rule) => tx.set(&key, &rule.encode()),
            None => tx.clear(&key),
        }
    }

    /// Makes transactions that have read the settings start over.
    fn change_limits(&self, tx: &Transaction, ty: &JobType, op: &Op) {
        // Each attempt may write other settings, and an earlier one may be committed.
        let version = op.id(tx.attempt() as usize).to_be_bytes();
        tx.set(&self.keys().limits_version(ty), &version);
    }

    /// Gives free slots of a limit, or of those of its group, to jobs that wait for them, after [`Self::set_limit_in`].
    pub async fn serve_limit(&self, ty: &JobType, name: &LimitName) -> Result<()> {
        for limit in self.limits_in_use(ty, name).await? {
            self.serve_waiting(ty, &limit).await?;
        }
        Ok(())
    }

    /// The limits of a type that have a setting.
    pub async fn limits(&self, ty: &JobType) -> Result<BTreeMap<LimitName, Limit>> {
        let rules = (self.store())
            .transact(
                "limits",
                |tx| async move { self.limit_rules(&tx, ty).await },
            )
            .await?;
        Ok((rules.set())
            .map(|(name, rule)| (LimitName(name.clone()), rule.limit))
            .collect())
    }

    /// Who uses a limit of a type.
    pub async fn limit_use(&self, ty: &JobType, name: &LimitName) -> Result<LimitUse> {
        self.read("limit_use", |tx| async move {
            let rules = self.limit_rules(&tx, ty).await?;
            let rule = rules.of(name.as_bytes());
            let slots = self.slots_of(&tx, ty, name.as_bytes()).await?;
            let waiting = (tx.snapshot()).get_range(
                self.keys().waiting(ty, name.as_bytes()),
                RangeOptions::limit(WAITING_MAX),
            );
            Ok(LimitUse {
                limit: rule.limit,
                jobs: slots
                    .into_values()
                    .filter_map(|slot: Slot| slot.id)
                    .collect(),
                waiting: waiting.collect().await?.len(),
            })
        })
        .await
    }

    /// Which of these limits jobs wait for.
    pub async fn limits_waited_for(&self, ty: &JobType, names: &[LimitName]) -> Result<Vec<bool>> {
        self.read("limits_waited_for", |tx| async move {
            let waits = names.iter().map(|name| {
                let range = self.keys().waiting(ty, name.as_bytes());
                let rows = (tx.snapshot()).get_range(range, RangeOptions::limit(1));
                async move { Ok::<_, Error>(!rows.collect().await?.is_empty()) }
            });
            try_join_all(waits).await
        })
        .await
    }

    /// [`Self::limit_rules`] for a transaction that may need them, of a type whose limits this process has used.
    pub(crate) async fn expected_rules(
        &self,
        tx: &Transaction,
        ty: &JobType,
    ) -> Result<Option<Arc<Rules>>> {
        match self.known_limits().get(ty) {
            Some(known) => self.rules_after(tx, ty, Some(known)).await.map(Some),
            None => Ok(None),
        }
    }

    /// The settings of a type's limits. A transaction that relies on them conflicts with changing them.
    pub(crate) async fn limit_rules(&self, tx: &Transaction, ty: &JobType) -> Result<Arc<Rules>> {
        self.rules_after(tx, ty, self.known_limits().get(ty)).await
    }

    /// [`Self::limit_rules`], which may still be the known ones.
    pub(crate) async fn rules_after(
        &self,
        tx: &Transaction,
        ty: &JobType,
        known: Option<Arc<Rules>>,
    ) -> Result<Arc<Rules>> {
        let version = tx.get(&self.keys().limits_version(ty)).await?;
        if let Some(known) = known.filter(|known| known.version == version) {
            return Ok(known);
        }
        let rules = Box::pin(self.read_rules(tx, ty)).await?;
        let rules = Rules { version, ..rules };
        Ok(self.known_limits().set(ty, rules))
    }

    async fn read_rules(&self, tx: &Transaction, ty: &JobType) -> Result<Rules> {
        let mut rules = Rules::default();
        let range = self.keys().limits(ty);
        let mut rows = (tx.snapshot()).get_range(range.clone(), RangeOptions::default());
        while let Some(row) = rows.next().await? {
            let report = |error: &Error| telemetry::undecodable(ty, &row.key, error);
            let name = Keys::limit_name(&range, &row.key).inspect_err(report);
            let Ok(Some(name)) = name else { continue };
            match Rule::decode(row.value).inspect_err(report) {
                Ok(rule) => _ = rules.by_name.insert(name, rule),
                Err(_) => _ = rules.damaged.insert(name),
            }
        }
        Ok(rules)
    }
}

/// The number of slots that jobs have. The others are not free yet for a rate.
fn booked(rows: &BTreeMap<u32, Slot>) -> usize {
    rows.values().filter(|slot| slot.in_use()).count()
}

/// Slots below the maximum that can be given to jobs, earliest first, when these are in use or not free yet.
fn usable(
    rows: &BTreeMap<u32, Slot>,
    rule: Rule,
    wanted: usize,
    now_ms: i64,
) -> VecDeque<(u32, i64)> {
    let max = rule.limit.max;
    if rule.limit.per_ms.is_some() {
        let mut free: Vec<(u32, i64)> = (0..max)
            .filter_map(|n| match rows.get(&n) {
                Some(slot) if slot.in_use() => None,
                Some(slot) => Some((n, slot.free_ms.max(0))),
                None => Some((n, 0)),
            })
            .collect();
        free.sort_by_key(|(_, free_ms)| (*free_ms).max(now_ms));
        free.truncate(wanted);
        return free.into();
    }
    let left = (max as usize).saturating_sub(booked(rows)).min(wanted);
    let free = (0..max).filter(|n| rows.get(n).is_none_or(|slot| !slot.in_use()));
    free.map(|n| (n, 0)).take(left).collect()
}
