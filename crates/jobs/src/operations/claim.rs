//! Claims: they assign due jobs to a holder.
//!
//! One claim for up to n jobs, in one transaction:
//!
//! ```text
//!                   reads                                               writes
//! what is due       PENDING ready, from a random shard on               -
//!   (snapshot)      PENDING timed, the head of a random bucket          -
//!                   then, if that is not enough: the rest of the        -
//!                   ready rows, and the heads of all buckets
//!                   PENDING of lanes, if the type uses them: [`lanes`]  -
//!                   the first row of PENDING of other classes than the  -
//!                   normal one; the same of these as far as necessary
//! each chosen job   JOB                                 ── the fence ─  JOB with a new lock
//!   (conflicting)   its DATA (snapshot)                                 clears its PENDING row
//!                                                                       ACTIVITY: the first heartbeat
//!                                                                       HISTORY: the previous run, if any
//!                                                                       NOTE, NOTIFIER if it has subscribers
//! each with limits  LIMIT, SLOT: see [`limits`](crate::operations::limits)  SLOT, or PENDING: it waits behind a limit
//! all of them       SLEEPER, if more is due than is taken (snapshot)    clears one: wakes another acceptor
//!                                                                       COUNT: blind additions
//! ```
//!
//! Conflicts between concurrent transactions:
//!
//! ```text
//! claim A   claim B that chose the same job    JOB: the second to commit retries, and chooses again
//! claim A   claim B that chose other jobs      nothing: PENDING is read by snapshot, COUNT is added to
//! claim A   a creator that adds other jobs     nothing, for the same reasons
//! claim A   a creator that replaces, or        JOB: the claim retries, and gets the newer data, or
//!           removes, a chosen job              another job
//! ```
//!
//! So concurrent claims should seldom choose the same jobs. Each starts at a random shard, and from more
//! candidates than it wants takes a whole block of neighbours: two claims that read the same rows choose all
//! jobs in common or none, so a collision costs one retry, not one per job.
//!
//! Locks are drawn before the transaction. If the store cannot tell whether a try was
//! committed, the next one looks for its own locks in the headers ([`Jobs::recall_claim`]): jobs that carry
//! them were claimed, and are returned instead of others.

mod candidates;
mod lanes;
mod take;
mod tenants;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join_all;
use store::{Durable, KeyRange, Transaction};
use tokio::time::Instant;

use crate::model::header::Header;
use crate::model::keys::{Position, promised};
use crate::model::limits::Limits;
use crate::model::turns::Turn;
use crate::operations::division::Division;
use crate::operations::effects::Effects;
use crate::operations::tenants::tidy::Untidy;
use crate::testing::planted::Bug;
use crate::{Error, Holder, Job, JobId, JobLock, JobType, Jobs, Op, Result, Tenant, telemetry};
use take::Taking;

/// A request for jobs, drawn before its transaction and kept over retries, so that a retry recognises the jobs
/// of an earlier try that was committed without an answer.
#[derive(Debug)]
pub struct Claim {
    ty: JobType,
    /// The holders of the jobs, in order, and how many each wants.
    holders: Vec<(Holder, usize)>,
    horizon_ms: i64,
    division: Division,
    op: Op,
    locks: Vec<JobLock>,
    drawn_at: Instant,
    turn: Turn,
    /// Choices of tries that may be committed, and whether an earlier call may have committed one.
    memo: Mutex<Memo>,
}

#[derive(Debug, Default)]
struct Memo {
    /// With the times of the signals that they cover, which a committed claim has cleared.
    chosen: BTreeMap<(JobId, JobLock), Option<i64>>,
    unsure: bool,
    /// How often the claim has started over after a try that may have been committed.
    restarts: u64,
    /// Turns of tenants that are out of order.
    untidy: Untidy,
}

/// A claimed job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The argument of the holder's later calls.
    pub job: Job,
    /// Its holder.
    pub holder: Holder,
    /// The job's data.
    pub data: Bytes,
    /// Runs in a row that ended with a silent holder, or failed and put the job back.
    pub stalls: u32,
    /// When it was due; 0 means as soon as possible.
    pub due_ms: i64,
    /// When it was first added.
    pub created_ms: i64,
    /// When the first [signal](crate::Signal) arrived that this run covers, if there was one.
    pub asked_ms: Option<i64>,
    /// Its limits.
    pub limits: Limits,
    /// Whose job it is, if it was said.
    pub tenant: Option<Tenant>,
    /// When it became ready to be claimed, by its creator's clock.
    pub ready_ms: i64,
    /// Just before it was claimed. The timeout starts here.
    pub claimed_at: Instant,
}

