//! The data model, and the only place that knows bytes of keys.
//!
//! Keys are tuples in the queue's subspace, `(51, table, type, …)`; 51 and the meaning of tables 1 to 6 are
//! `couch_jobs`'. Table numbers are never reused. Every value starts with a format byte.
//!
//! ```text
//!  1 JOB       type, bucket, id                       = header: state, due time, attempts, lock, small data
//!  2 PENDING   type, 0, shard, incarnation, version, id = since     ready: first come, first served
//!    PENDING   type, 1, timed bucket, due_ms, id      = since     scheduled: due at a time
//!    PENDING   type, 2, limit, incarnation, version, id = since   waiting behind a limit, for a slot of it
//!    PENDING   type, 3, ..                            = since     like 0, of the class urgent; 5 of the class bulk
//!    PENDING   type, 4, ..                            = since     like 1, of the class urgent; 6 of the class bulk
//!    PENDING   type, 7, rank, tenant, shard, incarnation, version, id = since   ready, of a tenant
//!  3 SLEEPER   type, nonce                            = stamp, number of an acceptor, woken by clearing it
//!  4 NOTIFIER  type, nonce                            = stamp     bumped when a notifier has a note to read
//!  5 TYPE      type                                   = timeout, retention, stall policy; its being there
//!                                                       is the registration of the type
//!  6 ACTIVITY  type, bucket, id                       = stamp, time, timeout of the last heartbeat, and until when a
//!                                                       tenant has been charged
//!  7 DATA      type, bucket, id, slot, n              = the nth chunk of data that is too large for the header
//!  8 FINISHED  type, bucket, expires_ms, id           = ""        retention: i64::MAX is never
//!  9 HISTORY   type, bucket, id, attempt              = holder, lock, start, end, outcome, reason
//! 10 COUNT     type, row, edge                        = 64-bit little endian, added to: transitions made
//! 11 LEASE     type, partition                        = owner, generation, clock, stamp
//! 12 NOTE      type, nonce, id                        = ""        a job that a notifier is to look at
//!    NOTE      type, nonce, lock, interrupt           = ""        a run that an acceptor is to stop
//! 13 TYPES                                            = stamp     bumped when a TYPE row changes
//! 14 ORDER     type, rank, virtual time, tenant        = since     a tenant that may have ready jobs, seen without any
//!                                                       since; rank is that of the class, -1 to 1
//! 19 SLOT      type, limit, n                         = id, time  a slot of a limit that a job has, or that is not free
//!                                                       before a time
//! 20 LIMIT     type, limit                            = maximum, period; (type) alone changes with each of them
//! 21 DEAD      type, bucket, died_ms, id              = ""        dead letters
//! 22 TENANT    type, tenant                           = virtual time, 64-bit little endian, added to; (type) alone is
//!                                                       where tenants return while none has a turn
//! 23 QUARANTINE type, id                             = state, time: a job that cannot be decoded, out of the index
//!                                                      of its state
//! 24 THERE     type, rank, tenant                     = ""        the tenant has a turn in ORDER
//! 25 CALL      type, bucket, id, attempt, op          = stamp     a holder's call that was done, and may be tried again
//! 26 SHARES    type, tenant                           = shares, if not the default
//! ```
//!
//! - `bucket`, 0 to 31, `timed bucket`, 0 to 255, and `shard`, 0 to 1023, are the first bits of a hash of the
//!   id, so that tables do not grow at one end and acceptors need not collide. Ready jobs are all due, so one
//!   range read from any shard finds some, however few exist; of scheduled jobs the head of each bucket may
//!   have to be read, so there are fewer buckets. Every job has exactly one row in PENDING, ACTIVITY,
//!   FINISHED or DEAD, which its header determines ([`Place`]): there is no other state index, and a listing by state
//!   is in the order of these keys. A listing by id merges the buckets of JOB.
//! - Jobs of a lane have the lane's number, counted from the last shard or bucket, instead of their own: the
//!   jobs of a lane are adjacent, and one range read finds the next lane with jobs.
//! - `stamp` is the store's incarnation and a versionstamp. Stamps are compared with read versions, never
//!   with clocks. They are in values that are overwritten blindly, and never in a header, so that one
//!   transaction may have several operations on a job.
//! - `version` in a ready row is the read version at which the job became ready, also in the header: first
//!   come, first served, whatever the clocks of creators say.
//! - A heartbeat reads the header (its fence) and writes only the ACTIVITY row. A holder's call in its own
//!   transaction also leaves a CALL row, by which a retry of that transaction recognises it, whatever the
//!   holder has done since. The next call of the run, or its end, clears the rows of completed calls.
//! - `edge` counts transitions, state × 8 + state, so each transition adds to one row, not two; the number of
//!   jobs in a state is the transitions into it minus those out of it. The labels of the data before and
//!   after, 4 bits each, are above these 6 bits, and above those the classes, 2 bits each. `row`, 0 to 127, is random per transaction, which adds once
//!   for each kind of transition, however many jobs it moves.
//! - No row is written by every operation: SLEEPER rows exist only while an acceptor sleeps, NOTE and
//!   NOTIFIER rows are written only for jobs with subscribers, and there are many COUNT rows.
//! - Slots of a limit are numbered from 0. A slot without a row is free, and then no job waits behind the limit: the
//!   transaction that frees a slot gives it to one that waits. It looks for one if there is a SLOT row of the number
//!   2^32 - 1, which the first job that waits leaves, and the first transaction that finds none clears. A job that has a slot but does not run yet is due, or
//!   scheduled for when a rate lets it start.
//! - Behind a limit, urgent jobs come first and bulk jobs last: their incarnation is 2^32 lower or higher.
//! - A job of a tenant that shares its type is in the lane of its tenant while it is scheduled, and in PENDING 7 once it is
//!   due. Its tenant has a turn then, at its virtual time or earlier, and THERE says so. Virtual time is the time for which
//!   holders had its jobs, divided by its shares.

