//! Plays a script on a queue and on its prediction.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use store::{CommitFate, FaultControl, Faults, Store, Transaction};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::calls::{Call, Circumstances, Names, Refusal, Reply, Run, newest};
use super::expected::Expected;
use super::script::{Act, At, Rules, Script, Step, TYPES, Word};
use super::shown::{Look, Shown};
use crate::testing::mistake::Mistake;
use crate::testing::rules::data_of;
use crate::{
    Clock, Entropy, Error, Holder, JobId, JobInfo, JobType, Jobs, Maintenance, Options, Sharing,
    StallHook, StallPolicy, TypeConfig, Verdict,
};

/// The initial time.
const START_MS: i64 = 1_000_000;
/// Time limit for background work on a real clock.
const PATIENCE: Duration = Duration::from_secs(20);
/// How many turns of the monitor it may take. With a planted bug the queue may never look as expected, and a paused clock
/// would let the monitor turn 60,000 times first. It takes some more than a second: a clock that has just jumped is not
/// believed at first, so that some jobs expire and others wait until the monitor looks again.
const TURNS_MAX: u64 = 1_200;
const PAUSE_MAX: Duration = Duration::from_millis(16);
/// The timeout of the types.
const TIMEOUT: Duration = Duration::from_millis(1);

/// Every nth step compares everything; the others compare less.
const LONG_LOOKS: usize = 4;

/// A queue and its prediction.
struct Play {
    names: Names,
    clock: Clock,
    /// A queue with the faults of the script.
    jobs: Jobs,
    control: FaultControl,
    /// A queue without faults.
    calm: Jobs,
    /// A queue whose types a node maintains.
    tended: Jobs,
    effects: Vec<u8>,
    expected: Expected,
    runs: Vec<Run>,
    story: Vec<String>,
    steps: usize,
}

/// Plays a script under the prefix `number`; returns the first difference from the prediction.
pub(super) async fn play(
    store: &Store,
    mistake: &Mistake,
    number: u128,
    script: &Script,
) -> Result<(), String> {
    let mut play = Play::new(store, mistake, number);
    for ty in 0..TYPES {
        play.set_type(ty, Some(Rules::first())).await?;
    }
    for (number, step) in (1..).zip(&script.0) {
        play.story.push(format!("{step:?}"));
        let done = play.step(step, number == script.0.len()).await;
        if let Err(problem) = done {
            let story = play.story.join("\n  ");
            return Err(format!("{problem}\nafter\n  {story}"));
        }
    }
    Ok(())
}

impl Play {
    fn new(store: &Store, mistake: &Mistake, number: u128) -> Self {
        let clock = Clock::standing(START_MS);
        let (faulty, control) = store.with_faults(mistake.faults());
        let (tended, _) = store.with_faults(Faults::default());
        let queue = |store, seed| {
            let entropy = Entropy::seeded(seed);
            Jobs::planted_with(store, clock.clone(), entropy, mistake.planted)
        };
        let name = |kind: &str, n: usize| format!("{kind}{n}-{number:x}");
        let ids = [b"".to_vec(), b"a".to_vec(), vec![0xff, 0], vec![b'z'; 256]];
        let seed = u64::try_from(number >> 64).unwrap_or(0);
        Self {
            names: Names {
                types: [0, 1].map(|n| JobType::new(&name("t", n)).expect("a short name")),
                ids: ids.map(|id| JobId::new(id).expect("a short id")),
                holders: [0, 1].map(|n| Holder::new(&name("p", n)).expect("a short name")),
            },
            jobs: queue(faulty, seed),
            control,
            calm: queue(store.clone(), seed ^ 1),
            tended: queue(tended, seed ^ 2),
            clock,
            effects: format!("model/{number:x}").into_bytes(),
            expected: Expected {
                now_ms: START_MS,
                ..Expected::default()
            },
            runs: Vec::new(),
            story: Vec::new(),
            steps: 0,
        }
    }

