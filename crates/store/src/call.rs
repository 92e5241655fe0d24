//! Options of a call of [`Store::transact`](crate::Store::transact).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::pending::Stamp;
use crate::{Error, Result};

/// The name, deadline and priority of a transaction.
///
/// A plain string is a call with the defaults: `store.transact("accept", …)`.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Labels metrics and log lines.
    pub name: &'static str,
    /// How a busy store ranks it.
    pub priority: Priority,
    /// The most time for all attempts and pauses.
    pub deadline: Duration,
    /// The most retries.
    pub retries_max: u32,
    /// The most retries after conflicts and snapshots that became too old.
    pub contention_max: u32,
    /// Whether the caller waits until what was read and written is durable.
    pub durable: bool,
}

/// How a busy store ranks transactions. Only `FoundationDB` distinguishes priorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// A client waits for it.
    Default,
    /// Background work.
    Batch,
}

impl Call {
    /// A call that a client waits for.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            priority: Priority::Default,
            deadline: Duration::from_secs(30),
            retries_max: 100,
            contention_max: u32::MAX,
            durable: true,
        }
    }

    /// Background work: sweeps, counts, clean-up.
    pub fn batch(name: &'static str) -> Self {
        Self {
            priority: Priority::Batch,
            ..Self::new(name)
        }
    }

    /// Sets the deadline.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Returns as soon as the writes are visible to others. A power cut may then undo them and all
    /// later ones; a crash of a process does not. Has an effect on LMDB only.
    #[must_use]
    pub fn not_durable(self) -> Self {
        Self {
            durable: false,
            ..self
        }
    }

    /// Sets the retry limit.
    #[must_use]
    pub fn retries_max(self, retries_max: u32) -> Self {
        Self {
            retries_max,
            ..self
        }
    }

    /// Sets the limit of retries after [`Error::Conflict`](crate::Error::Conflict) and
    /// [`Error::TooOld`](crate::Error::TooOld), for a caller that then tries with less.
    #[must_use]
    pub fn contention_max(self, contention_max: u32) -> Self {
        Self {
            contention_max,
            ..self
        }
    }
}

impl From<&'static str> for Call {
    fn from(name: &'static str) -> Self {
        Self::new(name)
    }
}

/// One attempt of a call.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub(crate) name: &'static str,
    pub(crate) number: u32,
    pub(crate) maybe_committed: bool,
    pub(crate) until: Until,
    /// Dropped with the call.
    pub(crate) call: Arc<()>,
}

/// What a commit waits for.
#[derive(Debug, Clone)]
pub(crate) enum Until {
    Visible,
    Durable,
    /// Until it is visible. What is still to be waited for is left here.
    Ahead(Ahead),
}

/// Receives the stamp, or `None` if the transaction only read.
pub(crate) type Answer = oneshot::Receiver<Result<Option<Stamp>>>;

/// Where a commit leaves what is still to be waited for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ahead(Arc<Mutex<Option<Answer>>>);

impl Ahead {
    pub(crate) fn leave(&self, answer: Answer) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
    }

    pub(crate) fn take(self) -> Durable {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Durable(left.take())
    }
}

/// When a transaction that others can see already is durable: see
/// [`Store::transact_ahead`](crate::Store::transact_ahead).
#[derive(Debug, Default)]
#[must_use]
pub struct Durable(Option<Answer>);

impl Durable {
    /// Whether there is nothing to wait for.
    pub fn is_now(&self) -> bool {
        self.0.is_none()
    }

    /// Returns once a power cut cannot undo the transaction. [`Error::MaybeCommitted`] if the disk has failed.
    pub async fn wait(self) -> Result<()> {
        match self.0 {
            None => Ok(()),
            Some(answer) => answer.await.unwrap_or(Err(Error::MaybeCommitted)).map(drop),
        }
    }
}
