//! Known bugs that a test can plant, to show that a simulation finds each. Crates that build on this one plant theirs in
//! the same way. In builds without debug assertions there are none, and checking for one costs nothing.

/// A bug to plant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A batch of claims writes the activity row of only its last job.
    OneActivityRowPerBatch,
    /// A resubmit without data clears the data.
    ResubmitLosesData,
    /// The monitor acts on its scan without reading the job again.
    StallWithoutReading,
    /// A resubmit without a due time means "in two thousand years".
    ResubmitFarFuture,
    /// Adding a running job again drops the new data.
    ReAddDropsData,
    /// A stall forgets that another run was requested.
    StallDropsNext,
    /// A subscription does not read the job after it has registered.
    SubscribeWithoutReading,
    /// After an error of reading the types there are none.
    NoTypesOnError,
    /// Finishing does not compare the lock.
    FinishWithoutLock,
    /// Finishing again with the same lock is rejected.
    FinishNotIdempotent,
    /// Adding does not recognise its own earlier success.
    AddNotIdempotent,
    /// A claim does not recognise its own earlier success.
    ClaimForgets,
    /// The monitor does not count the jobs it recovers.
    StallUncounted,
    /// Adding wakes no sleeper, and sleepers do not poll.
    WakesNoSleeper,
    /// A loop retries at once after an error.
    BusyLoop,
    /// A finished job that is added again keeps its row in the index of finished jobs.
    ReviveKeepsFinishedRow,
    /// A finished job's subscribers are not notified.
    FinishNotifiesNone,
    /// A holder's call clears the marker of another call that may still be retried.
    CallsForgetOthers,
    /// A removal or requested run leaves no note for the holder.
    CancelLeavesNoNote,
    /// A note about a run that is not known yet is dropped.
    EarlyInterruptsAreLost,
    /// A holder keeps the heartbeat interval that it started with.
    KeepsFirstPace,
    /// The monitor applies a timeout that holders have not learned yet.
    TimeoutOfType,
    /// Scheduled jobs are claimed before they are due.
    IgnoresSchedule,
    /// A conflicting batch of a background service is retried unchanged.
    BatchNeverSplits,
    /// A monitor's duty that fails ends its other duties.
    DutiesFailTogether,
    /// A dead letter is finished like any other job.
    DeadIsFinished,
    /// A dead job that is retried has as many failures as before.
    RetryKeepsFailures,
    /// A header that cannot be decoded fails the claim.
    UndecodableFailsClaim,
    /// A signal makes a job run before its back-off is over.
    SignalCutsBackOff,
    /// A signal requests another run of a running job like a creator.
    SignalDisturbsRun,
    /// A signal replaces an earlier time by a later one.
    SignalMergeLost,
    /// A signal during a run is dropped when the run ends.
    SignalForgotten,
    /// A claim takes a slot that it has read without conflict.
    SlotReadBlindly,
    /// A job waits behind another that it has read without conflict.
    WaitsBehindBlindly,
    /// A job that stalls keeps its slots.
    StallKeepsSlots,
    /// A freed slot is free although a job has just begun to wait for it.
    HandOverLost,
    /// A freed slot is free although jobs wait for it.
    WaitersSkipped,
    /// A job begins to wait for slots that it has read without conflict, among others of later classes.
    OutranksBlindly,
    /// A freed slot goes to a job although one of an earlier class has just begun to wait for it.
    GrantsBlindly,
    /// A job with a slot of its key needs none of its pool.
    PoolIgnored,
    /// A rate does not count the runs that start.
    RateUnspent,
    /// A job that was given a slot starts although the limit was lowered since.
    LoweredTooLate,
    /// A freed slot goes to the same one of all jobs that wait, whichever waits longest.
    LastWaiterFirst,
    /// A tenant without ready jobs is removed although one has just been added.
    TenantLeavesBlindly,
    /// A claim takes no jobs of the tenant that is next.
    TenantSkipped,
    /// A caller saves its cursor in a feed before it sends the signals.
    CursorSavedFirst,
    /// A caller notes what wakes a job only when the job's run has ended.
    WakeWrittenLate,
}

/// The bug that is planted, if any.
#[derive(Debug, Clone, Copy, Default)]
pub struct Planted(#[cfg(any(test, debug_assertions))] Option<Bug>);

impl Planted {
    /// This bug.
    #[cfg(any(test, debug_assertions))]
    pub fn bug(bug: Bug) -> Self {
        Self(Some(bug))
    }

    /// Whether this bug is planted.
    #[cfg(any(test, debug_assertions))]
    pub fn is(self, bug: Bug) -> bool {
        self.0 == Some(bug)
    }

    /// Whether this bug is planted.
    #[cfg(not(any(test, debug_assertions)))]
    #[expect(clippy::unused_self, reason = "the same call as with debug assertions")]
    pub fn is(self, _bug: Bug) -> bool {
        false
    }
}
