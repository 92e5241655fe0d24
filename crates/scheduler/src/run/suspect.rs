//! Runs that may stop their node: started with care, and ended when they panic.

use std::sync::{MutexGuard, PoisonError};

use tokio::sync::watch;

use super::Work;
use super::end::End;
use crate::fault::ServiceError;
use crate::outcome::Outcome;
use crate::quarantine::{self, Suspect, Verdict};
use replication::engine::Progress;

impl Work<'_> {
    /// Ends a run that panicked: it is retried once, and fails for good if it panics twice in a row.
    pub(super) async fn end_panicked(&self) -> Result<Outcome, ServiceError> {
        let replications = &self.runner.replications;
        let job = &self.accepted.job.id;
        let read = |tx| async move { replications.job_in(&tx, job).await };
        let Some((_, data)) = replications
            .0
            .jobs
            .store()
            .transact("read_job", read)
            .await?
        else {
            return Ok(Outcome::Halted);
        };
        let end = if data.last_error.as_deref() == Some(quarantine::PANICKED) {
            End::Fail(quarantine::set_aside(
                "this replication panicked twice in a row",
            ))
        } else {
            End::Crash(quarantine::panicked())
        };
        match Box::pin(self.end(data, end)).await {
            Err(error) if error.is_halt() => Ok(Outcome::Halted),
            ended => ended,
        }
    }

    /// Waits until a suspect may start, or sets it aside after too many strikes.
    pub(super) async fn suspected(&self) -> Result<Option<End>, ServiceError> {
        let (replications, accepted) = (&self.runner.replications, self.accepted);
        let admit = (self.runner.quarantine).admit(replications, &accepted.job, accepted.stalls);
        let verdict = tokio::select! {
            biased;
            () = self.stopped() => return Ok(Some(self.stop_end())),
            verdict = admit => verdict?,
        };
        Ok(match verdict {
            Verdict::Innocent => None,
            Verdict::Suspect(suspect) => {
                *self.suspect() = Some(suspect);
                None
            }
            Verdict::SetAside { strikes } => {
                let what = format!(
                    "nodes stopped {strikes} times in a row while starting this replication"
                );
                Some(End::Fail(quarantine::set_aside(&what)))
            }
        })
    }

    /// Waits until a suspect has shown that it runs.
    pub(super) async fn clear_suspect(&self, progress: watch::Receiver<Progress>) {
        let suspect = self.suspect().take();
        if let Some(suspect) = suspect {
            Box::pin(suspect.cleared(&self.runner.replications, progress)).await;
        }
    }

    fn suspect(&self) -> MutexGuard<'_, Option<Suspect>> {
        self.suspect.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
