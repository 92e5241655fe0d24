//! Reading keys and ranges: the rows of the tree, merged with the layers above it.
//!
//! Rows of layers are iterated in place and only visible ones are copied: the beginning of a drained
//! queue has many deleted keys. Ranges are read in bounded steps, because the top layer is locked
//! during a step.

use std::cmp::Ordering;
use std::iter::Peekable;
use std::sync::Arc;
use std::vec::IntoIter;

use bytes::Bytes;

use super::layer::{Content, Layer, State};
use super::tree::TreeState;
use crate::limits::PAGE_BYTES;
use crate::pending::{covered, rest_after};
use crate::range::Page;
use crate::{KeyRange, KeyValue, RangeOptions, Result};

/// How many rows of the tree the first step reads.
const TREE_ROWS: usize = if cfg!(test) { 2 } else { 1024 };
/// The most keys that one step iterates over.
const PASSED_MAX: usize = if cfg!(test) { 3 } else { 4096 };

/// A state of the tree and the layers above it. The layers have all versions after the tree's, and no
/// version before the tree's is read.
#[derive(Debug)]
pub(super) struct Stack {
    pub(super) tree: Arc<TreeState>,
    /// Oldest first; new commits go to the last one.
    pub(super) layers: Vec<Arc<Layer>>,
}

/// How a range is read.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    at: u64,
    limit: Option<usize>,
    /// How many rows of the tree a step reads: more while none of them are visible.
    tree_rows: usize,
    reverse: bool,
}

impl Wanted {
    fn new(at: u64, options: RangeOptions) -> Self {
        let RangeOptions { limit, reverse } = options;
        Self {
            at,
            limit,
            tree_rows: limit.unwrap_or(TREE_ROWS).clamp(1, TREE_ROWS),
            reverse,
        }
    }

    /// For the next step after one without visible rows.
    fn more(self) -> Self {
        Self {
            tree_rows: self.tree_rows.saturating_mul(2),
            ..self
        }
    }

    fn order(self, a: &[u8], b: &[u8]) -> Ordering {
        if self.reverse { b.cmp(a) } else { a.cmp(b) }
    }
}

impl Stack {
    /// The state of a key, with version 0 for rows of the tree.
    pub(super) fn get(&self, key: &[u8], at: u64) -> Result<State> {
        for layer in self.layers.iter().rev() {
            if let Some(state) = layer.get(key, at) {
                return Ok(state);
            }
        }
        let (version, value) = (0, self.tree.get(key)?);
        Ok(State { version, value })
    }

    /// A page and the newest version that it depends on.
    pub(super) fn page(
        &self,
        range: &KeyRange,
        at: u64,
        options: RangeOptions,
    ) -> Result<(Page, u64)> {
        let (mut range, mut seen) = (range.clone(), 0);
        let mut wanted = Wanted::new(at, options);
        loop {
            let (page, newest) = self.part(&range, wanted)?;
            seen = seen.max(newest);
            match page.rest {
                Some(rest) if page.rows.is_empty() => range = rest,
                rest => return Ok((Page { rest, ..page }, seen)),
            }
            wanted = wanted.more();
        }
    }

    /// One step: the first part of a range, which may be empty although more follows, and the newest
    /// version that it depends on.
    fn part(&self, range: &KeyRange, wanted: Wanted) -> Result<(Page, u64)> {
        let (mut reached, mut cleared) = (range.clone(), Vec::new());
        for layer in &self.layers {
            let content = layer.read();
            reached = content.first_cleared(&reached, wanted.at, wanted.reverse, &mut cleared);
        }
        let visible = visible_parts(&reached, &cleared);
        let base = (self.tree).rows(&reached, &visible, wanted.tree_rows, wanted.reverse)?;
        reached = base.covered;
        let contents: Vec<_> = self.layers.iter().map(|layer| layer.read()).collect();
        let newest_first = contents.iter().rev().map(|content| {
            let mut rest = content.states(&reached, wanted.at, wanted.reverse);
            Source {
                content,
                head: rest.next(),
                rest,
            }
        });
        let merge = Merge {
            wanted,
            base: base.rows.into_iter().peekable(),
            layers: newest_first.collect(),
        };
        let (page, mut seen) = merge.page(range, &reached);
        let looked_at = covered(range, page.rest.as_ref(), wanted.reverse);
        for (range, version) in &cleared {
            if range.intersects(&looked_at) {
                seen = seen.max(*version);
            }
        }
        Ok((page, seen))
    }
}

