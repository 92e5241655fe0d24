//! The versions at which ranges were written as a whole.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::KeyRange;

/// Disjoint ranges, each with the versions at which all of it was written, oldest first. Overlapping
/// ranges are split where they begin and end.
#[derive(Debug, Default)]
pub(super) struct RangeVersions(BTreeMap<Bytes, Fragment>);

#[derive(Debug, Clone)]
struct Fragment {
    end: Bytes,
    versions: Vec<u64>,
}

impl RangeVersions {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a range. Versions must not decrease.
    pub(super) fn insert(&mut self, range: &KeyRange, version: u64) {
        if range.is_empty() {
            return;
        }
        self.split(&range.begin);
        self.split(&range.end);
        let mut gaps = Vec::new();
        let mut from = range.begin.clone();
        let bounds = (Bound::Included(&*range.begin), Bound::Excluded(&*range.end));
        for (begin, fragment) in self.0.range_mut::<[u8], _>(bounds) {
            if from < *begin {
                gaps.push((from, begin.clone()));
            }
            if fragment.versions.last() != Some(&version) {
                fragment.versions.push(version);
            }
            from = fragment.end.clone();
        }
        if from < range.end {
            gaps.push((from, range.end.clone()));
        }
        for (begin, end) in gaps {
            let versions = vec![version];
            self.0.insert(begin, Fragment { end, versions });
        }
    }

    /// The newest version up to `at` at which a range with `key` was written.
    pub(super) fn newest_at(&self, key: &[u8], at: u64) -> Option<u64> {
        let bounds = (Bound::Unbounded, Bound::Included(key));
        let (_, fragment) = self.0.range::<[u8], _>(bounds).next_back()?;
        (*key < *fragment.end).then(|| fragment.at(at)).flatten()
    }

    /// True if a part of `range` was written after `version`.
    pub(super) fn is_newer(&self, range: &KeyRange, version: u64) -> bool {
        self.touching(range)
            .any(|(_, fragment)| fragment.versions.last() > Some(&version))
    }

    /// The parts of `range` that were written up to `at`, in order, each with its newest version.
    pub(super) fn parts(
        &self,
        range: &KeyRange,
        at: u64,
    ) -> impl DoubleEndedIterator<Item = (KeyRange, u64)> {
        (self.touching(range)).filter_map(move |(begin, fragment)| {
            let begin = begin.max(&range.begin).clone();
            let end = (&fragment.end).min(&range.end).clone();
            Some((KeyRange::new(begin, end), fragment.at(at)?))
        })
    }

    /// All fragments with their newest versions, in order.
    pub(super) fn newest(&self) -> impl Iterator<Item = (KeyRange, u64)> {
        self.0.iter().filter_map(|(begin, fragment)| {
            let newest = *fragment.versions.last()?;
            Some((KeyRange::new(begin.clone(), fragment.end.clone()), newest))
        })
    }

    /// Removes what is newer than `version`.
    pub(super) fn roll_back(&mut self, version: u64) {
        self.0.retain(|_, fragment| {
            fragment.versions.retain(|v| *v <= version);
            !fragment.versions.is_empty()
        });
    }

    fn touching(&self, range: &KeyRange) -> impl DoubleEndedIterator<Item = (&Bytes, &Fragment)> {
        let empty = range.is_empty() || self.is_empty();
        let before = (!empty)
            .then(|| {
                let before = (Bound::Unbounded, Bound::Excluded(&*range.begin));
                self.0.range::<[u8], _>(before).next_back()
            })
            .flatten()
            .filter(|(_, fragment)| range.begin < fragment.end);
        let bounds = (Bound::Included(&*range.begin), Bound::Excluded(&*range.end));
        let inside = (!empty).then(|| self.0.range::<[u8], _>(bounds));
        before.into_iter().chain(inside.into_iter().flatten())
    }

    /// Splits the fragment that contains `key`.
    fn split(&mut self, key: &Bytes) {
        let bounds = (Bound::Unbounded, Bound::Excluded(&**key));
        let Some((_, fragment)) = self.0.range_mut::<[u8], _>(bounds).next_back() else {
            return;
        };
        if *key < fragment.end {
            let right = fragment.clone();
            fragment.end = key.clone();
            self.0.insert(key.clone(), right);
        }
    }
}

impl Fragment {
    fn at(&self, version: u64) -> Option<u64> {
        let newer = self.versions.partition_point(|v| *v <= version);
        newer.checked_sub(1).map(|last| self.versions[last])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(number: u8) -> Bytes {
        vec![number].into()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Compared with a plain list of the ranges.
        #[test]
        fn the_newest_range_counts(
            ranges in prop::collection::vec((0u8..20, 0u8..20), 1..20),
            forget in 0u64..20,
        ) {
            let mut range_versions = RangeVersions::default();
            let mut list = Vec::new();
            for (version, (begin, length)) in (1u64..).zip(ranges) {
                let range = KeyRange::new(key(begin), key(begin + length));
                range_versions.insert(&range, version);
                list.push((range, version));
            }
            let newest = |k: &[u8], at: u64| {
                (list.iter().rev()).find(|(r, v)| *v <= at && r.contains(k)).map(|(_, v)| *v)
            };
            for at in 0..22 {
                for k in 0u8..45 {
                    prop_assert_eq!(range_versions.newest_at(&[k], at), newest(&[k], at));
                    let wide = KeyRange::new(key(k), key(k + 3));
                    let is_newer = (k..k + 3).any(|k| newest(&[k], 99) > Some(at));
                    prop_assert_eq!(range_versions.is_newer(&wide, at), is_newer);
                    let parts: Vec<_> = range_versions.parts(&wide, at).collect();
                    let mut reversed: Vec<_> = range_versions.parts(&wide, at).rev().collect();
                    reversed.reverse();
                    prop_assert_eq!(&parts, &reversed);
                    for k in k..k + 3 {
                        let part = parts.iter().find(|(r, _)| r.contains(&[k])).map(|(_, v)| *v);
                        prop_assert_eq!(part, newest(&[k], at));
                    }
                }
            }
            range_versions.roll_back(forget);
            for k in 0u8..45 {
                prop_assert_eq!(range_versions.newest_at(&[k], 99), newest(&[k], forget));
            }
        }
    }
}
