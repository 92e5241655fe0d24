//! Jobs whose node stopped while it ran them, perhaps because of them.
//!
//! A job whose holder went silent is a suspect. A node starts few suspects at a time, and records each one before it
//! starts it. If the node stops, too, before the job has shown that it runs, that is a strike, and the job is started
//! alone from then on. At the second strike it is set aside: it fails for good instead of stopping one node after the
//! other. Ten thousand jobs of a killed node are suspects as well, but only for the few moments that each takes to
//! start.

use std::sync::Arc;
use std::time::Duration;

use jobs::Job;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::Transaction;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use crate::fault::ServiceError;
use crate::keys;
use crate::service::Replications;
use replication::engine::{Phase, Progress};

/// Suspects without a strike that a node starts concurrently.
const TOGETHER: u32 = 16;
/// A job that runs for this long has shown that it runs.
const START_MAX: Duration = Duration::from_secs(20);
/// The errors of a job that is set aside, and of the run before that.
pub(crate) const SET_ASIDE: &str = "set_aside";
pub(crate) const PANICKED: &str = "run_panicked";

/// The record that a node writes before it starts a suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    /// The run being started.
    attempt: u32,
    /// How many nodes stopped while starting this job.
    strikes: u32,
}

/// The suspects that a node is starting.
#[derive(Clone, Debug)]
pub(crate) struct Quarantine(Arc<Semaphore>);

/// A suspect being started.
#[derive(Debug)]
pub(crate) struct Suspect {
    #[expect(dead_code, reason = "held for its drop")]
    permit: OwnedSemaphorePermit,
    job: Job,
}

/// The decision about a job before it runs.
pub(crate) enum Verdict {
    /// It is not a suspect.
    Innocent,
    Suspect(Suspect),
    /// It has too many strikes.
    SetAside {
        strikes: u32,
    },
}

impl Default for Quarantine {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(TOGETHER as usize)))
    }
}

impl Quarantine {
    /// Waits until a job with this many silent holders in a row may start.
    pub(crate) async fn admit(
        &self,
        replications: &Replications,
        job: &Job,
        stalls: u32,
    ) -> Result<Verdict, ServiceError> {
        if stalls == 0 {
            return Ok(Verdict::Innocent);
        }
        let read = |tx: Transaction| async move { strikes_in(&tx, job).await };
        let strikes = (replications.0.jobs.store())
            .transact("read_suspect", read)
            .await?;
        let max = replications.options().set_aside_after;
        if max > 0 && strikes >= max {
            return Ok(Verdict::SetAside { strikes });
        }
        let permits = if strikes == 0 { 1 } else { TOGETHER };
        let permit = Arc::clone(&self.0).acquire_many_owned(permits).await;
        let Ok(permit) = permit else {
            return Err(ServiceError::Stopped);
        };
        replications.mark(job, strikes).await?;
        let job = job.clone();
        Ok(Verdict::Suspect(Suspect { permit, job }))
    }
}

impl Suspect {
    /// Waits until the run has shown that it runs, and clears the suspicion.
    pub(crate) async fn cleared(
        self,
        replications: &Replications,
        progress: watch::Receiver<Progress>,
    ) {
        let mut progress = progress;
        let before = progress.borrow().last_checkpoint;
        let runs = |now: &Progress| now.phase == Phase::CaughtUp || now.last_checkpoint != before;
        drop(timeout(START_MAX, progress.wait_for(runs)).await);
        replications.acquit(&self.job).await;
    }
}

impl Replications {
    /// Clears the suspicion of a run, unless another node has started the job since.
    pub(crate) async fn acquit(&self, job: &Job) {
        let clear = |tx: Transaction| async move {
            if mark_in(&tx, job)
                .await?
                .is_some_and(|mark| mark.attempt == job.attempt)
            {
                tx.clear(&keys::suspect(&job.id));
            }
            Ok::<_, ServiceError>(())
        };
        let cleared = self.0.jobs.store().transact("clear_suspect", clear);
        if let Err(error) = cleared.await {
            tracing::debug!(job.id = %job.id, error = %wire::chain(&error), "cannot clear a suspect");
        }
    }

    async fn mark(&self, job: &Job, strikes: u32) -> Result<(), ServiceError> {
        let mark = Mark {
            attempt: job.attempt,
            strikes,
        };
        let mark = &serde_json::to_vec(&mark).expect("numbers can be written");
        let write = |tx: Transaction| async move {
            tx.set(&keys::suspect(&job.id), mark);
            Ok::<_, ServiceError>(())
        };
        self.0.jobs.store().transact("mark_suspect", write).await
    }

    /// Records that a run is stuck, for the next node that runs the job.
    pub(crate) async fn mark_stuck(&self, job: &Job, stuck: Duration) {
        let write = async {
            let read = |tx: Transaction| async move { mark_in(&tx, job).await };
            let mark = (self.0.jobs.store()).transact("read_suspect", read).await?;
            self.mark(job, mark.map_or(0, |mark| mark.strikes)).await
        };
        tracing::error!(
            job.id = %job.id,
            stuck_s = stuck.as_secs(),
            "a run blocks its thread; another node takes over its job, and this node should be restarted"
        );
        if let Err(error) = write.await {
            tracing::debug!(job.id = %job.id, error = %wire::chain(&error), "cannot record a stuck run");
        }
    }
}

async fn mark_in(tx: &Transaction, job: &Job) -> Result<Option<Mark>, ServiceError> {
    let row = tx.get(&keys::suspect(&job.id)).await?;
    Ok(row.and_then(|row| serde_json::from_slice(&row).ok()))
}

/// How many nodes stopped while starting a job.
async fn strikes_in(tx: &Transaction, job: &Job) -> Result<u32, ServiceError> {
    Ok(match mark_in(tx, job).await? {
        Some(mark) if mark.attempt.checked_add(1) == Some(job.attempt) => {
            mark.strikes.saturating_add(1)
        }
        // Its node stopped while the job was waiting to start, so the job was not the cause.
        Some(mark) => mark.strikes,
        None => 0,
    })
}

/// The reason shown for a job that is set aside.
pub(crate) fn set_aside(what: &str) -> Value {
    let reason = format!(
        "set aside: {what}; report it with the log of the node, and run it again with `davenport jobs restart`"
    );
    json!({"error": SET_ASIDE, "reason": reason})
}

/// The reason shown after the first panic. The panic message is only in the log of the node, since it may contain data.
pub(crate) fn panicked() -> Value {
    let reason = "the run panicked, which is a bug in this service; see the log of the node";
    json!({"error": PANICKED, "reason": reason})
}
