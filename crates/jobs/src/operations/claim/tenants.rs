//! Claims of a type that tenants share: the tenant that was served least is next.
//!
//! Scheduled jobs that are due join the others of their tenant first, so that they take turns, too. While they are scheduled,
//! they are in the lane of their tenant: many of one tenant do not hide those of another.
//!
//! Only if there are more jobs than claims want: else a claim takes all that are due, and no tenant has to wait.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{try_join, try_join_all};
use rand::RngExt;
use store::{KeyRange, RangeOptions, Transaction};

use super::Claim;
use super::candidates::{Candidate, Heads, Search, choose};
use super::take::{HELD_MAX, Taking};
use crate::model::header::Header;
use crate::model::ids::SHARDS;
use crate::model::machine::{Event, Wait};
use crate::operations::tenants::tidy::{IDLE_MAX, Turn, Untidy, turn_of};
use crate::operations::tenants::{Few, SHARES_DEFAULT, START_MS, WINDOW, cost};
use crate::testing::planted::Bug;
use crate::{Class, JobId, Jobs, Result};

/// Maximum turns that a claim reads at once, and how often it reads more because the first tenants have too few jobs.
const WINDOW_MAX: usize = 256;
const WINDOWS: usize = 4;
/// Due jobs that join those of their tenants in one claim, if it wants fewer.
const JOIN_MIN: usize = 32;
/// A tenant with so many more jobs than a claim takes of it has many.
const FEW_JOBS: usize = 4;
/// A claim that was tried in vain chooses among tenants that are so many starts apart.
const SPREAD: i64 = 4;

/// A tenant with a turn.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is found out by another read"
)]
#[derive(Debug)]
struct Sharer {
    turn: Turn,
    vtime: i64,
    shares: u32,
    /// When it was served last in this claim.
    served: Option<i64>,
    /// It has ready jobs, and more of them than were read.
    found: bool,
    more: bool,
    /// Whether its jobs were looked for, and all of them have been read.
    looked: bool,
    ended: bool,
    /// None of the jobs that were read last could start.
    blocked: bool,
    /// The claim has taken all of its ready jobs.
    emptied: bool,
}

/// The turns that a claim looks at first, with where more begin, and the virtual time of the tenant that was served last.
pub(super) struct First {
    last: i64,
    turns: (Vec<Sharer>, Option<Bytes>),
}

impl Jobs {
    /// Due jobs that are not among those of their tenants join them. Returns those that are due only by the claim's horizon,
    /// and whether any have joined.
    pub(super) async fn join_tenants(
        &self,
        tx: &Transaction,
        claim: &Claim,
        (heads, other): (Heads, Option<Class>),
        taking: &mut Taking<'_>,
    ) -> Result<(Vec<Candidate>, bool)> {
        let of_class = |class| Search {
            claim,
            class,
            wanted: claim.locks.len().max(JOIN_MIN),
        };
        let mut all = vec![heads];
        if other.is_some() {
            let [urgent, bulk] = [Class::Urgent, Class::Bulk].map(of_class);
            let (urgent, bulk) = try_join(self.heads(tx, &urgent), self.heads(tx, &bulk)).await?;
            all.extend([urgent, bulk]);
        }
        let (mut early, mut joined) = (Vec::new(), false);
        for heads in all {
            let search = of_class(heads.class);
            taking.left_over |= heads.len() > search.wanted;
            let next_due_ms = [taking.next_due_ms, heads.next_due_ms];
            taking.next_due_ms = next_due_ms.into_iter().flatten().min();
            let chosen = if heads.lanes.len() == 0 {
                choose(heads.due, search.wanted, claim, tx.attempt()).0
            } else {
                self.take_turns(heads.due, heads.lanes, &search, tx.attempt())
            };
            let is_due = |job: &Candidate| job.due_ms().is_none_or(|ms| ms <= claim.op.now_ms);
            let (due, later): (Vec<_>, Vec<_>) = chosen.into_iter().partition(is_due);
            early.extend(later);
            for (candidate, header, _) in self.found(tx, claim, due).await? {
                let mut header = Some(header);
                (taking.effects).run(&claim.ty, &candidate.id, &mut header, Event::Share)?;
                joined = true;
            }
        }
        if joined {
            // The claim itself looks at them; it wakes another acceptor if some are left.
            taking.effects.wake_none(&claim.ty);
            self.settle_tenants(&mut taking.effects, tx).await?;
        }
        Ok((early, joined))
    }

