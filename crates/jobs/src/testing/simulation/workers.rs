//! Workers, well-behaved and not.

use std::time::Duration;

use futures::future::join_all;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use store::Transaction;
use testkit::some_time;
use tokio::time::{Instant, sleep, timeout};

use super::history::{CallId, Entry, Glimpse, Token, What};
use super::node::Node;
use crate::testing::rules::{Ended, data_of};
use crate::{Accepted, AcceptorHandle, Error, Finish, Held, Job, Limits, Result};

/// Runs jobs from the node's acceptor without end.
pub(super) async fn work(node: Node, ty: usize, acceptor: AcceptorHandle, mut rng: SmallRng) {
    loop {
        let time_limit = if rng.random_bool(0.05) {
            Duration::from_millis(rng.random_range(1..50))
        } else {
            Duration::from_secs(rng.random_range(5..60))
        };
        let count = rng.random_range(1..=node.world.plan.batch);
        let accepting = acceptor.accept(count, time_limit);
        let accepted = if rng.random_bool(0.03) && !node.world.healing() {
            // A caller that does not wait for the answer.
            match timeout(some_time(&mut rng, Duration::from_secs(2)), accepting).await {
                Ok(accepted) => accepted,
                Err(_) => continue,
            }
        } else {
            accepting.await
        };
        match accepted {
            Ok(accepted) => run_all(&node, ty, accepted, Some(&acceptor), &mut rng).await,
            Err(_) => return,
        }
    }
}

/// Claims and runs jobs on its own until all faults end.
pub(super) async fn claim(node: Node, ty: usize, mut rng: SmallRng) {
    let (history, jobs) = (node.history(), &node.jobs);
    while !node.world.healing() {
        let count = rng.random_range(1..=node.world.plan.batch);
        let claim = &jobs.claim(node.ty(ty), &node.holder, count);
        let call = history.call("accept", node.index);
        let node_ref = &node;
        let claimed = jobs
            .transact_claim(claim, |tx| async move {
                history.attempt(call, &tx);
                let claimed = jobs.accept_in(&tx, claim).await?;
                for accepted in &claimed.jobs {
                    note_accept(node_ref, &tx, call, ty, accepted);
                }
                Ok(claimed)
            })
            .await
            .map(|(claimed, _)| claimed);
        history.end(call, &claimed, |claimed| !claimed.jobs.is_empty());
        let accepted = match claimed {
            Ok(claimed) => claimed.jobs,
            Err(_) => jobs.recall_claim(claim).await.unwrap_or_default(),
        };
        if accepted.is_empty() {
            sleep(some_time(&mut rng, Duration::from_secs(5))).await;
        }
        run_all(&node, ty, accepted, None, &mut rng).await;
    }
}

fn note_accept(node: &Node, tx: &Transaction, call: CallId, ty: usize, accepted: &Accepted) {
    let before = Glimpse {
        state: Some(crate::State::Pending),
        attempts: accepted.job.attempt - 1,
        lock: Some(accepted.job.lock),
        due_ms: accepted.due_ms,
        data: Some(Token::of(&accepted.data)),
    };
    node.history().done(
        tx,
        Entry {
            call: Some(call),
            at: node.history().now(),
            ty,
            id: accepted.job.id.clone(),
            before: Some(before),
            what: What::Accept,
        },
    );
}

async fn run_all(
    node: &Node,
    ty: usize,
    accepted: Vec<Accepted>,
    acceptor: Option<&AcceptorHandle>,
    rng: &mut SmallRng,
) {
    for accepted in &accepted {
        node.history().delivered(node.index, ty, accepted);
    }
    let seed: u64 = rng.random();
    let runs = (0..).zip(&accepted).map(|(n, accepted)| Run {
        node,
        ty,
        accepted,
        acceptor,
        rng: SmallRng::seed_from_u64(seed.wrapping_add(n)),
    });
    join_all(runs.map(Run::run)).await;
}

/// One run of one job.
struct Run<'a> {
    node: &'a Node,
    ty: usize,
    accepted: &'a Accepted,
    acceptor: Option<&'a AcceptorHandle>,
    rng: SmallRng,
}

