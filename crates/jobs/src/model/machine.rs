//! The state machine: (old header, event) → (new header, what else is to be written, reply).
//!
//! Every operation and every sweeper goes through [`step`]. It reads nothing and writes nothing;
//! index rows and counters follow from the old and the new header, see [`crate::model::effects`].

mod creator;
mod holder;
mod moves;
mod silence;

use std::sync::Arc;

use bytes::Bytes;

use crate::model::header::{Header, Order};
use crate::model::types::StallPolicy;
use crate::testing::planted::Planted;
use crate::{Attempt, Error, Holder, JobLock, Lane, Result, State};

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
        /// The heart-beat of this very call is already there.
        repeated: bool,
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
    pub(crate) lane: Option<Lane>,
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
        } => creator::ask(old, op, due_ms, data, same, create, cx),
        Event::Remove => {
            let old = old.ok_or(Error::NotFound)?;
            Ok(Step::delete(old))
        }
        Event::Accept { lock, holder } => holder::accept(old, lock, holder, cx),
        Event::Update {
            lock,
            data,
            repeated,
        } => holder::update(old, lock, data, repeated, cx),
        Event::Resubmit {
            lock,
            due_ms,
            data,
            repeated,
        } => holder::resubmit(old, lock, due_ms, data, repeated, cx),
        Event::Finish {
            lock,
            data,
            how,
            reason,
            repeated,
        } => holder::finish(old, lock, data, how, reason, repeated, cx),
        Event::Stall { verdict, policy } => silence::stall(old, verdict, policy, cx),
        Event::Expire => match old {
            Some(old) if old.state() == State::Finished => Ok(Step::delete(old)),
            _ => Ok(Step::nothing(Reply::Unchanged)),
        },
        Event::Watch { nonce } => watch(old, nonce),
    }
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
