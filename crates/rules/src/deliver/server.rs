//! Claims deliveries and makes their calls.

use std::sync::Arc;
use std::time::Duration;

use couch::{Network, Reach};
use jobs::{Accepted, AcceptorHandle, Finish, Held};
use scheduler::PasswordCell;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Deliveries;
use super::delivery::Delivery;
use super::direct::Calls;
use super::hosts::{Admission, Hosts, Seat};
use super::metrics;
use super::options::Options;
use super::sender::{Sender, Sent, endpoint};
use super::targets::{NoTarget, Targets};
use crate::rule::call::{Outcome, Target};

/// Claimed jobs per call that may be in flight.
const HELD_PER_CALL: usize = 10;
/// How long one claim waits for jobs.
const ACCEPT_WAIT: Duration = Duration::from_secs(30);
/// How long connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// When a call whose rule is paused is looked at again: within a minute, and not at the same time as all others.
const WAIT_MIN: Duration = Duration::from_secs(45);
const WAIT_SPREAD: Duration = Duration::from_secs(15);
/// How long calls in flight may take when the server is stopped.
const DRAIN_MAX: Duration = Duration::from_secs(8);

/// Arguments of [`Server::new`] besides the deliveries.
pub struct ServerSetup {
    /// How endpoints are reached.
    pub network: Network,
    /// The section `[webhooks]`.
    pub options: Options,
    /// Where calls go.
    pub targets: Arc<dyn Targets>,
    /// For the user names in URLs.
    pub passwords: PasswordCell,
    /// Secrets that sign, in the member `signing`, and passwords, in `basic`.
    pub secrets: scheduler::Secrets,
}

/// Makes the calls of a node.
pub struct Server {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) deliveries: Deliveries,
    acceptor: AcceptorHandle,
    pub(super) sender: Sender,
    targets: Arc<dyn Targets>,
    pub(super) hosts: Hosts,
    in_flight_max: usize,
    /// No more calls begin.
    stop: CancellationToken,
    /// Calls in flight are given up.
    abort: CancellationToken,
}

