//! The services of a process for each type that its clients use: an acceptor, for all claims that wait, and a notifier,
//! for all requests that follow jobs. They start with the first request, and stop when there was none for some minutes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jobs::{Acceptor, AcceptorHandle, Holder, Notifier, NotifierHandle};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::types::{KNOWN, Type};
use crate::{Error, Queue, Result, TypeName};

/// How long services stay without a request.
const IDLE: Duration = Duration::from_mins(2);

#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<HashMap<TypeName, Arc<Line>>>);

#[derive(Debug)]
struct Line {
    /// `None` while the type is paused.
    acceptor: watch::Receiver<Option<AcceptorHandle>>,
    follow: NotifierHandle,
    /// Requests in progress.
    users: AtomicUsize,
    /// The type may have been paused or resumed.
    look: Notify,
}

/// A request that uses the services of a type.
#[derive(Debug)]
pub(crate) struct InLine(Arc<Line>);

impl Drop for InLine {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Relaxed);
    }
}

impl InLine {
    pub(crate) fn follow(&self) -> &NotifierHandle {
        &self.0.follow
    }

    /// The acceptor, if the type is not paused.
    pub(crate) fn acceptor(&self) -> Option<AcceptorHandle> {
        self.0.acceptor.borrow().clone()
    }

    /// The acceptors that follow each other as the type is paused and resumed.
    pub(crate) fn acceptors(&self) -> Acceptors {
        Acceptors(self.0.acceptor.clone())
    }
}

/// The acceptors of a type, for a claim that may outlast one.
pub(crate) struct Acceptors(watch::Receiver<Option<AcceptorHandle>>);

impl Acceptors {
    /// The acceptor, once the type is not paused; `None` when the time is over or the service stops.
    pub(crate) async fn by(&mut self, deadline: Instant) -> Option<AcceptorHandle> {
        let there = timeout_at(deadline, self.0.wait_for(Option::is_some));
        there.await.ok()?.ok()?.clone()
    }

    /// Waits until the acceptor is another than the last one that was got. False when the time is over or the service stops.
    pub(crate) async fn changed_by(&mut self, deadline: Instant) -> bool {
        matches!(timeout_at(deadline, self.0.changed()).await, Ok(Ok(())))
    }
}

impl Lines {
    /// A type may have been paused or resumed.
    pub(crate) fn look(&self, name: &TypeName) {
        if let Some(line) = self.lock().get(name) {
            line.look.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TypeName, Arc<Line>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Joins those that use the services of a type.
    pub(crate) fn enter(&self, ty: &Type) -> Result<InLine> {
        if self.stop().is_cancelled() {
            return Err(Error::Stopped);
        }
        let mut lines = self.lines().lock();
        if let Some(line) = lines.get(&ty.name) {
            line.users.fetch_add(1, Ordering::Relaxed);
            return Ok(InLine(Arc::clone(line)));
        }
        let (notifier, follow) =
            Notifier::new(self.jobs().clone(), ty.ty.clone(), self.options().clone());
        let (sender, acceptor) = watch::channel(None);
        let line = Arc::new(Line {
            acceptor,
            follow,
            users: AtomicUsize::new(1),
            look: Notify::new(),
        });
        let mut supervisor = Supervisor {
            queue: self.clone(),
            name: ty.name.clone(),
            line: Arc::clone(&line),
            acceptor: sender,
            running: None,
            tasks: TaskTracker::new(),
        };
        // The first claim does not wait for it.
        supervisor.pause(ty);
        lines.insert(ty.name.clone(), Arc::clone(&line));
        drop(lines);
        self.start(supervisor.run(notifier));
        Ok(InLine(line))
    }
}

/// Runs the services of one type.
struct Supervisor {
    queue: Queue,
    name: TypeName,
    line: Arc<Line>,
    acceptor: watch::Sender<Option<AcceptorHandle>>,
    /// Stops the acceptor, and is cancelled when it has stopped.
    running: Option<CancellationToken>,
    tasks: TaskTracker,
}

impl Supervisor {
    async fn run(mut self, notifier: Notifier) {
        let stop = self.queue.stop().child_token();
        self.tasks.spawn(notifier.run(stop.clone()));
        let mut used = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.line.look.notified() => {}
                () = sleep(KNOWN) => {}
            }
            let mut lines = self.queue.lines().lock();
            if self.line.users.load(Ordering::Relaxed) > 0 {
                used = Instant::now();
            } else if used.elapsed() > IDLE {
                lines.remove(&self.name);
                break;
            }
            drop(lines);
            match self.queue.find(&self.name).await {
                Ok(found) => self.pause(&found),
                Err(error) => {
                    tracing::debug!(job.ty = %self.name, error = %wire::chain(&error), "cannot read a job type");
                }
            }
        }
        stop.cancel();
        self.stop_acceptor();
        drop(self.acceptor);
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Starts the acceptor, or stops it if the type is paused.
    fn pause(&mut self, ty: &Type) {
        if ty.paused {
            return self.stop_acceptor();
        }
        if self
            .running
            .as_ref()
            .is_some_and(|token| !token.is_cancelled())
        {
            return;
        }
        // Every claim names its own worker.
        let Ok(nobody) = Holder::new("") else { return };
        let (acceptor, handle) = Acceptor::new(self.queue.jobs().clone(), ty.ty.clone(), nobody);
        let token = CancellationToken::new();
        let ended = token.clone().drop_guard();
        let stop = token.clone();
        self.tasks.spawn(async move {
            acceptor.run(stop).await;
            drop(ended);
        });
        self.running = Some(token);
        self.acceptor.send_replace(Some(handle));
    }

    fn stop_acceptor(&mut self) {
        if let Some(token) = self.running.take() {
            token.cancel();
            self.acceptor.send_replace(None);
        }
    }
}
