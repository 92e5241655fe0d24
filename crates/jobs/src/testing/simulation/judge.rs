//! Checks that the queue may have a history: applies each job's part of it to the rules, in the order
//! of commits.
//!
//! No actor observes four changes of a job, which are accepted wherever the rules allow them: an
//! acceptor claims it, ends its run at a worker's request, or gives it back because no worker waits
//! any more, and the job expires.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::answers::Answers;
use super::history::{Delivered, Entry, Followed, Glimpse, Record, Token, What};
use super::plan::Plan;
use crate::testing::rules::{self, Ended, Job, Told};
use crate::{Added, Counts, JobId, JobLock, State};

/// A job: type and id.
type Key = (usize, JobId);

pub(super) struct Judge<'a> {
    plan: &'a Plan,
    record: &'a Record,
    jobs: BTreeMap<Key, Job>,
    /// The last known heartbeat of each holder, or an earlier one.
    heard: BTreeMap<Key, Duration>,
    /// The runs that workers got, by job and lock: a repeated claim that has lost all its jobs draws no new locks for others.
    delivered: BTreeMap<(Key, JobLock), &'a Delivered>,
    /// Locks that have held each job.
    accepted: BTreeSet<(Key, JobLock)>,
    /// Jobs taken by each claim, with versions.
    claims: BTreeMap<usize, Vec<(u64, Key, JobLock)>>,
    /// The runs of each job that had begun when the last signal to it was committed.
    signalled: BTreeMap<Key, u32>,
    problems: Vec<String>,
    /// The job of the first problem.
    suspect: Option<Key>,
}

pub(super) struct Verdict {
    pub(super) problems: Vec<String>,
    /// Everything known about the job of the first problem.
    pub(super) story: Vec<String>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(plan: &'a Plan, record: &'a Record) -> Self {
        Self {
            plan,
            record,
            jobs: BTreeMap::new(),
            heard: BTreeMap::new(),
            delivered: BTreeMap::new(),
            accepted: BTreeSet::new(),
            claims: BTreeMap::new(),
            signalled: BTreeMap::new(),
            problems: Vec::new(),
            suspect: None,
        }
    }

    /// Checks the history, up to the final states.
    pub(super) fn judge(
        mut self,
        committed: &[(u64, usize)],
        last: &BTreeMap<Key, Glimpse>,
        counts: &[Counts],
    ) -> Verdict {
        self.deliveries();
        self.answers(committed);
        let mut seen: Vec<&(u64, Entry)> = self.record.seen.iter().collect();
        seen.sort_by_key(|(version, _)| *version);
        let mut seen = seen.into_iter().peekable();
        for (version, number) in committed {
            while let Some((_, entry)) = seen.next_if(|(seen_at, _)| seen_at < version) {
                self.follow(*version, entry);
            }
            self.follow(*version, &self.record.entries[*number]);
        }
        for (version, entry) in seen {
            self.follow(*version, entry);
        }
        self.ends(last);
        self.totals(counts);
        for followed in &self.record.followed {
            self.told(followed);
        }
        Verdict {
            story: (self.suspect.as_ref())
                .map_or_else(Vec::new, |key| self.record.story(key, committed)),
            problems: self.problems,
        }
    }

    fn say(&mut self, key: &Key, problem: impl std::fmt::Display) {
        self.suspect.get_or_insert_with(|| key.clone());
        // One bug causes many problems; the first ones are the most useful.
        if self.problems.len() < 20 {
            let ty = key.0;
            self.problems
                .push(format!("job {} of type {ty}: {problem}", key.1));
        }
    }

    /// No run is delivered twice.
    fn deliveries(&mut self) {
        for delivered in &self.record.delivered {
            let job = &delivered.accepted.job;
            let key = (delivered.ty, job.id.clone());
            if (self.delivered.insert((key.clone(), job.lock), delivered)).is_some() {
                self.say(&key, format!("one run was handed out twice: {delivered:?}"));
            }
        }
    }

    /// Answers match effects, and nothing happened twice.
    fn answers(&mut self, committed: &[(u64, usize)]) {
        let answers = Answers::of(self.record, committed);
        for (number, call) in self.record.calls.iter().enumerate() {
            let Some(wrong) = answers.wrong(number, call) else {
                continue;
            };
            let problem = format!("a call of {} {wrong}: {call:?}", call.name);
            let done = answers.done(number);
            match done.first() {
                Some(entry) => {
                    let key = (entry.ty, entry.id.clone());
                    self.say(&key, format!("{problem} {done:?}"));
                }
                None => self.problems.push(problem),
            }
        }
    }

