//! Ends of runs, with or without the next claim.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join_all;
use futures::{FutureExt as _, StreamExt as _, stream};
use jobs::{Finish, Held, Job, JobInfo, State};
use seal::is_sealed;
use serde::{Deserialize, Serialize};

use super::{AT_ONCE, Claim, Claimed, unless_halted};
use crate::add::check_json;
use crate::lines::InLine;
use crate::sealed::REASON;
use crate::{Envelope, Error, Queue, Raw, Result, Seconds, Type, lock};

/// Runs that one transaction ends, and bytes of their data.
const ENDED_MAX: usize = 250;
const ENDED_BYTES_MAX: usize = 1_000_000;

/// The end of a run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ended {
    pub id: String,
    pub lock: String,
    pub outcome: Outcome,
    pub result: Option<Raw>,
    pub error: Option<Raw>,
    pub delay_sec: Option<Seconds>,
    /// `false` if a failed job is not to be retried, whatever the policy of the type.
    pub retry: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Done,
    /// To be retried, by the policy of the type.
    Failed,
    /// To run again, which is no failure.
    Again,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EndedStatus {
    Ok,
    /// An earlier request did it.
    Repeated,
    /// The job is no longer the worker's. Nothing was changed.
    Halt,
}

impl Queue {
    /// Ends runs, and claims jobs in the same transaction if the ends fit into one. Each run has its own answer.
    pub async fn finish(
        &self,
        ty: &Type,
        ended: Vec<Ended>,
        claim: Option<&Claim>,
    ) -> Result<(Vec<EndedStatus>, Claimed)> {
        let ended = decode(ty, ended)?;
        let jobs = ended
            .iter()
            .map(|ended| ended.as_ref().map(|(job, ..)| job.clone()));
        let jobs: Vec<Option<Job>> = jobs.collect();
        let mut held = Vec::with_capacity(jobs.len());
        let mut claimed = self.claimed(ty, Vec::new()).await?;
        let ends = ended
            .into_iter()
            .flatten()
            .map(|(job, has_more, end)| self.end(ty, job, has_more, end).boxed());
        let ends: Vec<_> = ends.collect();
        // The data of all jobs together may be large, so it is read for one part after another.
        let mut ends = pin!(stream::iter(ends).buffered(AT_ONCE).peekable());
        // A job that cannot be read here does not keep other runs from ending. The worker repeats the whole request.
        let mut failed = None;
        loop {
            let mut part = Part::default();
            while let Some(run) = ends.as_mut().next_if(|run| part.has_room(run)).await {
                match run {
                    Ok(run) => part.push(run),
                    Err(error) if error.is_of_form() => failed = failed.or(Some(error)),
                    Err(error) => return Err(error),
                }
            }
            let (runs, is_last) = (part.runs, ends.as_mut().peek().await.is_none());
            match claim.filter(|_| is_last && failed.is_none()) {
                Some(claim) => {
                    let line = self.enter(ty)?;
                    let answers;
                    (answers, claimed) = self.finish_and_claim(ty, runs, claim, &line).await?;
                    held.extend(answers);
                }
                None => held.extend(self.end_many(ty, &runs).await?),
            }
            if is_last {
                break;
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let mut held = held.into_iter();
        let statuses = jobs.iter().map(|job| {
            let held = job.as_ref().and_then(|job| Some((job, held.next()?)));
            async move {
                let Some((job, held)) = held else {
                    return Ok(EndedStatus::Halt);
                };
                match unless_halted(held)? {
                    Some(held) if held.repeated => Ok(EndedStatus::Repeated),
                    Some(_) => Ok(EndedStatus::Ok),
                    None if self.jobs().has_ended(job).await? => Ok(EndedStatus::Repeated),
                    None => Ok::<_, Error>(EndedStatus::Halt),
                }
            }
        });
        Ok((try_join_all(statuses).await?, claimed))
    }

    async fn finish_and_claim(
        &self,
        ty: &Type,
        runs: Vec<Run>,
        claim: &Claim,
        line: &InLine,
    ) -> Result<(Vec<jobs::Result<Held>>, Claimed)> {
        // The acceptor has no keys, and does not read jobs.
        let knows = !runs
            .iter()
            .any(|run| run.is_sealed() || run.is_read_again());
        let acceptor = line.acceptor().filter(|_| knows);
        let Some(acceptor) = acceptor else {
            let held = self.end_many(ty, &runs).await?;
            // The claim may wait for long, and their results may be large.
            drop(runs);
            return Ok((held, self.claim_in(ty, claim, line).await?));
        };
        let holder = Some(claim.holder.clone());
        let wait = claim.left();
        let runs = runs.into_iter().map(|run| (run.job, run.finish)).collect();
        let ended = acceptor.finish_and_accept(runs, holder, claim.count, wait);
        let (held, accepted) = ended.await?;
        let (any, claimed) = (!accepted.is_empty(), self.claimed(ty, accepted).await?);
        if claimed.jobs.is_empty() && (any || !claim.left().is_zero()) {
            // None of them can be read, or the type was paused meanwhile.
            return Ok((held, self.claim_in(ty, claim, line).await?));
        }
        Ok((held, claimed))
    }

    /// Ends runs in one transaction.
    async fn end_many(&self, ty: &Type, runs: &[Run]) -> Result<Vec<jobs::Result<Held>>> {
        let op = &self.jobs().op();
        (self.jobs().store())
            .transact("finish", |tx| async move {
                let tx = &tx;
                let ends = runs.iter().map(|run| async move {
                    let mut finish = run.finish.clone();
                    if run.is_read_again() {
                        let read = self.jobs().get_in(tx, &run.job.ty, &run.job.id).await?;
                        finish.data = self.ended(ty, run, read)?;
                    }
                    Ok::<_, Error>((run.job.clone(), finish))
                });
                let ends = &try_join_all(ends).await?;
                let data = ends.iter().filter_map(|(_, finish)| finish.data.as_ref());
                self.sealing_in(tx, data.filter(|data| is_sealed(data)))
                    .await?;
                Ok(self.jobs().finish_many_in(tx, op, ends).await?)
            })
            .await
    }

    /// How a run ends in the queue.
    async fn end(&self, ty: &Type, job: Job, has_more: bool, end: Ended) -> Result<Run> {
        let reads = has_more
            || end.result.is_some()
            || end.error.is_some()
            || end.outcome == Outcome::Failed;
        let read = if reads {
            self.jobs().get(&job.ty, &job.id).await?
        } else {
            None
        };
        let failures = read.as_ref().map_or(0, |(info, _)| info.stalls);
        let now_ms = self.jobs().clock().now_ms();
        let later = |delay: Seconds| match delay.ms() {
            0 => 0,
            _ => now_ms.saturating_add(delay.ms_signed()),
        };
        let finish = match end.outcome {
            Outcome::Done => Finish::done(),
            Outcome::Again => Finish::again(later(end.delay_sec.unwrap_or_default())),
            Outcome::Failed => {
                let reason = match &end.error {
                    None => "failed".to_owned(),
                    Some(_) if ty.settings.sealed => REASON.to_owned(),
                    Some(error) => error.summary(),
                };
                let luck = self
                    .jobs()
                    .entropy()
                    .up_to(Duration::from_secs(1))
                    .as_secs_f64();
                let retry = (ty.settings.retry).wait_ms(failures.saturating_add(1), luck);
                match retry.filter(|_| end.retry != Some(false)) {
                    None => Finish::dead(reason),
                    Some(wait_ms) => Finish {
                        again_ms: Some(match end.delay_sec {
                            Some(delay) => later(delay),
                            None if wait_ms == 0 => 0,
                            None => now_ms.saturating_add(wait_ms),
                        }),
                        ..Finish::failed(reason)
                    },
                }
            }
        };
        let mut run = Run { job, finish, end };
        let data = self.ended(ty, &run, read);
        run.finish.data = data.map_err(|error| of_job(&run.end.id, error))?;
        Ok(run)
    }

    /// The data of a job whose run ends, if it changes. A run that is over changes nothing, so its job need not be
    /// readable.
    fn ended(&self, ty: &Type, run: &Run, read: Option<Read>) -> Result<Option<Bytes>> {
        let Run { job, end, .. } = run;
        let held =
            read.filter(|(info, _)| info.state == State::Running && info.attempts == job.attempt);
        let Some((_, data)) = held else {
            return Ok(None);
        };
        let old = self.unpack(&job.ty, &job.id, data)?;
        let result = end.result.clone();
        let new = Envelope {
            error: end.error.clone(),
            result: match end.outcome {
                Outcome::Done => result,
                _ => result.or(old.result.clone()),
            },
            ..old.clone()
        };
        let data = (new != old).then(|| self.pack(ty, &job.id, &new));
        data.transpose()
    }
}

/// The jobs, and whether they have more than data; `None` for those that are not held.
fn decode(ty: &Type, ended: Vec<Ended>) -> Result<Vec<Option<(Job, bool, Ended)>>> {
    let several = ended.len() > 1;
    let decoded = ended.into_iter().enumerate().map(|(nth, end)| {
        let checked = check_json(ty, "result", end.result.as_ref())
            .and_then(|()| check_json(ty, "error", end.error.as_ref()));
        if let Err(error) = checked {
            return Err(if several {
                of_entry(nth, &end.id, error)
            } else {
                error
            });
        }
        let job = lock::decode(&ty.ty, &end.id, &end.lock);
        Ok(job.map(|(job, has_more)| (job, has_more, end)))
    });
    decoded.collect()
}

/// A refusal of one of several runs, before any was ended.
fn of_entry(nth: usize, id: &str, error: Error) -> Error {
    let nth = nth + 1;
    let named = |why| format!("entry {nth} of `jobs`, with the id `{id}`: {why}; no run was ended");
    match error {
        Error::TooLarge(why) => Error::TooLarge(named(why)),
        Error::Invalid(why) => Error::Invalid(named(why)),
        error => error,
    }
}

fn of_job(id: &str, error: Error) -> Error {
    match error {
        Error::TooLarge(why) => Error::TooLarge(format!("the job `{id}`: {why}")),
        error => error,
    }
}

/// A job as it is in the store.
type Read = (JobInfo, Bytes);

/// A run that ends.
struct Run {
    job: Job,
    finish: Finish,
    end: Ended,
}

impl Run {
    /// Whether its job must be read in the transaction that ends it. A concurrent heartbeat may store progress,
    /// which the next run needs.
    fn is_read_again(&self) -> bool {
        self.finish.data.is_some() && self.end.outcome != Outcome::Done
    }

    fn is_sealed(&self) -> bool {
        self.finish
            .data
            .as_ref()
            .is_some_and(|data| is_sealed(data))
    }

    fn size(&self) -> usize {
        self.finish.data.as_ref().map_or(0, Bytes::len) + 1
    }
}

/// Runs that end in one transaction.
#[derive(Default)]
struct Part {
    runs: Vec<Run>,
    bytes: usize,
}

impl Part {
    fn has_room(&self, run: &Result<Run>) -> bool {
        let bytes = run.as_ref().map_or(0, Run::size);
        let fits = self.runs.len() < ENDED_MAX && self.bytes + bytes <= ENDED_BYTES_MAX;
        self.runs.is_empty() || fits
    }

    fn push(&mut self, run: Run) {
        self.bytes += run.size();
        self.runs.push(run);
    }
}

#[cfg(test)]
mod tests;