mod edges;
mod limits;
mod pack;
mod pending;
mod position;
mod tenants;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use store::KeyRange;
use store::tuple::{Bytes as TupleBytes, Element, pack_into, unpack};

use crate::model::header::{Order, State};
use crate::{Error, Job, JobId, JobType, Result};

pub(crate) use limits::WAITED;

pub(crate) use position::Position;
pub(crate) use tenants::{InClass, vtime_in};

pub(crate) use edges::{Kind, STATE_EDGES, edge, edge_adds, edge_ends, edge_of_states};

/// The number of the jobs layer.
const LAYER: i64 = 51;

/// The tables. Never change or reuse a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    Job = 1,
    Pending = 2,
    Sleeper = 3,
    Notifier = 4,
    Type = 5,
    Activity = 6,
    Data = 7,
    Finished = 8,
    History = 9,
    Count = 10,
    Lease = 11,
    Note = 12,
    Types = 13,
    Order = 14,
    Slot = 19,
    Limit = 20,
    Dead = 21,
    Tenant = 22,
    Quarantine = 23,
    There = 24,
    Call = 25,
    Shares = 26,
}

/// The keys of one queue.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    subspace: Vec<u8>,
}

impl Keys {
    pub(crate) fn new() -> Self {
        let mut subspace = Vec::new();
        pack_into(&LAYER, &mut subspace);
        Self { subspace }
    }

    pub(crate) fn job(&self, ty: &JobType, id: &JobId) -> Vec<u8> {
        self.pack_of(Table::Job, ty, &(id.bucket(), id.as_bytes()))
    }

    pub(crate) fn jobs(&self, ty: &JobType) -> KeyRange {
        self.range(Table::Job, &(ty.as_str(),))
    }

    /// The jobs of a bucket, in the order of their ids.
    pub(crate) fn jobs_of(&self, ty: &JobType, bucket: u16) -> KeyRange {
        self.range(Table::Job, &(ty.as_str(), bucket))
    }

    /// The first key in this bucket of JOB for ids from `id` on, whether or not `id` is in the bucket.
    pub(crate) fn jobs_from(&self, ty: &JobType, bucket: u16, id: &[u8]) -> Bytes {
        (self.pack(Table::Job, &(ty.as_str(), bucket, id))).into()
    }

    /// The index row of a job.
    pub(crate) fn index(&self, ty: &JobType, id: &JobId, position: &Position) -> Vec<u8> {
        let bucket = id.bucket();
        match *position {
            Position::Active => self.pack_of(Table::Activity, ty, &(bucket, id.as_bytes())),
            Position::Finished(expires_ms) => {
                let key = (ty.as_str(), bucket, expires_ms, id.as_bytes());
                self.pack(Table::Finished, &key)
            }
            Position::Dead(at_ms) => {
                self.pack(Table::Dead, &(ty.as_str(), bucket, at_ms, id.as_bytes()))
            }
            _ => self.pending(ty, id, position),
        }
    }

