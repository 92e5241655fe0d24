//! Counts of jobs, and how long they have waited.

use std::collections::BTreeMap;

use futures::TryFutureExt;
use futures::future::{try_join, try_join_all, try_join3};
use store::{Call, KeyRange, KeyValue, RangeOptions, Transaction, read_all};

use crate::model::class::of_tag;
use crate::model::header::State;
use crate::model::ids::{LANE_PARTS, LANES, TIMED_BUCKETS};
use crate::model::keys::{
    Keys, Position, STATE_EDGES, edge, edge_adds, edge_ends, edge_of_states, since,
};
use crate::{Class, Error, JobType, Jobs, Result};

/// The jobs of a type, by state, and every transition ever made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs that wait to be claimed.
    pub pending: u64,
    /// Jobs that are held.
    pub running: u64,
    /// Finished jobs that still exist.
    pub finished: u64,
    /// Dead letters.
    pub dead: u64,
    /// Jobs that were made.
    pub created_total: u64,
    /// Runs that were started.
    pub accepted_total: u64,
    /// Runs that finished their job.
    pub finished_total: u64,
    /// Runs after which the job was dead.
    pub dead_total: u64,
    /// Runs after which the job was pending again, by its holder's will or for its silence.
    pub again_total: u64,
    /// Finished and dead jobs that were made pending again.
    pub revived_total: u64,
    /// Jobs that were removed or expired.
    pub removed_total: u64,
}

/// The waiting jobs of a type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Jobs that are due.
    pub due: u64,
    /// Whether there are more due jobs than were counted.
    pub due_at_least: bool,
    /// Due jobs that wait for their limits, counted up to the same number.
    pub held: u64,
    /// Jobs that are not due yet. Too high by the due jobs not counted.
    pub future: u64,
    /// When the oldest due job counted became due.
    pub oldest_due_ms: Option<i64>,
}

/// Scheduled jobs of a class that are read rather than looked for in each bucket.
const FEW: usize = 256;

impl Jobs {
    /// The jobs of a type, by state. The cost does not depend on their number.
    pub async fn counts(&self, ty: &JobType) -> Result<Counts> {
        self.read(Call::batch("counts"), |tx| async move {
            self.counts_in(&tx, ty).await
        })
        .await
    }

    /// [`Self::counts`] in the caller's transaction, by a snapshot read.
    pub async fn counts_in(&self, tx: &Transaction, ty: &JobType) -> Result<Counts> {
        let edges = self.edges(tx, ty).await?;
        let jobs = |state| {
            let sum = (0..)
                .zip(edges)
                .map(|(edge, times)| edge_adds(edge, state) * times);
            unsigned(sum.sum())
        };
        let times = |from, to| unsigned(edges[edge_of_states(edge(from, to))]);
        let [pending, running, finished, dead] = State::ALL.map(|state| Some((state, 0)));
        let removed = [pending, running, finished, dead].map(|state| times(state, None));
        Ok(Counts {
            pending: jobs(State::Pending),
            running: jobs(State::Running),
            finished: jobs(State::Finished),
            dead: jobs(State::Dead),
            created_total: times(None, pending),
            accepted_total: times(pending, running),
            finished_total: times(running, finished),
            dead_total: times(running, dead),
            again_total: times(running, pending),
            revived_total: times(finished, pending) + times(dead, pending),
            removed_total: removed.iter().sum(),
        })
    }

    /// [`Self::counts_in`], which conflicts with any change of them.
    pub async fn exact_counts_in(&self, tx: &Transaction, ty: &JobType) -> Result<Counts> {
        tx.add_read_conflict_range(self.keys().counts(ty));
        self.counts_in(tx, ty).await
    }

    /// The jobs of a type by state and [label](Self::labelled), without zeros.
    pub async fn counts_by_label(&self, ty: &JobType) -> Result<BTreeMap<(State, u8), u64>> {
        let mut counts = BTreeMap::new();
        for ((state, tag), jobs) in self.counts_by_tag(ty).await? {
            *counts.entry((state, of_tag(tag).0)).or_default() += jobs;
        }
        Ok(counts)
    }