    /// The turns that a claim looks at first.
    pub(super) async fn first_turns(&self, tx: &Transaction, claim: &Claim) -> Result<First> {
        let (last, turns) = try_join(
            self.last_vtime(tx, &claim.ty),
            self.turns_at_first(tx, claim),
        )
        .await?;
        let (sharers, after) = &turns;
        let first = sharers.first().filter(|_| after.is_some());
        let first = first.map(|Sharer { turn, .. }| {
            let key = self.keys().turn(&claim.ty, &turn.tenant, turn.vtime);
            (turn.tenant.0, key.into())
        });
        self.turns().begin(&claim.ty, first);
        Ok(First { last, turns })
    }

    async fn turns_at_first(
        &self,
        tx: &Transaction,
        claim: &Claim,
    ) -> Result<(Vec<Sharer>, Option<Bytes>)> {
        if let Some((class, key)) = claim.turn.first() {
            let [before, rest] = self.keys().turns_from(&claim.ty, *class, key);
            let (before, (mut sharers, after)) = try_join(
                self.turns_in(tx, claim, before),
                self.turns_in(tx, claim, rest),
            )
            .await?;
            if before.1.is_some() {
                return Ok(before);
            }
            if after.is_some() {
                sharers.splice(0..0, before.0);
                return Ok((sharers, after));
            }
        }
        let all = self.keys().turns(&claim.ty, None);
        self.turns_in(tx, claim, all).await
    }

    /// Claims all due jobs and all ready ones, unless there are more than the claim wants. No tenant has to wait for its turn
    /// then, so due jobs need not join the others of their tenants. Returns whether it has claimed them.
    pub(super) async fn take_everything(
        &self,
        tx: &Transaction,
        claim: &Claim,
        heads: &Heads,
        first: &First,
        taking: &mut Taking<'_>,
    ) -> Result<bool> {
        let (sharers, after) = &first.turns;
        let room = claim.locks.len().saturating_sub(heads.len());
        if room == 0 || after.is_some() || sharers.len() > WINDOW {
            return Ok(false);
        }
        let ready = sharers.iter();
        let ready = ready.map(|sharer| self.ready_of(tx, claim, &sharer.turn, room));
        let ready = try_join_all(ready).await?;
        let all: usize = ready.iter().map(|(found, _)| found.len()).sum();
        if all > room || ready.iter().any(|(_, more)| *more) {
            return Ok(false);
        }
        let (mut served, mut untidy) = (first.last, Untidy::default());
        let mut candidates: Vec<_> = (heads.all().into_iter())
            .map(|job| (heads.class, job))
            .collect();
        for (sharer, (found, _)) in sharers.iter().zip(ready) {
            let known = &mut taking.effects.sharers;
            known.know(&claim.ty, &sharer.turn.tenant.1, sharer.shares);
            if found.is_empty() {
                untidy.idle(&sharer.turn);
            } else {
                served = served.max(sharer.vtime);
            }
            let class = sharer.turn.tenant.0;
            candidates.extend(found.into_iter().map(|job| (class, job)));
        }
        taking.next_due_ms = heads.next_due_ms;
        // Two of them may need the same slot.
        candidates.sort_by_key(|(class, _)| *class);
        let candidates = candidates.into_iter().map(|(_, job)| job).collect();
        let pending = self.pending(tx, claim, candidates, taking).await?;
        taking.full |= taking.cut;
        let pending = self.put_back_early(claim, pending, taking)?;
        taking.held += self.start(tx, claim, pending, taking).await?;
        if served > first.last {
            self.set_last_vtime(tx, &claim.ty, served);
        }
        claim.memo().untidy = untidy;
        Ok(true)
    }

