//! Events of acceptors and holders.

use bytes::Bytes;

use super::{Change, Context, Finish, Reply, Step};
use crate::model::header::{Header, Place};
use crate::testing::planted::Bug;
use crate::{Attempt, Error, Holder, JobLock, Outcome, Result, State};

pub(super) fn accept(
    old: Option<&Header>,
    lock: JobLock,
    holder: Holder,
    cx: &Context,
) -> Result<Step> {
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
    new.stalls = if finish.failed && finish.again_ms.is_some() {
        new.stalls.saturating_add(1)
    } else {
        0
    };
    let outcome = match finish.again_ms {
        Some(due_ms) => {
            new.ask_again(due_ms, None);
            Outcome::Again
        }
        None if finish.failed || finish.dead => Outcome::Failed,
        None => Outcome::Done,
    };
    new.end_attempt(outcome, finish.reason, cx);
    let next = new.next.take();
    let again = next.is_some();
    match next {
        None => {
            let dead = finish.dead && !cx.planted.is(Bug::DeadIsFinished);
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
        Some(next) => {
            match next.data {
                Some(newer) => new.data = newer,
                None => new.replace_data(finish.data),
            }
            new.be_pending(next.due_ms, cx);
        }
    }
    let mut step = Step::tell(new, Reply::Done { again });
    if cx.planted.is(Bug::FinishNotifiesNone) {
        step.tell.clear();
    }
    Ok(step)
}

/// The job, if held with `lock`.
fn held(old: Option<&Header>, lock: JobLock) -> Result<&Header> {
    old.filter(|old| old.lock() == Some(lock))
        .ok_or(Error::Halt)
}
