//! Predicts the queue's answers and state: applies the [rules](crate::testing::rules) to all jobs, with
//! the locks, times and histories that a script knows.

use std::collections::BTreeMap;

use super::calls::{Asked, Call, Circumstances, Refusal, Reply, Wanted};
use super::script::{At, TYPES};
use crate::testing::rules::{self, Ask, Ended, Token};
use crate::{Accepted, Added, Held, Job, JobLock, Outcome, State, TypeConfig, Verdict};

/// The whole queue.
#[derive(Clone, Default)]
pub(super) struct Expected {
    pub(super) now_ms: i64,
    /// `None` if not registered.
    pub(super) types: [Option<TypeConfig>; TYPES],
    /// Includes removed jobs.
    pub(super) jobs: BTreeMap<At, ExpectedJob>,
    /// What holders have counted in the transactions of their calls.
    pub(super) effects: i64,
}

#[derive(Clone, Default)]
pub(super) struct ExpectedJob {
    pub(super) job: rules::Job,
    pub(super) created_ms: i64,
    pub(super) runs: Vec<Run>,
    /// When it finished or died, and when it expires.
    pub(super) finished: Option<(i64, Option<i64>)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Run {
    pub(super) holder: usize,
    pub(super) started_ms: i64,
    pub(super) end: Option<(i64, Outcome)>,
    pub(super) lock: JobLock,
}

impl Run {
    fn was_ended_by(&self, lock: JobLock) -> bool {
        let by_holder = (self.end).is_some_and(|(_, outcome)| outcome.by_holder());
        self.lock == lock && by_holder
    }
}

impl ExpectedJob {
    /// What follows from a creator's call.
    fn added(&mut self, added: Added, now_ms: i64) {
        match added {
            Added::Created => {
                *self = Self {
                    job: std::mem::take(&mut self.job),
                    created_ms: now_ms,
                    ..Self::default()
                };
            }
            Added::Revived => self.finished = None,
            _ => {}
        }
    }

    /// Ends the current run.
    fn end_run(&mut self, now_ms: i64, outcome: Outcome) {
        if let Some(run) = self.runs.last_mut() {
            run.end = Some((now_ms, outcome));
        }
        let kept_ms = self.job.kept_ms.and_then(|ms| i64::try_from(ms).ok());
        self.finished = match self.job.state {
            Some(State::Finished) => Some((now_ms, kept_ms.map(|ms| now_ms + ms))),
            Some(State::Dead) => Some((now_ms, None)),
            _ => None,
        };
    }
}

impl Expected {
    /// Applies a call, and checks its answer.
    pub(super) fn apply(
        &mut self,
        call: &Call,
        reply: &Reply,
        how: Circumstances,
    ) -> Result<(), String> {
        let should = match (call, reply) {
            (Call::Accept(claim), Reply::Claimed(jobs, next_due_ms)) => {
                return self.accept(claim, jobs, *next_due_ms, how);
            }
            (Call::Accept(_), reply) => return Err(format!("a claim was answered {reply:?}")),
            (Call::Add { ty, asks }, _) => self.add(*ty, asks, how),
            (Call::Signal { ty, asks, create }, _) => self.signal(*ty, asks, *create, how),
            (Call::Resubmit { at, due_ms, data }, _) => {
                let ask = Ask {
                    create: None,
                    due_ms: *due_ms,
                    data: *data,
                };
                match self.ask(*at, &ask) {
                    Some(Added::Unchanged) => Reply::Added(vec![Added::Unchanged]),
                    Some(_) if how.again => Reply::Added(vec![Added::Repeated]),
                    Some(added) => Reply::Added(vec![added]),
                    None => Reply::Refused(Refusal::NotFound),
                }
            }
            (Call::Retry(at), _) => match self.present(*at).map(|job| job.job.state) {
                Some(Some(State::Dead)) => {
                    let ask = Ask {
                        create: None,
                        due_ms: Some(0),
                        data: None,
                    };
                    self.ask(*at, &ask);
                    Reply::Retried(true)
                }
                Some(_) => Reply::Retried(false),
                None => Reply::Refused(Refusal::NotFound),
            },
            (Call::Remove(at), _) => match self.present(*at) {
                Some(job) => {
                    job.job.remove();
                    Reply::Removed
                }
                None => Reply::Refused(Refusal::NotFound),
            },
            (Call::Update(run, data), _) => self.hold(run.at, &run.job, how, |job| {
                job.update(*data);
            }),
            (Call::RunAgain(run, due_ms, data), _) => self.hold(run.at, &run.job, how, |job| {
                job.run_again(Some(*due_ms), *data);
            }),
            (Call::Finish(ends), _) => {
                let answers = ends
                    .iter()
                    .map(|(run, end)| self.finish(run.at, &run.job, end, how));
                let answers: Vec<_> = answers.collect();
                match (&*answers, ends.len()) {
                    ([Err(refusal)], 1) => Reply::Refused(refusal.clone()),
                    _ => Reply::Ended(answers),
                }
            }
        };
        // A repeated call is answered by the job's state after the whole transaction.
        let batch = matches!(call, Call::Finish(ends) if ends.len() > 1);
        let stands = how.again && (how.together || batch);
        if *reply == should || stands && reply.ignoring_again() == should.ignoring_again() {
            Ok(())
        } else {
            Err(format!(
                "was answered {reply:?} and should have been {should:?}"
            ))
        }
    }