    /// A retried claim has either all its earlier jobs, or has lost all of them.
    fn claimed(&mut self, version: u64, key: &Key, entry: &Entry) {
        let lock = entry.before.as_ref().and_then(|before| before.lock);
        let (Some(call), Some(lock)) = (entry.call, lock) else {
            return;
        };
        let earlier = self.claims.entry(call).or_default();
        let held = earlier.iter().find(|(at, key, lock)| {
            let job = self.jobs.get(key);
            *at < version && job.is_some_and(|job| job.is_held_by(*lock))
        });
        let held = held.map(|(_, key, _)| key.1.clone());
        earlier.push((version, key.clone(), lock));
        if let Some(held) = held {
            self.say(
                key,
                format!("was claimed, and the same claim had job {held} before: {entry:?}"),
            );
        }
    }

    /// Applies one effect or observation.
    fn follow(&mut self, version: u64, entry: &Entry) {
        let key = (entry.ty, entry.id.clone());
        if matches!(entry.what, What::Accept) {
            let lock = entry.before.as_ref().and_then(|before| before.lock);
            if lock.is_some_and(|lock| self.accepted.contains(&(key.clone(), lock))) {
                // Recalled by a retry that did not know that it had it already.
                return;
            }
            self.claimed(version, &key, entry);
        }
        if let Some(before) = &entry.before {
            if before.state.is_none() {
                self.signalled.remove(&key);
            }
            let reached = self.reach(&key, before, entry.at, matches!(entry.what, What::Accept));
            if let Err(problem) = reached {
                return self.say(&key, format!("{problem}, at {entry:?}"));
            }
        }
        if let Err(problem) = self.apply(&key, entry) {
            self.say(&key, format!("{problem}, at {entry:?}"));
        }
        match entry.what {
            What::Signal(.., added) if added != Added::Ignored => {
                let attempts = self.jobs.get(&key).map_or(0, |job| job.attempts);
                self.signalled.insert(key, attempts);
            }
            What::Remove => drop(self.signalled.remove(&key)),
            _ => {}
        }
    }

    /// The attempt and lock of the job's next run that an acceptor was asked to end.
    fn next_handed_back(&self, key: &Key, until: Duration) -> Option<(u32, JobLock)> {
        let attempts = self.jobs.get(key).map_or(0, |job| job.attempts);
        let all = self.record.handed_back.values();
        let of_job = all.filter(|back| (back.ty, &back.job.id) == (key.0, &key.1));
        let later = of_job.filter(|back| back.job.attempt > attempts && back.at <= until);
        let new = later.filter(|back| !self.accepted.contains(&(key.clone(), back.job.lock)));
        let first = new.min_by_key(|back| (back.at, back.job.attempt));
        first.map(|back| (back.job.attempt, back.job.lock))
    }

