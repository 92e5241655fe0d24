//! Keeping a job while it is worked on.

use std::time::Duration;

use store::Call;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{Accepted, Error, Held, Jobs};

impl Jobs {
    /// Sends heart-beats for a job of a type with this timeout, until the job is lost: returns
    /// [`Error::Halt`] when somebody else may have it, or when no heart-beat has got through for so
    /// long that somebody else may have it soon. Whoever works on the job then has a quarter of the
    /// timeout to stop. Each answer is shown to `told`.
    ///
    /// To be raced with the work: `tokio::select! { done = work => …, lost = jobs.keep_alive(…) => … }`.
    pub async fn keep_alive(
        &self,
        accepted: &Accepted,
        timeout: Duration,
        mut told: impl FnMut(Held),
    ) -> Error {
        let mut heard = accepted.claimed_at;
        loop {
            let lost = heard + timeout / 4 * 3;
            let wait = timeout / 6 + self.entropy().up_to(timeout / 6);
            sleep_until((Instant::now() + wait).min(lost)).await;
            let sent = Instant::now();
            if sent >= lost {
                return Error::Halt;
            }
            let op = self.op();
            let call = Call::new("update").deadline(lost - sent);
            let beat = (self.store()).transact(call, |tx| async move {
                self.update_in(&tx, &op, &accepted.job, None).await
            });
            match timeout_at(lost, beat).await {
                Ok(Ok(held)) => {
                    heard = sent;
                    told(held);
                }
                Ok(Err(Error::Halt)) | Err(_) => return Error::Halt,
                Ok(Err(error)) => {
                    let id = &accepted.job.id;
                    tracing::warn!(job.id = %id, error = %error.chain(), "send a heart-beat");
                }
            }
        }
    }
}
