//! Reasons of returned runs, which no worker has started. Histories store them where a worker's error would be.

use jobs::RETURNED;

/// The prefix of the reason of runs that were returned because this node lacks their job's key.
pub(crate) const LEFT: &str = "left to other nodes: ";

/// Whether this is the reason of a returned run. [`Raw::summary`](crate::Raw::summary) keeps workers' errors from looking
/// like one.
pub(crate) fn is_returned(reason: &str) -> bool {
    reason == RETURNED || reason.starts_with(LEFT)
}
