//! Shrunk scripts that once found a bug; they are always played.

use store::CommitFate;

use super::script::{Act, Kept, Request, Script, Step, When};
use crate::testing::rules::Token;

pub(super) fn scripts() -> Vec<Script> {
    vec![
        resubmitted_without_an_answer(),
        long_batch_without_an_answer(),
        unchanged_first_without_an_answer(),
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

/// A holder that requests another run learns that it had requested one before.
fn resubmitted_without_an_answer() -> Script {
    let accept = Act::Accept {
        ty: 0,
        holder: 0,
        count: 1,
        horizon: None,
    };
    Script(vec![
        Step::Do(add(&[0]), CommitFate::Normal),
        Step::Do(accept, CommitFate::Normal),
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
