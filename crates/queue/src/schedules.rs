//! Schedules: jobs that are added at set times, by a cron expression or an interval.
//!
//! A schedule is a row, and a job of a type of the service that is due at the next occurrence. A node that claims this job adds
//! the jobs of the occurrences that are due, moves the row on, and ends its run so that it is due again, in one
//! transaction. Its lock fences it: whatever crashes, and whatever clocks say, an occurrence is handled once. The row
//! decides what the next occurrence is; a clock decides only when it is due.

use std::time::Duration;

use jobs::{Acceptor, Add, Finish, Holder, Job, JobType, Op, Retention, State, TypeConfig};
use seal::Unreadable;
use serde::{Deserialize, Serialize};
use store::{RangeOptions, Transaction};
use tokio_util::sync::CancellationToken;

use crate::add::{digest, job_id};
use crate::cron::Timing;
use crate::name::check_name;
use crate::{Envelope, Error, NewJob, Queue, Result, Seconds, TypeName, keys, row, types};

const SCHEDULES_MAX: usize = 1_000;
/// A node that does not finish its turn in time is gone.
const TIMEOUT_MS: u64 = 10_000;
/// An occurrence that is later than this was missed.
const LATE_MS: i64 = 60_000;
/// Occurrences in one transaction.
const OCCURRENCES_MAX: usize = 100;
const OCCURRENCES_BYTES: usize = 1_000_000;
/// Room in the row of a schedule for its last occurrence.
const FIRED_BYTES: usize = 2_000;
const SCHEDULES_AT_ONCE: usize = 16;
const WAIT: Duration = Duration::from_mins(5);

/// A schedule, as clients write it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    #[serde(rename = "type")]
    pub ty: String,
    pub job: NewJob,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_sec: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(default)]
    pub overlap: Overlap,
    #[serde(default)]
    pub catch_up: CatchUp,
}

/// What becomes of an occurrence while the job of the last one is pending or running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// No job is added.
    #[default]
    Skip,
    /// Its job is added, too.
    Queue,
}

/// What becomes of occurrences that were missed because no node was running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CatchUp {
    /// The last of them is made up for.
    #[default]
    One,
    All,
    None,
}

/// A schedule and its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scheduled {
    #[serde(skip)]
    pub name: String,
    pub schedule: Schedule,
    /// The data of its job is not in the row, but a sealed value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    sealed: bool,
    /// What intervals count from.
    anchor_ms: i64,
    pub next_ms: i64,
    pub last: Option<Fired>,
    /// Occurrences without a job because of an overlap.
    pub skipped: u64,
    /// Why the data of its job cannot be read; the schedule is shown without it, and adds nothing.
    #[serde(skip)]
    pub unreadable: Option<Unreadable>,
}

/// The last occurrence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fired {
    /// The id of the last job.
    pub id: Option<String>,
    pub occurrence_ms: i64,
    /// Why no job was added.
    pub error: Option<String>,
}

impl Schedule {
    fn timing(&self, from_ms: i64) -> Result<Timing> {
        match (&self.cron, self.every_sec, &self.zone) {
            (Some(cron), None, zone) => Timing::cron(cron, zone.as_deref()),
            (None, Some(every), None) => Timing::every(every, from_ms),
            (None, Some(_), Some(_)) => Err(Error::Invalid("`zone` applies only to `cron`".into())),
            _ => Err(Error::Invalid("give either `cron` or `every_sec`".into())),
        }
    }

    fn occurs_like(&self, other: &Self) -> bool {
        (&self.cron, self.every_sec, &self.zone) == (&other.cron, other.every_sec, &other.zone)
    }
}

impl Scheduled {
    fn timing(&self) -> Result<Timing> {
        self.schedule.timing(self.anchor_ms)
    }