/// The parts of `range` that no layer has cleared, in which rows of the tree may be visible.
fn visible_parts(range: &KeyRange, cleared: &[(KeyRange, u64)]) -> Vec<KeyRange> {
    let mut hidden: Vec<&KeyRange> = cleared.iter().map(|(range, _)| range).collect();
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

struct Merge<'l, I> {
    wanted: Wanted,
    base: Peekable<IntoIter<KeyValue>>,
    /// Newest first.
    layers: Vec<Source<'l, I>>,
}

struct Source<'l, I> {
    content: &'l Content,
    head: Option<(&'l Bytes, &'l State)>,
    rest: I,
}

enum Passed<'l> {
    /// A visible row of the tree.
    Base(KeyValue),
    /// The state of a key in the newest layer that has it.
    Layer(&'l Bytes, &'l State),
    /// A key that was cleared with its range.
    Hidden(&'l Bytes),
}

impl<'l, I: Iterator<Item = (&'l Bytes, &'l State)>> Merge<'l, I> {
    /// Builds the page, and returns the newest version of its rows, deleted ones included.
    fn page(mut self, range: &KeyRange, reached: &KeyRange) -> (Page, u64) {
        let Wanted { limit, reverse, .. } = self.wanted;
        let (mut rows, mut bytes, mut seen) = (Vec::new(), 0, 0);
        for count in 1.. {
            let (key, row) = match self.next() {
                None => break,
                Some(Passed::Base(row)) => (None, Some(row)),
                Some(Passed::Hidden(key)) => (Some(key), None),
                Some(Passed::Layer(key, state)) => {
                    seen = seen.max(state.version);
                    let row = (state.value.clone()).map(|value| (key.clone(), value));
                    (Some(key), row.map(|(key, value)| KeyValue { key, value }))
                }
            };
            let mut full = count >= PASSED_MAX;
            if let Some(row) = row {
                bytes += row.key.len() + row.value.len();
                rows.push(row);
                full |= bytes >= PAGE_BYTES || limit == Some(rows.len());
            }
            if let (true, Some(last)) = (full, key.or(rows.last().map(|row| &row.key))) {
                let rest = rest_after(range, last, reverse);
                return (Page { rows, rest }, seen);
            }
        }
        let rest = rest_behind(range, reached, reverse);
        (Page { rows, rest }, seen)
    }

    fn next(&mut self) -> Option<Passed<'l>> {
        let wanted = self.wanted;
        // Layers are newest first, so the first one with the lowest key has its newest state.
        let mut first: Option<(usize, &'l Bytes, &'l State)> = None;
        for (number, layer) in self.layers.iter().enumerate() {
            if let Some((key, state)) = layer.head
                && first.is_none_or(|(_, other, _)| wanted.order(key, other).is_lt())
            {
                first = Some((number, key, state));
            }
        }
        let Some((number, key, state)) = first else {
            return self.base.next().map(Passed::Base);
        };
        match (self.base.peek()).map(|row| wanted.order(&row.key, key)) {
            Some(Ordering::Less) => return self.base.next().map(Passed::Base),
            Some(Ordering::Equal) => drop(self.base.next()),
            Some(Ordering::Greater) | None => {}
        }
        for layer in &mut self.layers[number..] {
            if layer.head.is_some_and(|(other, _)| other == key) {
                layer.head = layer.rest.next();
            }
        }
        // A deleted key is as invisible with its range. Many may precede the first row.
        if state.value.is_none() {
            return Some(Passed::Layer(key, state));
        }
        let (above, own) = (&self.layers[..number], &self.layers[number]);
        let cleared = |layer: &Source<'l, I>| layer.content.cleared_at(key, wanted.at);
        if cleared(own) > Some(state.version) || above.iter().any(|layer| cleared(layer).is_some())
        {
            return Some(Passed::Hidden(key));
        }
        Some(Passed::Layer(key, state))
    }
}

/// The rest of `range` after its first part `reached`.
fn rest_behind(range: &KeyRange, reached: &KeyRange, reverse: bool) -> Option<KeyRange> {
    let rest = if reverse {
        KeyRange::new(range.begin.clone(), reached.begin.clone())
    } else {
        KeyRange::new(reached.end.clone(), range.end.clone())
    };
    debug_assert_eq!(covered(range, Some(&rest), reverse), *reached);
    (!rest.is_empty()).then_some(rest)
}
