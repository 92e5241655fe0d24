//! One run of one job, from the moment it is claimed until it is put back or finished.
//!
//! Heartbeats have their own timer, and every checkpoint first checks the lock. If the lock is lost, or no heartbeat
//! succeeds for three quarters of the timeout, the engine is dropped at once, long before another node may start the
//! job. Every end is one transaction over queue, document, and the rows of the replication id.

mod end;
mod leave;
mod missing;
mod outage;
mod parameters;
mod park;
mod shown;
mod sleep;
mod start;
mod suspect;
mod watch;

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use couch::Network;
use futures::FutureExt as _;
use jiff::Timestamp;
use jobs::{Accepted, Holder, millis};
use serde_json::Value;
use store::AsStoreError as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::data::{Behind, JobData};
use crate::fault::ServiceError;
use crate::history::{Copied, Counting};
use crate::idle::{ChangeListener, Sources};
use crate::keys;
use crate::live::{Live, Seed};
use crate::outcome::Outcome;
use crate::permits::{Permit, Permits};
use crate::quarantine::{Quarantine, Suspect};
use crate::service::{PARKED_MS, Replications};
use crate::starts::{StartPermit, Starts};
use crate::testing::{self, Bug};
use replication::Error;
use replication::engine::{self, Budget, Ending, Handles, Phase, Progress, Report, Run, Settings};
use replication::id::Identity;
use replication::params::Replication;

use end::End;
use outage::Servers;
pub(crate) use shown::{STUCK, Shown, watched};
use sleep::Woken;
use start::Begun;

/// How long a run may take to stop when its node stops.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Between two looks at whether the run of a removed job has ended.
const LEAVING_PAUSE: Duration = Duration::from_millis(50);

/// State shared by all runs of a node.
pub(crate) struct Runner {
    pub(crate) replications: Replications,
    pub(crate) network: Network,
    pub(crate) budget: Budget,
    pub(crate) sources: Sources,
    pub(crate) permits: Permits,
    pub(crate) starts: Starts,
    pub(crate) quarantine: Quarantine,
    pub(crate) node: Holder,
    /// Distinguishes this process from earlier ones of the same node.
    pub(crate) process: String,
    pub(crate) serial: AtomicU64,
    /// Runs that wait for changes without a permit.
    pub(crate) parked: AtomicUsize,
    pub(crate) copied: Copied,
}

/// Signals that stop a run.
#[derive(Clone, Debug)]
pub(crate) struct Stops {
    /// Other jobs need the permit.
    pub(crate) rotate: CancellationToken,
    /// The node is stopping.
    pub(crate) shutdown: CancellationToken,
    /// A creator requested another run.
    pub(crate) again: CancellationToken,
    /// The job has another holder: nothing more may be written.
    pub(crate) lost: CancellationToken,
    pub(crate) shown: Arc<Shown>,
}

/// The result of running the engine.
enum Driven {
    Ended(End),
    /// It caught up and was stopped.
    Idle(Box<Progress>, Settled),
}

/// How an idle run learns of changes.
enum Settled {
    /// From a listener in this process.
    Listens(ChangeListener),
    /// Its server is followed: it may sleep in the store.
    Followed,
}

struct Work<'a> {
    runner: &'a Runner,
    accepted: &'a Accepted,
    stops: &'a Stops,
    /// Set until the run has shown that it does not stop its node.
    suspect: Mutex<Option<Suspect>>,
    /// The replication id and the process id of the run, once it has begun.
    begun: OnceLock<(String, String)>,
    /// Its job was removed: it is to stop, and may write a last checkpoint.
    leave: CancellationToken,
}