    /// The occurrences to be handled now, and the next one.
    fn due(&self, now_ms: i64) -> Result<(Vec<i64>, i64)> {
        let timing = self.timing()?;
        let after = |ms| timing.after(ms).unwrap_or(i64::MAX);
        let (mut due, mut next_ms) = (Vec::new(), self.next_ms);
        match self.schedule.catch_up {
            CatchUp::One if next_ms <= now_ms => next_ms = timing.last(next_ms, now_ms),
            CatchUp::None if next_ms < now_ms - LATE_MS => next_ms = after(now_ms - LATE_MS),
            _ => {}
        }
        let fitting = OCCURRENCES_BYTES / self.schedule.job.data.len().max(1);
        let most = fitting.clamp(1, OCCURRENCES_MAX);
        while next_ms <= now_ms && due.len() < most {
            due.push(next_ms);
            next_ms = after(next_ms);
        }
        Ok((due, next_ms))
    }
}

/// The type of the jobs that are schedules. Its maintenance recovers those of nodes that are gone.
pub fn schedules_type() -> JobType {
    JobType::new("schedules").expect("a short name")
}

fn time(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |at| at.to_string())
}

impl Queue {
    /// Makes a schedule or replaces it; true if it was made, and its next occurrence. One that occurs like before keeps its next
    /// occurrence.
    pub async fn put_schedule(&self, name: &str, schedule: &Schedule) -> Result<(bool, i64)> {
        check_name("a schedule", name)?;
        let ty = self.find(&TypeName::new(&schedule.ty)?).await?;
        if schedule.job.due.is_some() {
            return Err(Error::Invalid(
                "the `job` of a schedule has no `due`: each occurrence has its time, and `delay_sec` counts from it".into(),
            ));
        }
        let (op, own) = (&self.jobs().op(), &schedules_type());
        self.check(&ty, schedule.job.clone(), op.now_ms, || 0)?;
        let sealed = ty.settings.sealed;
        let first = schedule
            .timing(op.now_ms)?
            .after(op.now_ms)
            .unwrap_or(i64::MAX);
        (self.jobs().store())
            .transact("put_schedule", |tx| async move {
                let old = self.read_schedule(&tx, name).await?;
                if old.is_none() {
                    let all = tx
                        .snapshot()
                        .get_range(keys::schedules(), RangeOptions::limit(SCHEDULES_MAX));
                    if all.collect().await?.len() >= SCHEDULES_MAX {
                        return Err(Error::Invalid(format!(
                            "there are {SCHEDULES_MAX} schedules, which is the maximum"
                        )));
                    }
                }
                let made = old.is_none();
                let new = Scheduled {
                    name: name.to_owned(),
                    schedule: schedule.clone(),
                    sealed,
                    anchor_ms: op.now_ms,
                    next_ms: first,
                    last: None,
                    skipped: 0,
                    unreadable: None,
                };
                let new = match old {
                    Some(old) if old.schedule.occurs_like(schedule) => Scheduled {
                        schedule: schedule.clone(),
                        sealed,
                        ..old
                    },
                    Some(old) => Scheduled {
                        last: old.last,
                        skipped: old.skipped,
                        ..new
                    },
                    None => new,
                };
                self.write_schedule(&tx, &new).await?;
                let config = TypeConfig::new(TIMEOUT_MS);
                self.jobs().set_type_in(&tx, own, config).await?;
                let job = Add::new(job_id(name)?, "").due_ms(new.next_ms);
                let job = job.retention(Retention::Forever);
                self.jobs().add_in(&tx, op, own, job).await?;
                Ok((made, new.next_ms))
            })
            .await
    }

    /// A schedule.
    pub async fn schedule(&self, name: &str) -> Result<Scheduled> {
        let found = (self.jobs().store())
            .transact("schedule", |tx| async move {
                self.read_schedule(&tx, name).await
            })
            .await?;
        found.ok_or_else(|| missing(name))
    }

    /// A page of schedules by name, and whether there may be more.
    pub async fn schedules(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<Scheduled>, bool)> {
        (self.jobs().store())
            .transact("schedules", |tx| async move {
                let mut range = keys::schedules();
                if let Some(after) = after {
                    range.begin = [&keys::schedule(after)[..], &[0]].concat().into();
                }
                let rows = (tx.snapshot()).get_range(range, RangeOptions::limit(limit + 1));
                let mut rows = rows.collect().await?;
                let more = rows.len() > limit;
                rows.truncate(limit);
                let mut page = Vec::with_capacity(rows.len());
                for row in rows {
                    let found = decode(keys::name(&row.key)?, &row.value)?;
                    page.push(self.open_schedule(&tx, found).await?);
                }
                Ok((page, more))
            })
            .await
    }

