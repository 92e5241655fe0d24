//! Operations of creators: add, resubmit, remove.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::future::try_join;
use store::Transaction;

use crate::model::header::{Header, State, check_data};
use crate::model::machine::{Create, Event, Reply};
use crate::testing::planted::Bug;
use crate::{
    Class, Error, JobId, JobType, Jobs, Lane, LimitName, Limits, Op, Result, Sharing, Tenant,
    TypeConfig,
};

/// Limits of one transaction of a batch: jobs, and bytes of data.
const BATCH_JOBS_MAX: usize = 500;
const BATCH_BYTES_MAX: usize = 1_000_000;

/// A job to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Add {
    /// Its id, unique within its type.
    pub id: JobId,
    /// Its data, up to [`DATA_BYTES_MAX`](crate::DATA_BYTES_MAX).
    pub data: Bytes,
    /// When it is due; 0 and earlier mean as soon as possible, first come, first served.
    pub due_ms: i64,
    /// How long it is kept after it has finished.
    pub retention: Retention,
    /// The lane it is in: `None` for that of jobs without one.
    pub lane: Option<Lane>,
    /// Its priority.
    pub class: Class,
    /// Whose job it is: if its type [shares](crate::Sharing) among tenants, it runs in the turn of this one.
    pub tenant: Option<Tenant>,
    /// A limit on jobs that use the same resource, such as one target: it waits while too many of them run. No name may be
    /// the key of one job and the pool of another: two such jobs could deadlock.
    pub key: Option<LimitName>,
    /// A second limit, on all jobs of a kind. The name must not be the key of any job.
    pub pool: Option<LimitName>,
}

/// How long a job is kept after it has finished.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Retention {
    /// The type's [`retention_ms`](crate::TypeConfig::retention_ms).
    #[default]
    OfType,
    /// Until it is removed.
    Forever,
    /// This many milliseconds; 0 deletes it in the transaction that finishes it, see
    /// [`TypeConfig::retention_ms`](crate::TypeConfig::retention_ms).
    Ms(u64),
}

/// The effect of adding a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// It did not exist, and is pending now.
    Created,
    /// It was pending; now it has this time and data, or a [signal](crate::Signal) was merged with it.
    Replaced,
    /// It is running; it will run again, at this time, with this data.
    Deferred,
    /// It was finished or dead; now it is pending.
    Revived,
    /// It would have run like this anyway. Nothing was written.
    Unchanged,
    /// A [signal](crate::Signal) for a job that is dead, or absent and not to be created. Nothing was written.
    Ignored,
    /// An earlier try of this call had done it. Nothing was written.
    Repeated,
}

impl Add {
    /// A job to run as soon as possible.
    pub fn new(id: JobId, data: impl Into<Bytes>) -> Self {
        Self {
            id,
            data: data.into(),
            due_ms: 0,
            retention: Retention::OfType,
            lane: None,
            class: Class::Normal,
            tenant: None,
            key: None,
            pool: None,
        }
    }

    /// The same job, due at a time.
    #[must_use]
    pub fn due_ms(self, due_ms: i64) -> Self {
        Self { due_ms, ..self }
    }

    /// The same job with this retention.
    #[must_use]
    pub fn retention(self, retention: Retention) -> Self {
        Self { retention, ..self }
    }

    /// The same job, in the lane of its owner: it is claimed once the other lanes have had their turn,
    /// however many jobs they have.
    #[must_use]
    pub fn lane(self, lane: Lane) -> Self {
        let lane = Some(lane);
        Self { lane, ..self }
    }

    /// The same job, in a class of priority.
    #[must_use]
    pub fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// The same job, of this tenant.
    #[must_use]
    pub fn tenant(self, tenant: Tenant) -> Self {
        let tenant = Some(tenant);
        Self { tenant, ..self }
    }

    /// The same job, with a limit on jobs that use the same resource. The name must not be the [pool](Self::pool) of any job.
    #[must_use]
    pub fn key(self, key: LimitName) -> Self {
        let key = Some(key);
        Self { key, ..self }
    }

    /// The same job, with a limit on jobs of its kind. The name must not be the [key](Self::key) of any job.
    #[must_use]
    pub fn pool(self, pool: LimitName) -> Self {
        let pool = Some(pool);
        Self { pool, ..self }
    }

