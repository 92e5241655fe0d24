//! Shows that the simulation finds each planted mistake within few seeds.

use store::Weaken;

use super::{campaign, damage, leases, simulate, slow};
use crate::testing::mistake::{self, Mistake};

/// Maximum seeds that a mistake may survive.
const SEEDS: u64 = 200;
/// Seeds needed to see every read.
const LOGGED: u64 = 8;

fn is_found(what: &str, mistake: &Mistake) {
    let simulate = |seed| {
        let (mut report, _) = simulate(seed, mistake);
        // A lease with two owners harms no job: only the nodes can detect it.
        if report.problems.is_empty() && seed <= leases::SEEDS {
            report.problems.extend(leases::simulate(seed, mistake));
        }
        // A fleet has neither damage nor a slow store.
        if report.problems.is_empty() && seed <= slow::SEEDS {
            report.problems.extend(slow::simulate(seed, mistake));
            report.problems.extend(damage::simulate(seed, mistake));
        }
        report
    };
    campaign(simulate).finds(what, SEEDS);
}

mistake::planted! {
    one_activity_row_per_batch: OneActivityRowPerBatch,
    resubmit_loses_data: ResubmitLosesData,
    stall_without_reading: StallWithoutReading,
    resubmit_far_future: ResubmitFarFuture,
    re_add_drops_data: ReAddDropsData,
    stall_drops_next: StallDropsNext,
    subscribe_without_reading: SubscribeWithoutReading,
    no_types_on_error: NoTypesOnError,
    finish_without_lock: FinishWithoutLock,
    finish_not_idempotent: FinishNotIdempotent,
    add_not_idempotent: AddNotIdempotent,
    claim_forgets: ClaimForgets,
    stall_uncounted: StallUncounted,
    wakes_no_sleeper: WakesNoSleeper,
    busy_loop: BusyLoop,
    revive_keeps_finished_row: ReviveKeepsFinishedRow,
    finish_notifies_none: FinishNotifiesNone,
    ignores_schedule: IgnoresSchedule,
    calls_forget_others: CallsForgetOthers,
    cancel_leaves_no_note: CancelLeavesNoNote,
    keeps_first_pace: KeepsFirstPace,
    timeout_of_type: TimeoutOfType,
    batch_never_splits: BatchNeverSplits,
    duties_fail_together: DutiesFailTogether,
    dead_is_finished: DeadIsFinished,
    retry_keeps_failures: RetryKeepsFailures,
    undecodable_fails_claim: UndecodableFailsClaim,
    signal_cuts_back_off: SignalCutsBackOff,
    signal_disturbs_run: SignalDisturbsRun,
    signal_merge_lost: SignalMergeLost,
    signal_forgotten: SignalForgotten,
    slot_read_blindly: SlotReadBlindly,
    stall_keeps_slots: StallKeepsSlots,
    waiters_skipped: WaitersSkipped,
    hand_over_lost: HandOverLost,
    pool_ignored: PoolIgnored,
    rate_unspent: RateUnspent,
    lowered_too_late: LoweredTooLate,
    last_waiter_first: LastWaiterFirst,
}

mistake::weakened! {
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
    reads::ALL
}

/// Runs seeds whose reads are logged.
pub(crate) fn log(mistake: &Mistake) {
    for seed in 1..=LOGGED {
        simulate(seed, mistake);
        leases::simulate(seed, mistake);
    }
}