    /// Takes ready jobs of the tenants that were served least.
    pub(super) async fn take_shared(
        &self,
        tx: &Transaction,
        claim: &Claim,
        first: Option<First>,
        taking: &mut Taking<'_>,
    ) -> Result<()> {
        let First { last, turns } = match first {
            Some(first) => first,
            None => self.first_turns(tx, claim).await?,
        };
        let mut rest = self.keys().turns(&claim.ty, None);
        let (mut served, mut ended, mut untidy) = (last, false, Untidy::default());
        // A class in which some were left out: no job of a later one starts before the next claim has looked at them.
        let (mut blocked, mut turns) = (None, Some(turns));
        for _ in 0..WINDOWS {
            if taking.full || ended {
                break;
            }
            let (mut sharers, after) = match turns.take() {
                Some(turns) => turns,
                None => self.turns_in(tx, claim, rest.clone()).await?,
            };
            ended = after.is_none();
            rest.begin = after.unwrap_or(rest.begin);
            for Sharer { turn, shares, .. } in &sharers {
                let known = &mut taking.effects.sharers;
                known.know(&claim.ty, &turn.tenant.1, *shares);
            }
            for of_class in sharers.chunk_by_mut(|a, b| a.turn.tenant.0 == b.turn.tenant.0) {
                let class = of_class.first().map(|sharer| sharer.turn.tenant.0);
                if blocked.is_some() && blocked != class {
                    taking.full = true;
                    break;
                }
                if self.serve(tx, claim, (of_class, !ended), taking).await? {
                    blocked = class;
                }
            }
            let left = sharers.iter().filter(|sharer| sharer.emptied).count() > IDLE_MAX;
            // Not again after a conflict, which this may have been the reason for.
            let left = left && tx.attempt() == 1;
            for sharer in &sharers {
                served = sharer.served.map_or(served, |vtime| served.max(vtime));
                if left && sharer.emptied {
                    self.leave(tx, &claim.ty, &sharer.turn);
                    continue;
                }
                taking.left_over |= sharer.more || !sharer.looked && sharer.turn.idle_ms == 0;
                if sharer.looked && !sharer.found {
                    untidy.idle(&sharer.turn);
                } else if !ended {
                    untidy.served(&sharer.turn, sharer.vtime);
                }
            }
        }
        taking.full |= blocked.is_some();
        if served > last {
            self.set_last_vtime(tx, &claim.ty, served);
        }
        if !taking.full && !ended {
            // Others may have jobs.
            taking.held += 1;
        }
        claim.memo().untidy = untidy;
        Ok(())
    }

    /// The tenants with the first turns of a range, and where more begin.
    async fn turns_in(
        &self,
        tx: &Transaction,
        claim: &Claim,
        range: KeyRange,
    ) -> Result<(Vec<Sharer>, Option<Bytes>)> {
        let all = self.keys().turns(&claim.ty, None);
        let window = (2 * claim.locks.len()).clamp(WINDOW, WINDOW_MAX);
        let rows = (tx.snapshot()).get_range(range, RangeOptions::limit(window));
        let rows = async { Ok(rows.collect().await?) };
        let (rows, few) = try_join(rows, self.few_shares(tx, &claim.ty)).await?;
        let last = rows.last().filter(|_| rows.len() == window);
        let after = last.map(|row| Bytes::from([&*row.key, &[0]].concat()));
        let turns = rows.iter().filter_map(|row| turn_of(&claim.ty, &all, row));
        let sharers = turns.map(|turn| self.sharer(tx, claim, turn, few.as_ref()));
        Ok((try_join_all(sharers).await?, after))
    }

