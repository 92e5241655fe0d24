//! What workers do: they claim jobs, send heartbeats with progress, and end runs.

use std::time::Duration;

use futures::future::try_join_all;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use jobs::{Accepted, Finish, Held, Holder, Job};
use seal::is_sealed;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::add::check_size;
use crate::lines::InLine;
use crate::sealed::REASON;
use crate::{Envelope, Error, Queue, Raw, Result, Seconds, Type, lock};

/// The longest that a claim waits.
pub const WAIT_MAX: Seconds = Seconds::new(60);
/// Runs that one transaction ends, and bytes of their data.
const ENDED_MAX: usize = 250;
const ENDED_BYTES_MAX: usize = 1_000_000;
/// Heartbeats in one transaction.
const BEATS: usize = 100;
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
    /// How long the worker may be silent.
    pub timeout: Seconds,
}

/// Who claims how many jobs, and how long it waits for the first.
#[derive(Debug, Clone)]
pub struct Claim {
    holder: Holder,
    count: usize,
    deadline: Instant,
}

/// A heartbeat.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beat {
    pub id: String,
    pub lock: String,
    pub progress: Option<Raw>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BeatStatus {
    Held,
    /// The job is no longer the worker's: stop.
    Halt,
    /// It is held, and will run again with newer data: the worker may stop early.
    Again,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beaten {
    pub status: BeatStatus,
    /// Unless it is halted.
    pub deadline_ms: Option<i64>,
}

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
        while let Some(acceptor) = line.acceptor_by(claim.deadline).await {
            let holder = Some(claim.holder.clone());
            match acceptor.accept_as(holder, claim.count, claim.left()).await {
                Ok(jobs) => {
                    let (any, claimed) = (!jobs.is_empty(), self.claimed(ty, jobs));
                    // None of them can be read, so they are not due any more.
                    if any && claimed.jobs.is_empty() {
                        continue;
                    }
                    return Ok(claimed);
                }
                // The type was paused.
                Err(jobs::Error::Stopped) => {
                    if !line.changed_by(claim.deadline).await {
                        break;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.claimed(ty, Vec::new()))
    }

    /// The jobs that can be read. The runs of others end.
    fn claimed(&self, ty: &Type, accepted: Vec<Accepted>) -> Claimed {
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
        claimed
    }

    /// Ends runs that no worker has seen, in the background.
    fn end_unused(&self, runs: Vec<(Job, Finish)>) {
        if runs.is_empty() {
            return;
        }
        let queue = self.clone();
        self.start(async move {
            if let Err(error) = queue.jobs().finish_many(&runs).await {
                tracing::warn!(jobs = runs.len(), %error, "cannot end runs that no worker has seen");
            }
        });
    }

    /// Sends heartbeats. Each has its own answer.
    pub async fn beat(&self, ty: &Type, beats: &[Beat]) -> Result<Vec<Beaten>> {
        let mut jobs = Vec::with_capacity(beats.len());
        for beat in beats {
            check_size(ty, "progress", beat.progress.as_ref())?;
            jobs.push(lock::decode(&ty.ty, &beat.id, &beat.lock)?.0);
        }
        let (mut plain, mut others) = (Vec::new(), Vec::new());
        for (nth, beat) in beats.iter().enumerate() {
            match &beat.progress {
                None => plain.push(nth),
                Some(progress) => others.push((nth, progress)),
            }
        }
        let mut answers = vec![None; beats.len()];
        for part in plain.chunks(BEATS) {
            let part: Vec<_> = part.iter().map(|nth| (*nth, &jobs[*nth])).collect();
            for (nth, held) in self.keep(&part).await? {
                answers[nth] = held;
            }
        }
        let progressing = others.into_iter().map(|(nth, progress)| {
            let job = &jobs[nth];
            async move { Ok::<_, Error>((nth, self.progress(ty, job, progress).await?)) }.boxed()
        });
        let progressing: Vec<_> = progressing.collect();
        let mut progressing = stream::iter(progressing).buffer_unordered(AT_ONCE);
        while let Some((nth, held)) = progressing.try_next().await? {
            answers[nth] = held;
        }
        let now_ms = self.jobs().clock().now_ms();
        let answers = answers.into_iter().zip(&jobs).map(|(held, job)| Beaten {
            status: match held {
                None => BeatStatus::Halt,
                Some(held) if held.again => BeatStatus::Again,
                Some(_) => BeatStatus::Held,
            },
            deadline_ms: held.map(|_| now_ms.saturating_add(millis(job.timeout()))),
        });
        Ok(answers.collect())
    }

    /// Heartbeats in one transaction; `None` for lost jobs.
    async fn keep(&self, jobs: &[(usize, &Job)]) -> Result<Vec<(usize, Option<Held>)>> {
        let op = &self.jobs().op();
        (self.jobs().store())
            .transact("keep", |tx| async move {
                let tx = &tx;
                let beats = jobs.iter().map(|(nth, job)| async move {
                    let held = self.jobs().beat_with_in(tx, op, job, None).await;
                    Ok::<_, Error>((*nth, unless_halted(held)?))
                });
                try_join_all(beats).await
            })
            .await
    }

    /// A heartbeat that replaces the progress of a job; `None` for a lost one.
    async fn progress(&self, ty: &Type, job: &Job, progress: &Raw) -> Result<Option<Held>> {
        let op = &self.jobs().op();
        (self.jobs().store())
            .transact("progress", |tx| async move {
                let Some((_, data)) = self.jobs().get_in(&tx, &job.ty, &job.id).await? else {
                    return Ok(None);
                };
                let envelope = Envelope {
                    progress: Some(progress.clone()),
                    ..self.unpack(&job.ty, &job.id, data)?
                };
                let data = self.pack(ty, &job.id, &envelope)?;
                self.sealing_in(&tx, std::iter::once(&data)).await?;
                unless_halted(self.jobs().beat_with_in(&tx, op, job, Some(data)).await)
            })
            .await
    }

    /// Ends runs, and claims jobs in the same transaction if the ends fit into one. Each run has its own answer.
    pub async fn finish(
        &self,
        ty: &Type,
        ended: Vec<Ended>,
        claim: Option<&Claim>,
    ) -> Result<(Vec<EndedStatus>, Claimed)> {
        let mut runs = self.ends(ty, ended).await?;
        let jobs: Vec<Job> = runs.iter().map(|(job, _)| job.clone()).collect();
        let mut held = Vec::with_capacity(runs.len());
        let mut claimed = self.claimed(ty, Vec::new());
        loop {
            let rest = runs.split_off(fitting(&runs));
            let is_last = rest.is_empty();
            match claim.filter(|_| is_last) {
                Some(claim) => {
                    let line = self.enter(ty)?;
                    let answers;
                    (answers, claimed) = self.finish_and_claim(ty, runs, claim, &line).await?;
                    held.extend(answers);
                }
                None => held.extend(self.end_many(&runs).await?),
            }
            if is_last {
                break;
            }
            runs = rest;
        }
        let statuses = held.into_iter().zip(&jobs).map(|(held, job)| async move {
            match unless_halted(held)? {
                Some(held) if held.repeated => Ok(EndedStatus::Repeated),
                Some(_) => Ok(EndedStatus::Ok),
                None if self.jobs().has_ended(job).await? => Ok(EndedStatus::Repeated),
                None => Ok::<_, Error>(EndedStatus::Halt),
            }
        });
        Ok((try_join_all(statuses).await?, claimed))
    }

    async fn finish_and_claim(
        &self,
        ty: &Type,
        runs: Vec<(Job, Finish)>,
        claim: &Claim,
        line: &InLine,
    ) -> Result<(Vec<jobs::Result<Held>>, Claimed)> {
        // The acceptor's transactions know no keys.
        let acceptor = line.acceptor().filter(|_| sealed(&runs).next().is_none());
        let Some(acceptor) = acceptor else {
            let held = self.end_many(&runs).await?;
            return Ok((held, self.claim_in(ty, claim, line).await?));
        };
        let holder = Some(claim.holder.clone());
        let wait = claim.left();
        let ended = acceptor.finish_and_accept(runs, holder, claim.count, wait);
        let (held, accepted) = ended.await?;
        let (any, claimed) = (!accepted.is_empty(), self.claimed(ty, accepted));
        if claimed.jobs.is_empty() && (any || !claim.left().is_zero()) {
            // None of them can be read, or the type was paused meanwhile.
            return Ok((held, self.claim_in(ty, claim, line).await?));
        }
        Ok((held, claimed))
    }

    /// Ends runs in one transaction.
    async fn end_many(&self, runs: &[(Job, Finish)]) -> Result<Vec<jobs::Result<Held>>> {
        let op = &self.jobs().op();
        (self.jobs().store())
            .transact("finish", |tx| async move {
                self.sealing_in(&tx, sealed(runs)).await?;
                Ok(self.jobs().finish_many_in(&tx, op, runs).await?)
            })
            .await
    }

    /// How the runs end in the queue.
    async fn ends(&self, ty: &Type, ended: Vec<Ended>) -> Result<Vec<(Job, Finish)>> {
        let mut decoded = Vec::with_capacity(ended.len());
        for end in ended {
            check_size(ty, "result", end.result.as_ref())?;
            check_size(ty, "error", end.error.as_ref())?;
            let (job, has_more) = lock::decode(&ty.ty, &end.id, &end.lock)?;
            decoded.push((job, has_more, end));
        }
        let ends = decoded.into_iter().map(|(job, has_more, end)| {
            let ending = async move {
                let finish = self.end(ty, &job, has_more, end).await?;
                Ok::<_, Error>((job, finish))
            };
            ending.boxed()
        });
        let ends: Vec<_> = ends.collect();
        stream::iter(ends).buffered(AT_ONCE).try_collect().await
    }

    async fn end(&self, ty: &Type, job: &Job, has_more: bool, end: Ended) -> Result<Finish> {
        let reads = has_more
            || end.result.is_some()
            || end.error.is_some()
            || end.outcome == Outcome::Failed;
        // What a run ends with changes only by its worker.
        let read = if reads {
            self.jobs().get(&job.ty, &job.id).await?
        } else {
            None
        };
        let (failures, data) = match read {
            None => (0, None),
            Some((info, data)) => {
                let old = self.unpack(&job.ty, &job.id, data)?;
                let new = Envelope {
                    error: end.error.clone(),
                    result: match end.outcome {
                        Outcome::Done => end.result,
                        _ => end.result.or(old.result.clone()),
                    },
                    ..old.clone()
                };
                let data = (new != old).then(|| self.pack(ty, &job.id, &new));
                (info.stalls, data.transpose()?)
            }
        };
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
        Ok(Finish { data, ..finish })
    }
}

/// How many of these runs end in one transaction.
fn fitting(runs: &[(Job, Finish)]) -> usize {
    let mut bytes = 0;
    let fitting = runs.iter().take(ENDED_MAX).take_while(|(_, finish)| {
        let first = bytes == 0;
        bytes += finish.data.as_ref().map_or(0, bytes::Bytes::len) + 1;
        first || bytes <= ENDED_BYTES_MAX
    });
    fitting.count()
}

/// The sealed data that runs end with.
fn sealed(runs: &[(Job, Finish)]) -> impl Iterator<Item = &bytes::Bytes> {
    let data = runs.iter().filter_map(|(_, finish)| finish.data.as_ref());
    data.filter(|data| is_sealed(data))
}

fn unless_halted(held: jobs::Result<Held>) -> Result<Option<Held>> {
    match held {
        Ok(held) => Ok(Some(held)),
        Err(jobs::Error::Halt) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