    /// Explains how the job reached an observed state.
    fn reach(
        &mut self,
        key: &Key,
        seen: &Glimpse,
        at: Duration,
        before_accept: bool,
    ) -> Result<(), String> {
        let postponed = self.plan.types[key.0].has_rates();
        for _ in 0..100 {
            let handed_back = self.next_handed_back(key, at);
            let model = self.jobs.entry(key.clone()).or_default();
            model.due_ms = model.due_ms.filter(|_| !postponed);
            let running = model.state == Some(State::Running);
            if model.state == seen.state
                && (model.attempts == seen.attempts || seen.state.is_none())
            {
                if running && model.lock.is_none() && !before_accept {
                    model.lock = seen.lock;
                    return self.check_delivered(key);
                }
                if running && model.lock != seen.lock {
                    return Err("has another holder".into());
                }
                if let Some(problem) = seen.differs(model) {
                    return Err(problem);
                }
                model.due_ms = seen.state.map(|_| seen.due_ms);
                return Ok(());
            }
            let more = seen.attempts > model.attempts;
            match model.state {
                Some(State::Pending) if seen.state.map_or(handed_back.is_some(), |_| more) => {
                    let this = seen.attempts == model.attempts + 1 && !before_accept;
                    let next = handed_back.filter(|(attempt, _)| *attempt == model.attempts + 1);
                    let next = next.map(|(_, lock)| lock);
                    let lock = seen.lock.filter(|_| this).or(next);
                    model.accept(lock);
                    self.heard.remove(key);
                    self.accepted.extend(lock.map(|lock| (key.clone(), lock)));
                    if lock.is_some() {
                        self.check_delivered(key)?;
                    }
                }
                Some(State::Running) => {
                    let handed_back = &self.record.handed_back;
                    if let Some(back) = model.lock.and_then(|lock| handed_back.get(&lock)) {
                        model.finish(&Ended::from(&back.finish));
                        continue;
                    }
                    let held_by = model
                        .lock
                        .and_then(|lock| self.delivered.get(&(key.clone(), lock)));
                    if let Some(held_by) = held_by {
                        let who = held_by.node;
                        return Err(format!(
                            "lost its holder on node {who} without a cause, and is {seen:?}"
                        ));
                    }
                    let due_ms = model.due_ms;
                    model.run_again(due_ms, None);
                    model.finish(&Ended::unused());
                }
                Some(State::Finished) if seen.state.is_none() && model.kept_ms.is_some() => {
                    model.remove();
                }
                _ => {
                    let should = (model.state, model.attempts);
                    return Err(format!("is {seen:?} and should be {should:?}"));
                }
            }
        }
        Err(format!("cannot have become {seen:?}"))
    }

    /// The holder got the job in its state at that time.
    fn check_delivered(&mut self, key: &Key) -> Result<(), String> {
        let model = self.jobs.entry(key.clone()).or_default();
        let delivered = model
            .lock
            .and_then(|lock| self.delivered.get(&(key.clone(), lock)));
        let Some(delivered) = delivered else {
            return Ok(());
        };
        let accepted = &delivered.accepted;
        let got = Glimpse {
            state: Some(State::Running),
            attempts: accepted.job.attempt,
            lock: Some(accepted.job.lock),
            due_ms: accepted.due_ms,
            data: Some(Token::of(&accepted.data)),
        };
        if accepted.asked_ms != model.covered_ms {
            let (is, should) = (accepted.asked_ms, model.covered_ms);
            return Err(format!(
                "was handed out with a signal of {is:?} and not of {should:?}"
            ));
        }
        if accepted.stalls != model.stalls {
            let (is, should) = (accepted.stalls, model.stalls);
            return Err(format!(
                "was handed out with {is} stalls and not with {should}"
            ));
        }
        if let Some(problem) = got.differs(model) {
            return Err(format!("was handed out wrong: {problem}"));
        }
        model.due_ms = Some(accepted.due_ms);
        Ok(())
    }

    /// A run that was reported as ended has ended.
    fn check_handed_back(&self, key: &Key, at: Duration) -> Result<(), String> {
        let lock = self
            .jobs
            .get(key)
            .filter(|job| job.state == Some(State::Running));
        let lock = lock.and_then(|job| job.lock);
        let back = lock.and_then(|lock| self.record.handed_back.get(&lock));
        match back.and_then(|back| back.done_at) {
            Some(done_at) if done_at < at => {
                Err(format!("is held, and its run was ended by {done_at:?}"))
            }
            _ => Ok(()),
        }
    }

