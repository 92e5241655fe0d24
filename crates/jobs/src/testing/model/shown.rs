//! The observable state of a queue, and the predicted one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::calls::Names;
use super::expected::{Expected, ExpectedJob};
use super::script::{At, HOLDERS, IDS, TYPES};
use crate::testing::rules::{self, Token, token_of};
use crate::{Attempt, Counts, JobInfo, Jobs, Outcome, Query, Result, State};

/// Maximum runs in the history: ten, and the last one.
const RUNS_MAX: usize = 11;

/// All observable state; with a short look only what calls about jobs return.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Shown {
    jobs: BTreeMap<At, ShownJob>,
    types: [ShownType; TYPES],
    /// What holders have counted in the transactions of their calls.
    effects: i64,
}

/// How much is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Short,
    /// Also listings and a recount of everything.
    Long,
}

#[derive(Debug, PartialEq)]
struct ShownJob {
    state: State,
    due_ms: i64,
    created_ms: i64,
    /// `None` for data that is not from the script.
    data: Option<Token>,
    stalls: u32,
    attempts: usize,
    next_due_ms: Option<i64>,
    signal_ms: Option<i64>,
    asked_ms: Option<i64>,
    finished_ms: Option<i64>,
    expires_ms: Option<i64>,
    runs: Vec<ShownRun>,
}

/// Holder, start, and end of a run.
type ShownRun = (Option<usize>, i64, Option<(i64, Outcome)>);

#[derive(Debug, Default, PartialEq)]
struct ShownType {
    counts: Counts,
    /// The ids in each state.
    listed: BTreeMap<State, BTreeSet<usize>>,
    due: u64,
    future: u64,
    /// Problems found by a recount.
    problems: Vec<String>,
}

impl Shown {
    /// The state of the real queue.
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
            for state in State::ALL {
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

    /// The predicted state.
    pub(super) fn expected(expected: &Expected, look: Look) -> Self {
        let jobs = expected.jobs.iter();
        let shown = jobs.filter_map(|(at, job)| Some((*at, ShownJob::expected(job)?)));
        let mut shown = Self {
            jobs: shown.collect(),
            effects: expected.effects,
            ..Self::default()
        };
        for (ty, shown) in shown.types.iter_mut().enumerate() {
            let of_type = || (expected.jobs.iter()).filter(|(at, _)| at.ty == ty);
            shown.counts = rules::counts(of_type().map(|(_, job)| &job.job));
            if look == Look::Short {
                continue;
            }
            for state in State::ALL {
                let there = of_type().filter(|(_, job)| job.job.state == Some(state));
                shown
                    .listed
                    .insert(state, there.map(|(at, _)| at.id).collect());
            }
            let due = of_type().filter(|(_, job)| {
                let due = job
                    .job
                    .due_ms
                    .is_some_and(|due_ms| due_ms <= expected.now_ms);
                due && job.job.state == Some(State::Pending)
            });
            shown.due = due.count() as u64;
            shown.future = shown.counts.pending - shown.due;
        }
        shown
    }

    /// The differences from the predicted state.
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
            signal_ms: info.signal_ms,
            asked_ms: info.asked_ms,
            finished_ms: info.finished_ms,
            expires_ms: info.expires_ms,
            runs: runs.collect(),
        }
    }

    /// `None` if the job was removed.
    fn expected(expected: &ExpectedJob) -> Option<Self> {
        let ExpectedJob { job, runs, .. } = expected;
        let known = runs.len().saturating_sub(RUNS_MAX);
        let shown = runs[known..].iter().map(|run| {
            debug_assert!(run.holder < HOLDERS, "a holder that there is");
            (Some(run.holder), run.started_ms, run.end)
        });
        Some(Self {
            state: job.state?,
            due_ms: job.due_ms?,
            created_ms: expected.created_ms,
            data: job.data,
            stalls: job.stalls,
            attempts: runs.len(),
            next_due_ms: job.next.as_ref().and_then(|next| next.due_ms),
            signal_ms: job.signal_ms,
            asked_ms: job.asked_ms,
            finished_ms: expected.finished.map(|(at_ms, _)| at_ms),
            expires_ms: expected.finished.and_then(|(_, expires_ms)| expires_ms),
            runs: shown.collect(),
        })
    }
}

impl Names {
    /// The number of a listed job; `IDS` if the script does not know it.
    fn id(&self, info: &JobInfo) -> usize {
        (self.ids.iter().position(|id| *id == info.id)).unwrap_or(IDS)
    }
}