    /// The index of a state.
    pub(crate) fn state(&self, ty: &JobType, state: State) -> KeyRange {
        let table = match state {
            State::Pending => Table::Pending,
            State::Running => Table::Activity,
            State::Finished => Table::Finished,
            State::Dead => Table::Dead,
        };
        self.range(table, &(ty.as_str(),))
    }

    /// The heartbeats of a bucket.
    pub(crate) fn active(&self, ty: &JobType, bucket: u16) -> KeyRange {
        self.range(Table::Activity, &(ty.as_str(), bucket))
    }

    /// The finished jobs of a bucket that have expired.
    pub(crate) fn expired(&self, ty: &JobType, bucket: u16, now_ms: i64) -> KeyRange {
        let all = self.range(Table::Finished, &(ty.as_str(), bucket));
        let end = (ty.as_str(), bucket, now_ms.saturating_add(1));
        KeyRange::new(all.begin, self.pack(Table::Finished, &end))
    }

    /// The position and id in a key of a state's index.
    pub(crate) fn position(
        &self,
        ty: &JobType,
        state: State,
        key: &[u8],
    ) -> Result<(Position, JobId)> {
        type Id<'a> = TupleBytes<'a>;
        let rest = key.get(self.prefix_len(ty)..).unwrap_or_default();
        let parsed = match state {
            State::Pending => Self::pending_of(rest),
            State::Running => {
                (unpack::<(u16, Id<'_>)>(rest).ok()).map(|(_, id)| (Position::Active, id))
            }
            State::Finished | State::Dead => {
                let position = match state {
                    State::Dead => Position::Dead,
                    _ => Position::Finished,
                };
                (unpack::<(u16, i64, Id<'_>)>(rest).ok())
                    .map(|(_, at_ms, id)| (position(at_ms), id))
            }
        };
        let (position, id) = parsed.ok_or_else(|| foreign(key))?;
        Ok((position, JobId::new(id.into_owned())?))
    }

    /// The length of a key up to the end of its type. Claims decode many keys, so this allocates nothing.
    fn prefix_len(&self, ty: &JobType) -> usize {
        const TABLE: usize = 2;
        const AROUND_TEXT: usize = 2;
        let zeros = ty.as_str().bytes().filter(|byte| *byte == 0).count();
        self.subspace.len() + TABLE + AROUND_TEXT + ty.as_str().len() + zeros
    }

    pub(crate) fn sleeper(&self, ty: &JobType, nonce: u64) -> Vec<u8> {
        self.pack(Table::Sleeper, &(ty.as_str(), nonce))
    }

    pub(crate) fn sleepers(&self, ty: &JobType) -> KeyRange {
        self.range(Table::Sleeper, &(ty.as_str(),))
    }

    pub(crate) fn notifier(&self, ty: &JobType, nonce: u64) -> Vec<u8> {
        self.pack(Table::Notifier, &(ty.as_str(), nonce))
    }

    pub(crate) fn notifiers(&self, ty: &JobType) -> KeyRange {
        self.range(Table::Notifier, &(ty.as_str(),))
    }

    pub(crate) fn note(&self, ty: &JobType, nonce: u64, id: &JobId) -> Vec<u8> {
        self.pack(Table::Note, &(ty.as_str(), nonce, id.as_bytes()))
    }

    pub(crate) fn notes(&self, ty: &JobType, nonce: u64) -> KeyRange {
        self.range(Table::Note, &(ty.as_str(), nonce))
    }

    pub(crate) fn type_row(&self, ty: &JobType) -> Vec<u8> {
        self.pack(Table::Type, &(ty.as_str(),))
    }

    pub(crate) fn type_rows(&self) -> KeyRange {
        self.range(Table::Type, &())
    }

    pub(crate) fn types(&self) -> Vec<u8> {
        self.pack(Table::Types, &())
    }

    pub(crate) fn chunk(&self, ty: &JobType, id: &JobId, slot: u32, n: u32) -> Vec<u8> {
        let key = (ty.as_str(), id.bucket(), id.as_bytes(), slot, n);
        self.pack(Table::Data, &key)
    }

    pub(crate) fn chunks(&self, ty: &JobType, id: &JobId, slot: u32) -> KeyRange {
        let key = (ty.as_str(), id.bucket(), id.as_bytes(), slot);
        self.range(Table::Data, &key)
    }

    /// All chunks of a job.
    pub(crate) fn chunks_of(&self, ty: &JobType, id: &JobId) -> KeyRange {
        self.range(Table::Data, &(ty.as_str(), id.bucket(), id.as_bytes()))
    }

    /// The id, slot and number of a chunk in the range of all chunks of a type.
    pub(crate) fn chunk_of(range: &KeyRange, key: &[u8]) -> Result<(JobId, u32, u32)> {
        type Rest<'a> = (u16, TupleBytes<'a>, u32, u32);
        let rest = key.get(range.begin.len()..).unwrap_or_default();
        let (_, id, slot, n) = unpack::<Rest<'_>>(rest).map_err(|_| foreign(key))?;
        Ok((JobId::new(id.into_owned())?, slot, n))
    }

    /// The chunks of all jobs of a type.
    pub(crate) fn data(&self, ty: &JobType) -> KeyRange {
        self.range(Table::Data, &(ty.as_str(),))
    }

    pub(crate) fn attempt(&self, ty: &JobType, id: &JobId, number: u32) -> Vec<u8> {
        let key = (ty.as_str(), id.bucket(), id.as_bytes(), number);
        self.pack(Table::History, &key)
    }

    pub(crate) fn attempts(&self, ty: &JobType, id: &JobId) -> KeyRange {
        self.range(Table::History, &(ty.as_str(), id.bucket(), id.as_bytes()))
    }

    /// A completed call of a run.
    pub(crate) fn call(&self, job: &Job, op: u64) -> Vec<u8> {
        let (ty, id) = (job.ty.as_str(), &job.id);
        let op = op.to_be_bytes();
        self.pack(
            Table::Call,
            &(ty, id.bucket(), id.as_bytes(), job.attempt, &op[..]),
        )
    }

    /// The calls of a run, or of all runs of a job.
    pub(crate) fn calls(&self, ty: &JobType, id: &JobId, attempt: Option<u32>) -> KeyRange {
        let (ty, bucket, id) = (ty.as_str(), id.bucket(), id.as_bytes());
        match attempt {
            Some(attempt) => self.range(Table::Call, &(ty, bucket, id, attempt)),
            None => self.range(Table::Call, &(ty, bucket, id)),
        }
    }

    pub(crate) fn count(&self, ty: &JobType, row: u16, edge: u32) -> Vec<u8> {
        self.pack_of(Table::Count, ty, &(row, edge))
    }

    pub(crate) fn counts(&self, ty: &JobType) -> KeyRange {
        self.range(Table::Count, &(ty.as_str(),))
    }

    pub(crate) fn lease(&self, ty: &JobType, partition: u16) -> Vec<u8> {
        self.pack(Table::Lease, &(ty.as_str(), partition))
    }

    pub(crate) fn leases(&self, ty: &JobType) -> KeyRange {
        self.range(Table::Lease, &(ty.as_str(),))
    }

    pub(crate) fn quarantined(&self, ty: &JobType, id: &JobId) -> Vec<u8> {
        self.pack(Table::Quarantine, &(ty.as_str(), id.as_bytes()))
    }

    pub(crate) fn all_quarantined(&self, ty: &JobType) -> KeyRange {
        self.range(Table::Quarantine, &(ty.as_str(),))
    }

    /// The rows of a type in a table.
    #[cfg(test)]
    pub(crate) fn all(&self, table: Table, ty: &JobType) -> KeyRange {
        self.range(table, &(ty.as_str(),))
    }

    /// The job id in a key of HISTORY.
    #[cfg(test)]
    pub(crate) fn first_id(range: &KeyRange, key: &[u8]) -> Result<JobId> {
        let rest = key.get(range.begin.len()..).unwrap_or_default();
        let elements: Vec<Element<'_>> = unpack(rest).map_err(|_| foreign(key))?;
        match elements.into_iter().nth(1) {
            Some(Element::Bytes(id)) => JobId::new(id.into_owned()),
            _ => Err(foreign(key)),
        }
    }

    /// The ranges of all types' jobs, one per table; together they hold everything stored for a type.
    pub(crate) fn of_jobs(&self) -> impl Iterator<Item = KeyRange> {
        let tables = [
            Table::Job,
            Table::Pending,
            Table::Activity,
            Table::Data,
            Table::Finished,
            Table::Dead,
            Table::History,
            Table::Count,
        ];
        tables.map(|table| self.range(table, &())).into_iter()
    }

    /// The type in a key of a table ([`of_jobs`](Self::of_jobs)), and the rest of the table after that type's rows.
    pub(crate) fn type_of(range: &KeyRange, key: &[u8]) -> Result<(JobType, KeyRange)> {
        let begin = usize::min(range.begin.len(), key.len());
        let elements: Vec<Element<'_>> = unpack(&key[begin..]).map_err(|_| foreign(key))?;
        let Some(Element::String(name)) = elements.first() else {
            return Err(foreign(key));
        };
        let mut after = range.begin.to_vec();
        pack_into(name, &mut after);
        after.push(0xff);
        Ok((JobType::new(name)?, KeyRange::new(after, range.end.clone())))
    }

    /// The id at the end of a key of JOB, NOTE or QUARANTINE.
    pub(crate) fn id(range: &KeyRange, key: &[u8]) -> Result<JobId> {
        let rest = key.get(range.begin.len()..).unwrap_or_default();
        let elements: Vec<Element<'_>> = unpack(rest).map_err(|_| foreign(key))?;
        match elements.last() {
            Some(Element::Bytes(id)) => JobId::new(id.to_vec()),
            _ => Err(foreign(key)),
        }
    }

    /// The name at the end of a key of TYPE.
    pub(crate) fn type_name(&self, key: &[u8]) -> Result<JobType> {
        let rest = key.get(self.type_rows().begin.len()..).unwrap_or_default();
        let (name,) = unpack::<(String,)>(rest).map_err(|_| foreign(key))?;
        JobType::new(&name)
    }

    /// The number at the end of a key of SLEEPER, NOTIFIER or LEASE.
    pub(crate) fn number(range: &KeyRange, key: &[u8]) -> Result<u64> {
        let rest = key.get(range.begin.len()..).unwrap_or_default();
        let (number,) = unpack::<(u64,)>(rest).map_err(|_| foreign(key))?;
        Ok(number)
    }

    /// The edge at the end of a key of COUNT.
    pub(crate) fn count_edge(range: &KeyRange, key: &[u8]) -> Result<u32> {
        let rest = key.get(range.begin.len()..).unwrap_or_default();
        let (_, edge) = unpack::<(u16, u32)>(rest).map_err(|_| foreign(key))?;
        Ok(edge)
    }
}

/// When a pending row was written.
pub(crate) fn since(value: &[u8]) -> Result<i64> {
    (value.try_into().map(i64::from_be_bytes))
        .map_err(|_| Error::corrupt("a pending row cannot be decoded"))
}

/// The value of a SLEEPER, NOTIFIER or TYPES row as a template: format byte, incarnation and a placeholder for the
/// versionstamp.
pub(crate) fn stamp_template(incarnation: u32, rest: &[u8]) -> Vec<u8> {
    const FORMAT: u8 = 1;
    let mut value = Vec::with_capacity(15 + rest.len() + 4);
    value.push(FORMAT);
    value.extend_from_slice(&incarnation.to_be_bytes());
    value.extend_from_slice(&[0; 10]);
    value.extend_from_slice(rest);
    value.extend_from_slice(&5_u32.to_le_bytes());
    value
}

/// The version at which a stamped value was written; older than any version read later.
pub(crate) fn stamp_of(value: &[u8]) -> Result<Order> {
    let parts = value.split_first_chunk::<1>().and_then(|(format, rest)| {
        let (incarnation, rest) = rest.split_first_chunk()?;
        let (version, _) = rest.split_first_chunk()?;
        (*format == [1]).then_some(Order {
            incarnation: u32::from_be_bytes(*incarnation),
            version: u64::from_be_bytes(*version),
        })
    });
    parts.ok_or_else(|| Error::corrupt("a stamped row cannot be decoded"))
}

/// The bytes of a heartbeat: its stamp, time and timeout.
const BEAT_BYTES: usize = 31;

/// How long the holder that wrote a heartbeat may be silent.
pub(crate) fn promised(beat: &Bytes) -> Result<Duration> {
    let whole = beat.len() == BEAT_BYTES || charged_until(beat).is_some();
    let timeout_ms = beat.get(BEAT_BYTES - 8..).and_then(<[u8]>::first_chunk);
    (timeout_ms.filter(|_| whole))
        .map(|ms| Duration::from_millis(u64::from_be_bytes(*ms)))
        .ok_or_else(|| Error::corrupt("a heartbeat cannot be decoded"))
}

/// Until when the tenant of a running job has been charged.
pub(crate) fn charged_until(beat: &Bytes) -> Option<i64> {
    let until = beat.get(BEAT_BYTES..)?.try_into().ok()?;
    Some(i64::from_be_bytes(until))
}

/// The value after its stamp.
pub(crate) fn after_stamp(value: &Bytes) -> Bytes {
    value.slice(value.len().min(15)..)
}

fn foreign(key: &[u8]) -> Error {
    Error::corrupt(format!(
        "key {} does not belong to the queue",
        key.escape_ascii()
    ))
}
