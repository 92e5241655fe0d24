//! Listings by id, page by page.

use store::{KeyRange, RangeOptions, Transaction};

use crate::{Result, keys};

/// How many rows a page has.
const ROWS_MAX: usize = 1000;
/// How many rows are looked at for a page, the ones to skip among them.
const VISITS_MAX: usize = 10_000;

/// Which ids to list, and how many of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// Where to begin.
    pub start: Option<String>,
    pub end: Option<String>,
    /// The end belongs to the range.
    pub inclusive_end: bool,
    /// From the highest id down.
    pub descending: bool,
    /// How many to leave out at the beginning.
    pub skip: u64,
    /// How many to list.
    pub limit: Option<u64>,
    /// The id that was listed last, on later pages: what comes before it is left out, and it too.
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
    /// What it lists.
    pub rows: Vec<T>,
    /// What to ask for next; `None` at the end.
    pub rest: Option<IdRange>,
}

impl IdRange {
    /// Reads a page of the rows below a table. `row` makes each of id and value.
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

    /// What comes after `id`, when `taken` were taken up to it.
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

    /// The keys of the range below a table.
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
        // Bounds that cross each other hold nothing.
        if range.begin > range.end {
            range.end = range.begin.clone();
        }
        range
    }

    /// The keys of a table that come before the range, in its direction.
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

/// The place before the row of `id`, or after it.
fn bound(table: &[u8], id: &str, after: bool) -> Vec<u8> {
    let mut key = keys::bound(table, id);
    if after {
        key.push(0);
    }
    key
}
