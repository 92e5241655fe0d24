//! The queue as its documentation describes it, in memory and without transactions, indexes, shards
//! or locks of its own: what every script is compared with.

use std::collections::BTreeMap;

use super::calls::{Asked, Call, Ended, How, Refusal, Reply, Wanted};
use super::queue::{
    Accepted, Added, Counts, Held, Job, JobLock, Outcome, StallPolicy, State, TypeConfig,
};
use super::script::{self, At, TYPES, Token};

/// Everything there is.
#[derive(Clone, Default)]
pub(super) struct Plain {
    pub(super) now_ms: i64,
    /// `None`: not registered.
    pub(super) types: [Option<TypeConfig>; TYPES],
    pub(super) counts: [Counts; TYPES],
    pub(super) jobs: BTreeMap<At, PlainJob>,
    /// What holders have counted in the transactions of their calls.
    pub(super) effects: i64,
}

#[derive(Clone)]
pub(super) struct PlainJob {
    pub(super) state: State,
    pub(super) due_ms: i64,
    pub(super) created_ms: i64,
    pub(super) data: Token,
    pub(super) stalls: u32,
    pub(super) kept_ms: Option<u64>,
    pub(super) next: Option<Next>,
    pub(super) runs: Vec<Run>,
    /// When it finished and when it is forgotten.
    pub(super) finished: Option<(i64, Option<i64>)>,
}

#[derive(Clone, PartialEq)]
pub(super) struct Next {
    pub(super) due_ms: i64,
    data: Option<Token>,
    by_creator: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Run {
    pub(super) holder: usize,
    pub(super) started_ms: i64,
    pub(super) end: Option<(i64, Outcome)>,
    pub(super) lock: JobLock,
}

/// How long a job is to be kept after it has finished.
#[derive(Clone, Copy)]
enum Keep {
    AsBefore,
    For(Option<u64>),
}

impl Keep {
    fn over(self, before_ms: Option<u64>) -> Option<u64> {
        match self {
            Self::AsBefore => before_ms,
            Self::For(kept_ms) => kept_ms,
        }
    }
}

impl Run {
    /// It was ended, and by its holder.
    fn by_holder(&self) -> bool {
        let by_holder =
            |outcome| matches!(outcome, Outcome::Done | Outcome::Failed | Outcome::Again);
        self.end.is_some_and(|(_, outcome)| by_holder(outcome))
    }
}

impl PlainJob {
    fn lock(&self) -> Option<JobLock> {
        let running = self.state == State::Running;
        self.runs.last().filter(|_| running).map(|run| run.lock)
    }

    fn end_run(&mut self, now_ms: i64, outcome: Outcome) {
        if let Some(run) = self.runs.last_mut() {
            run.end = Some((now_ms, outcome));
        }
    }

    /// The holder itself has ended its run, and no other has begun.
    fn was_ended_by(&self, lock: JobLock) -> bool {
        (self.runs.last()).is_some_and(|run| run.lock == lock && run.by_holder())
    }

    /// The history says that the holder itself has ended its run.
    fn has_ended(&self, lock: JobLock) -> bool {
        let known = self.runs.iter().rev().skip(1).take(10);
        known
            .into_iter()
            .any(|run| run.lock == lock && run.by_holder())
    }

