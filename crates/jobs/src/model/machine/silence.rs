//! Events of silent holders.

use super::{Context, Reply, Step, Verdict};
use crate::model::header::Header;
use crate::model::types::StallPolicy;
use crate::testing::planted::Bug;
use crate::{Error, Outcome, Result, State};

pub(super) fn stall(
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
    let signal_ms = new.take_signal();
    new.uncover();
    let next = (new.next.take()).filter(|_| !cx.planted.is(Bug::StallDropsNext));
    if let Some(next) = next {
        new.due_ms = next.due_ms;
        if next.is_new() {
            new.stalls = 0;
        }
        if let Some(newer) = next.data {
            new.data = newer;
        }
        if next.by_creator {
            // A creator's run is due even if the policy would give the job up: it is a new run, not a
            // retry of the one that went silent.
            new.end_attempt(Outcome::Stalled, Some(silent), cx);
            let signal_ms = signal_ms.unwrap_or(next.due_ms);
            new.be_pending(next.due_ms.min(signal_ms), cx);
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
        // A signal does not shorten the back-off.
        new.be_pending(due_ms.max(signal_ms.unwrap_or(0)), cx);
    } else {
        new.end_attempt(Outcome::GaveUp, Some(reason), cx);
        new.be_dead(cx);
    }
    Ok(Step::tell(new, Reply::Done { again }))
}
