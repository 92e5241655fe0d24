//! Waits for work: one service per process and type, for any number of workers.
//!
//! Workers send requests through a handle. The service claims jobs for all of them in one transaction, which also ends
//! the runs that workers have finished. It does not wait for the disk before the next: only the answers to the ends do.
//! When nothing is due it goes to sleep in steps:
//!
//! ```text
//! 1 linger     claim again after 1 ms and 2 ms: more jobs often follow, and going to sleep and being
//!              woken would cost two transactions
//! 2 announce   claim; if nothing is due, write a SLEEPER row in the same transaction
//! 3 watch      claim; if nothing is due, watch the row in the same transaction
//! 4 sleep      until the row changes, a scheduled job falls due, or it is time to poll
//! ```
//!
//! After 4 it continues with 3; with 2 if the row was cleared; with 1 once it has found jobs.
//!
//! A creator reads SLEEPER rows by snapshot and clears one in the transaction that adds a job. In no order of the two
//! is the job lost:
//!
//! ```text
//! the creator commits            and has read SLEEPER    so the job is found
//! before the claim of 2 reads    at any time             by 2
//! before the claim of 3 reads    at any time             by 3, which reads after 2 was committed
//! later                          after 2's commit        when the row changes. The watch compares with what 3
//!                                                        has read, so it also fires for a change before it is
//!                                                        armed. If the creator clears another sleeper's row,
//!                                                        that acceptor finds the job
//! later                          before 2's commit       by the next poll: nothing was cleared
//! ```
//!
//! The last case needs a creator whose transaction lasts from before 2's commit until after 3's read. So the first
//! polls come soon, after 30 ms and 300 ms, and then every 5 s. Polls also make up for watches that the store loses, or
//! refuses because it has too many. A scheduled job wakes a sleeper only if it is due before that sleeper's next poll;
//! for the others the claim reports when the first is due.
//!
//! An acceptor that is woken while none of its workers waits wakes another ([`Jobs::remove_sleeper`]): the job still
//! needs a worker.

mod deliver;
mod division;
mod ends;
mod handle;
mod rest;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use store::Durable;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::operations::division::Division;
use crate::operations::effects::POLL_MS;
use crate::services::interrupts::Runs;
use crate::services::pause::Pause;
use crate::services::type_watcher::watch_or_poll;
use crate::{Accepted, Claim, Claimed, Finish, Held, Holder, Job, JobType, Jobs, Result};

use division::Others;
use ends::{answer_once, finishes};
use handle::{Ended, Request, Wanted};
use rest::Rest;

pub use handle::AcceptorHandle;

/// Requests queued before a caller has to wait.
const REQUESTS: usize = 1_024;
/// Pauses before the claims that precede sleeping.
const LINGER_PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(2)];

/// Claims jobs of one type for the workers of a process.
#[derive(Debug)]
pub struct Acceptor {
    jobs: Jobs,
    ty: JobType,
    holder: Holder,
    requests: mpsc::Receiver<Request>,
    /// Jobs delivered to a worker that had stopped waiting.
    returned: mpsc::Receiver<Vec<Accepted>>,
    returns: mpsc::Sender<Vec<Accepted>>,
    waiting: VecDeque<Wanted>,
    ended: VecDeque<Ended>,
    /// While this is set, no worker stops waiting because its time is up.
    claiming: Arc<AtomicBool>,
    /// A claim with an unknown outcome.
    unsure: Option<Claim>,
    /// The runs it has handed out.
    runs: Arc<Runs>,
    /// The number of its SLEEPER row, if it has one.
    sleeper: Option<u64>,
    /// Claims without jobs since the last one with jobs.
    lingered: usize,
    /// Polls since it went to sleep.
    polls: usize,
    /// When the next scheduled job is due, as of the last sleep; `None` once other acceptors will find it in time.
    next_due_ms: Option<i64>,
    others: Others,
}

/// What a claim that finds no jobs does next.
enum Sleep {
    /// No worker would wait.
    Never,
    Linger,
    /// Writes the SLEEPER row of this number.
    Announce(u64),
    /// Watches the row.
    Watch(u64),
}

/// What a transaction that claims has done.
struct Turn {
    claimed: Claimed,
    /// To the ends of runs.
    answers: Vec<Result<Held>>,
    rest: Option<Rest>,
    /// Acceptors of the type that sleep, if they were read.
    asleep: Vec<u64>,
}

impl Acceptor {
    /// An acceptor of jobs of a type, which it claims as `holder`.
    pub fn new(jobs: Jobs, ty: JobType, holder: Holder) -> (Self, AcceptorHandle) {
        let (send, requests) = mpsc::channel(REQUESTS);
        let (returns, returned) = mpsc::channel(REQUESTS);
        let claiming = Arc::new(AtomicBool::new(false));
        let handle = AcceptorHandle::new(jobs.clone(), send, Arc::clone(&claiming));
        let runs = Arc::new(Runs::new(jobs.op().seed().max(1)));
        let acceptor = Self {
            jobs,
            ty,
            holder,
            requests,
            returned,
            returns,
            waiting: VecDeque::new(),
            ended: VecDeque::new(),
            claiming,
            unsure: None,
            runs,
            sleeper: None,
            lingered: LINGER_PAUSES.len(),
            polls: 0,
            next_due_ms: None,
            others: Others::default(),
        };
        (acceptor, handle)
    }

