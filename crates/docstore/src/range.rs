//! Listings by id, page by page.

use store::{KeyRange, RangeOptions, Transaction};

use crate::{Result, keys};

/// The most rows of a page.
const ROWS_MAX: usize = 1000;
/// The most rows read for a page, including skipped ones.
const VISITS_MAX: usize = 10_000;

/// A range of ids to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first id in the direction of the listing.
    pub start: Option<String>,
    pub end: Option<String>,
    /// Whether the end is part of the range.
    pub inclusive_end: bool,
    pub descending: bool,
    pub skip: u64,
    pub limit: Option<u64>,
    /// On later pages, the last id that was listed.
    pub after: Option<String>,
}

impl Default for IdRange {
    fn default() -> Self {
        Self {
            start: None,
            end: None,
            inclusive_end: true,
            descending: false,
            skip: 0,
            limit: None,
            after: None,
        }
    }
}

/// A page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdPage<T> {
    pub rows: Vec<T>,
    /// The query of the next page; `None` at the end.
    pub rest: Option<IdRange>,
}

impl IdRange {
    /// Reads a page of a table. `row` converts ids and values.
    pub(crate) async fn page<T>(
        &self,
        tx: &Transaction,
        table: &[u8],
        row: impl Fn(String, &[u8]) -> Result<T>,
    ) -> Result<IdPage<T>> {
        let options = RangeOptions {
            limit: Some(VISITS_MAX),
            reverse: self.descending,
        };
        let mut read = tx.get_range(self.keys(table), options);
        let mut rows = Vec::new();
        let mut rest = self.clone();
        let mut visits = 0;
        while rows.len() < ROWS_MAX && rest.limit != Some(0) {
            let Some(stored) = read.next().await? else {
                let rest = (visits == VISITS_MAX).then_some(rest);
                return Ok(IdPage { rows, rest });
            };
            visits += 1;
            let id = keys::parse_id(table, &stored.key)?;
            if rest.skip > 0 {
                rest.skip -= 1;
            } else {
                rest.limit = rest.limit.map(|limit| limit - 1);
                rows.push(row(id.clone(), &stored.value)?);
            }
            rest.after = Some(id);
        }
        let rest = (rest.limit != Some(0)).then_some(rest);
        Ok(IdPage { rows, rest })
    }

    /// The rest of the range after `id`, of which `taken` rows were listed.
    pub(crate) fn resume(&self, id: &str, taken: usize) -> Option<Self> {
        let taken = taken as u64;
        let limit = self.limit.map(|limit| limit.saturating_sub(taken));
        (limit != Some(0)).then(|| Self {
            skip: 0,
            limit,
            after: Some(id.to_owned()),
            ..self.clone()
        })
    }

    fn keys(&self, table: &[u8]) -> KeyRange {
        let (low, high) = if self.descending {
            (&self.end, &self.start)
        } else {
            (&self.start, &self.end)
        };
        let mut range = keys::below(table);
        if let Some(low) = low {
            let included = !self.descending || self.inclusive_end;
            range.begin = bound(table, low, !included).into();
        }
        if let Some(high) = high {
            let included = self.descending || self.inclusive_end;
            range.end = bound(table, high, included).into();
        }
        match &self.after {
            Some(after) if self.descending => range.end = bound(table, after, false).into(),
            Some(after) => range.begin = bound(table, after, true).into(),
            None => {}
        }
        // A range that ends before it begins is empty.
        if range.begin > range.end {
            range.end = range.begin.clone();
        }
        range
    }

    /// The keys before the range, in its direction.
    pub(crate) fn keys_before(&self, table: &[u8]) -> KeyRange {
        let start = self.start.as_deref();
        let mut range = keys::below(table);
        match start {
            Some(start) if self.descending => range.begin = bound(table, start, true).into(),
            Some(start) => range.end = bound(table, start, false).into(),
            None => range.end = range.begin.clone(),
        }
        range
    }
}

/// The key of `id`, or the first key after it.
fn bound(table: &[u8], id: &str, after: bool) -> Vec<u8> {
    let mut key = keys::bound(table, id);
    if after {
        key.push(0);
    }
    key
}
