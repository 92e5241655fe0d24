//! Mirrors as jobs: one job for each remote, place and project.
//!
//! ```text
//! job "REMOTE PLACE PROJECT"      data: what is being pushed, and what earlier pushes failed to
//! ("git", "refs", id)             its inbox: refs that arrived since
//!
//! notify  adds refs to the inbox, and signals the job: due at the first event's time plus the delay
//! take    moves the inbox into the job's data, when a push begins
//! end     of a push: drops the data, or keeps what is left
//! ```
//!
//! So an event never changes what is being pushed, a push that fails or dies leaves its refs to the next one, and refs
//! that arrive during a push make the job run again. Each line is one transaction.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use jobs::{
    Add, Clock, Entropy, Failure, Finish, Inbox, Job, JobId, JobInfo, JobType, Jobs, Lane, Limit,
    LimitName, Query, Revive, Signal, State, TypeConfig, decode, encode, millis, name_part,
};
use serde::{Deserialize, Serialize};
use store::{Store, tuple};
use tokio::time::sleep;

use crate::config::{Config, Refused, Remote, Retry, Target};
use crate::push::{Class, Outcome};
use crate::refs::Refs;
use crate::target::lock_of;

/// A node that is silent for so long loses its pushes to others.
pub(crate) const LOCK_TIMEOUT_SEC: u64 = 30;
/// Targets that one transaction notifies.
const TARGETS_MAX: usize = 100;
/// How long the job of an idle mirror stays, for people to see how its last push ended.
const IDLE_MS: u64 = 24 * 3_600 * 1_000;
/// Pushes to different targets that became due together start up to this much apart.
const JITTER_MAX_MS: i64 = 1_000;
/// Between attempts to write to a store that fails.
const PAUSE: Duration = Duration::from_secs(5);
/// While a new configuration reaches one node after the other, events for a new target wait; then it is one that has
/// been removed.
const UNKNOWN: Retry = Retry {
    max: Some(10),
    delay: Duration::from_mins(1),
};

/// The data of a job. It has no URL, which may have credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mirror {
    pub(crate) remote: String,
    pub(crate) project: String,
    pub(crate) place: String,
    /// What the push in progress is about, or what failed pushes have left.
    #[serde(default, skip_serializing_if = "Refs::is_empty")]
    pub(crate) refs: Refs,
    /// Refs that were not found, and since when. Those whose deletion failed stay, and are deleted without another wait.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) absent: BTreeMap<String, i64>,
    /// Pushes in a row that failed with this class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<(Class, u32)>,
}

/// When a notified mirror is pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// After the remote's delay, counted from the first event that no push covers.
    Delayed,
    /// Now, whatever it waits for.
    Now,
}

/// A mirror in a listing.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) mirror: Mirror,
    pub(crate) info: JobInfo,
    /// What has arrived since the last push began.
    pub(crate) arrived: Refs,
}

/// The mirrors in a store.
#[derive(Debug, Clone)]
pub(crate) struct Mirrors {
    pub(crate) jobs: Jobs,
    pub(crate) ty: JobType,
    /// Refs that have arrived since the last push of each began.
    inbox: Inbox,
}

impl Mirrors {
    /// Does not create a store, whose events no node would ever see.
    pub(crate) async fn open_existing(url: &str) -> anyhow::Result<Self> {
        if !Store::is_there(url) {
            return Err(Refused::argument(format!("no store at {url}; check --store")).into());
        }
        Self::open(url).await
    }

    pub(crate) async fn open(url: &str) -> anyhow::Result<Self> {
        let store = Store::open(url).await;
        let store = store.with_context(|| format!("cannot open the store {url}; check --store"))?;
        Ok(Self::new(store)?)
    }

    pub(crate) fn new(store: Store) -> jobs::Result<Self> {
        let jobs = Jobs::new(store, Clock::system(), Entropy::from_os());
        let inbox = Inbox::new(jobs.clone(), tuple::pack(&("git", "refs")));
        let ty = JobType::new("git")?;
        Ok(Self { jobs, ty, inbox })
    }

    /// Makes the type known: with another timeout, or with any if it is new.
    pub(crate) async fn register(&self, timeout_sec: Option<u64>) -> jobs::Result<()> {
        if timeout_sec.is_none() && self.jobs.type_config(&self.ty).await?.is_some() {
            return Ok(());
        }
        let config = TypeConfig {
            retention_ms: Some(IDLE_MS),
            ..TypeConfig::new(1_000 * timeout_sec.unwrap_or(LOCK_TIMEOUT_SEC))
        };
        self.jobs.set_type(&self.ty, config).await
    }