impl Runner {
    /// Runs a claimed job until it has ended in any way.
    pub(crate) async fn run(
        self: Arc<Self>,
        accepted: Accepted,
        data: Result<JobData, ServiceError>,
        stops: Stops,
        permit: Permit,
    ) -> Outcome {
        let work = Work {
            runner: &self,
            accepted: &accepted,
            stops: &stops,
            suspect: Mutex::default(),
            begun: OnceLock::new(),
            leave: CancellationToken::new(),
        };
        let run = AssertUnwindSafe(Box::pin(work.run(data, permit))).catch_unwind();
        let ended = if let Ok(ended) = run.await {
            ended
        } else {
            // The panic message is on standard error, because it may contain data.
            tracing::error!(job.id = %accepted.job.id, "a run panicked");
            work.end_panicked().await
        };
        match ended {
            Ok(Outcome::Halted) => {
                crate::metrics::ended(Outcome::Halted);
                tracing::info!(job.id = %accepted.job.id, "the job is no longer this node's");
                Outcome::Halted
            }
            Ok(ended) => ended,
            Err(error) => {
                let id = &accepted.job.id;
                tracing::warn!(job.id = %id, error = %wire::chain(&error), "a run was lost");
                if accepted.stalls > 0 && error.as_store_error().is_some() {
                    // The store's fault, not the job's.
                    self.replications.acquit(&accepted.job).await;
                }
                Outcome::Halted
            }
        }
    }

    pub(crate) fn now_ms(&self) -> i64 {
        self.replications.0.jobs.clock().now_ms()
    }

    pub(crate) fn settings(&self) -> Settings {
        self.replications.options().settings(self.budget.clone())
    }
}

