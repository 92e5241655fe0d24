//! What operators do with jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jobs::State;
use tokio::sync::oneshot;

use crate::add::job_id;
use crate::{Error, Queue, Result, Type};

/// How long a request waits for a retry of many jobs, which then goes on in the background.
const RETRY_WAIT: Duration = Duration::from_secs(20);

/// How far a retry of many jobs is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retried {
    pub count: u64,
    /// It goes on in the background.
    pub goes_on: bool,
}

impl Queue {
    /// Removes a job in any state. Its worker, if it has one, is halted.
    pub async fn remove(&self, ty: &Type, id: &str) -> Result<()> {
        Ok(self.jobs().remove(&ty.ty, &job_id(id)?).await?)
    }

    /// Makes a dead job ready again.
    pub async fn retry(&self, ty: &Type, id: &str) -> Result<()> {
        let id = job_id(id)?;
        if self.jobs().retry(&ty.ty, &id).await? {
            return Ok(());
        }
        match self.jobs().info(&ty.ty, &id).await? {
            None => Err(Error::NoJob),
            Some(info) if info.state == State::Finished => Err(Error::Conflict(
                "the job has finished; to run it again, add it again with the same id".into(),
            )),
            // It will run, or does.
            Some(_) => Ok(()),
        }
    }

    /// Makes the dead jobs of a type ready again: all, or those whose last run ended for this reason.
    pub async fn retry_all(&self, ty: &Type, reason: Option<String>) -> Result<Retried> {
        let (answer, mut ended) = oneshot::channel();
        let (queue, of) = (self.clone(), ty.ty.clone());
        let so_far = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&so_far);
        self.start(async move {
            let wanted = |info: &jobs::JobInfo| {
                let last = info.last.as_ref().and_then(|run| run.end.as_ref());
                let is_wanted = match &reason {
                    None => true,
                    Some(reason) => last.and_then(|end| end.reason.as_ref()) == Some(reason),
                };
                count.fetch_add(u64::from(is_wanted), Ordering::Relaxed);
                is_wanted
            };
            let retried = tokio::select! {
                retried = queue.jobs().retry_all(&of, wanted) => retried,
                () = queue.stop().cancelled() => Err(jobs::Error::Stopped),
            };
            if let Err(Err(error)) = answer.send(retried) {
                tracing::warn!(job.ty = %of, %error, "cannot retry dead jobs");
            }
        });
        tokio::select! {
            ended = &mut ended => match ended {
                Ok(count) => Ok(Retried { count: count?, goes_on: false }),
                Err(_) => Err(Error::Stopped),
            },
            () = tokio::time::sleep(RETRY_WAIT) => Ok(Retried {
                count: so_far.load(Ordering::Relaxed),
                goes_on: true,
            }),
        }
    }
}
