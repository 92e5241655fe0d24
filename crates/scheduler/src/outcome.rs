//! How a run ended.

/// How a run ended, for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Completed,
    Failed,
    Crashed,
    Rescheduled,
    /// It has caught up, and sleeps until its source changes.
    Asleep,
    /// The lock was lost; another node decides about the job.
    Halted,
}
