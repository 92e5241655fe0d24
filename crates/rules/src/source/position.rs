//! How far a source has been followed: the data of its job.

use couch::Seq;
use serde::{Deserialize, Serialize};

use super::options::FeedKind;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Position {
    /// The server that was followed last.
    pub server: String,
    /// How it is followed; `None` while it cannot be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feed: Option<FeedKind>,
    /// All updates up to this one were handled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Seq>,
    /// What changed before the feed was opened has not been looked for.
    #[serde(skip_serializing_if = "is_false")]
    pub unswept: bool,
    /// Why it is not followed, or not by the first choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When this was written, in milliseconds.
    pub at_ms: i64,
    /// Updates that were handled.
    pub updates: u64,
    /// Jobs that were woken.
    pub woken: u64,
    /// Changes that the feed did not report.
    pub missed: u64,
    /// Since when no node that claimed the job has known the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown_since_ms: Option<i64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_false(is_so: &bool) -> bool {
    !is_so
}
