//! Replications of rules whose source is missing. They fail for a while, and are forgotten then: the node that
//! follows the source asks for them again once it is there.

use jobs::Op;
use serde_json::Value;
use store::Transaction;

use super::Work;
use super::end::End;
use crate::data::{JobData, Origin};
use crate::fault::ServiceError;

/// A source that has been missing for this time is forgotten.
const MISSING_MAX_SEC: i64 = 300;

impl JobData {
    /// Since when the source of a rule's replication has been missing, after a run that failed with this error.
    pub(super) fn missing_after(&self, info: &Value, now: i64) -> Option<i64> {
        let is_of_rule = matches!(self.origin, Origin::Rule { .. });
        let source = self.shown.source.as_deref().filter(|_| is_of_rule)?;
        let is_missing =
            info["error"] == "db_not_found" && info["reason"] == format!("could not open {source}");
        is_missing.then(|| self.missing_since.unwrap_or(now))
    }

    /// When it is to be forgotten, in milliseconds, if that is not over.
    pub(super) fn forgotten_ms(&self, now: i64) -> Option<i64> {
        let at = self.missing_since?.saturating_add(MISSING_MAX_SEC);
        (at > now).then(|| at.saturating_mul(1000))
    }
}

impl Work<'_> {
    /// Whether a run that failed was the last one because its source stays away. A run that was requested
    /// meanwhile takes place anyway.
    pub(super) async fn is_forgotten_in(
        &self,
        tx: &Transaction,
        op: &Op,
        data: &JobData,
        end: &End,
    ) -> Result<bool, ServiceError> {
        let End::Crash(info) = end else {
            return Ok(false);
        };
        let now = op.now_ms.div_euclid(1000);
        let since = data.missing_after(info, now);
        if since.is_none_or(|since| now.saturating_sub(since) < MISSING_MAX_SEC) {
            return Ok(false);
        }
        let replications = &self.runner.replications;
        let (jobs, id) = (&replications.0.jobs, &self.accepted.job.id);
        let info = jobs.info_in(tx, &replications.0.ty, id).await?;
        if info.is_some_and(|info| info.next_due_ms.or(info.signal_ms).is_some()) {
            return Ok(false);
        }
        let Ok(replication) = self.replication(data)? else {
            return Ok(false);
        };
        // Without a follower of the server, no event would ask for it again.
        let Some((server, _)) = replication.source.server() else {
            return Ok(false);
        };
        let following = replications.following_in(tx, server.url_text()).await?;
        Ok(following.is_some())
    }
}
