//! Why a run began and how it ended, for counters.

/// How a run ended.
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

/// Why a triggered replication ran.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reason {
    /// Its source has changed.
    Change,
    /// It is to run at least this often.
    Time,
    /// Its last run failed.
    Retry,
    /// It is new, was asked to run, or its last run was stopped.
    Start,
}

impl Reason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Change => "change",
            Self::Time => "time",
            Self::Retry => "retry",
            Self::Start => "start",
        }
    }
}
