//! The writes and conflict ranges of a transaction so far, and reads of its own writes on top of a
//! snapshot. All backends share this, so they cannot differ in it.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::limits::{check_transaction, check_value, mutation_bytes, range_bytes};
use crate::range::{Page, after};
use crate::{Error, KeyRange, KeyValue, RangeOptions, Result};

/// Room for the writes of a small transaction.
const MUTATIONS: usize = 16;

/// A versionstamp: the version of the commit, then its number in a batch.
pub(crate) type Stamp = [u8; 10];

const UNREADABLE: Error =
    Error::Misuse("a key that gets its versionstamp at commit cannot be read before");

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mutation {
    Set {
        key: Bytes,
        value: Bytes,
    },
    Clear {
        key: Bytes,
    },
    ClearRange {
        range: KeyRange,
    },
    Add {
        key: Bytes,
        delta: i64,
    },
    /// The stamp goes into the key at `offset`.
    StampedKey {
        key: Bytes,
        offset: usize,
        value: Bytes,
    },
    /// The stamp goes into the value at `offset`.
    StampedValue {
        key: Bytes,
        value: Bytes,
        offset: usize,
    },
}

impl Mutation {
    /// The same write with its stamp filled in.
    pub(crate) fn resolve(self, stamp: &Stamp) -> Self {
        match self {
            Self::StampedKey { key, offset, value } => Self::Set {
                key: with_stamp(&key, offset, stamp),
                value,
            },
            Self::StampedValue { key, value, offset } => Self::Set {
                key,
                value: with_stamp(&value, offset, stamp),
            },
            other => other,
        }
    }

    /// The keys the write touches.
    pub(crate) fn range(&self) -> KeyRange {
        match self {
            Self::ClearRange { range } => range.clone(),
            Self::Set { key, .. }
            | Self::Clear { key }
            | Self::Add { key, .. }
            | Self::StampedKey { key, .. }
            | Self::StampedValue { key, .. } => KeyRange::key(key),
        }
    }
}

fn with_stamp(template: &[u8], offset: usize, stamp: &[u8]) -> Bytes {
    let mut bytes = template.to_vec();
    bytes[offset..offset + stamp.len()].copy_from_slice(stamp);
    bytes.into()
}

/// `FoundationDB`'s ADD with an eight-byte operand: little endian, a missing value is zero, the old
/// value is truncated or zero-extended to eight bytes, and overflow wraps.
pub(crate) fn add(old: Option<&[u8]>, delta: i64) -> Bytes {
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(old.unwrap_or_default()) {
        *to = *from;
    }
    Bytes::copy_from_slice(&i64::from_le_bytes(bytes).wrapping_add(delta).to_le_bytes())
}

/// Splits `FoundationDB`'s form of a stamped key or value into the bytes and the offset of the stamp,
/// which is the last four bytes, little endian.
pub(crate) fn split_template(template: &[u8]) -> Result<(&[u8], usize)> {
    let wrong = Error::Misuse("a versionstamp's offset is outside of its key or value");
    let Some((bytes, offset)) = template.split_last_chunk::<4>() else {
        return Err(wrong);
    };
    let offset = u32::from_le_bytes(*offset) as usize;
    if offset + size_of::<Stamp>() > bytes.len() {
        return Err(wrong);
    }
    Ok((bytes, offset))
}

/// The effect of the transaction's own writes on a key.
#[derive(Debug)]
enum Own {
    Value(Bytes),
    Cleared,
    /// Added to the snapshot's value.
    Add(i64),
    Unreadable,
}

/// How a key is read.
pub(crate) enum Read {
    /// From the transaction's own writes.
    Known(Option<Bytes>),
    /// From the snapshot, plus this number.
    Snapshot(Option<i64>),
}

#[derive(Debug)]
pub(crate) struct CommitRequest {
    /// `None` if nothing was read.
    pub(crate) read_version: Option<u64>,
    pub(crate) reads: Vec<KeyRange>,
    /// Explicit write conflicts, besides those of the mutations.
    pub(crate) writes: Vec<KeyRange>,
    pub(crate) mutations: Vec<Mutation>,
}

impl CommitRequest {
    pub(crate) fn is_read_only(&self) -> bool {
        self.mutations.is_empty() && self.writes.is_empty()
    }
}

/// The writes and conflict ranges of one attempt.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    mutations: Vec<Mutation>,
    own: BTreeMap<Bytes, Own>,
    /// Disjoint cleared ranges, begin to end. Keys written after the clear are in `own`.
    cleared: BTreeMap<Bytes, Bytes>,
    /// The keys that stamped keys may become.
    unreadable: Vec<KeyRange>,
    reads: Vec<KeyRange>,
    writes: Vec<KeyRange>,
    size: usize,
}

