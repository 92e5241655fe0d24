//! Notifies the runs of a process at once when their job is lost or requested again.
//!
//! A lock ends with the number of the acceptor whose claim drew it. A transaction that removes a running job, or
//! requests another run of it, leaves a note under that number, as for a notifier. The acceptor reads only its notes: a
//! cancel costs the holder two transactions, however many jobs it holds, and other holders nothing.
//!
//! Heartbeats report the same later. So a note whose watch is lost is only delayed, and notes of a dead acceptor are
//! swept like those of a notifier.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use store::{RangeOptions, Watch};
use tokio::sync::Notify;

use crate::model::keys::Keys;
use crate::model::run::{Interrupt, Run};
use crate::operations::effects::POLL_MS;
use crate::services::pause::Pause;
use crate::services::type_watcher::{changed_or_never, watch_or_poll};
use crate::testing::planted::{Bug, Planted};
use crate::{Accepted, Error, JobLock, JobType, Jobs, Result};

/// Notes per transaction.
const NOTES: usize = 1_000;
/// Interval of reading notes in case a watch was lost.
const POLL_PAUSE: Duration = Duration::from_mins(1);

/// The runs that an acceptor has handed out.
#[derive(Debug)]
pub(crate) struct Runs {
    /// The acceptor's number in locks and notes.
    pub(crate) number: u64,
    table: Mutex<Table>,
    begun: Notify,
}

#[derive(Debug, Default)]
struct Table {
    runs: HashMap<JobLock, Weak<Run>>,
    /// Size at which dropped runs are removed.
    prune_at: usize,
    /// During a claim, notes about its runs may arrive before the runs are known.
    claiming: bool,
    early: Vec<(JobLock, Interrupt)>,
}

impl Runs {
    pub(crate) fn new(number: u64) -> Self {
        Self {
            number,
            table: Mutex::default(),
            begun: Notify::new(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called before a claim.
    pub(crate) fn claim(&self, planted: Planted) {
        self.table().claiming = !planted.is(Bug::EarlyInterruptsAreLost);
    }

    /// Adds new runs.
    pub(crate) fn begin(&self, accepted: &[Accepted]) {
        let table = &mut *self.table();
        for Accepted { job, .. } in accepted {
            table.runs.insert(job.lock, Arc::downgrade(&job.run));
            for (_, interrupt) in table.early.iter().filter(|(lock, _)| *lock == job.lock) {
                job.run.interrupt(*interrupt);
            }
        }
        if table.runs.len() > table.prune_at {
            table.runs.retain(|_, run| run.strong_count() > 0);
            table.prune_at = 2 * table.runs.len() + 64;
        }
        self.begun.notify_one();
    }

    /// Called after a claim.
    pub(crate) fn settle(&self) {
        let table = &mut *self.table();
        table.claiming = false;
        table.early.clear();
    }

    fn interrupt(&self, lock: JobLock, interrupt: Interrupt) {
        let table = &mut *self.table();
        match table.runs.get(&lock).map(Weak::upgrade) {
            Some(Some(run)) => run.interrupt(interrupt),
            None if table.claiming => table.early.push((lock, interrupt)),
            Some(None) | None => {}
        }
    }

    /// Waits until there are runs.
    async fn wait_for_runs(&self) {
        loop {
            let is_live = |run: &Weak<Run>| run.strong_count() > 0;
            if self.table().runs.values().any(is_live) {
                return;
            }
            self.begun.notified().await;
        }
    }

    /// Interrupts runs as notes arrive, forever.
    pub(crate) async fn listen(&self, jobs: &Jobs, ty: &JobType) -> Infallible {
        let mut pause = Pause::new(jobs.entropy(), jobs.planted());
        loop {
            self.wait_for_runs().await;
            match self.take(jobs, ty).await {
                Ok(None) => {}
                Ok(Some(watch)) => {
                    pause.reset();
                    let poll = Duration::from_millis(POLL_MS.unsigned_abs());
                    let look = if watch.is_some() { POLL_PAUSE } else { poll };
                    let look = look / 2 + jobs.entropy().up_to(look / 2);
                    tokio::select! {
                        biased;
                        () = changed_or_never(watch) => {}
                        () = tokio::time::sleep(look) => {}
                    }
                }
                Err(error) => {
                    tracing::debug!(job.ty = %ty, error = %error.chain(), "cannot read interrupts of runs");
                    tokio::time::sleep(pause.after_error()).await;
                }
            }
        }
    }

    /// Takes the current notes; if there are none, returns what to wait for.
    async fn take(&self, jobs: &Jobs, ty: &JobType) -> Result<Option<Option<Watch>>> {
        let notes = &jobs.keys().notes(ty, self.number);
        let (rows, watch) = (jobs)
            .read("interrupts", |tx| async move {
                let rows = (tx.snapshot()).get_range(notes.clone(), RangeOptions::limit(NOTES));
                let rows = rows.collect().await?;
                let bell = jobs.keys().notifier(ty, self.number);
                let watch = match &*rows {
                    [] => Some(watch_or_poll(tx.watch(&bell).await)?),
                    _ => None,
                };
                Ok((rows, watch))
            })
            .await?;
        if rows.is_empty() {
            return Ok(watch);
        }
        for row in &rows {
            let (lock, interrupt) = Interrupt::of_note(&Keys::id(notes, &row.key)?)?;
            self.interrupt(lock, interrupt);
        }
        // A lock gets no second interrupt that matters, so no new note can be cleared here.
        let rows = &rows;
        (jobs.store())
            .transact("clear_interrupts", |tx| async move {
                for row in rows {
                    tx.clear(&row.key);
                }
                Ok::<_, Error>(())
            })
            .await?;
        Ok(None)
    }
}
