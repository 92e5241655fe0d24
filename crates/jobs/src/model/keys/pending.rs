//! Keys of PENDING: jobs that wait to be claimed.

use std::ops::Range;

use bytes::Bytes;
use store::KeyRange;
use store::tuple::{Bytes as TupleBytes, unpack};

use super::{Keys, Position, Table};
use crate::model::header::Order;
use crate::model::ids::{SHARDS, TIMED_BUCKETS};
use crate::{Class, JobId, JobType, Lane};

/// The first number of a key: ready and scheduled jobs of each class, and those behind a limit.
const READY: [(Class, i64); 3] = [(Class::Normal, 0), (Class::Urgent, 3), (Class::Bulk, 5)];
pub(super) const WAITING: i64 = 2;
/// The first number after those of classes.
const END: i64 = 7;

fn ready(class: Class) -> i64 {
    match class {
        Class::Normal => 0,
        Class::Urgent => 3,
        Class::Bulk => 5,
    }
}

fn timed(class: Class) -> i64 {
    ready(class) + 1
}

impl Keys {
    /// The row of a pending job.
    pub(super) fn pending(
        &self,
        job_type: &JobType,
        job_id: &JobId,
        position: &Position,
    ) -> Vec<u8> {
        let (shard, bucket) = (job_id.shard(), job_id.timed_bucket());
        let (ty, id) = (job_type, job_id.as_bytes());
        match *position {
            Position::Ready(class, lane, order) => {
                let shard = lane.map_or(shard, |lane| SHARDS + lane.number());
                let (incarnation, version) = (order.incarnation, order.version);
                let key = (ready(class), shard, incarnation, version, id);
                self.pack_of(Table::Pending, ty, &key)
            }
            Position::Timed(class, lane, due_ms) => {
                let bucket = lane.map_or(bucket, |lane| TIMED_BUCKETS + lane.number());
                self.pack_of(Table::Pending, ty, &(timed(class), bucket, due_ms, id))
            }
            Position::Waiting(ref limit, class, order) => {
                let rank = rank(class) << 32 | i64::from(order.incarnation);
                let key = (WAITING, &**limit, rank, order.version, id);
                self.pack_of(Table::Pending, ty, &key)
            }
            Position::Shared(class, ref tenant, order) => {
                self.shared(job_type, job_id, (class, tenant), order)
            }
            Position::Active | Position::Finished(_) | Position::Dead(_) => Vec::new(),
        }
    }

    /// The position and id in the part of a key after the type.
    pub(super) fn pending_of(rest: &[u8]) -> Option<(Position, TupleBytes<'_>)> {
        type Id<'a> = TupleBytes<'a>;
        if let Ok((number, shard, incarnation, version, id)) =
            unpack::<(i64, u16, u32, u64, Id<'_>)>(rest)
        {
            let (class, _) = READY.into_iter().find(|(_, first)| *first == number)?;
            let order = Order {
                incarnation,
                version,
            };
            let lane = lane_behind(SHARDS, shard);
            return Some((Position::Ready(class, lane, order), id));
        }
        if let Ok((number, bucket, due_ms, id)) = unpack::<(i64, u16, i64, Id<'_>)>(rest) {
            let (class, _) = READY.into_iter().find(|(_, first)| first + 1 == number)?;
            let lane = lane_behind(TIMED_BUCKETS, bucket);
            return Some((Position::Timed(class, lane, due_ms), id));
        }
        if let Some((limit, class, order, id)) = Self::waiting_of(rest) {
            return Some((Position::Waiting(limit, class, order), id));
        }
        Self::shared_of(rest)
    }

    /// Ready and scheduled jobs of other classes than the normal one, the urgent ones first.
    pub(crate) fn other_classes(&self, ty: &JobType) -> KeyRange {
        let edge = |first: i64| self.pack(Table::Pending, &(ty.as_str(), first));
        KeyRange::new(edge(ready(Class::Urgent)), edge(END))
    }

    /// The ready jobs of the lanes with these numbers.
    pub(crate) fn ready_lanes(&self, ty: &JobType, class: Class, lanes: Range<u16>) -> KeyRange {
        let edge = |lane| self.pack(Table::Pending, &(ty.as_str(), ready(class), SHARDS + lane));
        KeyRange::new(edge(lanes.start), edge(lanes.end))
    }

    /// The scheduled jobs of the lanes with these numbers.
    pub(crate) fn timed_lanes(&self, ty: &JobType, class: Class, lanes: Range<u16>) -> KeyRange {
        let edge = |lane| {
            let key = (ty.as_str(), timed(class), TIMED_BUCKETS + lane);
            self.pack(Table::Pending, &key)
        };
        KeyRange::new(edge(lanes.start), edge(lanes.end))
    }

    /// The ready jobs from a shard on, including those of lanes at the end; and those before it.
    pub(crate) fn ready(&self, ty: &JobType, class: Class, shard: u16) -> (KeyRange, KeyRange) {
        self.around(ty, ready(class), shard)
    }

    /// The scheduled jobs from a bucket on, including those of lanes at the end; and those before it.
    pub(crate) fn timed_around(
        &self,
        ty: &JobType,
        class: Class,
        bucket: u16,
    ) -> (KeyRange, KeyRange) {
        self.around(ty, timed(class), bucket)
    }

    fn around(&self, ty: &JobType, first: i64, place: u16) -> (KeyRange, KeyRange) {
        let all = self.range(Table::Pending, &(ty.as_str(), first));
        let middle = Bytes::from(self.pack(Table::Pending, &(ty.as_str(), first, place)));
        (
            KeyRange::new(middle.clone(), all.end),
            KeyRange::new(all.begin, middle),
        )
    }

    /// The scheduled jobs of a bucket.
    pub(crate) fn timed(&self, ty: &JobType, class: Class, bucket: u16) -> KeyRange {
        self.range(Table::Pending, &(ty.as_str(), timed(class), bucket))
    }

    /// The scheduled jobs of a bucket that are due.
    pub(crate) fn due(&self, ty: &JobType, class: Class, bucket: u16, now_ms: i64) -> KeyRange {
        let all = self.timed(ty, class, bucket);
        let Some(later_ms) = now_ms.checked_add(1) else {
            return all;
        };
        let end = (ty.as_str(), timed(class), bucket, later_ms);
        KeyRange::new(all.begin, self.pack(Table::Pending, &end))
    }
}

/// How a class ranks in keys that have all classes.
pub(super) fn rank(class: Class) -> i64 {
    match class {
        Class::Urgent => -1,
        Class::Normal => 0,
        Class::Bulk => 1,
    }
}

/// The class of this rank.
pub(super) fn class_of(number: i64) -> Option<Class> {
    (Class::ALL.into_iter()).find(|class| rank(*class) == number)
}

/// The class and incarnation in the key of a job behind a limit.
pub(super) fn of_rank(number: i64) -> Option<(Class, u32)> {
    let class = class_of(number >> 32)?;
    let incarnation = u32::try_from(number & i64::from(u32::MAX)).ok()?;
    Some((class, incarnation))
}

/// The lane with this number, counted from the end of the shards or buckets.
fn lane_behind(others: u16, number: u16) -> Option<Lane> {
    (number.checked_sub(others)).and_then(Lane::from_number)
}
