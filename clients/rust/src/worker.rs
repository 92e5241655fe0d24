//! A worker: claims jobs, runs a handler for each, sends heartbeats, and ends the runs.

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{Answer, Beat, Beats, Claimed, Client, Ended, Error, Failure, Finish, Held, Result, WorkerOptions};

/// How long one request for a job waits.
const WAIT: Duration = Duration::from_mins(1);
/// Between heartbeats with progress, between tries to store the last progress, and between tries to end a run while the
/// worker stops.
const PROGRESS: Duration = Duration::from_millis(500);
/// Between other tries to reach the service, or to wait for a job.
const UNREACHABLE: Duration = Duration::from_secs(5);
/// For last reports, once the worker has dropped handlers.
const LAST: Duration = Duration::from_secs(10);
const BEATS_MAX: usize = 500;
/// The member of progress that has data of [`Task::save`].
const SAVED: &str = "saved";

/// A job during its run.
#[derive(Debug)]
pub struct Task<T> {
    /// The decoded data of the job, as an earlier run [saved](Self::save) it.
    pub data: T,
    pub id: String,
    pub attempt: u32,
    /// Failures and silent workers in a row before this run.
    pub failures: u32,
    /// What an earlier attempt reported last, or null.
    pub progress: Value,
    run: Arc<Run>,
}

impl<T> Task<T> {
    /// Stores progress, any JSON, with the next heartbeat: within about a second.
    pub fn report(&self, progress: impl Into<Value>) {
        *lock(&self.run.report) = Some(progress.into());
    }

    /// There is newer data: the job will run again, and this run may end early.
    pub fn superseded(&self) -> bool {
        self.run.again.load(Ordering::Relaxed)
    }

    /// The run ends, and another one follows after this delay.
    pub fn again_in(&self, delay: Duration) -> Finish {
        Finish::after(delay)
    }
}

impl<T: Serialize> Task<T> {
    /// Stores the current data, as progress, for the next run in case this one fails.
    pub async fn save(&self) -> Result<Held> {
        let saved = json!({SAVED: serde_json::to_value(&self.data)?});
        for answer in self.run.beat(Some(saved)).await? {
            answer.accepted()?;
        }
        Ok(Held { again: self.superseded() })
    }
}

impl<E: StdError> From<E> for Failure {
    fn from(error: E) -> Self {
        let causes = std::iter::successors(Some(&error as &dyn StdError), |error| StdError::source(*error));
        Self::Retry(causes.map(ToString::to_string).collect::<Vec<_>>().join(": "))
    }
}

impl Finish {
    /// The job is finished.
    pub fn done() -> Self {
        Self { outcome: "done", result: Value::Null, error: None, delay_sec: None, retry: None }
    }

    /// The job failed for this reason, and is not retried.
    pub fn dead(reason: impl Into<String>) -> Self {
        Self { outcome: "failed", error: Some(reason.into()), retry: Some(false), ..Self::done() }
    }

    /// The job runs again at this time by the worker's clock, in milliseconds since 1970; 0 means as soon as possible.
    pub fn again(due_ms: i64) -> Self {
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self::after(Duration::from_millis(due_ms.try_into().unwrap_or(0)).saturating_sub(now))
    }

    fn after(delay: Duration) -> Self {
        Self { outcome: "again", delay_sec: Some(delay.as_secs_f64()), ..Self::done() }
    }

    /// The same end, with a result: any JSON.
    #[must_use]
    pub fn result(self, result: impl Into<Value>) -> Self {
        Self { result: result.into(), ..self }
    }
}

impl From<Failure> for Finish {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Retry(reason) => Self { retry: None, ..Self::dead(reason) },
            Failure::Dead(reason) => Self::dead(reason),
        }
    }
}

/// The run of a job that this worker holds.
#[derive(Debug)]
struct Run {
    worker: Arc<Worker>,
    /// Without progress.
    beat: Beat,
    /// Progress to be sent.
    report: Mutex<Option<Value>>,
    /// Until when the job is this worker's, and the timeout that it was promised.
    held: Mutex<(Instant, Duration)>,
    /// Held while a heartbeat is sent: none overtakes another.
    beating: Arc<tokio::sync::Mutex<()>>,
    again: AtomicBool,
    lost: CancellationToken,
}

