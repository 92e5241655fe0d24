//! Events of acceptors and holders.

use bytes::Bytes;

use super::{Change, Context, Finish, Reply, Slots, Step};
use crate::model::header::{Header, Next, Place};
use crate::model::limits::Limits;
use crate::testing::planted::Bug;
use crate::{Attempt, Error, Holder, JobLock, Outcome, Result, State};

pub(super) fn accept(
    old: Option<&Header>,
    lock: JobLock,
    holder: Holder,
    slots: Slots,
    cx: &Context,
) -> Result<Step> {
    let mut new = match old {
        Some(old) if old.state() == State::Pending => old.clone(),
        _ => return Err(Error::NotFound),
    };
    new.attempts += 1;
    new.cover(new.asked_ms(), cx.now_ms);
    new.clear_asked();
    new.place = Place::Active;
    new.take(slots.taken);
    let attempt = Attempt {
        number: new.attempts,
        holder,
        started_ms: cx.now_ms,
        end: None,
        lock,
    };
    let spill = new.last.replace(attempt);
    let step = Step::tell(new, Reply::Done { again: false });
    Ok(Step {
        spill,
        spent: slots.spent,
        ..step
    })
}

pub(super) fn update(
    old: Option<&Header>,
    lock: JobLock,
    data: Option<Bytes>,
    repeated: bool,
) -> Result<Step> {
    if repeated {
        return Ok(Step::nothing(Reply::Repeated));
    }
    let old = held(old, lock)?;
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

pub(super) fn resubmit(
    old: Option<&Header>,
    lock: JobLock,
    due_ms: i64,
    data: Option<Bytes>,
    repeated: bool,
) -> Result<Step> {
    if repeated {
        return Ok(Step::nothing(Reply::Repeated));
    }
    let mut new = held(old, lock)?.clone();
    new.ask_again(due_ms, data);
    Ok(Step::put(new, Reply::Done { again: true }))
}

pub(super) fn slots(
    old: Option<&Header>,
    lock: JobLock,
    slots: Slots,
    repeated: bool,
) -> Result<Step> {
    if repeated {
        return Ok(Step::nothing(Reply::Repeated));
    }
    let mut new = held(old, lock)?.clone();
    let reply = Reply::Done {
        again: new.next.is_some(),
    };
    new.take(slots.taken);
    Ok(Step {
        spent: slots.spent,
        ..Step::put(new, reply)
    })
}

pub(super) fn finish(
    old: Option<&Header>,
    lock: JobLock,
    finish: Finish,
    repeated: bool,
    cx: &Context,
) -> Result<Step> {
    let held_by = old.and_then(Header::lock);
    let stolen = cx.planted.is(Bug::FinishWithoutLock) && held_by.is_some();
    let old = match old {
        Some(old) if held_by == Some(lock) || stolen => old,
        other => {
            let done = repeated || other.is_some_and(|old| old.was_ended_by(lock));
            return if done && !cx.planted.is(Bug::FinishNotIdempotent) {
                Ok(Step::nothing(Reply::Repeated))
            } else {
                Err(Error::Halt)
            };
        }
    };
    let mut new = old.clone();
    if let Some(Limits { key, pool }) = finish.limits {
        new.limit_by(key.map(|key| key.0), pool.map(|pool| pool.0), cx);
    }
    let back_off = finish.failed && finish.again_ms.is_some();
    let outcome = match finish.again_ms {
        Some(due_ms) => {
            new.ask_again(due_ms, None);
            Outcome::Again
        }
        None if finish.failed || finish.dead => Outcome::Failed,
        None => Outcome::Done,
    };
    if finish.unused {
        new.uncover();
    }
    new.end_attempt(outcome, finish.reason, cx);
    let (signal_ms, next) = (new.take_signal(), new.next.take());
    let signal_ms = signal_ms.filter(|_| !cx.planted.is(Bug::SignalForgotten));
    let dead = finish.dead && next.is_none() && !cx.planted.is(Bug::DeadIsFinished);
    new.stalls = stalls_after(new.stalls, next.as_ref(), back_off || dead, finish.unused);
    let due_ms = match &next {
        None => signal_ms.filter(|_| !dead),
        Some(next) => Some(next.merged(signal_ms, back_off)),
    };
    match due_ms {
        None => {
            if new.is_fleeting() && new.watchers.is_empty() && !dead {
                return Ok(Step {
                    change: Change::FinishAndDelete,
                    ..Step::nothing(Reply::Done { again: false })
                });
            }
            new.replace_data(finish.data);
            if dead {
                new.be_dead(cx);
            } else {
                new.be_finished(cx);
            }
        }
        Some(due_ms) => {
            match next.and_then(|next| next.data) {
                Some(newer) => new.data = newer,
                None => new.replace_data(finish.data),
            }
            new.be_pending(due_ms, cx);
        }
    }
    let again = due_ms.is_some();
    let mut step = Step::tell(new, Reply::Done { again });
    if cx.planted.is(Bug::FinishNotifiesNone) {
        step.tell.clear();
    }
    Ok(step)
}

/// Unsuccessful runs in a row, including the one that ends now.
fn stalls_after(before: u32, next: Option<&Next>, fails: bool, unused: bool) -> u32 {
    match (fails, unused) {
        // No run has failed with the creator's newer data yet.
        _ if next.is_some_and(Next::is_new) => 0,
        (true, _) => before.saturating_add(1),
        (false, true) => before,
        (false, false) => 0,
    }
}

impl Next {
    /// When the next run is due, together with that of signals: they can neither shorten a back-off, nor delay a creator's
    /// run.
    fn merged(&self, signal_ms: Option<i64>, back_off: bool) -> i64 {
        match signal_ms {
            Some(signal_ms) if !back_off => self.due_ms.min(signal_ms),
            Some(signal_ms) if !self.by_creator => self.due_ms.max(signal_ms),
            _ => self.due_ms,
        }
    }
}

/// The job, if held with `lock`.
fn held(old: Option<&Header>, lock: JobLock) -> Result<&Header> {
    old.filter(|old| old.lock() == Some(lock))
        .ok_or(Error::Halt)
}
