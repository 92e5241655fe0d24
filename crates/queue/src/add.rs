//! Adding jobs.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use jobs::{Add, JobId, LimitName, Op, Signal, Tenant};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use store::Transaction;
use tokio::time::Instant;

use crate::{Envelope, Error, Queue, Raw, Result, Seconds, Type, TypeName};

/// Maximum jobs per request.
pub const IDS_MAX: usize = 500;
const BATCH_BYTES_MAX: usize = 1_000_000;
/// Pending jobs are not counted more often.
const COUNTED: Duration = Duration::from_millis(500);

/// A job, as a client sends it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewJob {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub data: Raw,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_sec: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
    #[serde(default)]
    pub class: Class,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default)]
    pub on_exists: OnExists,
}

/// How soon a due job is claimed, compared with others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    Urgent,
    #[default]
    Normal,
    Bulk,
}

impl From<Class> for jobs::Class {
    fn from(class: Class) -> Self {
        match class {
            Class::Urgent => Self::Urgent,
            Class::Normal => Self::Normal,
            Class::Bulk => Self::Bulk,
        }
    }
}

/// What becomes of a job with the same id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnExists {
    /// It gets the new data and time; if it runs or has ended, it runs again.
    #[default]
    Replace,
    /// It stays as it is, whatever its state.
    Keep,
    /// It keeps its data, and runs at the earlier time; if it runs or has finished, it runs again.
    Earliest,
}

/// A job that may be added.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) add: Add,
    on_exists: OnExists,
}

/// How many jobs are pending, as last counted, with those that this process has added since.
#[derive(Debug, Default)]
pub(crate) struct Pending(Mutex<HashMap<TypeName, (Instant, u64)>>);

impl Queue {
    /// Adds jobs. Each has its own answer: its id, or why it was refused. With a `repeat` key, a request that is repeated
    /// adds nothing twice while its jobs exist.
    pub async fn add(
        &self,
        ty: &Type,
        new: Vec<Result<NewJob>>,
        repeat: Option<&str>,
    ) -> Result<Vec<std::result::Result<String, (Option<String>, Error)>>> {
        let mut op = self.jobs().op();
        if let Some(key) = repeat {
            op.bits = digest(&[ty.name.as_str(), key]);
        }
        let (mut answers, mut ready) = (Vec::with_capacity(new.len()), Vec::new());
        for (nth, job) in new.into_iter().enumerate() {
            let unnamed = || match repeat {
                Some(key) => digest(&[ty.name.as_str(), key, &nth.to_string()]),
                None => self.jobs().entropy().bits(),
            };
            let given = job.as_ref().ok().and_then(|job| job.id.clone());
            let checked = job.and_then(|job| self.check(ty, job, op.now_ms, unnamed));
            answers.push(match checked {
                Ok((id, job)) => {
                    ready.push(job);
                    Ok(id)
                }
                Err(error) => Err((given, error)),
            });
        }
        self.make_room(ty, ready.len() as u64).await?;
        let mut rest = &ready[..];
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(fitting(rest));
            let done = (ready.len() - rest.len()) as u128;
            let op = &Op {
                bits: op.bits.wrapping_add(done),
                ..op
            };
            (self.jobs().store())
                .transact(
                    "add",
                    |tx| async move { self.add_in(&tx, op, ty, batch).await },
                )
                .await?;
            rest = later;
        }
        Ok(answers)
    }

    pub(crate) async fn add_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &Type,
        batch: &[Ready],
    ) -> Result<()> {
        self.sealing_in(tx, batch.iter().map(|job| &job.add.data))
            .await?;
        let mut nth = 0;
        for alike in batch.chunk_by(|a, b| a.on_exists == b.on_exists) {
            let op = &Op {
                bits: op.bits.wrapping_add(nth),
                ..*op
            };
            nth += alike.len() as u128;
            let adds = alike.iter().map(|job| job.add.clone());
            match alike[0].on_exists {
                OnExists::Replace => {
                    let adds: Vec<Add> = adds.collect();
                    self.jobs().add_many_in(tx, op, &ty.ty, &adds).await?;
                }
                OnExists::Keep => {
                    let (mut absent, mut seen) = (Vec::new(), BTreeSet::new());
                    for add in adds {
                        let exists = self.jobs().info_in(tx, &ty.ty, &add.id).await?.is_some();
                        if !exists && seen.insert(add.id.as_bytes().to_vec()) {
                            absent.push(add);
                        }
                    }
                    self.jobs().add_many_in(tx, op, &ty.ty, &absent).await?;
                }
                OnExists::Earliest => {
                    let signals: Vec<Signal> = adds.map(Signal::from).collect();
                    self.jobs().signal_many_in(tx, op, &ty.ty, &signals).await?;
                }
            }
        }
        Ok(())
    }

    /// A job that may be added. It is checked, and gets an id unless it has one.
    pub(crate) fn check(
        &self,
        ty: &Type,
        new: NewJob,
        now_ms: i64,
        unnamed: impl Fn() -> u128,
    ) -> Result<(String, Ready)> {
        let text = match new.id {
            Some(id) => id,
            None => format!("{:032x}", unnamed()),
        };
        let id = job_id(&text)?;
        check_size(ty, "data", Some(&new.data))?;
        let data = self.pack(ty, &id, &Envelope::new(new.data))?;
        let add = Add::new(id, data);
        let add = add.due_ms(due_ms(new.delay_sec, new.due.as_deref(), now_ms)?);
        let mut add = add.class(new.class.into());
        if let Some(key) = new.key {
            let key = LimitName::new(key);
            add = add.key(key.map_err(|error| Error::Invalid(format!("`key`: {error}")))?);
        }
        if let Some(tenant) = new.tenant {
            let tenant = Tenant::new(tenant);
            add = add.tenant(tenant.map_err(|error| Error::Invalid(format!("`tenant`: {error}")))?);
        }
        let on_exists = new.on_exists;
        Ok((text, Ready { add, on_exists }))
    }

    /// Refuses jobs of a type that has too many.
    async fn make_room(&self, ty: &Type, more: u64) -> Result<()> {
        let Some(max) = ty.settings.max_pending else {
            return Ok(());
        };
        for is_recent in [true, false] {
            let known = self.pending().get(&ty.name);
            let known = known.filter(|(at, _)| is_recent && at.elapsed() < COUNTED);
            let pending = if let Some((_, pending)) = known {
                pending
            } else {
                let counts = self.jobs().counts(&ty.ty).await?;
                self.pending().set(&ty.name, counts.pending);
                counts.pending
            };
            if pending + more <= max {
                self.pending().add(&ty.name, more);
                return Ok(());
            }
        }
        let name = ty.name.clone();
        Err(Error::Full { name, max })
    }
}