impl Run {
    /// Sends a heartbeat after earlier ones, with what the run saves.
    async fn beat(self: &Arc<Self>, saved: Option<Value>) -> Result<Vec<Answer>> {
        let beating = Arc::clone(&self.beating).lock_owned().await;
        if saved.is_some() {
            *lock(&self.report) = saved;
        }
        Arc::clone(&self.worker).beat(vec![(Arc::clone(self), beating)]).await
    }

    /// Progress that was stored or refused is not sent again.
    fn told(&self, progress: Option<&Value>) {
        let mut report = lock(&self.report);
        *report = report.take().filter(|report| Some(report) != progress);
    }
}

/// One per process and type.
#[derive(Debug)]
pub struct Worker {
    client: Client,
    ty: String,
    name: String,
    options: WorkerOptions,
    /// What the service promised last. Earlier promises to jobs may be shorter.
    timeout: Mutex<Duration>,
}

type Handled = std::result::Result<Finish, Failure>;
type Handler = Box<dyn Fn(Claimed, Arc<Run>) -> Pin<Box<dyn Future<Output = Handled> + Send>> + Send + Sync>;

struct Shared {
    worker: Arc<Worker>,
    handler: Handler,
    /// Stops claiming jobs.
    stop: CancellationToken,
    /// Of each slot, until the service knows how it ended.
    runs: Mutex<Vec<Option<Arc<Run>>>>,
}

impl Worker {
    /// A worker that claims jobs of a type; operators see its name.
    pub fn new(client: Client, ty: &str, name: &str, options: WorkerOptions) -> Self {
        // The shortest that a type can have, until the service tells it.
        let (ty, name, timeout) = (ty.to_owned(), name.to_owned(), Mutex::new(Duration::from_secs(1)));
        Self { client, ty, name, options, timeout }
    }

