//! The store at one version: a state of the tree, and the layers above it up to the version.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;

use super::layer::{Layer, Run, State};
use super::tree::TreeState;
use crate::limits::PAGE_BYTES;
use crate::pending::{covered, rest_after};
use crate::range::Page;
use crate::{Error, KeyRange, KeyValue, Result};

/// A state of the tree and the layers above it. The tree is at a version between the first that the
/// layers have whole and any that is read.
#[derive(Debug)]
pub(super) struct Stack {
    pub(super) tree: Arc<TreeState>,
    /// Oldest first; the last one grows.
    pub(super) layers: Vec<Arc<Layer>>,
}

/// What all snapshots of one version share.
#[derive(Debug)]
pub(super) struct View {
    pub(super) version: u64,
    /// The segment of the log that the version ends in.
    pub(super) segment: u64,
    /// `None` once the view is so old that it was given up.
    stack: RwLock<Option<Arc<Stack>>>,
}

/// The rows as they were at one version.
#[derive(Debug)]
pub(crate) struct LmdbSnapshot {
    pub(super) view: Arc<View>,
    /// The newest version that a read has depended on.
    seen: AtomicU64,
}

impl View {
    pub(super) fn new(version: u64, segment: u64, stack: Arc<Stack>) -> Self {
        let stack = RwLock::new(Some(stack));
        Self {
            version,
            segment,
            stack,
        }
    }

    /// Gives the view up: what it alone has kept is freed, and later reads find it too old.
    pub(super) fn close(&self) {
        let mut stack = self.stack.write().unwrap_or_else(PoisonError::into_inner);
        let closed = stack.take();
        drop(stack);
        drop(closed);
    }

    fn read<T>(&self, read: impl FnOnce(&Stack) -> Result<T>) -> Result<T> {
        let stack = self.stack.read().unwrap_or_else(PoisonError::into_inner);
        read(stack.as_ref().ok_or(Error::TooOld)?)
    }
}

impl LmdbSnapshot {
    pub(super) fn new(view: Arc<View>) -> Self {
        let seen = AtomicU64::new(0);
        Self { view, seen }
    }

    pub(crate) fn version(&self) -> u64 {
        self.view.version
    }

    /// The version that must be durable before anyone is told what was read.
    pub(super) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// The reader is told the version itself.
    pub(crate) fn see_version(&self) {
        self.see(self.version());
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let state = self.view.read(|stack| stack.get(key, self.view.version))?;
        self.see(state.version);
        Ok(state.value)
    }

    pub(crate) fn page(
        &self,
        range: &KeyRange,
        limit: Option<usize>,
        reverse: bool,
    ) -> Result<Page> {
        let at = self.view.version;
        let (page, seen) = (self.view).read(|stack| stack.page(range, at, limit, reverse))?;
        self.see(seen);
        Ok(page)
    }

    fn see(&self, version: u64) {
        if version > self.seen() {
            self.seen.fetch_max(version, Ordering::Relaxed);
        }
    }
}

impl Stack {
    /// The state of a key; that of a row of the tree has no version.
    pub(super) fn get(&self, key: &[u8], at: u64) -> Result<State> {
        for layer in self.layers.iter().rev() {
            if let Some(state) = layer.get(key, at) {
                return Ok(state);
            }
        }
        let (version, value) = (0, self.tree.get(key)?);
        Ok(State { version, value })
    }

    /// A page, and the newest version that it depends on.
    fn page(
        &self,
        range: &KeyRange,
        at: u64,
        limit: Option<usize>,
        reverse: bool,
    ) -> Result<(Page, u64)> {
        let (mut range, mut seen) = (range.clone(), 0);
        // How much is looked at grows while all of it turns out to be deleted.
        let mut rows_max = limit.unwrap_or(1024).clamp(32, 1024);
        loop {
            let (page, newest) = self.part(&range, at, limit, rows_max, reverse)?;
            seen = seen.max(newest);
            match page.rest {
                Some(rest) if page.rows.is_empty() => range = rest,
                rest => return Ok((Page { rest, ..page }, seen)),
            }
            rows_max = rows_max.saturating_mul(2);
        }
    }

