//! Classes rank above slots: a job that has a slot but has not started gives it up to a job of an earlier class.
//!
//! Without this, a job of a late class would keep its slot for as long as earlier classes keep all holders busy, and so delay
//! those of their jobs that need the same slot.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bytes::Bytes;
use futures::future::try_join_all;
use store::Transaction;

use crate::model::header::Header;
use crate::model::limits::{Taken, Which};
use crate::model::machine::{Event, Wait};
use crate::operations::effects::Effects;
use crate::testing::planted::Bug;
use crate::{Class, JobId, JobType, Jobs, Result, State};

/// How many slots of a limit are searched, from the first.
const SLOTS_MAX: u32 = 16;

impl Header {
    /// Which limit a slot belongs to, if the job has it and has not started.
    fn idle_slot(&self, slot: &Taken) -> Option<Which> {
        let waits = self.state() == State::Pending && self.taken().contains(slot);
        let is_limit = |which: &Which| self.limit(*which) == Some(&slot.0);
        Which::ALL.into_iter().find(is_limit).filter(|_| waits)
    }
}

impl Jobs {
    /// Jobs of these classes begin to wait for limits. Pending ones of later classes give back their slots, which then go to
    /// the first class that waits. Returns whether any did.
    pub(crate) async fn outrank(
        &self,
        effects: &mut Effects<'_>,
        tx: &Transaction,
        ty: &JobType,
        waiting: Vec<(Bytes, Class)>,
    ) -> Result<bool> {
        let mut by_limit: BTreeMap<Bytes, Vec<Class>> = BTreeMap::new();
        for (limit, class) in waiting {
            by_limit.entry(limit).or_default().push(class);
        }
        let read = by_limit.into_iter().map(|(limit, mut classes)| async move {
            classes.sort_unstable();
            if let (Some(first), Some(last)) =
                (classes.first(), self.last_waiting(tx, ty, &limit).await?)
                && self.keys().waiting_job(ty, &last.key)?.0 > *first
                && !self.planted().is(Bug::OutranksBlindly)
            {
                // A run that ends meanwhile may give one of a later class its slot, which would not be seen here.
                tx.add_read_conflict_range(self.keys().slots(ty, &limit, 0..SLOTS_MAX));
            }
            let mut outranked = self.idle_slots(tx, ty, &limit).await?;
            // The last class first, and of a rate its next start.
            outranked.sort_by_key(|(class, free_ms, ..)| (Reverse(*class), *free_ms));
            let pairs = outranked.into_iter().zip(classes);
            let pairs = pairs.filter(|((later, ..), class)| later > class);
            Ok::<_, crate::Error>(pairs.map(|((.., id, slot), _)| (id, slot)).collect())
        });
        let outranked: Vec<Vec<(JobId, Taken)>> = try_join_all(read).await?;
        let mut any = false;
        for (id, slot) in outranked.into_iter().flatten() {
            // This conflicts with claims of the job.
            let mut header = self.header(tx, ty, &id).await?;
            let Some(old) = header.as_deref() else {
                continue;
            };
            let Some(which) = old.idle_slot(&slot) else {
                continue;
            };
            // With its key it gives back its pool: it takes its key first.
            let taken = old.taken().iter().take_while(|other| **other != slot);
            let taken = taken.cloned().collect();
            let wait = Wait::For(which);
            effects.run(ty, &id, &mut header, Event::Hold { taken, wait })?;
            any = true;
        }
        Ok(any)
    }

    /// The jobs that have slots of a limit and have not started. Conflicts with nothing.
    async fn idle_slots(
        &self,
        tx: &Transaction,
        ty: &JobType,
        limit: &Bytes,
    ) -> Result<Vec<(Class, i64, JobId, Taken)>> {
        let range = self.keys().slots(ty, limit, 0..SLOTS_MAX);
        let rows = self.slot_rows(tx, ty, range).await?;
        let read = rows.into_iter().map(|(n, row)| async move {
            let Some(id) = row.id else { return Ok(None) };
            let slot = (limit.clone(), n);
            let header = tx.snapshot().get(&self.keys().job(ty, &id)).await?;
            // One that cannot be decoded is put into quarantine by the claims that choose it.
            let header = header.and_then(|header| Header::decode(header).ok());
            let idle = header.filter(|header| header.idle_slot(&slot).is_some());
            Ok::<_, crate::Error>(idle.map(|header| (header.class(), row.free_ms, id, slot)))
        });
        Ok(try_join_all(read).await?.into_iter().flatten().collect())
    }
}