    /// Runs until the token is cancelled and all runs have ended, or the service refuses to give jobs. Fails at once if
    /// `concurrency` is 0.
    ///
    /// If its job is removed or lost, the handler is dropped.
    pub async fn run<T, H, Fut>(self, token: CancellationToken, handler: H) -> Result<()>
    where
        T: DeserializeOwned + Send + 'static,
        H: Fn(Task<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = std::result::Result<Finish, Failure>> + Send + 'static,
    {
        let (concurrency, drain) = (self.options.slots()?, self.options.drain);
        let handler: Handler = Box::new(move |mut claimed, run| {
            let saved = claimed.progress.get_mut(SAVED).map(Value::take);
            let data = serde_json::from_value(saved.unwrap_or(claimed.data)).map_err(|error| error.to_string());
            match claimed.unreadable.map_or(data, Err) {
                Ok(data) => {
                    let Claimed { id, attempt, failures, progress, .. } = claimed;
                    Box::pin(handler(Task { data, id, attempt, failures, progress, run }))
                }
                Err(error) => Box::pin(async move { Err(Failure::Dead(format!("its data cannot be read: {error}"))) }),
            }
        });
        let (stop, runs) = (token.child_token(), Mutex::new(vec![None; concurrency]));
        let shared = Arc::new(Shared { worker: Arc::new(self), handler, stop, runs });
        let slots: JoinSet<_> = (0..concurrency).map(|slot| Arc::clone(&shared).work(slot)).collect();
        tokio::select! {
            refused = slots.join_all() => refused.into_iter().collect(),
            () = shared.beats() => Ok(()),
            () = shared.stopped_for(drain + LAST) => Ok(()),
        }
    }

    /// Sends heartbeats, if need be to the next frontend.
    async fn beat(self: Arc<Self>, runs: Vec<(Arc<Run>, tokio::sync::OwnedMutexGuard<()>)>) -> Result<Vec<Answer>> {
        let (sent, timeout) = (Instant::now(), *lock(&self.timeout));
        let promised = runs.iter().map(|(run, _)| lock(&run.held).1).fold(timeout, Duration::min);
        let client = self.client.within(promised / 3);
        let beats = runs.iter().map(|(run, _)| Beat { progress: lock(&run.report).clone(), ..run.beat.clone() });
        let (mut beats, mut refused): (Vec<_>, _) = (beats.collect(), None);
        let Beats { jobs, timeout_sec } = loop {
            let answer = client.beat(&self.ty, &beats).await;
            match answer.inspect_err(|error| tracing::warn!(jobs = runs.len(), %error, "heartbeats failed")) {
                Ok(answer) => break answer,
                Err(error) if error.may_pass() || beats.iter().all(|beat| beat.progress.is_none()) => {
                    return Err(error);
                }
                Err(error) => refused = Some(error),
            }
            // Progress that is refused does not cost the worker its jobs.
            runs.iter().zip(&mut beats).for_each(|((run, _), beat)| run.told(beat.progress.take().as_ref()));
        };
        let timeout = self.follow(timeout_sec);
        for (((run, _), beat), answer) in runs.iter().zip(&beats).zip(&jobs) {
            run.told(beat.progress.as_ref());
            run.again.store(answer.status == "again", Ordering::Relaxed);
            let timeout = if answer.status == "halt" { Duration::ZERO } else { timeout };
            *lock(&run.held) = (sent + timeout, timeout);
        }
        refused.map_or(Ok(jobs), Err)
    }

    /// Adopts the timeout of an answer, and returns it.
    fn follow(&self, timeout_sec: Option<f64>) -> Duration {
        let (told, mut timeout) = (timeout_sec.map(Duration::try_from_secs_f64), lock(&self.timeout));
        *timeout = told.and_then(std::result::Result::ok).unwrap_or(*timeout);
        *timeout
    }
}

impl Shared {
    /// Runs one job after another; the end of one and the claim of the next are one request.
    async fn work(self: Arc<Self>, slot: usize) -> Result<()> {
        let mut ended = None;
        while let Some((claimed, timeout)) = self.next(slot, ended.take()).await? {
            let run = Arc::new(Run {
                worker: Arc::clone(&self.worker),
                beat: Beat { id: claimed.id.clone(), lock: claimed.lock.clone(), progress: None },
                report: Mutex::default(),
                held: Mutex::new((Instant::now() + timeout, timeout)),
                beating: Arc::default(),
                again: AtomicBool::default(),
                lost: CancellationToken::new(),
            });
            lock(&self.runs)[slot] = Some(Arc::clone(&run));
            ended = self.run_one(claimed, &run).await;
            // The next run starts from its progress.
            let is_resumed = ended.as_ref().is_some_and(|ended| ended.finish.outcome != "done");
            while is_resumed && lock(&run.report).is_some() && run.beat(None).await.is_err() {
                sleep(PROGRESS).await;
            }
        }
        Ok(())
    }

    /// Ends a run and claims the next job; `None` once the worker is stopped.
    async fn next(&self, slot: usize, mut ended: Option<Ended>) -> Result<Option<(Claimed, Duration)>> {
        while !self.stop.is_cancelled() || ended.is_some() {
            let (stopped, asked) = (self.stop.is_cancelled(), Instant::now());
            if ended.is_none() {
                lock(&self.runs)[slot] = None;
            }
            // The end of a run is answered at once.
            let wait = if ended.is_some() { Duration::ZERO } else { WAIT };
            let (ends, count) = (ended.as_slice(), usize::from(!stopped));
            match tokio::select! {
                // Whether the run has ended is unknown then; repeating its end does no harm.
                () = self.stop.cancelled(), if !stopped => continue,
                answer = self.worker.client.finish(&self.worker.ty, ends, &self.worker.name, count, wait) => answer,
            } {
                Ok(mut claims) => {
                    ended = None;
                    let timeout = self.worker.follow(Some(claims.timeout_sec));
                    if let Some(claimed) = claims.jobs.pop() {
                        return Ok(Some((claimed, timeout)));
                    }
                    // A quick answer without jobs means that too many claims are waiting.
                    if wait.is_zero() || asked.elapsed() > Duration::from_secs(1) {
                        continue;
                    }
                }
                Err(error) if !error.may_pass() => {
                    // Such as a result that is too large.
                    tracing::warn!(%error, "the service refused the end of a run, or to give jobs");
                    let Some(end) = ended.take() else {
                        // All slots end if one is refused.
                        self.stop.cancel();
                        return Err(error);
                    };
                    ended = refused(end, &error);
                    continue;
                }
                Err(error) => tracing::warn!(%error, "cannot end a run or claim a job; trying again"),
            }
            tokio::select! {
                () = self.stop.cancelled(), if !stopped => {}
                () = sleep(if stopped { PROGRESS } else { UNREACHABLE }) => {}
            }
        }
        Ok(None)
    }

