//! Shows that the [model](super) finds each planted bug that it can observe, within few scripts and
//! with a short one.

use std::cell::Cell;

use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use store::{Store, Weaken};

use super::script::Script;
use crate::testing::mistake::{self, Mistake};

/// Maximum scripts that a mistake may survive, and maximum steps of the shrunk script.
const SCRIPTS: u32 = 1_500;
const STEPS: usize = 20;
/// How many scripts it takes to see every read.
const LOGGED: u32 = 400;

/// Plays scripts until one finds the mistake; returns how many were played.
fn search(scripts: u32, mistake: &Mistake) -> (u128, Result<(), TestError<Script>>) {
    let runtime = mistake::paused();
    let config = Config {
        cases: scripts,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    // A store for each script, because services serve all types of a store.
    let store = || runtime.block_on(Store::open("memory:")).unwrap();
    let played = Cell::new(0);
    let found = super::search(&mut runner, &runtime, store, &played, mistake);
    (played.get(), found)
}

fn is_found(what: &str, mistake: &Mistake) {
    match search(SCRIPTS, mistake) {
        (played, Err(TestError::Fail(_, script))) => {
            println!("{what}: found by {played} scripts, {script:?}");
            assert!(script.0.len() <= STEPS, "{script:?}");
        }
        (_, other) => panic!("{what}: it survived: {other:?}"),
    }
}

mistake::planted! {
    one_activity_row_per_batch: OneActivityRowPerBatch,
    resubmit_loses_data: ResubmitLosesData,
    resubmit_far_future: ResubmitFarFuture,
    re_add_drops_data: ReAddDropsData,
    finish_without_lock: FinishWithoutLock,
    finish_not_idempotent: FinishNotIdempotent,
    add_not_idempotent: AddNotIdempotent,
    claim_forgets: ClaimForgets,
    revive_keeps_finished_row: ReviveKeepsFinishedRow,
    ignores_schedule: IgnoresSchedule,
    dead_is_finished: DeadIsFinished,
    retry_keeps_failures: RetryKeepsFailures,
    signal_cuts_back_off: SignalCutsBackOff,
    signal_disturbs_run: SignalDisturbsRun,
    signal_merge_lost: SignalMergeLost,
    signal_forgotten: SignalForgotten,
    tenant_skipped: TenantSkipped,
}

mistake::weakened! {
    accept_first: accept Job First,
    accept_later: accept Job Later,
    add_first: add Job First,
    add_later: add Job Later,
    finish_first: finish Job First,
    finish_later: finish Job Later,
    remove_first: remove Job First,
    resubmit_first: resubmit Job First,
    run_again: run_again Job All,
    signal_first: signal Job First,
    signal_later: signal Job Later,
    update: update Job All,
}

pub(crate) fn weakened() -> &'static [Weaken] {
    reads::ALL
}

/// Runs scripts whose reads are logged.
pub(crate) fn log(mistake: &Mistake) {
    let (_, played) = search(LOGGED, mistake);
    played.unwrap();
}
