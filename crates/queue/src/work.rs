//! What workers do: they claim jobs, send heartbeats with progress, and end runs.

use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _, stream};
use jobs::{Accepted, Finish, Held, Holder, Job, millis};
use tokio::time::Instant;

use crate::lines::InLine;
use crate::reason::is_returned;
use crate::{Envelope, Error, Queue, Result, Seconds, Type, lock};

mod beat;
mod end;

pub use beat::{Beat, BeatStatus, Beaten};
pub use end::{Ended, EndedStatus, Outcome};

/// The longest that a claim waits.
pub const WAIT_MAX: Seconds = Seconds::new(60);
/// Concurrent transactions of a request.
const AT_ONCE: usize = 8;

/// A job that a worker has claimed.
#[derive(Debug)]
pub struct Given {
    pub id: String,
    pub lock: String,
    pub attempt: u32,
    /// Runs in a row that failed or whose worker went silent.
    pub failures: u32,
    pub envelope: Envelope,
    /// Without a heartbeat, the worker loses the job at this time.
    pub deadline_ms: i64,
    due_ms: i64,
    job: Job,
}

/// Claimed jobs on their way to a worker. They go back unless [sent](Self::sent).
#[derive(Debug)]
pub struct Claimed {
    queue: Queue,
    pub jobs: Vec<Given>,
    /// How long the worker may be silent; without jobs, the type's present timeout.
    pub timeout: Seconds,
}

/// Who claims how many jobs, and how long it waits for the first.
#[derive(Debug, Clone)]
pub struct Claim {
    holder: Holder,
    count: usize,
    deadline: Instant,
}

impl Claim {
    pub fn new(worker: &str, count: usize, wait: Duration) -> Result<Self> {
        if worker.is_empty() || worker.len() > jobs::HOLDER_BYTES_MAX {
            let reason = format!(
                "`worker`, a name for operators, must have from 1 to {} bytes",
                jobs::HOLDER_BYTES_MAX
            );
            return Err(Error::Invalid(reason));
        }
        if wait > WAIT_MAX.duration() {
            return Err(Error::Invalid(format!(
                "`wait_sec` must be at most {}; claim again when nothing fell due in time",
                WAIT_MAX.ms() / 1_000
            )));
        }
        Ok(Self {
            holder: Holder::new(worker)?,
            count,
            deadline: Instant::now() + wait,
        })
    }

    /// How long it still waits.
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

impl Claimed {
    /// The worker has them.
    pub fn sent(mut self) {
        self.jobs.clear();
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let jobs = std::mem::take(&mut self.jobs).into_iter();
        let runs = jobs.map(|given| (given.job, Finish::returned(given.due_ms)));
        self.queue.end_unused(runs.collect());
    }
}

impl Queue {
    /// Claims jobs, waiting for the first. Dropping the future or the result gives them back.
    pub async fn claim(&self, ty: &Type, claim: &Claim) -> Result<Claimed> {
        let line = self.enter(ty)?;
        self.claim_in(ty, claim, &line).await
    }

