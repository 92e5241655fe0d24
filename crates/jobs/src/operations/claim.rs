//! Accepting jobs.
//!
//! A claim reads some ready jobs from a random shard on, and the scheduled jobs at the head of a
//! random bucket; if that is not enough, the rest of the ready jobs and the heads of all buckets,
//! in one read when there are few.
//! It reads them by snapshot, so that it conflicts neither with creators nor with claims that choose
//! other jobs; of each chosen job it reads the header, and so two claims of the same job conflict.
//! Of more jobs than it wants it takes some that lie side by side. Jobs in lanes take turns: see
//! [`lanes`].

mod candidates;
mod lanes;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::future::try_join_all;
use store::{Call, Transaction};
use tokio::time::Instant;

use crate::model::effects::Effects;
use crate::model::header::Header;
use crate::model::keys::Position;
use crate::model::machine::Event;
use crate::testing::planted::Bug;
use crate::{Error, Holder, Job, JobId, JobLock, JobType, Jobs, Op, Result, telemetry};
use candidates::choose;
use lanes::Turn;

pub(crate) use candidates::since;
pub(crate) use lanes::Turns;

/// About how much data one claim takes along.
const CLAIM_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A wish for jobs: drawn before the transaction, and kept over its retries, so that a claim that
/// was committed without the store being able to say so recognises its jobs.
#[derive(Debug)]
pub struct Claim {
    ty: JobType,
    holder: Holder,
    horizon_ms: i64,
    op: Op,
    locks: Vec<JobLock>,
    drawn_at: Instant,
    turn: Turn,
    /// What the last attempt chose, and whether an earlier call may have committed it.
    memo: Mutex<Memo>,
}

#[derive(Debug, Default)]
struct Memo {
    chosen: Vec<(JobId, JobLock)>,
    unsure: bool,
}

/// A job that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// What every later call about it needs.
    pub job: Job,
    /// Its data.
    pub data: Bytes,
    /// How many of its last holders went silent in a row.
    pub stalls: u32,
    /// When it was due; 0 was as soon as possible.
    pub due_ms: i64,
    /// When it was added first.
    pub created_ms: i64,
    /// Since when it could have been accepted, by its creator's clock.
    pub ready_ms: i64,
    /// A moment before it was accepted: from here on its time runs.
    pub claimed_at: Instant,
}

/// What a claim found.
#[derive(Debug, Default)]
pub struct Claimed {
    /// The jobs, as many as were wanted and due.
    pub jobs: Vec<Accepted>,
    /// There was nothing: when the next scheduled job falls due.
    pub next_due_ms: Option<i64>,
}

impl Claim {
    /// True when the store could not say what became of the last call.
    pub(crate) fn is_unsure(&self) -> bool {
        self.memo().unsure
    }

