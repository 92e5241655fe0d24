//! The state machine: (old header, event) → (new header, other writes, reply).
//!
//! ```text
//!                        creator: Ask (add, resubmit)
//!        ┌───────────────────────────────────────────────────────┐
//!        ▼                                                       │
//!  ┌─────────┐  acceptor: Accept (new lock)  ┌─────────┐         │
//!  │ pending ├──────────────────────────────►│ running │         │
//!  │         │                               │         │         │
//!  │         │◄──────────────────────────────┤         │         │
//!  └─▲──┬────┘  holder: Finish, if a run is  └──┬──────┘   ┌─────┴────┐
//!    │  │       due or `again_ms` is set        │          │ finished │
//!    │  │       monitor: Stall, by its verdict  └─────────►│          │
//!    │  │                          holder: Finish          └────┬─────┘
//!    │  └────────── creator: Remove ◄── (from every state)      │ sweeper: Expire
//!    │                       │                                  │
//!    └── creator: Ask ── no job ◄───────────────────────────────┘
//!        Signal, also from finished
//! ```
//!
//! A dead job is like a finished one that does not expire:
//!
//! ```text
//!  running   holder: Finish, as dead, if no run is due       ► dead
//!            monitor: Stall, given up                        ► dead
//!  dead      creator: Ask                                    ► pending
//! ```
//!
//! Events that do not change the state:
//!
//! ```text
//!  pending   creator: Ask      replaces time and data
//!            Signal            makes it due earlier, except after a failure
//!            acceptor: Hold    waits for slots of its limits
//!            acceptor: Share   waits for the turn of its tenant
//!  running   creator: Ask      requests a run: `next`, where a creator's request overrides the holder's
//!            Signal            requests a run without disturbing this one: `signal_ms`
//!            holder: Update    a heartbeat, and new data if there is any
//!            holder: Resubmit  requests a run: `next`
//!            holder: Slots     gives back the slots of its limits, or takes others
//!  any       notifier: Watch   subscribes to the next change
//! ```
//!
//! Only the holder has to identify itself, by the lock that `Accept` gave it. Another lock is [`Error::Halt`], except
//! that of a run that has ended, whose holder may be retrying.
//!
//! Every operation and every sweep uses [`step`]. It reads and writes nothing: index rows, counters and wake-ups follow
//! from the old and the new header, in `operations/effects.rs`.

mod creator;
mod holder;
mod limits;
mod moves;
mod signal;
mod silence;

use std::sync::Arc;

use bytes::Bytes;

use crate::model::header::{Header, Order};
use crate::model::limits::{Limits, Taken, Which};
use crate::model::run::Interrupt;
use crate::model::types::StallPolicy;
use crate::testing::planted::Planted;
use crate::{Attempt, Class, Error, Holder, JobLock, Lane, Result, State};

/// The inputs of a step besides the job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context {
    pub(crate) now_ms: i64,
    /// The position of a job that becomes ready now.
    pub(crate) order: Order,
    pub(crate) planted: Planted,
}

