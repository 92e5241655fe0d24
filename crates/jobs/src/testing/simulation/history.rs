//! The history, as observed from outside.
//!
//! Every transaction of an actor writes its own row into a [log] next to the queue's rows. Reads are
//! ordered by their version.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use store::Transaction;
use tokio::time::Instant;

use crate::model::header::Header;
use crate::testing::log;
use crate::testing::rules::{self, Ask, Ended, Told, token_of};
use crate::{
    Accepted, Added, Error, Finish, Job, JobId, JobLock, JobType, Jobs, Limit, Notice, Result,
    State, Verdict,
};

/// The prefix of the rows.
pub(super) const LOG: &[u8] = b"simulation/";

/// Identifies a call of an actor.
pub(super) type CallId = usize;

#[derive(Debug)]
pub(super) struct History {
    start: Instant,
    inner: Mutex<Record>,
}

/// Everything observed.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) calls: Vec<Called>,
    /// The effects of transaction attempts, if committed.
    pub(super) entries: Vec<Entry>,
    /// Reads by version.
    pub(super) seen: Vec<(u64, Entry)>,
    pub(super) delivered: Vec<Delivered>,
    /// Runs that an acceptor was asked to end.
    pub(super) handed_back: BTreeMap<JobLock, HandedBack>,
    pub(super) followed: Vec<Followed>,
    /// What limits were set to, in order.
    pub(super) settings: Vec<Setting>,
    pub(super) problems: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Called {
    pub(super) name: &'static str,
    #[allow(dead_code, reason = "shown in reports")]
    pub(super) node: usize,
    /// An attempt was told that an earlier one may have been committed.
    pub(super) unsure: bool,
    /// The answer; `None` if the caller stopped before it.
    pub(super) answer: Option<Answer>,
}

/// The answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// Done, by this attempt or an earlier one.
    Done,
    /// There was nothing to do.
    Nothing,
    Halt,
    NotFound,
    /// The outcome is unknown.
    Unknown,
    /// It was not done.
    Failed,
}

/// An effect on a job, or an observation of it.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) call: Option<CallId>,
    pub(super) at: Duration,
    pub(super) ty: usize,
    pub(super) id: JobId,
    /// The state before the transaction; `None` for further effects in the same transaction.
    pub(super) before: Option<Glimpse>,
    pub(super) what: What,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    Ask(Ask, Added),
    /// A signal, and when it arrived by its caller's clock.
    Signal(Ask, i64, Added),
    Remove,
    Accept,
    Beat {
        lock: JobLock,
        data: Option<u64>,
        again: bool,
    },
    RunAgain {
        lock: JobLock,
        due_ms: i64,
        data: Option<u64>,
    },
    Finish {
        lock: JobLock,
        end: Ended,
        again: bool,
    },
    Stall(Verdict),
    /// Only an observation.
    Look,
    /// This lock was rejected.
    Halt(JobLock),
}

/// The data of a job; `None` if it is not from an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token(pub(super) Option<u64>);

impl Token {
    pub(super) fn of(data: &Bytes) -> Self {
        Self(token_of(data))
    }
}

/// The state of a job at one version.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Glimpse {
    /// `None` if the job does not exist.
    pub(super) state: Option<State>,
    pub(super) attempts: u32,
    /// The lock of the last run.
    pub(super) lock: Option<JobLock>,
    pub(super) due_ms: i64,
    /// Its data, if stored in the header.
    pub(super) data: Option<Token>,
}

/// Jobs that a worker got.
#[derive(Debug)]
pub(super) struct Delivered {
    pub(super) node: usize,
    pub(super) ty: usize,
    pub(super) accepted: Accepted,
}

/// A worker's request to an acceptor to end a run.
#[derive(Debug)]
pub(super) struct HandedBack {
    pub(super) ty: usize,
    pub(super) job: Job,
    pub(super) at: Duration,
    pub(super) finish: Finish,
    /// When the worker was told that it was done.
    pub(super) done_at: Option<Duration>,
}

