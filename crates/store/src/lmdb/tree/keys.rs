//! The encoding of keys in the tree. LMDB has no empty key, so keys of only zeros get one more zero,
//! which preserves the order.

use std::borrow::Cow;
use std::ops::Bound;

use bytes::Bytes;

use crate::KeyRange;

/// A range of encoded keys.
pub(super) struct TreeRange<'k> {
    pub(super) begin: Cow<'k, [u8]>,
    pub(super) end: Cow<'k, [u8]>,
}

impl TreeRange<'_> {
    pub(super) fn as_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Included(&self.begin), Bound::Excluded(&self.end))
    }
}

pub(super) fn encode_range(range: &KeyRange) -> TreeRange<'_> {
    TreeRange {
        begin: encode(&range.begin),
        end: encode(&range.end),
    }
}

pub(super) fn encode(key: &[u8]) -> Cow<'_, [u8]> {
    if key.iter().all(|byte| *byte == 0) {
        Cow::Owned(vec![0; key.len() + 1])
    } else {
        Cow::Borrowed(key)
    }
}

pub(super) fn decode(key: &[u8]) -> Bytes {
    let zeros = key.iter().all(|byte| *byte == 0);
    Bytes::copy_from_slice(&key[..key.len() - usize::from(zeros && !key.is_empty())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_zeros_keep_their_place() {
        let keys: [&[u8]; 8] = [
            b"",
            b"\0",
            b"\0\0",
            b"\0\0\x01",
            b"\0\x01",
            b"\0a\0",
            b"a",
            b"a\0",
        ];
        for pair in keys.windows(2) {
            assert!(encode(pair[0]) < encode(pair[1]), "{pair:?}");
        }
        for key in keys {
            assert_eq!(decode(&encode(key)), key);
            assert!(!encode(key).is_empty());
        }
    }
}
