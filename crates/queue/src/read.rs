//! What readers see of jobs.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jobs::{
    Attempt, Backlog, Counts, Cursor, JobId, JobInfo, JobType, Notice, PAGE_JOBS_MAX, Query, State,
    Subscription,
};
use tokio::time::Instant;

use crate::add::job_id;
use crate::lines::InLine;
use crate::reason::is_returned;
use crate::sealed::REASON;
use crate::{Envelope, Error, Queue, Result, Type};

/// Pages of jobs that are read to group failures.
const FAILURES_PAGES: usize = 5;

/// A job with its history.
#[derive(Debug, Clone)]
pub struct Shown {
    pub info: Arc<JobInfo>,
    /// Not of the service's own jobs, which keep secrets there. An error is that it cannot be read.
    pub envelope: Option<Result<Envelope>>,
    pub runs: Vec<Run>,
}

/// A run of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub worker: String,
    pub start_ms: i64,
    pub end_ms: Option<i64>,
    /// `None` while it runs.
    pub outcome: Option<&'static str>,
    pub reason: Option<String>,
}

/// A page of jobs.
#[derive(Debug)]
pub struct Listing {
    /// With data only if asked for. An error is that it cannot be read.
    pub jobs: Vec<(JobInfo, Option<Result<Envelope>>)>,
    pub next: Option<Cursor>,
}

/// The jobs of a type in numbers.
#[derive(Debug, Clone, Copy)]
pub struct Numbers {
    pub counts: Counts,
    pub backlog: Backlog,
}

/// Jobs whose last run failed, by error.
#[derive(Debug)]
pub struct Failures {
    /// The most frequent first.
    pub groups: Vec<Failure>,
    /// Jobs that were read.
    pub jobs: u64,
    /// Whether these were all.
    pub complete: bool,
}

/// Jobs whose last runs ended alike.
#[derive(Debug)]
pub struct Failure {
    /// See [`Run::outcome`] and [`Run::reason`].
    pub outcome: &'static str,
    pub reason: Option<String>,
    pub count: u64,
    /// The job that failed last.
    pub example: JobId,
    pub last_ms: i64,
}

/// Follows one job.
#[derive(Debug)]
pub struct Following {
    subscription: Subscription,
    queue: Queue,
    ty: JobType,
    _line: InLine,
}

impl Run {
    pub fn of(attempt: &Attempt) -> Self {
        let end = attempt.end.as_ref();
        let reason = end.and_then(|end| end.reason.clone());
        Self {
            worker: attempt.holder.as_str().to_owned(),
            start_ms: attempt.started_ms,
            end_ms: end.map(|end| end.at_ms),
            outcome: end.map(|end| match (end.outcome, reason.as_deref()) {
                (jobs::Outcome::Done, _) => "done",
                (jobs::Outcome::Again, None) => "again",
                (jobs::Outcome::Again, Some(reason)) if is_returned(reason) => "returned",
                // A run that is to be retried has a reason.
                (jobs::Outcome::Again | jobs::Outcome::Failed, _) => "failed",
                (jobs::Outcome::Stalled | jobs::Outcome::GaveUp, _) => "silent",
            }),
            reason,
        }
    }
}

impl Queue {
    /// A job with data and history.
    pub async fn show(&self, ty: &Type, id: &str) -> Result<Shown> {
        let id = &job_id(id)?;
        (self.jobs().store())
            .transact("show_job", |tx| async move {
                let (info, envelope) = if ty.is_own() {
                    let info = self.jobs().info_in(&tx, &ty.ty, id).await?;
                    (info.ok_or(Error::NoJob)?, None)
                } else {
                    let found = self.jobs().get_in(&tx, &ty.ty, id).await?;
                    let (info, data) = found.ok_or(Error::NoJob)?;
                    (info, Some(self.unpack(&ty.ty, id, data)))
                };
                let runs = self.jobs().history_in(&tx, &ty.ty, id).await?;
                Ok(Shown {
                    info: Arc::new(info),
                    envelope,
                    runs: runs.iter().map(Run::of).collect(),
                })
            })
            .await
    }

    /// A job with data, but without its history, which takes a read of its own. Not for the service's own jobs, which keep
    /// secrets in their data. The inner error is that the data cannot be read.
    pub async fn get(&self, ty: &Type, id: &str) -> Result<(JobInfo, Result<Envelope>)> {
        let found = self.jobs().get(&ty.ty, &job_id(id)?).await?;
        let (info, data) = found.ok_or(Error::NoJob)?;
        let envelope = self.unpack(&ty.ty, &info.id, data);
        Ok((info, envelope))
    }