    /// The first rows of a range: as far as all sources were looked at.
    fn part(
        &self,
        range: &KeyRange,
        at: u64,
        limit: Option<usize>,
        rows_max: usize,
        reverse: bool,
    ) -> Result<(Page, u64)> {
        let mut reached = range.clone();
        let mut runs = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let run = layer.run(&reached, at, rows_max, reverse);
            reached = run.covered.clone();
            runs.push(run);
        }
        let deleted = (runs.iter().flat_map(|run| &run.rows))
            .filter(|(_, state)| state.value.is_none())
            .count();
        let visible = visible_parts(&reached, &runs);
        let tree_limit = limit.map_or(usize::MAX, |limit| limit.saturating_add(deleted));
        let base = (self.tree).rows(&reached, &visible, tree_limit, reverse)?;
        reached = base.covered;
        let (rows, seen) = lay_over(base.rows, &runs, &reached, reverse);
        Ok((cut(rows, range, &reached, limit, reverse), seen))
    }
}

/// What of `range` no layer has cleared: the rows of the tree in it may show.
fn visible_parts(range: &KeyRange, runs: &[Run]) -> Vec<KeyRange> {
    let mut hidden: Vec<&KeyRange> = (runs.iter())
        .flat_map(|run| run.cleared.iter().map(|(range, _)| range))
        .collect();
    hidden.sort_by(|a, b| a.begin.cmp(&b.begin));
    let mut parts = Vec::new();
    let mut from = range.begin.clone();
    for hidden in hidden {
        let end = (&hidden.begin).min(&range.end).clone();
        if from < end {
            parts.push(KeyRange::new(from.clone(), end));
        }
        from = from.max(hidden.end.clone());
    }
    if from < range.end {
        parts.push(KeyRange::new(from, range.end.clone()));
    }
    parts
}

/// Lays what the layers say over rows of the tree. Returns the rows in the direction of the read,
/// and the newest version they depend on.
fn lay_over(
    base: Vec<KeyValue>,
    runs: &[Run],
    reached: &KeyRange,
    reverse: bool,
) -> (Vec<KeyValue>, u64) {
    let cleared = |key: &Bytes, above: usize| {
        (runs[above..].iter()).any(|run| {
            let behind = run
                .cleared
                .partition_point(|(range, _)| range.begin <= *key);
            behind > 0 && run.cleared[behind - 1].0.contains(key)
        })
    };
    let mut seen = 0;
    let mut rows = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        for (range, version) in &run.cleared {
            if range.intersects(reached) {
                seen = seen.max(*version);
            }
        }
        for (key, state) in &run.rows {
            if reached.contains(key) && !cleared(key, number + 1) {
                seen = seen.max(state.version);
                rows.push((key.clone(), number + 1, state.value.clone()));
            }
        }
    }
    if rows.is_empty() {
        return (base, seen);
    }
    rows.extend((base.into_iter()).map(|row| (row.key, 0, Some(row.value))));
    // Of one key the state in the newest layer comes first, and counts.
    if reverse {
        rows.sort_by(|a, b| (&b.0, b.1).cmp(&(&a.0, a.1)));
    } else {
        rows.sort_by(|a, b| (&a.0, Reverse(a.1)).cmp(&(&b.0, Reverse(b.1))));
    }
    rows.dedup_by(|later, first| later.0 == first.0);
    let rows = (rows.into_iter())
        .filter_map(|(key, _, value)| value.map(|value| KeyValue { key, value }))
        .collect();
    (rows, seen)
}

/// Makes a page of rows that were found as far as `reached`.
fn cut(
    mut rows: Vec<KeyValue>,
    range: &KeyRange,
    reached: &KeyRange,
    limit: Option<usize>,
    reverse: bool,
) -> Page {
    let mut bytes = 0;
    let fits = (rows.iter())
        .take(limit.unwrap_or(usize::MAX))
        .take_while(|row| {
            let before = bytes;
            bytes += row.key.len() + row.value.len();
            before < PAGE_BYTES
        })
        .count();
    let full = fits < rows.len() || limit == Some(fits);
    rows.truncate(fits);
    let rest = match rows.last() {
        Some(last) if full => rest_after(range, &last.key, reverse),
        _ => rest_behind(range, reached, reverse),
    };
    Page { rows, rest }
}

/// The part of `range` behind `reached`, its first part.
fn rest_behind(range: &KeyRange, reached: &KeyRange, reverse: bool) -> Option<KeyRange> {
    let rest = if reverse {
        KeyRange::new(range.begin.clone(), reached.begin.clone())
    } else {
        KeyRange::new(reached.end.clone(), range.end.clone())
    };
    debug_assert_eq!(covered(range, Some(&rest), reverse), *reached);
    (!rest.is_empty()).then_some(rest)
}
