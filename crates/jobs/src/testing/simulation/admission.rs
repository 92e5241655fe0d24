//! Follows who runs and who waits behind each limit, from commit to commit, and judges it by the settings alone: whatever the
//! slots say.
//!
//! - No run starts while as many or more of its limit run, counting those that have begun since the limit became one of
//!   concurrent runs, until they end, lose their lock or give their slots back. So a key of one never has two holders.
//! - As long as a rate stays the same, no more than its maximum start in any period. What counts is the clock of the claim
//!   that starts a run, read when the claim begins, or the time that the job's slot was booked for, if that is later.
//!   Maintenance frees what a clock ahead of its own has booked, so a period may be shorter by as much as clocks of the
//!   fleet differ.
//! - After each commit, no job waits behind a limit that could start one more.
//! - No job is overtaken for ever by others of its limit and class that began to wait later.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::history::Setting;
use crate::operations::limits::slots::started_ms;
use crate::testing::moves::{Move, Turn, View};
use crate::{JobId, JobType, Limit};

/// By so many times the slots of its limit. A freed slot goes to one of up to 16 jobs by chance: one in 10^10 is overtaken so
/// often.
const OVERTAKEN_MAX: usize = 25;

/// A limit of a type.
type Named = (usize, Bytes);

#[derive(Default)]
pub(super) struct Admission {
    /// How much the clocks of the fleet differ.
    skew_ms: i64,
    settings: BTreeMap<Named, Limit>,
    in_use: BTreeMap<Named, Use>,
    /// Until when slots of a limit that was changed may be on their way to jobs that wait.
    serving: Option<u64>,
    pub(super) problems: Vec<String>,
}

/// Who uses a limit.
#[derive(Default)]
struct Use {
    running: BTreeSet<JobId>,
    /// Pending jobs with a slot.
    granted: BTreeSet<JobId>,
    /// How often others have overtaken a waiting job.
    waiting: BTreeMap<Turn, usize>,
    /// The clocks of the claims that have started runs since the limit is this rate.
    starts: Vec<i64>,
}

/// Judges the committed moves of jobs of these types, by version.
pub(super) fn judge(
    types: &[JobType],
    settings: &[Setting],
    moves: &[(u64, &Move)],
    skew_ms: i64,
) -> Vec<String> {
    let mut all = Admission {
        skew_ms,
        ..Admission::default()
    };
    let mut settings = settings.iter().peekable();
    for of_commit in moves.chunk_by(|(one, _), (other, _)| one == other) {
        let version = of_commit[0].0;
        while let Some(setting) = settings.next_if(|setting| setting.from <= version) {
            all.set(setting);
        }
        let mut started = BTreeMap::new();
        for (_, step) in of_commit {
            if let Some(ty) = types.iter().position(|ty| *ty == step.ty) {
                all.apply(version, ty, step, &mut started);
            }
        }
        all.look(version, started);
    }
    all.end()
}

impl Admission {
    fn say(&mut self, version: u64, (ty, name): &Named, problem: impl std::fmt::Display) {
        if self.problems.len() < 20 {
            let name = name.escape_ascii();
            let problem = format!("version {version}: limit {name} of type {ty}: {problem}");
            self.problems.push(problem);
        }
    }

    /// The setting of a limit: its own, that of its nearest group, or one at a time.
    fn limit(&self, (ty, name): &Named) -> Limit {
        let mut ends = (0..=name.len()).rev();
        let setting = ends.find_map(|end| {
            let is_name = name.get(end).is_none_or(|byte| *byte == b'|');
            is_name.then(|| self.settings.get(&(*ty, name.slice(..end))))?
        });
        setting.copied().unwrap_or(Limit::at_once(1))
    }

    fn set(&mut self, setting: &Setting) {
        let in_use = self.in_use.keys().cloned();
        let before: Vec<_> = in_use.map(|named| (self.limit(&named), named)).collect();
        let named = (setting.ty, Bytes::from_static(setting.name.as_bytes()));
        match setting.limit {
            Some(limit) => drop(self.settings.insert(named, limit)),
            None => drop(self.settings.remove(&named)),
        }
        for (before, named) in before {
            if self.limit(&named) != before {
                self.end_rate(setting.from, &named, before);
            }
        }
        self.serving = Some(setting.served);
    }

