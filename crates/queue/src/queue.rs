//! The handle on the jobs of users.

use std::sync::Arc;

use jobs::{Jobs, Options};
use seal::Sealer;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::add::Pending;
use crate::lines::Lines;
use crate::types::Known;

pub use crate::name::{OWN_TYPES, PREFIX};

/// A handle, cheap to clone. What it starts in the background runs until [`Self::run`] is stopped.
#[derive(Debug, Clone)]
pub struct Queue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    jobs: Jobs,
    options: Options,
    sealer: Sealer,
    known: Known,
    pending: Pending,
    lines: Lines,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Queue {
    /// The sealer has the keys of sealed types.
    pub fn new(jobs: Jobs, options: Options, sealer: Sealer) -> Self {
        Self(Arc::new(Inner {
            jobs,
            options,
            sealer,
            known: Known::default(),
            pending: Pending::default(),
            lines: Lines::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }))
    }

    /// Handles schedules until the token is cancelled. Then stops the background work, and waits for it.
    pub async fn run(self, token: CancellationToken) {
        let scheduling = Box::pin(self.run_schedules(token.child_token()));
        tokio::join!(token.cancelled(), scheduling);
        self.0.stop.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    pub fn jobs(&self) -> &Jobs {
        &self.0.jobs
    }

    pub(crate) fn options(&self) -> &Options {
        &self.0.options
    }

    pub(crate) fn sealer(&self) -> &Sealer {
        &self.0.sealer
    }

    pub(crate) fn known(&self) -> &Known {
        &self.0.known
    }

    pub(crate) fn counted(&self) -> &Pending {
        &self.0.pending
    }

    pub(crate) fn lines(&self) -> &Lines {
        &self.0.lines
    }

    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.0.stop
    }

    /// Starts a task. Outside a runtime, which ends, there is nothing to start it on.
    pub(crate) fn start(&self, task: impl Future<Output = ()> + Send + 'static) {
        if tokio::runtime::Handle::try_current().is_ok() {
            self.0.tasks.spawn(task);
        }
    }
}
