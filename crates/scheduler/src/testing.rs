//! Hooks for the fleet simulation: pausing processes, a journal of runs, and planted bugs. Outside of tests they do
//! nothing and cost nothing.

#[cfg(not(test))]
pub(crate) use absent::*;
#[cfg(test)]
pub(crate) use present::*;

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A run that lost its lock continues, and does not check it before a checkpoint.
    IgnoresLock,
    /// [`Mistake::PassesUnfinished`](replication::engine::Mistake::PassesUnfinished)
    #[cfg(test)]
    PassesUnfinished,
    /// [`Mistake::ForgetsRevisions`](replication::engine::Mistake::ForgetsRevisions)
    #[cfg(test)]
    ForgetsRevisions,
    /// An idle job ignores changes of its source.
    MissesChangesWhenIdle,
    /// The end of a run is not written to its document.
    EndWithoutDocument,
    /// A finished job stays in the listing of unfinished ones.
    FinishedStaysListed,
    /// A job that failed as a duplicate stays failed when the replication id is free again.
    ReleasesNoDuplicate,
    /// A deleted document leaves its job behind.
    DeletedKeepsJob,
    /// A failed job is never retried.
    NeverRetries,
    /// Background work is polled without a pause.
    BusyTidying,
}

#[cfg(not(test))]
mod absent {
    use std::sync::Arc;

    use jobs::Accepted;
    use replication::engine::Observer;

    use super::Bug;

    /// A task of this process.
    pub(crate) fn spawned<F: Future>(task: F) -> F {
        task
    }

    /// Whether a bug is planted.
    pub(crate) fn has(_: Bug) -> bool {
        false
    }

    /// Records a run as copying until dropped.
    pub(crate) struct Copying;

    pub(crate) fn copying(_: &str, _: &Accepted) -> Copying {
        Copying
    }

    /// The journal of this process.
    pub(crate) fn observer() -> Option<Arc<dyn Observer>> {
        None
    }
}

#[cfg(test)]
mod present {
    use std::pin::pin;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::task::{Poll, Waker};

    use jobs::{Accepted, JobId};
    use replication::engine::{Mistake, Observer};
    use tokio::time::Instant;

    use super::Bug;

    tokio::task_local! {
        static PROCESS: Arc<Process>;
    }

    /// A process of a simulated fleet.
    #[derive(Debug)]
    pub(crate) struct Process {
        name: String,
        bug: Option<Bug>,
        journal: Arc<Mutex<Journal>>,
        processor: Mutex<Processor>,
    }

    #[derive(Debug, Default)]
    struct Processor {
        taken_away: bool,
        waiting: Vec<Waker>,
        /// The start and end of a pause.
        times: Vec<(Instant, Option<Instant>)>,
    }

    /// The journal of runs.
    #[derive(Debug, Default)]
    pub(crate) struct Journal {
        pub(crate) copied: Vec<Copied>,
        pub(crate) recorded: Vec<Recorded>,
    }

    /// A run of the engine.
    #[derive(Clone, Debug)]
    pub(crate) struct Copied {
        pub(crate) process: Arc<Process>,
        pub(crate) replication: String,
        pub(crate) job: JobId,
        /// Distinguishes it from earlier runs with the same id.
        pub(crate) created_ms: i64,
        pub(crate) begun: Instant,
        pub(crate) ended: Option<Instant>,
    }

    /// A checkpoint.
    #[derive(Clone, Debug)]
    pub(crate) struct Recorded {
        pub(crate) process: String,
        pub(crate) replication: String,
        pub(crate) session: String,
    }

    impl Process {
        pub(crate) fn new(
            name: String,
            bug: Option<Bug>,
            journal: &Arc<Mutex<Journal>>,
        ) -> Arc<Self> {
            Arc::new(Self {
                name,
                bug,
                journal: Arc::clone(journal),
                processor: Mutex::default(),
            })
        }

        pub(crate) fn name(&self) -> &str {
            &self.name
        }

        /// Pauses or resumes the process. Timers continue, as for a stopped process.
        pub(crate) fn pause(&self, paused: bool) {
            let mut processor = lock(&self.processor);
            if processor.taken_away == paused {
                return;
            }
            processor.taken_away = paused;
            if paused {
                processor.times.push((Instant::now(), None));
            } else {
                if let Some((_, until)) = processor.times.last_mut() {
                    *until = Some(Instant::now());
                }
                processor.waiting.drain(..).for_each(Waker::wake);
            }
        }

        /// The pauses of a process.
        pub(crate) fn pauses(&self) -> Vec<(Instant, Option<Instant>)> {
            lock(&self.processor).times.clone()
        }

        /// A task of this process.
        pub(crate) async fn run<T>(self: Arc<Self>, task: impl Future<Output = T>) -> T {
            let task = PROCESS.scope(Arc::clone(&self), task);
            let mut task = pin!(task);
            std::future::poll_fn(|cx| {
                {
                    let mut processor = lock(&self.processor);
                    if processor.taken_away {
                        processor.waiting.push(cx.waker().clone());
                        return Poll::Pending;
                    }
                }
                task.as_mut().poll(cx)
            })
            .await
        }
    }

    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process() -> Option<Arc<Process>> {
        PROCESS.try_with(Arc::clone).ok()
    }

    /// A task of the process that spawns it.
    pub(crate) fn spawned<F: Future>(task: F) -> impl Future<Output = F::Output> {
        let process = process();
        async move {
            match process {
                Some(process) => process.run(task).await,
                None => task.await,
            }
        }
    }

    pub(crate) fn has(bug: Bug) -> bool {
        process().is_some_and(|process| process.bug == Some(bug))
    }

    /// Records a run as copying until dropped.
    pub(crate) struct Copying(Option<(Arc<Process>, usize)>);

    pub(crate) fn copying(replication: &str, accepted: &Accepted) -> Copying {
        Copying(process().map(|process| {
            let mut journal = lock(&process.journal);
            journal.copied.push(Copied {
                process: Arc::clone(&process),
                replication: replication.to_owned(),
                job: accepted.job.id.clone(),
                created_ms: accepted.created_ms,
                begun: Instant::now(),
                ended: None,
            });
            let place = journal.copied.len() - 1;
            drop(journal);
            (process, place)
        }))
    }

    impl Drop for Copying {
        fn drop(&mut self) {
            if let Some((process, place)) = &self.0 {
                lock(&process.journal).copied[*place].ended = Some(Instant::now());
            }
        }
    }

    /// The journal of this process.
    pub(crate) fn observer() -> Option<Arc<dyn Observer>> {
        process().map(|process| process as Arc<dyn Observer>)
    }

    impl Observer for Process {
        fn checkpoint_written(&self, replication: &str, session: &str) {
            let recorded = Recorded {
                process: self.name.clone(),
                replication: replication.to_owned(),
                session: session.to_owned(),
            };
            lock(&self.journal).recorded.push(recorded);
        }

        fn planted(&self) -> Option<Mistake> {
            match self.bug? {
                Bug::PassesUnfinished => Some(Mistake::PassesUnfinished),
                Bug::ForgetsRevisions => Some(Mistake::ForgetsRevisions),
                _ => None,
            }
        }
    }
}
