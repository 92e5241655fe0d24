//! The jobs that wait for a limit.

use bytes::Bytes;
use store::{KeyRange, KeyValue, RangeOptions, Transaction};

use crate::testing::planted::Bug;
use crate::{Class, JobId, JobType, Jobs, Result};

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
    ) -> Result<Vec<(Class, JobId)>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let range = self.keys().waiting(ty, limit);
        let rows = (tx.snapshot()).get_range(range.clone(), RangeOptions::limit(count));
        let rows = rows.collect().await?;
        let jobs = (rows.iter()).map(|row| self.keys().waiting_job(ty, &row.key));
        let jobs: Vec<(Class, JobId)> = jobs.collect::<Result<_>>()?;
        match jobs.first() {
            None => tx.add_read_conflict_range(range),
            Some((Class::Urgent, _)) => {}
            Some(_) if self.planted().is(Bug::GrantsBlindly) => {}
            Some((class, _)) => {
                tx.add_read_conflict_range(self.keys().waiting_before(ty, limit, *class));
            }
        }
        Ok(jobs)
    }
}
