//! Scripts: the actions of creators, holders, operators and time, step by step.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use store::CommitFate;

use crate::testing::rules::Token;

/// The numbers of types, ids per type, and holders.
pub(super) const TYPES: usize = 2;
pub(super) const IDS: usize = 4;
pub(super) const HOLDERS: usize = 2;

/// Identifies a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub(super) ty: usize,
    pub(super) id: usize,
}

/// A script, shown line by line.
#[derive(Clone)]
pub(super) struct Script(pub(super) Vec<Step>);

#[derive(Clone)]
pub(super) enum Step {
    /// A call in its own transaction.
    Do(Act, CommitFate),
    /// Several calls in one transaction of their caller, which may abort it.
    Together {
        acts: Vec<Act>,
        fate: CommitFate,
        regret: bool,
    },
    /// A call during the transaction of another.
    During {
        outer: Act,
        inner: Act,
    },
    /// Time passes.
    Pass(i64),
    /// Recovers the jobs of some silent holders, and removes expired jobs.
    Maintain {
        silent: Vec<usize>,
        verdict: Word,
    },
    SetType(usize, Rules),
    ClearType(usize),
}

/// A call by an actor. A run is given by the number of runs started after it, modulo the number of
/// runs.
#[derive(Clone)]
pub(super) enum Act {
    Add {
        ty: usize,
        requests: Vec<Request>,
    },
    Resubmit {
        at: At,
        due: Option<When>,
        data: Option<Token>,
    },
    Signal {
        ty: usize,
        requests: Vec<Request>,
        /// Whether absent jobs are created.
        create: bool,
    },
    Retry(At),
    Remove(At),
    Accept {
        ty: usize,
        holder: usize,
        count: usize,
        horizon: Option<i64>,
    },
    Update(usize, Option<Token>),
    RunAgain(usize, When, Option<Token>),
    Finish(Vec<(usize, End)>),
}

#[derive(Clone)]
pub(super) struct Request {
    pub(super) id: usize,
    pub(super) due: When,
    pub(super) data: Token,
    pub(super) kept: Kept,
}

/// The due time of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Soon,
    /// Before the epoch, which means as soon as possible.
    Negative,
    In(i64),
    Never,
}

/// How long a finished job is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    AsType,
    Forever,
    Ms(u64),
}

/// How a run ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    /// The job runs again; otherwise it is finished.
    pub(super) again: Option<When>,
    pub(super) failed: bool,
    pub(super) dead: bool,
    /// The work did not begin.
    pub(super) unused: bool,
    pub(super) data: Option<Token>,
}

/// The type owner's decision about jobs of silent holders.
#[derive(Clone, Copy)]
pub(super) enum Word {
    Policy,
    Rerun(Option<When>, Option<Token>),
    GiveUp(Option<Token>),
}

/// The settings of a type.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) retention_ms: Option<u64>,
    pub(super) stalls_max: Option<u32>,
    pub(super) backoff_ms: u64,
    pub(super) healthy_ms: u64,
}

impl When {
    pub(super) fn ms(self, now_ms: i64) -> i64 {
        match self {
            Self::Soon => 0,
            Self::Negative => -7,
            Self::In(ms) => now_ms + ms,
            Self::Never => i64::MAX,
        }
    }
}

impl Step {
    /// Whether a transaction recognises an earlier try of it: not if it removes, claims what it
    /// ends, has two requests for one job, or kills a job after a retry that found it alive.
    fn recognises_itself(acts: &[Act]) -> bool {
        let (mut asked, mut retried) = (Vec::new(), false);
        acts.iter().all(|act| match act {
            Act::Remove(_) | Act::Accept { .. } => false,
            Act::Add { ty, requests } | Act::Signal { ty, requests, .. } => {
                let mut of_act: Vec<_> = requests.iter().map(|request| (*ty, request.id)).collect();
                let new = !of_act.iter().any(|at| asked.contains(at));
                asked.append(&mut of_act);
                new
            }
            Act::Resubmit { at, .. } | Act::Retry(at) => {
                let new = !asked.contains(&(at.ty, at.id));
                asked.push((at.ty, at.id));
                retried |= matches!(act, Act::Retry(_));
                new
            }
            Act::Finish(ends) => !(retried && ends.iter().any(|(_, end)| end.dead)),
            Act::Update(..) | Act::RunAgain(..) => true,
        })
    }
}

