//! The jobs of a node: which to claim, which to stop for others, and background work.
//!
//! The node claims jobs as they fall due, as far as permits allow. If more than `max_jobs` run, each scheduler cycle
//! stops continuous jobs: of the tenant that has used most of its share, and of these the ones that have run longest. If
//! jobs are waiting, it may then claim some more than `max_jobs`; the next cycle trims again, so all of them get to run.
//! One-shot jobs are never stopped for others.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use couch::Network;
use futures::future::{BoxFuture, OptionFuture};
use jobs::{Accepted, AcceptorHandle, Holder, Job, Limits, State, Tenant};
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::data::{Census, JobData, counted, waiting};
use crate::history::Copied;
use crate::idle::Sources;
use crate::limits::keep_limits;
use crate::metrics;
use crate::options::Options;
use crate::outcome::Outcome;
use crate::permits::Permits;
use crate::quarantine::Quarantine;
use crate::run::{Runner, STUCK, Stops, watched};
use crate::service::Replications;
use crate::starts::Starts;
use crate::testing;
use replication::engine::Budget;

mod stopping;
mod tidy;

use tidy::{keep_history, tidy};

/// Jobs per claim.
const ACCEPT_MAX: usize = 64;
/// How long one claim waits for jobs.
const ACCEPT_WAIT: Duration = Duration::from_secs(30);
/// Time limit for stopping; runs stop within half of it.
const STOP_MAX: Duration = Duration::from_secs(10);

/// So many times `min_run_time_sec` are given to a run that has not come any further.
const UNMOVED_FACTOR: u32 = 10;

/// Arguments of [`Server::new`] besides the service.
pub struct ServerSetup {
    /// The node's name, as users see it.
    pub node: Holder,
    /// How endpoints are reached.
    pub network: Network,
    /// Memory shared by all runs.
    pub budget: Budget,
}

/// The jobs that a server runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Jobs that were claimed and have not ended.
    pub running: usize,
    /// The continuous ones.
    pub continuous: usize,
    /// The continuous ones that are idle and hold no permit.
    pub parked: usize,
}

/// Runs the jobs of a node.
pub struct Server {
    runner: Arc<Runner>,
    acceptor: AcceptorHandle,
    load: watch::Sender<Load>,
    workers: HashMap<Id, Worker>,
    /// The number of continuous workers.
    continuous: usize,
    tasks: JoinSet<Outcome>,
    shutdown: CancellationToken,
    /// Starts and stops since the last cycle.
    churn: usize,
    /// Jobs that may be accepted beyond `max_jobs` until the next cycle.
    excess: usize,
}

struct Worker {
    job: Job,
    continuous: bool,
    tenant: Option<Tenant>,
    limits: Limits,
    stops: Stops,
}

impl Worker {
    /// Whether it may be stopped for others. A run that copies one large document gets more time: it would begin again with
    /// the first byte of it.
    fn may_stop(&self, min_run_time: Duration) -> bool {
        let shown = &self.stops.shown;
        let min_run_time = if shown.has_moved() {
            min_run_time
        } else {
            min_run_time * UNMOVED_FACTOR
        };
        self.continuous && !shown.is_parked() && shown.running_for() >= min_run_time
    }

    /// Whether it may be stopped for jobs that wait for its target or server. Once it has caught up it needs neither: with a
    /// source that can be watched, it would become idle after `park_after_sec` and give them up.
    fn may_yield(&self, options: &Options) -> bool {
        let min_run_time_sec = match options.park_after_sec {
            after_sec @ 1.. if self.stops.shown.is_caught_up() => {
                after_sec.min(options.min_run_time_sec)
            }
            _ => options.min_run_time_sec,
        };
        self.may_stop(Duration::from_secs(min_run_time_sec))
    }

    /// Stops it for others; returns whether it was not stopping yet.
    fn stop(&self) -> bool {
        let stopping = self.stops.rotate.is_cancelled();
        self.stops.rotate.cancel();
        !stopping
    }
}

