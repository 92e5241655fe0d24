//! The size of a write.
//!
//! A slow target gets smaller writes until it is fast again. After a write that was too large, the target never gets
//! one of that size again.

use std::time::Duration;

use super::context::{GROUP_BYTES_MAX, INLINE_GROUP_BYTES_MAX};

/// Writes are not made smaller than this because of slowness.
const BYTES_MIN: usize = 32 << 10;
/// Slower writes make the next ones smaller, faster ones larger.
const SLOW: Duration = Duration::from_secs(5);
const FAST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct WriteSize {
    bytes_max: usize,
    /// The target's limit, as far as known.
    limit: usize,
}

impl WriteSize {
    pub(super) fn new() -> Self {
        Self {
            bytes_max: INLINE_GROUP_BYTES_MAX,
            limit: INLINE_GROUP_BYTES_MAX,
        }
    }

    /// The maximum size of a write, with or without inline attachments.
    pub(super) fn bytes_max(&self, inline: bool) -> usize {
        if inline {
            self.bytes_max
        } else {
            self.bytes_max.min(GROUP_BYTES_MAX)
        }
    }

    /// Records the duration of a write.
    pub(super) fn took(&mut self, bytes: usize, time: Duration) {
        if time > SLOW {
            self.bytes_max = (bytes / 2).max(BYTES_MIN).min(self.bytes_max);
        } else if time < FAST && bytes >= self.bytes_max / 2 {
            // Writes are never exactly full.
            self.bytes_max = (self.bytes_max * 2).min(self.limit);
        }
    }

    /// Records that a write was too large.
    pub(super) fn too_large(&mut self, bytes: usize) {
        self.limit = self.limit.min((bytes / 2).max(1024));
        self.bytes_max = self.bytes_max.min(self.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_targets_get_less_and_fast_ones_more_again() {
        let mut size = WriteSize::new();
        assert_eq!(size.bytes_max(false), GROUP_BYTES_MAX);
        assert_eq!(size.bytes_max(true), INLINE_GROUP_BYTES_MAX);
        for _ in 0..10 {
            size.took(size.bytes_max(false) - 100, Duration::from_secs(6));
        }
        assert_eq!(size.bytes_max(false), BYTES_MIN);
        size.took(10, Duration::ZERO);
        assert_eq!(
            size.bytes_max(false),
            BYTES_MIN,
            "a small write says nothing"
        );
        for _ in 0..10 {
            size.took(size.bytes_max(false) - 100, Duration::from_millis(20));
        }
        assert_eq!(size.bytes_max(true), INLINE_GROUP_BYTES_MAX);
        size.took(GROUP_BYTES_MAX, Duration::from_secs(2));
        assert_eq!(size.bytes_max(true), INLINE_GROUP_BYTES_MAX);
    }

    #[test]
    fn what_was_too_large_is_not_tried_again() {
        let mut size = WriteSize::new();
        size.too_large(GROUP_BYTES_MAX);
        for _ in 0..10 {
            size.took(size.bytes_max(true) - 100, Duration::ZERO);
        }
        assert_eq!(size.bytes_max(true), GROUP_BYTES_MAX / 2);
        size.too_large(5);
        assert_eq!(size.bytes_max(true), 1024);
    }
}