    fn memo(&self) -> std::sync::MutexGuard<'_, Memo> {
        self.memo.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Jobs {
    /// A wish for up to `count` jobs that are due now.
    pub fn claim(&self, ty: &JobType, holder: &Holder, count: usize) -> Claim {
        let op = self.op();
        Claim {
            ty: ty.clone(),
            holder: holder.clone(),
            horizon_ms: op.now_ms,
            turn: self.turns().draw(ty, op.seed()),
            op,
            locks: JobLock::draw(self.entropy(), count),
            drawn_at: Instant::now(),
            memo: Mutex::default(),
        }
    }

    /// A wish for up to `count` jobs that are due by `horizon_ms`.
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

    /// Accepts the jobs of a claim, without waiting for the disk: a power cut may undo it, and then
    /// the jobs are pending as before. When the store could not say whether it did, call again with
    /// the same claim, or [`recall_claim`](Self::recall_claim): jobs that were accepted are then not
    /// left to time out.
    pub async fn accept_claim(&self, claim: &Claim) -> Result<Claimed> {
        let claimed = self
            .transact_claim(claim, false, |tx| async move {
                self.accept_in(&tx, claim).await
            })
            .await?;
        telemetry::accepted(&claim.ty, &claimed.jobs, self.clock().now_ms());
        Ok(claimed)
    }

    /// The jobs that an earlier call with this claim has accepted after all; none if it has not,
    /// and then it never will.
    pub async fn recall_claim(&self, claim: &Claim) -> Result<Vec<Accepted>> {
        if !claim.is_unsure() {
            return Ok(Vec::new());
        }
        let claimed = (self.store())
            .transact("recall", |tx| async move { self.recall(&tx, claim).await })
            .await?;
        Ok(claimed.unwrap_or_default().jobs)
    }

    /// A transaction that accepts the jobs of a claim. What a worker does for a job that a power cut
    /// makes pending again is done again, as after any other death of a holder; and what it writes
    /// about the job is durable only after the claim. So a claim need not be, by itself.
    pub(crate) async fn transact_claim<T, Fut>(
        &self,
        claim: &Claim,
        durable: bool,
        body: impl Fn(Transaction) -> Fut,
    ) -> Result<T>
    where
        Fut: Future<Output = Result<T>>,
    {
        let call = Call::new("accept");
        let call = if durable { call } else { call.not_durable() };
        let result = self.store().transact(call, body).await;
        if let Err(Error::Store(store::Error::MaybeCommitted)) = &result {
            claim.memo().unsure = true;
        }
        result
    }

    /// [`Self::accept_claim`] in the caller's transaction.
    pub async fn accept_in(&self, tx: &Transaction, claim: &Claim) -> Result<Claimed> {
        if let Some(claimed) = self.recall(tx, claim).await? {
            return Ok(claimed);
        }
        let heads = self.heads(tx, claim).await?;
        let (wanted, next_due_ms) = (claim.locks.len(), heads.next_due_ms);
        let left_over = heads.len() > wanted;
        let candidates = if heads.lanes.len() == 0 {
            choose(heads.due, wanted, claim, tx.attempt())
        } else {
            self.take_turns(heads.due, heads.lanes, claim, tx.attempt())
        };
        let headers = try_join_all((candidates.iter()).map(|c| self.header(tx, &claim.ty, &c.id)));
        let chosen = candidates.iter().zip(headers.await?);
        let mut effects = self.effects(tx, claim.op.now_ms).await?;
        let mut jobs = Vec::new();
        let mut bytes = 0;
        for ((candidate, mut header), lock) in chosen.zip(&claim.locks) {
            let Some(pending) = (header.clone()).filter(|h| Position::of(h) == candidate.position)
            else {
                // A row that no job stands behind: nothing in this queue leaves one.
                let key = self
                    .keys()
                    .index(&claim.ty, &candidate.id, candidate.position);
                tx.clear(&key);
                continue;
            };
            let size = pending.data.len as usize;
            if bytes > 0 && bytes + size > CLAIM_BYTES_MAX {
                break;
            }
            bytes += size;
            let event = Event::Accept {
                lock: *lock,
                holder: claim.holder.clone(),
            };
            effects.run(&claim.ty, &candidate.id, &mut header, event)?;
            jobs.push((candidate, pending, header, *lock));
        }
        self.beat_all(&effects, claim, jobs.iter().map(|(c, ..)| &c.id));
        claim.memo().chosen = (jobs.iter())
            .map(|(candidate, _, _, lock)| (candidate.id.clone(), *lock))
            .collect();
        if left_over {
            effects.wake_another(&claim.ty);
        }
        let accepted = jobs.into_iter().map(|(candidate, _, header, lock)| {
            self.accepted(
                tx,
                claim,
                candidate.id.clone(),
                header,
                lock,
                candidate.since_ms,
            )
        });
        let jobs: Vec<Accepted> = try_join_all(accepted)
            .await?
            .into_iter()
            .flatten()
            .collect();
        effects.flush(&claim.op).await?;
        Ok(Claimed {
            next_due_ms: next_due_ms.filter(|_| jobs.is_empty()),
            jobs,
        })
    }

    fn beat_all<'a>(
        &self,
        effects: &Effects<'_>,
        claim: &Claim,
        ids: impl Iterator<Item = &'a JobId> + Clone,
    ) {
        let last = ids.clone().last();
        for (nth, id) in ids.enumerate() {
            if self.planted().is(Bug::OneActivityRowPerBatch) && Some(id) != last {
                continue;
            }
            effects.beat(&claim.ty, id, claim.op.id(nth));
        }
    }

    /// The jobs of an earlier attempt of this claim, if it was committed after all.
    async fn recall(&self, tx: &Transaction, claim: &Claim) -> Result<Option<Claimed>> {
        let chosen = {
            let memo = claim.memo();
            if !(memo.unsure || tx.maybe_committed()) || self.planted().is(Bug::ClaimForgets) {
                return Ok(None);
            }
            memo.chosen.clone()
        };
        let looked = chosen.into_iter().map(|(id, lock)| async move {
            let header = self.header(tx, &claim.ty, &id).await?;
            match header {
                Some(header) if header.lock() == Some(lock) => {
                    (self.accepted(tx, claim, id, Some(header), lock, claim.op.now_ms)).await
                }
                _ => Ok(None),
            }
        });
        let jobs: Vec<Accepted> = try_join_all(looked).await?.into_iter().flatten().collect();
        if jobs.is_empty() {
            // It was not committed, and never will be: the claim starts anew.
            return Ok(None);
        }
        Ok(Some(Claimed {
            jobs,
            next_due_ms: None,
        }))
    }

    async fn accepted(
        &self,
        tx: &Transaction,
        claim: &Claim,
        id: JobId,
        header: Option<Arc<Header>>,
        lock: JobLock,
        since_ms: i64,
    ) -> Result<Option<Accepted>> {
        let Some(header) = header else {
            return Ok(None);
        };
        let data = self.data_of(tx, &claim.ty, &id, &header).await?;
        Ok(Some(Accepted {
            job: Job {
                ty: claim.ty.clone(),
                id,
                lock,
                attempt: header.attempts,
            },
            data,
            stalls: header.stalls,
            due_ms: header.due_ms,
            created_ms: header.created_ms,
            ready_ms: since_ms.max(header.due_ms),
            claimed_at: claim.drawn_at,
        }))
    }
}