impl Server {
    /// `acceptor` must claim jobs of [`Deliveries::job_type`].
    pub fn new(
        deliveries: Deliveries,
        acceptor: AcceptorHandle,
        setup: ServerSetup,
    ) -> Result<Self, couch::Error> {
        let (jobs, options) = (deliveries.jobs(), setup.options);
        let hosts = Hosts::new(
            options.max_in_flight,
            options.max_in_flight_per_host,
            jobs.entropy().clone(),
        );
        let sender = Sender {
            // Rules are written by server administrators, and cannot change the host of a URL.
            caller: setup.network.caller(Reach::Private, CONNECT_MAX)?,
            passwords: setup.passwords,
            secrets: setup.secrets,
            clock: jobs.clock().clone(),
            options,
        };
        let shared = Shared {
            in_flight_max: sender.options.max_in_flight,
            deliveries,
            acceptor,
            sender,
            targets: setup.targets,
            hosts,
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Makes the calls of rules that block, within the limits of this server.
    pub fn calls(&self) -> Calls {
        Calls(Arc::clone(&self.shared))
    }

    /// Works until the token is cancelled; then calls in flight may end, and all other jobs go back to the queue.
    pub async fn run(self, token: CancellationToken) {
        let held_max = self.shared.in_flight_max.saturating_mul(HELD_PER_CALL);
        let mut tasks = JoinSet::new();
        while let Some(accepted) = self.accept(&token, &mut tasks, held_max).await {
            match accepted {
                Ok(accepted) => {
                    for one in accepted {
                        tasks.spawn(Arc::clone(&self.shared).run(one));
                    }
                }
                // The process that stopped the acceptor also stops this server.
                Err(jobs::Error::Stopped) => token.cancelled().await,
                Err(error) => {
                    tracing::warn!(error = %wire::chain(&error), "cannot claim deliveries");
                    sleep(Duration::from_secs(1)).await;
                }
            }
        }
        self.shared.drain(tasks).await;
    }

    /// Claims jobs once there is room for them; `None` when the server is stopped. A claim in progress then goes back.
    async fn accept(
        &self,
        token: &CancellationToken,
        tasks: &mut JoinSet<()>,
        held_max: usize,
    ) -> Option<jobs::Result<Vec<Accepted>>> {
        // A claim of many jobs costs little more than one of a few.
        while tasks.len() > held_max / 2 {
            tokio::select! {
                biased;
                () = token.cancelled() => return None,
                Some(task) = tasks.join_next() => ended(task),
            }
        }
        let accept = (self.shared.acceptor).accept(held_max - tasks.len(), ACCEPT_WAIT);
        tokio::pin!(accept);
        loop {
            tokio::select! {
                biased;
                () = token.cancelled() => return None,
                accepted = &mut accept => return Some(accepted),
                Some(task) = tasks.join_next() => ended(task),
            }
        }
    }
}

fn ended(task: Result<(), tokio::task::JoinError>) {
    if let Err(error) = task {
        // A bug. The activity monitor recovers the job when its heartbeats are missed.
        tracing::error!(%error, "a delivery ended unexpectedly");
    }
}

impl Shared {
    async fn drain(&self, mut tasks: JoinSet<()>) {
        self.stop.cancel();
        let all = async { while tasks.join_next().await.is_some() {} };
        if timeout(DRAIN_MAX, all).await.is_err() {
            self.abort.cancel();
            while tasks.join_next().await.is_some() {}
        }
    }

    /// Runs a claimed job.
    async fn run(self: Arc<Self>, accepted: Accepted) {
        let job = &accepted.job;
        let finish = tokio::select! {
            biased;
            () = job.lost().cancelled() => return,
            () = self.abort.cancelled() => put_back(0, "its node was stopped"),
            finish = self.deliver(&accepted) => finish,
            _ = self.deliveries.jobs().keep_alive(&accepted, |_| {}) => return,
        };
        match self.finish(&accepted, finish).await {
            Ok(_) => {}
            Err(jobs::Error::Halt) => tracing::info!(job.id = %job.id, "a delivery was lost"),
            // The call is repeated once the job's heartbeats are missed.
            Err(error) => {
                tracing::warn!(job.id = %job.id, error = %wire::chain(&error), "cannot end a delivery");
            }
        }
    }

    /// Ends the run of a job. If its call is debounced and is to be made again, a newer state that has arrived meanwhile
    /// takes its place, and does not cut its back-off short.
    async fn finish(&self, accepted: &Accepted, finish: Finish) -> jobs::Result<Held> {
        let job = &accepted.job;
        let data = finish.data.as_ref().unwrap_or(&accepted.data);
        let Some(before) = (finish.again_ms)
            .and_then(|_| serde_json::from_slice::<Delivery>(data).ok())
            .filter(|before| before.call.debounce)
        else {
            return self.acceptor.finish(job, finish).await;
        };
        let jobs = self.deliveries.jobs();
        let (op, before, finish) = (&jobs.op(), &before, &finish);
        (jobs.store())
            .transact("finish delivery", |tx| async move {
                let held = jobs.finish_in(&tx, op, job, finish.clone()).await?;
                if held.repeated || !held.again {
                    return Ok(held);
                }
                let found = jobs.get_in(&tx, &job.ty, &job.id).await?;
                let next = found.and_then(|(_, data)| serde_json::from_slice(&data).ok());
                // A replay does cut it short.
                if let Some(Delivery {
                    call,
                    replay: false,
                    ..
                }) = next
                {
                    let next = before.clone().replaced_by(call).encode().into();
                    let (ty, op) = (&job.ty, &op.nth(1));
                    jobs.resubmit_in(&tx, op, ty, &job.id, finish.again_ms, Some(next))
                        .await?;
                }
                Ok(held)
            })
            .await
    }

    /// A time from now on.
    fn after(&self, wait: Duration) -> i64 {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        self.sender.clock.now_ms().saturating_add_unsigned(wait_ms)
    }

    /// Makes a call.
    pub(super) async fn make(&self, seat: Seat, target: &Target, delivery: &Delivery) -> Sent {
        let in_flight = || metrics::in_flight(self.hosts.in_flight(self.in_flight_max));
        in_flight();
        let sent = self.sender.send(target, delivery).await;
        seat.leave(sent.health);
        in_flight();
        sent
    }

    /// Makes the call of a job if its endpoint may be called now.
    async fn deliver(&self, accepted: &Accepted) -> Finish {
        let mut delivery: Delivery = match serde_json::from_slice(&accepted.data) {
            Ok(delivery) => delivery,
            Err(error) => return Finish::dead(format!("its data cannot be read: {error}")),
        };
        let target = match self.targets.target(&delivery.call).await {
            Ok(target) => target,
            Err(NoTarget::Gone(why)) => return Finish::dead(why),
            Err(NoTarget::Waits(why)) => {
                let wait = WAIT_MIN + self.deliveries.jobs().entropy().up_to(WAIT_SPREAD);
                return put_back(self.after(wait), &why);
            }
        };
        delivery.call.url = target.shown();
        let endpoint = endpoint(&target.url);
        let admission = tokio::select! {
            biased;
            () = self.stop.cancelled() => return put_back(accepted.due_ms, "its node was stopped"),
            admission = self.hosts.admit(&endpoint) => admission,
        };
        let seat = match admission {
            Admission::Seat(seat) => seat,
            Admission::Later(wait, why) => {
                metrics::postponed();
                return put_back(self.after(wait), &why);
            }
        };
        let Sent {
            attempt, outcome, ..
        } = self.make(seat, &target, &delivery).await;
        let (call, attempts, called) = (delivery.call.clone(), delivery.attempts, attempt.clone());
        let rule = &call.rule;
        let (finish, outcome) = delivery.end(attempt, outcome, self.deliveries.jobs().entropy());
        metrics::called(outcome, &called);
        metrics::called_for(&call, outcome);
        match outcome {
            Outcome::Delivered => metrics::delivered(attempts.saturating_add(1)),
            Outcome::Failed(_) => {
                tracing::debug!(
                    rule,
                    endpoint,
                    reason = called.summary(),
                    "a webhook failed"
                );
            }
            Outcome::Dead => {
                tracing::warn!(
                    rule,
                    endpoint,
                    reason = called.summary(),
                    "a webhook is a dead letter"
                );
            }
        }
        finish
    }
}

/// Ends a run without a call.
fn put_back(due_ms: i64, why: &str) -> Finish {
    Finish {
        reason: Some(why.to_owned()),
        ..Finish::again(due_ms)
    }
}