impl Server {
    /// `acceptor` must claim jobs of [`Replications::job_type`]. Also returns the server's load.
    pub fn new(
        replications: Replications,
        acceptor: AcceptorHandle,
        setup: ServerSetup,
    ) -> (Self, watch::Receiver<Load>) {
        let (load, loaded) = watch::channel(Load::default());
        let process = format!("{:08x}", replications.entropy().bits() >> 96);
        let runner = Runner {
            sources: Sources::new(setup.network.clone()),
            permits: Permits::new(replications.options().max_jobs),
            starts: Starts::default(),
            quarantine: Quarantine::default(),
            replications,
            network: setup.network,
            budget: setup.budget,
            node: setup.node,
            process,
            serial: AtomicU64::new(1),
            parked: AtomicUsize::new(0),
            copied: Copied::default(),
        };
        let server = Self {
            runner: Arc::new(runner),
            acceptor,
            load,
            workers: HashMap::new(),
            continuous: 0,
            tasks: JoinSet::new(),
            shutdown: CancellationToken::new(),
            churn: 0,
            excess: 0,
        };
        (server, loaded)
    }

    /// Works until the token is cancelled; then every run writes a checkpoint and puts its job back.
    pub async fn run(mut self, token: CancellationToken) {
        let tidying: BoxFuture<'static, ()> = Box::pin(tidy(self.runner.replications.clone()));
        let keeping = Box::pin(keep_history(Arc::clone(&self.runner)));
        let limiting = Box::pin(keep_limits(self.runner.replications.clone()));
        tokio::select! {
            biased;
            () = self.work(token) => {}
            () = tidying => {}
            () = keeping => {}
            () = limiting => {}
        }
        self.stop().await;
    }

