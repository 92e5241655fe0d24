//! The registration of a type.

use bytes::Bytes;

use crate::model::codec::{Reader, Writer};
use crate::{Error, Result};

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
    /// Whether its due jobs are taken by tenant.
    pub sharing: Sharing,
}

/// Whether the due jobs of a type are taken by [tenant](crate::Add::tenant), so that each tenant gets its
/// [share](crate::Jobs::set_shares) of the time of the holders.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Tenants do not matter.
    #[default]
    Off,
    /// By tenant. Jobs without one share as one tenant.
    On,
    /// No longer: jobs that were added before are still found. [`Jobs::set_type`](crate::Jobs::set_type) stores this in
    /// place of `Off` for a type that was `On`.
    Ended,
}

impl Sharing {
    const ALL: [Self; 3] = [Self::Off, Self::On, Self::Ended];
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
            sharing: Sharing::Off,
        }
    }

    /// The settings to store in place of these.
    pub(crate) fn after(self, old: Option<Self>) -> Self {
        let shared = old.is_some_and(|old| old.sharing != Sharing::Off);
        let sharing = match self.sharing {
            Sharing::Off if shared => Sharing::Ended,
            sharing => sharing,
        };
        Self { sharing, ..self }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut to = Writer::new(FORMAT);
        to.uint(self.timeout_ms);
        to.option(self.retention_ms, Writer::uint);
        to.option(self.stalls.stalls_max, Writer::uint);
        to.uint(self.stalls.backoff_ms);
        to.uint(self.stalls.backoff_ms_max);
        to.uint(self.stalls.healthy_ms);
        if self.sharing != Sharing::Off {
            to.byte(self.sharing as u8);
        }
        to.finish()
    }

    pub(crate) fn decode(value: Bytes) -> Result<Self> {
        let mut from = Reader::new(value, "a job type", FORMAT)?;
        let mut config = Self {
            timeout_ms: from.uint()?,
            retention_ms: from.option(Reader::uint)?,
            stalls: StallPolicy {
                stalls_max: from.option(Reader::uint)?,
                backoff_ms: from.uint()?,
                backoff_ms_max: from.uint()?,
                healthy_ms: from.uint()?,
            },
            sharing: Sharing::Off,
        };
        if !from.is_empty() {
            let number = usize::from(from.byte()?);
            config.sharing = *(Sharing::ALL.get(number))
                .ok_or_else(|| Error::corrupt("unknown sharing mode of a job type"))?;
        }
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
    fn a_type_that_shared_says_so() {
        let of = |sharing| TypeConfig {
            sharing,
            ..TypeConfig::new(7)
        };
        for sharing in Sharing::ALL {
            let value = of(sharing).encode().into();
            assert_eq!(TypeConfig::decode(value).unwrap(), of(sharing));
        }
        let [off, on, ended] = Sharing::ALL.map(of);
        assert_eq!(off.after(Some(on)), ended);
        assert_eq!(off.after(Some(ended)), ended);
        assert_eq!(off.after(Some(off)), off);
        assert_eq!(on.after(Some(ended)), on);
        assert_eq!(on.after(None), on);
    }

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
