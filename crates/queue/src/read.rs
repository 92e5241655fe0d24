//! What readers see of jobs.

use std::sync::Arc;
use std::time::Duration;

use jobs::{
    Attempt, Backlog, Counts, Cursor, JobInfo, JobType, Notice, Query, RETURNED, State,
    Subscription,
};
use tokio::time::Instant;

use crate::add::job_id;
use crate::lines::InLine;
use crate::name::PREFIX;
use crate::{Envelope, Error, Queue, Result, Type};

/// Due jobs that are looked at to find the oldest.
const BACKLOG: usize = 1_000;

/// A job with its history.
#[derive(Debug, Clone)]
pub struct Shown {
    pub info: Arc<JobInfo>,
    pub envelope: Envelope,
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
    /// With data only if asked for.
    pub jobs: Vec<(JobInfo, Option<Envelope>)>,
    pub next: Option<Cursor>,
}

/// The jobs of a type in numbers.
#[derive(Debug, Clone, Copy)]
pub struct Numbers {
    pub counts: Counts,
    pub backlog: Backlog,
}

/// Follows one job.
#[derive(Debug)]
pub struct Following {
    subscription: Subscription,
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
                (jobs::Outcome::Again, Some(RETURNED)) => "returned",
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
                let found = self.jobs().get_in(&tx, &ty.ty, id).await?;
                let (info, data) = found.ok_or(Error::NoJob)?;
                let runs = self.jobs().history_in(&tx, &ty.ty, id).await?;
                Ok(Shown {
                    info: Arc::new(info),
                    envelope: Envelope::decode(data)?,
                    runs: runs.iter().map(Run::of).collect(),
                })
            })
            .await
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
            data: with_data,
            ..Query::default()
        };
        let page = self.jobs().list(&ty.ty, &query, after, limit).await?;
        let jobs = page.jobs.into_iter().map(|listed| {
            let envelope = listed.data.map(Envelope::decode).transpose()?;
            Ok((listed.info, envelope))
        });
        Ok(Listing {
            jobs: jobs.collect::<Result<_>>()?,
            next: page.cursor,
        })
    }

    /// How many jobs a type has.
    pub async fn numbers(&self, ty: &Type) -> Result<Numbers> {
        self.numbers_of(&ty.ty).await
    }

    async fn numbers_of(&self, ty: &JobType) -> Result<Numbers> {
        let now_ms = self.jobs().clock().now_ms();
        Ok(Numbers {
            counts: self.jobs().counts(ty).await?,
            backlog: self.jobs().backlog(ty, now_ms, BACKLOG).await?,
        })
    }

    /// The service's own types.
    pub async fn own_types(&self) -> Result<Vec<(String, Numbers)>> {
        let mut own = Vec::new();
        for ty in self.jobs().types().await?.into_keys() {
            if !ty.as_str().starts_with(PREFIX) {
                own.push((ty.as_str().to_owned(), self.numbers_of(&ty).await?));
            }
        }
        Ok(own)
    }

    /// Follows a job, from its present state on.
    pub async fn follow(&self, ty: &Type, id: &str) -> Result<Following> {
        let line = self.enter(ty)?;
        Ok(Following {
            subscription: line.follow().subscribe(&job_id(id)?).await?,
            _line: line,
        })
    }

    /// Waits until a job is finished or dead, or the time is over.
    pub async fn wait(&self, ty: &Type, id: &str, wait: Duration) -> Result<()> {
        let deadline = Instant::now() + wait;
        let mut following = self.follow(ty, id).await?;
        let over = async {
            while let Some(seen) = following.next().await {
                seen?;
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
    /// The state that was seen last.
    pub fn now(&self) -> Result<(Arc<JobInfo>, Envelope)> {
        seen(self.subscription.now().clone())
    }

    /// The next change; `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<(Arc<JobInfo>, Envelope)>> {
        self.subscription.next().await.map(seen)
    }
}

fn seen(notice: Notice) -> Result<(Arc<JobInfo>, Envelope)> {
    match notice {
        Notice::Job(info, data) => Ok((info, Envelope::decode(data)?)),
        Notice::Removed | Notice::TypeCleared => Err(Error::NoJob),
        Notice::Stopped => Err(Error::Stopped),
    }
}
