//! The jobs that a claim may choose from.

use std::collections::BTreeSet;

use futures::future::{try_join, try_join_all};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use store::{KeyRange, KeyValue, RangeOptions, Transaction};

use super::Claim;
use super::lanes::Groups;
use crate::model::header::State;
use crate::model::ids::{SHARDS, TIMED_BUCKETS};
use crate::model::keys::{Position, since};
use crate::testing::planted::Bug;
use crate::{Class, JobId, JobType, Jobs, Lane, Result, telemetry};

/// Rows that a claim reads: a multiple of the jobs it wants, but limited in excess, because claims that
/// start at random shards seldom read the same rows; and a minimum.
const WINDOW_PER_JOB: usize = 8;
const WINDOW_MORE_MAX: usize = 64;
const WINDOW_MIN: usize = 16;
/// The same for scheduled jobs: claims begin in fewer places, and spread over what they see there.
const TIMED_WINDOW_PER_JOB: usize = 32;
const TIMED_WINDOW_MORE_MAX: usize = 256;
const TIMED_WINDOW_MIN: usize = 32;
/// Up to this many scheduled jobs are read in one range; if there are more, each bucket is read separately.
const TIMED_FEW: usize = 256;

/// A search for due jobs of one class.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search<'a> {
    pub(super) claim: &'a Claim,
    pub(super) class: Class,
    pub(super) wanted: usize,
}

/// A row at the head of a bucket.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) id: JobId,
    pub(super) position: Position,
    pub(super) since_ms: i64,
}

/// The jobs that a claim may take.
#[derive(Debug)]
pub(super) struct Heads {
    pub(super) class: Class,
    /// Jobs without a lane.
    pub(super) due: Vec<Candidate>,
    pub(super) lanes: Groups,
    /// More may be due.
    pub(super) more: bool,
    pub(super) next_due_ms: Option<i64>,
}

impl Heads {
    /// These jobs only.
    pub(super) fn due(class: Class, due: Vec<Candidate>) -> Self {
        Self {
            class,
            due,
            lanes: Groups::default(),
            more: false,
            next_due_ms: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.due.len() + self.lanes.len()
    }

    pub(super) fn all(&self) -> Vec<Candidate> {
        self.due.iter().chain(self.lanes.all()).cloned().collect()
    }
}

/// The scheduled jobs that were read.
#[derive(Debug)]
pub(super) struct Scheduled {
    pub(super) due: Vec<Candidate>,
    /// When the first of the others is due.
    pub(super) next_due_ms: Option<i64>,
}

impl Jobs {
    /// Due jobs, enough to choose from; if there are none, when the next one is due.
    pub(super) async fn heads(&self, tx: &Transaction, search: &Search<'_>) -> Result<Heads> {
        let wanted = search.wanted;
        let window = (WINDOW_PER_JOB * wanted).min(wanted + WINDOW_MORE_MAX);
        let window = window.max(WINDOW_MIN);
        let timed_window = (TIMED_WINDOW_PER_JOB * wanted).min(wanted + TIMED_WINDOW_MORE_MAX);
        let timed_window = timed_window.max(TIMED_WINDOW_MIN);
        let mut rng = search.claim.rng(tx.attempt());
        let (after, before) =
            self.keys()
                .ready(&search.claim.ty, search.class, rng.random_range(0..SHARDS));
        let bucket = rng.random_range(0..TIMED_BUCKETS);
        let (timed_after, timed_before) =
            self.keys()
                .timed_around(&search.claim.ty, search.class, bucket);
        let (mut due, timed) = try_join(
            self.candidates(tx, search, after, window),
            self.candidates(tx, search, timed_after, timed_window),
        )
        .await?;
        // Jobs of lanes come last, ordered by lane, not by turn.
        let without = due.partition_point(|job| job.lane().is_none());
        let has_lanes = due.split_off(without).pop().is_some();
        let has_lanes = has_lanes || timed.last().is_some_and(|job| job.lane().is_some());
        let all_after = timed.len() < timed_window;
        // Lanes are read only in part.
        let mut more = has_lanes || due.len() == window;
        let mut timed = self.scheduled(search, timed);
        let mut lanes = Groups::default();
        if has_lanes || search.claim.turn.looks() {
            lanes = self.lanes(tx, search, window).await?;
        }
        let mut next_due_ms = None;
        if due.len() + timed.without_lane() + lanes.len() < wanted {
            let (ready, before) = try_join(
                self.candidates(tx, search, before, window),
                self.candidates(tx, search, timed_before, TIMED_FEW),
            )
            .await?;
            more |= ready.len() == window;
            due.extend(ready);
            let all = all_after && before.len() < TIMED_FEW;
            timed.add(self.scheduled(search, before));
            if !all {
                more = true;
                timed.add(self.timed_heads(tx, search, window).await?);
            }
            next_due_ms = timed.next_due_ms;
            let in_lanes = timed.due.extract_if(.., |job| job.lane().is_some());
            lanes.add_timed(in_lanes.collect());
        } else {
            more = true;
        }
        timed.due.retain(|job| job.lane().is_none());
        due.append(&mut timed.due);
        if due.len() + lanes.len() > 0 {
            next_due_ms = None;
        }
        Ok(Heads {
            class: search.class,
            due,
            more: more || lanes.len() > 0,
            lanes,
            next_due_ms,
        })
    }