    /// A job that was not removed.
    fn present(&mut self, at: At) -> Option<&mut ExpectedJob> {
        (self.jobs.get_mut(&at)).filter(|job| job.job.state.is_some())
    }

    fn add(&mut self, ty: usize, asks: &[Asked], how: Circumstances) -> Reply {
        let Some(config) = self.types[ty] else {
            return Reply::Refused(Refusal::NoType);
        };
        let added = asks.iter().filter_map(|ask| {
            let wanted = ask.wanted(config.retention_ms);
            self.ask(At { ty, id: ask.id }, &wanted)
        });
        let mut added: Vec<_> = added.collect();
        if how.again {
            // For each job, all requests up to the last that wrote something are recognised.
            for (nth, ask) in asks.iter().enumerate() {
                let of_job = asks[nth..].iter().zip(&added[nth..]);
                let mut later = of_job.filter(|(other, _)| other.id == ask.id);
                if later.any(|(_, added)| *added != Added::Unchanged) {
                    added[nth] = Added::Repeated;
                }
            }
        }
        Reply::Added(added)
    }

    fn signal(&mut self, ty: usize, asks: &[Asked], create: bool, how: Circumstances) -> Reply {
        let Some(config) = self.types[ty] else {
            return Reply::Refused(Refusal::NoType);
        };
        let now_ms = self.now_ms;
        let added = asks.iter().map(|ask| {
            let mut wanted = ask.wanted(config.retention_ms);
            wanted.create = wanted.create.filter(|_| create);
            let job = self.jobs.entry(At { ty, id: ask.id }).or_default();
            let added = job.job.signal(&wanted, now_ms);
            job.added(added, now_ms);
            match added {
                // A signal that is repeated finds the job as it has left it.
                added if how.again && added != Added::Ignored => Added::Unchanged,
                added => added,
            }
        });
        Reply::Added(added.collect())
    }

    fn ask(&mut self, at: At, ask: &Ask) -> Option<Added> {
        let job = self.jobs.entry(at).or_default();
        let added = job.job.ask(ask)?;
        job.added(added, self.now_ms);
        Some(added)
    }

