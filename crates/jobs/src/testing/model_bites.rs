//! Proof that the model in `tests/model` bites: each mistake that it can see is found by few scripts,
//! and what is left of the script when it is cut down is short.

#[path = "../../tests/model/calls.rs"]
mod calls;
#[path = "../../tests/model/plain.rs"]
mod plain;
#[path = "../../tests/model/play.rs"]
mod play;
#[path = "../../tests/model/script.rs"]
mod script;
#[path = "../../tests/model/shown.rs"]
mod shown;
#[path = "../../tests/model/words.rs"]
mod words;

use std::cell::Cell;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use store::{Faults, Store, Weaken};
use tokio::runtime::Builder;

use crate as queue;
use crate::testing::bites::{self, Mistake};
use crate::{Clock, Entropy, Jobs};

/// How many scripts a mistake may survive, and how many steps of the one that finds it may be left.
const SCRIPTS: u32 = 1_500;
const STEPS: usize = 20;
/// How many scripts it takes to see every read.
const LOGGED: u32 = 60;

/// Plays scripts until one finds the mistake.
fn search(scripts: u32, mistake: &Mistake) -> (u128, Result<(), TestError<script::Script>>) {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let planted = mistake.planted;
    let make = move |store: Store, clock: Clock, entropy: Entropy| {
        Jobs::planted_with(store, clock, entropy, planted)
    };
    let config = Config {
        cases: scripts,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let played = Cell::new(0_u128);
    let found = TestRunner::new_with_rng(config, rng).run(&script::script(), |script| {
        played.set(played.get() + 1);
        let store = runtime.block_on(Store::open("memory:")).unwrap();
        let faults = Faults {
            weaken: mistake.weaken,
            log: mistake.log.clone(),
            ..Faults::default()
        };
        let playing = play::play(&store, &make, faults, played.get(), &script);
        runtime.block_on(playing).map_err(TestCaseError::fail)
    });
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

bites::planted! {
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
}

bites::weakened! {
    accept_first: accept Job First,
    accept_later: accept Job Later,
    add_first: add Job First,
    add_later: add Job Later,
    finish_first: finish Job First,
    finish_later: finish Job Later,
    remove: remove Job All,
    resubmit: resubmit Job All,
    run_again: run_again Job All,
    update: update Job All,
}

pub(crate) fn weakened() -> &'static [Weaken] {
    weakened::ALL
}

/// Runs what is to be noted.
pub(crate) fn log(mistake: &Mistake) {
    let (_, played) = search(LOGGED, mistake);
    played.unwrap();
}