/// An event on a job.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A creator requests a run.
    Ask {
        op: u64,
        /// `None` keeps the time.
        due_ms: Option<i64>,
        /// `None` keeps the data.
        data: Option<Bytes>,
        /// The next run would get the same data anyway.
        same: bool,
        /// How to create the job if it does not exist; with `None` that is [`Error::NotFound`].
        create: Option<Create>,
    },
    /// Requests a run at a time or earlier.
    Signal {
        due_ms: i64,
        /// How to create the job if it does not exist: operation, data and settings. With `None` it stays absent.
        create: Option<(u64, Bytes, Create)>,
        /// The operation, if the job is to remember it. Without one a repeated signal is a new signal.
        once: Option<u64>,
    },
    Remove,
    Accept {
        lock: JobLock,
        holder: Holder,
        slots: Slots,
    },
    /// A due job waits for the turn of its tenant.
    Share,
    /// A due job needs slots of its limits: it has some of them now, and waits for others.
    Hold {
        taken: Vec<Taken>,
        wait: Wait,
    },
    Update {
        lock: JobLock,
        data: Option<Bytes>,
        /// This call has written its heartbeat before.
        repeated: bool,
    },
    /// The holder requests another run.
    Resubmit {
        lock: JobLock,
        due_ms: i64,
        data: Option<Bytes>,
        /// This call has written its heartbeat before.
        repeated: bool,
    },
    /// The holder gives its slots back and goes on without, or takes slots again.
    Slots {
        lock: JobLock,
        slots: Slots,
        /// This call has written its heartbeat before.
        repeated: bool,
    },
    Finish {
        lock: JobLock,
        finish: Finish,
        /// The history has this run as ended.
        repeated: bool,
    },
    /// The holder went silent.
    Stall {
        verdict: Verdict,
        policy: StallPolicy,
    },
    Expire,
    /// A notifier subscribes to the next change.
    Watch {
        nonce: u64,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Create {
    pub(crate) retention_ms: Option<u64>,
    pub(crate) lane: Option<Lane>,
    pub(crate) class: Class,
    pub(crate) tenant: Option<Bytes>,
    pub(crate) key: Option<Bytes>,
    pub(crate) pool: Option<Bytes>,
    /// Tenants take turns.
    pub(crate) shared: bool,
}

/// The slots for a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    /// Those that it has until it ends.
    pub(crate) taken: Vec<Taken>,
    /// Those of rates, which are free again at a time.
    pub(crate) spent: Vec<(Taken, i64)>,
}

/// What a due job waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing: it has all slots, or the next claim looks for the rest.
    No,
    /// A slot of this limit.
    For(Which),
    /// The time at which its slot of a rate is free.
    Until(i64),
}

/// The reason of runs whose job [went back](Finish::returned).
pub const RETURNED: &str = "no worker waited for it any more";

/// How a run ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finish {
    /// The final data; `None` keeps the data. A creator's newer data wins.
    pub data: Option<Bytes>,
    /// Run the job again at this time instead of finishing it; 0 means as soon as possible.
    pub again_ms: Option<i64>,
    /// The run failed. Recorded in the history; the job is still finished. With `again_ms` the run counts as
    /// unsuccessful, like that of a silent holder.
    pub failed: bool,
    /// The job cannot succeed: keep it as a [dead letter](State::Dead), unless its holder or a creator asked for another run.
    /// Signals are dropped.
    pub dead: bool,
    /// The reason, for the history.
    pub reason: Option<String>,
    /// The limits of the job's next runs; `None` keeps them.
    pub limits: Option<Limits>,
    /// The work of the run did not begin: unsuccessful runs before it still count as in a row.
    pub unused: bool,
}

impl Finish {
    /// The job is finished, with its current data.
    pub fn done() -> Self {
        Self::default()
    }

    /// The job is finished as failed, with this reason.
    pub fn failed(reason: impl Into<String>) -> Self {
        Self {
            failed: true,
            reason: Some(reason.into()),
            ..Self::default()
        }
    }

    /// The job failed for this reason, and is kept as a [dead letter](State::Dead).
    pub fn dead(reason: impl Into<String>) -> Self {
        Self {
            dead: true,
            ..Self::failed(reason)
        }
    }

    /// The job runs again at this time.
    pub fn again(due_ms: i64) -> Self {
        Self {
            again_ms: Some(due_ms),
            ..Self::default()
        }
    }

    /// The job goes back without having been worked on, because its worker is gone. It is due as before.
    pub fn returned(due_ms: i64) -> Self {
        Self {
            reason: Some(RETURNED.to_owned()),
            unused: true,
            ..Self::again(due_ms)
        }
    }

    /// The same end, with data.
    #[must_use]
    pub fn data(self, data: impl Into<Bytes>) -> Self {
        Self {
            data: Some(data.into()),
            ..self
        }
    }
}

