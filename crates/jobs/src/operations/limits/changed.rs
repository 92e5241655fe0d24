//! Limits that were changed: jobs that wait get slots that were added, and jobs that have slots give back those that were
//! taken away.

use bytes::Bytes;
use store::{Transaction, read_all};

use super::slots::slot_in;
use super::waiting::Granted;
use super::{GRANTS, booked, usable};
use crate::model::header::{Header, Place};
use crate::model::limits::{Rule, Rules, Slot, Taken};
use crate::model::machine::{Event, Slots, Wait};
use crate::operations::effects::Effects;
use crate::testing::planted::Bug;
use crate::{Error, JobId, JobType, Jobs, Op, Result};

/// The clock of a transaction was read so long before it is committed, or less.
pub(super) const STALE_MS: i64 = 30_000;

impl Jobs {
    /// Gives slots to waiting jobs as long as there are both, after a change of the limit.
    pub(crate) async fn serve_waiting(&self, ty: &JobType, limit: &Bytes) -> Result<()> {
        loop {
            let op = self.op();
            let more = (self.store())
                .transact("serve_waiting", |tx| async move {
                    self.serve_waiting_in(&tx, &op, ty, limit).await
                })
                .await?;
            if !more {
                return Ok(());
            }
        }
    }

    async fn serve_waiting_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &JobType,
        limit: &Bytes,
    ) -> Result<bool> {
        let rules = self.limit_rules(tx, ty).await?;
        let rule = rules.of(limit);
        let mut rows = self.slots_of(tx, ty, limit).await?;
        tx.add_read_conflict_range(self.keys().slots(ty, limit, 0..u32::MAX));
        let mut effects = self.effects(tx, op.now_ms).await?;
        let (free_ms, latest_ms) = match rule.limit.per_ms {
            Some(per_ms) => {
                let per_ms = i64::try_from(per_ms).unwrap_or(i64::MAX);
                let free_ms = op.now_ms.saturating_add(per_ms);
                (free_ms, free_ms.saturating_add(STALE_MS))
            }
            None => (0, 0),
        };
        if rule.limit.per_ms.is_some() {
            // No run has it, so nothing else would free it.
            for (slot, row) in rows.iter_mut().filter(|(_, row)| row.damaged) {
                *row = Slot::free(free_ms);
                tx.set(&self.keys().slot(ty, limit, *slot), &row.encode());
            }
        }
        let mut moved = 0;
        // A shorter period frees earlier what an earlier one has booked; without a period, nothing is booked.
        for (slot, row) in rows.iter_mut().filter(|(_, row)| row.free_ms > latest_ms) {
            if !row.in_use() && rule.limit.per_ms.is_none() {
                continue;
            }
            if row.in_use() {
                let wait = rule.limit.per_ms.map_or(Wait::No, |_| Wait::Until(free_ms));
                if moved == GRANTS
                    || !self
                        .hasten(&mut effects, tx, (ty, &rules), (limit, row), wait)
                        .await?
                {
                    continue;
                }
                moved += 1;
            }
            row.free_ms = free_ms;
            tx.set(&self.keys().slot(ty, limit, *slot), &row.encode());
        }
        if rule.limit.per_ms.is_some() {
            // Runs from before it was a rate. Some have the time of a start that was booked; a later time is still to come.
            let begun = rows.iter().filter(|(_, row)| row.free_ms <= op.now_ms);
            let begun = begun.filter_map(|(slot, row)| Some((*slot, row.id.as_ref()?)));
            let running = read_all(begun.map(|(slot, id)| async move {
                let header = tx.snapshot().get(&self.keys().job(ty, id)).await?;
                let header = header.and_then(|header| Header::decode(header).ok());
                let runs = header.is_some_and(|header| header.lock().is_some());
                Ok::<_, Error>(runs.then_some((slot, id)))
            }));
            let running = running.await?.into_iter().flatten();
            for (slot, id) in running.take(GRANTS - moved) {
                let slot = (limit.clone(), slot);
                let moves = self.go_on_without(&mut effects, tx, ty, slot, id).await?;
                moved += usize::from(moves);
            }
        }
        let free = usable(&rows, rule, GRANTS, op.now_ms);
        let waiting = self.waiting_behind(tx, ty, limit, free.len()).await?;
        let mut more = moved == GRANTS || waiting.len() == GRANTS;
        if !waiting.is_empty() {
            effects.limits.wait(ty, limit);
        }
        for ((slot, free_ms), waiter) in free.into_iter().zip(waiting) {
            let slot = (limit.clone(), slot);
            let granted = (self.grant(&mut effects, tx, ty, &waiter, slot, free_ms)).await?;
            more |= granted == Granted::Damaged;
        }
        effects.flush(op).await?;
        Ok(more)
    }

    /// Lets a job with a slot start earlier than when it was given it. False if it waits for something else.
    async fn hasten(
        &self,
        effects: &mut Effects<'_>,
        tx: &Transaction,
        (ty, rules): (&JobType, &Rules),
        (limit, row): (&Bytes, &Slot),
        wait: Wait,
    ) -> Result<bool> {
        let Some(id) = &row.id else {
            return Ok(false);
        };
        // One that cannot be decoded is put into quarantine when it is due.
        let Ok(mut header) = self.try_header(tx, ty, id).await? else {
            return Ok(false);
        };
        let Some(old) = header.as_deref().filter(|old| old.place == Place::Timed) else {
            return Ok(false);
        };
        let is_other = |name: &Bytes| name != limit && rules.of(name).limit.per_ms.is_some();
        for (other, slot) in old.taken().iter().filter(|(name, _)| is_other(name)) {
            let key = self.keys().slot(ty, other, *slot);
            let row = (tx.get(&key).await?).map(|row| slot_in(ty, &key, row));
            // One that was free when the job got it is not waited for: a change of its limit would not hasten the job.
            if row.is_some_and(|row| row.free_ms > 0) {
                return Ok(false);
            }
        }
        let taken = old.taken().to_vec();
        effects.run(ty, id, &mut header, Event::Hold { taken, wait })?;
        Ok(true)
    }

    /// Takes a slot from a running job. False if the job is not running.
    async fn go_on_without(
        &self,
        effects: &mut Effects<'_>,
        tx: &Transaction,
        ty: &JobType,
        slot: Taken,
        id: &JobId,
    ) -> Result<bool> {
        let Ok(mut header) = self.try_header(tx, ty, id).await? else {
            return Ok(false);
        };
        let Some((old, lock)) = header.as_deref().and_then(|old| Some((old, old.lock()?))) else {
            return Ok(false);
        };
        let mut slots = Slots {
            taken: old.taken().to_vec(),
            spent: Vec::new(),
        };
        slots.taken.retain(|other| *other != slot);
        let event = Event::Slots {
            lock,
            slots,
            repeated: false,
        };
        effects.run(ty, id, &mut header, event)?;
        Ok(true)
    }

    /// How many more slots are in use of a limit that was lowered than it has now.
    pub(super) async fn excess(
        &self,
        tx: &Transaction,
        ty: &JobType,
        limit: &Bytes,
        rule: Rule,
    ) -> Result<usize> {
        if self.planted().is(Bug::LoweredTooLate) {
            return Ok(0);
        }
        let all = self.keys().slots(ty, limit, 0..rule.end());
        let rows = self.slot_rows(tx, ty, all.clone()).await?;
        tx.add_read_conflict_range(all);
        Ok(booked(&rows).saturating_sub(rule.limit.max as usize))
    }
}