    /// Removes a schedule. Jobs that it has added stay.
    pub async fn remove_schedule(&self, name: &str) -> Result<()> {
        let (op, own, id) = (&self.jobs().op(), &schedules_type(), &job_id(name)?);
        (self.jobs().store())
            .transact("remove_schedule", |tx| async move {
                if tx.get(&keys::schedule(name)).await?.is_none() {
                    return if tx.maybe_committed() {
                        Ok(())
                    } else {
                        Err(missing(name))
                    };
                }
                tx.clear(&keys::schedule(name));
                seal::values::clear_in(&tx, &sealed_name(name));
                match self.jobs().remove_in(&tx, op, own, id).await {
                    Ok(()) | Err(jobs::Error::NotFound) => Ok(()),
                    Err(error) => Err(error.into()),
                }
            })
            .await
    }

    /// Adds a job of a schedule now, besides its occurrences; returns its id. With a `repeat` key, a request that is repeated
    /// adds nothing twice while its job exists.
    pub async fn run_schedule(&self, name: &str, repeat: Option<&str>) -> Result<String> {
        let mut op = self.jobs().op();
        let mut which = time(op.now_ms);
        if let Some(key) = repeat {
            op.bits = digest(&["schedule", name, key]);
            which = format!("{:032x}", op.bits);
        }
        let op = &op;
        let found = self.schedule(name).await?.readable()?;
        let ty = self.find(&TypeName::new(&found.schedule.ty)?).await?;
        let (ty, found) = (&*ty, &found);
        let (id, ready) = self.check(ty, found.job_of(&format!("now-{which}")), op.now_ms, || 0)?;
        let ready = &[ready];
        (self.jobs().store())
            .transact("run_schedule", |tx| async move {
                self.add_in(&tx, op, ty, ready).await
            })
            .await?;
        Ok(id)
    }

    /// Handles schedules that are due, until the token is cancelled.
    pub(crate) async fn run_schedules(&self, token: CancellationToken) {
        let Ok(holder) = Holder::new("scheduler") else {
            return;
        };
        let (acceptor, handle) = Acceptor::new(self.jobs().clone(), schedules_type(), holder);
        let work = async {
            while let Ok(due) = handle.accept(SCHEDULES_AT_ONCE, WAIT).await {
                for accepted in due {
                    if let Err(error) = self.fire(&accepted.job).await {
                        // Another node does it when this run has timed out.
                        let name = String::from_utf8_lossy(accepted.job.id.as_bytes()).into_owned();
                        let error = wire::chain(&error);
                        tracing::warn!(schedule = %name, error, "cannot add the jobs of a schedule");
                    }
                }
            }
        };
        tokio::join!(acceptor.run(token), work);
    }

    /// Handles the occurrences of a schedule that are due.
    pub(crate) async fn fire(&self, job: &Job) -> Result<()> {
        let op = &self.jobs().op();
        let name = &*String::from_utf8_lossy(job.id.as_bytes());
        (self.jobs().store())
            .transact("fire_schedule", |tx| async move {
                let Some(found) = self.read_schedule(&tx, name).await? else {
                    let _ = self.jobs().finish_in(&tx, op, job, Finish::done()).await?;
                    return Ok(());
                };
                let mut found = found.readable()?;
                let (due, next_ms) = found.due(op.now_ms)?;
                let end = Finish::again(next_ms);
                if self.jobs().finish_in(&tx, op, job, end).await?.repeated {
                    // By a try whose outcome was unknown, with all below.
                    return Ok(());
                }
                found.next_ms = next_ms;
                for (nth, occurrence_ms) in (1..).zip(due) {
                    (self.occur(&tx, &op.nth(nth), &mut found, occurrence_ms)).await?;
                }
                self.write_schedule(&tx, &found).await
            })
            .await
    }

    async fn read_schedule(&self, tx: &Transaction, name: &str) -> Result<Option<Scheduled>> {
        let Some(row) = tx.get(&keys::schedule(name)).await? else {
            return Ok(None);
        };
        let found = decode(name.to_owned(), &row)?;
        Ok(Some(self.open_schedule(tx, found).await?))
    }

