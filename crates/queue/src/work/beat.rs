//! Heartbeats, with progress.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use futures::{FutureExt as _, StreamExt as _, stream};
use jobs::{Held, Job, millis};
use serde::{Deserialize, Serialize};

use super::{AT_ONCE, unless_halted};
use crate::add::check_json;
use crate::{Envelope, Error, Queue, Raw, Result, Seconds, Type, given, lock};

/// Heartbeats in one transaction.
const BEATS: usize = 100;

/// A heartbeat.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beat {
    pub id: String,
    pub lock: String,
    /// `null` replaces earlier progress, too.
    #[serde(default, deserialize_with = "given")]
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
#[derive(Debug, Clone)]
pub struct Beaten {
    pub status: BeatStatus,
    /// Unless it is halted.
    pub deadline_ms: Option<i64>,
    /// Why its progress was not stored. It is a heartbeat nevertheless.
    pub refused: Option<Error>,
}

impl Queue {
    /// Sends heartbeats. Each has its own answer. Also returns how long the worker may be silent.
    pub async fn beat(&self, ty: &Type, beats: &[Beat]) -> Result<(Vec<Beaten>, Seconds)> {
        let jobs = beats
            .iter()
            .map(|beat| lock::decode(&ty.ty, &beat.id, &beat.lock).map(|(job, _)| job));
        let jobs: Vec<Option<Job>> = jobs.collect();
        let (mut plain, mut others) = (Vec::new(), Vec::new());
        let mut refused: Vec<Option<Error>> = vec![None; beats.len()];
        for (nth, beat) in beats.iter().enumerate() {
            refused[nth] = check_json(ty, "progress", beat.progress.as_ref()).err();
            match &beat.progress {
                Some(progress) if refused[nth].is_none() => others.push((nth, progress)),
                _ => plain.push(nth),
            }
        }
        let mut answers = vec![None; beats.len()];
        self.keep(&jobs, &plain, &mut answers).await?;
        let progressing = others.into_iter().filter_map(|(nth, progress)| {
            let job = jobs[nth].as_ref()?;
            Some(async move { (nth, self.progress(ty, job, progress).await) }.boxed())
        });
        let progressing: Vec<_> = progressing.collect();
        let mut progressing = stream::iter(progressing).buffer_unordered(AT_ONCE);
        plain.clear();
        while let Some((nth, held)) = progressing.next().await {
            match held {
                Ok(held) => answers[nth] = held,
                Err(error) if is_refusal(&error) => {
                    refused[nth] = Some(error);
                    plain.push(nth);
                }
                Err(error) => return Err(error),
            }
        }
        self.keep(&jobs, &plain, &mut answers).await?;
        let now_ms = self.jobs().clock().now_ms();
        let held = answers.iter().zip(&jobs);
        let held = held.filter_map(|(held, job)| held.and(job.as_ref()));
        let timeout = self.timeout(ty, held).await;
        let answers = answers.into_iter().zip(&jobs).zip(refused);
        let answers = answers.map(|((held, job), refused)| Beaten {
            status: match held {
                None => BeatStatus::Halt,
                Some(held) if held.again => BeatStatus::Again,
                Some(_) => BeatStatus::Held,
            },
            deadline_ms: (held.zip(job.as_ref()))
                .map(|(_, job)| now_ms.saturating_add(millis(job.timeout()))),
            refused,
        });
        Ok((answers.collect(), timeout))
    }

    /// Heartbeats of some of these jobs, without progress.
    async fn keep(
        &self,
        jobs: &[Option<Job>],
        which: &[usize],
        to: &mut [Option<Held>],
    ) -> Result<()> {
        let held = (which.iter()).filter_map(|nth| Some((*nth, jobs[*nth].as_ref()?)));
        let mut left: Vec<_> = held.collect();
        while !left.is_empty() {
            // A transaction cannot read a heartbeat that it has written, so it has at most one of each job.
            let (mut part, mut seen) = (Vec::new(), BTreeSet::new());
            left.retain(|(nth, job)| {
                let has_room = part.len() < BEATS && seen.insert(job.id.as_bytes());
                if has_room {
                    part.push((*nth, *job));
                }
                !has_room
            });
            for (nth, held) in self.keep_some(&part).await? {
                to[nth] = held;
            }
        }
        Ok(())
    }

    /// Heartbeats in one transaction; `None` for lost jobs.
    async fn keep_some(&self, jobs: &[(usize, &Job)]) -> Result<Vec<(usize, Option<Held>)>> {
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
}

/// Whether the progress is at fault, or the job that it is to be stored in.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::TooLarge(_) | Error::Invalid(_)) || error.is_of_form()
}
