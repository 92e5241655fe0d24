//! What the holder of a job does: heartbeats, progress, finishing, running again.
//!
//! Each reads the job's header, so that whoever takes the job away conflicts with it, and answers
//! [`Error::Halt`] when the lock is not the job's any more. A holder that calls one of them in the
//! transaction of its own writes gets them exactly once, if it leaves them out when the answer says
//! `repeated`: then an earlier try of this very transaction was committed, although the store could
//! not say so. Several calls about one job in one transaction share an [`Op`], by which all of them
//! are recognised. Calls in different transactions may overlap.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{try_join, try_join_all};
use store::Transaction;

use crate::model::header::{Header, check_data};
use crate::model::keys::Position;
use crate::model::machine::{Event, Finish, Held, Reply};
use crate::{Attempt, Error, Job, JobId, JobLock, JobType, Jobs, Op, Result, State};

/// The most jobs that one transaction accepts.
pub(crate) const CLAIM_JOBS_MAX: usize = 500;

impl Jobs {
    /// A heartbeat, with new data if there is any. To be sent at least every third of the type's
    /// timeout; says whether the job was asked to run again.
    pub async fn update(&self, job: &Job, data: Option<Bytes>) -> Result<Held> {
        let (op, data) = (self.op(), data.as_ref());
        let held = (self.store())
            .transact("update", |tx| async move {
                self.update_in(&tx, &op, job, data.cloned()).await
            })
            .await;
        match &held {
            Ok(held) if held.again => job.run.again.cancel(),
            Err(Error::Halt) => job.run.lost.cancel(),
            _ => {}
        }
        held
    }