    /// Runs until the token is cancelled or every handle is dropped. After that, runs learn only from heartbeats that
    /// they lost their job.
    pub async fn run(self, token: CancellationToken) {
        let (jobs, ty, runs) = (self.jobs.clone(), self.ty.clone(), Arc::clone(&self.runs));
        tokio::select! {
            biased;
            () = self.work(token) => {}
            never = runs.listen(&jobs, &ty) => match never {},
        }
    }

    async fn work(mut self, token: CancellationToken) {
        let mut pause = Pause::new(self.jobs.entropy(), self.jobs.planted());
        while !token.is_cancelled() {
            // Workers that just got an answer may already have sent the next request.
            tokio::task::yield_now().await;
            self.gather();
            if self.waiting.is_empty() && self.unsure.is_none() {
                if !self.ended.is_empty() {
                    self.end_runs().await;
                    continue;
                }
                // Its worker has stopped waiting.
                self.remove_sleeper().await;
                if self.idle(&token).await {
                    continue;
                }
                break;
            }
            self.claiming.store(true, Ordering::Release);
            let claimed = self.claim_once().await;
            self.claiming.store(false, Ordering::Release);
            match claimed {
                Ok(Some(rest)) => {
                    pause.reset();
                    if matches!(rest, Rest::Asleep { .. }) {
                        // The time of some workers may have run out after the claim.
                        self.answer_polls();
                    }
                    if !self.rest(&token, rest).await {
                        break;
                    }
                }
                Ok(None) => pause.reset(),
                Err(error) => {
                    tracing::warn!(job.ty = %self.ty, error = %error.chain(), "cannot claim jobs");
                    pause.wait(&token).await;
                }
            }
        }
        self.shut_down().await;
    }

    /// Takes queued requests, and drops those whose caller has stopped waiting.
    fn gather(&mut self) {
        while let Ok(request) = self.requests.try_recv() {
            self.enqueue(request);
        }
        self.waiting.retain(|wanted| !wanted.reply.is_closed());
    }

    fn enqueue(&mut self, request: Request) {
        match request {
            Request::Accept(wanted) => self.waiting.push_back(wanted),
            Request::Finish(ended) => self.ended.push_back(*ended),
            Request::Both(ended, wanted) => {
                self.ended.extend(ended);
                self.waiting.push_back(wanted);
            }
        }
    }

