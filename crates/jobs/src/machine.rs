//! The state machine: (old header, event) → (new header, what else is to be written, reply).
//!
//! Every operation and every sweeper goes through [`step`]. It reads nothing and writes nothing;
//! index rows and counters follow from the old and the new header, see [`crate::effects`].

use std::sync::Arc;

use bytes::Bytes;

use crate::header::{Blob, End, Header, Next, Order, Place, shorten};
use crate::planted::{Bug, Planted};
use crate::types::StallPolicy;
use crate::{Attempt, Error, Holder, JobLock, Outcome, Result, State};

/// What an operation knows beside the job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context {
    pub(crate) now_ms: i64,
    /// The place of a job that becomes ready now.
    pub(crate) order: Order,
    /// An earlier attempt of the transaction may have been committed.
    pub(crate) maybe_committed: bool,
    pub(crate) planted: Planted,
}

/// What is asked of a job.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A creator wants a run.
    Ask {
        op: u64,
        /// `None` keeps the time.
        due_ms: Option<i64>,
        /// `None` keeps the data.
        data: Option<Bytes>,
        /// The data is what the next run gets anyway.
        same: bool,
        /// How to make the job if there is none; `None` refuses.
        create: Option<Create>,
    },
    Remove,
    Accept {
        lock: JobLock,
        holder: Holder,
    },
    Update {
        lock: JobLock,
        data: Option<Bytes>,
        /// The heart-beat of this very call is already there.
        repeated: bool,
    },
    /// The holder wants another run.
    Resubmit {
        lock: JobLock,
        due_ms: i64,
        data: Option<Bytes>,
    },
    Finish {
        lock: JobLock,
        data: Option<Bytes>,
        how: How,
        reason: Option<String>,
        /// The history has the end of this very run.
        repeated: bool,
    },
    /// The holder went silent.
    Stall {
        verdict: Verdict,
        policy: StallPolicy,
    },
    Expire,
    /// A notifier wants to be told of the next change.
    Watch {
        nonce: u64,
    },
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Create {
    pub(crate) retention_ms: Option<u64>,
}

/// How a holder ends its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Done,
    Failed,
    Again { due_ms: i64 },
}

/// What becomes of a job whose holder went silent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// What the type's [`StallPolicy`] says.
    Policy,
    /// It is run again.
    Rerun {
        /// When; `None` as the policy says, but never given up.
        due_ms: Option<i64>,
        /// With which data; `None` as it was.
        data: Option<Bytes>,
    },
    /// It is finished as given up.
    GiveUp {
        /// The data it is left with; `None` as it was.
        data: Option<Bytes>,
        /// Why.
        reason: String,
    },
}

/// What an event does.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) change: Change,
    /// An attempt that leaves the header for the history.
    pub(crate) spill: Option<Attempt>,
    /// Notifiers to be told.
    pub(crate) tell: Vec<u64>,
    pub(crate) reply: Reply,
}

#[derive(Debug)]
pub(crate) enum Change {
    None,
    Put(Arc<Header>),
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    Created,
    Replaced,
    /// Delivered at the next run.
    Deferred,
    /// A finished job is pending again.
    Revived,
    Unchanged,
    /// This very call was done before.
    Repeated,
    /// Done, and this is where the job stands: whether another run is asked for.
    Done {
        again: bool,
    },
}

/// What `event` does to a job.
pub(crate) fn step(old: Option<&Header>, event: Event, cx: &Context) -> Result<Step> {
    match event {
        Event::Ask {
            op,
            due_ms,
            data,
            same,
            create,
        } => ask(old, op, due_ms, data, same, create, cx),
        Event::Remove => {
            let old = old.ok_or(Error::NotFound)?;
            Ok(Step::delete(old))
        }
        Event::Accept { lock, holder } => accept(old, lock, holder, cx),
        Event::Update {
            lock,
            data,
            repeated,
        } => update(old, lock, data, repeated, cx),
        Event::Resubmit { lock, due_ms, data } => resubmit(old, lock, due_ms, data, cx),
        Event::Finish {
            lock,
            data,
            how,
            reason,
            repeated,
        } => finish(old, lock, data, how, reason, repeated, cx),
        Event::Stall { verdict, policy } => stall(old, verdict, policy, cx),
        Event::Expire => match old {
            Some(old) if old.state() == State::Finished => Ok(Step::delete(old)),
            _ => Ok(Step::nothing(Reply::Unchanged)),
        },
        Event::Watch { nonce } => watch(old, nonce),
    }
}