/// The answer to a holder.
#[must_use = "leave your own writes out of a transaction that is repeated"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Another run follows: the job is pending if this call ended the run. While it continues, signals do not count.
    pub again: bool,
    /// An earlier try of this transaction was committed, so this one changes nothing.
    pub repeated: bool,
}

/// The decision about a job whose holder went silent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The type's [`StallPolicy`] decides.
    Policy,
    /// The job runs again.
    Rerun {
        /// When; `None` as the policy decides, except that it never gives the job up.
        due_ms: Option<i64>,
        /// The new data; `None` keeps the data.
        data: Option<Bytes>,
    },
    /// The job is [dead](State::Dead), as [given up](crate::Outcome::GaveUp).
    GiveUp {
        /// The final data; `None` keeps the data.
        data: Option<Bytes>,
        /// Why, for the history.
        reason: String,
    },
}

/// The effect of an event on a job, and other writes.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) change: Change,
    /// A run that moves from the header to the history.
    pub(crate) spill: Option<Attempt>,
    /// Notifiers to notify.
    pub(crate) tell: Vec<u64>,
    /// Slots of rates that the run has used, and when they are free again.
    pub(crate) spent: Vec<(Taken, i64)>,
    /// For the job's previous holder, if it had one.
    pub(crate) interrupt: Option<Interrupt>,
    pub(crate) reply: Reply,
}

#[derive(Debug)]
pub(crate) enum Change {
    None,
    Put(Arc<Header>),
    Delete,
    /// Finished, and deleted at the same time.
    FinishAndDelete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    Created,
    Replaced,
    /// Delivered to the next run.
    Deferred,
    /// A finished or dead job is pending again.
    Revived,
    Unchanged,
    /// A signal has nothing to run.
    Ignored,
    /// This call was done before.
    Repeated,
    /// Done; `again` if another run follows.
    Done {
        again: bool,
    },
}

/// Applies `event` to a job.
pub(crate) fn step(old: Option<&Header>, event: Event, cx: &Context) -> Result<Step> {
    match event {
        Event::Ask {
            op,
            due_ms,
            data,
            same,
            create,
        } => creator::ask(old, op, due_ms, data, same, create, cx),
        Event::Signal {
            due_ms,
            create,
            once,
        } => Ok(signal::signal(old, due_ms, create, once, cx)),
        Event::Remove => {
            let old = old.ok_or(Error::NotFound)?;
            Ok(Step {
                interrupt: Some(Interrupt::Lost),
                ..Step::delete(old)
            })
        }
        Event::Accept {
            lock,
            holder,
            slots,
        } => holder::accept(old, lock, holder, slots, cx),
        Event::Share => moves::share(old, cx),
        Event::Hold { taken, wait } => limits::hold(old, taken, wait, cx),
        Event::Update {
            lock,
            data,
            repeated,
        } => holder::update(old, lock, data, repeated),
        Event::Resubmit {
            lock,
            due_ms,
            data,
            repeated,
        } => holder::resubmit(old, lock, due_ms, data, repeated),
        Event::Slots {
            lock,
            slots,
            repeated,
        } => holder::slots(old, lock, slots, repeated),
        Event::Finish {
            lock,
            finish,
            repeated,
        } => holder::finish(old, lock, finish, repeated, cx),
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
    if old.state().is_over() || old.watchers.contains(&nonce) {
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
            spent: Vec::new(),
            interrupt: None,
            reply,
        }
    }

    /// A change without a notification.
    fn put(new: Header, reply: Reply) -> Self {
        Self {
            change: Change::Put(Arc::new(new)),
            ..Self::nothing(reply)
        }
    }

    /// A change that subscribers are notified of once.
    fn tell(mut new: Header, reply: Reply) -> Self {
        let tell = if new.is_fleeting() && !new.state().is_over() {
            // It may end before its notifier subscribes again, so its watchers stay.
            new.watchers.clone()
        } else {
            std::mem::take(&mut new.watchers)
        };
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
