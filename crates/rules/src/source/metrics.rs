//! Metrics of sources.

use metrics::{counter, gauge};

use super::options::FeedKind;

/// Updates of a feed were handled.
pub(super) fn counted(source: &str, updates: u64) {
    counter!("davenport_source_updates_total", "source" => source.to_owned()).increment(updates);
}

/// A feed did not report these changes.
pub(super) fn missed(source: &str, changes: u64) {
    counter!("davenport_source_missed_total", "source" => source.to_owned()).increment(changes);
}

/// The changes of databases up to this time were handled.
#[expect(
    clippy::cast_precision_loss,
    reason = "times are less than 2^52 milliseconds"
)]
pub(super) fn handled(source: &str, at_ms: i64) {
    gauge!("davenport_source_handled_timestamp_seconds", "source" => source.to_owned())
        .set(at_ms as f64 / 1000.0);
}

/// Jobs were woken.
pub(super) fn woken(source: &str, jobs: u64) {
    counter!("davenport_source_woken_total", "source" => source.to_owned()).increment(jobs);
}

/// Whether this node follows a source, and by which feed; `first` is that of the first choice.
pub(super) fn followed(source: &str, feed: Option<FeedKind>, first: FeedKind) {
    // Another feed is as good, but no feed is not.
    let fell_back = feed == Some(FeedKind::DbsInfo) && first != FeedKind::DbsInfo;
    gauge!("davenport_source_fallback", "source" => source.to_owned())
        .set(f64::from(u8::from(fell_back)));
    for kind in FeedKind::Auto.choices() {
        let labels = [
            ("source", source.to_owned()),
            ("feed", kind.as_str().to_owned()),
        ];
        gauge!("davenport_source_followed", &labels).set(f64::from(u8::from(feed == Some(*kind))));
    }
}
