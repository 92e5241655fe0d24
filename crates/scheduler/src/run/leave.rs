//! Runs of removed jobs. Each may write a last checkpoint, so that the same replication continues there when it is requested
//! again; the next run of it waits for that.

use std::pin::Pin;
use std::time::Duration;

use jobs::{JobInfo, Op, State};
use store::Transaction;
use tokio::time::timeout;

use super::Work;
use crate::data::{JobData, JobState};
use crate::fault::ServiceError;
use crate::keys;

/// How long a run may go on after its job was removed.
const LEAVE_MAX_MS: i64 = 6_000;
/// How long the next run waits: longer, since clocks differ.
const WAIT_MAX_MS: i64 = 9_000;
/// Time limit for asking the store whether the job was removed.
const ASK_MAX: Duration = Duration::from_secs(1);

/// The process id of a run, and when its job was removed.
type Leaving = (String, i64);

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
pub(super) async fn is_leaving_in(
    tx: &Transaction,
    replication_id: &str,
    now_ms: i64,
) -> Result<bool, ServiceError> {
    let leaving = leaving_in(tx, replication_id).await?;
    Ok(leaving.is_some_and(|(_, at_ms)| now_ms.abs_diff(at_ms) < WAIT_MAX_MS.unsigned_abs()))
}

impl Work<'_> {
    /// If the job was removed, lets its run write a last checkpoint.
    pub(super) async fn leave<F: Future>(&self, work: Pin<&mut F>) {
        let Some((id, pid)) = self.begun.get() else {
            return;
        };
        let store = self.runner.replications.0.jobs.store();
        let ask = store.transact("ask_leaving", |tx| async move { leaving_in(&tx, id).await });
        let Ok(Ok(Some((_, at_ms)))) = timeout(ASK_MAX, ask)
            .await
            .map(|row| row.map(|row| row.filter(|(noted, _)| noted == pid)))
        else {
            return;
        };
        let left_ms = at_ms.saturating_add(LEAVE_MAX_MS) - self.runner.now_ms();
        let left = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0));
        self.leave.cancel();
        drop(timeout(left, work).await);
        let left = store.transact("leave", |tx| async move {
            if leaving_in(&tx, id)
                .await?
                .is_some_and(|(noted, _)| noted == *pid)
            {
                tx.clear(&keys::leaving(id));
            }
            Ok::<_, ServiceError>(())
        });
        // Otherwise the next run waits for as long as it has to.
        drop(timeout(ASK_MAX, left).await);
    }
}

async fn leaving_in(
    tx: &Transaction,
    replication_id: &str,
) -> Result<Option<Leaving>, ServiceError> {
    let row = tx.get(&keys::leaving(replication_id)).await?;
    let decoded = row.map(|row| serde_json::from_slice(&row)).transpose();
    decoded.map_err(|_| ServiceError::corrupt("a row of a removed job cannot be decoded"))
}
