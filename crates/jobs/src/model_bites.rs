//! Proof that the model in `tests/model` bites: each mistake that it can see is found by few scripts,
//! and what is left of the script when it is cut down is short.

#[path = "../tests/model/calls.rs"]
mod calls;
#[path = "../tests/model/plain.rs"]
mod plain;
#[path = "../tests/model/play.rs"]
mod play;
#[path = "../tests/model/script.rs"]
mod script;
#[path = "../tests/model/shown.rs"]
mod shown;
#[path = "../tests/model/words.rs"]
mod words;

use std::cell::Cell;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use store::{Store, Weaken};
use tokio::runtime::Builder;

use crate as queue;
use crate::planted::{Bug, Planted};
use crate::{Clock, Entropy, Jobs};

/// How many scripts a mistake may survive, and how many steps of the one that finds it may be left.
const SCRIPTS: u32 = 1_500;
const STEPS: usize = 20;

fn is_found(planted: Planted, weaken: Option<Weaken>) {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let make = move |store: Store, clock: Clock, entropy: Entropy| {
        Jobs::planted_with(store, clock, entropy, planted)
    };
    let config = Config {
        cases: SCRIPTS,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let played = Cell::new(0_u128);
    let found = TestRunner::new_with_rng(config, rng).run(&script::script(), |script| {
        played.set(played.get() + 1);
        let store = runtime.block_on(Store::open("memory:")).unwrap();
        let playing = play::play(&store, &make, weaken, played.get(), &script);
        runtime.block_on(playing).map_err(TestCaseError::fail)
    });
    match found {
        Err(TestError::Fail(_, script)) => {
            println!("found by {} scripts, {script:?}", played.get());
            assert!(script.0.len() <= STEPS, "{script:?}");
        }
        other => panic!("it survived: {other:?}"),
    }
}

/// A test for each mistake in the queue that changes what one actor after the other sees.
macro_rules! planted {
    ($($test:ident: $bug:ident,)*) => {
        mod planted {
            $(#[test]
            fn $test() {
                super::is_found(super::Planted::bug(super::Bug::$bug), None);
            })*
        }
    };
}

planted! {
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

/// A test for each call whose reads do not conflict any more with what another commits meanwhile.
macro_rules! weakened {
    ($($transaction:ident,)*) => {
        mod weakened {
            $(#[test]
            fn $transaction() {
                let weaken = super::Weaken {
                    transaction: stringify!($transaction),
                    nth_read: None,
                };
                super::is_found(super::Planted::default(), Some(weaken));
            })*
        }
    };
}

weakened! {
    accept,
    add,
    finish,
    remove,
    resubmit,
    run_again,
    update,
}