impl Pending {
    pub(crate) fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        check_value(value)?;
        let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        self.own.insert(key.clone(), Own::Value(value.clone()));
        self.push(Mutation::Set { key, value })
    }

    pub(crate) fn clear(&mut self, key: &[u8]) -> Result<()> {
        let key = Bytes::copy_from_slice(key);
        self.own.insert(key.clone(), Own::Cleared);
        self.push(Mutation::Clear { key })
    }

    pub(crate) fn clear_range(&mut self, range: KeyRange) -> Result<()> {
        range.check()?;
        if range.is_empty() {
            return Ok(());
        }
        let inside: Vec<Bytes> = (self.own)
            .range(range.begin.clone()..range.end.clone())
            .map(|(key, _)| key.clone())
            .collect();
        for key in inside {
            self.own.remove(&key);
        }
        self.insert_cleared(range.begin.clone(), range.end.clone());
        self.push(Mutation::ClearRange { range })
    }

    pub(crate) fn add(&mut self, key: &[u8], delta: i64) -> Result<()> {
        let key = Bytes::copy_from_slice(key);
        let own = match self.own.get(&key) {
            Some(Own::Value(value)) => Own::Value(add(Some(value), delta)),
            Some(Own::Cleared) => Own::Value(add(None, delta)),
            Some(Own::Add(before)) => Own::Add(before.wrapping_add(delta)),
            Some(Own::Unreadable) => Own::Unreadable,
            None if self.is_cleared(&key) => Own::Value(add(None, delta)),
            None => Own::Add(delta),
        };
        self.own.insert(key.clone(), own);
        self.push(Mutation::Add { key, delta })
    }

    /// `key` in the form of [`split_template`]. What was committed up to `read_version` stays readable.
    pub(crate) fn set_stamped_key(
        &mut self,
        key: &[u8],
        offset: usize,
        value: &[u8],
        read_version: u64,
    ) -> Result<()> {
        check_value(value)?;
        self.unreadable
            .push(stamped_keys(key, offset, read_version));
        self.push(Mutation::StampedKey {
            key: Bytes::copy_from_slice(key),
            offset,
            value: Bytes::copy_from_slice(value),
        })
    }

    #[cfg(feature = "fdb")]
    pub(crate) fn has_stamped_keys(&self) -> bool {
        !self.unreadable.is_empty()
    }

    #[cfg(feature = "fdb")]
    /// Narrows the unreadable ranges of stamped keys that were set before the read version was known.
    pub(crate) fn settle_stamps(&mut self, read_version: u64) {
        self.unreadable = (self.mutations.iter())
            .filter_map(|mutation| match mutation {
                Mutation::StampedKey { key, offset, .. } => {
                    Some(stamped_keys(key, *offset, read_version))
                }
                _ => None,
            })
            .collect();
    }

    /// `value` in the form of [`split_template`].
    pub(crate) fn set_stamped_value(
        &mut self,
        key: &[u8],
        value: &[u8],
        offset: usize,
    ) -> Result<()> {
        check_value(value)?;
        let key = Bytes::copy_from_slice(key);
        self.own.insert(key.clone(), Own::Unreadable);
        self.push(Mutation::StampedValue {
            key,
            value: Bytes::copy_from_slice(value),
            offset,
        })
    }

    pub(crate) fn add_read(&mut self, range: KeyRange) -> Result<()> {
        range.check()?;
        self.grow(range_bytes(range.begin.len(), range.end.len()))?;
        self.reads.push(range);
        Ok(())
    }

    pub(crate) fn add_write(&mut self, range: KeyRange) -> Result<()> {
        range.check()?;
        self.grow(range_bytes(range.begin.len(), range.end.len()))?;
        self.writes.push(range);
        Ok(())
    }

    /// What was written and what was read, for counting.
    pub(crate) fn traffic(&self) -> (&[Mutation], &[KeyRange]) {
        (&self.mutations, &self.reads)
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    #[cfg(feature = "fdb")]
    pub(crate) fn mutations(&self) -> usize {
        self.mutations.len()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.mutations.is_empty() && self.writes.is_empty()
    }

    pub(crate) fn take(&mut self, read_version: Option<u64>) -> CommitRequest {
        let pending = std::mem::take(self);
        CommitRequest {
            read_version,
            reads: pending.reads,
            writes: pending.writes,
            mutations: pending.mutations,
        }
    }

    pub(crate) fn read(&self, key: &[u8]) -> Result<Read> {
        match self.own.get(key) {
            Some(Own::Value(value)) => Ok(Read::Known(Some(value.clone()))),
            Some(Own::Cleared) => Ok(Read::Known(None)),
            Some(Own::Add(delta)) => Ok(Read::Snapshot(Some(*delta))),
            Some(Own::Unreadable) => Err(UNREADABLE),
            None if self.unreadable.iter().any(|range| range.contains(key)) => Err(UNREADABLE),
            None if self.is_cleared(key) => Ok(Read::Known(None)),
            None => Ok(Read::Snapshot(None)),
        }
    }

    /// Applies the transaction's own writes to a page of the snapshot that was read for `range`. Returns
    /// the page and the part of `range` that it covers.
    pub(crate) fn overlay(
        &self,
        base: Page,
        range: &KeyRange,
        options: RangeOptions,
    ) -> Result<(Page, KeyRange)> {
        let RangeOptions { limit, reverse } = options;
        let mut page = base;
        let seen = covered(range, page.rest.as_ref(), reverse);
        if self.unreadable.iter().any(|u| u.intersects(&seen)) {
            return Err(UNREADABLE);
        }
        if self.own.is_empty() && self.cleared.is_empty() {
            return Ok((page, seen));
        }
        let mut own = Vec::new();
        let bounds = (
            Bound::Included(seen.begin.clone()),
            Bound::Excluded(seen.end.clone()),
        );
        for (key, state) in self.own.range(bounds) {
            match state {
                Own::Unreadable => return Err(UNREADABLE),
                Own::Cleared => {}
                Own::Value(value) => own.push((key.clone(), value.clone())),
                Own::Add(delta) => {
                    let old = page.rows.iter().find(|row| row.key == *key);
                    own.push((key.clone(), add(old.map(|row| &*row.value), *delta)));
                }
            }
        }
        page.rows
            .retain(|row| !self.own.contains_key(&row.key) && !self.is_cleared(&row.key));
        page.rows
            .extend(own.into_iter().map(|(key, value)| KeyValue { key, value }));
        if reverse {
            page.rows.sort_by(|a, b| b.key.cmp(&a.key));
        } else {
            page.rows.sort_by(|a, b| a.key.cmp(&b.key));
        }
        if let Some(limit) = limit.filter(|limit| page.rows.len() >= *limit) {
            page.rows.truncate(limit);
            if let Some(last) = page.rows.last() {
                page.rest = rest_after(range, &last.key, reverse);
            }
        }
        let seen = covered(range, page.rest.as_ref(), reverse);
        Ok((page, seen))
    }

    fn push(&mut self, mutation: Mutation) -> Result<()> {
        let bytes = match &mutation {
            Mutation::Set { key, value }
            | Mutation::StampedKey { key, value, .. }
            | Mutation::StampedValue { key, value, .. } => mutation_bytes(key.len(), value.len()),
            Mutation::Clear { key } => mutation_bytes(key.len(), key.len()),
            Mutation::Add { key, .. } => mutation_bytes(key.len(), 8),
            Mutation::ClearRange { range } => 2 * range_bytes(range.begin.len(), range.end.len()),
        };
        if self.mutations.is_empty() {
            self.mutations.reserve(MUTATIONS);
        }
        self.mutations.push(mutation);
        self.grow(bytes)
    }

    fn grow(&mut self, bytes: usize) -> Result<()> {
        self.size += bytes;
        check_transaction(self.size)
    }

    fn is_cleared(&self, key: &[u8]) -> bool {
        self.cleared
            .range::<[u8], _>((Bound::Unbounded, Bound::Included(key)))
            .next_back()
            .is_some_and(|(_, end)| key < &**end)
    }

    fn insert_cleared(&mut self, mut begin: Bytes, mut end: Bytes) {
        // Merge with every range that touches the new one, from right to left.
        while let Some((other, other_end)) = (self.cleared)
            .range::<Bytes, _>((Bound::Unbounded, Bound::Included(&end)))
            .next_back()
            .filter(|(_, other_end)| **other_end >= begin)
            .map(|(other, other_end)| (other.clone(), other_end.clone()))
        {
            self.cleared.remove(&other);
            begin = begin.min(other);
            end = end.max(other_end);
        }
        self.cleared.insert(begin, end);
    }
}

/// The keys that a template may become when it is committed after `read_version`.
fn stamped_keys(key: &[u8], offset: usize, read_version: u64) -> KeyRange {
    let mut least = [0; 10];
    least[..8].copy_from_slice(&read_version.to_be_bytes());
    let begin = with_stamp(key, offset, &least);
    KeyRange::new(begin, after(&with_stamp(key, offset, &[0xff; 10])))
}

/// The part of `range` that was read by a page with this rest.
pub(crate) fn covered(range: &KeyRange, rest: Option<&KeyRange>, reverse: bool) -> KeyRange {
    match rest {
        None => range.clone(),
        Some(rest) if reverse => KeyRange::new(rest.end.clone(), range.end.clone()),
        Some(rest) => KeyRange::new(range.begin.clone(), rest.begin.clone()),
    }
}

/// The rest of `range` after a read that ended at `last`.
pub(crate) fn rest_after(range: &KeyRange, last: &Bytes, reverse: bool) -> Option<KeyRange> {
    let rest = if reverse {
        KeyRange::new(range.begin.clone(), last.clone())
    } else {
        KeyRange::new(after(last), range.end.clone())
    };
    (!rest.is_empty()).then_some(rest)
}