    async fn sharer(
        &self,
        tx: &Transaction,
        claim: &Claim,
        turn: Turn,
        few: Option<&Few>,
    ) -> Result<Sharer> {
        let (vtime, shares) = self.standing(tx, &claim.ty, &turn.tenant.1, few).await?;
        Ok(Sharer {
            turn,
            vtime,
            shares,
            served: None,
            found: false,
            more: false,
            looked: false,
            ended: false,
            blocked: false,
            emptied: false,
        })
    }

    /// Takes jobs of tenants, in one class. True if some were left out whose jobs had to wait for limits, and who have more.
    async fn serve(
        &self,
        tx: &Transaction,
        claim: &Claim,
        (sharers, crowded): (&mut [Sharer], bool),
        taking: &mut Taking<'_>,
    ) -> Result<bool> {
        if let Some(first) = sharers.first_mut() {
            first.ended = self.planted().is(Bug::TenantSkipped);
        }
        let held_max = HELD_MAX + HELD_MAX.max(claim.locks.len());
        let mut blocked = false;
        while !taking.full && taking.held <= held_max {
            let wanted = claim.locks.len() - taking.jobs.len();
            let mut plan = plan(sharers, wanted, claim, tx.attempt());
            if plan.is_empty() {
                break;
            }
            // Larger batches come last, so that they do not take the seats of others.
            plan.sort_by_key(|(nth, _)| sharers[*nth].blocked);
            let read = plan.iter().map(|(nth, count)| {
                let turn = &sharers[*nth].turn;
                self.next_of(tx, claim, turn, *count, crowded)
            });
            let (mut candidates, mut whose) = (Vec::new(), BTreeMap::<JobId, usize>::new());
            let mut left = vec![0; sharers.len()];
            for ((nth, _), (found, more)) in plan.iter().zip(try_join_all(read).await?) {
                let sharer = &mut sharers[*nth];
                (sharer.looked, sharer.more, sharer.ended) = (true, more, !more);
                sharer.found |= !found.is_empty();
                left[*nth] = found.len();
                whose.extend(found.iter().map(|job| (job.id.clone(), *nth)));
                candidates.extend(found);
            }
            let started = taking.jobs.len();
            let pending = self.pending(tx, claim, candidates, taking).await?;
            let pending = self.put_back_early(claim, pending, taking)?;
            taking.held += self.start(tx, claim, pending, taking).await?;
            taking.full |= taking.jobs.len() >= claim.locks.len();
            let mut starts = vec![false; sharers.len()];
            for accepted in &taking.jobs[started..] {
                if let Some(nth) = whose.get(&accepted.job.id) {
                    let sharer = &mut sharers[*nth];
                    sharer.served = Some(sharer.vtime);
                    sharer.vtime += cost(START_MS, sharer.shares);
                    left[*nth] -= 1;
                    starts[*nth] = true;
                }
            }
            for (nth, _) in plan {
                let sharer = &mut sharers[nth];
                if taking.cut && left[nth] > 0 {
                    (sharer.more, sharer.ended) = (true, false);
                }
                sharer.emptied = sharer.found && sharer.ended && left[nth] == 0;
                let again = sharer.blocked || taking.held > HELD_MAX;
                sharer.blocked = !starts[nth] && sharer.more;
                if sharer.blocked && again {
                    (sharer.ended, blocked) = (true, true);
                }
            }
        }
        Ok(blocked)
    }

