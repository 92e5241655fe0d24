//! Waiting for work: one service for a process and type, whatever the number of its workers.
//!
//! Workers ask through a handle. The service claims for all of them in one transaction, which also
//! ends the runs of those who have done their work. When nothing is due it writes a row that says that it sleeps, looks once more, and waits until a
//! creator clears the row, the next scheduled job falls due, or it is time to look anyway. A creator
//! that reads the rows of sleepers just before one is written does not see it; so a sleeper looks
//! again soon after it has gone to sleep, and then ever more rarely.

mod handle;

use std::collections::VecDeque;
use std::time::Duration;

use store::Watch;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::model::clock::millis;
use crate::model::effects::POLL_MS;
use crate::services::pause::Pause;
use crate::services::type_watcher::{changed_or_never, watch_or_poll};
use crate::testing::planted::Bug;
use crate::{
    Accepted, Claim, Claimed, Error, Finish, Held, Holder, Job, JobType, Jobs, Result, telemetry,
};

use handle::{Delivery, Ended, Request, Wanted};

pub use handle::AcceptorHandle;

/// The most runs that one transaction ends.
const ENDED_MAX: usize = 250;
/// How many requests wait before the next one does.
const REQUESTS: usize = 1_024;
/// How soon it looks again before it goes to sleep: where jobs have just come from more may come, and
/// to go to sleep and to be woken are two transactions.
const LINGERS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(2)];
/// When a sleeper looks again by itself; then every [`POLL_MS`], at most.
const LOOKS: [Duration; 2] = [Duration::from_millis(30), Duration::from_millis(300)];

/// The service.
#[derive(Debug)]
pub struct Acceptor {
    jobs: Jobs,
    ty: JobType,
    holder: Holder,
    requests: mpsc::Receiver<Request>,
    /// Jobs that were delivered to nobody.
    returned: mpsc::Receiver<Vec<Accepted>>,
    returns: mpsc::Sender<Vec<Accepted>>,
    waiting: VecDeque<Wanted>,
    ended: VecDeque<Ended>,
    /// A claim of which the store could not say what became.
    unsure: Option<Claim>,
    /// The row that says that this service sleeps.
    bell: Option<u64>,
    /// How often it has looked since there were jobs.
    lingered: usize,
    /// How often it has looked since it went to sleep.
    looks: usize,
}

/// What a look that finds nothing does.
enum Sleep {
    /// Nothing yet.
    Not,
    /// Says that the service sleeps, by this bell.
    Hang(u64),
    /// Watches the bell that says so.
    Watch(u64),
}

/// What ends a sleep.
enum Woken {
    Stop,
    Look,
    Returned(Vec<Accepted>),
    Requested,
}

impl Acceptor {
    /// The service for jobs of a type, which it accepts in the name of `holder`.
    pub fn new(jobs: Jobs, ty: JobType, holder: Holder) -> (Self, AcceptorHandle) {
        let (send, requests) = mpsc::channel(REQUESTS);
        let (returns, returned) = mpsc::channel(REQUESTS);
        let handle = AcceptorHandle::new(jobs.clone(), send);
        let acceptor = Self {
            jobs,
            ty,
            holder,
            requests,
            returned,
            returns,
            waiting: VecDeque::new(),
            ended: VecDeque::new(),
            unsure: None,
            bell: None,
            lingered: LINGERS.len(),
            looks: 0,
        };
        (acceptor, handle)
    }

    /// Works until the token is cancelled or every handle is dropped.
    pub async fn run(mut self, token: CancellationToken) {
        let mut pause = Pause::new(self.jobs.entropy(), self.jobs.planted());
        while !token.is_cancelled() {
            // Those who were answered just now may have something to ask again.
            tokio::task::yield_now().await;
            self.gather();
            if self.waiting.is_empty() && self.unsure.is_none() {
                if !self.ended.is_empty() {
                    self.end_runs().await;
                    continue;
                }
                if self.idle(&token).await {
                    continue;
                }
                break;
            }
            match self.look().await {
                Ok(Some((next_due_ms, watch))) => {
                    pause.reset();
                    if !self.sleep(&token, next_due_ms, watch).await {
                        break;
                    }
                }
                Ok(None) => pause.reset(),
                Err(error) => {
                    tracing::warn!(job.ty = %self.ty, error = %error.chain(), "accept jobs");
                    pause.wait(&token).await;
                }
            }
        }
        self.leave().await;
    }

    /// Takes in what was asked since, and forgets who does not wait any more.
    fn gather(&mut self) {
        while let Ok(request) = self.requests.try_recv() {
            self.take_in(request);
        }
        self.waiting.retain(|wanted| !wanted.reply.is_closed());
    }

    fn take_in(&mut self, request: Request) {
        match request {
            Request::Accept(wanted) => self.waiting.push_back(wanted),
            Request::Finish(ended) => self.ended.push_back(ended),
        }
    }

