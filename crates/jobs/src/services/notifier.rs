//! The notifier: notifies the subscribers of one process about jobs of one type.
//!
//! A subscriber registers here, then adds the notifier's number to the job's header, and reads the
//! job in the same transaction. The next transaction that changes the job removes the number, leaves
//! a note with the job's id and rings the notifier's bell. The notifier reads its notes, reads those
//! jobs, and adds its number again where subscribers need more. So a change costs something only if
//! the job has subscribers, and no noted change is lost: a bell that is missed only delays it.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use store::{Call, RangeOptions, Transaction, Watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::model::header::Header;
use crate::model::keys::{Keys, stamp_template};
use crate::model::machine::Event;
use crate::operations::batch::Batch;
use crate::operations::effects::POLL_MS;
use crate::services::pause::{Pause, sleep};
use crate::services::subscription::{Notice, Subscription, Table};
use crate::services::sweep::BELL_AGE_MAX;
use crate::services::type_watcher::{changed_or_never, watch_or_poll};
use crate::testing::planted::Bug;
use crate::{Error, JobId, JobInfo, JobType, Jobs, Op, Options, Result, telemetry};

/// Notes per transaction, and approximately how much data it reads.
const NOTES: usize = 100;
const NOTES_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Interval of bell refreshes, so that it is not swept as that of a dead process.
const REFRESH: Duration = Duration::from_mins(1);

/// One per process and type.
#[derive(Debug)]
pub struct Notifier {
    jobs: Jobs,
    ty: JobType,
    options: Options,
    table: Closing,
    /// Jobs still to be read. After a commit with an unknown outcome its notes may be gone, and only
    /// this set has them.
    owed: BTreeSet<JobId>,
    batch: Batch,
    /// The last bell refresh.
    refreshed: Option<Instant>,
}

/// A handle on the service, cheap to clone.
#[derive(Debug, Clone)]
pub struct NotifierHandle {
    jobs: Jobs,
    ty: JobType,
    table: Arc<Table>,
}

