//! The header of a job: everything about it except large data.

mod attempt;
mod blob;
mod rare;

use std::num::NonZeroU8;

use bytes::Bytes;

use crate::model::class::tag;
use crate::model::codec::{Reader, Writer};
use crate::model::limits::{Taken, Which};
use crate::{Class, Error, JobLock, Lane, Result};

pub(crate) use attempt::shorten;
pub use attempt::{Attempt, End, Outcome, REASON_BYTES_MAX};
pub use blob::DATA_BYTES_MAX;
pub(crate) use blob::{Blob, INLINE_BYTES_MAX, check_data};
pub(crate) use rare::{Rare, field};

/// Maximum creators' operation ids that a header stores.
const OPS_MAX: usize = 4;
/// The format byte of headers. 1 and 2 were headers without and with a lane, before fields had numbers.
const FORMAT: u8 = 3;

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// It waits to be claimed, now or when it is due.
    Pending,
    /// It has a holder.
    Running,
    /// It is done, until it is added again, removed, or expires.
    Finished,
    /// It could not be done: a dead letter, kept until it is [retried](crate::Jobs::retry), added again or removed.
    Dead,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Running, Self::Finished, Self::Dead];

    /// True when no run follows unless a creator asks for one.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Finished | Self::Dead)
    }
}

/// The position of a ready job in its queue: the version at which it became ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order {
    pub(crate) incarnation: u32,
    pub(crate) version: u64,
}

impl Order {
    /// Before all others.
    pub(crate) const FIRST: Self = Self {
        incarnation: 0,
        version: 0,
    };
}

/// Determines the one index row of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Pending, as soon as possible.
    Ready(Order),
    /// Pending until `due_ms`.
    Timed,
    /// Pending, and this limit has no slot for it. Jobs that were ready before get slots before.
    Waiting(Which, Order),
    Active,
    Finished {
        at_ms: i64,
        expires_ms: i64,
    },
    Dead {
        at_ms: i64,
    },
}

/// The next run requested of a running job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) due_ms: i64,
    pub(crate) data: Option<Blob>,
    /// Requested by a creator; the holder's own request does not override it.
    pub(crate) by_creator: bool,
}

impl Next {
    /// Whether it runs data that a creator has added since the current run began.
    pub(crate) fn is_new(&self) -> bool {
        self.by_creator && self.data.is_some()
    }
}

/// Everything about a job except large data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) place: Place,
    /// When it is, or was last, due; 0 means as soon as possible.
    pub(crate) due_ms: i64,
    pub(crate) created_ms: i64,
    /// The operation that created the job: distinguishes it from earlier and later jobs of its id.
    pub(crate) born: u64,
    pub(crate) attempts: u32,
    /// Attempts in a row whose holder went silent, or failed and put the job back.
    pub(crate) stalls: u32,
    /// How long it is kept after it has finished; `None` until it is removed.
    pub(crate) retention_ms: Option<u64>,
    /// The last slot used for data.
    pub(crate) slots: u32,
    pub(crate) data: Blob,
    pub(crate) next: Option<Next>,
    /// The current run, else the last one.
    pub(crate) last: Option<Attempt>,
    /// The creators' last operations, newest last.
    pub(crate) ops: Vec<u64>,
    /// Notifiers to notify of the next change.
    pub(crate) watchers: Vec<u64>,
    /// Where it waits while pending; `None` for jobs without a lane.
    pub(crate) lane: Option<Lane>,
    /// Fields that few jobs have.
    pub(crate) rare: Option<Box<Rare>>,
}

impl Header {
    pub(crate) fn state(&self) -> State {
        match self.place {
            Place::Ready(_) | Place::Timed | Place::Waiting(..) => State::Pending,
            Place::Active => State::Running,
            Place::Finished { .. } => State::Finished,
            Place::Dead { .. } => State::Dead,
        }
    }

    /// The lock of the current run.
    pub(crate) fn lock(&self) -> Option<JobLock> {
        match self.place {
            Place::Active => self.last.as_ref().map(|attempt| attempt.lock),
            _ => None,
        }
    }

    /// Whether the job is deleted when it finishes.
    pub(crate) fn is_fleeting(&self) -> bool {
        self.retention_ms == Some(0)
    }

    /// Whether this lock's run was the last one, and its holder has ended it.
    pub(crate) fn was_ended_by(&self, lock: JobLock) -> bool {
        self.last.as_ref().is_some_and(|last| {
            last.lock == lock && last.end.as_ref().is_some_and(|end| end.outcome.by_holder())
        })
    }