    async fn open_schedule(&self, tx: &Transaction, mut found: Scheduled) -> Result<Scheduled> {
        if found.sealed {
            let name = sealed_name(&found.name);
            match seal::values::read_in(tx, self.sealer(), &name).await {
                Ok(data) => found.schedule.job.data = Envelope::decode(data)?.data,
                Err(seal::Error::Unreadable(error)) => found.unreadable = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    async fn write_schedule(&self, tx: &Transaction, row: &Scheduled) -> Result<()> {
        // The limit is the same for both forms.
        let (mut value, name) = (encode(row)?, sealed_name(&row.name));
        if row.sealed {
            let mut bare = row.clone();
            let data = std::mem::take(&mut bare.schedule.job.data);
            value = encode(&bare)?;
            let data = Envelope::new(data).encode();
            seal::values::write_in(tx, self.sealer(), &name, &data).await?;
        } else {
            seal::values::clear_in(tx, &name);
        }
        tx.set(&keys::schedule(&row.name), &value);
        Ok(())
    }

    /// Adds the job of an occurrence.
    async fn occur(
        &self,
        tx: &Transaction,
        op: &Op,
        found: &mut Scheduled,
        at_ms: i64,
    ) -> Result<()> {
        let last = found.last.as_ref().and_then(|last| last.id.clone());
        let mut fired = Fired {
            id: last.clone(),
            occurrence_ms: at_ms,
            error: None,
        };
        let name = TypeName::new(&found.schedule.ty)?;
        match types::read(tx, &name).await? {
            None => fired.error = Some(Error::no_type(&name).to_string()),
            Some(ty) => {
                // The type may be sealed only since the schedule was put.
                found.sealed |= ty.settings.sealed && self.sealer().seals();
                let is_open = match last {
                    Some(id) if found.schedule.overlap == Overlap::Skip => {
                        let info = self.jobs().info_in(tx, &ty.ty, &job_id(&id)?).await?;
                        info.is_some_and(|i| matches!(i.state, State::Pending | State::Running))
                    }
                    _ => false,
                };
                if is_open {
                    found.skipped += 1;
                    fired.error = Some("the job of an earlier occurrence is not finished".into());
                } else {
                    match self.check(&ty, found.job_of(&time(at_ms)), at_ms, || 0) {
                        Ok((id, ready)) => {
                            self.add_in(tx, op, &ty, &[ready]).await?;
                            fired.id = Some(id);
                        }
                        // Another node has the key.
                        Err(error @ Error::NoKeys) => return Err(error),
                        Err(error) => fired.error = Some(error.to_string()),
                    }
                }
            }
        }
        found.last = Some(fired);
        Ok(())
    }
}

impl Scheduled {
    fn readable(self) -> Result<Self> {
        match self.unreadable {
            Some(error) => Err(error.into()),
            None => Ok(self),
        }
    }

    /// The job of an occurrence, whose id names it.
    fn job_of(&self, which: &str) -> NewJob {
        let mut job = self.schedule.job.clone();
        let id = || format!("{}@{which}", self.name);
        job.id = Some(job.id.unwrap_or_else(id));
        job
    }
}

fn missing(name: &str) -> Error {
    Error::NotFound(format!("there is no schedule `{name}`"))
}

/// The name of the sealed data of a schedule's job.
fn sealed_name(name: &str) -> String {
    format!("schedule/{name}")
}

fn decode(name: String, value: &[u8]) -> Result<Scheduled> {
    let row: Scheduled = row::decode(value, format_args!("the schedule {name}"))?;
    Ok(Scheduled { name, ..row })
}

fn encode(row: &Scheduled) -> Result<Vec<u8>> {
    let value = row::encode(row)?;
    let room = if row.last.is_none() { FIRED_BYTES } else { 0 };
    if value.len() + room > store::limits::VALUE_BYTES_MAX {
        return Err(Error::TooLarge(
            "a schedule, with the data of its job, may have at most 98 kB; store large data elsewhere, and its address here".into(),
        ));
    }
    Ok(value)
}

#[cfg(test)]
mod tests;