impl Run<'_> {
    async fn run(mut self) {
        let timeout = self.node.timeout(self.ty);
        let fates = &self.node.world.plan.fates;
        if self.node.world.healing() {
            sleep(some_time(&mut self.rng, Duration::from_millis(100))).await;
            return self.finish(Finish::done()).await;
        }
        if self.node.world.plan.varied
            && self.accepted.limits != Limits::default()
            && self.rng.random_bool(0.08)
            && !self.pauses(timeout).await
        {
            return self.finish(Finish::again(0)).await;
        }
        let fate = self.rng.random_range(0..100);
        let (silent, hang) = (fates.silent, fates.silent + fates.hang);
        let (hog, late) = (hang + fates.hog, hang + fates.hog + fates.late);
        if fate < silent {
            return;
        } else if fate < hang {
            sleep(timeout.mul_f64(self.rng.random_range(0.9..3.0))).await;
        } else if fate < hog {
            if !self.work_long(timeout).await && self.rng.random_bool(0.5) {
                return;
            }
            // Or a worker that ignores that the job is lost.
        } else if fate < late {
            for _ in 0..self.rng.random_range(1..4) {
                sleep(timeout.mul_f64(self.rng.random_range(0.3..1.6))).await;
                let data = self.rng.random_bool(0.3).then(|| self.node.world.token());
                match self.update(data).await {
                    Err(Error::Halt) if self.rng.random_bool(0.7) => return,
                    _ => {}
                }
            }
        } else {
            let busy = timeout.mul_f64(0.05);
            sleep(some_time(&mut self.rng, busy)).await;
            if self.rng.random_bool(0.2) {
                let _ = self.update(Some(self.node.world.token())).await;
                sleep(some_time(&mut self.rng, busy)).await;
            }
        }
        self.end().await;
    }

    /// Gives the slots of its limits back for a while; false if there are none any more.
    async fn pauses(&mut self, timeout: Duration) -> bool {
        let (jobs, job) = (&self.node.jobs, &self.accepted.job);
        if jobs.release_limits(job).await.is_ok() {
            sleep(some_time(&mut self.rng, timeout.mul_f64(0.1))).await;
        }
        jobs.retake_limits(job).await.unwrap_or(true)
    }

    /// Works for a long time while heartbeats are sent; false when the job is lost.
    async fn work_long(&mut self, timeout: Duration) -> bool {
        let (node, accepted) = (self.node, self.accepted);
        let kept = node.jobs.keep_alive(accepted, |_| {});
        let work = async {
            for _ in 0..self.rng.random_range(1..12) {
                sleep(timeout.mul_f64(self.rng.random_range(0.0..0.5))).await;
                let data = self.rng.random_bool(0.7).then(|| node.world.token());
                if let Err(Error::Halt) = self.update(data).await {
                    return false;
                }
            }
            true
        };
        tokio::select! {
            biased;
            done = work => done,
            _ = kept => false,
        }
    }

    /// Ends the run in a random way.
    async fn end(&mut self) {
        let data = self.rng.random_bool(0.3).then(|| self.node.world.token());
        let finish = match self.rng.random_range(0..100) {
            0..12 => {
                let due_ms = if self.rng.random_bool(0.5) {
                    0
                } else {
                    self.node.jobs.clock().now_ms() + self.rng.random_range(0..10_000)
                };
                Finish {
                    failed: self.rng.random_bool(0.5),
                    ..Finish::again(due_ms)
                }
            }
            12..16 => Finish::failed("it did not work"),
            16..20 => Finish::dead("it cannot work"),
            20..26 => {
                let due_ms = self.rng.random_range(0..2) * 1_000;
                return self.again_and_finish(due_ms, data, false).await;
            }
            26..30 => return self.again_and_finish(0, data, true).await,
            _ => Finish::done(),
        };
        let finish = Finish {
            data: data.map(data_of),
            ..finish
        };
        if self.rng.random_bool(0.15) {
            // The heartbeats may go on after the run has ended.
            let late = self.rng.random_bool(0.5);
            let pause = some_time(&mut self.rng, Duration::from_millis(10));
            let kept = self.rng.random_bool(0.5);
            let mut accepted = self.accepted.clone();
            let beat = async {
                sleep(if late { pause } else { Duration::ZERO }).await;
                if kept {
                    accepted.claimed_at = Instant::now();
                    let lively = Duration::from_millis(60);
                    let Job {
                        ty,
                        id,
                        lock,
                        attempt,
                        ..
                    } = accepted.job;
                    accepted.job = Job::new(ty, id, lock, attempt);
                    accepted.job.run.set_timeout(lively);
                    let kept = self.node.jobs.keep_alive(&accepted, |_| {});
                    let _ = timeout(lively, kept).await;
                } else {
                    let _ = self.update(None).await;
                }
            };
            let done = async {
                sleep(if late { Duration::ZERO } else { pause }).await;
                self.finish(finish.clone()).await;
            };
            tokio::join!(beat, done);
            return;
        }
        match self.acceptor.filter(|_| self.rng.random_bool(0.4)) {
            Some(acceptor) => self.hand_back(acceptor, &finish).await,
            None => self.finish(finish.clone()).await,
        }
        if self.rng.random_bool(0.1) {
            // A client that missed the answer.
            self.finish(finish).await;
        }
    }

    fn entry(&self, call: CallId, before: Option<Glimpse>, what: What) -> Entry {
        Entry {
            call: Some(call),
            at: self.node.history().now(),
            ty: self.ty,
            id: self.accepted.job.id.clone(),
            before,
            what,
        }
    }

    async fn before(&self, tx: &Transaction) -> Result<Glimpse> {
        (self.node.glimpse(tx, self.ty, &self.accepted.job.id)).await
    }

    /// Returns `held`; records a rejected lock.
    async fn note_halt(
        &self,
        tx: &Transaction,
        call: CallId,
        before: &Glimpse,
        held: Result<Held>,
    ) -> Result<Held> {
        if let Err(Error::Halt) = held {
            let version = tx.read_version().await?;
            let what = What::Halt(self.accepted.job.lock);
            (self.node.history()).saw(version, self.entry(call, Some(before.clone()), what));
        }
        held
    }

    async fn update(&self, token: Option<u64>) -> Result<Held> {
        let (history, jobs, op) = (self.node.history(), &self.node.jobs, &self.node.jobs.op());
        let (job, call) = (&self.accepted.job, history.call("update", self.node.index));
        let result = (jobs.store())
            .transact("update", |tx| async move {
                history.attempt(call, &tx);
                let before = self.before(&tx).await?;
                let held = jobs.update_in(&tx, op, job, token.map(data_of)).await;
                let held = self.note_halt(&tx, call, &before, held).await?;
                if !held.repeated {
                    let what = What::Beat {
                        lock: job.lock,
                        data: token,
                        again: held.again,
                    };
                    history.done(&tx, self.entry(call, Some(before), what));
                }
                Ok(held)
            })
            .await;
        history.end(call, &result, |_| true);
        result
    }

    async fn finish(&self, finish: Finish) {
        let (history, jobs, op) = (self.node.history(), &self.node.jobs, &self.node.jobs.op());
        let (job, call) = (&self.accepted.job, history.call("finish", self.node.index));
        let finish = &finish;
        let result = (jobs.store())
            .transact("finish", |tx| async move {
                history.attempt(call, &tx);
                let before = self.before(&tx).await?;
                let held = jobs.finish_in(&tx, op, job, finish.clone()).await;
                let held = self.note_halt(&tx, call, &before, held).await?;
                if !held.repeated {
                    let what = What::Finish {
                        lock: job.lock,
                        end: finish.into(),
                        again: held.again,
                    };
                    history.done(&tx, self.entry(call, Some(before), what));
                }
                Ok(held)
            })
            .await;
        // A finish may find that an earlier one with the same lock has done it.
        history.end(call, &result, |held| !held.repeated);
    }

    /// Ends the run through the acceptor.
    async fn hand_back(&self, acceptor: &AcceptorHandle, finish: &Finish) {
        let (history, job) = (self.node.history(), &self.accepted.job);
        history.hands_back(self.ty, job, finish);
        if acceptor.finish(job, finish.clone()).await.is_ok() {
            history.handed_back(job.lock);
        }
    }

    /// Requests another run and finishes in one transaction, possibly with a heartbeat.
    async fn again_and_finish(&self, due_ms: i64, token: Option<u64>, beat: bool) {
        let (history, jobs) = (self.node.history(), &self.node.jobs);
        let (op, ops) = (&jobs.op(), &[jobs.op(), jobs.op()]);
        let (job, call) = (&self.accepted.job, history.call("finish", self.node.index));
        let result = (jobs.store())
            .transact("finish", |tx| async move {
                history.attempt(call, &tx);
                let before = self.before(&tx).await?;
                if beat {
                    let held = jobs.update_in(&tx, op, job, None).await;
                    let _ = self.note_halt(&tx, call, &before, held).await?;
                }
                let data = token.map(data_of);
                let held = jobs.run_again_in(&tx, &ops[0], job, due_ms, data).await;
                let _ = self.note_halt(&tx, call, &before, held).await?;
                let held = jobs.finish_in(&tx, &ops[1], job, Finish::done()).await?;
                if !held.repeated {
                    let lock = job.lock;
                    let again = What::RunAgain {
                        lock,
                        due_ms,
                        data: token,
                    };
                    history.done(&tx, self.entry(call, Some(before), again));
                    let finish = What::Finish {
                        lock,
                        end: Ended::default(),
                        again: held.again,
                    };
                    history.done(&tx, self.entry(call, None, finish));
                }
                Ok(held)
            })
            .await;
        history.end(call, &result, |held| !held.repeated);
    }
}
