//! Lanes: owners whose jobs take turns.
//!
//! A claim starts with the lane after the one served last, so a job waits for as many claims as there
//! are lanes with jobs, not for the jobs before it. Only the handle knows whose turn it is: another
//! one starts at a random lane, and reaches each lane as soon. Jobs without a lane are served as one lane,
//! after the last. A type that uses no lanes is seldom searched for them.

use std::collections::BTreeSet;
use std::ops::Range;

use futures::future::{try_join, try_join_all};
use store::Transaction;

use super::candidates::{Candidate, Search, choose};
use crate::model::ids::{LANE_PARTS, LANES, TIMED_BUCKETS};
use crate::model::keys::Position;
use crate::model::turns::Turn;
use crate::{Jobs, Result};

/// Maximum lanes that one claim takes jobs from, if the first ones have enough.
const LANES_MAX: usize = 8;
/// Maximum lanes of scheduled jobs that one claim reads.
const TIMED_LANES_MAX: usize = 16;

/// Due jobs of one lane.
#[derive(Debug)]
struct Group {
    lane: u16,
    due: Vec<Candidate>,
}

/// Due jobs of some lanes, in order of their turns.
#[derive(Debug, Default)]
pub(super) struct Groups {
    ready: Vec<Group>,
    timed: Vec<Group>,
    /// The lane after the last one of scheduled jobs that was read.
    timed_end: u16,
}

impl Groups {
    pub(super) fn len(&self) -> usize {
        let groups = self.ready.iter().chain(&self.timed);
        groups.map(|group| group.due.len()).sum()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Candidate> {
        let groups = self.ready.iter().chain(&self.timed);
        groups.flat_map(|group| &group.due)
    }

    fn ids(&self) -> BTreeSet<&crate::JobId> {
        self.all().map(|job| &job.id).collect()
    }

    /// Adds scheduled jobs found elsewhere, without duplicates.
    pub(super) fn add_timed(&mut self, mut found: Vec<Candidate>) {
        let known = self.ids();
        found.retain(|job| !known.contains(&job.id));
        for job in found {
            let lane = job.lane().unwrap_or(LANES);
            match self.timed.iter_mut().find(|group| group.lane == lane) {
                Some(group) => group.due.push(job),
                None => self.timed.push(Group {
                    lane,
                    due: vec![job],
                }),
            }
        }
    }
}

impl Jobs {
    /// Due jobs of the lanes whose turn it is.
    pub(super) async fn lanes(
        &self,
        tx: &Transaction,
        search: &Search<'_>,
        window: usize,
    ) -> Result<Groups> {
        let (ready, timed) = (search.claim.turn.ready.min(LANES), search.claim.turn.timed);
        let mut groups = Groups::default();
        let (first, (timed_first, _, end)) = try_join(
            self.ready_lanes(tx, search, ready..LANES, window, 0),
            self.timed_lanes(tx, search, timed..LANES, window, TIMED_LANES_MAX),
        )
        .await?;
        groups.ready = first;
        (groups.timed, groups.timed_end) = (timed_first, end);
        if !enough(&groups.ready, 0, search.wanted) {
            let known = groups.ready.len();
            let again = self
                .ready_lanes(tx, search, 0..ready, window, known)
                .await?;
            groups.ready.extend(again);
        }
        if groups.timed_end == LANES {
            let (again, _, end) =
                (self.timed_lanes(tx, search, 0..timed, window, TIMED_LANES_MAX)).await?;
            groups.timed.extend(again);
            groups.timed_end = end;
        }
        Ok(groups)
    }

    /// The heads of lanes of ready jobs, until there are enough together with the known ones.
    async fn ready_lanes(
        &self,
        tx: &Transaction,
        search: &Search<'_>,
        mut lanes: Range<u16>,
        window: usize,
        known: usize,
    ) -> Result<Vec<Group>> {
        let mut groups: Vec<Group> = Vec::new();
        while !lanes.is_empty() && !enough(&groups, known, search.wanted) {
            let range = self
                .keys()
                .ready_lanes(&search.claim.ty, search.class, lanes.clone());
            let rows = self.candidates(tx, search, range, window).await?;
            let Some(last) = rows.last().and_then(Candidate::lane) else {
                break;
            };
            for job in rows {
                let lane = job.lane().unwrap_or(last);
                match groups.last_mut().filter(|group| group.lane == lane) {
                    Some(group) => group.due.push(job),
                    None => groups.push(Group {
                        lane,
                        due: vec![job],
                    }),
                }
            }
            lanes.start = last + 1;
        }
        Ok(groups)
    }

