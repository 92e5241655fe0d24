//! Chooses among due jobs, one class after another, and starts them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join5;
use store::{RangeOptions, Transaction, read_all};

use super::candidates::{Candidate, Heads, Search, choose};
use super::tenants::First;
use super::{Accepted, Claim};
use crate::model::header::{Header, State};
use crate::model::keys::Position;
use crate::model::limits::Rules;
use crate::model::machine::{Event, Wait};
use crate::operations::effects::Effects;
use crate::operations::limits::slots::Admission;
use crate::operations::tenants::START_MS;
use crate::testing::planted::Bug;
use crate::{Class, Jobs, Result, Sharing};

/// Approximate maximum of data per claim: it must be read within the transaction's time limit.
const CLAIM_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Approximate maximum of data that a claim reads, with that of jobs that have to wait for their limits.
const READ_BYTES_MAX: usize = 4 * CLAIM_BYTES_MAX;
/// Further jobs that a claim looks at once, if some of the first have to wait for their limits.
pub(super) const HELD_MAX: usize = 64;

/// What a claim has done so far.
pub(super) struct Taking<'a> {
    pub(super) effects: Effects<'a>,
    pub(super) timeout: Duration,
    /// The settings of the type's limits, if the process has used any.
    rules: Option<Arc<Rules>>,
    /// Until when tenants are charged for the jobs.
    pub(super) charged_ms: Option<i64>,
    pub(super) jobs: Vec<Accepted>,
    /// Jobs that wait for their limits.
    pub(super) held: usize,
    /// More jobs were due than were wanted.
    pub(super) left_over: bool,
    pub(super) next_due_ms: Option<i64>,
    /// The size of the data of the jobs, and of all that was read.
    bytes: usize,
    read_bytes: usize,
    /// Some of the last candidates were left out, because they had too much data.
    pub(super) cut: bool,
    pub(super) full: bool,
}

