//! Sets of characters, as ranges of code points.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

const LAST: u32 = 0x0010_FFFF;
const SURROGATES: RangeInclusive<u32> = 0xD800..=0xDFFF;
/// What `.` does not match.
pub(super) const LINE_ENDS: [(u32, u32); 3] = [(0xA, 0xA), (0xD, 0xD), (0x2028, 0x2029)];
const DIGITS: [(u32, u32); 1] = [(0x30, 0x39)];
const WORD: [(u32, u32); 4] = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)];
/// White space and line terminators of ECMAScript.
const SPACE: [(u32, u32); 10] = [
    (0x9, 0xD),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
];

#[derive(Clone, Debug, Default)]
pub(super) struct Class(Vec<(u32, u32)>);

impl Class {
    pub(super) fn of(ranges: &[(u32, u32)]) -> Self {
        Self(ranges.to_vec())
    }

    /// The class of an escape such as `\d`.
    pub(super) fn named(letter: char) -> Option<Self> {
        let class = match letter.to_ascii_lowercase() {
            'd' => Self::of(&DIGITS),
            'w' => Self::of(&WORD),
            's' => Self::of(&SPACE),
            _ => return None,
        };
        Some(if letter.is_ascii_uppercase() {
            class.negated()
        } else {
            class
        })
    }

    pub(super) fn add(&mut self, first: char, last: char) {
        self.0.push((first.into(), last.into()));
    }

    pub(super) fn extend(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    /// All other characters.
    pub(super) fn negated(mut self) -> Self {
        self.0.sort_unstable();
        let (mut rest, mut next) = (Vec::new(), 0);
        for (first, last) in self.0 {
            if first > next {
                rest.push((next, first - 1));
            }
            next = next.max(last + 1);
        }
        if next <= LAST {
            rest.push((next, LAST));
        }
        Self(rest)
    }

    /// In the syntax of the engines.
    pub(super) fn push_to(&self, out: &mut String) {
        let start = out.len();
        for (first, last) in &self.0 {
            // Surrogates are no characters.
            let first = if SURROGATES.contains(first) {
                SURROGATES.end() + 1
            } else {
                *first
            };
            let last = if SURROGATES.contains(last) {
                SURROGATES.start() - 1
            } else {
                *last
            };
            if first <= last {
                // Writing to a string does not fail.
                let _ = write!(out, "\\x{{{first:X}}}-\\x{{{last:X}}}");
            }
        }
        let opening = if out.len() == start {
            r"[^\x{0}-\x{10FFFF}"
        } else {
            "["
        };
        out.insert_str(start, opening);
        out.push(']');
    }
}