    /// The same job, with these limits.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        let Limits { key, pool } = limits;
        Self { key, pool, ..self }
    }

    pub(crate) fn create(&self, config: &TypeConfig) -> Create {
        Create {
            retention_ms: match self.retention {
                Retention::OfType => config.retention_ms,
                Retention::Forever => None,
                Retention::Ms(ms) => Some(ms),
            },
            lane: self.lane,
            class: self.class,
            tenant: self.tenant.as_ref().map(|name| name.0.clone()),
            key: self.key.as_ref().map(|name| name.0.clone()),
            pool: self.pool.as_ref().map(|name| name.0.clone()),
            shared: config.sharing == Sharing::On,
        }
    }
}

/// How many of these jobs fit into one transaction.
pub(crate) fn fitting<'a>(adds: impl Iterator<Item = &'a Add>) -> usize {
    let mut bytes = 0;
    let fitting = adds.take(BATCH_JOBS_MAX).take_while(|add| {
        let first = bytes == 0;
        bytes += add.data.len() + 1;
        first || bytes <= BATCH_BYTES_MAX
    });
    fitting.count()
}

impl Jobs {
    /// Adds a job, or requests another run of an existing one. The newest data wins: it replaces that
    /// of a pending job, and goes to the next run of a running one.
    ///
    /// Takes effect once, even if the store cannot tell whether it was committed: the job stores the
    /// ids of recent calls. Only if the job is removed or expires before the retry is it created again.
    pub async fn add(&self, ty: &JobType, add: Add) -> Result<Added> {
        let (op, adds) = (self.op(), [add]);
        let added = (self.store())
            .transact("add", |tx| {
                let adds = &adds;
                async move { self.add_many_in(&tx, &op, ty, adds).await }
            })
            .await?;
        Ok(added[0])
    }