    fn accept(
        &mut self,
        claim: &Wanted,
        jobs: &[(At, Accepted, Token)],
        next_due_ms: Option<i64>,
        how: Circumstances,
    ) -> Result<(), String> {
        let (ty, pending) = (claim.ty, Some(State::Pending));
        let waiting = (self.jobs.iter())
            .filter(|(at, job)| at.ty == ty && job.job.state == pending)
            .filter_map(|(_, job)| job.job.due_ms);
        let is_due = |due_ms: i64| due_ms <= claim.horizon_ms || due_ms == 0;
        let due = waiting.clone().filter(|due_ms| is_due(*due_ms)).count();
        let found = jobs.len();
        if found > claim.count || (found < claim.count.min(due) && !how.racing) {
            return Err(format!("got {found} jobs, wanted {} of {due}", claim.count));
        }
        let next = waiting.min().filter(|_| found == 0);
        if next_due_ms != next && !how.racing {
            return Err(format!(
                "said that the next is due {next_due_ms:?} and not {next:?}"
            ));
        }
        for (at, accepted, data) in jobs {
            let Some(job) = (self.jobs.get_mut(at)).filter(|job| job.job.state == pending) else {
                return Err(format!("got {at:?}, which is not pending"));
            };
            let should = &job.job;
            let wrong = [
                ("too early", at.ty == ty && !is_due(accepted.due_ms)),
                ("of another type", at.ty != ty),
                ("with other data", Some(*data) != should.data),
                ("with another time", Some(accepted.due_ms) != should.due_ms),
                ("with other stalls", accepted.stalls != should.stalls),
                ("with another signal", accepted.asked_ms != should.asked_ms),
                (
                    "made at another time",
                    accepted.created_ms != job.created_ms,
                ),
                (
                    "of another number",
                    accepted.job.attempt != should.attempts + 1,
                ),
            ];
            if let Some((wrong, _)) = wrong.iter().find(|(_, wrong)| *wrong) {
                return Err(format!("got {at:?} {wrong}: {accepted:?}"));
            }
            job.job.accept(Some(accepted.job.lock));
            job.runs.push(Run {
                holder: claim.holder,
                started_ms: self.now_ms,
                end: None,
                lock: accepted.job.lock,
            });
        }
        Ok(())
    }

    /// Applies an operation that only the holder may do.
    fn hold(
        &mut self,
        at: At,
        held: &Job,
        how: Circumstances,
        act: impl FnOnce(&mut rules::Job),
    ) -> Reply {
        let job = self.jobs.get_mut(&at);
        let Some(job) = job.filter(|job| job.job.is_held_by(held.lock)) else {
            return Reply::Refused(Refusal::Halt);
        };
        act(&mut job.job);
        self.effects += 1;
        Reply::Held(Held {
            again: job.job.next.is_some(),
            repeated: how.again,
        })
    }

    fn finish(
        &mut self,
        at: At,
        held: &Job,
        end: &Ended,
        how: Circumstances,
    ) -> Result<Held, Refusal> {
        let now_ms = self.now_ms;
        let job = self.present(at).ok_or(Refusal::Halt)?;
        if !job.job.is_held_by(held.lock) {
            let mut known = job.runs.iter().rev();
            let last = known.next().is_some_and(|run| run.was_ended_by(held.lock));
            // After a lost answer, a caller cannot distinguish this end from an earlier one of its own.
            let ended = last || how.unsure && known.take(10).any(|run| run.was_ended_by(held.lock));
            let again = !job.job.state.is_some_and(State::is_over);
            let repeated = true;
            return (ended.then_some(Held { again, repeated })).ok_or(Refusal::Halt);
        }
        let outcome = match end.again_ms {
            Some(_) => Outcome::Again,
            None if end.failed || end.dead => Outcome::Failed,
            None => Outcome::Done,
        };
        let again = job.job.finish(end);
        job.end_run(now_ms, outcome);
        self.effects += 1;
        Ok(Held {
            again,
            repeated: how.again,
        })
    }
}

/// Changes without a call.
impl Expected {
    /// Recovers the jobs of these silent holders, and removes expired jobs.
    pub(super) fn maintain(&mut self, silent: &[(At, Job)], verdict: &Verdict) {
        let now_ms = self.now_ms;
        for (at, held) in silent {
            let job = (self.jobs.get_mut(at)).filter(|job| job.job.is_held_by(held.lock));
            let (Some(config), Some(job)) = (self.types[at.ty], job) else {
                continue;
            };
            let healthy_ms = i64::try_from(config.stalls.healthy_ms).unwrap_or(i64::MAX);
            let lasted_ms = job.runs.last().map_or(0, |run| now_ms - run.started_ms);
            let healthy = healthy_ms > 0 && lasted_ms > healthy_ms;
            job.job
                .stall(verdict, &config.stalls, healthy, Some(now_ms));
            let gave_up = job.job.state == Some(State::Dead);
            job.end_run(
                now_ms,
                if gave_up {
                    Outcome::GaveUp
                } else {
                    Outcome::Stalled
                },
            );
        }
        for (at, job) in &mut self.jobs {
            let expires_ms = job.finished.and_then(|(_, expires_ms)| expires_ms);
            let expired = expires_ms.is_some_and(|at_ms| at_ms <= now_ms);
            if self.types[at.ty].is_some() && expired && job.job.state.is_some() {
                job.job.remove();
            }
        }
    }
}