    async fn step(&mut self, step: &Step, last: bool) -> Result<(), String> {
        let should = match step {
            Step::Do(act, fate) => self.call(act, *fate).await?,
            Step::Together { acts, fate, regret } => self.together(acts, *fate, *regret).await?,
            Step::During { outer, inner } => self.during(outer, inner).await?,
            Step::Pass(ms) => {
                self.expected.now_ms += ms;
                self.clock.set_ms(self.expected.now_ms);
                vec![self.expected.clone()]
            }
            Step::Maintain { silent, verdict } => self.maintain(silent, verdict).await?,
            Step::SetType(ty, rules) => self.set_type(*ty, Some(*rules)).await?,
            Step::ClearType(ty) => self.set_type(*ty, None).await?,
        };
        self.steps += 1;
        let long = last || self.steps.is_multiple_of(LONG_LOOKS);
        let look = if long { Look::Long } else { Look::Short };
        let is = self.shown(look).await?;
        let mut differences = Vec::new();
        for expected in should {
            match is.differs(&Shown::expected(&expected, look)) {
                None => {
                    self.expected = expected;
                    return Ok(());
                }
                Some(difference) => differences.push(difference),
            }
        }
        Err(differences.join("or\n"))
    }

    async fn shown(&self, look: Look) -> Result<Shown, String> {
        let shown = Shown::real(
            &self.names,
            &self.calm,
            self.expected.now_ms,
            &self.effects,
            look,
        );
        shown
            .await
            .map_err(|error| format!("look at the queue: {error:?}"))
    }

    fn told(&mut self, call: &Call, reply: &Reply) {
        self.story.push(format!("    {call:?}\n      -> {reply:?}"));
        self.runs.extend(reply.runs());
    }

    /// A call in its own transaction.
    async fn call(&mut self, act: &Act, fate: CommitFate) -> Result<Vec<Expected>, String> {
        let mut expected = self.expected.clone();
        let Some(call) = Call::of(act, expected.now_ms, &self.runs) else {
            return Ok(vec![expected]);
        };
        let drawn = self.names.drawn(&self.jobs, act, expected.now_ms);
        self.control.set_next_commit(fate);
        let answer = self.names.call(&self.jobs, &call, &drawn).await;
        let how = self.how(fate);
        let reply = answer.unwrap_or_else(|error| Reply::Refused(error.into()));
        self.told(&call, &reply);
        expected.apply(&call, &reply, how)?;
        // A single call counts nothing.
        expected.effects = self.expected.effects;
        Ok(vec![expected])
    }

    /// The circumstances of a call whose commit was to have this fate.
    fn how(&self, fate: CommitFate) -> Circumstances {
        let met = self.control.set_next_commit(CommitFate::Normal) == CommitFate::Normal;
        Circumstances {
            again: met && fate == CommitFate::UnknownApplied,
            unsure: met && matches!(fate, CommitFate::UnknownApplied | CommitFate::UnknownLost),
            ..Circumstances::default()
        }
    }

    /// Several calls in one transaction.
    async fn together(
        &mut self,
        acts: &[Act],
        fate: CommitFate,
        regret: bool,
    ) -> Result<Vec<Expected>, String> {
        let now_ms = self.expected.now_ms;
        let draw = |act| (act, self.names.drawn(&self.jobs, act, now_ms));
        let (drawn, own) = (&acts.iter().map(draw).collect::<Vec<_>>(), &self.jobs.op());
        let log = &Mutex::new(Vec::new());
        let (jobs, names, effects) = (&self.jobs, &self.names, &self.effects);
        let known = &self.runs;
        self.control.set_next_commit(fate);
        let body = |tx: Transaction| async move {
            let (mut runs, mut calls) = (known.clone(), Vec::new());
            for (act, drawn) in drawn {
                let Some(call) = Call::of(act, now_ms, &runs) else {
                    continue;
                };
                let answer = names.call_in(jobs, &tx, &call, drawn, own).await;
                let refused = match answer {
                    Err(error @ Error::Store(_)) => return Err(error),
                    Err(error) => {
                        calls.push((call, Reply::Refused(error.clone().into())));
                        Err(error)
                    }
                    Ok(reply) => {
                        tx.add(effects, reply.effects());
                        runs.extend(reply.runs());
                        calls.push((call, reply));
                        Ok(())
                    }
                };
                lock(log).clone_from(&calls);
                refused?;
            }
            if regret {
                return Err(Error::Invalid("regretted"));
            }
            Ok(())
        };
        let result = jobs.store().transact("together", body).await;
        let how = Circumstances {
            together: true,
            ..self.how(fate)
        };
        let calls = std::mem::take(&mut *lock(log));
        if let Err(error @ Error::Store(_)) = result {
            return Err(format!("a transaction failed: {error:?}"));
        }
        let mut expected = self.expected.clone();
        for (call, reply) in &calls {
            if result.is_ok() {
                self.told(call, reply);
            } else {
                self.story.push(format!("    {call:?}\n      -> {reply:?}"));
            }
            expected.apply(call, reply, how)?;
        }
        Ok(vec![if result.is_ok() {
            expected
        } else {
            self.expected.clone()
        }])
    }