fn ask(
    old: Option<&Header>,
    op: u64,
    due_ms: Option<i64>,
    data: Option<Bytes>,
    same: bool,
    create: Option<Create>,
    cx: &Context,
) -> Result<Step> {
    // There is no time before "as soon as possible".
    let mut due_ms = due_ms.map(|due_ms| due_ms.max(0));
    if due_ms.is_none() && cx.planted.is(Bug::ResubmitFarFuture) {
        due_ms = Some(1 << 46);
    }
    let Some(old) = old else {
        let create = create.ok_or(Error::NotFound)?;
        return Ok(created(op, due_ms, data, create, cx));
    };
    if old.ops.contains(&op) && !cx.planted.is(Bug::AddNotIdempotent) {
        return Ok(Step::nothing(Reply::Repeated));
    }
    let mut new = old.clone();
    if let Some(create) = create {
        new.retention_ms = create.retention_ms;
    }
    let reply = match old.state() {
        State::Pending => {
            let same_time = due_ms.is_none_or(|due_ms| due_ms == old.due_ms);
            if same_time && (data.is_none() || same) && new == *old {
                return Ok(Step::nothing(Reply::Unchanged));
            }
            new.stalls = 0;
            new.be_pending(due_ms.unwrap_or(old.due_ms), cx);
            Reply::Replaced
        }
        State::Running => {
            let next = old.next.as_ref();
            let due_ms = due_ms
                .or(next.map(|next| next.due_ms))
                .unwrap_or(old.due_ms);
            if next.is_some_and(|next| next.by_creator && next.due_ms == due_ms)
                && (data.is_none() || same)
                && new == *old
            {
                return Ok(Step::nothing(Reply::Unchanged));
            }
            let kept = next.and_then(|next| next.data.clone());
            let data = data.filter(|_| !cx.planted.is(Bug::ReAddDropsData));
            new.next = Some(Next {
                due_ms,
                data: data.map(|data| new.blob(data)).or(kept),
                by_creator: true,
            });
            new.remember(op);
            return Ok(Step::put(new, Reply::Deferred));
        }
        State::Finished => {
            new.stalls = 0;
            let due_ms = due_ms.unwrap_or(old.due_ms);
            new.be_pending(due_ms, cx);
            Reply::Revived
        }
    };
    if let Some(data) = data.filter(|_| !same) {
        new.data = new.blob(data);
    } else if cx.planted.is(Bug::ResubmitLosesData) && !same {
        new.data = new.blob(Bytes::new());
    }
    new.remember(op);
    Ok(Step::tell(new, reply))
}

fn created(
    op: u64,
    due_ms: Option<i64>,
    data: Option<Bytes>,
    create: Create,
    cx: &Context,
) -> Step {
    let mut new = Header {
        place: Place::Timed,
        due_ms: i64::MIN,
        created_ms: cx.now_ms,
        born: op,
        attempts: 0,
        stalls: 0,
        retention_ms: create.retention_ms,
        slots: 0,
        data: Blob::new(0, Bytes::new()),
        next: None,
        last: None,
        ops: vec![op],
        watchers: Vec::new(),
    };
    new.data = new.blob(data.unwrap_or_default());
    new.be_pending(due_ms.unwrap_or(0), cx);
    Step::put(new, Reply::Created)
}

fn accept(old: Option<&Header>, lock: JobLock, holder: Holder, cx: &Context) -> Result<Step> {
    let mut new = match old {
        Some(old) if old.state() == State::Pending => old.clone(),
        _ => return Err(Error::NotFound),
    };
    new.attempts += 1;
    new.place = Place::Active;
    let attempt = Attempt {
        number: new.attempts,
        holder,
        started_ms: cx.now_ms,
        end: None,
        lock,
    };
    let spill = new.last.replace(attempt);
    let step = Step::tell(new, Reply::Done { again: false });
    Ok(Step { spill, ..step })
}

