//! Limits: how many jobs of a type may run at once, or start per period.
//!
//! A job names up to two limits, its key and its pool. A run occupies a numbered slot of each, which its job's header
//! records. Transactions that take the same slot conflict; others do not.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::model::codec::{Reader, Writer};
use crate::model::ids::check;
use crate::{Error, JobId, Result};

const RULE_FORMAT: u8 = 1;
const SLOT_FORMAT: u8 = 1;
/// Added to `over` in the row of a removed setting. Nodes that do not know it take it for a high limit that was lowered.
const REMOVED: u32 = 1 << 31;
/// Ends the part of a limit's name that its group shares.
pub(crate) const GROUP_END: u8 = b'|';

/// Maximum bytes of a limit's name.
pub const LIMIT_BYTES_MAX: usize = 512;
/// Maximum slots of a limit.
pub const LIMIT_SLOTS_MAX: u32 = 10_000;

/// How many jobs with this limit run at once or, with a period, start within any period of that length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// How many; 0 starts none.
    pub max: u32,
    /// The length of the period; `None` limits concurrent runs.
    pub per_ms: Option<u64>,
}

impl Limit {
    /// At most `max` runs at once.
    pub fn at_once(max: u32) -> Self {
        Self { max, per_ms: None }
    }

    /// At most `max` starts in any `per_ms` milliseconds.
    pub fn per(max: u32, per_ms: u64) -> Self {
        let per_ms = Some(per_ms);
        Self { max, per_ms }
    }
}

/// The name of a limit. Limits of a group, `GROUP|…`, have the setting of `GROUP` unless they have their own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitName(pub(crate) Bytes);

impl LimitName {
    /// A name of 1 to [`LIMIT_BYTES_MAX`] bytes.
    pub fn new(name: impl Into<Bytes>) -> Result<Self> {
        let name = name.into();
        check("a limit's name", name.len(), LIMIT_BYTES_MAX)?;
        if name.is_empty() {
            return Err(Error::Invalid("a limit needs a name"));
        }
        Ok(Self(name))
    }

    /// The name as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<&str> for LimitName {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self> {
        Self::new(name.to_owned())
    }
}

impl std::fmt::Display for LimitName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// The limits of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// That of jobs that use the same resource.
    pub key: Option<LimitName>,
    /// That of jobs of its kind.
    pub pool: Option<LimitName>,
}

/// One of a job's two limits. A job takes its key first: while it waits for its pool, only jobs of the same key wait for
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Which {
    Key,
    Pool,
}

impl Which {
    pub(crate) const ALL: [Self; 2] = [Self::Key, Self::Pool];
}

/// A slot of a limit.
pub(crate) type Taken = (Bytes, u32);

/// The stored setting of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) limit: Limit,
    /// There may still be slots taken up to this number, from when the limit was higher.
    pub(crate) over: u32,
    /// The setting was removed, and only `over` still counts.
    pub(crate) removed: bool,
}

impl Rule {
    pub(crate) fn new(limit: Limit, over: u32) -> Self {
        let removed = false;
        Self {
            limit,
            over,
            removed,
        }
    }

    /// What is left of a setting when it is removed; the limit is that of its group then.
    pub(crate) fn removed(limit: Limit, over: u32) -> Self {
        let removed = true;
        Self {
            limit,
            over,
            removed,
        }
    }

    /// Slots from this number on are free.
    pub(crate) fn end(&self) -> u32 {
        self.limit.max.max(self.over)
    }

    /// Whether there is only one slot.
    pub(crate) fn is_lock(&self) -> bool {
        self.limit == Limit::at_once(1) && self.over <= 1
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut to = Writer::new(RULE_FORMAT);
        to.uint(self.limit.max);
        to.option(self.limit.per_ms, Writer::uint);
        to.uint(self.over | if self.removed { REMOVED } else { 0 });
        to.finish()
    }

    pub(crate) fn decode(value: Bytes) -> Result<Self> {
        let mut from = Reader::new(value, "a limit", RULE_FORMAT)?;
        let (max, per_ms) = (from.uint()?, from.option(Reader::uint)?);
        let over: u32 = from.uint()?;
        from.end()?;
        Ok(Self {
            limit: Limit { max, per_ms },
            over: over & !REMOVED,
            removed: over & REMOVED != 0,
        })
    }
}

/// The settings of a type's limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Changes with every setting.
    pub(crate) version: Option<Bytes>,
    pub(crate) by_name: BTreeMap<Bytes, Rule>,
    /// Settings that cannot be decoded; they count as absent.
    pub(crate) damaged: BTreeSet<Bytes>,
}

impl Rules {
    /// The setting of a limit: its own or that of its nearest group, or one at a time.
    pub(crate) fn of(&self, name: &[u8]) -> Rule {
        let mut rule = Rule::new(Limit::at_once(1), 0);
        let mut over = 0;
        for (_, row) in self.rows_of(name) {
            if !row.removed {
                rule = *row;
                break;
            }
            over = over.max(row.over);
        }
        rule.over = rule.over.max(over);
        rule
    }

