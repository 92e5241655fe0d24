//! The limits that a transaction changes: slots that it frees, and jobs that begin to wait.
//!
//! Most limits hold no job back. So a transaction that frees a slot looks for waiting jobs only if a row says that there
//! may be some. The first job that waits leaves the row, in the transaction in which it finds no slot; the transaction
//! that frees a slot and finds no waiting job clears it. A transaction that frees slots of several limits first looks
//! whether any job of the type waits, which is one read.
//!
//! The slot of a run for which no job waits is free once its row is gone, whatever the limit is by now: so the end of a
//! run reads no settings then.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use store::{RangeOptions, Transaction, read_all};

use crate::model::limits::{Slot, Taken};
use crate::operations::effects::Effects;
use crate::testing::planted::Bug;
use crate::{Error, Job, JobType, Jobs, Op, Result};

/// A slot that is not in use any more.
#[derive(Debug)]
pub(crate) struct Freed {
    pub(crate) ty: JobType,
    pub(crate) slot: Taken,
    pub(crate) free: Free,
}

/// When a slot is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Free {
    /// Now: its run has ended.
    Now,
    /// At this time: a run has begun with it, and the limit is a rate.
    At(i64),
    /// When its row says: its job was still pending.
    AsStored,
}

/// A limit of a type.
type Named = (JobType, Bytes);

/// Whether jobs may wait for limits, by type.
type Waited = BTreeMap<JobType, BTreeMap<Bytes, bool>>;

/// What a transaction knows of limits.
#[derive(Debug, Default)]
pub(crate) struct Contended {
    /// Types of which no job waits for a limit that is not in `waited`.
    quiet: BTreeSet<JobType>,
    waited: Waited,
    /// Limits that jobs begin to wait for, and slots that are freed.
    waits: BTreeSet<Named>,
    freed: Vec<Freed>,
}

impl Contended {
    pub(crate) fn wait(&mut self, ty: &JobType, limit: &Bytes) {
        self.waits.insert((ty.clone(), limit.clone()));
    }

    pub(crate) fn free(&mut self, freed: Freed) {
        self.freed.push(freed);
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.waits.is_empty() && self.freed.is_empty()
    }

    /// Whether jobs may wait for a limit.
    pub(super) fn is_waited(&self, ty: &JobType, limit: &Bytes) -> bool {
        self.known(ty, limit).unwrap_or_default()
    }

    /// Whether it was read if jobs may wait for a limit.
    fn knows(&self, ty: &JobType, limit: &Bytes) -> bool {
        self.quiet.contains(ty) || self.known(ty, limit).is_some()
    }

    fn known(&self, ty: &JobType, limit: &Bytes) -> Option<bool> {
        self.waited.get(ty)?.get(limit).copied()
    }

    /// Notes whether jobs may wait for a limit, and returns what was known before.
    fn note(&mut self, ty: JobType, limit: Bytes, waited: bool) -> Option<bool> {
        self.waited.entry(ty).or_default().insert(limit, waited)
    }

    /// Whether a slot is free once its row is gone, and no job waits for it.
    fn ends_there(&self, Freed { ty, slot, free }: &Freed) -> bool {
        *free == Free::Now && !self.is_waited(ty, &slot.0)
    }

    /// No job waits for a limit any more.
    pub(super) fn unwaited(&mut self, ty: &JobType, limit: &Bytes) {
        self.note(ty.clone(), limit.clone(), false);
    }
}

impl Jobs {
    /// Gives freed slots to waiting jobs, and marks limits that jobs begin to wait for.
    pub(crate) async fn settle_limits(
        &self,
        effects: &mut Effects<'_>,
        tx: &Transaction,
        op: &Op,
    ) -> Result<()> {
        let _alone = tx.alone();
        while !effects.limits.is_settled() {
            let waits = std::mem::take(&mut effects.limits.waits);
            let freed = std::mem::take(&mut effects.limits.freed);
            let limits = (freed.iter()).map(|freed| (&freed.ty, &freed.slot.0));
            let limits = limits.chain(waits.iter().map(|(ty, limit)| (ty, limit)));
            let unknown = limits.filter(|(ty, limit)| !effects.limits.knows(ty, limit));
            let unknown: Vec<_> = unknown.collect();
            self.read_waited(&mut effects.limits, tx, unknown).await?;
            for (ty, limit) in waits {
                self.known_limits().wait(&ty);
                let key = self.keys().waited(&ty, &limit);
                if effects.limits.note(ty, limit, true) != Some(true) {
                    tx.set(&key, &Slot::free(0).encode());
                }
            }
            for freed in self.clear_unwaited(&effects.limits, tx, freed) {
                self.free(effects, tx, freed, op).await?;
            }
        }
        Ok(())
    }

    /// What a transaction that ends these runs is going to ask. It is read with the jobs, because one read after another is
    /// what transactions on a slow store have no time for.
    pub(crate) async fn expected_ends(
        &self,
        tx: &Transaction,
        jobs: impl Iterator<Item = &Job>,
    ) -> Result<Contended> {
        let freed = jobs.flat_map(|job| {
            let limits = job.run.limits.get();
            let names = limits
                .into_iter()
                .flat_map(|limits| [&limits.key, &limits.pool]);
            names.flatten().map(|name| (&job.ty, &name.0))
        });
        let (freed, mut known) = (freed.collect::<Vec<_>>(), Contended::default());
        if !freed.is_empty() {
            Box::pin(self.read_waited(&mut known, tx, freed)).await?;
        }
        Ok(known)
    }

