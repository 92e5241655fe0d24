//! Communication between a run and its starter.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use couch::Seq;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::progress::Progress;
use crate::stats::Stats;

/// The starter's side of a run.
#[derive(Clone, Debug)]
pub struct Control {
    stop: CancellationToken,
    rest: CancellationToken,
    abort: CancellationToken,
    paused: watch::Sender<bool>,
    progress: watch::Receiver<Progress>,
}

/// The run's side, consumed by one run.
#[derive(Clone, Debug)]
pub struct Handles {
    pub(super) stop: CancellationToken,
    pub(super) rest: CancellationToken,
    pub(super) abort: CancellationToken,
    pub(super) paused: watch::Receiver<bool>,
    pub(super) progress: watch::Sender<Progress>,
    pub(super) gate: Gate,
}

impl Handles {
    /// Handles of a new run. `gate` is called before each checkpoint.
    pub fn new(gate: Gate) -> (Control, Self) {
        let [stop, rest, abort] = std::array::from_fn(|_| CancellationToken::new());
        let (paused_sender, paused) = watch::channel(false);
        let (progress_sender, progress) = watch::channel(Progress::default());
        let control = Control {
            stop: stop.clone(),
            rest: rest.clone(),
            abort: abort.clone(),
            paused: paused_sender,
            progress,
        };
        (
            control,
            Self {
                stop,
                rest,
                abort,
                paused,
                progress: progress_sender,
                gate,
            },
        )
    }
}

impl Control {
    /// Stops the run: nothing new is started and a checkpoint is written.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Stops the run until there are changes: the next one may do without a checkpoint, if it gets what this one keeps.
    pub fn rest(&self) {
        self.rest.cancel();
        self.stop();
    }

    /// Aborts the run: requests are dropped and nothing more is written. Used when the lock is lost.
    pub fn abort(&self) {
        self.abort.cancel();
    }

    /// Parks the run after a checkpoint, or resumes it.
    pub fn pause(&self, paused: bool) {
        self.paused.send_replace(paused);
    }

    /// The progress of the run; changes can be awaited.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }
}

/// The lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halt;

/// The contents of the next checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Everything up to here is on the target.
    pub through: Seq,
    /// The counters so far.
    pub stats: Stats,
}

type Answer = Pin<Box<dyn Future<Output = Result<(), Halt>> + Send>>;

/// Decides whether the run may still write. The holder of a lock renews it here, so that checkpoints are never written
/// without it.
#[derive(Clone)]
pub struct Gate(Arc<dyn Fn(Checkpoint) -> Answer + Send + Sync>);

impl Gate {
    /// A gate that calls a function.
    pub fn new<F, Fut>(ask: F) -> Self
    where
        F: Fn(Checkpoint) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Halt>> + Send + 'static,
    {
        Self(Arc::new(move |checkpoint| Box::pin(ask(checkpoint))))
    }

    /// A gate for a run without a lock.
    pub fn open() -> Self {
        Self::new(|_| std::future::ready(Ok(())))
    }

    pub(super) async fn pass(&self, checkpoint: Checkpoint) -> Result<(), Halt> {
        (self.0)(checkpoint).await
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Gate")
    }
}