    /// Follows a step; adds the limits that it touches, and whether it starts a run.
    fn apply(&mut self, version: u64, ty: usize, step: &Move, touched: &mut BTreeMap<Named, bool>) {
        let (before, after) = (step.before.as_ref(), step.after.as_ref());
        let (ran, runs) = [before, after]
            .map(|view| view.and_then(|view| view.run))
            .into();
        let limits = [before, after].into_iter().flatten();
        let names: BTreeSet<&Bytes> = limits
            .flat_map(|view| view.limits.iter().chain(&view.taken))
            .collect();
        for name in names {
            let named = (ty, name.clone());
            let limit = self.limit(&named);
            let of = |view: Option<&View>, names: fn(&View) -> &Vec<Bytes>| {
                view.is_some_and(|view| names(view).contains(name))
            };
            let has = [before, after].map(|view| of(view, |view| &view.taken));
            let starts = runs.is_some() && runs != ran && of(after, |view| &view.limits);
            let retakes = runs.is_some() && runs == ran && has == [false, true];
            let gives_back = runs != ran || has == [true, false];
            let in_use = self.in_use.entry(named.clone()).or_default();
            if ran.is_some() && gives_back {
                in_use.running.remove(&step.id);
            }
            if starts || retakes {
                match limit.per_ms {
                    None => drop(in_use.running.insert(step.id.clone())),
                    Some(_) => in_use.starts.push(match before.filter(|_| has[0]) {
                        Some(view) => started_ms(step.now_ms, view.due_ms),
                        None => step.now_ms,
                    }),
                }
            }
            if runs.is_none() && has[1] {
                in_use.granted.insert(step.id.clone());
            } else {
                in_use.granted.remove(&step.id);
            }
            let waits = |view: Option<&View>| {
                let waits = view?.waits.as_ref()?;
                (waits.limit == *name).then(|| waits.turn.clone())
            };
            let (waited, waits) = (waits(before), waits(after));
            let mut passed_over = None;
            if let Some(turn) = waited.filter(|turn| waits.as_ref() != Some(turn)) {
                in_use.waiting.remove(&turn);
                if starts || has[1] {
                    passed_over = in_use.overtake(&turn, limit);
                }
            }
            if let Some(turn) = waits {
                in_use.waiting.entry(turn).or_default();
            }
            *touched.entry(named.clone()).or_default() |= starts || retakes;
            if let Some(id) = passed_over {
                self.say(version, &named, format!("job {id} waits for ever"));
            }
        }
    }

    /// Judges what a commit has touched.
    fn look(&mut self, version: u64, mut touched: BTreeMap<Named, bool>) {
        match self.serving {
            Some(served) if version > served => {
                self.serving = None;
                let all = self.in_use.keys().cloned();
                for named in all.collect::<Vec<_>>() {
                    touched.entry(named).or_default();
                }
            }
            _ => {}
        }
        for (named, started) in touched {
            let (limit, in_use) = (self.limit(&named), &self.in_use[&named]);
            if limit.per_ms.is_some() {
                continue;
            }
            let (running, max) = (&in_use.running, limit.max as usize);
            if started && running.len() > max {
                let problem = format!("a run starts, and more than {max} run: {running:?}");
                self.say(version, &named, problem);
            } else if self.serving.is_none()
                && !in_use.waiting.is_empty()
                && running.len() + in_use.granted.len() < max
            {
                let (granted, waiting) = (&in_use.granted, in_use.waiting.keys().next());
                let problem = format!(
                    "jobs wait, and of {max} only {running:?} run and {granted:?} will: {waiting:?}"
                );
                self.say(version, &named, problem);
            }
        }
    }

    /// Judges the starts of a rate, which ends here.
    fn end_rate(&mut self, version: u64, named: &Named, limit: Limit) {
        let Some(in_use) = self.in_use.get_mut(named) else {
            return;
        };
        let mut starts = std::mem::take(&mut in_use.starts);
        starts.sort_unstable();
        let (max, per_ms) = (limit.max as usize, limit.per_ms.unwrap_or_default());
        let shortest = i64::try_from(per_ms).unwrap() - self.skew_ms;
        let mut windows = starts.windows(max + 1);
        if let Some(starts) = windows.find(|starts| starts[max] - starts[0] < shortest) {
            let problem = format!("more than {max} runs start in {per_ms} ms: {starts:?}");
            self.say(version, named, problem);
        }
    }

    fn end(mut self) -> Vec<String> {
        let all: Vec<_> = self.in_use.keys().cloned().collect();
        for named in &all {
            self.end_rate(u64::MAX, named, self.limit(named));
        }
        self.serving = None;
        self.look(
            u64::MAX,
            all.into_iter().map(|named| (named, false)).collect(),
        );
        self.problems
    }
}

impl Use {
    /// A waiting job starts, or will. Returns one of those before it that were overtaken too often.
    fn overtake(&mut self, turn: &Turn, limit: Limit) -> Option<JobId> {
        let (class, ..) = turn;
        let before = self.waiting.range_mut(..turn).rev();
        let before = before.take_while(|((other, ..), _)| other == class);
        let most = OVERTAKEN_MAX * (limit.max as usize).max(1);
        let mut passed_over = None;
        for ((.., id), times) in before {
            *times += 1;
            if *times > most {
                passed_over = Some(id.clone());
            }
        }
        passed_over
    }
}