/// A change of a limit.
#[derive(Debug)]
pub(super) struct Setting {
    /// The first version at which it applies, and the one by which waiting jobs have slots that it adds.
    pub(super) from: u64,
    pub(super) served: u64,
    pub(super) ty: usize,
    pub(super) name: &'static str,
    /// `None` if the setting is removed.
    pub(super) limit: Option<Limit>,
}

/// What one subscriber was told.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) node: usize,
    pub(super) ty: usize,
    pub(super) id: JobId,
    pub(super) told: Vec<Told>,
    /// Whether it still listens.
    pub(super) open: bool,
}

impl Record {
    /// Everything known about a job.
    pub(super) fn story(&self, key: &(usize, JobId), committed: &[(u64, usize)]) -> Vec<String> {
        let of_key = |entry: &Entry| (entry.ty, &entry.id) == (key.0, &key.1);
        let done = committed
            .iter()
            .map(|(version, number)| (version, &self.entries[*number]));
        let done = done.filter(|(_, entry)| of_key(entry));
        let seen = self.seen.iter().map(|(version, entry)| (version, entry));
        let seen = seen.filter(|(_, entry)| of_key(entry));
        let mut story: Vec<_> = (done
            .map(|(version, entry)| (*version, format!("did  {entry:?}"))))
        .chain(seen.map(|(version, entry)| (*version, format!("saw  {entry:?}"))))
        .collect();
        story.sort_by_key(|(version, _)| *version);
        let mut story: Vec<_> = (story.into_iter())
            .map(|(version, entry)| format!("{version:>7} {entry}"))
            .collect();
        let mine = |ty, id: &JobId| (ty, id) == (key.0, &key.1);
        let delivered = self.delivered.iter();
        story.extend(
            (delivered.filter(|got| mine(got.ty, &got.accepted.job.id)))
                .map(|got| format!("{got:?}")),
        );
        let followed = self.followed.iter();
        story.extend(
            (followed.filter(|followed| mine(followed.ty, &followed.id)))
                .map(|followed| format!("{followed:?}")),
        );
        story
    }
}

impl History {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            inner: Mutex::default(),
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn record(&self) -> MutexGuard<'_, Record> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a violation.
    pub(super) fn problem(&self, problem: impl Into<String>) {
        let at = self.now();
        let problem = format!("{:>9.3} s: {}", at.as_secs_f64(), problem.into());
        self.record().problems.push(problem);
    }

    pub(super) fn has_problems(&self) -> bool {
        !self.record().problems.is_empty()
    }

    /// Records the start of a call.
    pub(super) fn call(&self, name: &'static str, node: usize) -> CallId {
        let mut record = self.record();
        record.calls.push(Called {
            name,
            node,
            unsure: false,
            answer: None,
        });
        record.calls.len() - 1
    }

    /// Records an attempt of a call.
    pub(super) fn attempt(&self, call: CallId, tx: &Transaction) {
        self.record().calls[call].unsure |= tx.maybe_committed();
    }

    /// Records the end of a call. `did` tells whether the result means that it had an effect.
    pub(super) fn end<T>(&self, call: CallId, result: &Result<T>, did: impl FnOnce(&T) -> bool) {
        let answer = match result {
            Ok(value) if did(value) => Answer::Done,
            Ok(_) => Answer::Nothing,
            Err(Error::Halt) => Answer::Halt,
            Err(Error::NotFound) => Answer::NotFound,
            Err(Error::Store(store::Error::MaybeCommitted)) => Answer::Unknown,
            Err(_) => Answer::Failed,
        };
        if let Err(Error::Store(error @ (store::Error::Corrupt { .. } | store::Error::Misuse(_)))) =
            result
        {
            self.problem(format!("a call failed: {error}"));
        }
        self.record().calls[call].answer = Some(answer);
    }

    /// Records an effect, valid if the transaction is committed.
    pub(super) fn done(&self, tx: &Transaction, entry: Entry) {
        let mut record = self.record();
        record.entries.push(entry);
        let number = record.entries.len() as u64 - 1;
        log::mark(tx, LOG, number);
    }

