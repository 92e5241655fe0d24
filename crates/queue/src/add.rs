//! Adding jobs.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::future::try_join;
use jiff::{Timestamp, civil};
use jobs::{Add, Added, JobId, LimitName, Op, Revive, Signal, Tenant};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use store::{AsStoreError, Transaction};
use tokio::time::Instant;

use crate::{Envelope, Error, Queue, Raw, Result, Seconds, Type, TypeName, keys};

/// Maximum jobs per request.
pub const IDS_MAX: usize = 500;
/// How deeply JSON may be nested. Parsers have limits: `serde_json`'s is 128 with the response around it.
pub const DEPTH_MAX: usize = 100;
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
    /// It keeps its data, and runs at the earlier time; if it runs or has ended, it runs again.
    Earliest,
}

/// A job that may be added.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) add: Add,
    on_exists: OnExists,
    /// Its data as it came, if its id was made from the key of a request that may be repeated.
    keyed: Option<Raw>,
}

/// Why a job was refused, with its id if it has one that can be read.
pub type Refused = (Option<String>, Error);

/// How many jobs are pending, as last counted, with those that this process has added since.
#[derive(Debug, Default)]
pub(crate) struct Pending(Mutex<HashMap<TypeName, (Instant, u64)>>);

impl Queue {
    /// Adds jobs. Each has its own answer: its id, or why it was refused. With a `repeat` key, a request that is repeated
    /// adds nothing twice while its jobs exist. A job without an id is refused if the key was used for other data.
    pub async fn add(
        &self,
        ty: &Type,
        new: Vec<std::result::Result<NewJob, Refused>>,
        repeat: Option<&str>,
    ) -> Result<Vec<std::result::Result<String, Refused>>> {
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
            let checked = job.and_then(|job| {
                let given = job.id.clone();
                let is_keyed = repeat.is_some() && given.is_none();
                let keyed = is_keyed.then(|| job.data.clone());
                let checked = self.check(ty, job, op.now_ms, unnamed);
                let checked = checked.map(|(id, ready)| (id, Ready { keyed, ..ready }));
                checked.map_err(|error| (given, error))
            });
            if let Err((_, Error::NoKeys)) = checked {
                return Err(Error::NoKeys);
            }
            answers.push(checked.map(|(id, job)| {
                ready.push(job);
                id
            }));
        }
        self.make_room(ty, &op, &ready).await?;
        let mut added = Vec::with_capacity(ready.len());
        for (op, batch) in &batches(&op, &ready) {
            let some = (self.jobs().store())
                .transact(
                    "add",
                    |tx| async move { self.add_in(&tx, op, ty, batch).await },
                )
                .await?;
            added.extend(some);
        }
        let accepted = answers.iter_mut().filter(|answer| answer.is_ok());
        for (answer, (job, added)) in accepted.zip(ready.iter().zip(added)) {
            if added != Added::Created && self.is_of_other(ty, job).await? {
                *answer = Err((None, Error::KeyUsed));
            }
        }
        Ok(answers)
    }

    /// Whether the key of a job's request was used for other data.
    async fn is_of_other(&self, ty: &Type, job: &Ready) -> Result<bool> {
        let Some(data) = &job.keyed else {
            return Ok(false);
        };
        let Some((_, stored)) = self.jobs().get(&ty.ty, &job.add.id).await? else {
            return Ok(false);
        };
        let stored = self.unpack(&ty.ty, &job.add.id, stored);
        Ok(stored.is_ok_and(|stored| !stored.data.is_same(data)))
    }

    /// Adds jobs in the caller's transaction, unless the type has been removed.
    pub(crate) async fn add_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &Type,
        batch: &[Ready],
    ) -> Result<Vec<Added>> {
        // The caller's type may be a cached one. Conflicts with its removal.
        let row = async { Ok(tx.get(&keys::type_row(&ty.name)).await?) };
        let sealing = self.sealing_in(tx, batch.iter().map(|job| &job.add.data));
        if try_join(row, sealing).await?.0.is_none() {
            return Err(Error::NoType(ty.name.clone()));
        }
        let mut all = Vec::with_capacity(batch.len());
        for alike in batch.chunk_by(|a, b| a.on_exists == b.on_exists) {
            let op = &op.nth(all.len());
            let adds = alike.iter().map(|job| job.add.clone());
            let added = match alike[0].on_exists {
                OnExists::Replace => {
                    let adds: Vec<Add> = adds.collect();
                    self.jobs().add_many_in(tx, op, &ty.ty, &adds).await?
                }
                OnExists::Keep => {
                    let (mut absent, mut seen) = (Vec::new(), BTreeSet::new());
                    let mut added = Vec::with_capacity(alike.len());
                    for add in adds {
                        let exists = self.jobs().info_in(tx, &ty.ty, &add.id).await?.is_some();
                        if exists || !seen.insert(add.id.as_bytes().to_vec()) {
                            added.push(Added::Unchanged);
                            continue;
                        }
                        added.push(Added::Created);
                        absent.push(add);
                    }
                    self.jobs().add_many_in(tx, op, &ty.ty, &absent).await?;
                    added
                }
                OnExists::Earliest => {
                    // The change may have fixed what a dead job failed on.
                    let signals = adds.map(|add| Signal::from(add).revive(Revive::Dead));
                    let signals: Vec<Signal> = signals.collect();
                    (self.jobs().signal_many_once_in(tx, op, &ty.ty, &signals)).await?
                }
            };
            all.extend(added);
        }
        Ok(all)
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
        // Only here: older versions may have added such jobs, which can still be read and removed.
        if matches!(&*text, "." | "..") {
            return Err(Error::Invalid(
                "`id` must not be `.` or `..`, because HTTP clients remove them from URLs; give another one"
                    .into(),
            ));
        }
        check_json(ty, "data", Some(&new.data))?;
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
        let keyed = None;
        Ok((
            text,
            Ready {
                add,
                on_exists,
                keyed,
            },
        ))
    }

    /// Refuses jobs of a type that has too many. What adds no pending job is not refused, such as a repeated request.
    async fn make_room(&self, ty: &Type, op: &Op, ready: &[Ready]) -> Result<()> {
        let Some(max) = ty.settings.max_pending else {
            return Ok(());
        };
        let more = ready.len() as u64;
        for is_recent in [true, false] {
            let fits = self.pending(ty, is_recent).await? + more <= max;
            if fits {
                self.counted().add(&ty.name, more);
                return Ok(());
            }
        }
        let more = self.would_add(ty, op, ready).await?;
        let name = ty.name.clone();
        if more > max {
            return Err(Error::TooLarge(format!(
                "the request adds {more} jobs, and `max_pending` of the job type `{name}` is {max}; send fewer jobs per request"
            )));
        }
        if more > 0 && self.pending(ty, true).await? + more > max {
            return Err(Error::Full { name, max });
        }
        self.counted().add(&ty.name, more);
        Ok(())
    }

    /// How many jobs of a type are pending, as counted just now or recently.
    async fn pending(&self, ty: &Type, is_recent: bool) -> Result<u64> {
        let known = self.counted().get(&ty.name);
        let known = known.filter(|(at, _)| is_recent && at.elapsed() < COUNTED);
        if let Some((_, pending)) = known {
            return Ok(pending);
        }
        let pending = self.jobs().counts(&ty.ty).await?.pending;
        self.counted().set(&ty.name, pending);
        Ok(pending)
    }

    /// How many pending jobs there would be more: adds the jobs in transactions that are not committed.
    async fn would_add(&self, ty: &Type, op: &Op, ready: &[Ready]) -> Result<u64> {
        let mut more = 0;
        for (op, batch) in &batches(op, ready) {
            let tried = (self.jobs().store())
                .transact("try_add", |tx| async move {
                    let added = self.add_in(&tx, op, ty, batch).await?;
                    let is_more = |added: &&Added| matches!(added, Added::Created | Added::Revived);
                    let more = added.iter().filter(is_more).count() as u64;
                    Err::<(), _>(Tried::More(more))
                })
                .await;
            match tried {
                Ok(()) => {}
                Err(Tried::More(some)) => more += some,
                Err(Tried::Failed(error)) => return Err(error),
            }
        }
        Ok(more)
    }
}

