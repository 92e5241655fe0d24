//! Removed jobs whose run may still write: by replication id, a last checkpoint, and by the lock of its target, anything.
//!
//! A run that notices says when it has ended. One that cannot reach the store notices later, and stops by itself within the
//! timeout of its job.

use std::time::Duration;

use jobs::{JobInfo, LimitName, Op, State};
use store::Transaction;

use crate::data::{JobData, JobState};
use crate::fault::ServiceError;
use crate::keys;
use crate::service::Replications;

/// How long the next run of a replication waits: longer than the run of the removed job takes, since clocks differ.
const WAIT_MAX: Duration = Duration::from_secs(9);

/// The process id of a run, and when its job was removed.
pub(crate) type Leaving = (String, i64);

impl Replications {
    /// To be called when a job is removed.
    pub(crate) fn leave_in(&self, tx: &Transaction, op: &Op, info: &JobInfo, data: &JobData) {
        if info.state == State::Running
            && data.state == JobState::Running
            && let (Some(id), Some(pid)) = (&data.rep_id, &data.pid)
        {
            let row = serde_json::to_vec(&(pid, op.now_ms)).expect("a text and a number are JSON");
            tx.set(&keys::leaving(id), &row);
            // One that only listens has given its lock back.
            let target = self.options().limits_of_job(data).key;
            if let Some(target) = target.filter(|_| info.has_slots) {
                tx.set(&keys::leaving(&target.to_string()), &row);
            }
        }
    }

    /// Whether the run of a removed job may still write a checkpoint of this replication, or to this target. `timeout` is
    /// how long its holder may be silent.
    pub(crate) async fn is_leaving_in(
        &self,
        tx: &Transaction,
        replication_id: &str,
        target: Option<&LimitName>,
        timeout: Duration,
        now_ms: i64,
    ) -> Result<bool, ServiceError> {
        let is_recent = |leaving: Option<Leaving>, wait: Duration| {
            leaving.is_some_and(|(_, at_ms)| u128::from(now_ms.abs_diff(at_ms)) < wait.as_millis())
        };
        if is_recent(leaving_in(tx, replication_id).await?, WAIT_MAX) {
            return Ok(true);
        }
        let Some(target) = target.filter(|_| self.options().target_lock) else {
            return Ok(false);
        };
        let leaving = leaving_in(tx, &target.to_string()).await?;
        Ok(is_recent(leaving, timeout))
    }
}

/// `of` is a replication id or the lock of a target.
pub(crate) async fn leaving_in(
    tx: &Transaction,
    of: &str,
) -> Result<Option<Leaving>, ServiceError> {
    let row = tx.get(&keys::leaving(of)).await?;
    let decoded = row.map(|row| serde_json::from_slice(&row)).transpose();
    decoded.map_err(|_| ServiceError::corrupt("a row of a removed job cannot be decoded"))
}