    /// The jobs of a type by state and [class](crate::Add::class), without zeros.
    pub async fn counts_by_class(&self, ty: &JobType) -> Result<BTreeMap<(State, Class), u64>> {
        let mut counts = BTreeMap::new();
        for ((state, tag), jobs) in self.counts_by_tag(ty).await? {
            *counts.entry((state, of_tag(tag).1)).or_default() += jobs;
        }
        Ok(counts)
    }

    pub(crate) async fn counts_by_tag(&self, ty: &JobType) -> Result<BTreeMap<(State, u8), u64>> {
        let sums = self
            .read(Call::batch("counts"), |tx| async move {
                let mut sums: BTreeMap<(State, u8), i64> = BTreeMap::new();
                let add = |edge, times: i64| {
                    let [old, new] = edge_ends(edge);
                    for (kind, times) in [(old, -times), (new, times)] {
                        if let Some(kind) = kind {
                            *sums.entry(kind).or_default() += times;
                        }
                    }
                };
                self.each_edge(&tx, ty, add).await?;
                Ok(sums)
            })
            .await?;
        let counts = sums.into_iter().filter(|(_, sum)| *sum != 0);
        Ok(counts.map(|(kind, sum)| (kind, unsigned(sum))).collect())
    }

    /// The count of each transition, summed over labels and classes.
    async fn edges(&self, tx: &Transaction, ty: &JobType) -> Result<[i64; STATE_EDGES]> {
        let mut edges = [0; STATE_EDGES];
        let add = |edge, times| edges[edge_of_states(edge)] += times;
        self.each_edge(tx, ty, add).await?;
        Ok(edges)
    }

    async fn each_edge(
        &self,
        tx: &Transaction,
        ty: &JobType,
        mut add: impl FnMut(u32, i64),
    ) -> Result<()> {
        let range = self.keys().counts(ty);
        let mut rows = tx
            .snapshot()
            .get_range(range.clone(), RangeOptions::default());
        while let Some(row) = rows.next().await? {
            let edge = Keys::count_edge(&range, &row.key)?;
            let times = (*row.value).try_into().map(i64::from_le_bytes);
            let times = times.map_err(|_| Error::corrupt("a counter cannot be decoded"))?;
            add(edge, times);
        }
        Ok(())
    }

    /// The waiting jobs of a type, counting up to about `limit` due ones.
    pub async fn backlog(&self, ty: &JobType, now_ms: i64, limit: usize) -> Result<Backlog> {
        self.read(Call::batch("backlog"), |tx| async move {
            let scheduled =
                Class::ALL.map(|class| self.due_scheduled(&tx, ty, class, now_ms, limit));
            let ready = Class::ALL.map(|class| self.keys().ready(ty, class, 0).0);
            let ready = ready.into_iter().chain([self.keys().all_shared(ty)]);
            let ready = ready.map(|range| self.waiting(&tx, ty, range, now_ms, limit));
            let held = RangeOptions::limit(limit);
            let held = (tx.snapshot()).get_range(self.keys().all_waiting(ty), held);
            let (ready, scheduled, (held, counts)) = try_join3(
                try_join_all(ready),
                try_join_all(scheduled),
                try_join(held.collect().map_err(Error::from), self.counts_in(&tx, ty)),
            )
            .await?;
            let found = Due::sum(ready.into_iter().chain(scheduled));
            let (due, held) = (found.jobs as u64, held.len() as u64);
            Ok(Backlog {
                due,
                due_at_least: found.at_least,
                held,
                future: counts.pending.saturating_sub(due + held),
                oldest_due_ms: found.oldest_ms,
            })
        })
        .await
    }

