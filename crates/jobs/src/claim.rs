//! Accepting jobs.
//!
//! A claim reads some ready jobs from a random shard on, and the scheduled jobs at the head of a
//! random bucket; if that is not enough, the rest of the ready jobs and the heads of all buckets.
//! It reads them by snapshot, so that it conflicts neither with creators nor with claims that choose
//! other jobs; of each chosen job it reads the header, and so two claims of the same job conflict.
//! Of more jobs than it wants it takes some that lie side by side.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::future::{try_join, try_join_all};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use store::{Call, KeyRange, KeyValue, RangeOptions, Transaction};
use tokio::time::Instant;

use crate::effects::Effects;
use crate::header::{Header, State};
use crate::ids::{BUCKETS, SHARDS};
use crate::keys::Position;
use crate::machine::Event;
use crate::planted::Bug;
use crate::{Error, Holder, Job, JobId, JobLock, JobType, Jobs, Op, Result, telemetry};

/// How many rows a claim reads, for each job it wants, and how many more than it wants at most: from
/// a random shard on it meets few others anyway. And at least.
const WINDOW_PER_JOB: usize = 8;
const WINDOW_MORE_MAX: usize = 64;
const WINDOW_MIN: usize = 16;
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

/// A row at the head of a bucket.
#[derive(Debug)]
struct Candidate {
    id: JobId,
    position: Position,
    since_ms: i64,
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
        let (candidates, next_due_ms) = self.heads(tx, claim).await?;
        let left_over = candidates.len() > claim.locks.len();
        let candidates = choose(candidates, claim, tx.attempt());
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

    /// Due jobs, about as many as it takes to choose from; if there are none at all, when the next
    /// one falls due.
    async fn heads(
        &self,
        tx: &Transaction,
        claim: &Claim,
    ) -> Result<(Vec<Candidate>, Option<i64>)> {
        let wanted = claim.locks.len();
        let window = (WINDOW_PER_JOB * wanted).min(wanted + WINDOW_MORE_MAX);
        let window = window.max(WINDOW_MIN);
        let mut rng = claim.rng(tx.attempt());
        let (after, before) = self.keys().ready(&claim.ty, rng.random_range(0..SHARDS));
        let first = rng.random_range(0..BUCKETS);
        let (mut due, (timed, mut next_due_ms)) = try_join(
            self.candidates(tx, claim, after, window),
            self.timed(tx, claim, first, window),
        )
        .await?;
        due.extend(timed);
        if due.len() < wanted {
            let others = (1..BUCKETS).map(|n| (first + n) % BUCKETS);
            let others = others.map(|bucket| self.timed(tx, claim, bucket, window));
            let others = try_join_all(others);
            let (ready, others) =
                try_join(self.candidates(tx, claim, before, window), others).await?;
            due.extend(ready);
            for (timed, next) in others {
                due.extend(timed);
                next_due_ms = [next_due_ms, next].into_iter().flatten().min();
            }
        }
        if !due.is_empty() {
            next_due_ms = None;
        }
        Ok((due, next_due_ms))
    }

    /// The first jobs of a range of pending ones.
    async fn candidates(
        &self,
        tx: &Transaction,
        claim: &Claim,
        range: KeyRange,
        limit: usize,
    ) -> Result<Vec<Candidate>> {
        let rows = tx.snapshot().get_range(range, RangeOptions::limit(limit));
        let rows = rows.collect().await?;
        (rows.iter())
            .map(|row| Candidate::of(self, &claim.ty, row))
            .collect()
    }

    /// The first scheduled jobs of a bucket that are due; if there are none, when the first one is.
    async fn timed(
        &self,
        tx: &Transaction,
        claim: &Claim,
        bucket: u16,
        limit: usize,
    ) -> Result<(Vec<Candidate>, Option<i64>)> {
        let all = self.keys().timed(&claim.ty, bucket);
        let due = if self.planted().is(Bug::IgnoresSchedule) {
            all.clone()
        } else {
            (self.keys()).due(&claim.ty, bucket, claim.horizon_ms)
        };
        let head = tx.snapshot().get_range(all, RangeOptions::limit(1));
        match head.collect().await?.first() {
            None => Ok((Vec::new(), None)),
            Some(head) if head.key < due.end => {
                Ok((self.candidates(tx, claim, due, limit).await?, None))
            }
            Some(head) => match Candidate::of(self, &claim.ty, head)?.position {
                Position::Timed(due_ms) => Ok((Vec::new(), Some(due_ms))),
                _ => Ok((Vec::new(), None)),
            },
        }
    }
}

impl Candidate {
    fn of(jobs: &Jobs, ty: &JobType, row: &KeyValue) -> Result<Self> {
        let (position, id) = jobs.keys().position(ty, State::Pending, &row.key)?;
        Ok(Self {
            id,
            position,
            since_ms: since(&row.value)?,
        })
    }
}

impl Claim {
    /// Choices that nothing depends on; another attempt makes others.
    fn rng(&self, attempt: u32) -> SmallRng {
        SmallRng::seed_from_u64(self.op.seed() ^ u64::from(attempt))
    }
}

/// As many neighbours of the candidates as there are locks, in blocks from the first one on: claims
/// that look at the same jobs meet in all of what they take, or in none.
fn choose(mut candidates: Vec<Candidate>, claim: &Claim, attempt: u32) -> Vec<Candidate> {
    let wanted = claim.locks.len();
    if candidates.len() > wanted {
        let blocks = candidates.len() / wanted.max(1);
        let start = claim.rng(!attempt).random_range(0..blocks) * wanted;
        candidates.rotate_left(start);
        candidates.truncate(wanted);
    }
    candidates
}

/// When a pending row was written.
pub(crate) fn since(value: &[u8]) -> Result<i64> {
    (value.try_into().map(i64::from_be_bytes))
        .map_err(|_| Error::corrupt("a pending row cannot be decoded"))
}
