//! Takes slots for claims, and gives freed ones to jobs that wait.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use store::{KeyRange, RangeOptions, Transaction, read_all};

use super::changed::STALE_MS;
use super::contended::{Free, Freed, RUN, runs};
use super::waiting::Granted;
use super::{GRANTS, booked, usable};
use crate::model::header::Header;
use crate::model::keys::Keys;
use crate::model::limits::{Rule, Rules, Slot, Taken, Which};
use crate::model::machine::{Slots, Wait};
use crate::operations::effects::Effects;
use crate::testing::planted::{Bug, Planted};
use crate::{Error, JobType, Jobs, Limit, Op, Result, State, telemetry};

/// Slots that a claim looks at first, if a limit has more.
const WINDOW: u32 = 256;
/// A freed slot goes to one of so many that have waited longest, so that ends of runs do not choose the same.
const WAITING: usize = 16;

/// Slots of a limit that a claim may take, and when each is free.
#[derive(Debug)]
struct Supply {
    rule: Rule,
    free: VecDeque<(u32, i64)>,
    /// So many slots are in use beyond the maximum.
    excess: usize,
}

impl Supply {
    /// Whether a job that was given this slot gives it back, because the limit was lowered since.
    fn takes_back(&mut self, slot: u32) -> bool {
        let Limit { max, per_ms } = self.rule.limit;
        if per_ms.is_some() {
            return slot >= max;
        }
        let takes_back = self.excess > 0;
        self.excess -= usize::from(takes_back);
        takes_back
    }
}

/// When a run starts whose job was given a slot for this time. Its claim may have read the clock before that.
pub(crate) fn started_ms(now_ms: i64, booked_ms: i64) -> i64 {
    now_ms.max(booked_ms.min(now_ms.saturating_add(STALE_MS)))
}

/// The slot in a row; in use if it cannot be decoded.
pub(super) fn slot_in(ty: &JobType, key: &[u8], value: Bytes) -> Slot {
    let slot = Slot::decode(value);
    (slot.inspect_err(|error| telemetry::undecodable(ty, key, error)))
        .unwrap_or_else(|_| Slot::damaged())
}

/// Whether a due job can start.
#[derive(Debug)]
pub(crate) enum Admission {
    Start(Slots),
    Hold(Vec<Taken>, Wait),
}

/// The slots that a claim may take.
#[derive(Debug)]
pub(crate) struct Supplies {
    now_ms: i64,
    /// In the order of their limits.
    by_limit: Vec<(Bytes, Supply)>,
    /// Whether one of the limits is a rate.
    rates: bool,
    planted: Planted,
}

impl Supplies {
    fn of(&mut self, limit: &Bytes) -> Option<&mut Supply> {
        let found = self.by_limit.binary_search_by(|(name, _)| name.cmp(limit));
        Some(&mut self.by_limit.get_mut(found.ok()?)?.1)
    }

    /// Takes slots for a job.
    pub(crate) fn admit(&mut self, header: &Header) -> Admission {
        let mut taken = header.taken().to_vec();
        for which in Which::ALL {
            let Some(limit) = header.limit(which) else {
                continue;
            };
            if let Some(nth) = taken.iter().position(|(name, _)| name == limit) {
                let supply = self.of(limit);
                let pending = header.state() == State::Pending;
                if pending && supply.is_some_and(|supply| supply.takes_back(taken[nth].1)) {
                    // With its key it gives back its pool: it takes its key first.
                    taken.truncate(nth);
                    return Admission::Hold(taken, Wait::For(which));
                }
                continue;
            }
            if !taken.is_empty() && self.planted.is(Bug::PoolIgnored) {
                continue;
            }
            let free = (self.of(limit)).and_then(|supply| supply.free.pop_front());
            let Some((slot, free_ms)) = free else {
                return Admission::Hold(taken, Wait::For(which));
            };
            taken.push((limit.clone(), slot));
            if free_ms > self.now_ms {
                return Admission::Hold(taken, Wait::Until(free_ms));
            }
        }
        if !self.rates {
            let spent = Vec::new();
            return Admission::Start(Slots { taken, spent });
        }
        let (now_ms, unspent) = (self.now_ms, self.planted.is(Bug::RateUnspent));
        let mut per_ms = |limit: &Bytes| self.of(limit)?.rule.limit.per_ms;
        let (spent, taken) = (taken.into_iter()).partition(|(limit, _)| per_ms(limit).is_some());
        let spent: Vec<Taken> = spent;
        let mut until = |limit: &Bytes| {
            let per_ms = per_ms(limit)?;
            let from_ms = if header.taken().iter().any(|(name, _)| name == limit) {
                started_ms(now_ms, header.due_ms)
            } else {
                now_ms
            };
            Some(from_ms.saturating_add(i64::try_from(per_ms).unwrap_or(i64::MAX)))
        };
        let spent = spent.into_iter().map(|slot| {
            let free_ms = until(&slot.0).filter(|_| !unspent).unwrap_or_default();
            (slot, free_ms)
        });
        Admission::Start(Slots {
            taken,
            spent: spent.collect(),
        })
    }
}

