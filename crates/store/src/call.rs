//! How one call of [`Store::transact`](crate::Store::transact) is to be run.

use std::time::Duration;

/// The name, patience and priority of a transaction.
///
/// A plain string is a call with the defaults: `store.transact("accept", …)`.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Labels metrics and log lines.
    pub name: &'static str,
    /// What yields to what when the store is busy.
    pub priority: Priority,
    /// How long the call may take, all attempts and pauses together.
    pub deadline: Duration,
    /// How often the body may be run again.
    pub retries_max: u32,
    /// Whether the caller waits until what was read and written is durable.
    pub durable: bool,
}

/// What yields to what when the store is busy. Only `FoundationDB` tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Somebody waits for it.
    Default,
    /// Background work, which gives way.
    Batch,
}

impl Call {
    /// A call that somebody waits for.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            priority: Priority::Default,
            deadline: Duration::from_secs(30),
            retries_max: 100,
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

    /// The same call with another deadline.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// The same call, answered as soon as others see what it wrote. A power cut may then undo it,
    /// with all that came after it; the death of a process does not. Only LMDB can be that quick.
    #[must_use]
    pub fn not_durable(self) -> Self {
        Self {
            durable: false,
            ..self
        }
    }

    /// The same call with another retry limit.
    #[must_use]
    pub fn retries_max(self, retries_max: u32) -> Self {
        Self {
            retries_max,
            ..self
        }
    }
}

impl From<&'static str> for Call {
    fn from(name: &'static str) -> Self {
        Self::new(name)
    }
}
