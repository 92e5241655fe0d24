//! The jobs that wait for a limit.

use bytes::Bytes;
use store::{KeyRange, KeyValue, RangeOptions, Transaction};

use crate::model::header::{Place, State};
use crate::model::limits::Taken;
use crate::model::machine::{Event, Wait};
use crate::operations::effects::Effects;
use crate::testing::planted::Bug;
use crate::{Class, JobId, JobType, Jobs, Result, telemetry};

/// A job that waits for a limit.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) class: Class,
    pub(super) id: JobId,
    /// The key of its row.
    row: Bytes,
}

/// Whether a job got a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Granted {
    Yes,
    No,
    /// It could not be decoded and is now in quarantine; the slot is still free.
    Damaged,
}

impl Waiter {
    fn of(jobs: &Jobs, ty: &JobType, row: KeyValue) -> Option<Self> {
        let job = jobs.keys().waiting_job(ty, &row.key);
        let (class, id) =
            (job.inspect_err(|error| telemetry::undecodable(ty, &row.key, error))).ok()?;
        let row = row.key;
        Some(Self { class, id, row })
    }
}

impl Jobs {
    /// Whether a job waits for a limit and goes on waiting: then no slot is free, and one that waits behind it need not look
    /// for any, which would conflict with every end of a run.
    pub(super) async fn is_waited_for(
        &self,
        tx: &Transaction,
        ty: &JobType,
        limit: &Bytes,
    ) -> Result<bool> {
        // The last one, because freed slots go to the first.
        let row = self.last_waiting(tx, ty, limit).await?;
        if let Some(row) = &row
            && !self.planted().is(Bug::WaitsBehindBlindly)
        {
            tx.add_read_conflict_range(KeyRange::key(&row.key));
        }
        Ok(row.is_some())
    }

    /// The last row of the jobs that wait for a limit. Conflicts with nothing.
    pub(super) async fn last_waiting(
        &self,
        tx: &Transaction,
        ty: &JobType,
        limit: &Bytes,
    ) -> Result<Option<KeyValue>> {
        let last = RangeOptions {
            reverse: true,
            ..RangeOptions::limit(1)
        };
        let rows = (tx.snapshot()).get_range(self.keys().waiting(ty, limit), last);
        Ok(rows.collect().await?.pop())
    }

    /// The jobs that have waited longest behind a limit, by class. If there is none, conflicts with the next, and else with
    /// the next of an earlier class.
    pub(super) async fn waiting_behind(
        &self,
        tx: &Transaction,
        ty: &JobType,
        limit: &[u8],
        count: usize,
    ) -> Result<Vec<Waiter>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let range = self.keys().waiting(ty, limit);
        let rows = (tx.snapshot()).get_range(range.clone(), RangeOptions::limit(count));
        let rows = rows.collect().await?.into_iter();
        let jobs: Vec<Waiter> = rows.filter_map(|row| Waiter::of(self, ty, row)).collect();
        match jobs.first().map(|first| first.class) {
            None => tx.add_read_conflict_range(range),
            Some(Class::Urgent) => {}
            Some(_) if self.planted().is(Bug::GrantsBlindly) => {}
            Some(class) => {
                tx.add_read_conflict_range(self.keys().waiting_before(ty, limit, class));
            }
        }
        Ok(jobs)
    }

    /// Gives a waiting job a slot, unless it does not wait for it any more or cannot be decoded.
    pub(super) async fn grant(
        &self,
        effects: &mut Effects<'_>,
        tx: &Transaction,
        ty: &JobType,
        waiter: &Waiter,
        slot: Taken,
        free_ms: i64,
    ) -> Result<Granted> {
        let Waiter { id, row, .. } = waiter;
        let mut header = match self.try_header(tx, ty, id).await? {
            Ok(header) => header,
            Err(error) => {
                // No claim would find it, and it would keep the others waiting for ever.
                self.quarantine(tx, ty, id, (State::Pending, row), &error);
                return Ok(Granted::Damaged);
            }
        };
        let waits = header.as_deref().is_some_and(|header| match header.place {
            Place::Waiting(which, _) => header.limit(which) == Some(&slot.0),
            _ => false,
        });
        let Some(old) = header.as_deref().filter(|_| waits) else {
            return Ok(Granted::No);
        };
        let taken = [old.taken(), &[slot]].concat();
        // Also if it is free already: a claim that read its clock earlier would start the job as if that was then.
        let wait = match free_ms {
            0 => Wait::No,
            _ => Wait::Until(free_ms.max(effects.now_ms())),
        };
        effects.run(ty, id, &mut header, Event::Hold { taken, wait })?;
        Ok(Granted::Yes)
    }
}
