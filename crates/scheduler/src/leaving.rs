//! Removed jobs whose run may still write a last checkpoint, by replication id.

use jobs::{JobInfo, Op, State};
use store::Transaction;

use crate::data::{JobData, JobState};
use crate::fault::ServiceError;
use crate::keys;

/// How long the next run waits: longer than the run of the removed job takes, since clocks differ.
const WAIT_MAX_MS: i64 = 9_000;

/// The process id of a run, and when its job was removed.
pub(crate) type Leaving = (String, i64);

/// To be called when a job is removed.
pub(crate) fn leave_in(tx: &Transaction, op: &Op, info: &JobInfo, data: &JobData) {
    if info.state == State::Running
        && data.state == JobState::Running
        && let (Some(id), Some(pid)) = (&data.rep_id, &data.pid)
    {
        let row = serde_json::to_vec(&(pid, op.now_ms)).expect("a text and a number are JSON");
        tx.set(&keys::leaving(id), &row);
    }
}

/// Whether the run of a removed job may still write a checkpoint of this replication.
pub(crate) async fn is_leaving_in(
    tx: &Transaction,
    replication_id: &str,
    now_ms: i64,
) -> Result<bool, ServiceError> {
    let leaving = leaving_in(tx, replication_id).await?;
    Ok(leaving.is_some_and(|(_, at_ms)| now_ms.abs_diff(at_ms) < WAIT_MAX_MS.unsigned_abs()))
}

pub(crate) async fn leaving_in(
    tx: &Transaction,
    replication_id: &str,
) -> Result<Option<Leaving>, ServiceError> {
    let row = tx.get(&keys::leaving(replication_id)).await?;
    let decoded = row.map(|row| serde_json::from_slice(&row)).transpose();
    decoded.map_err(|_| ServiceError::corrupt("a row of a removed job cannot be decoded"))
}