    /// Limits the pushes to each remote, over all nodes, and forgets the limits of remotes that are gone.
    pub(crate) async fn limit(&self, config: &Config) -> jobs::Result<()> {
        let limit = |remote: &Remote| Ok((pool(&remote.name)?, Limit::at_once(remote.threads)));
        let limits: BTreeMap<_, _> =
            (config.remotes.iter().map(limit)).collect::<jobs::Result<_>>()?;
        let before = self.jobs.limits(&self.ty).await?;
        let (op, wanted) = (&self.jobs.op(), &limits);
        let replace = self.jobs.store().transact("git_limit", |tx| async move {
            (self.jobs.replace_limits_in(&tx, op, &self.ty, wanted)).await
        });
        replace.await?;
        for pool in before.keys().chain(limits.keys()) {
            self.jobs.serve_limit(&self.ty, pool).await?;
        }
        Ok(())
    }

    /// Has refs pushed to targets; returns how many runs of each had begun before. If that fails, some targets may have been
    /// notified; repeating it does no harm.
    pub(crate) async fn notify(
        &self,
        targets: &[Target<'_>],
        refs: &Refs,
        when: When,
    ) -> jobs::Result<Vec<u32>> {
        let mut begun = Vec::new();
        for targets in targets.chunks(TARGETS_MAX) {
            let op = self.jobs.op();
            let signals = targets.iter().map(|target| signal(target, op.now_ms, when));
            let signals = &signals.collect::<jobs::Result<Vec<_>>>()?;
            let send = self.jobs.store().transact("git_notify", |tx| async move {
                let mut begun = Vec::new();
                for Signal { add, .. } in signals {
                    let mut arrived = arrived(self.inbox.get_in(&tx, &add.id).await?);
                    if arrived.merge(refs) {
                        self.inbox.put_in(&tx, &add.id, &encode(&arrived)?);
                    }
                    let info = self.jobs.info_in(&tx, &self.ty, &add.id).await?;
                    begun.push(info.map_or(0, |info| info.attempts));
                }
                (self.jobs.signal_many_in(&tx, &op, &self.ty, signals)).await?;
                Ok::<_, jobs::Error>(begun)
            });
            begun.extend(Box::pin(send).await?);
        }
        Ok(begun)
    }

    /// Repeats [`Self::notify`] until the store can be written to.
    pub(crate) async fn notify_in_the_end(&self, targets: &[Target<'_>], refs: &Refs) {
        while let Err(error) = self.notify(targets, refs, When::Delayed).await {
            tracing::error!(error = %store::chain(&error), "cannot write to the store; trying again");
            sleep(PAUSE).await;
        }
    }

    /// What a run is to push: all that has arrived until now, and what earlier ones left.
    pub(crate) async fn take(&self, job: &Job) -> jobs::Result<Mirror> {
        let merge = |stored: &Bytes, row: &Bytes| {
            let (mut mirror, arrived) = (decode::<Mirror>(stored)?, arrived(Some(row.clone())));
            mirror.refs.merge(&arrived);
            // Another node may have created these again, and this one does not see them yet.
            let absent = &mut mirror.absent;
            absent.retain(|name, _| !arrived.names.contains(name));
            encode(&mirror)
        };
        decode(&self.inbox.take(job, merge).await?)
    }

    /// How a run ends. One that is to be a dead letter runs again if other refs have arrived meanwhile.
    pub(crate) async fn end(
        &self,
        job: &Job,
        mut mirror: Mirror,
        outcome: Outcome,
        remote: Option<&Remote>,
    ) -> Result<Finish, Failure> {
        let (class, reason, left) = match outcome {
            Outcome::Failed {
                class,
                reason,
                left,
            } => (class, reason, left),
            Outcome::Done(note) => {
                // Not a failure, so events do not wait for it.
                let first_ms = mirror.absent.values().min();
                let again_ms = first_ms
                    .zip(remote)
                    .map(|(ms, remote)| ms + millis(remote.retry.delay));
                (mirror.refs, mirror.failed) = (Refs::of(mirror.absent.keys()), None);
                return Ok(Finish {
                    reason: note.map(str::to_owned),
                    again_ms,
                    ..Finish::done().data(encode(&mirror)?)
                });
            }
        };
        let retry = match (class, remote) {
            (Class::Offline, Some(remote)) => Some(remote.retry),
            (Class::Lock, Some(remote)) => Some(remote.lock_retry),
            (Class::Rejected | Class::Missing, Some(_)) => None,
            (Class::Unknown, _) | (_, None) => Some(UNKNOWN),
        };
        let before = mirror.failed.filter(|(before, _)| *before == class);
        let before = before.map_or(0, |(_, failures)| failures);
        // After a dead letter, the count begins again.
        let failures = match retry {
            Some(retry) if !retry.allows(before) => 1,
            _ => before + 1,
        };
        let retry = retry.filter(|retry| retry.allows(failures));
        if retry.is_none() && class == Class::Unknown {
            (mirror.refs, mirror.failed) = (Refs::default(), None);
            mirror.absent.clear();
            return Ok(Finish::failed(reason).data(encode(&mirror)?));
        }
        mirror.refs = left;
        mirror.refs.merge(&Refs::of(mirror.absent.keys()));
        mirror.failed = Some((class, failures));
        let failed = Finish::failed(reason).data(encode(&mirror)?);
        let Some(retry) = retry else {
            return Ok(self.inbox.finish_dead(job, failed).await?);
        };
        Ok(Finish {
            again_ms: Some(self.jobs.clock().now_ms() + millis(retry.delay)),
            ..failed
        })
    }

    /// All mirrors, each once, whatever happens meanwhile; idle ones only if asked for. One that cannot be read is left out.
    pub(crate) async fn list(&self, idle: bool) -> jobs::Result<Vec<Listed>> {
        // By id: a job that changes its state between two listings by state would be missing, or listed twice.
        let query = Query {
            data: true,
            ..Query::default()
        };
        let mut pages = self.jobs.pages(&self.ty, query, jobs::PAGE_JOBS_MAX);
        let mut found = Vec::new();
        while let Some(page) = pages.next().await? {
            for job in page {
                let (info, mirror) = (job.info, job.data.and_then(|data| decode(&data).ok()));
                let Some(mirror) = mirror.filter(|_| idle || info.state != State::Finished) else {
                    continue;
                };
                let arrived = arrived(self.inbox.get(&info.id).await?);
                found.push(Listed {
                    mirror,
                    info,
                    arrived,
                });
            }
        }
        Ok(found)
    }

    /// The job of a target.
    pub(crate) async fn info(&self, target: &Target<'_>) -> jobs::Result<Option<JobInfo>> {
        self.jobs.info(&self.ty, &id(target)?).await
    }
}

fn signal(target: &Target<'_>, now_ms: i64, when: When) -> jobs::Result<Signal> {
    let mirror = Mirror {
        remote: target.remote.name.clone(),
        project: target.project.as_str().to_owned(),
        place: target.place.clone(),
        ..Mirror::default()
    };
    let delay_ms = millis(target.remote.delay);
    // The same for all events of a target, so that a later one does not make it shorter.
    let jitter_ms = jobs::fraction(&target.place, JITTER_MAX_MS.min(delay_ms / 10));
    let place = LimitName::new(format!("target|{}", name_part(&lock_of(&target.place))))?;
    let (due_ms, rerun_ms, revive) = match when {
        When::Now => (0, 0, Revive::Failed),
        // A dead letter is pushed again with the next event.
        When::Delayed => (
            now_ms + delay_ms + jitter_ms,
            now_ms + millis(target.remote.reschedule_delay),
            Revive::Dead,
        ),
    };
    let add = Add::new(id(target)?, encode(&mirror)?)
        .due_ms(due_ms)
        // Remotes take turns, however many targets each has.
        .lane(Lane::of(target.remote.name.as_bytes()))
        .key(place)
        .pool(pool(&target.remote.name)?);
    Ok(Signal {
        revive,
        rerun_ms,
        ..add.into()
    })
}

/// Several projects may have one place, as with `remoteNameStyle = basenameOnly`.
fn id(target: &Target<'_>) -> jobs::Result<JobId> {
    let place = format!("{} {}", target.place, target.project.as_str());
    let (remote, place) = (name_part(&target.remote.name), name_part(&place));
    JobId::new(format!("{remote} {place}"))
}

fn pool(remote: &str) -> jobs::Result<LimitName> {
    LimitName::new(format!("remote|{}", name_part(remote)))
}

/// The refs in an inbox.
fn arrived(row: Option<Bytes>) -> Refs {
    // Only a later version could have written something else; then all refs are safe.
    row.map_or_else(Refs::default, |row| {
        decode(&row).unwrap_or_else(|_| Refs::all())
    })
}

#[cfg(test)]
mod tests;