    /// A blob of these bytes, in a slot that no earlier data of the job used.
    pub(crate) fn blob(&mut self, bytes: Bytes) -> Blob {
        let slot = if bytes.len() <= INLINE_BYTES_MAX {
            0
        } else {
            self.slots = self.slots.wrapping_add(1).max(1);
            self.slots
        };
        Blob::new(slot, bytes)
    }

    /// The blobs stored in their own rows.
    pub(crate) fn chunked(&self) -> impl Iterator<Item = &Blob> {
        let next = self.next.as_ref().and_then(|next| next.data.as_ref());
        [Some(&self.data), next]
            .into_iter()
            .flatten()
            .filter(|blob| blob.slot != 0)
    }

    /// The label that the job is counted by.
    pub(crate) fn label(&self) -> u8 {
        self.data.label.map_or(0, NonZeroU8::get)
    }

    /// Labels data that has no label yet.
    pub(crate) fn label_new(&mut self, label: impl Fn(&[u8]) -> u8) {
        let next = self.next.as_mut().and_then(|next| next.data.as_mut());
        for blob in [Some(&mut self.data), next].into_iter().flatten() {
            if let (None, Some(bytes)) = (blob.label, &blob.bytes) {
                blob.label = NonZeroU8::new(label(bytes));
            }
        }
    }

    pub(crate) fn asked_ms(&self) -> Option<i64> {
        self.rare.as_ref()?.asked_ms
    }

    /// Arrival time of the oldest signal that the current run covers.
    pub(crate) fn covered_ms(&self) -> Option<i64> {
        let last = (self.last.as_ref()).filter(|_| self.state() == State::Running)?;
        let zigzag = self.rare.as_ref()?.covers.checked_sub(1)?;
        // Negative if the clocks of the creator and the holder differ.
        let before_ms = i64::from(zigzag >> 1) ^ -i64::from(zigzag & 1);
        Some(last.started_ms.saturating_sub(before_ms))
    }

    /// Sets the arrival time of the oldest signal that the run covers, which starts now. A signal older than 24 days counts
    /// as 24 days old.
    pub(crate) fn cover(&mut self, asked_ms: Option<i64>, now_ms: i64) {
        const BEFORE_MS_MAX: i64 = i32::MAX as i64 - 1;
        let covers = asked_ms.map_or(0, |asked_ms| {
            let before_ms = now_ms.saturating_sub(asked_ms);
            let before_ms = before_ms.clamp(-BEFORE_MS_MAX, BEFORE_MS_MAX);
            let zigzag = (before_ms << 1) ^ (before_ms >> 63);
            u32::try_from(zigzag + 1).expect("fits after clamping")
        });
        if covers != self.rare.as_ref().map_or(0, |rare| rare.covers) {
            self.with_rare(|rare| rare.covers = covers);
        }
    }

    pub(crate) fn signal_ms(&self) -> Option<i64> {
        self.rare.as_ref()?.signal_ms
    }

    pub(crate) fn class(&self) -> Class {
        self.rare.as_ref().map_or(Class::Normal, |rare| rare.class)
    }

    pub(crate) fn tenant(&self) -> Option<&Bytes> {
        self.rare.as_ref()?.tenant.as_ref()
    }

    /// The tenant in whose turn it runs, if tenants of its type take turns.
    pub(crate) fn sharer(&self) -> Option<Bytes> {
        let rare = self.rare.as_ref().filter(|rare| rare.shared)?;
        Some(rare.tenant.clone().unwrap_or_default())
    }

    /// What it is counted by besides its state.
    pub(crate) fn tag(&self) -> u8 {
        tag(self.label(), self.class())
    }

    /// The name of a limit of the job.
    pub(crate) fn limit(&self, which: Which) -> Option<&Bytes> {
        let rare = self.rare.as_ref()?;
        match which {
            Which::Key => rare.key.as_ref(),
            Which::Pool => rare.pool.as_ref(),
        }
    }

    /// Whether the job has limits.
    pub(crate) fn is_limited(&self) -> bool {
        (self.rare.as_ref()).is_some_and(|rare| rare.key.is_some() || rare.pool.is_some())
    }

    /// The slots of limits that the job has.
    pub(crate) fn taken(&self) -> &[Taken] {
        self.rare.as_ref().map_or(&[], |rare| &rare.taken)
    }