fn update(
    old: Option<&Header>,
    lock: JobLock,
    data: Option<Bytes>,
    repeated: bool,
    cx: &Context,
) -> Result<Step> {
    let Some(old) = held(old, lock, cx)? else {
        return Ok(Step::nothing(Reply::Repeated));
    };
    if repeated {
        return Ok(Step::nothing(Reply::Repeated));
    }
    let reply = Reply::Done {
        again: old.next.is_some(),
    };
    match data {
        Some(data) if old.data.bytes.as_ref() != Some(&data) => {
            let mut new = old.clone();
            new.data = new.blob(data);
            Ok(Step::tell(new, reply))
        }
        _ => Ok(Step::nothing(reply)),
    }
}

fn resubmit(
    old: Option<&Header>,
    lock: JobLock,
    due_ms: i64,
    data: Option<Bytes>,
    cx: &Context,
) -> Result<Step> {
    let Some(old) = held(old, lock, cx)? else {
        return Ok(Step::nothing(Reply::Repeated));
    };
    let mut new = old.clone();
    new.ask_again(due_ms, data);
    Ok(Step::put(new, Reply::Done { again: true }))
}

fn finish(
    old: Option<&Header>,
    lock: JobLock,
    data: Option<Bytes>,
    how: How,
    reason: Option<String>,
    repeated: bool,
    cx: &Context,
) -> Result<Step> {
    let held_by = old.and_then(Header::lock);
    let stolen = cx.planted.is(Bug::FinishWithoutLock) && held_by.is_some();
    let old = match old {
        Some(old) if held_by == Some(lock) || stolen => old,
        Some(old) if !cx.planted.is(Bug::FinishNotIdempotent) => {
            return if old.was_ended_by(lock) || repeated {
                Ok(Step::nothing(Reply::Repeated))
            } else {
                Err(Error::Halt)
            };
        }
        _ => return Err(Error::Halt),
    };
    let mut new = old.clone();
    new.stalls = 0;
    let outcome = match how {
        How::Done => Outcome::Done,
        How::Failed => Outcome::Failed,
        How::Again { due_ms } => {
            new.ask_again(due_ms, None);
            Outcome::Again
        }
    };
    new.end_attempt(outcome, reason, cx);
    let next = new.next.take();
    let again = next.is_some();
    match next {
        None => {
            new.replace_data(data);
            new.be_finished(cx);
        }
        Some(next) => {
            match next.data {
                Some(newer) => new.data = newer,
                None => new.replace_data(data),
            }
            new.be_pending(next.due_ms, cx);
        }
    }
    let mut step = Step::tell(new, Reply::Done { again });
    if cx.planted.is(Bug::FinishTellsNobody) {
        step.tell.clear();
    }
    Ok(step)
}

fn stall(
    old: Option<&Header>,
    verdict: Verdict,
    policy: StallPolicy,
    cx: &Context,
) -> Result<Step> {
    let mut new = match old {
        Some(old) if old.state() == State::Running => old.clone(),
        _ => return Err(Error::NotFound),
    };
    let healthy = (new.last.as_ref()).is_some_and(|run| {
        policy.healthy_ms > 0
            && cx.now_ms.saturating_sub(run.started_ms)
                > i64::try_from(policy.healthy_ms).unwrap_or(i64::MAX)
    });
    new.stalls = if healthy { 1 } else { new.stalls + 1 };
    let silent = "its holder went silent".to_owned();
    let next = (new.next.take()).filter(|_| !cx.planted.is(Bug::StallDropsNext));
    if let Some(next) = next {
        new.due_ms = next.due_ms;
        if let Some(newer) = next.data {
            new.stalls = if next.by_creator { 0 } else { new.stalls };
            new.data = newer;
        }
        if next.by_creator {
            // What a creator asked for meanwhile is owed, whatever became of the run before it.
            new.end_attempt(Outcome::Stalled, Some(silent), cx);
            new.be_pending(next.due_ms, cx);
            return Ok(Step::tell(new, Reply::Done { again: true }));
        }
    }
    let backoff = |stalls| match policy.wait_ms(stalls) {
        Some(0) => Some(new.due_ms),
        Some(wait) => Some(
            cx.now_ms
                .saturating_add(i64::try_from(wait).unwrap_or(i64::MAX)),
        ),
        None => None,
    };
    let (due_ms, data, reason) = match verdict {
        Verdict::Policy => (backoff(new.stalls), None, silent),
        Verdict::Rerun { due_ms, data } => {
            let never_given_up = StallPolicy {
                stalls_max: None,
                ..policy
            };
            let wait = never_given_up.wait_ms(new.stalls).unwrap_or(0);
            let wait = i64::try_from(wait).unwrap_or(i64::MAX);
            let due_ms = due_ms.unwrap_or(cx.now_ms.saturating_add(wait));
            (Some(due_ms), data, silent)
        }
        Verdict::GiveUp { data, reason } => (None, data, reason),
    };
    new.replace_data(data);
    let again = due_ms.is_some();
    if let Some(due_ms) = due_ms {
        new.end_attempt(Outcome::Stalled, Some(reason), cx);
        new.be_pending(due_ms.max(0), cx);
    } else {
        new.end_attempt(Outcome::GaveUp, Some(reason), cx);
        new.be_finished(cx);
    }
    Ok(Step::tell(new, Reply::Done { again }))
}

