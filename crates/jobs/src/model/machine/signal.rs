//! Signals: requests for a run that merge to the earliest time and never disturb a run.

use bytes::Bytes;

use super::creator::created;
use super::{Context, Create, Reply, Step};
use crate::State;
use crate::model::header::Header;
use crate::model::run;
use crate::testing::planted::Bug;

pub(super) fn signal(
    old: Option<&Header>,
    due_ms: i64,
    create: Option<(u64, Bytes, Create)>,
    once: Option<u64>,
    cx: &Context,
) -> Step {
    let due_ms = due_ms.max(0);
    let Some(old) = old else {
        let Some((op, data, create)) = create else {
            return Step::nothing(Reply::Ignored);
        };
        let mut new = created(op, Some(due_ms), Some(data), create, cx);
        new.ask(cx);
        return Step::put(new, Reply::Created);
    };
    if once.is_some_and(|op| old.ops.contains(&op)) {
        return Step::nothing(Reply::Repeated);
    }
    let later = cx.planted.is(Bug::SignalMergeLost);
    let earliest = |before: i64| if later { due_ms } else { before.min(due_ms) };
    let mut new = old.clone();
    new.ask(cx);
    let (due_ms, reply) = match old.state() {
        State::Dead => return Step::nothing(Reply::Ignored),
        State::Running => {
            let signal_ms = old.signal_ms().map_or(due_ms, earliest);
            new.with_rare(|rare| rare.signal_ms = Some(signal_ms));
            if cx.planted.is(Bug::SignalDisturbsRun) {
                new.ask_again(due_ms, None);
                let interrupt = Some(run::Interrupt::Again);
                let step = Step::put(new, Reply::Deferred);
                return Step { interrupt, ..step };
            }
            (old.due_ms, Reply::Deferred)
        }
        // It is in a back-off.
        State::Pending if old.stalls > 0 && !cx.planted.is(Bug::SignalCutsBackOff) => {
            (old.due_ms, Reply::Replaced)
        }
        State::Pending => (earliest(old.due_ms), Reply::Replaced),
        State::Finished => (due_ms, Reply::Revived),
    };
    if old.state() != State::Running {
        new.be_pending(due_ms, cx);
    }
    if new == *old {
        return Step::nothing(Reply::Unchanged);
    }
    if let Some(op) = once {
        new.remember(op);
    }
    if new.place == old.place && new.due_ms == old.due_ms {
        Step::put(new, reply)
    } else {
        Step::tell(new, reply)
    }
}
