//! Metrics of sources.

use metrics::{counter, gauge};

use super::options::FeedKind;

/// Updates of a feed were handled.
pub(super) fn counted(source: &str, updates: u64) {
    counter!("davenport_source_updates_total", "source" => source.to_owned()).increment(updates);
}

/// Jobs were woken.
pub(super) fn woken(source: &str, jobs: u64) {
    counter!("davenport_source_woken_total", "source" => source.to_owned()).increment(jobs);
}

/// Whether this node follows a source, and by which feed.
pub(super) fn followed(source: &str, feed: Option<FeedKind>) {
    for kind in FeedKind::Auto.choices() {
        let labels = [
            ("source", source.to_owned()),
            ("feed", kind.as_str().to_owned()),
        ];
        gauge!("davenport_source_followed", &labels).set(f64::from(u8::from(feed == Some(*kind))));
    }
}
