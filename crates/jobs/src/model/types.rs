//! The registration of a type.

use bytes::Bytes;

use crate::Result;
use crate::model::codec::{Reader, Writer};

const FORMAT: u8 = 1;

/// The settings of a type; their row is the registration of the type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeConfig {
    /// A holder that is silent for longer loses its job. Send heartbeats at most a third of this apart.
    pub timeout_ms: u64,
    /// How long a job is kept after it has finished, unless it says otherwise; `None` for good, and 0
    /// not at all: it is deleted in the transaction that finishes it. If it has subscribers then, it is kept for
    /// a minute. Jobs keep what was set when they were added last. [Dead](crate::State::Dead) jobs are kept in any case.
    pub retention_ms: Option<u64>,
    /// What happens to jobs of silent holders.
    pub stalls: StallPolicy,
}

/// What happens to a job whose holder went silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallPolicy {
    /// After so many silent holders in a row the job is [dead](crate::State::Dead), as [given
    /// up](crate::Outcome::GaveUp); `None` never.
    pub stalls_max: Option<u32>,
    /// The delay after the first stall, doubling with each further one; 0 for none.
    pub backoff_ms: u64,
    /// The maximum delay.
    pub backoff_ms_max: u64,
    /// A longer run was healthy: its stall counts as the first. 0 never.
    pub healthy_ms: u64,
}

impl TypeConfig {
    /// A type with this timeout that keeps finished jobs and reruns stalled ones at once.
    pub fn new(timeout_ms: u64) -> Self {
        Self {
            timeout_ms,
            retention_ms: None,
            stalls: StallPolicy {
                stalls_max: None,
                backoff_ms: 0,
                backoff_ms_max: 0,
                healthy_ms: 0,
            },
        }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut to = Writer::new(FORMAT);
        to.uint(self.timeout_ms);
        to.option(self.retention_ms, Writer::uint);
        to.option(self.stalls.stalls_max, Writer::uint);
        to.uint(self.stalls.backoff_ms);
        to.uint(self.stalls.backoff_ms_max);
        to.uint(self.stalls.healthy_ms);
        to.finish()
    }

    pub(crate) fn decode(value: Bytes) -> Result<Self> {
        let mut from = Reader::new(value, "a job type", FORMAT)?;
        let config = Self {
            timeout_ms: from.uint()?,
            retention_ms: from.option(Reader::uint)?,
            stalls: StallPolicy {
                stalls_max: from.option(Reader::uint)?,
                backoff_ms: from.uint()?,
                backoff_ms_max: from.uint()?,
                healthy_ms: from.uint()?,
            },
        };
        from.end()?;
        Ok(config)
    }
}

impl StallPolicy {
    /// The delay after this many stalls in a row; `None` if the job must be given up.
    pub fn wait_ms(&self, stalls: u32) -> Option<u64> {
        if self.stalls_max.is_some_and(|max| stalls > max) {
            return None;
        }
        let doubled = 1_u64 << stalls.saturating_sub(1).min(32);
        Some((self.backoff_ms.saturating_mul(doubled)).min(self.backoff_ms_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_until_a_job_is_given_up() {
        let policy = StallPolicy {
            stalls_max: Some(4),
            backoff_ms: 100,
            backoff_ms_max: 350,
            healthy_ms: 0,
        };
        let waits: Vec<_> = (1..=5).map(|stalls| policy.wait_ms(stalls)).collect();
        assert_eq!(waits, [Some(100), Some(200), Some(350), Some(350), None]);
        assert_eq!(TypeConfig::new(1).stalls.wait_ms(u32::MAX), Some(0));
    }
}
