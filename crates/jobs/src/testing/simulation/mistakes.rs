//! Proof that the simulation bites: each known mistake is found, by few seeds.

use store::Weaken;

use super::{leases, report, simulate};
use crate::testing::bites::{self, Mistake};

/// How many seeds a mistake may survive.
const SEEDS: u64 = 200;
/// How many seeds it takes to see every read.
const LOGGED: u64 = 8;

/// Runs seeds until one finds the mistake.
fn is_found(what: &str, mistake: &Mistake) {
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
        // It hurts no job, only the nodes, which then sweep in vain.
        let problem = (seed <= leases::SEEDS).then(|| leases::simulate(seed, mistake));
        if let Some(problem) = problem.flatten() {
            return println!("{what}: found by the leases of seed {seed}: {problem}");
        }
    }
    panic!("{what}: survived {SEEDS} seeds");
}

bites::planted! {
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

bites::weakened! {
    accept_first: accept Job First,
    accept_later: accept Job Later,
    add: add Job First,
    lease: lease Lease All,
    notice_first: notice Job First,
    notice_later: notice Job Later,
    remove: remove Job All,
    subscribe: subscribe Job All,
    update: update Job All,
}

pub(crate) fn weakened() -> &'static [Weaken] {
    weakened::ALL
}

/// Runs what is to be noted.
pub(crate) fn log(mistake: &Mistake) {
    for seed in 1..=LOGGED {
        simulate(seed, mistake);
        leases::simulate(seed, mistake);
    }
}