    /// Jobs that a node with a faster clock found due are scheduled again.
    fn put_back_early(
        &self,
        claim: &Claim,
        pending: Vec<(Candidate, Arc<Header>, Bytes)>,
        taking: &mut Taking<'_>,
    ) -> Result<Vec<(Candidate, Arc<Header>, Bytes)>> {
        let horizon_ms = self.horizon_ms(&Search {
            claim,
            class: Class::Normal,
            wanted: 0,
        });
        let is_early = |header: &Header| header.due_ms > horizon_ms && header.taken().is_empty();
        let (early, due): (Vec<_>, Vec<_>) =
            (pending.into_iter()).partition(|(_, header, _)| is_early(header));
        for (candidate, header, _) in early {
            let due_ms = header.due_ms;
            let event = Event::Hold {
                taken: Vec::new(),
                wait: Wait::Until(due_ms),
            };
            (taking.effects).run(&claim.ty, &candidate.id, &mut Some(header), event)?;
            let next_due_ms = taking.next_due_ms.map_or(due_ms, |next| next.min(due_ms));
            taking.next_due_ms = Some(next_due_ms);
        }
        Ok(due)
    }

    /// [`Self::ready_of`]. If there are many tenants, most have few jobs, and one read is enough.
    async fn next_of(
        &self,
        tx: &Transaction,
        claim: &Claim,
        turn: &Turn,
        count: usize,
        crowded: bool,
    ) -> Result<(Vec<Candidate>, bool)> {
        if crowded {
            let (class, wanted) = (turn.tenant.0, count);
            let search = Search {
                claim,
                class,
                wanted,
            };
            let all = self.keys().shared_by(&claim.ty, &turn.tenant);
            let found = self.candidates(tx, &search, all, count + FEW_JOBS).await?;
            if found.len() < count + FEW_JOBS {
                let (found, others) = choose(found, count, claim, tx.attempt());
                return Ok((found, !others.is_empty()));
            }
        }
        self.ready_of(tx, claim, turn, count).await
    }

    /// Up to `count` ready jobs of a tenant, and whether there are more.
    async fn ready_of(
        &self,
        tx: &Transaction,
        claim: &Claim,
        turn: &Turn,
        count: usize,
    ) -> Result<(Vec<Candidate>, bool)> {
        let shard = claim.rng(tx.attempt()).random_range(0..SHARDS);
        let (after, before) = self.keys().shared_around(&claim.ty, &turn.tenant, shard);
        let search = Search {
            claim,
            class: turn.tenant.0,
            wanted: count,
        };
        let (mut found, before) = try_join(
            self.candidates(tx, &search, after, count + 1),
            self.candidates(tx, &search, before, count + 1),
        )
        .await?;
        found.extend(before);
        let more = found.len() > count;
        found.truncate(count);
        Ok((found, more))
    }
}

/// How many jobs to take of each of some tenants: always the next of the one with the least virtual time. One whose last
/// jobs all had to wait for limits gets a larger batch.
fn plan(sharers: &[Sharer], wanted: usize, claim: &Claim, attempt: u32) -> Vec<(usize, usize)> {
    let (mut rng, step) = (claim.rng(attempt), cost(START_MS, SHARES_DEFAULT));
    let mut next: BinaryHeap<_> = (sharers.iter().enumerate())
        .filter(|(_, sharer)| !sharer.ended)
        .map(|(nth, sharer)| {
            // Claims that run at once choose the same tenants, which matters if these have few jobs.
            let apart = if attempt > 1 {
                rng.random_range(0..=SPREAD * step)
            } else {
                0
            };
            // By chance among those that are equal.
            Reverse((sharer.vtime + apart, rng.random::<u32>(), nth))
        })
        .collect();
    let mut counts = BTreeMap::new();
    for _ in 0..wanted {
        let Some(Reverse((vtime, chance, nth))) = next.pop() else {
            break;
        };
        *counts.entry(nth).or_insert(0) += 1;
        let vtime = vtime + cost(START_MS, sharers[nth].shares);
        next.push(Reverse((vtime, chance, nth)));
    }
    let more = HELD_MAX / counts.len().max(1);
    for (nth, count) in &mut counts {
        if sharers[*nth].blocked {
            *count = more.max(*count);
        }
    }
    counts.into_iter().collect()
}
