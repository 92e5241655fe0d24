//! Key ranges and the pages they are read in.

use bytes::Bytes;

use crate::{Error, Result};

/// A half-open range of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key in the range.
    pub begin: Bytes,
    /// The first key after the range.
    pub end: Bytes,
}

impl KeyRange {
    /// The keys from `begin` up to, not including, `end`.
    pub fn new(begin: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self {
            begin: begin.into(),
            end: end.into(),
        }
    }

    /// The keys that begin with `prefix`, itself included.
    pub fn prefix(prefix: &[u8]) -> Self {
        let keep = prefix.iter().rposition(|byte| *byte != 0xff);
        let end = match keep {
            Some(last) => {
                let mut end = prefix[..=last].to_vec();
                end[last] += 1;
                end
            }
            None => vec![0xff],
        };
        Self::new(prefix.to_vec(), end)
    }

    /// One key.
    pub fn key(key: &[u8]) -> Self {
        Self::new(key.to_vec(), after(key))
    }

    /// The key of a range that [`Self::key`] has made.
    pub(crate) fn only_key(&self) -> Option<&[u8]> {
        let key = self.end.strip_suffix(&[0])?;
        (*key == *self.begin).then_some(key)
    }

    /// Every key that a caller can write: keys from 0xfe on are reserved.
    pub fn all() -> Self {
        Self::new(Bytes::new(), vec![0xfe])
    }

    /// True when `key` lies in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.begin <= *key && *key < *self.end
    }

    /// True when no key lies in the range.
    pub fn is_empty(&self) -> bool {
        self.begin >= self.end
    }

    pub(crate) fn intersects(&self, other: &Self) -> bool {
        // Comparing the overlap also rejects empty ranges inside the other one.
        (&self.begin).max(&other.begin) < (&self.end).min(&other.end)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.begin > self.end {
            return Err(Error::Misuse("a range ends before it begins"));
        }
        Ok(())
    }
}

impl<B: Into<Bytes>, E: Into<Bytes>> From<(B, E)> for KeyRange {
    fn from((begin, end): (B, E)) -> Self {
        Self::new(begin, end)
    }
}

/// The first key after `key`.
pub(crate) fn after(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

/// The items of an iterator from either end.
pub(crate) fn directed<I: DoubleEndedIterator>(
    mut items: I,
    reverse: bool,
) -> impl Iterator<Item = I::Item> {
    std::iter::from_fn(move || {
        if reverse {
            items.next_back()
        } else {
            items.next()
        }
    })
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// Its value.
    pub value: Bytes,
}

/// How much of a range is read, and from which end.
#[derive(Debug, Clone, Copy, Default)]
pub struct RangeOptions {
    /// The most rows to read; `None` for no limit.
    pub limit: Option<usize>,
    /// Whether to read from the last key to the first.
    pub reverse: bool,
}

impl RangeOptions {
    /// Reads at most `rows` rows, starting at the first key.
    pub fn limit(rows: usize) -> Self {
        Self {
            limit: Some(rows),
            reverse: false,
        }
    }

    /// Reads from the opposite end.
    #[must_use]
    pub fn reverse(self) -> Self {
        Self {
            reverse: !self.reverse,
            ..self
        }
    }
}

/// One page of a range: rows in the direction of the read, and the rest of the range.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) rows: Vec<KeyValue>,
    /// The part of the range that was not read; `None` at the end.
    pub(crate) rest: Option<KeyRange>,
}
