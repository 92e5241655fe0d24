//! Requests to an acceptor: to claim jobs, and to end runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::model::header::check_data;
use crate::operations::work::CLAIM_JOBS_MAX;
use crate::{Accepted, Error, Finish, Held, Holder, Job, Jobs, Result};

/// A run that ends with more data than this gets its own transaction: it would delay the other runs that end with it.
const SHARED_DATA_BYTES_MAX: usize = 65_536;
/// Longer waits are cut to this: on some platforms `Instant` cannot represent a time much further away.
const WAIT_MAX: Duration = Duration::from_hours(365 * 24);

/// A handle on the service, cheap to clone.
#[derive(Debug, Clone)]
pub struct AcceptorHandle {
    jobs: Jobs,
    requests: mpsc::Sender<Request>,
    /// Whether the service is claiming.
    claiming: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(super) enum Request {
    Accept(Wanted),
    Finish(Box<Ended>),
    /// In one transaction.
    Both(Vec<Ended>, Wanted),
}

/// A worker that waits for jobs.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) count: usize,
    /// As whom to claim; `None` is the acceptor's own holder.
    pub(super) holder: Option<Holder>,
    deadline: Deadline,
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
            tracing::warn!("abandoned claimed jobs; they run again after their timeout");
        }
    }
}

impl Delivery {
    fn take(mut self) -> Vec<Accepted> {
        std::mem::take(&mut self.jobs)
    }
}

impl Wanted {
    fn new(
        holder: Option<Holder>,
        count: usize,
        deadline: Deadline,
    ) -> (Self, oneshot::Receiver<Delivery>) {
        let (reply, delivered) = oneshot::channel();
        let wanted = Self {
            count: count.clamp(1, CLAIM_JOBS_MAX),
            holder,
            deadline,
            reply,
        };
        (wanted, delivered)
    }

    /// Whether it no longer waits, and is answered by the first claim that finds nothing.
    pub(super) fn is_poll(&self) -> bool {
        self.deadline.0.is_none_or(|at| at <= Instant::now())
    }
}

/// How long a caller waits for jobs; `None` until the next claim.
#[derive(Debug, Clone, Copy)]
struct Deadline(Option<Instant>);

impl Deadline {
    fn after(wait: Duration) -> Self {
        Self((!wait.is_zero()).then(|| Instant::now() + wait.min(WAIT_MAX)))
    }

    /// `None` when the time is over.
    async fn limit<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        match self.0 {
            Some(at) => tokio::time::timeout_at(at, work).await.ok(),
            None => Some(work.await),
        }
    }
}

impl AcceptorHandle {
    pub(super) fn new(
        jobs: Jobs,
        requests: mpsc::Sender<Request>,
        claiming: Arc<AtomicBool>,
    ) -> Self {
        Self {
            jobs,
            requests,
            claiming,
        }
    }

    /// Up to `count` jobs, at least one, as soon as any are due; none after `wait`, or once a claim then under way has
    /// found none. Without a wait, those that are due now. Dropping the future loses no job.
    pub async fn accept(&self, count: usize, wait: Duration) -> Result<Vec<Accepted>> {
        self.accept_as(None, count, wait).await
    }

    /// [`Self::accept`] as another holder than the acceptor's.
    pub async fn accept_as(
        &self,
        holder: Option<Holder>,
        count: usize,
        wait: Duration,
    ) -> Result<Vec<Accepted>> {
        let deadline = Deadline::after(wait);
        let (wanted, delivered) = Wanted::new(holder, count, deadline);
        match deadline
            .limit(self.requests.send(Request::Accept(wanted)))
            .await
        {
            Some(Ok(())) => self.delivered(deadline, delivered).await,
            Some(Err(_)) => Err(Error::Stopped),
            None => Ok(Vec::new()),
        }
    }

    /// Ends runs and claims jobs, in one transaction if the runs end with little data. The answers, one for each run,
    /// are those of [`Jobs::finish_many`].
    pub async fn finish_and_accept(
        &self,
        runs: Vec<(Job, Finish)>,
        holder: Option<Holder>,
        count: usize,
        wait: Duration,
    ) -> Result<(Vec<Result<Held>>, Vec<Accepted>)> {
        let bytes = |(_, finish): &(Job, Finish)| finish.data.as_ref().map_or(0, bytes::Bytes::len);
        if runs.iter().map(bytes).sum::<usize>() > SHARED_DATA_BYTES_MAX {
            let held = self.jobs.finish_many(&runs).await?;
            // The runs have ended, whatever becomes of the claim.
            let jobs = self.accept_as(holder, count, wait).await;
            return Ok((held, jobs.unwrap_or_default()));
        }
        let deadline = Deadline::after(wait);
        let (wanted, delivered) = Wanted::new(holder, count, deadline);
        let (ended, answers): (Vec<_>, Vec<_>) = (runs.iter().cloned())
            .map(|(job, finish)| {
                let (reply, answer) = oneshot::channel();
                (Ended { job, finish, reply }, answer)
            })
            .unzip();
        let (mut held, mut left) = (Vec::with_capacity(runs.len()), runs.into_iter());
        if self
            .requests
            .send(Request::Both(ended, wanted))
            .await
            .is_ok()
        {
            for answer in answers {
                let Ok(answer) = answer.await else { break };
                held.push(answer);
                left.next();
            }
        }
        // The service was stopped; end the others without it.
        let left: Vec<_> = left.collect();
        if !left.is_empty() {
            held.extend(self.jobs.finish_many(&left).await?);
            return Ok((held, Vec::new()));
        }
        let jobs = self.delivered(deadline, delivered).await;
        Ok((held, jobs.unwrap_or_default()))
    }

    /// Waits for jobs. A claim may take longer than the wait: if one is under way then, it may be for this caller. If
    /// the caller left, the claim would have to give its jobs back, again and again where the store is slow.
    async fn delivered(
        &self,
        deadline: Deadline,
        mut delivered: oneshot::Receiver<Delivery>,
    ) -> Result<Vec<Accepted>> {
        let delivery = match deadline.limit(&mut delivered).await {
            Some(delivery) => delivery,
            None if self.claiming.load(Ordering::Acquire) => delivered.await,
            None => {
                delivered.close();
                return Ok(delivered
                    .try_recv()
                    .map_or_else(|_| Vec::new(), Delivery::take));
            }
        };
        delivery.map(Delivery::take).map_err(|_| Error::Stopped)
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
