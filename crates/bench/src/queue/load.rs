//! Producers and workers.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::try_join;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::meter::Meter;
use super::{holder, joined};
use jobs::{Acceptor, AcceptorHandle, Add, Finish, Job, JobId, JobType, Jobs, Result};

/// A worker polls again after this time; jobs arrive sooner.
const PATIENCE: Duration = Duration::from_mins(1);
/// The size of job data used for other queues here.
const DATA_BYTES: usize = 100;

/// A queue with its number of producers and workers.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) jobs: Jobs,
    pub(super) producers: usize,
    pub(super) workers: usize,
}

impl Load {
    pub(super) fn meter(&self) -> Meter {
        Meter::new(self.jobs.store())
    }

    /// Adds the jobs with these numbers, `batch` per call.
    pub(super) async fn produce(
        &self,
        ty: &JobType,
        numbers: Range<usize>,
        batch: usize,
    ) -> Result<()> {
        self.produce_as(ty, numbers, batch, |_, add| add).await
    }

    /// The same of jobs that `change` has changed.
    pub(super) async fn produce_as(
        &self,
        ty: &JobType,
        numbers: Range<usize>,
        batch: usize,
        change: impl Fn(usize, Add) -> Add + Clone + Send + 'static,
    ) -> Result<()> {
        let next = Arc::new(AtomicUsize::new(numbers.start));
        let mut tasks = JoinSet::new();
        for _ in 0..self.producers {
            let (jobs, ty) = (self.jobs.clone(), ty.clone());
            let (next, end, change) = (Arc::clone(&next), numbers.end, change.clone());
            tasks.spawn(async move {
                loop {
                    let first = next.fetch_add(batch, Ordering::Relaxed);
                    if first >= end {
                        return Ok(());
                    }
                    let adds = first..end.min(first + batch);
                    let adds = adds.map(|number| Ok(change(number, job(number)?)));
                    let adds = adds.collect::<Result<Vec<Add>>>()?;
                    jobs.add_many(&ty, &adds).await?;
                }
            });
        }
        all(tasks).await
    }

    /// Claims and finishes this many jobs, up to `batch` per call, in one process.
    pub(super) async fn finish(&self, ty: &JobType, count: usize, batch: usize) -> Result<()> {
        self.finish_as(ty, count, batch, false).await
    }

    /// The same by workers that claim only when they have finished what they have, if they take `turns`: a worker that
    /// claims earlier needs one more slot of its limits.
    pub(super) async fn finish_as(
        &self,
        ty: &JobType,
        count: usize,
        batch: usize,
        turns: bool,
    ) -> Result<()> {
        let (service, handle) = Acceptor::new(self.jobs.clone(), ty.clone(), holder()?);
        let stop = CancellationToken::new();
        let service = tokio::spawn(service.run(stop.clone()));
        let left = Arc::new(Left::new(count));
        let mut tasks = JoinSet::new();
        for _ in 0..self.workers {
            let (jobs, handle, left) = (self.jobs.clone(), handle.clone(), Arc::clone(&left));
            tasks.spawn(async move { work(&jobs, &handle, &left, (batch, turns)).await });
        }
        let ended = all(tasks).await;
        stop.cancel();
        joined(service.await.map(Ok))?;
        ended
    }
}

/// Jobs to be finished by several workers.
#[derive(Debug)]
pub(super) struct Left {
    count: AtomicUsize,
    pub(super) none: CancellationToken,
}

impl Left {
    pub(super) fn new(count: usize) -> Self {
        Self {
            count: AtomicUsize::new(count),
            none: CancellationToken::new(),
        }
    }

    /// The next jobs; `None` as soon as no job is left.
    async fn or_none<T: Default>(&self, waited: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.none.cancelled() => Ok(T::default()),
            waited = waited => waited,
        }
    }

    pub(super) fn finished(&self, count: usize) {
        let before = self.count.fetch_sub(count, Ordering::Relaxed);
        if before <= count {
            self.none.cancel();
        }
    }
}

/// The next claim runs while the finished jobs are committed, unless the worker takes turns.
async fn work(
    jobs: &Jobs,
    handle: &AcceptorHandle,
    left: &Left,
    (batch, turns): (usize, bool),
) -> Result<()> {
    let mut done: Vec<Job> = Vec::new();
    loop {
        let finish = async {
            let count = done.len();
            match &*done {
                [] => {}
                [job] => drop(handle.finish(job, Finish::done()).await?),
                _ => end(jobs, done.into_iter()).await?,
            }
            left.finished(count);
            Ok(())
        };
        let accept = left.or_none(handle.accept(batch, PATIENCE));
        let accepted = if turns {
            finish.await?;
            accept.await?
        } else {
            // The claim can have the slots of the finished jobs.
            try_join(finish, accept).await?.1
        };
        if left.none.is_cancelled() {
            return Ok(());
        }
        done = accepted.into_iter().map(|accepted| accepted.job).collect();
    }
}

/// Finishes jobs in one transaction.
pub(super) async fn end(jobs: &Jobs, held: impl Iterator<Item = Job>) -> Result<()> {
    let held: Vec<_> = held.map(|job| (job, Finish::done())).collect();
    for answer in jobs.finish_many(&held).await? {
        // Only here it shows that a run was lost.
        let _ = answer?;
    }
    Ok(())
}

/// The id of a job's number. Spreads consecutive ids.
pub(super) fn job(number: usize) -> Result<Add> {
    let scattered = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let id = JobId::new(format!("{scattered:016x}"))?;
    let text = "x".repeat(DATA_BYTES);
    Ok(Add::new(id, format!(r#"{{"text":"{text}"}}"#)))
}

pub(super) async fn all(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(ended) = tasks.join_next().await {
        joined(ended)?;
    }
    Ok(())
}
