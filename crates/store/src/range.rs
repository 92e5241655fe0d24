//! Key ranges, and reading them page by page.

use bytes::Bytes;

use crate::{Error, Result, Transaction};

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

    /// Every key a layer can write.
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
        // An empty range, too, has a place, but nothing in it to share.
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
    /// The most rows to read; `None` reads them all.
    pub limit: Option<usize>,
    /// From the last key down to the first.
    pub reverse: bool,
}

impl RangeOptions {
    /// At most `rows` rows, from the first key on.
    pub fn limit(rows: usize) -> Self {
        Self {
            limit: Some(rows),
            reverse: false,
        }
    }

    /// The same read from the other end.
    #[must_use]
    pub fn reverse(self) -> Self {
        Self {
            reverse: !self.reverse,
            ..self
        }
    }
}

/// One page of a range: the rows in the order of the read, and what is left of the range.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) rows: Vec<KeyValue>,
    /// The part of the range that this page did not look at; `None` when it looked at all of it.
    pub(crate) rest: Option<KeyRange>,
}

/// A range read in progress, which holds one page at a time.
#[derive(Debug)]
pub struct RangeRead {
    tx: Transaction,
    conflict: bool,
    rest: Option<KeyRange>,
    limit: Option<usize>,
    reverse: bool,
    page: std::vec::IntoIter<KeyValue>,
}

impl RangeRead {
    pub(crate) fn new(
        tx: Transaction,
        range: KeyRange,
        options: RangeOptions,
        conflict: bool,
    ) -> Self {
        Self {
            tx,
            conflict,
            rest: Some(range),
            limit: options.limit,
            reverse: options.reverse,
            page: Vec::new().into_iter(),
        }
    }

    /// The next row, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<KeyValue>> {
        loop {
            if let Some(row) = self.page.next() {
                return Ok(Some(row));
            }
            match self.next_page().await? {
                Some(page) => self.page = page.into_iter(),
                None => return Ok(None),
            }
        }
    }

    /// The next rows, never none of them, or `None` at the end.
    pub async fn next_page(&mut self) -> Result<Option<Vec<KeyValue>>> {
        if self.page.len() > 0 {
            return Ok(Some(std::mem::take(&mut self.page).collect()));
        }
        while let Some(range) = self.rest.take() {
            if self.limit == Some(0) {
                break;
            }
            let page = self
                .tx
                .read_page(&range, self.limit, self.reverse, self.conflict)
                .await?;
            self.rest = page.rest;
            if let Some(limit) = &mut self.limit {
                *limit -= page.rows.len();
            }
            if !page.rows.is_empty() {
                return Ok(Some(page.rows));
            }
        }
        Ok(None)
    }

    /// All remaining rows. Only for ranges that are known to be small, or read with a limit.
    pub async fn collect(mut self) -> Result<Vec<KeyValue>> {
        let mut rows = Vec::new();
        while let Some(page) = self.next_page().await? {
            if rows.is_empty() {
                rows = page;
            } else {
                rows.extend(page);
            }
        }
        Ok(rows)
    }
}