    /// The heads of up to `lanes_max` lanes of scheduled due jobs, when the first of the others is
    /// due, and the lane after them.
    async fn timed_lanes(
        &self,
        tx: &Transaction,
        search: &Search<'_>,
        mut lanes: Range<u16>,
        limit: usize,
        lanes_max: usize,
    ) -> Result<(Vec<Group>, Option<i64>, u16)> {
        let (mut groups, mut next_due_ms) = (Vec::new(), None);
        for _ in 0..lanes_max {
            let range = self
                .keys()
                .timed_lanes(&search.claim.ty, search.class, lanes.clone());
            let head = self.candidates(tx, search, range, 1).await?.pop();
            let Some((lane, Position::Timed(.., due_ms))) =
                head.and_then(|head| Some((head.lane()?, head.position)))
            else {
                lanes.start = lanes.end;
                break;
            };
            if due_ms <= self.horizon_ms(search) {
                let due = (self.keys()).due(
                    &search.claim.ty,
                    search.class,
                    TIMED_BUCKETS + lane,
                    self.horizon_ms(search),
                );
                let due = self.candidates(tx, search, due, limit).await?;
                let due = self.scheduled(search, due);
                next_due_ms = next_due_ms.into_iter().chain(due.next_due_ms).min();
                if !due.due.is_empty() {
                    groups.push(Group { lane, due: due.due });
                }
            } else {
                next_due_ms = next_due_ms.into_iter().chain([due_ms]).min();
            }
            lanes.start = lane + 1;
        }
        Ok((groups, next_due_ms, lanes.start))
    }

    /// The due scheduled jobs of all lanes, and when the first of the others is due.
    pub(super) async fn all_timed_lanes(
        &self,
        tx: &Transaction,
        search: &Search<'_>,
        limit: usize,
    ) -> Result<(Vec<Candidate>, Option<i64>)> {
        let part = LANES / LANE_PARTS;
        let parts = (0..LANE_PARTS).map(|n| {
            let lanes = n * part..(n + 1) * part;
            self.timed_lanes(tx, search, lanes, limit, usize::from(part))
        });
        let (mut due, mut next_due_ms) = (Vec::new(), None);
        for (groups, next, _) in try_join_all(parts).await? {
            due.extend(groups.into_iter().flat_map(|group| group.due));
            next_due_ms = [next_due_ms, next].into_iter().flatten().min();
        }
        Ok((due, next_due_ms))
    }

    /// Chooses among the jobs without a lane and those of lanes: one of each in turn, while both have
    /// any.
    pub(super) fn take_turns(
        &self,
        others: Vec<Candidate>,
        groups: Groups,
        search: &Search<'_>,
        attempt: u32,
    ) -> Vec<Candidate> {
        let Turn { claims, ready, .. } = search.claim.turn;
        let (mut first, mut second) = (groups.ready, groups.timed);
        if !others.is_empty() {
            let wrapped = first.iter().position(|group| group.lane < ready);
            let place = wrapped.unwrap_or(first.len());
            let (lane, due) = (LANES, others);
            first.insert(place, Group { lane, due });
        }
        let ready_count = first.len();
        // Ready and scheduled jobs do not block each other.
        let ready_first = claims.is_multiple_of(2);
        if !ready_first {
            std::mem::swap(&mut first, &mut second);
        }
        first.extend(second);
        let sizes: Vec<usize> = first.iter().map(|group| group.due.len()).collect();
        let shares = shares(&sizes, search.wanted);
        let served = |group: usize| shares.get(group).is_some_and(|share| *share > 0);
        let ready_begin = if ready_first {
            0
        } else {
            first.len() - ready_count
        };
        let timed_begin = if ready_first { ready_count } else { 0 };
        let timed_count = first.len() - ready_count;
        let next_ready = (ready_begin..ready_begin + ready_count)
            .rev()
            .find(|group| served(*group))
            .map_or(ready, |group| (first[group].lane + 1) % (LANES + 1));
        let next_timed = (timed_begin..timed_begin + timed_count)
            .find(|group| !served(*group))
            .map_or(groups.timed_end % LANES, |group| first[group].lane % LANES);
        self.turns().set(&search.claim.ty, next_ready, next_timed);
        let chosen = first.into_iter().zip(shares);
        chosen
            .flat_map(|(group, share)| choose(group.due, share, search.claim, attempt).0)
            .collect()
    }
}

/// Whether a claim needs no other lanes: it has enough jobs, from enough lanes.
fn enough(groups: &[Group], known: usize, wanted: usize) -> bool {
    let jobs: usize = groups.iter().map(|group| group.due.len()).sum();
    jobs >= wanted && known + groups.len() >= wanted.min(LANES_MAX)
}

/// Divides what is wanted among groups of these sizes as evenly as possible; the first ones get the
/// remainder.
fn shares(sizes: &[usize], wanted: usize) -> Vec<usize> {
    let mut shares = vec![0; sizes.len()];
    let mut left = wanted;
    loop {
        let before = left;
        for (share, size) in shares.iter_mut().zip(sizes) {
            if left > 0 && *share < *size {
                *share += 1;
                left -= 1;
            }
        }
        if left == before || left == 0 {
            return shares;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn jobs_are_shared_out_evenly() {
        assert_eq!(shares(&[10_000, 1], 4), [3, 1]);
        assert_eq!(shares(&[10_000, 1], 1), [1, 0]);
        assert_eq!(shares(&[2, 0, 5, 5], 9), [2, 0, 4, 3]);
        assert_eq!(shares(&[1, 1], 9), [1, 1]);
        assert!(shares(&[], 9).is_empty());
    }
}