/// Ends all subscriptions when the service ends in any way.
#[derive(Debug)]
struct Closing(Arc<Table>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl NotifierHandle {
    /// Follows a job. The subscription starts with the job's current state; that of a finished job ends there.
    pub async fn subscribe(&self, id: &JobId) -> Result<Subscription> {
        // Registered first: every change from here on is either read below or delivered.
        let mut subscription = self.table.register(id).ok_or(Error::Stopped)?;
        let op = self.jobs.op();
        let (version, notice) = (self.jobs.store())
            .transact("subscribe", |tx| async move {
                if (self.jobs.type_config_in(&tx, &self.ty).await?).is_none() {
                    return Err(Error::NoTypeTimeout(self.ty.clone()));
                }
                let watched = !self.jobs.planted().is(Bug::SubscribeWithoutReading);
                let nonce = watched.then_some(self.table.nonce);
                let notice = look(&self.jobs, &tx, &op, &self.ty, id, nonce).await?;
                Ok((tx.read_version().await?, notice))
            })
            .await?;
        if notice == Notice::Removed {
            return Err(Error::NotFound);
        }
        if self.jobs.planted().is(Bug::SubscribeWithoutReading) {
            (self.jobs.store())
                .transact("subscribe", |tx| async move {
                    look(&self.jobs, &tx, &op, &self.ty, id, Some(self.table.nonce)).await
                })
                .await?;
        }
        self.table.deliver(id, version, &notice);
        subscription.begin();
        self.table.made.notify_one();
        Ok(subscription)
    }
}

impl Notifier {
    /// A notifier for jobs of a type.
    pub fn new(jobs: Jobs, ty: JobType, options: Options) -> (Self, NotifierHandle) {
        let table = Arc::new(Table::new(jobs.op().seed()));
        let handle = NotifierHandle {
            jobs: jobs.clone(),
            ty: ty.clone(),
            table: Arc::clone(&table),
        };
        let notifier = Self {
            jobs,
            ty,
            options,
            table: Closing(table),
            owed: BTreeSet::new(),
            batch: Batch::new(NOTES),
            refreshed: None,
        };
        (notifier, handle)
    }

    /// Runs until the token is cancelled. Costs nothing while there are no subscriptions.
    pub async fn run(mut self, token: CancellationToken) {
        let mut pause = Pause::new(self.jobs.entropy(), self.jobs.planted());
        loop {
            if self.table().is_empty() {
                let table = Arc::clone(self.table());
                tokio::select! {
                    biased;
                    () = token.cancelled() => break,
                    () = table.made.notified() => continue,
                }
            }
            let watch = match self.pass().await {
                Ok(watch) => watch,
                Err(error) => {
                    tracing::warn!(job.ty = %self.ty, error = %error.chain(), "cannot follow jobs");
                    if pause.wait(&token).await {
                        continue;
                    }
                    break;
                }
            };
            pause.reset();
            if let Some(watch) = watch {
                let poll = Duration::from_millis(POLL_MS.unsigned_abs());
                let poll = poll / 2 + self.jobs.entropy().up_to(poll / 2);
                tokio::select! {
                    biased;
                    () = token.cancelled() => break,
                    () = changed_or_never(watch) => {}
                    () = tokio::time::sleep(poll) => {}
                }
            }
            if !sleep(self.options.holdoff(), &token).await {
                break;
            }
        }
        self.table().close();
        let nonce = self.table().nonce;
        let (jobs, ty) = (&self.jobs, &self.ty);
        let cleared: Result<()> = (jobs.store())
            .transact(Call::batch("stop_notifier"), |tx| async move {
                tx.clear(&jobs.keys().notifier(ty, nonce));
                tx.clear_range(jobs.keys().notes(ty, nonce));
                Ok(())
            })
            .await;
        if let Err(error) = cleared {
            tracing::debug!(job.ty = %self.ty, error = %error.chain(), "cannot stop following jobs");
        }
    }

    fn table(&self) -> &Arc<Table> {
        &self.table.0
    }

    /// Reads the noted jobs; if there are none, returns what to wait for.
    async fn pass(&mut self) -> Result<Option<Option<Watch>>> {
        let age = self.refreshed.map(|at| at.elapsed());
        if age.is_none_or(|age| age >= REFRESH) {
            let now = Instant::now();
            self.refresh().await?;
            if age.is_none_or(|age| age >= BELL_AGE_MAX / 2) {
                // The bell may have been swept, and the notes with it.
                let followed = self.table().ids();
                self.owed.extend(followed);
            }
            self.refreshed = Some(now);
        }
        let (version, registered, noted, watch) = self.listen().await?;
        if !registered {
            self.table().end_all(version, &Notice::TypeCleared);
        }
        self.owed.extend(noted);
        if self.owed.is_empty() {
            return Ok(Some(watch));
        }
        while !self.owed.is_empty() {
            self.read_owed().await?;
        }
        Ok(None)
    }

    async fn refresh(&self) -> Result<()> {
        let key = self.jobs.keys().notifier(&self.ty, self.table().nonce);
        let value = stamp_template(self.jobs.store().incarnation(), &[]);
        let (key, value) = (&key, &value);
        (self.jobs.store())
            .transact(Call::batch("refresh_notifier"), |tx| async move {
                tx.set_versionstamped_value(key, value);
                Ok(())
            })
            .await
    }

    /// Whether the type is registered at a version, some notes, and a watch for more.
    async fn listen(&self) -> Result<(u64, bool, Vec<JobId>, Option<Watch>)> {
        let (jobs, ty, nonce) = (&self.jobs, &self.ty, self.table().nonce);
        let notes = &jobs.keys().notes(ty, nonce);
        jobs.read("listen", |tx| async move {
            let registered = jobs.type_config_in(&tx, ty).await?.is_some();
            let rows = (tx.snapshot()).get_range(notes.clone(), RangeOptions::limit(NOTES));
            let ids = (rows.collect().await?.iter())
                .map(|row| Keys::id(notes, &row.key))
                .collect::<Result<Vec<_>>>()?;
            let watch = watch_or_poll(tx.watch(&jobs.keys().notifier(ty, nonce)).await)?;
            Ok((tx.read_version().await?, registered, ids, watch))
        })
        .await
    }

    /// Reads some of the owed jobs, subscribes to their next changes, and notifies the subscribers.
    async fn read_owed(&mut self) -> Result<()> {
        let (this, table) = (&*self, self.table());
        let ids: Vec<_> = self.owed.iter().take(NOTES).cloned().collect();
        let (op, mut failed, mut done_with) = (&self.jobs.op(), None, Vec::new());
        let work = |tx, ids| async move { this.read_jobs_in(&tx, op, ids).await };
        let done = |ids: &[JobId], looked: Result<ReadJobs>| match looked {
            Ok(looked) => {
                for (id, notice) in looked.seen {
                    table.deliver(&id, looked.version, &notice);
                }
                done_with.extend(ids.iter().take(looked.count).cloned());
            }
            Err(error) => failed = Some(error),
        };
        (self.batch)
            .each(&self.jobs, "notice".into(), &ids, work, done)
            .await;
        for id in done_with {
            self.owed.remove(&id);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Reads the first of these jobs, as many as fit with their data.
    async fn read_jobs_in(&self, tx: &Transaction, op: &Op, ids: &[JobId]) -> Result<ReadJobs> {
        let (jobs, ty, table) = (&self.jobs, &self.ty, self.table());
        // Before the table is read: a job may get subscribers, and notes, from then on.
        let version = tx.read_version().await?;
        let headers = ids.iter().map(|id| async move {
            if table.follows(id) {
                return Ok(Some(jobs.try_header(tx, ty, id).await?));
            }
            // Conflicts with a new note, which must not be cleared.
            tx.get(&jobs.keys().note(ty, table.nonce, id)).await?;
            Ok::<_, Error>(None)
        });
        let headers = try_join_all(headers).await?;
        let mut bytes = 0;
        let fitting = headers.iter().take_while(|header| {
            let fits = bytes <= NOTES_BYTES_MAX;
            let header = header.iter().flatten().flatten().next();
            bytes += header.map_or(0, |header| header.data.len as usize);
            fits
        });
        let count = fitting.count();
        let looked = ids.iter().zip(headers).take(count);
        let seen = looked.filter_map(|(id, header)| {
            tx.clear(&jobs.keys().note(ty, table.nonce, id));
            let key = jobs.keys().job(ty, id);
            let header = header?.inspect_err(|error| telemetry::undecodable(ty, &key, error));
            let header = header.ok()?;
            Some(async move {
                let notice = notice(jobs, tx, op, ty, id, header, Some(table.nonce)).await?;
                Ok::<_, Error>((id.clone(), notice))
            })
        });
        Ok(ReadJobs {
            seen: try_join_all(seen).await?,
            version,
            count,
        })
    }
}

/// The followed jobs among those read.
struct ReadJobs {
    seen: Vec<(JobId, Notice)>,
    version: u64,
    /// How many jobs were read.
    count: usize,
}

/// The state of a job. With `nonce`, that notifier is notified of the next change.
async fn look(
    jobs: &Jobs,
    tx: &Transaction,
    op: &Op,
    ty: &JobType,
    id: &JobId,
    nonce: Option<u64>,
) -> Result<Notice> {
    let header = jobs.header(tx, ty, id).await?;
    notice(jobs, tx, op, ty, id, header, nonce).await
}

async fn notice(
    jobs: &Jobs,
    tx: &Transaction,
    op: &Op,
    ty: &JobType,
    id: &JobId,
    mut header: Option<Arc<Header>>,
    nonce: Option<u64>,
) -> Result<Notice> {
    let Some(found) = header.clone() else {
        return Ok(Notice::Removed);
    };
    if let Some(nonce) = nonce.filter(|_| !found.state().is_over()) {
        let mut effects = jobs.effects(tx, op.now_ms).await?;
        effects.run(ty, id, &mut header, Event::Watch { nonce })?;
    }
    let data = jobs.data_of(tx, ty, id, &found).await?;
    let info = JobInfo::of(id.clone(), &found);
    Ok(Notice::Job(Arc::new(info), data))
}
