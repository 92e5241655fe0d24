//! Background work of a server.

use std::sync::Arc;
use std::time::Duration;

use store::{Call, RangeOptions};
use tokio::time::sleep;

use crate::fault::ServiceError;
use crate::keys;
use crate::run::Runner;
use crate::service::{Replications, Scanned};
use crate::testing::{self, Bug};

/// Between two rounds of background work.
const TIDY_PAUSE: Duration = Duration::from_secs(5);
/// Expired results per transaction.
const EXPIRED: usize = 50;

/// Keeps a row for every minute.
pub(super) async fn keep_history(runner: Arc<Runner>) {
    loop {
        sleep(Duration::from_mins(1)).await;
        let (replications, node) = (&runner.replications, runner.node.to_string());
        if let Err(error) = replications.keep_minute(&node, &runner.copied).await {
            tracing::warn!(error = %wire::chain(&error), "cannot save the history");
        }
        if let Err(error) = replications.count_remotes().await {
            tracing::warn!(error = %wire::chain(&error), "cannot count the runs of remotes");
        }
    }
}

/// Background work that any node does: removes expired results of transient jobs, and scans databases.
pub(super) async fn tidy(replications: Replications) {
    loop {
        let done = async {
            let expired = replications.forget_transient().await?;
            let scanned = replications.work_a_little().await?;
            Ok::<_, ServiceError>(expired == 0 && scanned == Scanned::Nothing)
        };
        match done.await {
            Ok(false) => {}
            Ok(true) if testing::has(Bug::BusyTidying) => sleep(Duration::from_millis(200)).await,
            Ok(true) => sleep(TIDY_PAUSE / 2 + replications.entropy().up_to(TIDY_PAUSE)).await,
            Err(error) => {
                tracing::warn!(error = %wire::chain(&error), "background work failed");
                sleep(TIDY_PAUSE).await;
            }
        }
    }
}

impl Replications {
    /// Removes some transient jobs whose results have expired, oldest first, and returns how many.
    pub async fn forget_transient(&self) -> Result<usize, ServiceError> {
        let age_s = self.options().transient_job_max_age_sec;
        let age_ms = i64::try_from(age_s.saturating_mul(1000)).unwrap_or(i64::MAX);
        let op = self.0.jobs.op();
        let results = &keys::results(op.now_ms.saturating_sub(age_ms));
        (self.0.jobs.store())
            .transact(Call::batch("forget_transient"), |tx| async move {
                let rows = (tx.snapshot()).get_range(results.clone(), RangeOptions::limit(EXPIRED));
                let rows = rows.collect().await?;
                for row in &rows {
                    let (at_ms, job) = keys::ended(&row.key)?;
                    match self.0.jobs.info_in(&tx, &self.0.ty, &job).await? {
                        Some(info) if info.finished_ms == Some(at_ms) => {
                            self.drop_job_in(&tx, &op, &job).await?;
                        }
                        // It was restarted.
                        Some(_) => {}
                        // The queue has removed it, because no node did this for long.
                        None => {
                            let id = String::from_utf8_lossy(&row.value);
                            let id = Some(&*id).filter(|id| !id.is_empty());
                            self.drop_rows_in(&tx, &op, &job, id).await?;
                        }
                    }
                    tx.clear(&row.key);
                }
                Ok::<_, ServiceError>(rows.len())
            })
            .await
    }
}