    /// The due scheduled jobs of a class.
    async fn due_scheduled(
        &self,
        tx: &Transaction,
        ty: &JobType,
        class: Class,
        now_ms: i64,
        limit: usize,
    ) -> Result<Due> {
        let (all, _) = self.keys().timed_around(ty, class, 0);
        let rows = tx.snapshot().get_range(all, RangeOptions::limit(FEW));
        let rows = rows.collect().await?;
        if rows.len() < FEW {
            return self.due_of(ty, &rows, now_ms);
        }
        // Buckets are not equally full.
        let share = 4 * limit.div_ceil(usize::from(TIMED_BUCKETS));
        let buckets = (0..TIMED_BUCKETS).map(|bucket| {
            let range = self.keys().due(ty, class, bucket, now_ms);
            self.waiting(tx, ty, range, now_ms, share)
        });
        let lanes =
            (0..LANE_PARTS).map(|part| self.due_in_lanes(tx, ty, (class, part), now_ms, limit));
        let (buckets, lanes) = try_join(read_all(buckets), read_all(lanes)).await?;
        Ok(Due::sum(buckets.into_iter().chain(lanes)))
    }

    /// The due scheduled jobs in a part of the lanes. Those that are not due are passed over, however many a lane has.
    async fn due_in_lanes(
        &self,
        tx: &Transaction,
        ty: &JobType,
        (class, part): (Class, u16),
        now_ms: i64,
        limit: usize,
    ) -> Result<Due> {
        let size = LANES / LANE_PARTS;
        let mut lanes = part * size..(part + 1) * size;
        let mut found = Due::default();
        while !found.at_least && !lanes.is_empty() {
            let range = self.keys().timed_lanes(ty, class, lanes.clone());
            let head = tx.snapshot().get_range(range, RangeOptions::limit(1));
            let Some(head) = head.collect().await?.pop() else {
                break;
            };
            let (position, _) = self.keys().position(ty, State::Pending, &head.key)?;
            let Position::Timed(_, Some(lane), due_ms) = position else {
                break;
            };
            if due_ms <= now_ms {
                let bucket = TIMED_BUCKETS + lane.number();
                let range = self.keys().due(ty, class, bucket, now_ms);
                let more = self
                    .waiting(tx, ty, range, now_ms, limit - found.jobs)
                    .await?;
                found = Due::sum([found, more]);
            }
            lanes.start = lane.number() + 1;
        }
        Ok(found)
    }

    /// The due jobs in a range.
    async fn waiting(
        &self,
        tx: &Transaction,
        ty: &JobType,
        range: KeyRange,
        now_ms: i64,
        limit: usize,
    ) -> Result<Due> {
        let rows = tx.snapshot().get_range(range, RangeOptions::limit(limit));
        let mut found = self.due_of(ty, &rows.collect().await?, now_ms)?;
        found.at_least = found.jobs == limit;
        Ok(found)
    }

    fn due_of(&self, ty: &JobType, rows: &[KeyValue], now_ms: i64) -> Result<Due> {
        let mut found = Due::default();
        for row in rows {
            let since_ms = match self.keys().position(ty, State::Pending, &row.key)? {
                (Position::Timed(.., due_ms), _) if due_ms > now_ms => continue,
                (Position::Timed(.., due_ms), _) => due_ms,
                _ => since(&row.value)?,
            };
            found.jobs += 1;
            found.oldest_ms = Some(
                found
                    .oldest_ms
                    .map_or(since_ms, |oldest| oldest.min(since_ms)),
            );
        }
        Ok(found)
    }
}

/// Due jobs that were counted.
#[derive(Debug, Clone, Copy, Default)]
struct Due {
    jobs: usize,
    /// Whether there may be more.
    at_least: bool,
    /// When the oldest became due.
    oldest_ms: Option<i64>,
}

impl Due {
    fn sum(parts: impl IntoIterator<Item = Self>) -> Self {
        parts.into_iter().fold(Self::default(), |sum, part| Self {
            jobs: sum.jobs + part.jobs,
            at_least: sum.at_least || part.at_least,
            oldest_ms: [sum.oldest_ms, part.oldest_ms].into_iter().flatten().min(),
        })
    }
}

/// Counters are never negative within a consistent read.
fn unsigned(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}