    async fn work(&mut self, token: CancellationToken) {
        let mut options = self.runner.replications.watch_options();
        let mut accepting: OptionFuture<BoxFuture<'static, jobs::Result<Vec<Accepted>>>> =
            None.into();
        let (mut waits, mut asked) = (false, 0);
        let mut cycle = self.next_cycle();
        let mut free = self.runner.permits.free();
        loop {
            let wanted = self.wanted();
            if wanted > 0 && !waits {
                let acceptor = self.acceptor.clone();
                let request = async move { acceptor.accept(wanted, ACCEPT_WAIT).await };
                accepting = Some(Box::pin(request) as BoxFuture<'static, _>).into();
                (waits, asked) = (true, wanted);
            }
            tokio::select! {
                biased;
                () = token.cancelled() => return,
                Some(done) = self.tasks.join_next_with_id() => self.worker_done(done),
                Some(accepted) = &mut accepting, if waits => {
                    waits = false;
                    match accepted {
                        Ok(accepted) => self.start(accepted),
                        Err(jobs::Error::Stopped) => {
                            // The process that stopped the acceptor also stops this server.
                            token.cancelled().await;
                            return;
                        }
                        Err(error) => {
                            tracing::warn!(error = %wire::chain(&error), "cannot claim jobs");
                            sleep(Duration::from_secs(1)).await;
                        }
                    }
                }
                () = sleep_until(cycle) => {
                    self.cycle().await;
                    if self.wanted() < asked {
                        // Jobs already claimed go back. Not otherwise: on a slow store, claims may take as long as a cycle.
                        waits = false;
                        accepting = None.into();
                    }
                    cycle = self.next_cycle();
                }
                // A job became idle, or needs a permit again.
                Ok(()) = free.changed() => self.show_load(),
                Ok(()) = options.changed() => {
                    self.runner.permits.set_max(self.runner.replications.options().max_jobs);
                    cycle = cycle.min(self.next_cycle());
                }
            }
        }
    }

    fn next_cycle(&self) -> Instant {
        let interval = self.runner.replications.options().interval();
        Instant::now() + interval + self.runner.replications.entropy().up_to(interval / 3)
    }

    /// The number of jobs to claim.
    fn wanted(&self) -> usize {
        let free = *self.runner.permits.free().borrow();
        free.max(self.excess).min(ACCEPT_MAX)
    }

    fn start(&mut self, accepted: Vec<Accepted>) {
        metrics::accepted(accepted.len());
        self.churn += accepted.len();
        self.excess = self.excess.saturating_sub(accepted.len());
        let now_ms = self.runner.now_ms();
        for mut accepted in accepted {
            if let Some(asked_ms) = accepted.asked_ms {
                metrics::woken(now_ms.saturating_sub(asked_ms));
            }
            let data = JobData::decode(&std::mem::take(&mut accepted.data));
            let continuous = data.as_ref().is_ok_and(|data| data.shown.continuous);
            let stops = Stops {
                rotate: CancellationToken::new(),
                shutdown: self.shutdown.clone(),
                again: accepted.job.again().clone(),
                lost: accepted.job.lost().clone(),
                shown: Arc::default(),
            };
            stops.shown.begin_running();
            let (job, limits) = (accepted.job.clone(), accepted.limits.clone());
            let tenant = accepted.tenant.clone();
            let permit = self.runner.permits.take();
            let run = Arc::clone(&self.runner).run(accepted, data, stops.clone(), permit);
            let run = watched(run, Arc::clone(&stops.shown));
            let task = self.tasks.spawn(testing::spawned(run));
            let worker = Worker {
                job,
                continuous,
                tenant,
                limits,
                stops,
            };
            self.continuous += usize::from(continuous);
            self.workers.insert(task.id(), worker);
        }
        self.show_load();
    }

    fn worker_done(&mut self, done: Result<(Id, Outcome), tokio::task::JoinError>) {
        let id = match done {
            Ok((id, _)) => id,
            Err(error) => {
                // A bug. The activity monitor recovers the job when its heartbeats are missed.
                tracing::error!(error = %error, "a run ended unexpectedly");
                error.id()
            }
        };
        if let Some(worker) = self.workers.remove(&id) {
            self.continuous -= usize::from(worker.continuous);
        }
        self.show_load();
    }

    fn show_load(&self) {
        let new = Load {
            running: self.workers.len(),
            continuous: self.continuous,
            parked: self.runner.parked.load(Ordering::Relaxed),
        };
        metrics::load(new.running, new.parked);
        let changes = |load: &mut Load| std::mem::replace(load, new) != new;
        self.load.send_if_modified(changes);
    }

    /// One cycle of the scheduler.
    async fn cycle(&mut self) {
        for worker in self.workers.values() {
            if worker.stops.shown.is_newly_stuck() {
                self.runner
                    .replications
                    .mark_stuck(&worker.job, STUCK)
                    .await;
            }
        }
        let options = self.runner.replications.options();
        let min_run_time = Duration::from_secs(options.min_run_time_sec);
        self.runner.permits.set_max(options.max_jobs);
        let working = self.runner.permits.taken();
        let surplus = working.saturating_sub(options.max_jobs);
        let mut stopped = self.trim(surplus, min_run_time).await;
        if options.max_jobs == 0 {
            stopped += self.trim_parked();
        }
        match self.yield_limits().await {
            Ok(yielded) => stopped += yielded,
            Err(error) => {
                tracing::warn!(error = %wire::chain(&error), "cannot read what jobs wait for");
            }
        }
        self.churn += stopped;
        metrics::stopped(stopped);
        let waiting = match self.waiting(options.max_churn).await {
            Ok(waiting) => waiting,
            Err(error) => {
                tracing::warn!(error = %wire::chain(&error), "cannot count waiting jobs");
                0
            }
        };
        let budget = options.max_churn.saturating_sub(self.churn);
        let free = (options.max_jobs + options.max_churn).saturating_sub(working);
        self.excess = budget.min(waiting).min(free);
        self.churn = 0;
    }

    /// Jobs that are due, counted up to `limit`.
    async fn waiting(&self, limit: usize) -> jobs::Result<usize> {
        let replications = &self.runner.replications.0;
        let now_ms = replications.jobs.clock().now_ms();
        let counts = replications.jobs.counts_by_label(&replications.ty).await?;
        let pending = waiting(&counts);
        let all = counted(&counts, State::Pending) + counted(&counts, State::Running);
        metrics::queue(pending, all);
        if let Some(census) = Census::of(&counts) {
            metrics::replications(&census);
        }
        let lags = self.workers.values();
        let lag = lags.map(|worker| worker.stops.shown.lag(now_ms)).max();
        metrics::lag(lag.unwrap_or_default());
        if limit == 0 || pending == 0 {
            return Ok(0);
        }
        let backlog = replications
            .jobs
            .backlog(&replications.ty, now_ms, limit)
            .await?;
        Ok(usize::try_from(backlog.due).unwrap_or(usize::MAX))
    }

    /// Stops every run; those that take too long are dropped.
    async fn stop(mut self) {
        self.shutdown.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(STOP_MAX, all).await.is_err() {
            let left = self.tasks.len();
            tracing::warn!(
                jobs = left,
                "the shutdown abandoned running jobs; they run again after their timeout"
            );
            self.tasks.shutdown().await;
        }
        self.workers.clear();
        self.continuous = 0;
        self.runner.sources.close().await;
        self.show_load();
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Server")
            .field("load", &*self.load.borrow())
            .finish_non_exhaustive()
    }
}
