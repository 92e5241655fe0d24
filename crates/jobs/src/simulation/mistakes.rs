//! Proof that the simulation bites: each known mistake is found, by few seeds.

use store::Weaken;

use super::{report, simulate};
use crate::planted::{Bug, Planted};
use crate::simulation::fleet::Mistake;

/// How many seeds a mistake may survive.
const SEEDS: u64 = 200;

/// Runs seeds until one finds the mistake.
fn is_found(what: &str, mistake: Mistake) {
    for seed in 1..=SEEDS {
        let outcome = simulate(seed, mistake);
        if let Some(problem) = outcome.problems.first() {
            let problem: String = problem.chars().take(300).collect();
            println!("{what}: found by seed {seed}: {problem}");
            if std::env::var_os("DAVENPORT_SHOW").is_some() {
                println!("{}", report(seed, &outcome));
            }
            return;
        }
    }
    panic!("{what}: survived {SEEDS} seeds");
}

/// A test for each mistake in the queue.
macro_rules! planted {
    ($($test:ident: $bug:ident,)*) => {
        mod planted {
            $(#[test]
            fn $test() {
                let planted = super::Planted::bug(super::Bug::$bug);
                let mistake = super::Mistake { planted, weaken: None };
                super::is_found(stringify!($bug), mistake);
            })*
        }
    };
}

planted! {
    one_activity_row_per_batch: OneActivityRowPerBatch,
    resubmit_loses_data: ResubmitLosesData,
    stall_without_looking: StallWithoutLooking,
    resubmit_far_future: ResubmitFarFuture,
    re_add_drops_data: ReAddDropsData,
    stall_drops_next: StallDropsNext,
    subscribe_without_looking: SubscribeWithoutLooking,
    no_types_on_error: NoTypesOnError,
    finish_without_lock: FinishWithoutLock,
    finish_not_idempotent: FinishNotIdempotent,
    add_not_idempotent: AddNotIdempotent,
    claim_forgets: ClaimForgets,
    stall_uncounted: StallUncounted,
    nobody_wakes: NobodyWakes,
    busy_loop: BusyLoop,
    revive_keeps_finished_row: ReviveKeepsFinishedRow,
    finish_tells_nobody: FinishTellsNobody,
    ignores_schedule: IgnoresSchedule,
}

/// A test for each transaction whose reads do not conflict any more. That of `lease` is in
/// [`leases`](super::leases): it hurts no job, only the nodes, which then sweep in vain. `recall` has
/// none: it writes nothing, and so none of its reads conflicts; that it reads at all is tried by
/// [`Bug::ClaimForgets`].
macro_rules! weakened {
    ($($transaction:ident,)*) => {
        mod weakened {
            $(#[test]
            fn $transaction() {
                let weaken = super::Weaken {
                    transaction: stringify!($transaction),
                    nth_read: None,
                };
                let mistake = super::Mistake {
                    weaken: Some(weaken),
                    ..super::Mistake::default()
                };
                super::is_found(stringify!($transaction), mistake);
            })*
        }
    };
}

weakened! {
    accept,
    add,
    expire,
    finish,
    notice,
    remove,
    resubmit,
    stall,
    subscribe,
    update,
}
