//! What operators do with jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jobs::{JobInfo, State};
use tokio::sync::oneshot;

use crate::add::job_id;
use crate::read::last_error;
use crate::{Error, Queue, Result, Type};

/// How long a request waits for a retry of many jobs, which then goes on in the background.
const RETRY_WAIT: Duration = Duration::from_secs(20);

/// Jobs of a sealed type that are read at a time.
const RETRY_PAGE: usize = 100;

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
        let (queue, ty) = (self.clone(), ty.clone());
        let so_far = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&so_far);
        self.start(async move {
            let retrying = queue.retry_dead(&ty, reason.as_deref(), &count);
            let retried = tokio::select! {
                retried = retrying => retried,
                () = queue.stop().cancelled() => Err(Error::Stopped),
            };
            if let Err(Err(error)) = answer.send(retried) {
                tracing::warn!(job.ty = %ty.name, error = %wire::chain(&error), "cannot retry dead jobs");
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

    async fn retry_dead(&self, ty: &Type, reason: Option<&str>, count: &AtomicU64) -> Result<u64> {
        let of = |info: &JobInfo| {
            let last = info.last.as_ref().and_then(|run| run.end.as_ref());
            last.and_then(|end| end.reason.clone())
        };
        let note = |is_wanted: bool| {
            count.fetch_add(u64::from(is_wanted), Ordering::Relaxed);
            is_wanted
        };
        let Some(reason) = reason.filter(|_| ty.settings.sealed) else {
            let wanted = |info: &JobInfo| note(reason.is_none() || of(info).as_deref() == reason);
            return Ok(self.jobs().retry_all(&ty.ty, wanted).await?);
        };
        // The errors are in the jobs themselves. Jobs that die again meanwhile are left to the next call.
        let began_ms = self.jobs().clock().now_ms();
        let (mut retried, mut cursor) = (0, None);
        loop {
            let page =
                (self.list(ty, Some(State::Dead), true, cursor.as_ref(), RETRY_PAGE)).await?;
            for (info, envelope) in page.jobs {
                if info.finished_ms.is_some_and(|at_ms| at_ms > began_ms) {
                    continue;
                }
                let error = last_error(of(&info), envelope.as_ref());
                if note(error.as_deref() == Some(reason)) {
                    match self.jobs().retry(&ty.ty, &info.id).await {
                        Ok(done) => retried += u64::from(done),
                        Err(jobs::Error::NotFound) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        Ok(retried)
    }
}