fn watch(old: Option<&Header>, nonce: u64) -> Result<Step> {
    let old = old.ok_or(Error::NotFound)?;
    if old.state() == State::Finished || old.watchers.contains(&nonce) {
        return Ok(Step::nothing(Reply::Unchanged));
    }
    let mut new = old.clone();
    new.watchers.push(nonce);
    Ok(Step::put(new, Reply::Done { again: false }))
}

/// The job, if `lock` holds it; `None` if this very transaction ended the run before; else halt.
fn held<'a>(old: Option<&'a Header>, lock: JobLock, cx: &Context) -> Result<Option<&'a Header>> {
    let old = old.ok_or(Error::Halt)?;
    if old.lock() == Some(lock) {
        return Ok(Some(old));
    }
    if old.was_ended_by(lock) && cx.maybe_committed {
        return Ok(None);
    }
    Err(Error::Halt)
}

impl Header {
    fn be_pending(&mut self, due_ms: i64, cx: &Context) {
        if self.state() == State::Pending && self.due_ms == due_ms {
            return;
        }
        self.due_ms = due_ms;
        self.place = if due_ms == 0 {
            Place::Ready(cx.order)
        } else {
            Place::Timed
        };
    }

    fn be_finished(&mut self, cx: &Context) {
        let kept_ms = self.retention_ms.and_then(|ms| i64::try_from(ms).ok());
        self.place = Place::Finished {
            at_ms: cx.now_ms,
            expires_ms: kept_ms.map_or(i64::MAX, |ms| cx.now_ms.saturating_add(ms)),
        };
    }

    fn end_attempt(&mut self, outcome: Outcome, reason: Option<String>, cx: &Context) {
        if let Some(last) = &mut self.last {
            last.end = Some(End {
                at_ms: cx.now_ms,
                outcome,
                reason: reason.map(shorten),
            });
        }
    }

    fn replace_data(&mut self, data: Option<Bytes>) {
        if let Some(data) = data {
            self.data = self.blob(data);
        }
    }

    /// The holder's wish for another run. A creator's wish is not put off by it, and newer data of
    /// a creator is not replaced.
    fn ask_again(&mut self, due_ms: i64, data: Option<Bytes>) {
        let due_ms = due_ms.max(0);
        let data = data.map(|data| self.blob(data));
        self.next = Some(match self.next.take() {
            Some(next) if next.by_creator => Next {
                due_ms: next.due_ms.min(due_ms),
                data: next.data.or(data),
                by_creator: true,
            },
            before => Next {
                due_ms,
                data: data.or(before.and_then(|next| next.data)),
                by_creator: false,
            },
        });
    }
}

impl Step {
    fn nothing(reply: Reply) -> Self {
        Self {
            change: Change::None,
            spill: None,
            tell: Vec::new(),
            reply,
        }
    }

    /// A change that nobody is told of.
    fn put(new: Header, reply: Reply) -> Self {
        Self {
            change: Change::Put(Arc::new(new)),
            ..Self::nothing(reply)
        }
    }

    /// A change that subscribers are told of, once.
    fn tell(mut new: Header, reply: Reply) -> Self {
        let tell = std::mem::take(&mut new.watchers);
        Self {
            tell,
            ..Self::put(new, reply)
        }
    }

    fn delete(old: &Header) -> Self {
        Self {
            change: Change::Delete,
            tell: old.watchers.clone(),
            ..Self::nothing(Reply::Done { again: false })
        }
    }
}