impl Jobs {
    /// Slots for these jobs, as far as there are any, by these settings or those that it reads.
    pub(crate) async fn supplies(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &JobType,
        jobs: impl Iterator<Item = &Arc<Header>>,
        expected: Option<Arc<Rules>>,
    ) -> Result<Supplies> {
        // The limits, and whether the jobs have slots already.
        let mut wanted: Vec<(&Bytes, bool)> = Vec::new();
        for header in jobs {
            for limit in Which::ALL
                .into_iter()
                .filter_map(|which| header.limit(which))
            {
                let has = header.taken().iter().any(|(name, _)| name == limit);
                wanted.push((limit, has));
            }
        }
        wanted.sort_unstable();
        let mut by_limit = Vec::new();
        if !wanted.is_empty() {
            let rules = match expected {
                Some(rules) => rules,
                None => self.limit_rules(tx, ty).await?,
            };
            let supply = |jobs: &[(&Bytes, bool)]| {
                let (limit, had) = jobs[jobs.len() - 1];
                let (limit, rule) = (limit.clone(), rules.of(limit));
                let wanted = jobs.iter().filter(|(_, has)| !has).count();
                async move {
                    let (mut free, mut excess) = (VecDeque::new(), 0);
                    if wanted > 0 && rule.is_lock() {
                        let is_free = self.is_lock_free(tx, ty, &limit).await?;
                        free.extend(is_free.then_some((0, 0)));
                    } else {
                        free = Box::pin(self.free_slots(tx, op, ty, &limit, rule, wanted)).await?;
                        if had && rule.over > rule.limit.max {
                            excess = self.excess(tx, ty, &limit, rule).await?;
                        }
                    }
                    Ok::<_, Error>((limit, Supply { rule, free, excess }))
                }
            };
            by_limit = if wanted[0].0 == wanted[wanted.len() - 1].0 {
                vec![supply(&wanted).await?]
            } else {
                read_all(wanted.chunk_by(|a, b| a.0 == b.0).map(supply)).await?
            };
        }
        Ok(Supplies {
            now_ms: op.now_ms,
            rates: (by_limit.iter())
                .any(|(_, Supply { rule, .. }): &(Bytes, Supply)| rule.limit.per_ms.is_some()),
            by_limit,
            planted: self.planted(),
        })
    }

    /// Up to `wanted` slots that can be taken. If there are fewer, conflicts with freeing another.
    async fn free_slots(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &JobType,
        limit: &Bytes,
        rule: Rule,
        wanted: usize,
    ) -> Result<VecDeque<(u32, i64)>> {
        let (max, mut free) = (rule.limit.max, VecDeque::new());
        if wanted == 0 {
            return Ok(free);
        }
        let all = || self.keys().slots(ty, limit, 0..rule.end());
        if rule.limit.per_ms.is_none() && rule.over <= max {
            let mut known =
                (self.freed_slots()).take(ty, limit, wanted, (&tx.call(), tx.attempt() > 1));
            known.retain(|slot| *slot < max);
            let of_known = if let [slot] = *known {
                self.free_of(tx, ty, limit, slot..slot + 1).await?
            } else {
                let read = (runs(known.clone()).into_iter())
                    .map(|slots| async move { self.free_of(tx, ty, limit, slots).await });
                read_all(read).await?.concat()
            };
            if of_known.len() < known.len() {
                known.retain(|slot| !of_known.contains(slot));
                (self.freed_slots()).forget(ty, limit, &known);
            }
            free.extend(of_known.into_iter().map(|slot| (slot, 0)));
            if free.len() >= wanted || max == 0 || self.is_waited_for(tx, ty, limit).await? {
                return Ok(free);
            }
            let mut rng = SmallRng::seed_from_u64(op.seed() ^ u64::from(tx.attempt()));
            let from = rng.random_range(0..=max.saturating_sub(WINDOW));
            let window = from..max.min(from + WINDOW);
            let all = (max > WINDOW).then_some(0..max);
            for window in [Some(window), all].into_iter().flatten() {
                let range = self.keys().slots(ty, limit, window.clone());
                let rows = self.slot_rows(tx, ty, range).await?;
                let mut others: Vec<u32> = window
                    .filter(|slot| !rows.contains_key(slot))
                    .filter(|slot| free.iter().all(|(known, _)| known != slot))
                    .collect();
                // Neighbours: they are taken and freed together, and two claims take all in common or none.
                let first = rng.random_range(0..=others.len());
                others.rotate_left(first);
                let missing = wanted - free.len();
                (self.freed_slots()).choose(ty, limit, &mut others, missing, &tx.call());
                self.keep_free(tx, ty, limit, &others);
                free.extend(others.into_iter().map(|slot| (slot, 0)));
                if free.len() >= wanted {
                    return Ok(free);
                }
            }
        }
        // Few or none are free, or some are taken beyond the maximum: all of them count.
        let rows = self.slot_rows(tx, ty, all()).await?;
        self.conflict(tx, all());
        Ok(usable(&rows, rule, wanted, op.now_ms))
    }