    fn ask_again(&mut self, due_ms: i64, data: Option<Token>) {
        let due_ms = due_ms.max(0);
        self.next = Some(match self.next.take() {
            Some(next) if next.by_creator => Next {
                due_ms: next.due_ms.min(due_ms),
                data: next.data.or(data),
                by_creator: true,
            },
            before => Next {
                due_ms,
                data: data.or(before.and_then(|next| next.data)),
                by_creator: false,
            },
        });
    }
}

impl Plain {
    /// A call that was made and answered; says what is wrong with the answer.
    pub(super) fn apply(&mut self, call: &Call, reply: &Reply, how: How) -> Result<(), String> {
        let should = match (call, reply) {
            (Call::Accept(claim), Reply::Claimed(jobs, next_due_ms)) => {
                return self.accept(claim, jobs, *next_due_ms, how);
            }
            (Call::Accept(_), reply) => return Err(format!("a claim was answered {reply:?}")),
            (Call::Add { ty, asks }, _) => self.add(*ty, asks, how),
            (Call::Resubmit { at, due_ms, data }, _) => {
                if self.jobs.contains_key(at) {
                    let added = self.ask(*at, Keep::AsBefore, *due_ms, *data);
                    let again = how.again && added != Added::Unchanged;
                    Reply::Added(vec![if again { Added::Repeated } else { added }])
                } else {
                    Reply::Refused(Refusal::NotFound)
                }
            }
            (Call::Remove(at), _) => {
                if self.forget(*at) {
                    Reply::Removed
                } else {
                    Reply::Refused(Refusal::NotFound)
                }
            }
            (Call::Update(run, data), _) => self.holder(run.at, &run.job, how, |job| {
                job.data = data.unwrap_or(job.data);
            }),
            (Call::RunAgain(run, due_ms, data), _) => {
                self.holder(run.at, &run.job, how, |job| job.ask_again(*due_ms, *data))
            }
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
        // What was done before is answered by how the job stands after the whole transaction.
        let stands = how.again && how.together;
        if *reply == should || stands && reply.but_for_again() == should.but_for_again() {
            Ok(())
        } else {
            Err(format!(
                "was answered {reply:?} and should have been {should:?}"
            ))
        }
    }

    fn add(&mut self, ty: usize, asks: &[Asked], how: How) -> Reply {
        let Some(config) = self.types[ty] else {
            return Reply::Refused(Refusal::NoType);
        };
        let added = asks.iter().map(|ask| {
            let at = At { ty, id: ask.id };
            let kept_ms = match ask.kept {
                script::Kept::AsType => config.retention_ms,
                script::Kept::Forever => None,
                script::Kept::Ms(ms) => Some(ms),
            };
            self.ask(at, Keep::For(kept_ms), Some(ask.due_ms), Some(ask.data))
        });
        let mut added: Vec<_> = added.collect();
        if how.again {
            // Of what was asked for one job, all up to the last that wrote something is recognised.
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

    /// A creator's wish.
    fn ask(&mut self, at: At, keep: Keep, due_ms: Option<i64>, data: Option<Token>) -> Added {
        let due_ms = due_ms.map(|due_ms| due_ms.max(0));
        let Some(job) = self.jobs.get_mut(&at) else {
            let job = PlainJob {
                state: State::Pending,
                due_ms: due_ms.unwrap_or(0),
                created_ms: self.now_ms,
                data: data.unwrap_or(0),
                stalls: 0,
                kept_ms: keep.over(None),
                next: None,
                runs: Vec::new(),
                finished: None,
            };
            self.jobs.insert(at, job);
            self.counts[at.ty].created_total += 1;
            return Added::Created;
        };
        let kept_before = job.kept_ms;
        job.kept_ms = keep.over(kept_before);
        let same_kept = job.kept_ms == kept_before;
        match job.state {
            State::Running => {
                let before = job.next.take();
                let asked_ms = before.as_ref().map(|next| next.due_ms);
                let next = Next {
                    due_ms: due_ms.or(asked_ms).unwrap_or(job.due_ms),
                    data: data.or(before.as_ref().and_then(|next| next.data)),
                    by_creator: true,
                };
                let same = before.as_ref() == Some(&next) && same_kept;
                job.next = Some(next);
                if same {
                    Added::Unchanged
                } else {
                    Added::Deferred
                }
            }
            State::Pending | State::Finished => {
                let (due_ms, data) = (due_ms.unwrap_or(job.due_ms), data.unwrap_or(job.data));
                let pending = job.state == State::Pending;
                if pending && due_ms == job.due_ms && data == job.data && same_kept {
                    return Added::Unchanged;
                }
                (job.due_ms, job.data, job.stalls) = (due_ms, data, 0);
                job.state = State::Pending;
                job.finished = None;
                if pending {
                    return Added::Replaced;
                }
                self.counts[at.ty].revived_total += 1;
                Added::Revived
            }
        }
    }

    /// It is removed, or its time is over; false if there is no such job.
    fn forget(&mut self, at: At) -> bool {
        let there = self.jobs.remove(&at).is_some();
        self.counts[at.ty].removed_total += u64::from(there);
        there
    }

    fn accept(
        &mut self,
        claim: &Wanted,
        jobs: &[(At, Accepted, Token)],
        next_due_ms: Option<i64>,
        how: How,
    ) -> Result<(), String> {
        let ty = claim.ty;
        let of_type = |(at, job): &(&At, &PlainJob)| at.ty == ty && job.state == State::Pending;
        let pending = || self.jobs.iter().filter(of_type);
        let due = pending().filter(|(_, job)| job.due_ms <= claim.horizon_ms || job.due_ms == 0);
        let (due, found) = (due.count(), jobs.len());
        if found > claim.count || (found < claim.count.min(due) && !how.racing) {
            return Err(format!("got {found} jobs, wanted {} of {due}", claim.count));
        }
        let next = pending()
            .map(|(_, job)| job.due_ms)
            .filter(|_| found == 0)
            .min();
        if next_due_ms != next && !how.racing {
            return Err(format!(
                "said that the next is due {next_due_ms:?} and not {next:?}"
            ));
        }
        for (at, accepted, data) in jobs {
            let Some(job) = self
                .jobs
                .get_mut(at)
                .filter(|job| job.state == State::Pending)
            else {
                return Err(format!("got {at:?}, which is not pending"));
            };
            let wrong = [
                (
                    "too early",
                    at.ty == ty && job.due_ms > claim.horizon_ms && job.due_ms != 0,
                ),
                ("of another type", at.ty != ty),
                ("with other data", *data != job.data),
                ("with another time", accepted.due_ms != job.due_ms),
                ("with other stalls", accepted.stalls != job.stalls),
                (
                    "made at another time",
                    accepted.created_ms != job.created_ms,
                ),
                (
                    "of another number",
                    accepted.job.attempt as usize != job.runs.len() + 1,
                ),
            ];
            if let Some((wrong, _)) = wrong.iter().find(|(_, wrong)| *wrong) {
                return Err(format!("got {at:?} {wrong}: {accepted:?}"));
            }
            job.state = State::Running;
            job.runs.push(Run {
                holder: claim.holder,
                started_ms: self.now_ms,
                end: None,
                lock: accepted.job.lock,
            });
            self.counts[ty].accepted_total += 1;
        }
        Ok(())
    }

    /// What only the holder of a job may do.
    fn holder(&mut self, at: At, of: &Job, how: How, act: impl FnOnce(&mut PlainJob)) -> Reply {
        let job = self.jobs.get_mut(&at);
        let Some(job) = job.filter(|job| job.lock() == Some(of.lock)) else {
            return Reply::Refused(Refusal::Halt);
        };
        act(job);
        self.effects += 1;
        Reply::Held(Held {
            again: job.next.is_some(),
            repeated: how.again,
        })
    }

    fn finish(&mut self, at: At, of: &Job, end: &Ended, how: How) -> Result<Held, Refusal> {
        let now_ms = self.now_ms;
        let job = self.jobs.get_mut(&at).ok_or(Refusal::Halt)?;
        if job.was_ended_by(of.lock) {
            return Ok(Held {
                again: job.state != State::Finished,
                repeated: true,
            });
        }
        if job.lock() != Some(of.lock) {
            // Whoever is not sure of an answer cannot tell this end from an earlier one of its own.
            let ended = how.unsure && job.has_ended(of.lock);
            let again = job.state != State::Finished;
            let repeated = true;
            return (ended.then_some(Held { again, repeated })).ok_or(Refusal::Halt);
        }
        self.effects += 1;
        job.stalls = 0;
        let outcome = match end.how {
            script::How::Done => Outcome::Done,
            script::How::Failed => Outcome::Failed,
            script::How::Again(_) => Outcome::Again,
        };
        job.end_run(now_ms, outcome);
        if let Some(due_ms) = end.again_ms {
            job.ask_again(due_ms, None);
        }
        let next = job.next.take();
        let again = next.is_some();
        let counts = &mut self.counts[at.ty];
        if let Some(next) = next {
            job.data = next.data.or(end.data).unwrap_or(job.data);
            (job.state, job.due_ms) = (State::Pending, next.due_ms);
            counts.again_total += 1;
        } else {
            job.data = end.data.unwrap_or(job.data);
            finished(job, now_ms);
            counts.finished_total += 1;
        }
        Ok(Held {
            again,
            repeated: how.again,
        })
    }
}

pub(super) fn finished(job: &mut PlainJob, now_ms: i64) {
    let kept_ms = job.kept_ms.and_then(|ms| i64::try_from(ms).ok());
    job.state = State::Finished;
    job.finished = Some((now_ms, kept_ms.map(|ms| now_ms + ms)));
}

/// What happens without a call.
impl Plain {
    /// The holders of these runs were silent, and what was kept long enough is forgotten.
    pub(super) fn maintain(&mut self, silent: &[(At, Job)], word: &Verdict) {
        for (at, of) in silent {
            let registered = self.types[at.ty];
            let job = self.jobs.get(at).and_then(PlainJob::lock);
            if let (Some(config), true) = (registered, job == Some(of.lock)) {
                self.stall(*at, &config, word);
            }
        }
        let over = self.jobs.iter().filter(|(at, job)| {
            let expires_ms = job.finished.and_then(|(_, expires_ms)| expires_ms);
            self.types[at.ty].is_some() && expires_ms.is_some_and(|at_ms| at_ms <= self.now_ms)
        });
        let over: Vec<At> = over.map(|(at, _)| *at).collect();
        for at in over {
            self.forget(at);
        }
    }

    fn stall(&mut self, at: At, config: &TypeConfig, word: &Verdict) {
        let now_ms = self.now_ms;
        let Some(job) = self.jobs.get_mut(&at) else {
            return;
        };
        let healthy_ms = config.stalls.healthy_ms;
        let lasted_ms = job.runs.last().map_or(0, |run| now_ms - run.started_ms);
        let healthy = healthy_ms > 0 && lasted_ms > i64::try_from(healthy_ms).unwrap_or(i64::MAX);
        job.stalls = if healthy { 1 } else { job.stalls + 1 };
        let mut owed = false;
        if let Some(next) = job.next.take() {
            job.due_ms = next.due_ms;
            job.data = next.data.unwrap_or(job.data);
            if next.by_creator && next.data.is_some() {
                job.stalls = 0;
            }
            owed = next.by_creator;
        }
        let wait = |policy: StallPolicy, stalls| {
            let wait_ms = policy.wait_ms(stalls)?;
            i64::try_from(wait_ms).ok()
        };
        let mut never = config.stalls;
        never.stalls_max = None;
        let due_ms = if owed {
            Some(job.due_ms)
        } else {
            match word {
                Verdict::Policy => match wait(config.stalls, job.stalls) {
                    Some(0) => Some(job.due_ms),
                    wait_ms => wait_ms.map(|wait_ms| now_ms + wait_ms),
                },
                Verdict::Rerun(due_ms, data) => {
                    job.data = data.unwrap_or(job.data);
                    let wait_ms = wait(never, job.stalls).unwrap_or(0);
                    Some(due_ms.unwrap_or(now_ms + wait_ms))
                }
                Verdict::GiveUp(data) => {
                    job.data = data.unwrap_or(job.data);
                    None
                }
            }
        };
        let counts = &mut self.counts[at.ty];
        if let Some(due_ms) = due_ms {
            job.end_run(now_ms, Outcome::Stalled);
            (job.state, job.due_ms) = (State::Pending, due_ms.max(0));
            counts.again_total += 1;
        } else {
            job.end_run(now_ms, Outcome::GaveUp);
            finished(job, now_ms);
            counts.finished_total += 1;
        }
    }
}

/// What the owner of the type says, with its time resolved.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict {
    Policy,
    Rerun(Option<i64>, Option<Token>),
    GiveUp(Option<Token>),
}