impl Work<'_> {
    async fn run(
        &self,
        data: Result<JobData, ServiceError>,
        permit: Permit,
    ) -> Result<Outcome, ServiceError> {
        let mut data = data?;
        // A run may last long, and must not write back parameters that another node has resealed since. Credentials
        // that cannot be opened fail the run below.
        let job = &self.accepted.job.id;
        drop(data.reseal(&self.runner.replications.0.sealer, job));
        let jobs = &self.runner.replications.0.jobs;
        // The last two heartbeats. A process may have been paused before it noticed an answer, but each heartbeat was sent
        // after the answer before it was noticed.
        let answers = Mutex::new([self.accepted.claimed_at; 2]);
        let beats = jobs.keep_alive(self.accepted, |_| {
            let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
            *answers = [answers[1], Instant::now()];
        });
        let end = {
            let work = self.work(&mut data, permit);
            tokio::pin!(work);
            let end = tokio::select! {
                biased;
                _ = beats, if !testing::has(Bug::IgnoresLock) => None,
                () = self.stops.lost.cancelled(), if !testing::has(Bug::IgnoresLock) => None,
                end = &mut work => Some(end?),
            };
            let Some(end) = end else {
                let [sent_after, _] = *answers.lock().unwrap_or_else(PoisonError::into_inner);
                Box::pin(self.leave(work, sent_after)).await;
                return Ok(Outcome::Halted);
            };
            end
        };
        if matches!(end, End::Halted) {
            Box::pin(self.left()).await;
            return Ok(Outcome::Halted);
        }
        // Nothing is written elsewhere any more: if the lock is lost from here on, this transaction fails.
        match Box::pin(self.end(data, end)).await {
            Err(error) if error.is_halt() => {
                Box::pin(self.left()).await;
                Ok(Outcome::Halted)
            }
            ended => ended,
        }
    }

    /// The part of a run that takes long. Short steps are boxed, so that an idle job keeps no memory for them.
    async fn work(&self, data: &mut JobData, permit: Permit) -> Result<End, ServiceError> {
        if let Some(end) = Box::pin(self.suspected()).await? {
            return Ok(end);
        }
        let replication = match self.replication(data)? {
            Ok(replication) => replication,
            Err(end) => return Ok(end),
        };
        let reason = match Box::pin(self.ready(&replication, data)).await? {
            Woken::Runs(reason) => reason,
            Woken::Ends(end) => return Ok(end),
        };
        // Only the first run belongs to the trace of the request that created the job; later runs would bury it.
        let asked = data.trace.take();
        let mut start_permit = tokio::select! {
            biased;
            () = self.stopped() => return Ok(self.stop_end()),
            start_permit = Box::pin(self.start_permit(&replication)) => start_permit,
        };
        let settings = self.runner.settings();
        let service = &self.runner.replications.0.service;
        let identify = engine::identify(&replication, service, &self.runner.network, &settings);
        let identified = tokio::select! {
            biased;
            () = self.stopped() => return Ok(self.stop_end()),
            identified = start_permit.during(Box::pin(identify)) => identified,
        };
        let (identity, filter_code) = match identified {
            Ok(identified) => identified,
            Err(error) => return Ok(End::of_error(&error)),
        };
        let seed = loop {
            let begun = start_permit.during(Box::pin(self.begin(data, &identity)));
            match begun.await {
                Ok(Begun::Run(seed)) => break seed,
                Ok(Begun::Again) => return Ok(End::Reschedule { due_ms: 0 }),
                Ok(Begun::Duplicate) => {
                    let identity = Box::new(identity);
                    return Ok(End::Duplicate { identity });
                }
                // The rule may still ask for it, as for a database that was new to an earlier revision: the next look at
                // the databases of the source replaces or removes it.
                Ok(Begun::Edited) => return Ok(End::Reschedule { due_ms: PARKED_MS }),
                Ok(Begun::Gone) => return Ok(End::Gone),
                Ok(Begun::Later) => {}
                Err(error) if error.is_halt() => return Ok(End::Halted),
                Err(error) => return Err(error),
            }
            tokio::select! {
                biased;
                () = self.stopped() => return Ok(self.stop_end()),
                () = start_permit.during(tokio::time::sleep(LEAVING_PAUSE)) => {}
            }
        };
        crate::metrics::started(reason, self.runner.now_ms(), self.accepted.ready_ms);
        let run = Run {
            replication,
            identity,
            filter_code,
            stats: seed.stats,
            failures: seed.failures,
            last_progress: seed.last_progress,
            // If the run fails, the next one starts without.
            resume: data.resume.take(),
            session_id: format!("{:032x}", self.runner.replications.entropy().bits()),
            network: self.runner.network.clone(),
            settings,
            observer: testing::observer(),
        };
        Ok(self
            .keep_running(run, data, (permit, start_permit), asked)
            .await)
    }

    /// Whether a claimed job runs now: it has been woken, and lacks nothing.
    async fn ready(
        &self,
        replication: &Replication,
        data: &mut JobData,
    ) -> Result<Woken, ServiceError> {
        let woken = self.woken(replication, data).await?;
        if let Woken::Runs(_) = &woken
            && let Some(end) = self.lacking(replication, data)
        {
            return Ok(Woken::Ends(end));
        }
        Ok(woken)
    }

    /// What a job lacks that starts: since when it is behind, and limits, which the end of the run sets.
    fn lacking(&self, replication: &Replication, data: &mut JobData) -> Option<End> {
        let options = &replication.options;
        if options.continuous || options.trigger.is_some() {
            data.behind
                .get_or_insert(Behind::since_ms(self.accepted.ready_ms));
        }
        // It was created by another version, or under other settings.
        let settings = self.runner.replications.options();
        let lacks = settings.lacks_limits(&self.accepted.limits, data);
        lacks.then_some(End::Reschedule { due_ms: 0 })
    }

    /// Waits until the run may start at its servers.
    async fn start_permit(&self, replication: &Replication) -> StartPermit {
        let max = self.runner.replications.options().max_starts_per_server;
        self.runner.starts.permit(replication, max).await
    }

    /// Runs the engine until it has ended, or has caught up and a listener watches its source.
    async fn drive(&self, run: Run, data: &mut JobData, mut start_permit: StartPermit) -> Driven {
        let (control, handles) = Handles::new(self.gate());
        let _copying = testing::copying(run.identity.replication.as_str(), self.accepted);
        let progress = control.progress();
        let settled = self.settled(&run.replication, data.unhealthy_since(), progress.clone());
        let engine = engine::run(run.clone(), handles);
        let servers = Servers::of(&self.runner.network, &run.replication);
        let counting = Counting::new(&self.runner.copied);
        let watching = self.watch(progress.clone(), servers, data, &counting);
        let mut progressing = progress.clone();
        let begun = async {
            let caught_up = progressing.wait_for(|now| now.phase == Phase::CaughtUp);
            drop(start_permit.during(caught_up).await);
            drop(start_permit);
        };
        let cleared = self.clear_suspect(progress.clone());
        let (mut starts, mut suspected) = (true, true);
        tokio::pin!(begun, engine, watching, settled, cleared);
        let mut watched = false;
        let mut idle = None;
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut engine => break Some(outcome),
                () = &mut begun, if starts => starts = false,
                () = &mut cleared, if suspected => suspected = false,
                lost = &mut watching, if !watched => {
                    watched = true;
                    if lost && !testing::has(Bug::IgnoresLock) {
                        // The engine rests until it is known whether the job was removed; if not, this is dropped here.
                        self.stops.lost.cancel();
                        self.leave.cancelled().await;
                    }
                }
                () = self.stopped() => {
                    idle = None;
                    control.stop();
                    // A stop waits for current batches and one checkpoint.
                    break tokio::time::timeout(STOP_MAX, &mut engine).await.ok();
                }
                armed = &mut settled, if idle.is_none() => {
                    idle = Some(armed);
                    control.rest();
                }
            }
        };
        let last = progress.borrow().clone();
        counting.count(&last);
        Driven::Ended(match outcome {
            None => {
                control.abort();
                self.stop_end().with(last)
            }
            Some(Err(Error::Halted)) => End::Halted,
            Some(Err(error)) => End::of_error(&error).with(last),
            Some(Ok(Report {
                ending,
                result,
                progress,
            })) => match (ending, idle) {
                (Ending::Stopped, Some(idle)) => {
                    return Driven::Idle(Box::new(progress), idle);
                }
                (Ending::Completed, _) => End::Complete {
                    result,
                    progress: Box::new(progress),
                },
                (Ending::Stopped, None) => self.stop_end().with(progress),
                (Ending::FilterChanged, _) => self.another_filter().with(progress),
            },
        })
    }

    /// The filter has changed, and the replication id with it.
    fn another_filter(&self) -> End {
        let wait = self.runner.replications.options().interval();
        let due_ms = self.runner.now_ms().saturating_add(millis(wait));
        End::Reschedule { due_ms }
    }

    /// Waits until the run has to stop.
    async fn stopped(&self) {
        tokio::select! {
            biased;
            () = self.stops.rotate.cancelled() => {}
            () = self.stops.shutdown.cancelled() => {}
            () = self.stops.again.cancelled() => {}
            () = self.leave.cancelled() => {}
        }
    }

    /// When a stopped job may run again: at once, unless it was stopped to make room.
    fn stop_end(&self) -> End {
        if self.stops.shutdown.is_cancelled() || self.stops.again.is_cancelled() {
            return End::Reschedule { due_ms: 0 };
        }
        let wait = self.runner.replications.options().interval();
        End::Reschedule {
            due_ms: self.runner.now_ms().saturating_add(millis(wait)),
        }
    }

    fn pid(&self) -> String {
        let serial = self.runner.serial.fetch_add(1, Ordering::Relaxed);
        format!("{}.{serial}", self.runner.process)
    }

    /// What earlier runs of this replication did.
    async fn seed_in(
        &self,
        tx: &store::Transaction,
        old_id: Option<&str>,
        identity: &Identity,
    ) -> Result<Seed, ServiceError> {
        let key = keys::live(&self.accepted.job.id);
        if old_id != Some(identity.replication.as_str()) {
            tx.clear(&key);
            return Ok(Seed::default());
        }
        let live = tx.get(&key).await?.map(|row| Live::decode(&row));
        Ok(live.unwrap_or_default().seed())
    }
}

pub(crate) fn text_info(text: &str) -> Value {
    serde_json::json!({"error": text})
}

pub(crate) fn timestamp(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap_or_default()
}
