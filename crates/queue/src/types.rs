//! Users' types: making, changing, pausing and finding them.
//!
//! A process caches a type for a second, so that requests need not read it. A change therefore applies on all nodes
//! within a second, and at once where it was made.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jobs::JobType;
use serde::{Deserialize, Serialize};
use store::{RangeOptions, Transaction};
use tokio::time::Instant;

use crate::{Error, Queue, Result, Settings, TypeName, keys, row};

const TYPES_MAX: usize = 1_000;
/// How long a type is cached.
pub(crate) const KNOWN: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq)]
pub struct Type {
    pub name: TypeName,
    pub settings: Settings,
    /// Its jobs are not given to workers.
    pub paused: bool,
    pub(crate) ty: JobType,
}

impl Type {
    /// Whether it is one of the service itself, whose jobs users can only read.
    pub fn is_own(&self) -> bool {
        TypeName::of(&self.ty).is_none()
    }
}

#[derive(Serialize, Deserialize)]
struct Row {
    settings: Settings,
    paused: bool,
}

/// The types that a process has cached.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<HashMap<TypeName, (Instant, Arc<Type>)>>);

impl Known {
    fn get(&self, name: &TypeName) -> Option<Arc<Type>> {
        let known = self.lock();
        let (since, found) = known.get(name)?;
        (since.elapsed() < KNOWN).then(|| Arc::clone(found))
    }

    fn set(&self, found: &Arc<Type>, read_at: Instant) {
        let mut known = self.lock();
        known.insert(found.name.clone(), (read_at, Arc::clone(found)));
    }

