//! Known bugs that a test can plant, to show that the simulation finds each. Outside of tests there
//! are none, and asking costs nothing.

/// One deliberate mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A batch of claims writes the activity row of its last job only.
    OneActivityRowPerBatch,
    /// Missing data of a resubmit clears the data.
    ResubmitLosesData,
    /// The monitor acts on what its scan has seen, without looking again.
    StallWithoutLooking,
    /// A resubmit without a time means "in two thousand years".
    ResubmitFarFuture,
    /// Adding a running job again drops the new data.
    ReAddDropsData,
    /// A stall forgets that the job was added again.
    StallDropsNext,
    /// A subscription does not look at the job after it has registered.
    SubscribeWithoutLooking,
    /// A failure to read the types means that there are none.
    NoTypesOnError,
    /// Finishing does not compare the lock.
    FinishWithoutLock,
    /// Finishing again with the same lock is refused.
    FinishNotIdempotent,
    /// Adding does not recognise its own earlier success.
    AddNotIdempotent,
    /// A claim does not recognise its own earlier success.
    ClaimForgets,
    /// The monitor does not count what it does.
    StallUncounted,
    /// Adding wakes nobody, and sleepers do not look by themselves.
    NobodyWakes,
    /// A loop tries again at once after an error.
    BusyLoop,
    /// A finished job that is added again keeps its row in the index of finished jobs.
    ReviveKeepsFinishedRow,
    /// A finished job's subscribers are not told.
    FinishTellsNobody,
    /// A holder's call clears the name of another that may still be tried again.
    CallsForgetOthers,
    /// A job is removed, or wanted again, without a note to its holder.
    CancelTellsNobody,
    /// A note about a run that is not known yet is thrown away.
    EarlySignalsAreLost,
    /// A holder goes on at the pace that it began with.
    KeepsFirstPace,
    /// The monitor judges holders by a timeout that they have not heard of yet.
    JudgedByType,
    /// Scheduled jobs are handed out before they are due.
    IgnoresSchedule,
    /// A batch of a background service that conflicts is tried again as it is.
    BatchNeverSplits,
    /// A duty of a monitor that fails ends its other duties.
    DutiesFailTogether,
    /// A dead letter is finished like any other job.
    DeadIsFinished,
    /// A dead job that is retried has as many failures as before.
    RetryKeepsFailures,
    /// A header that cannot be decoded fails the claim.
    UndecodableFailsClaim,
}

/// The bug that is planted, if any.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Planted(#[cfg(test)] Option<Bug>);

impl Planted {
    #[cfg(test)]
    pub(crate) fn bug(bug: Bug) -> Self {
        Self(Some(bug))
    }

    #[cfg(test)]
    pub(crate) fn is(self, bug: Bug) -> bool {
        self.0 == Some(bug)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "the same call as in tests")]
    pub(crate) fn is(self, _bug: Bug) -> bool {
        false
    }
}