    /// Whether the slot of a limit that has only one is free.
    async fn is_lock_free(&self, tx: &Transaction, ty: &JobType, limit: &Bytes) -> Result<bool> {
        let key = self.keys().slot(ty, limit, 0);
        let row = tx.snapshot().get(&key).await?;
        let slot = row.map(|row| slot_in(ty, &key, row));
        // When it is free again counts for a rate, which this may have been.
        let is_free = slot.is_none_or(|slot| !slot.in_use());
        if is_free || !self.is_waited_for(tx, ty, limit).await? {
            self.conflict(tx, KeyRange::key(&key));
        }
        Ok(is_free)
    }

    /// Those of neighbouring slots that are free, and stay so until this transaction takes them. A slot that was freed after
    /// this transaction began to read is in use for it; that it was freed is no conflict.
    async fn free_of(
        &self,
        tx: &Transaction,
        ty: &JobType,
        limit: &Bytes,
        slots: Range<u32>,
    ) -> Result<Vec<u32>> {
        let mut free = Vec::new();
        if slots.len() >= RUN {
            let range = self.keys().slots(ty, limit, slots.clone());
            let rows = self.slot_rows(tx, ty, range).await?;
            free.extend(slots.filter(|slot| !rows.contains_key(slot)));
            self.keep_free(tx, ty, limit, &free);
            return Ok(free);
        }
        for slot in slots {
            let key = self.keys().slot(ty, limit, slot);
            if tx.snapshot().get(&key).await?.is_none() {
                free.push(slot);
                self.conflict(tx, KeyRange::key(&key));
            }
        }
        Ok(free)
    }

    /// Conflicts with others that take these slots.
    fn keep_free(&self, tx: &Transaction, ty: &JobType, limit: &Bytes, slots: &[u32]) {
        for slots in runs(slots.to_vec()) {
            self.conflict(tx, self.keys().slots(ty, limit, slots));
        }
    }

    /// Adds a read conflict on slots that were read from a snapshot.
    fn conflict(&self, tx: &Transaction, slots: KeyRange) {
        if !self.planted().is(Bug::SlotReadBlindly) {
            tx.add_read_conflict_range(slots);
        }
    }

    /// The slots in a range, by number.
    pub(super) async fn slot_rows(
        &self,
        tx: &Transaction,
        ty: &JobType,
        range: KeyRange,
    ) -> Result<BTreeMap<u32, Slot>> {
        let mut slots = BTreeMap::new();
        let mut rows = tx.snapshot().get_range(range, RangeOptions::default());
        while let Some(row) = rows.next().await? {
            match Keys::slot_number(&row.key) {
                Ok(number) => _ = slots.insert(number, slot_in(ty, &row.key, row.value)),
                Err(error) => telemetry::undecodable(ty, &row.key, &error),
            }
        }
        Ok(slots)
    }

    /// The slots of a limit that are in use or not free yet.
    pub(super) async fn slots_of(
        &self,
        tx: &Transaction,
        ty: &JobType,
        limit: &[u8],
    ) -> Result<BTreeMap<u32, Slot>> {
        let range = self.keys().slots(ty, limit, 0..u32::MAX);
        self.slot_rows(tx, ty, range).await
    }