    /// A call during the transaction of another; the one that commits last has read the other's writes.
    async fn during(&mut self, outer: &Act, inner: &Act) -> Result<Vec<Expected>, String> {
        let now_ms = self.expected.now_ms;
        let calls = [outer, inner].map(|act| Call::of(act, now_ms, &self.runs));
        let [Some(outside), Some(inside)] = &calls else {
            return Ok(vec![self.expected.clone()]);
        };
        let drawn = &self.names.drawn(&self.jobs, outer, now_ms);
        let drawn_inside = &self.names.drawn(&self.calm, inner, now_ms);
        let (own, inside_reply) = (&self.jobs.op(), &Mutex::new(None));
        let (jobs, calm, names, effects) = (&self.jobs, &self.calm, &self.names, &self.effects);
        let body = |tx: Transaction| async move {
            let answer = names.call_in(jobs, &tx, outside, drawn, own).await;
            if tx.attempt() == 1 {
                let reply = names.call(calm, inside, drawn_inside).await;
                let reply = reply.unwrap_or_else(|error| Reply::Refused(error.into()));
                *lock(inside_reply) = Some(reply);
            }
            let reply = answer?;
            if reply.effects() != 0 {
                tx.add(effects, reply.effects());
            }
            Ok(reply)
        };
        let result = jobs.store().transact(outside.name(), body).await;
        let outer_reply = match result {
            Err(error @ Error::Store(_)) => return Err(format!("it failed: {error:?}")),
            result => result.unwrap_or_else(|error| Reply::Refused(Refusal::from(error))),
        };
        let inner_reply = lock(inside_reply).take().ok_or("nothing was done inside")?;
        self.told(inside, &inner_reply);
        self.told(outside, &outer_reply);
        let racing = Circumstances {
            racing: true,
            ..Circumstances::default()
        };
        let parts = [(inside, &inner_reply), (outside, &outer_reply)];
        let (mut possible, mut problems) = (Vec::new(), Vec::new());
        for order in [[0, 1], [1, 0]] {
            let mut expected = self.expected.clone();
            let applied = order.into_iter().try_for_each(|part| {
                let (before, (call, reply)) = (expected.effects, parts[part]);
                expected.apply(call, reply, racing)?;
                if part == 0 {
                    expected.effects = before;
                }
                Ok::<_, String>(())
            });
            match applied {
                Ok(()) => possible.push(expected),
                Err(problem) => problems.push(problem),
            }
        }
        if possible.is_empty() {
            return Err(problems.join("\nor "));
        }
        Ok(possible)
    }

    async fn set_type(&mut self, ty: usize, rules: Option<Rules>) -> Result<Vec<Expected>, String> {
        let (name, config) = (&self.names.types[ty], rules.map(|rules| rules.config(ty)));
        let done = match config {
            Some(config) => self.calm.set_type(name, config).await,
            None => self.calm.clear_type(name).await,
        };
        done.map_err(|error| format!("register t{ty}: {error:?}"))?;
        self.expected.types[ty] = config;
        Ok(vec![self.expected.clone()])
    }

