//! How a queue looks from outside, and how it should look.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::calls::{Names, token_of};
use super::plain::{Plain, PlainJob};
use super::queue::{Attempt, Counts, JobInfo, Jobs, Outcome, Query, Result, State};
use super::script::{At, HOLDERS, IDS, TYPES, Token};

/// How many runs the history shows: ten, and the last one.
const RUNS_MAX: usize = 11;

/// Everything that can be seen, or with a short look all that the calls about jobs say.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Shown {
    jobs: BTreeMap<At, ShownJob>,
    types: [ShownType; TYPES],
    /// What holders have counted in the transactions of their calls.
    effects: i64,
}

/// How long a look is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Short,
    /// With listings, and the recount of everything.
    Long,
}

#[derive(Debug, PartialEq)]
struct ShownJob {
    state: State,
    due_ms: i64,
    created_ms: i64,
    /// `None`: data that no script has given.
    data: Option<Token>,
    stalls: u32,
    attempts: usize,
    next_due_ms: Option<i64>,
    finished_ms: Option<i64>,
    expires_ms: Option<i64>,
    runs: Vec<ShownRun>,
}

/// Who ran it, from when, and to which end.
type ShownRun = (Option<usize>, i64, Option<(i64, Outcome)>);

#[derive(Debug, Default, PartialEq)]
struct ShownType {
    counts: Counts,
    /// The ids in each state.
    listed: BTreeMap<State, BTreeSet<usize>>,
    due: u64,
    future: u64,
    /// What a recount finds.
    problems: Vec<String>,
}

impl Shown {
    /// The queue as it is.
    pub(super) async fn real(
        names: &Names,
        jobs: &Jobs,
        now_ms: i64,
        effects: &[u8],
        look: Look,
    ) -> Result<Self> {
        let effects = jobs
            .store()
            .transact("effects", |tx| async move { tx.get(effects).await });
        let effects = effects.await?.map_or(0, |value| {
            (*value).try_into().map_or(-1, i64::from_le_bytes)
        });
        let mut shown = Self {
            effects,
            ..Self::default()
        };
        for (number, ty) in names.types.iter().enumerate() {
            for (id, name) in names.ids.iter().enumerate() {
                if let Some((info, data)) = jobs.get(ty, name).await? {
                    let history = jobs.history(ty, name).await?;
                    let job = ShownJob::real(names, &info, token_of(&data), &history);
                    shown.jobs.insert(At { ty: number, id }, job);
                }
            }
            if look == Look::Short {
                shown.types[number].counts = jobs.counts(ty).await?;
                continue;
            }
            let backlog = jobs.backlog(ty, now_ms, 1_000).await?;
            let mut listed = BTreeMap::new();
            for state in [State::Pending, State::Running, State::Finished] {
                let query = Query {
                    state: Some(state),
                    ..Query::default()
                };
                let page = jobs.list(ty, &query, None, 100).await?;
                let ids = page.jobs.iter().map(|job| names.id(&job.info));
                listed.insert(state, ids.collect());
            }
            shown.types[number] = ShownType {
                counts: jobs.counts(ty).await?,
                listed,
                due: backlog.due,
                future: backlog.future,
                problems: jobs.check(ty).await?.problems,
            };
        }
        Ok(shown)
    }

    /// The queue as it should be.
    pub(super) fn plain(plain: &Plain, look: Look) -> Self {
        let jobs = plain.jobs.iter();
        let mut shown = Self {
            jobs: jobs.map(|(at, job)| (*at, ShownJob::plain(job))).collect(),
            effects: plain.effects,
            ..Self::default()
        };
        for (ty, shown) in shown.types.iter_mut().enumerate() {
            let of_type = || plain.jobs.iter().filter(|(at, _)| at.ty == ty);
            let ids = |state| {
                let there = of_type().filter(|(_, job)| job.state == state);
                there.map(|(at, _)| at.id).collect::<BTreeSet<_>>()
            };
            let states = [State::Pending, State::Running, State::Finished];
            shown.listed = states
                .into_iter()
                .map(|state| (state, ids(state)))
                .collect();
            let number = |state| shown.listed.get(&state).map_or(0, |ids| ids.len() as u64);
            shown.counts = Counts {
                pending: number(State::Pending),
                running: number(State::Running),
                finished: number(State::Finished),
                ..plain.counts[ty]
            };
            if look == Look::Short {
                shown.listed.clear();
                continue;
            }
            let due = of_type()
                .filter(|(_, job)| job.state == State::Pending && job.due_ms <= plain.now_ms);
            shown.due = due.count() as u64;
            shown.future = shown.counts.pending - shown.due;
        }
        shown
    }

    /// What is not as it should be.
    pub(super) fn differs(&self, should: &Self) -> Option<String> {
        if self == should {
            return None;
        }
        let mut text = String::new();
        let all: BTreeSet<_> = self.jobs.keys().chain(should.jobs.keys()).collect();
        for at in all {
            let (is, should) = (self.jobs.get(at), should.jobs.get(at));
            if is != should {
                let _ = writeln!(text, "{at:?} is {is:?}\n   and should be {should:?}");
            }
        }
        for (ty, (is, should)) in self.types.iter().zip(&should.types).enumerate() {
            if is != should {
                let _ = writeln!(text, "t{ty} is {is:?}\n   and should be {should:?}");
            }
        }
        if self.effects != should.effects {
            let (is, should) = (self.effects, should.effects);
            let _ = writeln!(text, "holders have counted {is} and should have {should}");
        }
        Some(text)
    }
}

impl ShownJob {
    fn real(names: &Names, info: &JobInfo, data: Option<Token>, history: &[Attempt]) -> Self {
        let runs = history.iter().map(|run| {
            let holder = names.holders.iter().position(|name| *name == run.holder);
            let end = run.end.as_ref().map(|end| (end.at_ms, end.outcome));
            (holder, run.started_ms, end)
        });
        Self {
            state: info.state,
            due_ms: info.due_ms,
            created_ms: info.created_ms,
            data,
            stalls: info.stalls,
            attempts: info.attempts as usize,
            next_due_ms: info.next_due_ms,
            finished_ms: info.finished_ms,
            expires_ms: info.expires_ms,
            runs: runs.collect(),
        }
    }

    fn plain(job: &PlainJob) -> Self {
        let known = job.runs.len().saturating_sub(RUNS_MAX);
        let runs = job.runs[known..].iter().map(|run| {
            debug_assert!(run.holder < HOLDERS, "a holder that there is");
            (Some(run.holder), run.started_ms, run.end)
        });
        Self {
            state: job.state,
            due_ms: job.due_ms,
            created_ms: job.created_ms,
            data: Some(job.data),
            stalls: job.stalls,
            attempts: job.runs.len(),
            next_due_ms: job.next.as_ref().map(|next| next.due_ms),
            finished_ms: job.finished.map(|(at_ms, _)| at_ms),
            expires_ms: job.finished.and_then(|(_, expires_ms)| expires_ms),
            runs: runs.collect(),
        }
    }
}

impl Names {
    /// The number of a listed job; one that the script does not know if it has none.
    fn id(&self, info: &JobInfo) -> usize {
        (self.ids.iter().position(|id| *id == info.id)).unwrap_or(IDS)
    }
}
