//! Runs of a job, and how they end.

use bytes::Bytes;

use crate::model::codec::{Reader, Writer};
use crate::{Error, Holder, JobLock, Result};

/// Maximum bytes of the stored reason of an attempt's end; longer ones are cut.
pub const REASON_BYTES_MAX: usize = 300;
/// The format byte of attempts.
const ATTEMPT_FORMAT: u8 = 1;

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Its holder finished it.
    Done,
    /// Its holder gave up on it.
    Failed,
    /// Its holder put it back to run again.
    Again,
    /// Its holder went silent and it was put back.
    Stalled,
    /// Its holder went silent once too often and it is dead.
    GaveUp,
}

impl Outcome {
    const ALL: [Self; 5] = [
        Self::Done,
        Self::Failed,
        Self::Again,
        Self::Stalled,
        Self::GaveUp,
    ];

    /// Whether the holder itself ended the attempt.
    pub(crate) fn by_holder(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Again)
    }
}

/// One run of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Counts the runs of a job from 1.
    pub number: u32,
    /// The node that ran it.
    pub holder: Holder,
    /// When it was claimed, by its holder's clock.
    pub started_ms: i64,
    /// How it ended; `None` while it is running.
    pub end: Option<End>,
    pub(crate) lock: JobLock,
}

/// The end of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// When, by the clock of the node that ended it.
    pub at_ms: i64,
    /// How the attempt ended.
    pub outcome: Outcome,
    /// Why, if a reason was given.
    pub reason: Option<String>,
}

impl Attempt {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::new(ATTEMPT_FORMAT);
        self.write(&mut to);
        to.finish()
    }

    pub(crate) fn decode(value: Bytes) -> Result<Self> {
        let mut from = Reader::new(value, "an attempt", ATTEMPT_FORMAT)?;
        let attempt = Self::read(&mut from)?;
        from.end()?;
        Ok(attempt)
    }

    pub(super) fn write(&self, to: &mut Writer) {
        to.uint(self.number);
        to.raw(self.lock.as_bytes());
        to.bytes(self.holder.as_str().as_bytes());
        to.int(self.started_ms);
        to.option(self.end.as_ref(), |to, end| {
            to.int(end.at_ms);
            to.byte(end.outcome as u8);
            to.option(end.reason.as_ref(), |to, reason| {
                to.bytes(reason.as_bytes());
            });
        });
    }

    pub(super) fn read(from: &mut Reader) -> Result<Self> {
        Ok(Self {
            number: from.uint()?,
            lock: JobLock::from_bytes(from.array()?),
            holder: Holder::new(&from.text()?)?,
            started_ms: from.int()?,
            end: from.option(|from| {
                Ok(End {
                    at_ms: from.int()?,
                    outcome: *Outcome::ALL
                        .get(usize::from(from.byte()?))
                        .ok_or_else(|| Error::corrupt("an attempt with an unknown outcome"))?,
                    reason: from.option(Reader::text)?,
                })
            })?,
        })
    }
}

/// Cuts a reason to the limit.
pub(crate) fn shorten(mut reason: String) -> String {
    if reason.len() > REASON_BYTES_MAX {
        let end = reason.floor_char_boundary(REASON_BYTES_MAX);
        reason.truncate(end);
    }
    reason
}