    /// Nobody waits: waits for somebody who does. False when nobody ever will.
    async fn idle(&mut self, token: &CancellationToken) -> bool {
        let Self {
            requests, returned, ..
        } = self;
        tokio::select! {
            biased;
            () = token.cancelled() => false,
            Some(jobs) = returned.recv() => {
                self.give_back(jobs).await;
                true
            }
            request = requests.recv() => match request {
                Some(request) => {
                    self.take_in(request);
                    true
                }
                None => false,
            },
        }
    }

    /// Claims for all who wait, and ends the runs that are over. When nothing is due: what to wait
    /// for.
    async fn look(&mut self) -> Result<Option<(Option<i64>, Option<Watch>)>> {
        if let Some(claim) = &self.unsure {
            let jobs = self.jobs.recall_claim(claim).await?;
            self.unsure = None;
            self.deliver(jobs).await;
            return Ok(None);
        }
        let wanted: usize = self.waiting.iter().map(|wanted| wanted.count).sum();
        let claim = (self.jobs).claim(&self.ty, &self.holder, wanted);
        let (bell, ended) = (self.bell, self.take_ended());
        let linger = LINGERS.get(self.lingered).copied();
        let sleep = match (bell, linger) {
            (Some(bell), _) => Sleep::Watch(bell),
            (None, None) => Sleep::Hang(self.jobs.op().seed()),
            (None, Some(_)) => Sleep::Not,
        };
        let result = match self.claim_or_sleep(&claim, &sleep, &finishes(&ended)).await {
            Ok((claimed, watch, answers)) => {
                answer(ended, answers);
                Ok((claimed, watch))
            }
            Err(error) => {
                self.end_apart(ended, &error).await;
                Err(error)
            }
        };
        match (result, sleep) {
            (Ok((claimed, _)), _) if !claimed.jobs.is_empty() => {
                (self.bell, self.lingered) = (None, 0);
                self.deliver(claimed.jobs).await;
                Ok(None)
            }
            (Ok((claimed, Some(watch))), Sleep::Watch(_)) => Ok(Some((claimed.next_due_ms, watch))),
            (Ok(_), Sleep::Watch(_)) => {
                // The bell was rung before it was watched.
                self.bell = None;
                Ok(None)
            }
            (Ok(_), Sleep::Hang(bell)) => {
                // What came while it was hung is seen by one more look.
                (self.bell, self.looks) = (Some(bell), 0);
                Ok(None)
            }
            (Ok(_), Sleep::Not) => {
                self.lingered += 1;
                tokio::time::sleep(linger.unwrap_or_default()).await;
                Ok(None)
            }
            (Err(error), _) => {
                if claim.is_unsure() {
                    self.unsure = Some(claim);
                }
                Err(error)
            }
        }
    }

    /// Accepts, and ends runs; when nothing is due, goes to sleep as far as it is told to. The watch is
    /// `None` when there is no bell any more, and `Some(None)` when the store has no watch left.
    async fn claim_or_sleep(
        &self,
        claim: &Claim,
        sleep: &Sleep,
        ended: &[(Job, Finish)],
    ) -> Result<(Claimed, Option<Option<Watch>>, Vec<Result<Held>>)> {
        let op = &self.jobs.op();
        let durable = !ended.is_empty();
        (self.jobs)
            .transact_claim(claim, durable, |tx| async move {
                let claimed = self.jobs.accept_in(&tx, claim).await?;
                let answers = if ended.is_empty() {
                    Vec::new()
                } else {
                    self.jobs.finish_many_in(&tx, op, ended).await?
                };
                let mut watch = None;
                match *sleep {
                    Sleep::Not => {}
                    Sleep::Hang(bell) => {
                        if claimed.jobs.is_empty() {
                            self.jobs.hang_bell_in(&tx, &self.ty, bell);
                        }
                    }
                    Sleep::Watch(bell) => {
                        let key = self.jobs.keys().sleeper(&self.ty, bell);
                        if !claimed.jobs.is_empty() {
                            tx.clear(&key);
                        } else if tx.snapshot().get(&key).await?.is_some() {
                            watch = Some(watch_or_poll(tx.watch(&key).await)?);
                        }
                    }
                }
                Ok((claimed, watch, answers))
            })
            .await
    }

    fn take_ended(&mut self) -> Vec<Ended> {
        let count = self.ended.len().min(ENDED_MAX);
        self.ended.drain(..count).collect()
    }

    /// Ends the runs that are over.
    async fn end_runs(&mut self) {
        while !self.ended.is_empty() {
            let ended = self.take_ended();
            match self.jobs.finish_many(&finishes(&ended)).await {
                Ok(answers) => answer(ended, answers),
                Err(error) => self.end_apart(ended, &error).await,
            }
        }
    }

