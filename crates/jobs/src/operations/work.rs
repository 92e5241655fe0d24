//! Operations of a job's holder: heartbeats, progress, finishing, running again.
//!
//! Each reads the job's header, so that it conflicts with any transaction that takes the job away, and
//! returns [`Error::Halt`] when the lock is outdated. A holder that calls one in the transaction of its
//! own writes gets them exactly once, if it omits them when the answer is `repeated`: then an earlier
//! try of this transaction was committed, although the store could not tell. Several calls on one job
//! in one transaction share an [`Op`], by which all are recognised. Calls in different transactions may
//! overlap.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::future::try_join;
use store::{Transaction, read_all};

use crate::model::header::{Header, check_data};
use crate::model::keys::Position;
use crate::model::machine::{Event, Finish, Held, Reply, Slots};
use crate::operations::limits::slots::Admission;
use crate::operations::tenants::settle::Charges;
use crate::{Attempt, Error, Job, JobId, JobLock, JobType, Jobs, Op, Result, State};

/// Maximum jobs per claim.
pub(crate) const CLAIM_JOBS_MAX: usize = 500;

impl Jobs {
    /// A heartbeat, with new data if given. Send one at least every third of the type's timeout.
    /// Returns whether another run was requested.
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

    /// A heartbeat by a call after which the holder continues.
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
        let beat = (self.charged_beat(tx, &job.ty, &job.id, header.as_deref())).await?;
        let mut effects = self.effects(tx, op.now_ms).await?;
        let reply = effects.run(&job.ty, &job.id, &mut header, event(data, repeated))?;
        if reply != Reply::Repeated {
            let charged = effects.charge(&job.ty, header.as_deref(), beat.as_ref());
            effects.beat(&job.ty, &job.id, timeout, charged);
            job.run.promise(timeout, tx.commit_stamp());
            effects.remember(job, op.id(0));
        }
        effects.flush(op).await?;
        let held = held(reply, header.as_deref(), job.lock);
        self.heartbeats().update(job.lock, held, tx.commit_stamp());
        Ok(held)
    }

    /// [`Self::update`] in the caller's transaction, by a holder in another process that knows only its lock. Not
    /// recognised when it is retried: it writes the same again. So it leaves no trace to clean up.
    pub async fn beat_with_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &Job,
        data: Option<Bytes>,
    ) -> Result<Held> {
        check_data(data.as_ref())?;
        if data.is_none() {
            return self.keep_in(tx, op, job).await;
        }
        let read = (
            self.header(tx, &job.ty, &job.id),
            self.timeout_in(tx, &job.ty),
        );
        let (mut header, timeout) = try_join(read.0, read.1).await?;
        let event = Event::Update {
            lock: job.lock,
            data,
            repeated: false,
        };
        let beat = (self.charged_beat(tx, &job.ty, &job.id, header.as_deref())).await?;
        let mut effects = self.effects(tx, op.now_ms).await?;
        let reply = effects.run(&job.ty, &job.id, &mut header, event)?;
        let charged = effects.charge(&job.ty, header.as_deref(), beat.as_ref());
        effects.beat(&job.ty, &job.id, timeout, charged);
        job.run.promise(timeout, tx.commit_stamp());
        effects.flush(op).await?;
        Ok(held(reply, header.as_deref(), job.lock))
    }

    /// A heartbeat without other writes, which no retry needs to recognise. The row it writes is also
    /// its fence: taking the job away clears it. So writes to only the header, for another run or a
    /// subscriber, do not conflict.
    pub(crate) async fn keep_in(&self, tx: &Transaction, op: &Op, job: &Job) -> Result<Held> {
        let (held, charges) = self.keep_uncharged_in(tx, op, job).await?;
        self.charge_all(tx, charges).await?;
        Ok(held)
    }

    /// [`Self::keep_in`]; the caller charges the job's tenant.
    pub(crate) async fn keep_uncharged_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &Job,
    ) -> Result<(Held, Charges)> {
        let key = self.keys().index(&job.ty, &job.id, &Position::Active);
        let row = self.keys().job(&job.ty, &job.id);
        let snapshot = tx.snapshot();
        let (snapshot_read, fence) = (snapshot.get(&row), tx.get(&key));
        let read = async { Ok(try_join(snapshot_read, fence).await?) };
        let ((header, beat), timeout) = try_join(read, self.timeout_in(tx, &job.ty)).await?;
        let mut header = header.map(Header::decode).transpose()?.map(Arc::new);
        let event = Event::Update {
            lock: job.lock,
            data: None,
            repeated: false,
        };
        let mut effects = self.effects(tx, op.now_ms).await?;
        let reply = effects.run(&job.ty, &job.id, &mut header, event)?;
        let charged = effects.charge(&job.ty, header.as_deref(), beat.as_ref());
        effects.beat(&job.ty, &job.id, timeout, charged);
        job.run.promise(timeout, tx.commit_stamp());
        let mut charges = effects.sharers.take_charges();
        if job.run.idle.load(Ordering::Relaxed) {
            charges.clear();
        }
        effects.flush(op).await?;
        Ok((held(reply, header.as_deref(), job.lock), charges))
    }

    /// Requests another run after this one, at a time; also a heartbeat. Unlike
    /// [`resubmit`](Self::resubmit), only for the holder.
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

    /// [`Self::run_again_in`] as its own transaction.
    pub async fn run_again(&self, job: &Job, due_ms: i64, data: Option<Bytes>) -> Result<Held> {
        let (op, data) = (self.op(), data.as_ref());
        (self.store())
            .transact("run_again", |tx| async move {
                self.run_again_in(&tx, &op, job, due_ms, data.cloned())
                    .await
            })
            .await
    }

    /// Gives the slots of a job's limits to others, while its holder keeps it without using what they limit. Before it
    /// does so again, it [takes slots](Self::retake_limits). Also a heartbeat.
    pub async fn release_limits(&self, job: &Job) -> Result<Held> {
        let op = self.op();
        (self.store())
            .transact("update", |tx| async move {
                self.set_slots_in(&tx, &op, job, Slots::default()).await
            })
            .await
    }

    /// Takes slots of a job's limits again after [`Self::release_limits`]. Returns false if there are none: then the
    /// holder may end the run with [`Finish::again`], so that the job waits for its turn. Also a heartbeat.
    pub async fn retake_limits(&self, job: &Job) -> Result<bool> {
        let op = self.op();
        (self.store())
            .transact("update", |tx| async move {
                let header = self.header(&tx, &job.ty, &job.id).await?;
                let header = header.filter(|header| header.lock() == Some(job.lock));
                let header = header.ok_or(Error::Halt)?;
                if tx.maybe_committed() && self.was_called(&tx, job, &op).await? {
                    // The start of a rate is spent.
                    return Ok(true);
                }
                let limited = std::iter::once(&header);
                let mut supplies = self.supplies(&tx, &op, &job.ty, limited, None).await?;
                let Admission::Start(slots) = supplies.admit(&header) else {
                    return Ok(false);
                };
                let _held = self.set_slots_in(&tx, &op, job, slots).await?;
                Ok(true)
            })
            .await
    }

    async fn set_slots_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &Job,
        slots: Slots,
    ) -> Result<Held> {
        let event = |_, repeated| Event::Slots {
            lock: job.lock,
            slots,
            repeated,
        };
        self.hold_in(tx, op, job, None, event).await
    }

    /// Ends the run of a job. Repeating it with the same lock is no error.
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

    /// Ends several runs in one transaction. Each has its own answer: a lost job does not affect the
    /// others.
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
        let (answers, _) = self.finish_and_wake_in(tx, op, jobs).await?;
        Ok(answers)
    }

    /// Also returns how many sleepers are woken for what is ready then.
    pub(crate) async fn finish_and_wake_in(
        &self,
        tx: &Transaction,
        op: &Op,
        jobs: &[(Job, Finish)],
    ) -> Result<(Vec<Result<Held>>, usize)> {
        for (_, finish) in jobs {
            check_data(finish.data.as_ref())?;
        }
        let read = jobs.iter().map(|(job, _)| async move {
            let header = self.header(tx, &job.ty, &job.id).await?;
            Ok::<_, Error>(((&job.ty, &job.id), header))
        });
        let limits = self.expected_ends(tx, jobs.iter().map(|(job, _)| job));
        let (headers, limits) = try_join(read_all(read), limits).await?;
        let mut headers: BTreeMap<(&JobType, &JobId), Option<Arc<Header>>> =
            headers.into_iter().collect();
        let mut effects = self.effects(tx, op.now_ms).await?;
        effects.limits = limits;
        let mut answers = Vec::with_capacity(jobs.len());
        for (job, finish) in jobs {
            let header = headers.entry((&job.ty, &job.id)).or_default();
            let event = Event::Finish {
                lock: job.lock,
                finish: finish.clone(),
                repeated: tx.maybe_committed()
                    && self.has_ended_in(tx, job, header.as_deref()).await?,
            };
            let born = header.as_ref().map(|header| header.born);
            answers.push(match effects.run(&job.ty, &job.id, header, event) {
                Ok(reply) => {
                    if reply != Reply::Repeated {
                        effects.forget(job);
                    }
                    if let (Some(born), None) = (born, &header) {
                        self.deleted().add(job.lock, born);
                    }
                    Ok(held(reply, header.as_deref(), job.lock))
                }
                Err(Error::Halt) => Err(Error::Halt),
                Err(error) => return Err(error),
            });
        }
        let woken = effects.flush(op).await?;
        Ok((answers, woken))
    }

    /// Whether the holder has ended this run, as far as the history goes back: an outdated lock may be that of a holder
    /// that repeats its request.
    pub async fn has_ended(&self, job: &Job) -> Result<bool> {
        self.read("has_ended", |tx| async move {
            let header = self.header(&tx, &job.ty, &job.id).await?;
            let header = header.as_deref();
            let last = header.is_some_and(|header| header.was_ended_by(job.lock));
            Ok(last || self.has_ended_in(&tx, job, header).await?)
        })
        .await
    }

    /// Whether an earlier try of this call was committed. By a snapshot read: the outcome of an earlier
    /// try no longer changes, and the header is the fence.
    async fn was_called(&self, tx: &Transaction, job: &Job, op: &Op) -> Result<bool> {
        let key = self.keys().call(job, op.id(0));
        match tx.snapshot().get(&key).await {
            Ok(row) => Ok(row.is_some()),
            // Written by this transaction: the stamp cannot be read, and it was not committed before,
            // or it would not have been written again.
            Err(store::Error::Misuse(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the history has this lock's run as ended. That never changes, so by a snapshot read. A
    /// job deleted when it finished has no history: this process remembers it instead.
    async fn has_ended_in(
        &self,
        tx: &Transaction,
        job: &Job,
        now: Option<&Header>,
    ) -> Result<bool> {
        if self.deleted().contains(job, now) {
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
    /// Locks of one call, one per job that it may claim; 0 is no acceptor.
    pub(crate) fn draw(entropy: &crate::Entropy, count: usize, acceptor: u64) -> Vec<Self> {
        let random = || entropy.bits() & !u128::from(u64::MAX);
        (0..count.min(CLAIM_JOBS_MAX))
            .map(|_| Self::from_bits(random() | u128::from(acceptor)))
            .collect()
    }
}
