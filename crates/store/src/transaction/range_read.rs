//! Reading a range page by page.

use crate::{KeyRange, KeyValue, RangeOptions, Result, Transaction};

/// A range read in progress. It holds one page at a time.
#[derive(Debug)]
pub struct RangeRead {
    tx: Transaction,
    conflict: bool,
    rest: Option<KeyRange>,
    /// With the limit that is left.
    options: RangeOptions,
    page: std::vec::IntoIter<KeyValue>,
}

impl RangeRead {
    pub(super) fn new(
        tx: Transaction,
        range: KeyRange,
        options: RangeOptions,
        conflict: bool,
    ) -> Self {
        Self {
            tx,
            conflict,
            rest: Some(range),
            options,
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

    /// The next rows, at least one, or `None` at the end.
    pub async fn next_page(&mut self) -> Result<Option<Vec<KeyValue>>> {
        if self.page.len() > 0 {
            return Ok(Some(std::mem::take(&mut self.page).collect()));
        }
        while let Some(range) = self.rest.take() {
            if self.options.limit == Some(0) {
                break;
            }
            let page = self
                .tx
                .read_page(&range, self.options, self.conflict)
                .await?;
            self.rest = page.rest;
            if let Some(limit) = &mut self.options.limit {
                *limit -= page.rows.len();
            }
            if !page.rows.is_empty() {
                return Ok(Some(page.rows));
            }
        }
        Ok(None)
    }

    /// All remaining rows, in memory: only for small ranges or reads with a limit.
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