    /// [`Self::update`] in the caller's transaction.
    pub async fn update_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &Job,
        data: Option<Bytes>,
    ) -> Result<Held> {
        let event = |data, repeated| Event::Update {
            lock: job.lock,
            data,
            repeated,
        };
        self.hold_in(tx, op, job, data, event).await
    }

    /// A step of the holder after which it goes on: a heartbeat too.
    async fn hold_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &Job,
        data: Option<Bytes>,
        event: impl FnOnce(Option<Bytes>, bool) -> Event,
    ) -> Result<Held> {
        check_data(data.as_ref())?;
        let read = (
            self.header(tx, &job.ty, &job.id),
            self.timeout_in(tx, &job.ty),
        );
        let (mut header, timeout) = try_join(read.0, read.1).await?;
        let repeated = tx.maybe_committed() && self.was_called(tx, job, op).await?;
        let mut effects = self.effects(tx, op.now_ms).await?;
        let reply = effects.run(&job.ty, &job.id, &mut header, event(data, repeated))?;
        if reply != Reply::Repeated {
            effects.beat(&job.ty, &job.id, timeout);
            job.run.promise(timeout, tx.commit_stamp());
            effects.remember(job, op.id(0));
        }
        effects.flush(op).await?;
        let held = held(reply, header.as_deref(), job.lock);
        self.heartbeats().update(job.lock, held, tx.commit_stamp());
        Ok(held)
    }

    /// A heartbeat beside which nothing else is written, so that nobody has to recognise it. The row
    /// that it writes is its fence too: whoever takes the job away clears it. So whoever only writes to
    /// the header, for another run or for a subscriber, does not get in the way.
    pub(crate) async fn keep_in(&self, tx: &Transaction, op: &Op, job: &Job) -> Result<Held> {
        let key = self.keys().index(&job.ty, &job.id, Position::Active);
        let row = self.keys().job(&job.ty, &job.id);
        let snapshot = tx.snapshot();
        let (snapshot_read, fence) = (snapshot.get(&row), tx.get(&key));
        let read = async { Ok(try_join(snapshot_read, fence).await?) };
        let ((header, _), timeout) = try_join(read, self.timeout_in(tx, &job.ty)).await?;
        let mut header = header.map(Header::decode).transpose()?.map(Arc::new);
        let event = Event::Update {
            lock: job.lock,
            data: None,
            repeated: false,
        };
        let mut effects = self.effects(tx, op.now_ms).await?;
        let reply = effects.run(&job.ty, &job.id, &mut header, event)?;
        effects.beat(&job.ty, &job.id, timeout);
        job.run.promise(timeout, tx.commit_stamp());
        effects.flush(op).await?;
        Ok(held(reply, header.as_deref(), job.lock))
    }

    /// Asks for another run after this one, at a time: a heartbeat too. Unlike
    /// [`resubmit`](Self::resubmit), only the holder can.
    pub async fn run_again_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &Job,
        due_ms: i64,
        data: Option<Bytes>,
    ) -> Result<Held> {
        let event = |data, repeated| Event::Resubmit {
            lock: job.lock,
            due_ms,
            data,
            repeated,
        };
        self.hold_in(tx, op, job, data, event).await
    }

    /// [`Self::run_again_in`] in a transaction of its own.
    pub async fn run_again(&self, job: &Job, due_ms: i64, data: Option<Bytes>) -> Result<Held> {
        let (op, data) = (self.op(), data.as_ref());
        (self.store())
            .transact("run_again", |tx| async move {
                self.run_again_in(&tx, &op, job, due_ms, data.cloned())
                    .await
            })
            .await
    }

    /// Ends the run of a job. Saying so again with the same lock is no error.
    pub async fn finish(&self, job: &Job, finish: Finish) -> Result<Held> {
        let (op, finish) = (self.op(), &finish);
        (self.store())
            .transact("finish", |tx| async move {
                self.finish_in(&tx, &op, job, finish.clone()).await
            })
            .await
    }

    /// [`Self::finish`] in the caller's transaction.
    pub async fn finish_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &Job,
        finish: Finish,
    ) -> Result<Held> {
        let mut answers = self
            .finish_many_in(tx, op, &[(job.clone(), finish)])
            .await?;
        answers.pop().unwrap_or(Err(Error::Halt))
    }

    /// Ends several runs in one transaction. Each has its own answer: one that is lost does not
    /// keep the others from being finished.
    pub async fn finish_many(&self, jobs: &[(Job, Finish)]) -> Result<Vec<Result<Held>>> {
        let op = self.op();
        (self.store())
            .transact("finish", |tx| async move {
                self.finish_many_in(&tx, &op, jobs).await
            })
            .await
    }

    /// [`Self::finish_many`] in the caller's transaction.
    pub async fn finish_many_in(
        &self,
        tx: &Transaction,
        op: &Op,
        jobs: &[(Job, Finish)],
    ) -> Result<Vec<Result<Held>>> {
        for (_, finish) in jobs {
            check_data(finish.data.as_ref())?;
        }
        let read = jobs.iter().map(|(job, _)| async move {
            let header = self.header(tx, &job.ty, &job.id).await?;
            Ok::<_, Error>(((&job.ty, &job.id), header))
        });
        let mut headers: BTreeMap<(&JobType, &JobId), Option<Arc<Header>>> =
            try_join_all(read).await?.into_iter().collect();
        let mut effects = self.effects(tx, op.now_ms).await?;
        let mut answers = Vec::with_capacity(jobs.len());
        for (job, finish) in jobs {
            let header = headers.entry((&job.ty, &job.id)).or_default();
            let event = Event::Finish {
                lock: job.lock,
                finish: finish.clone(),
                repeated: tx.maybe_committed() && self.has_ended(tx, job).await?,
            };
            let there = header.is_some();
            answers.push(match effects.run(&job.ty, &job.id, header, event) {
                Ok(reply) => {
                    if reply != Reply::Repeated {
                        effects.forget(job);
                    }
                    if there && header.is_none() {
                        self.deleted().add(job.lock);
                    }
                    Ok(held(reply, header.as_deref(), job.lock))
                }
                Err(Error::Halt) => Err(Error::Halt),
                Err(error) => return Err(error),
            });
        }
        effects.flush(op).await?;
        Ok(answers)
    }

    /// True when this very call was done before. By a snapshot read: what an earlier try has done or
    /// not stays so, and the header is the fence.
    async fn was_called(&self, tx: &Transaction, job: &Job, op: &Op) -> Result<bool> {
        let key = self.keys().call(job, op.id(0));
        match tx.snapshot().get(&key).await {
            Ok(row) => Ok(row.is_some()),
            // This transaction has written it: it cannot read the stamp, and was not committed
            // before, or it would not have written it again.
            Err(store::Error::Misuse(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// True when the run of this lock is in the history, ended. That stays so: a snapshot read. A job
    /// that was deleted when it finished has no history: then this process remembers that it tried to.
    async fn has_ended(&self, tx: &Transaction, job: &Job) -> Result<bool> {
        if self.deleted().contains(job.lock) {
            return Ok(true);
        }
        let key = self.keys().attempt(&job.ty, &job.id, job.attempt);
        let Some(row) = tx.snapshot().get(&key).await? else {
            return Ok(false);
        };
        let attempt = Attempt::decode(row)?;
        Ok(attempt.lock == job.lock && attempt.end.is_some_and(|end| end.outcome.by_holder()))
    }
}

fn held(reply: Reply, header: Option<&Header>, lock: JobLock) -> Held {
    let again = match (reply, header) {
        (Reply::Done { again }, _) => again,
        (_, Some(header)) => match header.state() {
            State::Running if header.lock() == Some(lock) => header.next.is_some(),
            state => !state.is_over(),
        },
        (_, None) => false,
    };
    Held {
        again,
        repeated: reply == Reply::Repeated,
    }
}

impl JobLock {
    /// Locks of one call, one for each job that it may accept; 0 is no acceptor.
    pub(crate) fn draw(entropy: &crate::Entropy, count: usize, acceptor: u64) -> Vec<Self> {
        let random = || entropy.bits() & !u128::from(u64::MAX);
        (0..count.min(CLAIM_JOBS_MAX))
            .map(|_| Self::from_bits(random() | u128::from(acceptor)))
            .collect()
    }
}
