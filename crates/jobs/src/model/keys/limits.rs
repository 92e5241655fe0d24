//! Keys of limits, their slots, and the jobs that wait behind them.

use bytes::Bytes;
use store::KeyRange;
use store::tuple::{Bytes as TupleBytes, Element, unpack};

use super::pending::{WAITING, of_rank, rank};
use super::{Keys, Table, foreign};
use crate::model::header::Order;
use crate::model::limits::GROUP_END;
use crate::{Class, JobId, JobType, Result};

/// The number after those of slots, of the row that says that jobs may wait.
pub(crate) const WAITED: u32 = u32::MAX;

impl Keys {
    /// Changes with every setting of a type's limits. It is the first row of [`limits`](Self::limits).
    pub(crate) fn limits_version(&self, ty: &JobType) -> Vec<u8> {
        self.pack_of(Table::Limit, ty, &())
    }

    pub(crate) fn limits(&self, ty: &JobType) -> KeyRange {
        self.range(Table::Limit, &(ty.as_str(),))
    }

    pub(crate) fn limit(&self, ty: &JobType, name: &[u8]) -> Vec<u8> {
        self.pack(Table::Limit, &(ty.as_str(), name))
    }

    /// The name in a key of LIMIT; `None` for the version.
    pub(crate) fn limit_name(range: &KeyRange, key: &[u8]) -> Result<Option<Bytes>> {
        let rest = key.get(range.begin.len()..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        let (name,) = unpack::<(TupleBytes<'_>,)>(rest).map_err(|_| foreign(key))?;
        Ok(Some(name.into_owned().into()))
    }

    pub(crate) fn slot(&self, ty: &JobType, limit: &[u8], n: u32) -> Vec<u8> {
        self.pack_of(Table::Slot, ty, &(limit, n))
    }

    /// There while jobs may wait for a slot of the limit.
    pub(crate) fn waited(&self, ty: &JobType, limit: &[u8]) -> Vec<u8> {
        self.slot(ty, limit, WAITED)
    }

    /// The slots of a limit with these numbers.
    pub(crate) fn slots(
        &self,
        ty: &JobType,
        limit: &[u8],
        numbers: std::ops::Range<u32>,
    ) -> KeyRange {
        let edge = |n: u32| self.slot(ty, limit, n);
        KeyRange::new(edge(numbers.start), edge(numbers.end))
    }

    /// The first key after the rows of a limit's slots.
    pub(crate) fn after_slots(&self, ty: &JobType, limit: &[u8]) -> Bytes {
        self.range(Table::Slot, &(ty.as_str(), limit)).end
    }

    /// The slots of all limits of a type.
    pub(crate) fn all_slots(&self, ty: &JobType) -> KeyRange {
        self.range(Table::Slot, &(ty.as_str(),))
    }

    /// The slots of a limit and of the limits in its group.
    pub(crate) fn slots_in_group(&self, ty: &JobType, name: &[u8]) -> [KeyRange; 2] {
        in_group(name, |name| self.range(Table::Slot, &(ty.as_str(), name)))
    }

    /// The limit and number of a slot, from its key in the range of all slots of the type.
    pub(crate) fn slot_of(all: &KeyRange, key: &[u8]) -> Result<(Bytes, u32)> {
        let rest = key.get(all.begin.len()..).unwrap_or_default();
        let (limit, n) = unpack::<(TupleBytes<'_>, u32)>(rest).map_err(|_| foreign(key))?;
        Ok((limit.into_owned().into(), n))
    }

    /// The jobs that wait behind a limit.
    pub(crate) fn waiting(&self, ty: &JobType, limit: &[u8]) -> KeyRange {
        self.range(Table::Pending, &(ty.as_str(), WAITING, limit))
    }

    /// The jobs that wait behind a limit, or one in its group.
    pub(crate) fn waiting_in_group(&self, ty: &JobType, name: &[u8]) -> [KeyRange; 2] {
        in_group(name, |name| self.waiting(ty, name))
    }

    /// Those of earlier classes than this one.
    pub(crate) fn waiting_before(&self, ty: &JobType, limit: &[u8], class: Class) -> KeyRange {
        let end = self.pack(
            Table::Pending,
            &(ty.as_str(), WAITING, limit, rank(class) << 32),
        );
        KeyRange::new(self.waiting(ty, limit).begin, end)
    }

    /// The jobs that wait behind any limit.
    pub(crate) fn all_waiting(&self, ty: &JobType) -> KeyRange {
        self.range(Table::Pending, &(ty.as_str(), WAITING))
    }

    /// The limit, class, order and id of a waiting job, from the part of its key after the type.
    pub(super) fn waiting_of(rest: &[u8]) -> Option<(Bytes, Class, Order, TupleBytes<'_>)> {
        type Rest<'a> = (i64, TupleBytes<'a>, i64, u64, TupleBytes<'a>);
        match unpack::<Rest<'_>>(rest) {
            Ok((WAITING, limit, number, version, id)) => {
                let (class, incarnation) = of_rank(number)?;
                let order = Order {
                    incarnation,
                    version,
                };
                Some((limit.into_owned().into(), class, order, id))
            }
            _ => None,
        }
    }

    /// The limit that a job waits behind.
    pub(crate) fn waiting_limit(&self, ty: &JobType, key: &[u8]) -> Result<Bytes> {
        let rest = key.get(self.prefix_len(ty)..).unwrap_or_default();
        let (limit, ..) = Self::waiting_of(rest).ok_or_else(|| foreign(key))?;
        Ok(limit)
    }

    /// The number of a slot, from its key.
    pub(crate) fn slot_number(key: &[u8]) -> Result<u32> {
        let elements: Vec<Element<'_>> = unpack(key).map_err(|_| foreign(key))?;
        let number = match elements.last() {
            Some(Element::Int(number)) => u32::try_from(*number).ok(),
            _ => None,
        };
        number.ok_or_else(|| foreign(key))
    }

    /// The class and id of a waiting job.
    pub(crate) fn waiting_job(&self, ty: &JobType, key: &[u8]) -> Result<(Class, JobId)> {
        let rest = key.get(self.prefix_len(ty)..).unwrap_or_default();
        let (_, class, _, id) = Self::waiting_of(rest).ok_or_else(|| foreign(key))?;
        Ok((class, JobId::new(id.into_owned())?))
    }
}

/// The rows of a limit, and those of all limits in its group, by the rows of one.
fn in_group(name: &[u8], rows: impl Fn(&[u8]) -> KeyRange) -> [KeyRange; 2] {
    let edge = |byte| rows(&[name, &[byte]].concat()).begin;
    let group = KeyRange::new(edge(GROUP_END), edge(GROUP_END + 1));
    [rows(name), group]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_end_at_a_bar() {
        let (keys, ty) = (Keys::new(), JobType::new("t").unwrap());
        let ranges = keys.slots_in_group(&ty, b"a");
        let is_in = |limit: &[u8]| {
            let ends = [0, WAITED].map(|n| {
                let key = keys.slot(&ty, limit, n);
                (ranges.iter()).any(|range| *range.begin <= *key && *key < *range.end)
            });
            assert_eq!(ends[0], ends[1]);
            ends[0]
        };
        for name in ["a", "a|", "a|b", "a|b|c", "a|\0", "a|\u{7f}"] {
            assert!(is_in(name.as_bytes()), "{name:?}");
        }
        for name in ["aa", "a\0", "a\0|", "a}", "a{", "b|a", "|a", ""] {
            assert!(!is_in(name.as_bytes()), "{name:?}");
        }
    }
}
