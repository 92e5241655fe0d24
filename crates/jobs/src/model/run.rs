//! A process's knowledge of a run that it holds.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use store::CommitStamp;
use tokio_util::sync::CancellationToken;

use crate::model::limits::Limits;
use crate::{Error, JobId, JobLock, Result};

/// Shared by all clones of a [`Job`](crate::Job).
#[derive(Debug, Default)]
pub(crate) struct Run {
    calls: Mutex<Vec<Call>>,
    pace: Mutex<Pace>,
    pub(crate) again: CancellationToken,
    pub(crate) lost: CancellationToken,
    /// The job's tenant does not pay while its holder waits.
    pub(crate) idle: AtomicBool,
    /// The limits of the job, if this process has claimed it.
    pub(crate) limits: OnceLock<Limits>,
}

/// How long the holder may be silent.
#[derive(Debug, Default)]
struct Pace {
    timeout: Duration,
    /// Applies once the heartbeat that announces it is committed.
    longer: Option<(Duration, CommitStamp)>,
}

/// An interrupt for the holder of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// A creator requested another run.
    Again = 1,
    /// The job was removed.
    Lost = 2,
}

impl Interrupt {
    /// The interrupt in a note about a run, in place of a job id.
    pub(crate) fn note(self, lock: JobLock) -> Result<JobId> {
        JobId::new([&lock.as_bytes()[..], &[self as u8]].concat())
    }

    pub(crate) fn of_note(note: &JobId) -> Result<(JobLock, Self)> {
        let interrupt = match note.as_bytes().get(16) {
            Some(1) => Some(Self::Again),
            Some(2) => Some(Self::Lost),
            _ => None,
        };
        let lock = note.as_bytes().first_chunk();
        (lock.zip(interrupt))
            .map(|(lock, interrupt)| (JobLock::from_bytes(*lock), interrupt))
            .ok_or_else(|| Error::corrupt("a message to a holder cannot be decoded"))
    }
}

/// A call of the holder that may be retried while `alive` lives.
#[derive(Debug)]
struct Call {
    name: u64,
    alive: Weak<()>,
}

/// Calls of a run that will not be retried, whose ids may be dropped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All of them; rows of earlier ones, no longer known, may exist, too.
    All,
    Some(Vec<u64>),
}

impl Run {
    pub(crate) fn interrupt(&self, interrupt: Interrupt) {
        match interrupt {
            Interrupt::Again => self.again.cancel(),
            Interrupt::Lost => self.lost.cancel(),
        }
    }

    /// The timeout announced by the last heartbeat, or a shorter one.
    pub(crate) fn timeout(&self) -> Duration {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let committed = |(_, stamp): &mut (Duration, CommitStamp)| stamp.get().is_some();
        if let Some((longer, _)) = pace.longer.take_if(committed) {
            pace.timeout = longer;
        }
        pace.timeout
    }

    /// A heartbeat announces this timeout. A shorter one applies at once: another try may have been committed.
    pub(crate) fn promise(&self, timeout: Duration, stamp: CommitStamp) {
        let now = self.timeout();
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.timeout = now.min(timeout);
        pace.longer = (timeout > now).then_some((timeout, stamp));
    }

    /// Sets the timeout of a committed claim.
    pub(crate) fn set_timeout(&self, timeout: Duration) {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.timeout = timeout;
    }

    /// Starts or retries a call; returns the calls that have ended since.
    pub(crate) fn call(&self, name: u64, alive: Weak<()>, forgets: bool) -> Vec<u64> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = |call: &Call| forgets || call.alive.strong_count() == 0;
        let ended = calls.extract_if(.., |call| call.name != name && ended(call));
        let ended = ended.map(|call| call.name).collect();
        if !calls.iter().any(|call| call.name == name) {
            calls.push(Call { name, alive });
        }
        ended
    }

    /// Calls that may be dropped when the run ends.
    pub(crate) fn end(&self) -> Ended {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = || calls.iter().filter(|call| call.alive.strong_count() == 0);
        if !calls.is_empty() && ended().count() == calls.len() {
            return Ended::All;
        }
        Ended::Some(ended().map(|call| call.name).collect())
    }
}

/// Runs are compared by their lock, not by this.
impl PartialEq for Run {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Run {}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn calls_are_kept_while_they_may_be_retried() {
        let (run, one, two) = (Run::default(), Arc::new(()), Arc::new(()));
        assert_eq!(run.end(), Ended::Some(vec![]));
        assert!(run.call(1, Arc::downgrade(&one), false).is_empty());
        assert!(run.call(2, Arc::downgrade(&two), false).is_empty());
        assert_eq!(run.end(), Ended::Some(vec![]));
        // A retry.
        assert!(run.call(1, Arc::downgrade(&one), false).is_empty());
        drop(one);
        assert_eq!(run.end(), Ended::Some(vec![1]));
        assert_eq!(run.call(2, Arc::downgrade(&two), false), [1]);
        drop(two);
        assert_eq!(run.end(), Ended::All);
    }
}