    /// Runs a job; returns how to end it, unless it was lost.
    async fn run_one(self: &Arc<Self>, claimed: Claimed, run: &Arc<Run>) -> Option<Ended> {
        // A task of its own, so that a panic is a failure; it ends when this future is dropped.
        let (mut handling, shared, task_run) = (JoinSet::new(), Arc::clone(self), Arc::clone(run));
        handling.spawn(async move { (shared.handler)(claimed, task_run).await });
        let ended = tokio::select! {
            biased;
            () = run.lost.cancelled() => return None,
            () = self.stopped_for(self.worker.options.drain) => Ok(Finish::again(0)),
            ended = handling.join_next() => ended.and_then(|ended| ended.ok()).unwrap_or_else(|| Err(Failure::Retry("its handler panicked".into()))),
        };
        let Beat { id, lock, .. } = run.beat.clone();
        Some(Ended { id, lock, finish: ended.unwrap_or_else(Finish::from) })
    }

    /// Returns once the worker was stopped so long ago.
    async fn stopped_for(&self, time: Duration) {
        self.stop.cancelled().await;
        sleep(time).await;
    }

    async fn beats(self: &Arc<Self>) {
        let (mut beaten, mut beating) = (Instant::now(), JoinSet::new());
        loop {
            let timeout = *lock(&self.worker.timeout);
            let pause = PROGRESS.min(timeout / 6);
            sleep(pause).await;
            let runs: Vec<_> = lock(&self.runs).iter().flatten().cloned().collect();
            // Another worker may have it by now.
            runs.iter().filter(|run| Instant::now() >= lock(&run.held).0).for_each(|run| run.lost.cancel());
            // This worker would keep those that were given up from running. To wait for an earlier heartbeat would delay others.
            let free = |run: Arc<Run>| Some((Arc::clone(&run), Arc::clone(&run.beating).try_lock_owned().ok()?));
            let mut runs: Vec<_> = runs.into_iter().filter(|run| !run.lost.is_cancelled()).filter_map(free).collect();
            let promised = runs.iter().map(|(run, _)| lock(&run.held).1);
            let due = beaten.elapsed() + pause >= promised.fold(timeout, Duration::min) / 3;
            beaten = if due { Instant::now() } else { beaten };
            runs.retain(|(run, _)| due || lock(&run.report).is_some());
            while beating.try_join_next().is_some() {}
            while !runs.is_empty() {
                beating.spawn(Arc::clone(&self.worker).beat(runs.drain(..runs.len().min(BEATS_MAX)).collect()));
            }
        }
    }
}

/// How a run ends instead, for example because its result is too large.
fn refused(Ended { id, lock, finish }: Ended, error: &Error) -> Option<Ended> {
    let finish = match finish {
        Finish { outcome: "failed", error: None, .. } => return None,
        Finish { outcome: "failed", .. } => Finish { error: None, ..finish },
        _ => Failure::Retry(error.to_string()).into(),
    };
    Some(Ended { id, lock, finish })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A token that SIGTERM or SIGINT cancels.
#[cfg(unix)]
pub fn stopped_by_signal() -> std::io::Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let token = CancellationToken::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let (mut signals, token) = (signal(kind)?, token.clone());
        tokio::spawn(async move {
            signals.recv().await;
            token.cancel();
        });
    }
    Ok(token)
}

#[cfg(test)]
mod tests;
