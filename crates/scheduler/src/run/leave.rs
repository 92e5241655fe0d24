//! Runs of removed jobs. Each may write a last checkpoint, so that the same replication continues there when it is requested
//! again; the next run of it, or with its target, waits for that.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::Work;
use crate::fault::ServiceError;
use crate::keys;
use crate::leaving::leaving_in;

/// How long a run may go on after its job was removed.
const LEAVE_MAX_MS: i64 = 6_000;
/// Time limit for asking the store whether the job was removed.
const ASK_MAX: Duration = Duration::from_secs(1);

impl Work<'_> {
    /// If the job was removed, lets its run write a last checkpoint. If its last heartbeat was sent
    /// too long ago, the lock may be another node's, so the run is dropped at once.
    pub(super) async fn leave<F: Future>(&self, work: Pin<&mut F>, sent_after: Instant) {
        let Some((id, pid)) = self.begun.get() else {
            return;
        };
        let safe_until = sent_after + self.accepted.job.timeout() / 4 * 3;
        let patience = safe_until.saturating_duration_since(Instant::now());
        if patience.is_zero() {
            return;
        }
        let store = self.runner.replications.0.jobs.store();
        let ask = store.transact("ask_leaving", |tx| async move { leaving_in(&tx, id).await });
        let Ok(Ok(Some((_, at_ms)))) = timeout(patience.min(ASK_MAX), ask)
            .await
            .map(|row| row.map(|row| row.filter(|(noted, _)| noted == pid)))
        else {
            return;
        };
        let left_ms = at_ms.saturating_add(LEAVE_MAX_MS) - self.runner.now_ms();
        let left = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0));
        self.leave.cancel();
        drop(timeout(left, work).await);
        self.left().await;
    }

    /// Lets others begin at once if the job was removed: its run writes nothing any more.
    pub(super) async fn left(&self) {
        let Some((id, pid)) = self.begun.get() else {
            return;
        };
        let store = self.runner.replications.0.jobs.store();
        let target = self.accepted.limits.key.as_ref().map(ToString::to_string);
        let target = &target;
        let left = store.transact("leave", |tx| async move {
            for of in [Some(id), target.as_ref()].into_iter().flatten() {
                let leaving = leaving_in(&tx, of).await?;
                if leaving.is_some_and(|(noted, _)| noted == *pid) {
                    tx.clear(&keys::leaving(of));
                }
            }
            Ok::<_, ServiceError>(())
        });
        // Otherwise the next run waits for as long as it has to.
        drop(timeout(ASK_MAX, left).await);
    }
}