pub(super) fn script() -> impl Strategy<Value = Script> {
    vec(step(), 1..40).prop_map(Script)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (act(), fate()).prop_map(|(act, fate)| Step::Do(act, fate)),
        3 => together(),
        4 => (act(), act()).prop_map(|(outer, inner)| Step::During { outer, inner }),
        2 => (1..40_i64).prop_map(Step::Pass),
        2 => (vec(any_run(), 0..3), word())
            .prop_map(|(silent, verdict)| Step::Maintain { silent, verdict }),
        1 => prop_oneof![
            3 => (0..TYPES, rules()).prop_map(|(ty, rules)| Step::SetType(ty, rules)),
            1 => (0..TYPES).prop_map(Step::ClearType),
        ],
    ]
}

fn together() -> impl Strategy<Value = Step> {
    let regret = proptest::bool::weighted(0.15);
    (vec(act(), 2..5), fate(), regret).prop_map(|(acts, fate, regret)| {
        let lost = fate == CommitFate::UnknownApplied;
        let fate = if lost && !Step::recognises_itself(&acts) {
            CommitFate::UnknownLost
        } else {
            fate
        };
        Step::Together { acts, fate, regret }
    })
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..TYPES, vec(request(), 1..3)).prop_map(|(ty, requests)| Act::Add { ty, requests }),
        1 => (0..TYPES, vec(request(), 3..9)).prop_map(|(ty, requests)| Act::Add { ty, requests }),
        2 => (at(), option::of(when()), option::of(token()))
            .prop_map(|(at, due, data)| Act::Resubmit { at, due, data }),
        3 => (0..TYPES, vec(request(), 1..4), proptest::bool::ANY)
            .prop_map(|(ty, requests, create)| Act::Signal { ty, requests, create }),
        1 => at().prop_map(Act::Retry),
        1 => at().prop_map(Act::Remove),
        5 => (0..TYPES, 0..HOLDERS, 1..4_usize, option::weighted(0.2, -20..60_i64)).prop_map(
            |(ty, holder, count, horizon)| Act::Accept { ty, holder, count, horizon }
        ),
        2 => (any_run(), option::of(token())).prop_map(|(run, data)| Act::Update(run, data)),
        1 => (any_run(), when(), option::of(token()))
            .prop_map(|(run, when, data)| Act::RunAgain(run, when, data)),
        4 => vec((any_run(), end()), 1..3).prop_map(Act::Finish),
    ]
}

/// Mostly one of the latest runs.
fn any_run() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0..3_usize, 1 => 0..40_usize]
}

fn at() -> impl Strategy<Value = At> {
    (0..TYPES, 0..IDS).prop_map(|(ty, id)| At { ty, id })
}

fn request() -> impl Strategy<Value = Request> {
    let kept = prop_oneof![
        4 => Just(Kept::AsType),
        1 => Just(Kept::Forever),
        2 => (1..50_u64).prop_map(Kept::Ms),
    ];
    (0..IDS, when(), token(), kept).prop_map(|(id, due, data, kept)| Request {
        id,
        due,
        data,
        kept,
    })
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        5 => Just(When::Soon),
        1 => Just(When::Negative),
        3 => (-20..40_i64).prop_map(When::In),
        1 => Just(When::Never),
    ]
}

fn token() -> impl Strategy<Value = Token> {
    0..10_u64
}

fn end() -> impl Strategy<Value = End> {
    let how = prop_oneof![
        3 => Just((None, false, false, false)),
        1 => Just((None, true, false, false)),
        1 => Just((None, false, true, false)),
        2 => when().prop_map(|when| (Some(when), false, false, false)),
        1 => when().prop_map(|when| (Some(when), true, false, false)),
        1 => option::of(when()).prop_map(|when| (when, false, false, true)),
    ];
    (how, option::of(token())).prop_map(|((again, failed, dead, unused), data)| End {
        again,
        failed,
        dead,
        unused,
        data,
    })
}

fn word() -> impl Strategy<Value = Word> {
    prop_oneof![
        3 => Just(Word::Policy),
        1 => (option::of(when()), option::of(token())).prop_map(|(due, data)| Word::Rerun(due, data)),
        1 => option::of(token()).prop_map(Word::GiveUp),
    ]
}

fn rules() -> impl Strategy<Value = Rules> {
    let (few, pause, long) = (option::of(0..3_u32), 0..2_u64, 0..2_u64);
    (option::of(1..60_u64), few, pause, long).prop_map(|(retention_ms, stalls_max, pause, long)| {
        Rules {
            retention_ms,
            stalls_max,
            backoff_ms: pause * 10,
            healthy_ms: long * 15,
        }
    })
}

fn fate() -> impl Strategy<Value = CommitFate> {
    prop_oneof![
        6 => Just(CommitFate::Normal),
        1 => Just(CommitFate::Conflict),
        2 => Just(CommitFate::UnknownApplied),
        1 => Just(CommitFate::UnknownLost),
    ]
}