    /// Changes the rare fields, and drops them if all have their defaults.
    pub(crate) fn with_rare(&mut self, change: impl FnOnce(&mut Rare)) {
        let mut rare = self.rare.take().unwrap_or_default();
        change(&mut rare);
        self.rare = Some(rare).filter(|rare| **rare != Rare::default());
    }

    pub(crate) fn remember(&mut self, op: u64) {
        if self.ops.len() >= OPS_MAX {
            self.ops.remove(0);
        }
        self.ops.push(op);
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::new(FORMAT);
        match self.place {
            Place::Ready(order) => {
                to.byte(0);
                to.uint(order.incarnation);
                to.uint(order.version);
            }
            Place::Timed => to.byte(1),
            Place::Active => to.byte(2),
            Place::Finished { at_ms, expires_ms } => {
                to.byte(3);
                to.int(at_ms);
                to.int(expires_ms);
            }
            Place::Dead { at_ms } => {
                to.byte(4);
                to.int(at_ms);
            }
            Place::Waiting(which, order) => {
                to.byte(5);
                to.byte(which as u8);
                to.uint(order.incarnation);
                to.uint(order.version);
            }
        }
        to.int(self.due_ms);
        to.int(self.created_ms);
        to.raw(&self.born.to_be_bytes());
        to.uint(self.attempts);
        to.uint(self.stalls);
        to.option(self.retention_ms, Writer::uint);
        to.uint(self.slots);
        self.data.encode(&mut to);
        to.option(self.next.as_ref(), |to, next| {
            to.int(next.due_ms);
            to.byte(u8::from(next.by_creator));
            to.option(next.data.as_ref(), |to, blob| blob.encode(to));
        });
        to.option(self.last.as_ref(), |to, attempt| attempt.write(to));
        to.ids(&self.ops);
        to.ids(&self.watchers);
        if let Some(lane) = self.lane {
            to.byte(field::LANE);
            to.uint(lane.number());
        }
        if let Some(rare) = &self.rare {
            rare.encode(&mut to);
        }
        to.finish()
    }

    pub(crate) fn decode(value: Bytes) -> Result<Self> {
        let mut from = Reader::new(value, "a job's header", FORMAT)?;
        let place = match from.byte()? {
            0 => Place::Ready(Order {
                incarnation: from.uint()?,
                version: from.uint()?,
            }),
            1 => Place::Timed,
            2 => Place::Active,
            3 => Place::Finished {
                at_ms: from.int()?,
                expires_ms: from.int()?,
            },
            4 => Place::Dead { at_ms: from.int()? },
            5 => {
                let which = *(Which::ALL.get(usize::from(from.byte()?)))
                    .ok_or_else(|| Error::corrupt("invalid limit of a job"))?;
                let (incarnation, version) = (from.uint()?, from.uint()?);
                let order = Order {
                    incarnation,
                    version,
                };
                Place::Waiting(which, order)
            }
            other => return Err(Error::corrupt(format!("a job in state {other}"))),
        };
        let mut header = Self {
            place,
            due_ms: from.int()?,
            created_ms: from.int()?,
            born: u64::from_be_bytes(from.array()?),
            attempts: from.uint()?,
            stalls: from.uint()?,
            retention_ms: from.option(Reader::uint)?,
            slots: from.uint()?,
            data: Blob::decode(&mut from)?,
            next: from.option(|from| {
                Ok(Next {
                    due_ms: from.int()?,
                    by_creator: from.byte()? != 0,
                    data: from.option(Blob::decode)?,
                })
            })?,
            last: from.option(Attempt::read)?,
            ops: from.ids()?,
            watchers: from.ids()?,
            lane: None,
            rare: None,
        };
        let (mut rare, mut last) = (Rare::default(), 0);
        while !from.is_empty() {
            let number = from.byte()?;
            if number <= last {
                return Err(Error::corrupt("a job's header has its fields out of order"));
            }
            match number {
                field::LANE => header.lane = Some(Lane::read(&mut from)?),
                _ => rare.decode(number, &mut from)?,
            }
            last = number;
        }
        if rare != Rare::default() {
            header.rare = Some(Box::new(rare));
        }
        Ok(header)
    }
}

impl Lane {
    fn read(from: &mut Reader) -> Result<Self> {
        Self::from_number(from.uint()?).ok_or_else(|| Error::corrupt("invalid lane of a job"))
    }
}
