//! Counters of a replication: CouchDB's, and some of our own.

use serde_json::{Map, Value, json};

/// The counters continue over restarts: a run starts with the totals of earlier runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Revisions checked at the target.
    pub missing_checked: u64,
    /// Revisions that the target lacked.
    pub missing_found: u64,
    pub docs_read: u64,
    pub docs_written: u64,
    /// Documents that the target rejected, or whose id is too long.
    pub doc_write_failures: u64,
    /// Documents that `_bulk_get` returned.
    pub bulk_get_docs: u64,
    /// Documents requested by `_bulk_get`.
    pub bulk_get_attempts: u64,
    /// Revisions skipped here: filtered, deleted, design documents.
    pub docs_filtered: u64,
    /// Bytes of documents and attachments received.
    pub bytes_read: u64,
    /// Bytes of documents and attachments sent.
    pub bytes_written: u64,
    /// Attachments sent to the target, inline ones included.
    pub attachments_copied: u64,
}

/// A counter's name in JSON, and its field.
type Counter = (&'static str, fn(&mut Stats) -> &mut u64);

/// The counters of a history entry under their names there, in CouchDB's order.
const HISTORY: [Counter; 7] = [
    ("missing_checked", |s| &mut s.missing_checked),
    ("missing_found", |s| &mut s.missing_found),
    ("docs_read", |s| &mut s.docs_read),
    ("docs_written", |s| &mut s.docs_written),
    ("doc_write_failures", |s| &mut s.doc_write_failures),
    ("bulk_get_docs", |s| &mut s.bulk_get_docs),
    ("bulk_get_attempts", |s| &mut s.bulk_get_attempts),
];

/// All counters under their names in job information.
const INFO: [Counter; 11] = [
    ("revisions_checked", |s| &mut s.missing_checked),
    ("missing_revisions_found", |s| &mut s.missing_found),
    HISTORY[2],
    HISTORY[3],
    HISTORY[4],
    HISTORY[5],
    HISTORY[6],
    ("docs_filtered", |s| &mut s.docs_filtered),
    ("bytes_read", |s| &mut s.bytes_read),
    ("bytes_written", |s| &mut s.bytes_written),
    ("attachments_copied", |s| &mut s.attachments_copied),
];

impl Stats {
    /// The members of a checkpoint's history entry.
    pub fn to_history(mut self) -> impl Iterator<Item = (String, Value)> {
        HISTORY
            .into_iter()
            .map(move |(name, field)| (name.to_owned(), json!(*field(&mut self))))
    }

    /// Parses a history entry; missing counters are zero.
    pub fn from_history(entry: &Value) -> Self {
        Self::read(&HISTORY, entry)
    }

    /// The members of `info`, `_replication_stats` and the like.
    pub fn to_info(mut self) -> Map<String, Value> {
        INFO.into_iter()
            .map(|(name, field)| (name.to_owned(), json!(*field(&mut self))))
            .collect()
    }

    pub fn from_info(info: &Value) -> Self {
        Self::read(&INFO, info)
    }

    /// The larger value of each counter.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.combine(other, u64::max)
    }

    /// The difference of each counter to an earlier state.
    #[must_use]
    pub fn since(self, earlier: &Self) -> Self {
        self.combine(*earlier, u64::saturating_sub)
    }

    /// The counters that change when a document is copied or rejected.
    pub(crate) fn documents(&self) -> [u64; 4] {
        [
            self.docs_read,
            self.docs_written,
            self.doc_write_failures,
            self.attachments_copied,
        ]
    }

    fn combine(mut self, mut other: Self, with: fn(u64, u64) -> u64) -> Self {
        for (_, field) in INFO {
            *field(&mut self) = with(*field(&mut self), *field(&mut other));
        }
        self
    }

    fn read(counters: &[Counter], from: &Value) -> Self {
        let mut stats = Self::default();
        for (name, field) in counters {
            *field(&mut stats) = from.get(*name).and_then(Value::as_u64).unwrap_or(0);
        }
        stats
    }
}

impl std::ops::AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        *self = self.combine(other, u64::wrapping_add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let mut stats = Stats::default();
        for (index, (_, field)) in (1..).zip(INFO) {
            *field(&mut stats) = index;
        }
        assert_eq!(
            Value::Object(stats.to_info()).to_string(),
            r#"{"revisions_checked":1,"missing_revisions_found":2,"docs_read":3,"docs_written":4,"doc_write_failures":5,"bulk_get_docs":6,"bulk_get_attempts":7,"docs_filtered":8,"bytes_read":9,"bytes_written":10,"attachments_copied":11}"#
        );
        assert_eq!(Stats::from_info(&Value::Object(stats.to_info())), stats);
        let history: Map<_, _> = stats.to_history().collect();
        let seen = Stats::from_history(&Value::Object(history));
        assert_eq!(
            (
                seen.missing_checked,
                seen.bulk_get_attempts,
                seen.bytes_read
            ),
            (1, 7, 0)
        );
        assert_eq!(seen.max(stats), stats);
        let mut sum = stats;
        sum += stats;
        assert_eq!(sum.attachments_copied, 22);
        assert_eq!(sum.since(&stats), stats);
        assert_eq!(stats.since(&sum), Stats::default());
    }
}