    /// Adds jobs in as few transactions as possible. Each job is added or not, but after an error some
    /// may have been added and others not.
    pub async fn add_many(&self, ty: &JobType, adds: &[Add]) -> Result<Vec<Added>> {
        let mut added = Vec::with_capacity(adds.len());
        let mut rest = adds;
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(fitting(rest.iter()));
            let op = self.op();
            added.extend(
                (self.store())
                    .transact("add", |tx| async move {
                        self.add_many_in(&tx, &op, ty, batch).await
                    })
                    .await?,
            );
            rest = later;
        }
        Ok(added)
    }

    /// [`Self::add`] in the caller's transaction. Each call there on the same job needs its own [`Op`].
    pub async fn add_in(&self, tx: &Transaction, op: &Op, ty: &JobType, add: Add) -> Result<Added> {
        Ok(self.add_many_in(tx, op, ty, &[add]).await?[0])
    }

    /// Adds jobs in the caller's transaction, which must have room for them: some 500 jobs, and a
    /// megabyte of data.
    pub async fn add_many_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &JobType,
        adds: &[Add],
    ) -> Result<Vec<Added>> {
        for add in adds {
            check_data(Some(&add.data))?;
        }
        let headers = self.headers(tx, ty, adds.iter().map(|add| &add.id));
        let (config, mut headers) = try_join(self.config_in(tx, ty), headers).await?;
        let mut effects = self.effects(tx, op.now_ms).await?;
        let mut added = Vec::with_capacity(adds.len());
        let done = self.done_before(op, adds, &headers);
        for (nth, add) in adds.iter().enumerate() {
            if done.get(&add.id).is_some_and(|last| nth <= *last) {
                added.push(Added::Repeated);
                continue;
            }
            let header = headers.entry(add.id.clone()).or_default();
            let event = Event::Ask {
                op: op.id(nth),
                due_ms: Some(add.due_ms),
                same: self
                    .same_data(tx, ty, &add.id, header.as_ref(), &add.data)
                    .await?,
                data: Some(add.data.clone()),
                create: Some(add.create(&config)),
            };
            let reply = effects.run(ty, &add.id, header, event)?;
            added.push(Added::from(reply));
        }
        effects.flush(op).await?;
        Ok(added)
    }

    /// The settings of a type that jobs can be added to.
    pub(crate) async fn config_in(&self, tx: &Transaction, ty: &JobType) -> Result<TypeConfig> {
        let config = match self.known_types().get(ty) {
            Some(config) => Some(config),
            None => self.type_config_in(tx, ty).await?,
        };
        config.ok_or_else(|| Error::NoTypeTimeout(ty.clone()))
    }

    /// For each job, the last of these adds that an earlier try of this call has done, if any. Those
    /// before it are done, too: a job stores only a few ids, and none of adds that changed nothing.
    fn done_before<'a>(
        &self,
        op: &Op,
        adds: &'a [Add],
        headers: &BTreeMap<JobId, Option<Arc<Header>>>,
    ) -> BTreeMap<&'a JobId, usize> {
        let remembered = adds.iter().enumerate().filter(|(nth, add)| {
            let header = headers.get(&add.id).and_then(Option::as_ref);
            header.is_some_and(|header| header.ops.contains(&op.id(*nth)))
                && !self.planted().is(Bug::AddNotIdempotent)
        });
        remembered.map(|(nth, add)| (&add.id, nth)).collect()
    }

    /// Requests a run of an existing job, whether held or not: at another time, with other data, or
    /// unchanged. The creator's form of `couch_jobs`' resubmit.
    pub async fn resubmit(
        &self,
        ty: &JobType,
        id: &JobId,
        due_ms: Option<i64>,
        data: Option<Bytes>,
    ) -> Result<Added> {
        let (op, data) = (self.op(), data.as_ref());
        (self.store())
            .transact("resubmit", |tx| async move {
                (self.resubmit_in(&tx, &op, ty, id, due_ms, data.cloned())).await
            })
            .await
    }

    /// [`Self::resubmit`] in the caller's transaction.
    pub async fn resubmit_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &JobType,
        id: &JobId,
        due_ms: Option<i64>,
        data: Option<Bytes>,
    ) -> Result<Added> {
        check_data(data.as_ref())?;
        let mut header = self.header(tx, ty, id).await?;
        let same = match &data {
            Some(data) => self.same_data(tx, ty, id, header.as_ref(), data).await?,
            None => false,
        };
        let mut effects = self.effects(tx, op.now_ms).await?;
        let event = Event::Ask {
            op: op.id(0),
            due_ms,
            data,
            same,
            create: None,
        };
        let reply = effects.run(ty, id, &mut header, event)?;
        effects.flush(op).await?;
        Ok(Added::from(reply))
    }

    /// Removes a job in any state, and in [quarantine](Self::quarantined). Its holder gets
    /// [`Error::Halt`].
    pub async fn remove(&self, ty: &JobType, id: &JobId) -> Result<()> {
        let op = self.op();
        // The job that an attempt was about to remove: not one added again meanwhile.
        let victim = &Mutex::new(None);
        (self.store())
            .transact("remove", |tx| async move {
                let header = match self.try_header(&tx, ty, id).await? {
                    Ok(header) => header,
                    Err(error) => {
                        return self.remove_quarantined(&tx, &op, ty, id, error).await;
                    }
                };
                let born = header.as_ref().map(|header| header.born);
                let before = {
                    let mut victim = victim.lock().unwrap_or_else(PoisonError::into_inner);
                    match *victim {
                        Some(before) if tx.maybe_committed() => before,
                        _ => *victim.insert(born),
                    }
                };
                if before.is_some() && before != born {
                    return Ok(());
                }
                self.remove_this(&tx, &op, ty, id, header).await
            })
            .await
    }

    /// [`Self::remove`] in the caller's transaction.
    pub async fn remove_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &JobType,
        id: &JobId,
    ) -> Result<()> {
        let header = self.header(tx, ty, id).await?;
        self.remove_this(tx, op, ty, id, header).await
    }

    async fn remove_this(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &JobType,
        id: &JobId,
        mut header: Option<Arc<Header>>,
    ) -> Result<()> {
        if header.is_none() && tx.maybe_committed() {
            // An earlier try that found no job would have returned an error: it removed the job.
            return Ok(());
        }
        let mut effects = self.effects(tx, op.now_ms).await?;
        effects.run(ty, id, &mut header, Event::Remove)?;
        effects.flush(op).await.map(drop)
    }

    /// Whether the next run gets this data anyway.
    async fn same_data(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
        header: Option<&Arc<Header>>,
        data: &Bytes,
    ) -> Result<bool> {
        let Some(header) = header else {
            return Ok(false);
        };
        let blob = match header.state() {
            State::Running => header.next.as_ref().and_then(|next| next.data.as_ref()),
            State::Pending | State::Finished | State::Dead => Some(&header.data),
        };
        match blob {
            Some(blob) if blob.len as usize == data.len() => {
                Ok(self.read_blob(tx, ty, id, blob).await? == *data)
            }
            _ => Ok(false),
        }
    }
}

impl From<Reply> for Added {
    fn from(reply: Reply) -> Self {
        match reply {
            Reply::Created => Self::Created,
            Reply::Replaced => Self::Replaced,
            Reply::Deferred => Self::Deferred,
            Reply::Revived => Self::Revived,
            Reply::Unchanged => Self::Unchanged,
            Reply::Ignored => Self::Ignored,
            Reply::Repeated | Reply::Done { .. } => Self::Repeated,
        }
    }
}