    /// Reads whether jobs may wait for limits of which it is not known yet.
    async fn read_waited(
        &self,
        known: &mut Contended,
        tx: &Transaction,
        mut limits: Vec<(&JobType, &Bytes)>,
    ) -> Result<()> {
        if let [(ty, limit)] = *limits {
            let waited = self.may_be_waited_for(tx, ty, limit).await?;
            known.note(ty.clone(), limit.clone(), waited);
            return Ok(());
        }
        limits.sort_unstable();
        limits.dedup();
        let mut unknown: Vec<Named> = Vec::new();
        for of_type in limits.chunk_by(|(ty, _), (other, _)| ty == other) {
            let ty = of_type[0].0;
            if of_type.len() > 1 && self.is_quiet(tx, ty, &mut known.quiet).await? {
                continue;
            }
            unknown.extend((of_type.iter()).map(|(_, limit)| (ty.clone(), (*limit).clone())));
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let read = unknown.into_iter().map(|named| async move {
            let waited = self.may_be_waited_for(tx, &named.0, &named.1).await?;
            Ok::<_, Error>((named, waited))
        });
        for ((ty, limit), waited) in read_all(read).await? {
            known.note(ty, limit, waited);
        }
        Ok(())
    }

    /// Whether there is a row that says that jobs may wait for a limit. Conflicts with the first that does.
    async fn may_be_waited_for(
        &self,
        tx: &Transaction,
        ty: &JobType,
        limit: &Bytes,
    ) -> Result<bool> {
        let key = self.keys().waited(ty, limit);
        let row = if self.planted().is(Bug::HandOverLost) {
            tx.snapshot().get(&key).await?
        } else {
            tx.get(&key).await?
        };
        Ok(row.is_some())
    }

    /// Whether no job of a type waits for any limit. If so, conflicts with the next that does.
    async fn is_quiet(
        &self,
        tx: &Transaction,
        ty: &JobType,
        quiet: &mut BTreeSet<JobType>,
    ) -> Result<bool> {
        if self.known_limits().were_waited_for(ty) {
            return Ok(false);
        }
        let range = self.keys().all_waiting(ty);
        let rows = (tx.snapshot()).get_range(range.clone(), RangeOptions::limit(1));
        if !rows.collect().await?.is_empty() {
            self.known_limits().wait(ty);
            return Ok(false);
        }
        if !self.planted().is(Bug::HandOverLost) {
            tx.add_read_conflict_range(range);
        }
        quiet.insert(ty.clone());
        Ok(true)
    }

    /// Clears the slots of ended runs that no job waits for, neighbours together. Returns the others.
    fn clear_unwaited(
        &self,
        known: &Contended,
        tx: &Transaction,
        mut freed: Vec<Freed>,
    ) -> Vec<Freed> {
        let mut ended = match &*freed {
            [one] if known.ends_there(one) => std::mem::take(&mut freed),
            _ => freed
                .extract_if(.., |freed| known.ends_there(freed))
                .collect(),
        };
        ended.sort_unstable_by(|a, b| {
            (&a.slot.0, &a.ty, a.slot.1).cmp(&(&b.slot.0, &b.ty, b.slot.1))
        });
        for of_limit in ended.chunk_by(|a, b| a.ty == b.ty && a.slot.0 == b.slot.0) {
            let (ty, limit) = (&of_limit[0].ty, &of_limit[0].slot.0);
            let numbers = of_limit.iter().map(|freed| freed.slot.1);
            if let [one] = of_limit {
                tx.clear(&self.keys().slot(ty, limit, one.slot.1));
            } else {
                for run in runs(numbers.clone().collect()) {
                    if run.len() >= RUN {
                        tx.clear_range(self.keys().slots(ty, limit, run));
                        continue;
                    }
                    for slot in run {
                        tx.clear(&self.keys().slot(ty, limit, slot));
                    }
                }
            }
            if self.known_limits().has_several(ty, limit) {
                self.freed_slots().add(ty, limit, numbers, &tx.call());
            }
        }
        freed
    }
}

/// So many neighbours are read or cleared as a range.
pub(super) const RUN: usize = 4;

/// The runs of neighbours among slots.
pub(super) fn runs(mut slots: Vec<u32>) -> Vec<Range<u32>> {
    slots.sort_unstable();
    let mut runs: Vec<Range<u32>> = Vec::new();
    for slot in slots {
        match runs.last_mut() {
            Some(run) if slot <= run.end => run.end = slot + 1,
            _ => runs.push(slot..slot + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined() {
        assert_eq!(runs(vec![7, 3, 9, 4, 8, 5]), [3..6, 7..10]);
        assert_eq!(runs(vec![4, 2, 2]), [2..3, 4..5]);
        assert!(runs(Vec::new()).is_empty());
    }
}
