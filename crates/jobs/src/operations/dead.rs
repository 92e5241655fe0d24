//! Dead letters: failed jobs that stay until an operator retries or removes them.
//!
//! They are listed with [`State::Dead`], counted in [`Counts::dead`](crate::Counts::dead), and removed with [`Jobs::remove`].

use store::{Call, Transaction};

use crate::model::machine::Event;
use crate::operations::batch::Batch;
use crate::{Error, JobId, JobInfo, JobType, Jobs, Op, Query, Result, State};

/// Jobs per transaction of a bulk retry.
const JOBS: usize = 100;

impl Jobs {
    /// Makes a dead job ready again, with its data and as if it had never failed. False if the job is not dead.
    pub async fn retry(&self, ty: &JobType, id: &JobId) -> Result<bool> {
        let op = self.op();
        (self.store())
            .transact("retry", |tx| async move {
                self.retry_in(&tx, &op, ty, id).await
            })
            .await
    }

    /// [`Self::retry`] in the caller's transaction. That must not end a run of the job afterwards: a retry of a job that is
    /// not dead leaves nothing behind, so a repeated transaction would revive the job that it had killed.
    pub async fn retry_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &JobType,
        id: &JobId,
    ) -> Result<bool> {
        let mut header = self.header(tx, ty, id).await?;
        let there = header.as_ref().ok_or(Error::NotFound)?;
        if there.state() != State::Dead {
            return Ok(there.ops.contains(&op.id(0)));
        }
        let mut effects = self.effects(tx, op.now_ms).await?;
        let event = Event::Ask {
            op: op.id(0),
            due_ms: Some(0),
            data: None,
            same: false,
            create: None,
        };
        effects.run(ty, id, &mut header, event)?;
        effects.flush(op).await?;
        Ok(true)
    }

    /// Retries the dead jobs of a type that are `wanted`; returns how many. Not atomic: after an error some are retried
    /// and others not; call it again.
    pub async fn retry_all(&self, ty: &JobType, wanted: impl Fn(&JobInfo) -> bool) -> Result<u64> {
        let dead = Query {
            state: Some(State::Dead),
            ..Query::default()
        };
        // Jobs that die again meanwhile are left to the next call, or this one might never end.
        let mut left = self.counts(ty).await?.dead;
        let (batch, mut retried, mut failed, mut cursor) = (Batch::new(JOBS), 0, None, None);
        while left > 0 && failed.is_none() {
            let limit = usize::try_from(left).map_or(JOBS, |left| left.min(JOBS));
            let page = self.list(ty, &dead, cursor.as_ref(), limit).await?;
            left -= limit as u64;
            let infos = page.jobs.into_iter().map(|listed| listed.info);
            let ids: Vec<(JobId, Op)> = (infos.filter(&wanted))
                .map(|info| (info.id, self.op()))
                .collect();
            let work = |tx: Transaction, ids| self.retry_these(tx, ty, ids);
            let done = |_: &[_], ended: Result<u64>| match ended {
                Ok(count) => retried += count,
                Err(error) => failed = Some(error),
            };
            batch
                .each(self, Call::batch("retry"), &ids, work, done)
                .await;
            cursor = page.cursor;
            if cursor.is_none() {
                break;
            }
        }
        failed.map_or(Ok(retried), Err)
    }

    async fn retry_these(&self, tx: Transaction, ty: &JobType, ids: &[(JobId, Op)]) -> Result<u64> {
        let mut retried = 0;
        for (id, op) in ids {
            match self.retry_in(&tx, op, ty, id).await {
                Ok(done) => retried += u64::from(done),
                // Removed concurrently.
                Err(Error::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(retried)
    }
}
