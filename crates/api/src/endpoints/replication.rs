//! Replications: `_replicate`, `_scheduler`, `_active_tasks`, `_metrics`.

use crate::Error;
use crate::call::Call;
use crate::reply::Reply;

/// Answers a caller who may ask.
pub(crate) fn answer(call: &Call) -> Result<Reply, Error> {
    tracing::debug!(route = ?call.route, "no such endpoint");
    Err(Error::not_found("missing"))
}