    /// A transaction has failed for all of them: what is wrong with one is not to keep the others
    /// from being ended. When the store cannot be reached, each hears of it.
    async fn end_apart(&self, ended: Vec<Ended>, error: &Error) {
        for run in ended {
            let answer = if error.is_retryable() {
                Err(error.clone())
            } else {
                self.jobs.finish(&run.job, run.finish).await
            };
            // Whoever asked may have gone away.
            let _ = run.reply.send(answer);
        }
    }

    /// Waits until there may be work for those who wait. False when the service is to stop.
    async fn sleep(
        &mut self,
        token: &CancellationToken,
        next_due_ms: Option<i64>,
        watch: Option<Watch>,
    ) -> bool {
        let until = self.next_look(next_due_ms, watch.is_some());
        let ring = changed_or_never(watch);
        tokio::pin!(ring);
        loop {
            let woken = tokio::select! {
                biased;
                () = token.cancelled() => Woken::Stop,
                Some(jobs) = self.returned.recv() => Woken::Returned(jobs),
                () = &mut ring => Woken::Look,
                () = sleep_until(until) => Woken::Look,
                Some(request) = self.requests.recv() => {
                    self.take_in(request);
                    Woken::Requested
                }
            };
            match woken {
                Woken::Stop => return false,
                Woken::Requested => {
                    self.gather();
                    self.end_runs().await;
                }
                Woken::Returned(jobs) => self.give_back(jobs).await,
                Woken::Look => break,
            }
        }
        self.gather();
        if self.waiting.is_empty() {
            // Whoever rang did not mean nobody.
            self.take_bell_down().await;
        }
        true
    }

    /// When to look again, whatever happens.
    fn next_look(&mut self, next_due_ms: Option<i64>, watched: bool) -> Instant {
        let poll = Duration::from_millis(POLL_MS.unsigned_abs());
        let look = LOOKS.get(self.looks).copied();
        self.looks += 1;
        let mut wait = look.unwrap_or(if watched { poll } else { poll / 5 });
        wait = wait / 2 + self.jobs.entropy().up_to(wait / 2);
        if self.jobs.planted().is(Bug::NobodyWakes) {
            wait = Duration::from_hours(24);
        }
        if let Some(due_ms) = next_due_ms {
            let until_due = due_ms.saturating_sub(self.jobs.clock().now_ms()).max(0);
            let until_due = Duration::from_millis(until_due.unsigned_abs());
            wait = wait.min(until_due);
        }
        debug_assert!(millis(wait) >= 0, "a wait is not negative");
        Instant::now() + wait
    }

    /// Hands jobs to those who wait, first come, first served.
    async fn deliver(&mut self, jobs: Vec<Accepted>) {
        telemetry::accepted(&self.ty, &jobs, self.jobs.clock().now_ms());
        let mut jobs = jobs.into_iter();
        while jobs.len() > 0 {
            let Some(request) = self.waiting.pop_front() else {
                return self.give_back(jobs.collect()).await;
            };
            if request.reply.is_closed() {
                continue;
            }
            let delivery = Delivery {
                jobs: jobs.by_ref().take(request.count).collect(),
                returns: self.returns.clone(),
            };
            // One that nobody takes comes back by itself.
            let _ = request.reply.send(delivery);
        }
    }

    /// Puts jobs back that nobody waits for any more.
    async fn give_back(&self, jobs: Vec<Accepted>) {
        let finishes: Vec<(Job, Finish)> = (jobs.into_iter())
            .map(|accepted| {
                let finish = Finish {
                    reason: Some("nobody waited for it any more".into()),
                    ..Finish::again(accepted.due_ms)
                };
                (accepted.job, finish)
            })
            .collect();
        if let Err(error) = self.jobs.finish_many(&finishes).await {
            tracing::warn!(job.ty = %self.ty, error = %error.chain(), "give jobs back");
        }
    }

    /// Stops waiting: runs that are over are ended, what was delivered to nobody goes back.
    async fn leave(&mut self) {
        self.requests.close();
        self.gather();
        self.end_runs().await;
        self.returned.close();
        while let Ok(jobs) = self.returned.try_recv() {
            self.give_back(jobs).await;
        }
        self.take_bell_down().await;
    }

    /// Takes the bell down; if it has been rung, someone else is to hear it.
    async fn take_bell_down(&mut self) {
        let Some(bell) = self.bell.take() else {
            return;
        };
        if let Err(error) = self.jobs.take_bell_down(&self.ty, bell).await {
            tracing::debug!(job.ty = %self.ty, error = %error.chain(), "stop waiting for jobs");
        }
    }
}

fn finishes(ended: &[Ended]) -> Vec<(Job, Finish)> {
    let finish = |run: &Ended| (run.job.clone(), run.finish.clone());
    ended.iter().map(finish).collect()
}

fn answer(ended: Vec<Ended>, answers: Vec<Result<Held>>) {
    for (run, answer) in ended.into_iter().zip(answers) {
        // Whoever asked may have gone away.
        let _ = run.reply.send(answer);
    }
}