    /// No worker waits: waits for a request. False when the service is stopped or all handles are dropped.
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
                    self.enqueue(request);
                    true
                }
                None => false,
            },
        }
    }

    /// Claims for all waiting workers, and ends runs. Returns what to wait for before the next claim, if anything.
    async fn claim_once(&mut self) -> Result<Option<Rest>> {
        if self.unsure.is_some() {
            return self.recall().await.map(|()| None);
        }
        let began = Instant::now();
        let claim = (self.jobs).claim_for(&self.ty, self.holders(), self.runs.number);
        let claim = claim.divided(self.division());
        self.runs.claim(self.jobs.planted());
        let (sleeper, ended) = (self.sleeper, self.take_ended());
        let linger = LINGER_PAUSES.get(self.lingered).copied();
        let polls = self.waiting.iter().all(Wanted::is_poll);
        let sleep = match (sleeper, linger) {
            _ if polls => Sleep::Never,
            (Some(sleeper), _) => Sleep::Watch(sleeper),
            (None, None) => Sleep::Announce(self.jobs.op().seed()),
            (None, Some(_)) => Sleep::Linger,
        };
        let result = match self.claim_or_sleep(&claim, &sleep, &finishes(&ended)).await {
            Ok((turn, durable)) => {
                self.runs.begin(&turn.claimed.jobs);
                answer_once(durable, ended, turn.answers);
                self.others.seen(turn.asleep);
                self.others.claimed_in(began.elapsed());
                if claim.is_filled_by(&turn.claimed) {
                    self.next_due_ms = None;
                }
                Ok((turn.claimed, turn.rest))
            }
            Err(error) => {
                self.end_separately(ended, &error).await;
                Err(error)
            }
        };
        if claim.is_unsure() {
            self.unsure = Some(claim);
        } else {
            self.runs.settle();
        }
        let (claimed, rest) = result?;
        if matches!(rest, Some(Rest::Left)) {
            return Ok(rest);
        }
        if claimed.is_idle() {
            self.answer_polls();
        }
        if !claimed.is_idle() {
            (self.sleeper, self.lingered) = (None, 0);
            if !claimed.jobs.is_empty() {
                self.deliver(claimed.jobs).await;
            }
            return Ok(None);
        }
        match sleep {
            // The row was cleared before it was watched.
            Sleep::Watch(_) if rest.is_none() => self.sleeper = None,
            Sleep::Watch(_) | Sleep::Never => {}
            // A creator may have read just before the row existed: claim once more.
            Sleep::Announce(sleeper) => (self.sleeper, self.polls) = (Some(sleeper), 0),
            Sleep::Linger => {
                self.lingered += 1;
                tokio::time::sleep(linger.unwrap_or_default()).await;
            }
        }
        Ok(rest)
    }

    /// Delivers the jobs of a claim whose outcome was unknown.
    async fn recall(&mut self) -> Result<()> {
        let Some(claim) = &self.unsure else {
            return Ok(());
        };
        match self.jobs.recall_claim(claim).await {
            Ok(jobs) => {
                self.unsure = None;
                self.runs.begin(&jobs);
                self.runs.settle();
                self.deliver(jobs).await;
                Ok(())
            }
            Err(error) => {
                // Runs that have ended do not wait for the store.
                let ended = self.take_ended();
                self.end_separately(ended, &error).await;
                Err(error)
            }
        }
    }

    /// Claims jobs and ends runs; if nothing is due, takes the next step towards sleep.
    async fn claim_or_sleep(
        &self,
        claim: &Claim,
        sleep: &Sleep,
        ended: &[(Job, Finish)],
    ) -> Result<(Turn, Durable)> {
        let op = &self.jobs.op();
        let is_awake = matches!(sleep, Sleep::Linger | Sleep::Announce(_));
        let leaves = is_awake && self.divides() && division::leaves(op);
        let soon = op.now_ms..op.now_ms.saturating_add(POLL_MS);
        let is_due_soon = self
            .next_due_ms
            .is_some_and(|due_ms| soon.contains(&due_ms));
        (self.jobs)
            .transact_claim(claim, |tx| async move {
                // First, so that the claim can have the slots of their limits.
                let (answers, woken) = if ended.is_empty() {
                    (Vec::new(), 0)
                } else {
                    self.jobs.finish_and_wake_in(&tx, op, ended).await?
                };
                if woken > 0 && leaves {
                    return Ok(Turn {
                        claimed: Claimed::default(),
                        answers,
                        rest: Some(Rest::Left),
                        asleep: Vec::new(),
                    });
                }
                let claimed = self.jobs.accept_in(&tx, claim).await?;
                let sleeps = matches!(sleep, Sleep::Watch(_)) && claimed.is_idle();
                let looks = sleeps || claimed.jobs.iter().any(|accepted| accepted.due_ms > 0);
                let asleep = if looks && self.divides() {
                    self.jobs.sleepers_in(&tx, &self.ty).await?
                } else {
                    Vec::new()
                };
                let mut rest = None;
                match *sleep {
                    Sleep::Never | Sleep::Linger => {}
                    Sleep::Announce(sleeper) => {
                        if claimed.is_idle() {
                            (self.jobs).add_sleeper_in(&tx, &self.ty, sleeper, self.runs.number);
                        }
                    }
                    Sleep::Watch(sleeper) => {
                        let key = self.jobs.keys().sleeper(&self.ty, sleeper);
                        if !claimed.is_idle() {
                            tx.clear(&key);
                        } else if tx.snapshot().get(&key).await?.is_some() {
                            rest = Some(Rest::Asleep {
                                next_due_ms: claimed.next_due_ms,
                                watch: watch_or_poll(tx.watch(&key).await)?,
                            });
                        }
                    }
                }
                // Its own row has been cleared, so this wakes another.
                if is_due_soon && claim.is_filled_by(&claimed) {
                    // No worker may be left for the scheduled job, and others may not poll in time.
                    self.jobs.wake(&tx, &self.ty, 1, op).await?;
                }
                Ok(Turn {
                    claimed,
                    answers,
                    rest,
                    asleep,
                })
            })
            .await
    }

    /// Which jobs a claim leaves to others for a while.
    fn division(&mut self) -> Division {
        if self.divides() {
            self.others.division(self.runs.number)
        } else {
            Division::default()
        }
    }

    /// Whether others are to get their part of the jobs: workers in other processes see to that themselves.
    fn divides(&self) -> bool {
        self.waiting.iter().all(|wanted| wanted.holder.is_none())
    }

    /// Stops: ends runs, and gives back jobs that no worker took.
    async fn shut_down(&mut self) {
        self.requests.close();
        self.gather();
        self.end_runs().await;
        self.returned.close();
        while let Ok(jobs) = self.returned.try_recv() {
            self.give_back(jobs).await;
        }
        self.remove_sleeper().await;
    }

    async fn remove_sleeper(&mut self) {
        let Some(sleeper) = self.sleeper.take() else {
            return;
        };
        if let Err(error) = self.jobs.remove_sleeper(&self.ty, sleeper).await {
            tracing::debug!(job.ty = %self.ty, error = %error.chain(), "cannot remove a sleeper");
        }
    }
}