impl Pending {
    fn get(&self, name: &TypeName) -> Option<(Instant, u64)> {
        self.lock().get(name).copied()
    }

    fn set(&self, name: &TypeName, pending: u64) {
        self.lock().insert(name.clone(), (Instant::now(), pending));
    }

    fn add(&self, name: &TypeName, more: u64) {
        if let Some((_, pending)) = self.lock().get_mut(name) {
            *pending += more;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<TypeName, (Instant, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many of these jobs fit into one transaction.
fn fitting(jobs: &[Ready]) -> usize {
    let mut bytes = 0;
    let fitting = jobs.iter().take_while(|job| {
        let first = bytes == 0;
        bytes += job.add.data.len() + 1;
        first || bytes <= BATCH_BYTES_MAX
    });
    fitting.count()
}

/// Refuses JSON that is larger than the type allows.
pub(crate) fn check_size(ty: &Type, what: &str, raw: Option<&Raw>) -> Result<()> {
    let (size, max) = (raw.map_or(0, Raw::len) as u64, ty.settings.max_data_bytes);
    if size <= max {
        return Ok(());
    }
    Err(Error::TooLarge(format!(
        "`{what}` has {size} bytes, and `max_data_bytes` of the type is {max}; store large values elsewhere, and their \
         address here"
    )))
}

/// The id of a job in the queue.
pub(crate) fn job_id(id: &str) -> Result<JobId> {
    if id.is_empty() || id.starts_with('_') {
        return Err(Error::Invalid(
            "`id` must not be empty, nor begin with `_`".into(),
        ));
    }
    Ok(JobId::new(id.to_owned())?)
}

fn due_ms(delay: Option<Seconds>, due: Option<&str>, now_ms: i64) -> Result<i64> {
    match (delay, due) {
        (None, None) => Ok(0),
        (Some(delay), None) if delay.ms() == 0 => Ok(0),
        (Some(delay), None) => Ok(now_ms.saturating_add(delay.ms_signed())),
        (None, Some(due)) => {
            let due: Timestamp = due.parse().map_err(|_| {
                Error::Invalid("`due` must be a time such as `2030-01-31T08:00:00Z` or `2030-01-31T09:00:00+01:00`".into())
            })?;
            Ok(due.as_millisecond())
        }
        (Some(_), Some(_)) => Err(Error::Invalid(
            "give either `delay_sec` or `due`, not both".into(),
        )),
    }
}

/// The first 128 bits of a hash of texts.
fn digest(texts: &[&str]) -> u128 {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    let hash = hash.finalize();
    u128::from_be_bytes(hash[..16].try_into().unwrap_or_default())
}
