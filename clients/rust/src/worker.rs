//! A worker: claims jobs, runs a handler for each, sends heartbeats, and ends the runs.

use std::error::Error as StdError;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::{Answer, Beat, Beats, Claimed, Client, Ended, Error, Failure, Finish, Held, Result, WorkerOptions};

/// How long one request for a job waits.
const WAIT: Duration = Duration::from_mins(1);
/// Between heartbeats with progress, and between tries to end a run while the worker stops.
const PROGRESS: Duration = Duration::from_millis(500);
/// Between other tries to reach the service, or to wait for a job.
const UNREACHABLE: Duration = Duration::from_secs(5);
/// How long the worker still tries to end runs whose handlers it has dropped.
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
        let progress = Some(json!({SAVED: serde_json::to_value(&self.data)?}));
        let (sent, (_, promised)) = (Instant::now(), *lock(&self.run.held));
        let (answers, timeout) = self.run.worker.beat(&[Beat { progress, ..self.run.beat.clone() }], promised).await?;
        for answer in answers {
            if answer.status == "halt" {
                self.run.lost.cancel();
                return Err(Error::Halt);
            }
            *lock(&self.run.held) = (sent + timeout, timeout);
            answer.accepted()?;
            self.run.again.store(answer.status == "again", Ordering::Relaxed);
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
    again: AtomicBool,
    lost: CancellationToken,
}

impl Run {
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
    /// Drops runs that are still in progress.
    drop: CancellationToken,
    runs: Mutex<Vec<Arc<Run>>>,
}

impl Worker {
    /// A worker that claims jobs of a type; operators see its name.
    pub fn new(client: Client, ty: &str, name: &str, options: WorkerOptions) -> Self {
        // The shortest that a type can have, until the service tells it.
        let (ty, name, timeout) = (ty.to_owned(), name.to_owned(), Mutex::new(Duration::from_secs(1)));
        Self { client, ty, name, options, timeout }
    }

