//! The jobs that a claim may choose from.

use futures::future::{try_join, try_join_all};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use store::{KeyRange, KeyValue, RangeOptions, Transaction};

use super::Claim;
use super::lanes::Groups;
use crate::model::header::State;
use crate::model::ids::{BUCKETS, SHARDS};
use crate::model::keys::{Position, since};
use crate::testing::planted::Bug;
use crate::{JobId, JobType, Jobs, Lane, Result};

/// How many rows a claim reads: so many for each job it wants, but only so many more than it wants,
/// because claims that begin at random shards seldom see the same rows; and at least so many.
const WINDOW_PER_JOB: usize = 8;
const WINDOW_MORE_MAX: usize = 64;
const WINDOW_MIN: usize = 16;
/// Up to so many scheduled jobs are read in one range; if there are more, each bucket is read by itself.
const TIMED_FEW: usize = 64;

/// A row at the head of a bucket.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) id: JobId,
    pub(super) position: Position,
    pub(super) since_ms: i64,
}

/// What a claim may take.
#[derive(Debug)]
pub(super) struct Heads {
    /// Jobs without a lane.
    pub(super) due: Vec<Candidate>,
    pub(super) lanes: Groups,
    pub(super) next_due_ms: Option<i64>,
}

impl Heads {
    pub(super) fn len(&self) -> usize {
        self.due.len() + self.lanes.len()
    }
}

impl Jobs {
    /// Due jobs, about as many as it takes to choose from; if there are none at all, when the next
    /// one falls due.
    pub(super) async fn heads(&self, tx: &Transaction, claim: &Claim) -> Result<Heads> {
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
        // Those of lanes come last, in the order of lanes and not of turns.
        let without = due.partition_point(|job| job.lane().is_none());
        let has_lanes = due.split_off(without).pop().is_some();
        due.extend(timed);
        let mut lanes = Groups::default();
        if has_lanes || claim.turn.looks() {
            lanes = self.lanes(tx, claim, window).await?;
        }
        if due.len() + lanes.len() < wanted {
            let (ready, (timed, next)) = try_join(
                self.candidates(tx, claim, before, window),
                self.timed_elsewhere(tx, claim, first, window),
            )
            .await?;
            due.extend(ready);
            let (in_lanes, timed) = (timed.into_iter()).partition(|job| job.lane().is_some());
            lanes.add_timed(in_lanes);
            due.extend::<Vec<_>>(timed);
            next_due_ms = [next_due_ms, next].into_iter().flatten().min();
        }
        if due.len() + lanes.len() > 0 {
            next_due_ms = None;
        }
        Ok(Heads {
            due,
            lanes,
            next_due_ms,
        })
    }

    /// The first jobs of a range of pending ones.
    pub(super) async fn candidates(
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
        let due = (self.keys()).due(&claim.ty, bucket, self.horizon_ms(claim));
        let head = tx.snapshot().get_range(all, RangeOptions::limit(1));
        match head.collect().await?.first() {
            None => Ok((Vec::new(), None)),
            Some(head) if head.key < due.end => {
                Ok((self.candidates(tx, claim, due, limit).await?, None))
            }
            Some(head) => match Candidate::of(self, &claim.ty, head)?.position {
                Position::Timed(_, due_ms) => Ok((Vec::new(), Some(due_ms))),
                _ => Ok((Vec::new(), None)),
            },
        }
    }

    /// The same of all buckets but one.
    async fn timed_elsewhere(
        &self,
        tx: &Transaction,
        claim: &Claim,
        bucket: u16,
        limit: usize,
    ) -> Result<(Vec<Candidate>, Option<i64>)> {
        let (mut due, mut next_due_ms) = (Vec::new(), None);
        let all = self.keys().all_timed(&claim.ty);
        let rows = (tx.snapshot()).get_range(all, RangeOptions::limit(TIMED_FEW));
        let rows = rows.collect().await?;
        if rows.len() < TIMED_FEW {
            // These are all there are, and one read does for all buckets.
            let known = self.keys().timed(&claim.ty, bucket);
            for row in rows.iter().filter(|row| !known.contains(&row.key)) {
                let candidate = Candidate::of(self, &claim.ty, row)?;
                match candidate.position {
                    Position::Timed(_, due_ms) if due_ms > self.horizon_ms(claim) => {
                        next_due_ms = [next_due_ms, Some(due_ms)].into_iter().flatten().min();
                    }
                    _ => due.push(candidate),
                }
            }
            return Ok((due, next_due_ms));
        }
        let others = (1..BUCKETS).map(|n| (bucket + n) % BUCKETS);
        let others = others.map(|bucket| self.timed(tx, claim, bucket, limit));
        let lanes = self.all_timed_lanes(tx, claim, limit);
        let (mut found, lanes) = try_join(try_join_all(others), lanes).await?;
        found.push(lanes);
        for (timed, next) in found {
            due.extend(timed);
            next_due_ms = [next_due_ms, next].into_iter().flatten().min();
        }
        Ok((due, next_due_ms))
    }

    pub(super) fn horizon_ms(&self, claim: &Claim) -> i64 {
        if self.planted().is(Bug::IgnoresSchedule) {
            i64::MAX
        } else {
            claim.horizon_ms
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

    /// The number of its lane.
    pub(super) fn lane(&self) -> Option<u16> {
        match self.position {
            Position::Ready(lane, _) | Position::Timed(lane, _) => lane.map(Lane::number),
            Position::Active | Position::Finished(_) => None,
        }
    }
}

impl Claim {
    /// Choices that nothing depends on; another attempt makes others.
    fn rng(&self, attempt: u32) -> SmallRng {
        SmallRng::seed_from_u64(self.op.seed() ^ u64::from(attempt))
    }
}

/// As many neighbours of the candidates as are wanted, in blocks from the first one on: claims
/// that look at the same jobs meet in all of what they take, or in none. What is left behind the last
/// whole block is the beginning of one more, or what is due would not have its turn there for as long
/// as there are ready jobs.
pub(super) fn choose(
    mut candidates: Vec<Candidate>,
    wanted: usize,
    claim: &Claim,
    attempt: u32,
) -> Vec<Candidate> {
    if candidates.len() > wanted {
        let blocks = candidates.len().div_ceil(wanted.max(1));
        let start = claim.rng(!attempt).random_range(0..blocks) * wanted;
        candidates.rotate_left(start);
        candidates.truncate(wanted);
    }
    candidates
}
