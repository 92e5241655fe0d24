//! How a run ended.

/// How a run ended, for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Completed,
    Failed,
    Crashed,
    Rescheduled,
    /// The lock was lost; another node decides about the job.
    Halted,
}
