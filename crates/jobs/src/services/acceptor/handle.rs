//! Requests to an acceptor: to claim jobs, and to end runs.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::model::header::check_data;
use crate::operations::work::CLAIM_JOBS_MAX;
use crate::{Accepted, Error, Finish, Held, Job, Jobs, Result};

/// A run that ends with more data than this gets its own transaction.
const SHARED_DATA_BYTES_MAX: usize = 4_096;
/// Longer waits are cut to this: on some platforms `Instant` cannot represent a time much further away.
const WAIT_MAX: Duration = Duration::from_hours(365 * 24);

/// A handle on the service, cheap to clone.
#[derive(Debug, Clone)]
pub struct AcceptorHandle {
    jobs: Jobs,
    requests: mpsc::Sender<Request>,
}

#[derive(Debug)]
pub(super) enum Request {
    Accept(Wanted),
    Finish(Box<Ended>),
}

/// A worker that waits for jobs.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) count: usize,
    pub(super) reply: oneshot::Sender<Delivery>,
}

/// A run to end.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) job: Job,
    pub(super) finish: Finish,
    pub(super) reply: oneshot::Sender<Result<Held>>,
}

/// Claimed jobs on their way to a worker. If dropped before they are taken, they go back to the service.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) jobs: Vec<Accepted>,
    pub(super) returns: mpsc::Sender<Vec<Accepted>>,
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let jobs = std::mem::take(&mut self.jobs);
        if !jobs.is_empty() && self.returns.try_send(jobs).is_err() {
            // The activity monitor makes them pending again.
            tracing::warn!("accepted jobs were left to time out");
        }
    }
}

impl Delivery {
    fn take(mut self) -> Vec<Accepted> {
        std::mem::take(&mut self.jobs)
    }
}

impl AcceptorHandle {
    pub(super) fn new(jobs: Jobs, requests: mpsc::Sender<Request>) -> Self {
        Self { jobs, requests }
    }

    /// Up to `count` jobs, at least one, as soon as any are due; none after `wait`. Dropping the future
    /// loses no job.
    pub async fn accept(&self, count: usize, wait: Duration) -> Result<Vec<Accepted>> {
        let (reply, mut delivered) = oneshot::channel();
        let deadline = Instant::now() + wait.min(WAIT_MAX);
        let request = Request::Accept(Wanted {
            count: count.clamp(1, CLAIM_JOBS_MAX),
            reply,
        });
        match tokio::time::timeout_at(deadline, self.requests.send(request)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Error::Stopped),
            Err(_) => return Ok(Vec::new()),
        }
        match tokio::time::timeout_at(deadline, &mut delivered).await {
            Ok(Ok(delivery)) => Ok(delivery.take()),
            Ok(Err(_)) => Err(Error::Stopped),
            Err(_) => {
                delivered.close();
                Ok(delivered
                    .try_recv()
                    .map_or_else(|_| Vec::new(), Delivery::take))
            }
        }
    }

    /// [`Jobs::finish`], in one transaction with concurrent requests of this process. A worker that joins
    /// this with [`accept`](Self::accept) for its next job needs one transaction instead of two.
    ///
    /// If the future is dropped, the run may have ended or not.
    pub async fn finish(&self, job: &Job, finish: Finish) -> Result<Held> {
        check_data(finish.data.as_ref())?;
        let bytes = finish.data.as_ref().map_or(0, bytes::Bytes::len);
        if bytes <= SHARED_DATA_BYTES_MAX {
            let (reply, answer) = oneshot::channel();
            let request = Request::Finish(Box::new(Ended {
                job: job.clone(),
                finish: finish.clone(),
                reply,
            }));
            if self.requests.send(request).await.is_ok()
                && let Ok(held) = answer.await
            {
                return held;
            }
            // The service was stopped; end the run without it.
        }
        self.jobs.finish(job, finish).await
    }
}