    /// Jobs in a state, or all by id.
    pub async fn list(
        &self,
        ty: &Type,
        state: Option<State>,
        with_data: bool,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Listing> {
        let query = Query {
            state,
            data: with_data && !ty.is_own(),
            ..Query::default()
        };
        let page = self.jobs().list(&ty.ty, &query, after, limit).await?;
        let jobs = page.jobs.into_iter().map(|listed| {
            let data = listed.data;
            let envelope = data.map(|data| self.unpack(&ty.ty, &listed.info.id, data));
            (listed.info, envelope)
        });
        Ok(Listing {
            jobs: jobs.collect(),
            next: page.cursor,
        })
    }

    /// How many jobs a type has. Due jobs are counted up to about `due_max`.
    pub async fn numbers(&self, ty: &Type, due_max: usize) -> Result<Numbers> {
        let now_ms = self.jobs().clock().now_ms();
        Ok(Numbers {
            counts: self.jobs().counts(&ty.ty).await?,
            backlog: self.jobs().backlog(&ty.ty, now_ms, due_max).await?,
        })
    }

    /// The first jobs in a state whose last run failed, by error.
    pub async fn failures(&self, ty: &Type, state: State) -> Result<Failures> {
        let (mut groups, mut jobs, mut cursor) = (HashMap::new(), 0, None);
        for _ in 0..FAILURES_PAGES {
            let with_data = ty.settings.sealed;
            let page = self.list(ty, Some(state), with_data, cursor.as_ref(), PAGE_JOBS_MAX);
            let page = page.await?;
            jobs += page.jobs.len() as u64;
            for (info, envelope) in page.jobs {
                let run = info.last.as_ref().map(Run::of);
                let failed = run.and_then(|run| {
                    let reason = last_error(run.reason, envelope.as_ref());
                    Some((run.outcome?, reason, run.end_ms?))
                });
                let Some((outcome @ ("failed" | "silent"), reason, end_ms)) = failed else {
                    continue;
                };
                let group = groups.entry((outcome, reason.clone()));
                let group: &mut Failure = group.or_insert_with(|| Failure {
                    outcome,
                    reason,
                    count: 0,
                    example: info.id.clone(),
                    last_ms: end_ms,
                });
                group.count += 1;
                if end_ms > group.last_ms {
                    (group.example, group.last_ms) = (info.id, end_ms);
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        let mut groups: Vec<Failure> = groups.into_values().collect();
        groups.sort_by_key(|group| (Reverse(group.count), Reverse(group.last_ms)));
        Ok(Failures {
            groups,
            jobs,
            complete: cursor.is_none(),
        })
    }

    /// Follows a job, from its present state on.
    pub async fn follow(&self, ty: &Type, id: &str) -> Result<Following> {
        let line = self.enter(ty)?;
        Ok(Following {
            subscription: line.follow().subscribe(&job_id(id)?).await?,
            queue: self.clone(),
            ty: ty.ty.clone(),
            _line: line,
        })
    }

    /// Waits until a job is finished or dead, or the time is over.
    pub async fn wait(&self, ty: &Type, id: &str, wait: Duration) -> Result<()> {
        let deadline = Instant::now() + wait;
        let mut following = self.follow(ty, id).await?;
        let _ = following.first();
        let over = async {
            while let Some(seen) = following.next().await {
                let _ = seen?;
            }
            Ok(())
        };
        tokio::select! {
            over = over => over,
            () = tokio::time::sleep_until(deadline) => Ok(()),
            () = self.stop().cancelled() => Ok(()),
        }
    }
}

impl Following {
    /// The state at first. The inner error is that the job's data cannot be read. Called once: the data is not kept.
    pub fn first(&mut self) -> Result<(Arc<JobInfo>, Result<Envelope>)> {
        let notice = self.subscription.now().clone();
        self.subscription.forget_data();
        self.seen(notice)
    }

    /// The next change; `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<(Arc<JobInfo>, Result<Envelope>)>> {
        let notice = self.subscription.next().await?;
        self.subscription.forget_data();
        Some(self.seen(notice))
    }

    fn seen(&self, notice: Notice) -> Result<(Arc<JobInfo>, Result<Envelope>)> {
        match notice {
            Notice::Job(info, data) => {
                let envelope = self.queue.unpack(&self.ty, &info.id, data);
                Ok((info, envelope))
            }
            Notice::Removed | Notice::TypeCleared => Err(Error::NoJob),
            Notice::Stopped => Err(Error::Stopped),
        }
    }
}

/// Why a run failed. That of a sealed type is in the job itself.
pub(crate) fn last_error(
    reason: Option<String>,
    envelope: Option<&Result<Envelope>>,
) -> Option<String> {
    let error = envelope.and_then(|envelope| envelope.as_ref().ok()?.error.as_ref());
    match error {
        Some(error) if reason.as_deref() == Some(REASON) => Some(error.summary()),
        _ => reason,
    }
}

#[cfg(test)]
mod tests;