    async fn claim_in(&self, ty: &Type, claim: &Claim, line: &InLine) -> Result<Claimed> {
        let mut acceptors = line.acceptors();
        while let Some(acceptor) = acceptors.by(claim.deadline).await {
            let holder = Some(claim.holder.clone());
            match acceptor.accept_as(holder, claim.count, claim.left()).await {
                Ok(jobs) => {
                    let (any, claimed) = (!jobs.is_empty(), self.claimed(ty, jobs).await?);
                    // None of them can be read, so they are not due any more.
                    if any && claimed.jobs.is_empty() {
                        continue;
                    }
                    return Ok(claimed);
                }
                // The type was paused.
                Err(jobs::Error::Stopped) => {
                    if !acceptors.changed_by(claim.deadline).await {
                        break;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.claimed(ty, Vec::new()).await
    }

    /// The jobs that can be read. The runs of others end.
    async fn claimed(&self, ty: &Type, accepted: Vec<Accepted>) -> Result<Claimed> {
        let now_ms = self.jobs().clock().now_ms();
        let mut claimed = Claimed {
            queue: self.clone(),
            jobs: Vec::with_capacity(accepted.len()),
            timeout: ty.settings.timeout_sec,
        };
        let mut unread = Vec::new();
        for accepted in accepted {
            let timeout = accepted
                .job
                .timeout()
                .saturating_sub(accepted.claimed_at.elapsed());
            let (job, data) = (&accepted.job, accepted.data);
            let envelope = match self.unpack(&job.ty, &job.id, data) {
                Ok(envelope) => envelope,
                Err(error) => {
                    let finish = self.unread(&job.ty, &job.id, &error);
                    unread.push((accepted.job, finish));
                    continue;
                }
            };
            claimed.jobs.push(Given {
                id: String::from_utf8_lossy(accepted.job.id.as_bytes()).into_owned(),
                lock: lock::encode(&accepted.job, !envelope.is_plain()),
                attempt: accepted.job.attempt,
                failures: accepted.stalls,
                envelope,
                deadline_ms: now_ms.saturating_add(millis(timeout)),
                due_ms: accepted.due_ms,
                job: accepted.job,
            });
        }
        self.end_unused(unread);
        let jobs = claimed.jobs.iter().map(|given| &given.job);
        claimed.timeout = self.timeout(ty, jobs).await;
        let begun = claimed.jobs.iter_mut();
        let begun = begun.filter(|given| given.attempt > 1 && given.envelope.progress.is_some());
        let begun: Vec<_> = begun.map(|given| self.begin(ty, given).boxed()).collect();
        let mut begun = stream::iter(begun).buffer_unordered(AT_ONCE);
        while let Some(result) = begun.next().await {
            result?;
        }
        drop(begun);
        Ok(claimed)
    }

    /// Removes the progress of a job whose last run was done, because its work starts over. Readers see that progress until
    /// the job is claimed.
    async fn begin(&self, ty: &Type, given: &mut Given) -> Result<()> {
        let (job, op) = (&given.job, &self.jobs().op());
        let fresh = &Envelope {
            progress: None,
            ..given.envelope.clone()
        };
        let removed = (self.jobs().store())
            .transact("begin", |tx| async move {
                let runs = self.jobs().history_in(&tx, &job.ty, &job.id).await?;
                let last = runs.iter().rev().filter_map(|run| run.end.as_ref());
                let last = last.skip_while(|end| end.reason.as_deref().is_some_and(is_returned));
                if last.map(|end| end.outcome).next() != Some(jobs::Outcome::Done) {
                    return Ok::<_, Error>(false);
                }
                let data = self.pack(ty, &job.id, fresh)?;
                self.sealing_in(&tx, std::iter::once(&data)).await?;
                unless_halted(self.jobs().beat_with_in(&tx, op, job, Some(data)).await)?;
                Ok(true)
            })
            .await?;
        if removed {
            given.envelope.progress = None;
        }
        Ok(())
    }

    /// The shortest of the timeouts of these jobs and the type, because a worker may apply it to all jobs that it holds.
    async fn timeout<'a>(&self, ty: &Type, held: impl Iterator<Item = &'a Job>) -> Seconds {
        let least = held.map(|job| Seconds::of(job.timeout())).min();
        // The worker has the jobs even if the store fails now.
        let found = self.find(&ty.name).await;
        let now = found.map_or(ty.settings.timeout_sec, |found| found.settings.timeout_sec);
        least.map_or(now, |least| least.min(now))
    }

    /// Ends runs that were never handed to a worker, in the background.
    fn end_unused(&self, runs: Vec<(Job, Finish)>) {
        if runs.is_empty() {
            return;
        }
        let queue = self.clone();
        self.start(async move {
            if let Err(error) = queue.jobs().finish_many(&runs).await {
                tracing::warn!(jobs = runs.len(), error = %wire::chain(&error), "cannot end runs that were never handed to a worker");
            }
        });
    }
}

fn unless_halted(held: jobs::Result<Held>) -> Result<Option<Held>> {
    match held {
        Ok(held) => Ok(Some(held)),
        Err(jobs::Error::Halt) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