    /// A slot is not in use any more: gives it to a job that waits, or frees it.
    pub(super) async fn free(
        &self,
        effects: &mut Effects<'_>,
        tx: &Transaction,
        freed: Freed,
        op: &Op,
    ) -> Result<()> {
        let Freed { ty, slot, free } = freed;
        let (ty, limit, key) = (&ty, &slot.0, self.keys().slot(&ty, &slot.0, slot.1));
        let rule = self.limit_rules(tx, ty).await?.of(limit);
        let spent_ms = match free {
            Free::At(free_ms) => Some(free_ms),
            Free::Now | Free::AsStored => None,
        };
        let mut until_ms = 0;
        if rule.limit.per_ms.is_some() {
            let row = tx.get(&key).await?.map(|row| slot_in(ty, &key, row));
            if spent_ms.is_some() && row.as_ref().is_some_and(|row| row.id.is_some()) {
                // The claim that has used it has given it to another job.
                return Ok(());
            }
            until_ms = spent_ms.unwrap_or_else(|| row.map_or(0, |row| row.free_ms));
        }
        let free_ms = until_ms;
        tx.clear(&key);
        if slot.1 >= rule.limit.max {
            // It stays free, unless too few are in use below the maximum.
            let rows = self.slots_of(tx, ty, limit).await?;
            tx.add_read_conflict_range(self.keys().slots(ty, limit, 0..rule.end()));
            let free = usable(&rows, rule, 1, op.now_ms);
            for (other, free_ms) in free {
                self.offer(effects, tx, (ty, rule), (limit.clone(), other), free_ms, op)
                    .await?;
            }
            return Ok(());
        }
        if rule.limit.per_ms.is_none() && rule.over > rule.limit.max {
            let rows = self.slots_of(tx, ty, limit).await?;
            tx.add_read_conflict_range(self.keys().slots(ty, limit, 0..rule.end()));
            if booked(&rows) >= rule.limit.max as usize {
                return Ok(());
            }
        }
        let offered = self
            .offer(effects, tx, (ty, rule), slot.clone(), free_ms, op)
            .await?;
        if !offered {
            // Also when it is free already: the claim that takes it may have read its clock earlier.
            if free_ms > 0 {
                tx.set(&key, &Slot::free(free_ms).encode());
            } else if rule.limit.max > 1 && rule.limit.per_ms.is_none() {
                let freed = std::iter::once(slot.1);
                self.freed_slots().add(ty, limit, freed, &tx.call());
            }
        }
        Ok(())
    }

    /// Gives a free slot to a job that waits for it, if there is one.
    async fn offer(
        &self,
        effects: &mut Effects<'_>,
        tx: &Transaction,
        (ty, rule): (&JobType, Rule),
        slot: Taken,
        free_ms: i64,
        op: &Op,
    ) -> Result<bool> {
        let waited = effects.limits.is_waited(ty, &slot.0);
        if !waited || self.planted().is(Bug::WaitersSkipped) {
            return Ok(false);
        }
        let mut choice = (rule.limit.max as usize).clamp(1, WAITING);
        if self.planted().is(Bug::LastWaiterFirst) {
            choice = GRANTS;
        }
        let mut damaged = 0;
        loop {
            let (known, mut waiting) =
                (damaged, self.waiting_behind(tx, ty, &slot.0, choice).await?);
            if waiting.is_empty() {
                tx.clear(&self.keys().waited(ty, &slot.0));
                effects.limits.unwaited(ty, &slot.0);
            }
            let first = waiting.first().map(|waiter| waiter.class);
            waiting.retain(|waiter| Some(waiter.class) == first);
            let mut rng =
                SmallRng::seed_from_u64(op.seed() ^ u64::from(tx.attempt()) ^ u64::from(slot.1));
            waiting.shuffle(&mut rng);
            if self.planted().is(Bug::LastWaiterFirst) {
                waiting.sort_by_key(|waiter| std::cmp::Reverse(waiter.id.clone()));
            }
            for waiter in waiting {
                match (self.grant(effects, tx, ty, &waiter, slot.clone(), free_ms)).await? {
                    Granted::Yes => return Ok(true),
                    Granted::No => {}
                    Granted::Damaged => damaged += 1,
                }
            }
            // Those behind many undecodable ones are served by maintenance.
            if damaged == known || damaged >= WAITING {
                return Ok(false);
            }
        }
    }
}
