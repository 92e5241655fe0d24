//! Shrunk scripts that once found a bug; they are always played.

use store::CommitFate;

use super::script::{Act, End, Kept, Request, Rules, Script, Step, When, Word};
use crate::testing::rules::Token;

pub(super) fn scripts() -> Vec<Script> {
    vec![
        resubmitted_without_an_answer(),
        long_batch_without_an_answer(),
        unchanged_first_without_an_answer(),
        two_runs_of_a_job_without_an_answer(),
        accepted_without_a_type(),
    ]
}

fn lost(act: Act) -> Step {
    Step::Do(act, CommitFate::UnknownApplied)
}

fn add(data: &[Token]) -> Act {
    let request = |data: &Token| Request {
        id: 0,
        due: When::Soon,
        data: *data,
        kept: Kept::AsType,
    };
    Act::Add {
        ty: 0,
        requests: data.iter().map(request).collect(),
    }
}

fn accept() -> Step {
    let accept = Act::Accept {
        ty: 0,
        holder: 0,
        count: 1,
        horizon: None,
    };
    Step::Do(accept, CommitFate::Normal)
}

/// A holder that requests another run learns that it had requested one before.
fn resubmitted_without_an_answer() -> Script {
    Script(vec![
        Step::Do(add(&[0]), CommitFate::Normal),
        accept(),
        lost(Act::RunAgain(0, When::Soon, None)),
    ])
}

/// More requests than a job remembers: the first ones do not take effect again after the last.
fn long_batch_without_an_answer() -> Script {
    Script(vec![lost(add(&[1, 2, 3, 4, 5, 6]))])
}

/// A request that changed nothing is not remembered, and does not take effect after a later one.
fn unchanged_first_without_an_answer() -> Script {
    Script(vec![
        Step::Do(add(&[1]), CommitFate::Normal),
        lost(add(&[1, 2])),
    ])
}

/// A repeated batch that ends two runs of one job is answered by the job's state after both.
fn two_runs_of_a_job_without_an_answer() -> Script {
    let done = End {
        again: None,
        failed: false,
        dead: false,
        unused: false,
        data: None,
    };
    let again = End {
        again: Some(When::Soon),
        ..done
    };
    Script(vec![
        Step::Do(add(&[0]), CommitFate::Normal),
        accept(),
        Step::Do(Act::Finish(vec![(0, again)]), CommitFate::Normal),
        accept(),
        lost(Act::Finish(vec![(1, done), (0, done)])),
    ])
}

/// A holder without a type has a longer timeout than the type gets later.
fn accepted_without_a_type() -> Script {
    let rules = Rules {
        retention_ms: None,
        stalls_max: None,
        backoff_ms: 0,
        healthy_ms: 0,
    };
    Script(vec![
        Step::Do(add(&[0]), CommitFate::Normal),
        Step::ClearType(0),
        accept(),
        Step::SetType(0, rules),
        Step::Maintain {
            silent: vec![0],
            verdict: Word::Policy,
        },
    ])
}