    /// Maintains the types until the queue looks as predicted and the monitor has had several turns.
    async fn maintain(&mut self, silent: &[usize], word: &Word) -> Result<Vec<Expected>, String> {
        let runs = silent.iter().filter_map(|n| newest(&self.runs, *n));
        let mut runs: Vec<_> = runs.map(|run| (run.at, run.job.clone())).collect();
        // The hook knows a run by its number, which a job that was removed and added again counts from 1.
        runs.retain(|(at, job)| {
            let held = self.expected.jobs.get(at);
            // A holder that was promised more than the type's timeout is not waited for.
            held.is_some_and(|held| held.job.is_held_by(job.lock)) && job.timeout() <= TIMEOUT
        });
        let data_of = |data: Option<_>| data.map(data_of);
        let verdict = match *word {
            Word::Policy => Verdict::Policy,
            Word::Rerun(due, data) => Verdict::Rerun {
                due_ms: due.map(|due| due.ms(self.expected.now_ms)),
                data: data_of(data),
            },
            Word::GiveUp(data) => Verdict::GiveUp {
                data: data_of(data),
                reason: "given up".into(),
            },
        };
        self.story.push(format!("    {runs:?}"));
        let mut expected = self.expected.clone();
        expected.maintain(&runs, &verdict);
        let should = Shown::expected(&expected, Look::Short);
        let hook = Hook {
            runs: Arc::new(
                runs.iter()
                    .map(|(at, job)| self.run_name(*at, job.attempt))
                    .collect(),
            ),
            verdict,
        };
        let options = Options {
            activity_monitor_max_jitter_msec: 1,
            type_check_period_msec: 1_000,
            type_check_max_jitter_msec: 1,
            ..Options::default()
        };
        let mut service = Maintenance::new(self.tended.clone(), options);
        for ty in &self.names.types {
            service = service.serve_with(ty.clone(), hook.clone());
        }
        let turns = || {
            let stats = self.tended.store().stats();
            stats.get("lease").map_or(0, |stats| stats.calls)
        };
        let types = expected.types.iter().flatten().count() as u64;
        let (enough, most) = (turns() + 4 * types, turns() + TURNS_MAX * types);
        let stop = CancellationToken::new();
        let running = tokio::spawn(service.run(stop.clone()));
        let deadline = Instant::now() + PATIENCE;
        let mut pause = Duration::from_millis(1);
        while Instant::now() < deadline && turns() < most {
            if turns() >= enough && self.shown(Look::Short).await?.differs(&should).is_none() {
                break;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        stop.cancel();
        running
            .await
            .map_err(|error| format!("the service failed: {error}"))?;
        Ok(vec![expected])
    }

    fn run_name(&self, at: At, attempt: u32) -> (JobType, JobId, u32) {
        let (ty, id) = (&self.names.types[at.ty], &self.names.ids[at.id]);
        (ty.clone(), id.clone(), attempt)
    }
}

/// Reports the silent holders, and decides about their jobs.
#[derive(Clone)]
struct Hook {
    runs: Arc<Vec<(JobType, JobId, u32)>>,
    verdict: Verdict,
}

impl StallHook for Hook {
    async fn stalled(
        &self,
        _: &Transaction,
        ty: &JobType,
        job: &JobInfo,
    ) -> crate::Result<Verdict> {
        let run = (ty.clone(), job.id.clone(), job.attempts);
        if !self.runs.contains(&run) {
            return Err(Error::Invalid("this holder is not silent"));
        }
        Ok(self.verdict.clone())
    }
}

impl Rules {
    /// The initial settings of types.
    fn first() -> Self {
        Self {
            retention_ms: Some(30),
            stalls_max: None,
            backoff_ms: 0,
            healthy_ms: 0,
        }
    }

    /// The timeout is minimal; a hook tells which holders are silent. Tenants share the last type.
    fn config(self, ty: usize) -> TypeConfig {
        TypeConfig {
            sharing: if ty == TYPES - 1 {
                Sharing::On
            } else {
                Sharing::Off
            },
            retention_ms: self.retention_ms,
            stalls: StallPolicy {
                stalls_max: self.stalls_max,
                backoff_ms: self.backoff_ms,
                backoff_ms_max: 1_000,
                healthy_ms: self.healthy_ms,
            },
            ..TypeConfig::new(1)
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