    /// The rows of a limit and its groups, from its own to that of the widest one.
    fn rows_of<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a Rule)> {
        groups_of(name).filter_map(|name| Some((name, self.by_name.get(name)?)))
    }

    /// The row of a setting that is removed, if any slots beyond those of its group may be taken.
    pub(crate) fn without(&self, name: &Bytes, end: u32) -> Option<Rule> {
        let mut others = self.clone();
        others.by_name.remove(name);
        let limit = others.of(name).limit;
        (end > limit.max).then(|| Rule::removed(limit, end))
    }

    /// Whether a limit has its setting from this row, or there may be slots taken up to what the row says.
    pub(crate) fn is_row_of(&self, row: &[u8], limit: &[u8]) -> bool {
        for (name, rule) in self.rows_of(limit) {
            if name == row || !rule.removed {
                return name == row;
            }
        }
        false
    }

    /// The settings, without what is left of removed ones.
    pub(crate) fn set(&self) -> impl Iterator<Item = (&Bytes, &Rule)> {
        self.by_name.iter().filter(|(_, rule)| !rule.removed)
    }
}

/// A name, and then those of the groups that it is in, the nearest first.
fn groups_of(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = (name.iter().enumerate().rev()).filter(|(_, byte)| **byte == GROUP_END);
    std::iter::once(name).chain(ends.map(|(end, _)| &name[..end]))
}

/// A slot that is in use, or not free yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The job that has it.
    pub(crate) id: Option<JobId>,
    /// Of a rate: no job may start with it before this time.
    pub(crate) free_ms: i64,
    /// Its row cannot be decoded, so it counts as in use.
    pub(crate) damaged: bool,
}

impl Slot {
    /// In use by this job.
    pub(crate) fn of(id: JobId, free_ms: i64) -> Self {
        Self {
            id: Some(id),
            free_ms,
            damaged: false,
        }
    }

    /// Free from this time on.
    pub(crate) fn free(free_ms: i64) -> Self {
        Self {
            id: None,
            free_ms,
            damaged: false,
        }
    }

    pub(crate) fn damaged() -> Self {
        Self {
            damaged: true,
            ..Self::free(0)
        }
    }

    pub(crate) fn in_use(&self) -> bool {
        self.id.is_some() || self.damaged
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::new(SLOT_FORMAT);
        to.option(self.id.as_ref(), |to, id| to.bytes(id.as_bytes()));
        to.int(self.free_ms);
        to.finish()
    }

    pub(crate) fn decode(value: Bytes) -> Result<Self> {
        let mut from = Reader::new(value, "a slot of a limit", SLOT_FORMAT)?;
        let slot = Self {
            id: from.option(|from| JobId::new(from.bytes()?))?,
            free_ms: from.int()?,
            damaged: false,
        };
        from.end()?;
        Ok(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_its_own_setting_or_that_of_its_group() {
        let mut rules = Rules::default();
        let mut set = |name: &'static str, max| {
            let rule = Rule::new(Limit::at_once(max), 0);
            rules.by_name.insert(name.into(), rule);
        };
        set("target", 2);
        set("target|big", 5);
        let max = |name: &str| rules.of(name.as_bytes()).limit.max;
        assert_eq!(max("target"), 2);
        assert_eq!(max("target|a|b"), 2);
        assert_eq!(max("target|big"), 5);
        assert_eq!(max("target|big|a"), 5);
        assert_eq!(max("target|big|a|b"), 5);
        assert_eq!(max("targets|a"), 1);
        assert_eq!(max("|target"), 1);
    }

    #[test]
    fn a_removed_setting_says_which_slots_may_be_taken() {
        let mut rules = Rules::default();
        for (name, rule) in [
            ("target", Rule::new(Limit::at_once(2), 0)),
            ("target|a", Rule::removed(Limit::at_once(2), 9)),
            ("gone", Rule::removed(Limit::at_once(1), 5)),
        ] {
            rules.by_name.insert(name.into(), rule);
        }
        let rule = |name: &str| {
            (
                rules.of(name.as_bytes()).limit.max,
                rules.of(name.as_bytes()).end(),
            )
        };
        assert_eq!(rule("target|a"), (2, 9));
        assert_eq!(rule("target|b"), (2, 2));
        assert_eq!(rule("gone"), (1, 5));
        assert_eq!(rule("gone|x"), (1, 5));
        assert!(rules.is_row_of(b"gone", b"gone|x") && rules.is_row_of(b"target|a", b"target|a"));
        assert!(rules.is_row_of(b"target", b"target|a|b") && rules.is_row_of(b"target", b"target"));
        assert_eq!(rules.set().count(), 1);
        let own = Rule::new(Limit::at_once(3), 0);
        rules.by_name.insert("target|a".into(), own);
        assert!(!rules.is_row_of(b"target", b"target|a|b"));
    }

    #[test]
    fn rows_round_trip() {
        for limit in [
            Limit::at_once(0),
            Limit::at_once(LIMIT_SLOTS_MAX),
            Limit::per(3, 60_000),
        ] {
            for rule in [Rule::new(limit, 7), Rule::removed(limit, 10_000)] {
                assert_eq!(Rule::decode(rule.encode().into()).unwrap(), rule);
            }
        }
        let id = JobId::new("a\0b").unwrap();
        for slot in [Slot::free(-5), Slot::of(id, -5)] {
            assert_eq!(Slot::decode(slot.encode().into()).unwrap(), slot);
        }
    }
}