    fn forget(&self, name: &TypeName) {
        self.lock().remove(name);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TypeName, (Instant, Arc<Type>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Makes a type, or replaces its settings. True if it was made.
    pub async fn put_type(&self, name: &TypeName, settings: &Settings) -> Result<bool> {
        settings.check()?;
        if settings.sealed && !self.sealer().seals() {
            return Err(Error::Invalid(Error::NoKeys.to_string()));
        }
        let (own, ty) = (JobType::new(name.as_str())?, name.job_type());
        let (limits, shares, op) = (settings.limits()?, settings.shares()?, self.jobs().op());
        let set = self.jobs().limits(&ty).await?;
        let made = (self.jobs().store())
            .transact("put_job_type", |tx| {
                let (own, ty, limits, shares) = (&own, &ty, &limits, &shares);
                async move {
                    let old = read(&tx, name).await?;
                    if old.is_none() {
                        let is_own = self.jobs().type_config_in(&tx, own).await?.is_some();
                        if is_own || name.is_reserved() {
                            return Err(Error::own_type(name));
                        }
                        let all = tx
                            .snapshot()
                            .get_range(keys::types(), RangeOptions::limit(TYPES_MAX));
                        if all.collect().await?.len() >= TYPES_MAX {
                            return Err(Error::Invalid(format!(
                                "there are {TYPES_MAX} job types, which is the maximum"
                            )));
                        }
                    }
                    let paused = old.as_ref().is_some_and(|old| old.paused);
                    write(&tx, name, settings, paused)?;
                    let config = settings.config();
                    self.jobs().set_type_in(&tx, ty, config).await?;
                    self.jobs().replace_limits_in(&tx, &op, ty, limits).await?;
                    self.jobs().replace_shares_in(&tx, ty, shares).await?;
                    Ok(old.is_none())
                }
            })
            .await;
        self.known().forget(name);
        let made = made?;
        let names: BTreeSet<_> = set.keys().chain(limits.keys()).collect();
        for limit in names {
            if set.get(limit) != limits.get(limit) {
                self.jobs().serve_limit(&ty, limit).await?;
            }
        }
        Ok(made)
    }

    /// Removes a type that has no jobs. Its schedules stay, and say that it is missing.
    pub async fn remove_type(&self, name: &TypeName) -> Result<()> {
        let found = self.find(name).await?;
        let (own, op) = (&found.ty, self.jobs().op());
        (self.jobs().store())
            .transact("remove_job_type", |tx| async move {
                let counts = self.jobs().exact_counts_in(&tx, own).await?;
                let left = counts.pending + counts.running + counts.finished + counts.dead;
                if left > 0 {
                    let (jobs, rest) = if left == 1 {
                        (
                            "job",
                            "remove it first, or wait until it has finished and expired",
                        )
                    } else {
                        (
                            "jobs",
                            "remove them first, or wait until they have finished and expired",
                        )
                    };
                    return Err(Error::Conflict(format!(
                        "`{name}` has {left} {jobs}; {rest}"
                    )));
                }
                self.jobs()
                    .replace_limits_in(&tx, &op, own, &BTreeMap::new())
                    .await?;
                tx.clear(&keys::type_row(name));
                self.jobs().clear_type_in(&tx, own);
                Ok::<_, Error>(())
            })
            .await?;
        self.known().forget(name);
        Ok(())
    }

    /// A type, as it was at most a second ago.
    pub async fn find(&self, name: &TypeName) -> Result<Arc<Type>> {
        if let Some(known) = self.known().get(name) {
            return Ok(known);
        }
        let read_at = Instant::now();
        let found = (self.jobs().store())
            .transact("find_job_type", |tx| async move { read(&tx, name).await })
            .await?;
        let found = Arc::new(found.ok_or_else(|| Error::no_type(name))?);
        self.known().set(&found, read_at);
        Ok(found)
    }

    /// A page of types that are `wanted`, by name; and whether there may be more.
    pub async fn types(
        &self,
        after: Option<&TypeName>,
        limit: usize,
        wanted: impl Fn(&Type) -> bool + Sync,
    ) -> Result<(Vec<Type>, bool)> {
        let wanted = &wanted;
        (self.jobs().store())
            .transact("job_types", |tx| async move {
                let mut range = keys::types();
                if let Some(after) = after {
                    range.begin = [&keys::type_row(after)[..], &[0]].concat().into();
                }
                let mut rows = (tx.snapshot()).get_range(range, RangeOptions::default());
                let mut types = Vec::new();
                while let Some(row) = rows.next().await? {
                    let Some(name) = keys::type_name(&row.key) else {
                        continue;
                    };
                    let ty = decode(&name, &row.value)?;
                    if !wanted(&ty) {
                        continue;
                    }
                    if types.len() == limit {
                        return Ok((types, true));
                    }
                    types.push(ty);
                }
                Ok((types, false))
            })
            .await
    }

    /// The service's own types. Their jobs can be read only.
    pub async fn own_types(&self) -> Result<Vec<Type>> {
        let all = self.jobs().types().await?.into_keys();
        let own = all.filter(|ty| TypeName::of(ty).is_none()).map(|ty| Type {
            name: TypeName::own(&ty),
            settings: Settings::default(),
            paused: false,
            ty,
        });
        Ok(own.collect())
    }

    /// Stops or resumes giving jobs of a type to workers.
    pub async fn pause(&self, name: &TypeName, paused: bool) -> Result<()> {
        let done = (self.jobs().store())
            .transact("pause_job_type", |tx| async move {
                let old = read(&tx, name).await?.ok_or_else(|| Error::no_type(name))?;
                if old.paused != paused {
                    write(&tx, name, &old.settings, paused)?;
                }
                Ok(())
            })
            .await;
        self.known().forget(name);
        self.lines().look(name);
        done
    }
}

pub(crate) async fn read(tx: &Transaction, name: &TypeName) -> Result<Option<Type>> {
    let row = tx.get(&keys::type_row(name)).await?;
    row.map(|row| decode(name, &row)).transpose()
}

fn write(tx: &Transaction, name: &TypeName, settings: &Settings, paused: bool) -> Result<()> {
    let row = Row {
        settings: settings.clone(),
        paused,
    };
    let value = row::encode(&row)?;
    if value.len() > store::limits::VALUE_BYTES_MAX {
        return Err(Error::Invalid(
            "the settings of a job type may have at most 100 kB: use shorter or fewer names of limits, tenants and roles".into(),
        ));
    }
    tx.set(&keys::type_row(name), &value);
    Ok(())
}

fn decode(name: &TypeName, value: &[u8]) -> Result<Type> {
    let row: Row = row::decode(value, format_args!("the job type {name}"))?;
    Ok(Type {
        name: name.clone(),
        settings: row.settings,
        paused: row.paused,
        ty: name.job_type(),
    })
}

#[cfg(test)]
mod tests;