/// The result of a claim.
#[derive(Debug, Default)]
pub struct Claimed {
    /// The jobs: as many as were requested and due.
    pub jobs: Vec<Accepted>,
    /// When the next scheduled job is due, if no job was.
    pub next_due_ms: Option<i64>,
    /// Due jobs that were found to have to wait for their limits: others may be due behind them.
    pub held: usize,
}

impl Claimed {
    /// Nothing is due.
    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.held == 0
    }
}

impl Claim {
    /// Leaves jobs of other acceptors to them for a while.
    pub(crate) fn divided(self, division: Division) -> Self {
        Self { division, ..self }
    }

    /// Whether the store could not tell if the last call was committed.
    pub(crate) fn is_unsure(&self) -> bool {
        self.memo().unsure
    }

    /// Whether each holder has what it wants.
    pub(crate) fn is_filled_by(&self, claimed: &Claimed) -> bool {
        claimed.jobs.len() >= self.locks.len()
    }

    fn accepted(
        &self,
        id: JobId,
        header: &Header,
        data: Bytes,
        lock: JobLock,
        (since_ms, asked_ms): (i64, Option<i64>),
    ) -> Accepted {
        let holder = header.last.as_ref().map(|run| run.holder.clone());
        let job = Job::new(self.ty.clone(), id, lock, header.attempts);
        let limits = header.limits();
        let _first = job.run.limits.set(limits.clone());
        Accepted {
            job,
            holder: holder.unwrap_or_else(|| self.holder(0)),
            data,
            stalls: header.stalls,
            due_ms: header.due_ms,
            created_ms: header.created_ms,
            asked_ms,
            limits,
            tenant: header.tenant().cloned().map(Tenant),
            ready_ms: since_ms.max(header.due_ms),
            claimed_at: self.drawn_at,
        }
    }

    /// The holder of the nth job.
    fn holder(&self, nth: usize) -> Holder {
        let mut before = 0;
        let found = self.holders.iter().find(|(_, count)| {
            before += count;
            nth < before
        });
        found.unwrap_or(&self.holders[0]).0.clone()
    }

    /// The locks of this try. One that starts over has others, so that a note about a job of an earlier try which was
    /// removed since does not reach a later job of the same id.
    fn locks(&self) -> Vec<JobLock> {
        let restarts = self.memo().restarts;
        self.locks.iter().map(|lock| lock.again(restarts)).collect()
    }