    /// Runs until the token is cancelled and all runs have ended, or the service refuses to give jobs.
    ///
    /// If its job is removed or lost, the handler is dropped.
    pub async fn run<T, H, Fut>(self, token: CancellationToken, handler: H) -> Result<()>
    where
        T: DeserializeOwned + Send + 'static,
        H: Fn(Task<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = std::result::Result<Finish, Failure>> + Send + 'static,
    {
        let (concurrency, drain) = (self.options.concurrency.max(1), self.options.drain);
        let (stop, drop) = (token.child_token(), CancellationToken::new());
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
        let shared = Arc::new(Shared { worker: Arc::new(self), handler, stop, drop, runs: Mutex::default() });
        let slots: JoinSet<_> = (0..concurrency).map(|_| Arc::clone(&shared).work()).collect();
        let mut ended = pin!(async { slots.join_all().await.into_iter().collect() });
        tokio::select! {
            refused = &mut ended => return refused,
            () = shared.beats() => {}
            () = async { shared.stop.cancelled().await; sleep(drain).await } => {}
        }
        shared.drop.cancel();
        timeout(LAST, ended).await.unwrap_or(Ok(()))
    }

    /// Sends heartbeats for jobs that were promised this timeout or longer, if need be to the next frontend.
    async fn beat(&self, beats: &[Beat], timeout: Duration) -> Result<(Vec<Answer>, Duration)> {
        let timeout = timeout.min(*lock(&self.timeout));
        let Beats { jobs, timeout_sec } = self.client.within(timeout / 3).beat(&self.ty, beats).await?;
        Ok((jobs, self.follow(timeout_sec)))
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
    async fn work(self: Arc<Self>) -> Result<()> {
        let mut ended = None;
        while let Some((claimed, timeout)) = self.next(ended.take()).await? {
            let run = Arc::new(Run {
                worker: Arc::clone(&self.worker),
                beat: Beat { id: claimed.id.clone(), lock: claimed.lock.clone(), progress: None },
                report: Mutex::default(),
                held: Mutex::new((Instant::now() + timeout, timeout)),
                again: AtomicBool::default(),
                lost: CancellationToken::new(),
            });
            lock(&self.runs).push(Arc::clone(&run));
            ended = self.run_one(claimed, &run).await;
            lock(&self.runs).retain(|other| !Arc::ptr_eq(other, &run));
            if ended.as_ref().is_some_and(|ended| ended.finish.outcome != "done") && lock(&run.report).is_some() {
                // The next run starts from it.
                Arc::clone(&self).beat(vec![run]).await;
            }
        }
        Ok(())
    }

    /// Ends a run and claims the next job; `None` once the worker is stopped.
    async fn next(&self, mut ended: Option<Ended>) -> Result<Option<(Claimed, Duration)>> {
        while !self.stop.is_cancelled() || ended.is_some() {
            let (stopped, asked) = (self.stop.is_cancelled(), Instant::now());
            let (count, wait) = if stopped { (0, Duration::ZERO) } else { (1, WAIT) };
            match tokio::select! {
                // Whether the run has ended is unknown then; repeating its end does no harm.
                () = self.stop.cancelled(), if !stopped => continue,
                answer = self.worker.client.finish(&self.worker.ty, ended.as_slice(), &self.worker.name, count, wait) => answer,
            } {
                Ok(mut claims) => {
                    ended = None;
                    let timeout = self.worker.follow(Some(claims.timeout_sec));
                    if let Some(claimed) = claims.jobs.pop() {
                        return Ok(Some((claimed, timeout)));
                    }
                    // A quick answer without jobs means that too many claims are waiting.
                    if stopped || asked.elapsed() > Duration::from_secs(1) {
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
            () = self.drop.cancelled() => Ok(Finish::again(0)),
            ended = handling.join_next() => match ended {
                Some(Ok(ended)) => ended,
                _ => Err(Failure::Retry("its handler panicked".into())),
            },
        };
        let Beat { id, lock, .. } = run.beat.clone();
        Some(Ended { id, lock, finish: ended.unwrap_or_else(Finish::from) })
    }

    async fn beats(self: &Arc<Self>) {
        let mut beaten = Instant::now();
        loop {
            let timeout = *lock(&self.worker.timeout);
            let pause = PROGRESS.min(timeout / 6);
            sleep(pause).await;
            let mut runs = lock(&self.runs).clone();
            // Another worker may have it by now.
            runs.iter().filter(|run| Instant::now() >= lock(&run.held).0).for_each(|run| run.lost.cancel());
            // This worker would keep those that were given up from running.
            runs.retain(|run| !run.lost.is_cancelled());
            let promised = runs.iter().map(|run| lock(&run.held).1);
            let due = beaten.elapsed() + pause >= promised.fold(timeout, Duration::min) / 3;
            beaten = if due { Instant::now() } else { beaten };
            runs.retain(|run| due || lock(&run.report).is_some());
            let beats = runs.chunks(BEATS_MAX).map(|part| Arc::clone(self).beat(part.to_vec()));
            beats.collect::<JoinSet<()>>().join_all().await;
        }
    }

    async fn beat(self: Arc<Self>, runs: Vec<Arc<Run>>) {
        let sent = Instant::now();
        let held_until = runs.iter().map(|run| lock(&run.held).0).min().unwrap_or(sent);
        let promised = runs.iter().map(|run| lock(&run.held).1).min().unwrap_or_default();
        let beats = runs.iter().map(|run| Beat { progress: lock(&run.report).clone(), ..run.beat.clone() });
        let mut beats: Vec<Beat> = beats.collect();
        let (answers, timeout) = loop {
            let asked = timeout_at(held_until, self.worker.beat(&beats, promised)).await;
            let error = match asked.unwrap_or(Err(Error::Late)) {
                Ok(answered) => break answered,
                Err(error) => error,
            };
            tracing::warn!(jobs = runs.len(), %error, "heartbeats failed");
            if error.may_pass() || beats.iter().all(|beat| beat.progress.is_none()) {
                return;
            }
            // Progress that is refused does not cost the worker its jobs.
            runs.iter().zip(&mut beats).for_each(|(run, beat)| run.told(beat.progress.take().as_ref()));
        };
        for ((run, beat), answer) in runs.iter().zip(&beats).zip(answers) {
            run.told(beat.progress.as_ref());
            run.again.store(answer.status == "again", Ordering::Relaxed);
            let timeout = if answer.status == "halt" { Duration::ZERO } else { timeout };
            *lock(&run.held) = (sent + timeout, timeout);
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
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => stop.cancel(),
            _ = int.recv() => stop.cancel(),
        }
    });
    Ok(token)
}

#[cfg(test)]
mod tests;