    fn apply(&mut self, key: &Key, entry: &Entry) -> Result<(), String> {
        // What wrote nothing was true at its read version, which may be older than the entry.
        let seen_only = matches!(
            entry.what,
            What::Look
                | What::Halt(_)
                | What::Ask(_, Added::Unchanged)
                | What::Signal(.., Added::Unchanged | Added::Ignored)
        );
        if !seen_only {
            self.check_handed_back(key, entry.at)?;
        }
        let of_type = &self.plan.types[key.0];
        let model = self.jobs.entry(key.clone()).or_default();
        let holds = |lock: JobLock| {
            let held = model.is_held_by(lock);
            held.then_some(())
                .ok_or("a lock that does not hold it wrote")
        };
        match &entry.what {
            What::Ask(ask, added) => {
                let should = model.ask(ask).ok_or("asked for, and there is none")?;
                if *added != should {
                    return Err(format!("was answered {added:?} and not {should:?}"));
                }
            }
            What::Signal(signal, now_ms, added) => {
                let should = model.signal(signal, *now_ms);
                if !of_type.may_answer(should, *added) {
                    return Err(format!("a signal was answered {added:?}, not {should:?}"));
                }
            }
            What::Remove => model.remove(),
            What::Accept => {
                let lock = entry.before.as_ref().and_then(|before| before.lock);
                model.accept(lock);
                self.heard.insert(key.clone(), entry.at);
                self.accepted.extend(lock.map(|lock| (key.clone(), lock)));
                return self.check_delivered(key);
            }
            What::Beat { lock, data, again } => {
                holds(*lock)?;
                self.heard.insert(key.clone(), entry.at);
                if model.update(*data) != *again {
                    return Err("a heartbeat was told wrong about another run".into());
                }
            }
            What::RunAgain { lock, due_ms, data } => {
                holds(*lock)?;
                model.run_again(Some(*due_ms), *data);
            }
            What::Finish { lock, end, again } => {
                holds(*lock)?;
                if model.finish(end) != *again {
                    return Err("its holder was told wrong about another run".into());
                }
            }
            What::Stall(verdict) => {
                if model.state != Some(State::Running) {
                    return Err("it had no holder that could have been silent".into());
                }
                model.stall(verdict, &of_type.config.stalls, false, None);
                return self.check_silence(key, entry.at);
            }
            What::Look => {}
            What::Halt(lock) => {
                if holds(*lock).is_ok() {
                    return Err("its holder was refused".into());
                }
            }
        }
        Ok(())
    }

    /// A job is only taken from a holder that was silent for the shorter of its type's timeouts.
    fn check_silence(&self, key: &Key, at: Duration) -> Result<(), String> {
        let plan = &self.plan.types[key.0];
        let timeout = Duration::from_millis(plan.config.timeout_ms.min(plan.other_timeout_ms));
        let heard = self.heard.get(key).filter(|heard| at < **heard + timeout);
        heard.map_or(Ok(()), |heard| {
            Err(format!("was taken from a holder heard of at {heard:?}"))
        })
    }

    /// The final states are as predicted, and every delivered run is accounted for.
    fn ends(&mut self, last: &BTreeMap<Key, Glimpse>) {
        let keys: BTreeSet<Key> = self.jobs.keys().chain(last.keys()).cloned().collect();
        for key in keys {
            let seen = last.get(&key).cloned().unwrap_or_default();
            let reached = self.reach(&key, &seen, Duration::MAX, false);
            let reached = reached.and_then(|()| self.check_handed_back(&key, Duration::MAX));
            if let Err(problem) = reached {
                self.say(&key, format!("in the end it {problem}"));
            }
            // A run has begun since the last signal, or is going to, unless the job is dead or removed.
            let signalled = self.signalled.get(&key);
            if seen.state == Some(State::Finished) && signalled == Some(&seen.attempts) {
                self.say(&key, "a signal was followed by no run");
            }
        }
        let lost = self
            .delivered
            .iter()
            .filter(|(run, _)| !self.accepted.contains(run));
        let lost: Vec<_> = lost
            .map(|((key, _), delivered)| (key.clone(), *delivered))
            .collect();
        for (key, delivered) in lost {
            self.say(&key, format!("a run left no trace: {delivered:?}"));
        }
    }

    /// The counters have counted every change of state once.
    fn totals(&mut self, counts: &[Counts]) {
        for (ty, counts) in counts.iter().enumerate() {
            let jobs = (self.jobs.iter()).filter(|((of, _), _)| *of == ty);
            let should = rules::counts(jobs.map(|(_, job)| job));
            if self.problems.is_empty() && *counts != should {
                let problem = format!("type {ty} counts {counts:?} and should {should:?}");
                self.problems.push(problem);
            }
        }
    }

    /// A subscriber got actual states, in order.
    fn told(&mut self, followed: &Followed) {
        let key = (followed.ty, followed.id.clone());
        let Some(model) = self.jobs.get(&key) else {
            return;
        };
        let (mut trail, mut before) = (model.trail.iter(), None);
        // That a rate makes it due later is no news, but may be told.
        let postponed = self.plan.types[key.0].has_rates();
        for told in &followed.told {
            let again = before.replace(told) == Some(told);
            if !(again && postponed) && *told != Told::End && !trail.any(|was| was == told) {
                let problem = format!("{followed:?} is not how it was: {:?}", model.trail);
                return self.say(&key, problem);
            }
        }
    }
}
