//! Registering types.

use std::collections::BTreeMap;
use std::time::Duration;

use store::{KeyRange, RangeOptions, Transaction};

use crate::model::keys::stamp_template;
use crate::{Error, JobType, Jobs, Result, TypeConfig};

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

    /// The timeout that a holder of a job of this type is to keep to. Without a registration nobody judges it.
    pub(crate) async fn timeout_in(&self, tx: &Transaction, ty: &JobType) -> Result<Duration> {
        const UNREGISTERED_MS: u64 = 60_000;
        let config = self.type_config_in(tx, ty).await?;
        let timeout_ms = config.map_or(UNREGISTERED_MS, |config| config.timeout_ms);
        Ok(Duration::from_millis(timeout_ms))
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
