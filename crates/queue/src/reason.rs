//! Reasons of runs that went back without having been worked on. Histories have them in the place of a worker's error.

use jobs::RETURNED;

/// How the reason begins of runs whose job went back because this node lacks its key.
pub(crate) const LEFT: &str = "left to other nodes: ";

/// Whether this is the reason of a run that went back. Errors of workers are [stored](crate::Raw::summary) so that they are
/// never taken for one.
pub(crate) fn is_returned(reason: &str) -> bool {
    reason == RETURNED || reason.starts_with(LEFT)
}