    fn memo(&self) -> std::sync::MutexGuard<'_, Memo> {
        self.memo.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Jobs {
    /// A claim for up to `count` jobs that are due now.
    pub fn claim(&self, ty: &JobType, holder: &Holder, count: usize) -> Claim {
        self.claim_for(ty, vec![(holder.clone(), count)], 0)
    }

    /// A claim of an acceptor, which is notified when the jobs are removed. There is at least one holder.
    pub(crate) fn claim_for(
        &self,
        ty: &JobType,
        holders: Vec<(Holder, usize)>,
        acceptor: u64,
    ) -> Claim {
        let op = self.op();
        let count = holders.iter().map(|(_, count)| count).sum();
        Claim {
            ty: ty.clone(),
            holders,
            horizon_ms: op.now_ms,
            division: Division::default(),
            turn: self.turns().draw(ty, op.seed()),
            op,
            locks: JobLock::draw(self.entropy(), count, acceptor),
            drawn_at: Instant::now(),
            memo: Mutex::default(),
        }
    }

    /// A claim for up to `count` jobs that are due by `horizon_ms`.
    pub fn claim_by(&self, ty: &JobType, holder: &Holder, count: usize, horizon_ms: i64) -> Claim {
        Claim {
            horizon_ms,
            ..self.claim(ty, holder, count)
        }
    }

    /// Accepts up to `count` due jobs, without waiting for any.
    pub async fn accept(&self, ty: &JobType, holder: &Holder, count: usize) -> Result<Claimed> {
        self.accept_claim(&self.claim(ty, holder, count)).await
    }

    /// Claims jobs without waiting for the disk: after a power cut they may be pending again. On
    /// [`store::Error::MaybeCommitted`] call this or [`recall_claim`](Self::recall_claim) with the same claim:
    /// otherwise claimed jobs have to time out.
    pub async fn accept_claim(&self, claim: &Claim) -> Result<Claimed> {
        let (claimed, _) = self
            .transact_claim(claim, |tx| async move { self.accept_in(&tx, claim).await })
            .await?;
        let ready = claimed.jobs.iter().map(|job| job.ready_ms);
        telemetry::accepted(&claim.ty, ready, self.clock().now_ms());
        Ok(claimed)
    }

    /// The jobs that an earlier call with this claim has claimed; none if it was not committed.
    pub async fn recall_claim(&self, claim: &Claim) -> Result<Vec<Accepted>> {
        if !claim.is_unsure() {
            return Ok(Vec::new());
        }
        let claimed = (self.store())
            .transact("recall", |tx| async move { self.recall(&tx, claim).await })
            .await?;
        Ok(claimed.unwrap_or_default().jobs)
    }

    /// A transaction that claims jobs. A claim need not wait for the disk: if a power cut undoes it, the job
    /// runs again, as after the death of a holder, and everything that the holder has written since comes later
    /// in the log and is undone, too. What else the transaction does has to wait.
    pub(crate) async fn transact_claim<T, Fut>(
        &self,
        claim: &Claim,
        body: impl Fn(Transaction) -> Fut,
    ) -> Result<(T, Durable)>
    where
        Fut: Future<Output = Result<T>>,
    {
        let result = self.store().transact_ahead("accept", body).await;
        if let Err(Error::Store(store::Error::MaybeCommitted)) = &result {
            claim.memo().unsure = true;
        }
        if result.is_ok() {
            let untidy = std::mem::take(&mut claim.memo().untidy);
            // Types without tenants pay nothing.
            if !untidy.is_empty() {
                Box::pin(self.tidy(&claim.ty, untidy)).await;
            }
        }
        result
    }

    /// [`Self::accept_claim`] in the caller's transaction.
    pub async fn accept_in(&self, tx: &Transaction, claim: &Claim) -> Result<Claimed> {
        if let Some(claimed) = self.recall(tx, claim).await? {
            return Ok(claimed);
        }
        let taking = self.take_all(tx, claim).await?;
        let Taking {
            mut effects,
            timeout,
            charged_ms,
            jobs,
            held,
            left_over,
            next_due_ms,
            ..
        } = taking;
        self.beat_all(
            &effects,
            claim,
            (timeout, charged_ms),
            jobs.iter().map(|a: &Accepted| &a.job.id),
        );
        {
            let mut memo = claim.memo();
            if !(memo.unsure || tx.maybe_committed()) {
                memo.chosen.clear();
            }
            let chosen = jobs.iter().map(|accepted: &Accepted| {
                let job = &accepted.job;
                ((job.id.clone(), job.lock), accepted.asked_ms)
            });
            memo.chosen.extend(chosen);
        }
        if left_over {
            effects.wake_another(&claim.ty);
        }
        effects.flush(&claim.op).await?;
        Ok(Claimed {
            next_due_ms: next_due_ms.filter(|_| jobs.is_empty()),
            jobs,
            held,
        })
    }

    fn beat_all<'a>(
        &self,
        effects: &Effects<'_>,
        claim: &Claim,
        (timeout, charged_ms): (Duration, Option<i64>),
        ids: impl Iterator<Item = &'a JobId> + Clone,
    ) {
        let last = ids.clone().last();
        for id in ids {
            if self.planted().is(Bug::OneActivityRowPerBatch) && Some(id) != last {
                continue;
            }
            effects.beat(&claim.ty, id, timeout, charged_ms);
        }
    }

    /// The jobs of an earlier try of this claim, if it was committed.
    async fn recall(&self, tx: &Transaction, claim: &Claim) -> Result<Option<Claimed>> {
        let chosen = {
            let memo = claim.memo();
            if !(memo.unsure || tx.maybe_committed()) || self.planted().is(Bug::ClaimForgets) {
                return Ok(None);
            }
            memo.chosen.clone()
        };
        let looked = chosen.into_iter().map(|((id, lock), asked_ms)| async move {
            let header = self.header(tx, &claim.ty, &id).await?;
            if let Some(header) = header.filter(|header| header.lock() == Some(lock)) {
                let data = self.data_of(tx, &claim.ty, &id, &header).await?;
                let beat = self.keys().index(&claim.ty, &id, &Position::Active);
                let beat = tx.snapshot().get(&beat).await?;
                let times = (claim.op.now_ms, asked_ms);
                let accepted = claim.accepted(id, &header, data, lock, times);
                if let Some(beat) = &beat {
                    accepted.job.run.set_timeout(promised(beat)?);
                }
                return Ok::<_, Error>(Some(accepted));
            }
            // An earlier try still in progress has read this row, so it cannot be committed any more.
            let key = self.keys().job(&claim.ty, &id);
            tx.add_write_conflict_range(KeyRange::key(&key));
            Ok(None)
        });
        let jobs: Vec<Accepted> = try_join_all(looked).await?.into_iter().flatten().collect();
        if jobs.is_empty() {
            // It was not committed, or its jobs are gone: the claim starts over.
            claim.memo().restarts += 1;
            return Ok(None);
        }
        Ok(Some(Claimed {
            jobs,
            next_due_ms: None,
            held: 0,
        }))
    }
}