impl Jobs {
    /// Takes due jobs of the first class, then of the next, until there are as many as wanted.
    pub(super) async fn take_all<'a>(
        &'a self,
        tx: &'a Transaction,
        claim: &Claim,
    ) -> Result<Taking<'a>> {
        let wanted = claim.locks.len();
        let of_class = |class| Search {
            claim,
            class,
            wanted,
        };
        let normal = of_class(Class::Normal);
        // Read with the rest, because one read after another is what claims on a slow store have no time for.
        let first = async {
            if claim.turn.shared {
                return Box::pin(self.first_turns(tx, claim)).await.map(Some);
            }
            Ok(None)
        };
        let (heads, other, (timeout, sharing), first, rules) = try_join5(
            self.heads(tx, &normal),
            self.other_class(tx, claim),
            self.claimed_type_in(tx, &claim.ty),
            first,
            self.expected_rules(tx, &claim.ty),
        )
        .await?;
        let charged_ms = claim.op.now_ms.saturating_add(START_MS);
        let mut taking = Taking {
            effects: self.effects(tx, claim.op.now_ms).await?,
            timeout,
            rules,
            charged_ms: (sharing != Sharing::Off).then_some(charged_ms),
            jobs: Vec::new(),
            held: 0,
            left_over: false,
            next_due_ms: None,
            bytes: 0,
            read_bytes: 0,
            cut: false,
            full: wanted == 0,
        };
        (self.turns()).share(&claim.ty, sharing == Sharing::On);
        if sharing == Sharing::On {
            let heads = (heads, other);
            Box::pin(self.take_of_tenants(tx, claim, heads, first, &mut taking)).await?;
            return Ok(taking);
        }
        if sharing == Sharing::Ended {
            Box::pin(self.take_shared(tx, claim, first, &mut taking)).await?;
        }
        if other == Some(Class::Urgent) {
            let urgent = self.heads(tx, &of_class(Class::Urgent)).await?;
            self.take(tx, claim, urgent, &mut taking).await?;
        }
        self.take(tx, claim, heads, &mut taking).await?;
        if other.is_some() && !taking.full {
            let bulk = Search {
                wanted: wanted - taking.jobs.len(),
                ..of_class(Class::Bulk)
            };
            let bulk = self.heads(tx, &bulk).await?;
            self.take(tx, claim, bulk, &mut taking).await?;
        }
        Ok(taking)
    }

    /// Takes due jobs of a type that tenants share.
    async fn take_of_tenants(
        &self,
        tx: &Transaction,
        claim: &Claim,
        (heads, other): (Heads, Option<Class>),
        first: Option<First>,
        taking: &mut Taking<'_>,
    ) -> Result<()> {
        if let Some(first) = first
            .as_ref()
            .filter(|_| other.is_none() && !claim.turn.busy)
        {
            if (self.take_everything(tx, claim, &heads, first, taking)).await? {
                return Ok(());
            }
            self.turns().hurry(&claim.ty, true);
        }
        let (early, joined) = (self.join_tenants(tx, claim, (heads, other), taking)).await?;
        let first = first.filter(|_| !joined);
        self.take_shared(tx, claim, first, taking).await?;
        if !early.is_empty() {
            let heads = Heads::due(Class::Normal, early);
            self.take(tx, claim, heads, taking).await?;
        }
        self.turns().hurry(&claim.ty, taking.full);
        Ok(())
    }

    /// The first class besides the normal one that has ready or scheduled jobs.
    async fn other_class(&self, tx: &Transaction, claim: &Claim) -> Result<Option<Class>> {
        let range = self.keys().other_classes(&claim.ty);
        let row = (tx.snapshot()).get_range(range, RangeOptions::limit(1));
        let row = row.collect().await?.pop();
        let candidate = row.and_then(|row| Candidate::of(self, &claim.ty, &row));
        Ok(candidate.and_then(|candidate| candidate.class()))
    }

    /// Takes jobs of one class.
    async fn take(
        &self,
        tx: &Transaction,
        claim: &Claim,
        heads: Heads,
        taking: &mut Taking<'_>,
    ) -> Result<()> {
        let search = Search {
            claim,
            class: heads.class,
            wanted: claim.locks.len() - taking.jobs.len(),
        };
        taking.left_over |= heads.len() > search.wanted;
        let next_due_ms = [taking.next_due_ms, heads.next_due_ms];
        taking.next_due_ms = next_due_ms.into_iter().flatten().min();
        if taking.full {
            return Ok(());
        }
        let (held_before, more) = (taking.held, heads.more);
        let (candidates, mut others) = if heads.lanes.len() == 0 {
            choose(heads.due, search.wanted, claim, tx.attempt())
        } else {
            let chosen = self.take_turns(heads.due, heads.lanes, &search, tx.attempt());
            (chosen, Vec::new())
        };
        let mut next = candidates;
        loop {
            let all = next.len();
            let pending = self.pending(tx, claim, next, taking).await?;
            let held = self.start(tx, claim, pending, taking).await?;
            taking.held += held;
            taking.full |= taking.cut || taking.jobs.len() >= claim.locks.len();
            let has_held = taking.held > held_before;
            if !has_held || all == 0 || taking.full {
                // Jobs of this class that were not read may be able to start: later classes wait for the next claim.
                taking.full |= has_held && more;
                return Ok(());
            }
            // Others may start in place of those that have to wait.
            next = others.split_off(others.len().saturating_sub(HELD_MAX));
        }
    }

    /// Starts jobs whose limits have slots, as many as there are locks; the others wait behind their limits. Returns the
    /// number of those.
    pub(super) async fn start(
        &self,
        tx: &Transaction,
        claim: &Claim,
        pending: Vec<(Candidate, Arc<Header>, Bytes)>,
        taking: &mut Taking<'_>,
    ) -> Result<usize> {
        let Taking {
            effects,
            jobs,
            timeout,
            rules,
            bytes,
            ..
        } = taking;
        let limited = pending.iter().map(|(_, header, _)| header);
        let limited: Vec<_> = limited.filter(|header| header.is_limited()).collect();
        let mut supplies =
            (self.supplies(tx, &claim.op, &claim.ty, limited.into_iter(), rules.clone())).await?;
        let (locks, mut held, mut waiting) = (claim.locks(), 0, Vec::new());
        for (candidate, pending, data) in pending {
            let Some(lock) = locks.get(jobs.len()) else {
                break;
            };
            let times = (candidate.since_ms, pending.asked_ms());
            let admission = supplies.admit(&pending);
            if let Admission::Hold(_, Wait::For(which)) = &admission
                && let Some(limit) = pending.limit(*which)
                && pending.class() < Class::Bulk
            {
                waiting.push((limit.clone(), pending.class()));
            }
            let mut header = Some(pending);
            let event = match admission {
                Admission::Start(slots) => Event::Accept {
                    lock: *lock,
                    holder: claim.holder(jobs.len()),
                    slots,
                },
                Admission::Hold(taken, wait) => {
                    let event = Event::Hold { taken, wait };
                    effects.run(&claim.ty, &candidate.id, &mut header, event)?;
                    held += 1;
                    continue;
                }
            };
            effects.run(&claim.ty, &candidate.id, &mut header, event)?;
            if let Some(header) = header {
                *bytes += data.len();
                let accepted = claim.accepted(candidate.id, &header, data, *lock, times);
                accepted.job.run.set_timeout(*timeout);
                jobs.push(accepted);
            }
        }
        if !waiting.is_empty() {
            // Slots were freed for these jobs: no job of a later class starts before the next claim takes them.
            taking.full |= Box::pin(self.outrank(effects, tx, &claim.ty, waiting)).await?;
        }
        Ok(held)
    }

    /// The candidates that are pending where they were found, with header and key. Undecodable ones are put into quarantine.
    pub(super) async fn found(
        &self,
        tx: &Transaction,
        claim: &Claim,
        candidates: Vec<Candidate>,
    ) -> Result<Vec<(Candidate, Arc<Header>, Vec<u8>)>> {
        let ty = &claim.ty;
        let headers = read_all((candidates.iter()).map(|c| self.try_header(tx, ty, &c.id)));
        let headers = headers.await?;
        let mut found = Vec::new();
        for (candidate, header) in candidates.into_iter().zip(headers) {
            let key = self.keys().index(ty, &candidate.id, &candidate.position);
            let header = match header {
                Ok(header) => header,
                Err(error) if self.planted().is(Bug::UndecodableFailsClaim) => return Err(error),
                Err(error) => {
                    self.quarantine(tx, ty, &candidate.id, (State::Pending, &key), &error);
                    continue;
                }
            };
            let Some(header) = header.filter(|h| Position::of(h) == candidate.position) else {
                // An index row without its job. No operation leaves one; clear it rather than fail every claim.
                tx.clear(&key);
                continue;
            };
            found.push((candidate, header, key));
        }
        Ok(found)
    }

    /// The pending candidates with header and data, as many as fit. Undecodable ones are put into quarantine.
    pub(super) async fn pending(
        &self,
        tx: &Transaction,
        claim: &Claim,
        candidates: Vec<Candidate>,
        taking: &mut Taking<'_>,
    ) -> Result<Vec<(Candidate, Arc<Header>, Bytes)>> {
        let ty = &claim.ty;
        let (mut fitting, mut bytes) = (Vec::new(), taking.bytes);
        taking.cut = false;
        for found in self.found(tx, claim, candidates).await? {
            let size = found.1.data.len as usize;
            taking.full |= taking.read_bytes > 0 && taking.read_bytes + size > READ_BYTES_MAX;
            if taking.full || bytes > 0 && bytes + size > CLAIM_BYTES_MAX {
                // Those that were left out may start, unless none of the others of their tenants do.
                taking.full |= taking.bytes > 0;
                taking.cut = true;
                break;
            }
            bytes += size;
            taking.read_bytes += size;
            fitting.push(found);
        }
        let data =
            (fitting.iter()).map(|(c, header, _)| self.try_blob(tx, ty, &c.id, &header.data));
        let data = read_all(data).await?;
        let whole = fitting.into_iter().zip(data);
        let whole = whole.filter_map(|((candidate, header, key), data)| match data {
            Ok(data) => Some((candidate, header, data)),
            Err(error) => {
                self.quarantine(tx, ty, &candidate.id, (State::Pending, &key), &error);
                None
            }
        });
        Ok(whole.collect())
    }
}