    /// The first jobs of a range of pending ones.
    pub(super) async fn candidates(
        &self,
        tx: &Transaction,
        search: &Search<'_>,
        range: KeyRange,
        limit: usize,
    ) -> Result<Vec<Candidate>> {
        let rows = tx.snapshot().get_range(range, RangeOptions::limit(limit));
        let rows = rows.collect().await?;
        let candidates = rows
            .iter()
            .filter_map(|row| Candidate::of(self, &search.claim.ty, row));
        Ok(candidates.collect())
    }

    /// Splits scheduled jobs into due ones and others.
    pub(super) fn scheduled(&self, search: &Search<'_>, jobs: Vec<Candidate>) -> Scheduled {
        let horizon_ms = self.horizon_ms(search);
        let division = &search.claim.division;
        let claimable_ms = |job: &Candidate| Some(division.claimable_ms(&job.id, job.due_ms()?));
        let (due, later): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| {
            claimable_ms(job).is_none_or(|claimable_ms| claimable_ms <= horizon_ms)
        });
        Scheduled {
            due,
            next_due_ms: later.iter().filter_map(claimable_ms).min(),
        }
    }

    /// The head of each bucket and lane of scheduled jobs.
    async fn timed_heads(
        &self,
        tx: &Transaction,
        search: &Search<'_>,
        window: usize,
    ) -> Result<Scheduled> {
        // Twice as many as wanted in total, if they are spread evenly.
        let each = 1 + (2 * search.wanted).div_ceil(usize::from(TIMED_BUCKETS));
        let heads = (0..TIMED_BUCKETS).map(|bucket| {
            let bucket = self.keys().timed(&search.claim.ty, search.class, bucket);
            self.candidates(tx, search, bucket, each)
        });
        let lanes = self.all_timed_lanes(tx, search, window);
        let (heads, (due, next_due_ms)) = try_join(try_join_all(heads), lanes).await?;
        let mut scheduled = self.scheduled(search, heads.into_iter().flatten().collect());
        scheduled.add(Scheduled { due, next_due_ms });
        Ok(scheduled)
    }

    pub(super) fn horizon_ms(&self, search: &Search<'_>) -> i64 {
        if self.planted().is(Bug::IgnoresSchedule) {
            i64::MAX
        } else {
            search.claim.horizon_ms
        }
    }
}

impl Scheduled {
    fn without_lane(&self) -> usize {
        (self.due.iter()).filter(|job| job.lane().is_none()).count()
    }

    /// Adds jobs found elsewhere, without duplicates.
    fn add(&mut self, other: Self) {
        let known: BTreeSet<JobId> = self.due.iter().map(|job| job.id.clone()).collect();
        let new = (other.due.into_iter()).filter(|job| !known.contains(&job.id));
        self.due.extend(new);
        self.next_due_ms = ([self.next_due_ms, other.next_due_ms].into_iter())
            .flatten()
            .min();
    }
}

impl Candidate {
    /// `None` if the key cannot be decoded. Without a time the job has waited since it was due.
    pub(super) fn of(jobs: &Jobs, ty: &JobType, row: &KeyValue) -> Option<Self> {
        let position = jobs.keys().position(ty, State::Pending, &row.key);
        let position = position.inspect_err(|error| telemetry::undecodable(ty, &row.key, error));
        let (position, id) = position.ok()?;
        Some(Self {
            id,
            position,
            since_ms: since(&row.value).unwrap_or_default(),
        })
    }

    /// When it is due, if it is scheduled.
    pub(super) fn due_ms(&self) -> Option<i64> {
        match self.position {
            Position::Timed(.., due_ms) => Some(due_ms),
            _ => None,
        }
    }

    /// Its class, if it does not wait for a limit.
    pub(super) fn class(&self) -> Option<Class> {
        match self.position {
            Position::Ready(class, ..) | Position::Timed(class, ..) => Some(class),
            _ => None,
        }
    }

    /// The number of its lane.
    pub(super) fn lane(&self) -> Option<u16> {
        match self.position {
            Position::Ready(_, lane, _) | Position::Timed(_, lane, _) => lane.map(Lane::number),
            _ => None,
        }
    }
}

impl Claim {
    /// For choices that do not affect results; another attempt makes others.
    pub(super) fn rng(&self, attempt: u32) -> SmallRng {
        SmallRng::seed_from_u64(self.op.seed() ^ u64::from(attempt))
    }
}

/// As many neighbouring candidates as wanted, from a random block: claims that read the same jobs take
/// all in common, or none. The remainder after the last whole block starts a block, too, which wraps
/// around; otherwise due jobs there would wait for as long as there are ready ones. Returns the others, too.
pub(super) fn choose(
    mut candidates: Vec<Candidate>,
    wanted: usize,
    claim: &Claim,
    attempt: u32,
) -> (Vec<Candidate>, Vec<Candidate>) {
    let mut others = Vec::new();
    if candidates.len() > wanted {
        let blocks = candidates.len().div_ceil(wanted.max(1));
        let start = claim.rng(!attempt).random_range(0..blocks) * wanted;
        candidates.rotate_left(start);
        others = candidates.split_off(wanted);
    }
    (candidates, others)
}