/// Why a transaction that only tries is not committed.
#[derive(Debug)]
enum Tried {
    More(u64),
    Failed(Error),
}

impl From<Error> for Tried {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<store::Error> for Tried {
    fn from(error: store::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl AsStoreError for Tried {
    fn as_store_error(&self) -> Option<&store::Error> {
        match self {
            Self::More(_) => None,
            Self::Failed(error) => error.as_store_error(),
        }
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

/// The jobs of each transaction, with its operation.
fn batches<'a>(op: &Op, ready: &'a [Ready]) -> Vec<(Op, &'a [Ready])> {
    let (mut batches, mut rest) = (Vec::new(), ready);
    while !rest.is_empty() {
        let (batch, later) = rest.split_at(fitting(rest));
        batches.push((op.nth(ready.len() - rest.len()), batch));
        rest = later;
    }
    batches
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

/// Refuses JSON that is larger than the type allows, or nested more deeply than clients can read.
pub(crate) fn check_json(ty: &Type, what: &str, raw: Option<&Raw>) -> Result<()> {
    let Some(raw) = raw else { return Ok(()) };
    let (size, max) = (raw.len() as u64, ty.settings.max_data_bytes);
    if size > max {
        return Err(Error::TooLarge(format!(
            "`{what}` has {size} bytes, and `max_data_bytes` of the type is {max}; store large values elsewhere, and their \
             address here"
        )));
    }
    if raw.is_deeper_than(DEPTH_MAX) {
        return Err(Error::Invalid(format!(
            "`{what}` is nested more than {DEPTH_MAX} deep, which some clients cannot read; flatten it, or send it as a string"
        )));
    }
    Ok(())
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
                if is_too_late(due) {
                    return Error::Invalid("`due` is too far in the future".into());
                }
                Error::Invalid("`due` must be a time such as `2030-01-31T08:00:00Z` or `2030-01-31T09:00:00+01:00`".into())
            })?;
            Ok(due.as_millisecond())
        }
        (Some(_), Some(_)) => Err(Error::Invalid(
            "give either `delay_sec` or `due`, not both".into(),
        )),
    }
}

/// Whether it is a time after the last one that the clock knows, which is a day before the year 10000.
fn is_too_late(due: &str) -> bool {
    let date: Option<civil::DateTime> = due.get(..19).and_then(|date| date.parse().ok());
    date.is_some_and(|date| date.date() >= civil::date(9999, 12, 30))
}

/// The first 128 bits of a hash of texts.
pub(crate) fn digest(texts: &[&str]) -> u128 {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    let hash = hash.finalize();
    u128::from_be_bytes(hash[..16].try_into().unwrap_or_default())
}