    /// Records a read.
    pub(super) fn saw(&self, version: u64, entry: Entry) {
        self.record().seen.push((version, entry));
    }

    pub(super) fn delivered(&self, node: usize, ty: usize, accepted: &Accepted) {
        self.record().delivered.push(Delivered {
            node,
            ty,
            accepted: accepted.clone(),
        });
    }

    pub(super) fn hands_back(&self, ty: usize, job: &Job, finish: &Finish) {
        let handed_back = HandedBack {
            ty,
            job: job.clone(),
            at: self.now(),
            finish: finish.clone(),
            done_at: None,
        };
        (self.record().handed_back).insert(job.lock, handed_back);
    }

    pub(super) fn handed_back(&self, lock: JobLock) {
        let now = self.now();
        if let Some(handed_back) = self.record().handed_back.get_mut(&lock) {
            handed_back.done_at = Some(now);
        }
    }

    pub(super) fn follow(&self, node: usize, ty: usize, id: &JobId, now: &Notice) -> usize {
        let mut record = self.record();
        record.followed.push(Followed {
            node,
            ty,
            id: id.clone(),
            told: vec![told(now)],
            open: true,
        });
        record.followed.len() - 1
    }

    pub(super) fn told(&self, follower: usize, notice: &Notice) {
        self.record().followed[follower].told.push(told(notice));
    }

    pub(super) fn unfollow(&self, follower: usize) {
        self.record().followed[follower].open = false;
    }

    /// A digest that differs between different runs.
    pub(super) fn digest(&self, committed: &[(u64, usize)]) -> u64 {
        let record = self.record();
        let mut hasher = DefaultHasher::new();
        for (version, entry) in committed {
            (version, format!("{:?}", record.entries[*entry])).hash(&mut hasher);
        }
        for (version, entry) in &record.seen {
            (version, format!("{entry:?}")).hash(&mut hasher);
        }
        format!("{:?} {:?}", record.calls, record.followed).hash(&mut hasher);
        for delivered in &record.delivered {
            (delivered.node, delivered.accepted.job.lock.bits()).hash(&mut hasher);
        }
        hasher.finish()
    }
}

impl Glimpse {
    pub(super) fn of(header: Option<&Header>) -> Self {
        let Some(header) = header else {
            return Self::default();
        };
        Self {
            state: Some(header.state()),
            attempts: header.attempts,
            lock: header.last.as_ref().map(|last| last.lock),
            due_ms: header.due_ms,
            data: header.data.bytes.as_ref().map(Token::of),
        }
    }

    /// How this differs from the predicted job.
    pub(super) fn differs(&self, job: &rules::Job) -> Option<String> {
        let (is, should) = (self.state, job.state);
        if is != should {
            return Some(format!("is {is:?} and should be {should:?}"));
        }
        should?;
        let (is, should) = (self.attempts, job.attempts);
        if is != should {
            return Some(format!(
                "has been run {is} times and should have been {should}"
            ));
        }
        let (is, should) = (self.due_ms, job.due_ms);
        if should.is_some_and(|should| is != should) {
            return Some(format!("is due {is} and should be {should:?}"));
        }
        match self.data {
            Some(Token(data)) if data != job.data => {
                Some(format!("has data {data:?} and should have {:?}", job.data))
            }
            _ => None,
        }
    }

    /// Reads the state of a job without a conflict.
    pub(super) async fn take(
        jobs: &Jobs,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
    ) -> Result<Self> {
        let value = tx.snapshot().get(&jobs.keys().job(ty, id)).await?;
        let header = value.map(Header::decode).transpose()?;
        Ok(Self::of(header.as_ref()))
    }
}

fn told(notice: &Notice) -> Told {
    match notice {
        Notice::Job(info, data) => Told::Job {
            state: info.state,
            attempts: info.attempts,
            data: token_of(data),
        },
        Notice::Removed => Told::Removed,
        Notice::TypeCleared | Notice::Stopped => Told::End,
    }
}
