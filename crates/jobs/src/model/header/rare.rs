//! The numbered fields of a header, which few jobs have.

use bytes::Bytes;

use crate::model::codec::{Reader, Writer};
use crate::{Class, Error, Result};

/// The numbers of the fields after those of every header, in the order in which they are written.
/// Never change or reuse one.
pub(crate) mod field {
    pub(crate) const LANE: u8 = 1;
    /// Reserved from the start, so that all versions can read it.
    pub(crate) const COVERS: u8 = 2;
    pub(crate) const ASKED: u8 = 3;
    pub(crate) const CLASS: u8 = 4;
    pub(crate) const TENANT: u8 = 5;
    pub(crate) const POOL: u8 = 6;
    pub(crate) const KEY: u8 = 7;
    pub(crate) const TAKEN: u8 = 8;
    pub(crate) const SIGNAL: u8 = 9;
    pub(crate) const SHARED: u8 = 10;
}

/// Fields that few jobs have; defaults are not written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rare {
    /// How many milliseconds before the start of the current run the oldest signal that it covers arrived: zigzag as in
    /// the [codec](crate::model::codec), plus one. 0 if there was none.
    pub(crate) covers: u32,
    /// When the oldest signal not yet covered by a run arrived.
    pub(crate) asked_ms: Option<i64>,
    /// Its priority.
    pub(crate) class: Class,
    /// The tenant whose share of the queue it uses.
    pub(crate) tenant: Option<Bytes>,
    /// Its limit shared with other jobs of its kind.
    pub(crate) pool: Option<Bytes>,
    /// Its limit shared with jobs on the same resource.
    pub(crate) key: Option<Bytes>,
    /// The slots of limits that it has: those of its run, or some of those that its next run needs.
    pub(crate) taken: Vec<(Bytes, u32)>,
    /// When the run is due that signals have requested during the current one.
    pub(crate) signal_ms: Option<i64>,
    /// Its tenant, even if none is named, competes for holders with the others of its type.
    pub(crate) shared: bool,
}

impl Rare {
    pub(super) fn encode(&self, to: &mut Writer) {
        if self.covers > 0 {
            to.byte(field::COVERS);
            to.uint(self.covers);
        }
        if let Some(asked_ms) = self.asked_ms {
            to.byte(field::ASKED);
            to.int(asked_ms);
        }
        if self.class != Class::Normal {
            to.byte(field::CLASS);
            to.byte(self.class.number());
        }
        for (number, name) in [
            (field::TENANT, &self.tenant),
            (field::POOL, &self.pool),
            (field::KEY, &self.key),
        ] {
            if let Some(name) = name {
                to.byte(number);
                to.bytes(name);
            }
        }
        if !self.taken.is_empty() {
            to.byte(field::TAKEN);
            to.uint(self.taken.len() as u64);
            for (limit, slot) in &self.taken {
                to.bytes(limit);
                to.uint(*slot);
            }
        }
        if let Some(signal_ms) = self.signal_ms {
            to.byte(field::SIGNAL);
            to.int(signal_ms);
        }
        if self.shared {
            to.byte(field::SHARED);
        }
    }

    /// Reads the field of this number.
    pub(super) fn decode(&mut self, number: u8, from: &mut Reader) -> Result<()> {
        match number {
            field::COVERS => self.covers = from.uint()?,
            field::ASKED => self.asked_ms = Some(from.int()?),
            field::CLASS => self.class = Class::read(from)?,
            field::TENANT => self.tenant = Some(from.bytes()?),
            field::POOL => self.pool = Some(from.bytes()?),
            field::KEY => self.key = Some(from.bytes()?),
            field::TAKEN => {
                let count: u32 = from.uint()?;
                for _ in 0..count {
                    self.taken.push((from.bytes()?, from.uint()?));
                }
            }
            field::SIGNAL => self.signal_ms = Some(from.int()?),
            field::SHARED => self.shared = true,
            _ => {
                return Err(Error::corrupt(format!(
                    "a job's header has field {number}, which this version of Davenport does not know"
                )));
            }
        }
        Ok(())
    }
}
