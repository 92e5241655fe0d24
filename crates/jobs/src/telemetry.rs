//! Metrics of the queue, with all their names.
//!
//! Counts of jobs and transitions come from the queue itself: exact, and over all nodes; each node
//! reports them. What one node did is counted there. Conflicts are the store's:
//! `davenport_store_retries_total` by transaction.

#[cfg(test)]
mod tests;

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use crate::{Backlog, Counts, Error, JobType, Jobs, Result};

/// Jobs of a type in a state, over all nodes.
const JOBS: &str = "davenport_jobs";
/// Jobs that were created, over all nodes.
const CREATED: &str = "davenport_jobs_created_total";
/// Runs that were started, over all nodes.
const ACCEPTED: &str = "davenport_jobs_accepted_total";
/// Runs that finished their job, over all nodes.
const FINISHED: &str = "davenport_jobs_finished_total";
/// Runs that left their job dead, over all nodes.
const DEAD: &str = "davenport_jobs_dead_total";
/// Runs that left their job pending, over all nodes.
const AGAIN: &str = "davenport_jobs_again_total";
/// Finished and dead jobs that became pending again, over all nodes.
const REVIVED: &str = "davenport_jobs_revived_total";
/// Jobs that were removed or expired, over all nodes.
const REMOVED: &str = "davenport_jobs_removed_total";
/// Due jobs that are waiting, counted up to [`DUE_MAX`].
const DUE: &str = "davenport_jobs_due";
/// How long the oldest due job has been due; 0 if there is none.
const OLDEST_DUE: &str = "davenport_jobs_oldest_due_seconds";
/// Jobs of silent holders that this node recovered, by outcome.
const STALLED: &str = "davenport_jobs_stalled_total";
/// Undecodable rows that this node has skipped.
const UNDECODABLE: &str = "davenport_jobs_undecodable_total";
/// Undecodable jobs, over all nodes; counted up to 1,000.
const QUARANTINED: &str = "davenport_jobs_quarantined";
/// Failed turns of a monitor's duty on this node, by duty.
const DUTY_FAILURES: &str = "davenport_jobs_duty_failures_total";
/// Time from due to claimed, for jobs that this node claimed.
const WAIT: &str = "davenport_jobs_wait_seconds";

/// Maximum due jobs counted.
const DUE_MAX: usize = 1_000;

impl Jobs {
    /// Reads the counts of a type and updates the metrics. [`Maintenance`] does this periodically;
    /// an exporter may call it more often.
    ///
    /// [`Maintenance`]: crate::Maintenance
    pub async fn observe(&self, ty: &JobType) -> Result<()> {
        let now_ms = self.clock().now_ms();
        let (counts, backlog) =
            futures::future::try_join(self.counts(ty), self.backlog(ty, now_ms, DUE_MAX)).await?;
        tell(ty, &counts, &backlog, now_ms);
        let quarantined = self.quarantined(ty).await?.len();
        gauge!(QUARANTINED, "type" => ty.to_string()).set(float(quarantined as u64));
        Ok(())
    }
}

fn tell(ty: &JobType, counts: &Counts, backlog: &Backlog, now_ms: i64) {
    let ty = || ty.to_string();
    for (state, jobs) in [
        ("pending", counts.pending),
        ("running", counts.running),
        ("finished", counts.finished),
        ("dead", counts.dead),
    ] {
        gauge!(JOBS, "type" => ty(), "state" => state).set(float(jobs));
    }
    for (name, times) in [
        (CREATED, counts.created_total),
        (ACCEPTED, counts.accepted_total),
        (FINISHED, counts.finished_total),
        (DEAD, counts.dead_total),
        (AGAIN, counts.again_total),
        (REVIVED, counts.revived_total),
        (REMOVED, counts.removed_total),
    ] {
        counter!(name, "type" => ty()).absolute(times);
    }
    gauge!(DUE, "type" => ty()).set(float(backlog.due));
    let oldest = (backlog.oldest_due_ms).map_or(Duration::ZERO, |due_ms| since(due_ms, now_ms));
    gauge!(OLDEST_DUE, "type" => ty()).set(oldest.as_secs_f64());
}

/// Resets the gauges of a type that this node no longer observes: queries take the maximum over the nodes.
pub(crate) fn not_observed(ty: &JobType) {
    for state in ["pending", "running", "finished", "dead"] {
        gauge!(JOBS, "type" => ty.to_string(), "state" => state).set(0.0);
    }
    for name in [DUE, OLDEST_DUE, QUARANTINED] {
        gauge!(name, "type" => ty.to_string()).set(0.0);
    }
}

/// Records how long claimed jobs have waited since they became ready.
pub(crate) fn accepted(ty: &JobType, ready_ms: impl ExactSizeIterator<Item = i64>, now_ms: i64) {
    if ready_ms.len() == 0 {
        return;
    }
    let waits = histogram!(WAIT, "type" => ty.to_string());
    for ready_ms in ready_ms {
        waits.record(since(ready_ms, now_ms));
    }
}

/// Counts jobs of silent holders that were recovered.
pub(crate) fn stalled(ty: &JobType, rerun: u64, given_up: u64) {
    for (outcome, jobs) in [("rerun", rerun), ("given_up", given_up)] {
        if jobs > 0 {
            counter!(STALLED, "type" => ty.to_string(), "outcome" => outcome).increment(jobs);
        }
    }
}

/// Logs and counts a row that cannot be decoded.
pub(crate) fn undecodable(ty: &JobType, key: &[u8], error: &Error) {
    tracing::error!(job.ty = %ty, key = %key.escape_ascii(), error = %error.chain(), "found an undecodable row");
    counter!(UNDECODABLE, "type" => ty.to_string()).increment(1);
}

pub(crate) fn duty_failed(ty: &JobType, duty: &'static str) {
    counter!(DUTY_FAILURES, "type" => ty.to_string(), "duty" => duty).increment(1);
}

/// The time between two clocks' readings: never negative, however wrong they are.
fn since(begin_ms: i64, now_ms: i64) -> Duration {
    let ms = now_ms.saturating_sub(begin_ms).max(0);
    Duration::from_millis(ms.unsigned_abs())
}

#[expect(clippy::cast_precision_loss, reason = "a gauge need not be exact")]
fn float(count: u64) -> f64 {
    count as f64
}
