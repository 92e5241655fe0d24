//! Registration of types.
//!
//! Adds, claims and heartbeats need their type, on every node. To avoid reading one row constantly, a process caches
//! what its [`TypeWatcher`](crate::TypeWatcher) has read, until the watch on TYPES fires. The cache may be outdated for
//! a moment, which is harmless: retention and registration may change right after any read, and a heartbeat states the
//! timeout that its holder follows, which monitors apply.

pub(crate) mod known;

use std::collections::BTreeMap;
use std::time::Duration;

use store::{KeyRange, RangeOptions, Transaction};

use crate::model::keys::stamp_template;
use crate::{Error, JobType, Jobs, Result, Sharing, TypeConfig, telemetry};

impl Jobs {
    /// Registers a type, or changes its registration. Every node learns of it within seconds.
    pub async fn set_type(&self, ty: &JobType, config: TypeConfig) -> Result<()> {
        let set = (self.store())
            .transact("set_type", |tx| async move {
                self.set_type_in(&tx, ty, config).await
            })
            .await;
        self.known_types().forget();
        set
    }

    /// [`Self::set_type`] in the caller's transaction. Writes nothing if nothing changes.
    pub async fn set_type_in(
        &self,
        tx: &Transaction,
        ty: &JobType,
        config: TypeConfig,
    ) -> Result<()> {
        if config.timeout_ms == 0 {
            return Err(Error::Invalid("a job type's timeout is at least 1 ms"));
        }
        let key = self.keys().type_row(ty);
        let old = tx.get(&key).await?;
        // A row that cannot be decoded is replaced.
        let known = (old.clone()).and_then(|old| TypeConfig::decode(old).ok());
        let value = config.after(known).encode();
        if old.is_some_and(|old| *old == *value) {
            return Ok(());
        }
        tx.set(&key, &value);
        self.bump_types(tx);
        Ok(())
    }

    /// Removes the registration of a type: no job can be added, subscriptions end, and running jobs are not monitored.
    /// Its jobs stay, and resume when it is registered again.
    pub async fn clear_type(&self, ty: &JobType) -> Result<()> {
        let cleared = (self.store())
            .transact("clear_type", |tx| async move {
                self.clear_type_in(&tx, ty);
                Ok(())
            })
            .await;
        self.known_types().forget();
        cleared
    }

    /// [`Self::clear_type`] in the caller's transaction.
    pub fn clear_type_in(&self, tx: &Transaction, ty: &JobType) {
        tx.clear(&self.keys().type_row(ty));
        self.bump_types(tx);
    }

    /// The registration of a type, if any.
    pub async fn type_config(&self, ty: &JobType) -> Result<Option<TypeConfig>> {
        (self.store())
            .transact("type_config", |tx| async move {
                self.type_config_in(&tx, ty).await
            })
            .await
    }

    /// [`Self::type_config`] in the caller's transaction, by a snapshot read: adding jobs does not conflict with
    /// changing the type.
    pub async fn type_config_in(
        &self,
        tx: &Transaction,
        ty: &JobType,
    ) -> Result<Option<TypeConfig>> {
        let value = tx.snapshot().get(&self.keys().type_row(ty)).await?;
        value.map(TypeConfig::decode).transpose()
    }

    /// The timeout for a holder of a job of this type. Unregistered types are not monitored.
    pub(crate) async fn timeout_in(&self, tx: &Transaction, ty: &JobType) -> Result<Duration> {
        Ok(self.claimed_type_in(tx, ty).await?.0)
    }

    /// The timeout for a holder of a job of this type, and how its jobs are taken.
    pub(crate) async fn claimed_type_in(
        &self,
        tx: &Transaction,
        ty: &JobType,
    ) -> Result<(Duration, Sharing)> {
        const UNREGISTERED_MS: u64 = 60_000;
        let config = match self.known_types().get(ty) {
            Some(config) => Some(config),
            None => self.type_config_in(tx, ty).await?,
        };
        // Tenants may have jobs of a type that is not registered any more.
        let config = config.unwrap_or(TypeConfig {
            sharing: Sharing::Ended,
            ..TypeConfig::new(UNREGISTERED_MS)
        });
        Ok((Duration::from_millis(config.timeout_ms), config.sharing))
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
            match TypeConfig::decode(row.value) {
                Ok(config) => drop(types.insert(name, config)),
                // Other types are unaffected.
                Err(error) => telemetry::undecodable(&name, &row.key, &error),
            }
        }
        Ok(types)
    }

    fn bump_types(&self, tx: &Transaction) {
        self.known_types().forget();
        let value = stamp_template(self.store().incarnation(), &[]);
        tx.set_versionstamped_value(&self.keys().types(), &value);
    }
}
