//! Types: registering them, and what a registration says.

use std::collections::BTreeMap;

use bytes::Bytes;
use store::{KeyRange, RangeOptions, Transaction};

use crate::codec::{Reader, Writer};
use crate::keys::stamp_template;
use crate::{Error, JobType, Jobs, Result};

const FORMAT: u8 = 1;

/// What is known of a type; its being stored is the registration of the type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeConfig {
    /// A holder that is silent for longer loses its job. Holders send heart-beats at a third of it or sooner.
    pub timeout_ms: u64,
    /// How long a job is kept after it has finished, unless it says otherwise; `None` for good.
    /// Jobs keep what was set when they were added last.
    pub retention_ms: Option<u64>,
    /// What becomes of jobs whose holder went silent.
    pub stalls: StallPolicy,
}

/// What becomes of a job whose holder went silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallPolicy {
    /// After so many silent holders in a row the job is finished as [given
    /// up](crate::Outcome::GaveUp); `None` never.
    pub stalls_max: Option<u32>,
    /// How long it waits after its first stall, twice that after the second, and so on; 0 not at all.
    pub backoff_ms: u64,
    /// The longest it waits.
    pub backoff_ms_max: u64,
    /// A run that lasted longer was healthy: its stall counts as the first. 0 never.
    pub healthy_ms: u64,
}

impl TypeConfig {
    /// A type of this timeout, which keeps finished jobs and runs stalled ones again at once.
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
    /// How long a job waits after so many stalls in a row; `None` when it has to be given up.
    pub fn wait_ms(&self, stalls: u32) -> Option<u64> {
        if self.stalls_max.is_some_and(|max| stalls > max) {
            return None;
        }
        let doubled = 1_u64 << stalls.saturating_sub(1).min(32);
        Some((self.backoff_ms.saturating_mul(doubled)).min(self.backoff_ms_max))
    }
}

impl Jobs {
    /// Registers a type, or changes its registration. Every node hears of it within seconds.
    pub async fn set_type(&self, ty: &JobType, config: TypeConfig) -> Result<()> {
        (self.store())
            .transact("set_type", |tx| async move {
                self.set_type_in(&tx, ty, config).await
            })
            .await
    }

    /// [`Self::set_type`] in the caller's transaction. Writes nothing when nothing changes.
    pub async fn set_type_in(
        &self,
        tx: &Transaction,
        ty: &JobType,
        config: TypeConfig,
    ) -> Result<()> {
        if config.timeout_ms == 0 {
            return Err(Error::Invalid("a job type's timeout is at least 1 ms"));
        }
        let (key, value) = (self.keys().type_row(ty), config.encode());
        if tx.get(&key).await?.is_some_and(|old| *old == *value) {
            return Ok(());
        }
        tx.set(&key, &value);
        self.bump_types(tx);
        Ok(())
    }

    /// Removes the registration of a type: nothing can be added any more, subscriptions end, and
    /// nobody watches over its running jobs. Its jobs stay, and come back with its registration.
    pub async fn clear_type(&self, ty: &JobType) -> Result<()> {
        (self.store())
            .transact("clear_type", |tx| async move {
                self.clear_type_in(&tx, ty);
                Ok(())
            })
            .await
    }

    /// [`Self::clear_type`] in the caller's transaction.
    pub fn clear_type_in(&self, tx: &Transaction, ty: &JobType) {
        tx.clear(&self.keys().type_row(ty));
        self.bump_types(tx);
    }

    /// The registration of a type, or `None` if it has none.
    pub async fn type_config(&self, ty: &JobType) -> Result<Option<TypeConfig>> {
        (self.store())
            .transact("type_config", |tx| async move {
                self.type_config_in(&tx, ty).await
            })
            .await
    }

    /// [`Self::type_config`] in the caller's transaction, by a snapshot read: whoever adds jobs
    /// does not conflict with whoever changes the type.
    pub async fn type_config_in(
        &self,
        tx: &Transaction,
        ty: &JobType,
    ) -> Result<Option<TypeConfig>> {
        let value = tx.snapshot().get(&self.keys().type_row(ty)).await?;
        value.map(TypeConfig::decode).transpose()
    }

    /// All registered types.
    pub async fn types(&self) -> Result<BTreeMap<JobType, TypeConfig>> {
        (self.store())
            .transact("types", |tx| async move { self.types_in(&tx).await })
            .await
    }

    /// [`Self::types`] in the caller's transaction, by a snapshot read.
    pub async fn types_in(&self, tx: &Transaction) -> Result<BTreeMap<JobType, TypeConfig>> {
        let range: KeyRange = self.keys().type_rows();
        let mut rows = tx.snapshot().get_range(range, RangeOptions::default());
        let mut types = BTreeMap::new();
        while let Some(row) = rows.next().await? {
            let name = self.keys().type_name(&row.key)?;
            types.insert(name, TypeConfig::decode(row.value)?);
        }
        Ok(types)
    }

    fn bump_types(&self, tx: &Transaction) {
        let value = stamp_template(self.store().incarnation(), &[]);
        tx.set_versionstamped_value(&self.keys().types(), &value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_waits_doubling_and_gives_up() {
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
