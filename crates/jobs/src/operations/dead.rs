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
        // Jobs that die again meanwhile are left to the next call, or this one might never end. They may be listed once more.
        let began_ms = self.clock().now_ms();
        let old = |info: &JobInfo| info.finished_ms.is_none_or(|at_ms| at_ms <= began_ms);
        let (batch, mut retried, mut failed) = (Batch::new(JOBS), 0, None);
        let mut pages = self.pages(ty, dead, JOBS);
        while failed.is_none()
            && let Some(page) = pages.next().await?
        {
            let infos = page.into_iter().map(|listed| listed.info);
            let ids: Vec<(JobId, Op)> = (infos.filter(|info| old(info) && wanted(info)))
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use store::Store;
    use tokio::runtime::Handle;
    use tokio::task::block_in_place;

    use super::*;
    use crate::{Add, Clock, Entropy, Finish, Holder, TypeConfig};

    async fn kill_all(jobs: &Jobs, ty: &JobType) {
        let holder = Holder::new("h").unwrap();
        loop {
            let claimed = jobs.accept(ty, &holder, JOBS).await.unwrap().jobs;
            let ends: Vec<_> = (claimed.into_iter())
                .map(|accepted| (accepted.job, Finish::dead("it always does")))
                .collect();
            if ends.is_empty() {
                return;
            }
            for ended in jobs.finish_many(&ends).await.unwrap() {
                let _ = ended.unwrap();
            }
        }
    }

    /// They are listed behind the others of their bucket.
    #[tokio::test(flavor = "multi_thread")]
    async fn jobs_that_die_again_do_not_take_the_turn_of_others() {
        let clock = Clock::standing(1_000);
        let store = Store::open("memory:").await.unwrap();
        let jobs = Jobs::new(store, clock.clone(), Entropy::seeded(1));
        let ty = JobType::new("t").unwrap();
        jobs.set_type(&ty, TypeConfig::new(60_000)).await.unwrap();
        let ids = || (0..).map(|n| JobId::new(format!("job-{n}")).unwrap());
        let first = ids().filter(|id| id.bucket() == 0).take(250);
        let second = ids().filter(|id| id.bucket() == 1).take(50);
        let adds: Vec<Add> = first.chain(second).map(|id| Add::new(id, "1")).collect();
        jobs.add_many(&ty, &adds).await.unwrap();
        kill_all(&jobs, &ty).await;
        clock.set_ms(2_000);
        let asked = Mutex::new(Vec::new());
        let wanted = |info: &JobInfo| {
            let count = asked.lock().unwrap().len();
            if count > 0 && count.is_multiple_of(JOBS) {
                clock.set_ms(3_000);
                block_in_place(|| Handle::current().block_on(kill_all(&jobs, &ty)));
            }
            asked.lock().unwrap().push(info.id.clone());
            true
        };
        assert_eq!(jobs.retry_all(&ty, wanted).await.unwrap(), 300);
        let mut asked = asked.into_inner().unwrap();
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked.len(), 300);
    }
}
