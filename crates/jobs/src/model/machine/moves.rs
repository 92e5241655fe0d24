//! Changes of a header shared by several events.

use bytes::Bytes;

use super::{Context, Create, Reply, Step};
use crate::model::header::{End, Header, Next, Place, shorten};
use crate::testing::planted::Bug;
use crate::{Error, Outcome, Result, State};

/// How long a job is kept that is deleted when it finishes, if it has subscribers.
const FLEETING_MS: i64 = 60_000;

/// A due job joins the others of its tenant.
pub(super) fn share(old: Option<&Header>, cx: &Context) -> Result<Step> {
    let mut new = match old {
        Some(old) if old.state() == State::Pending => old.clone(),
        _ => return Err(Error::NotFound),
    };
    new.with_rare(|rare| rare.shared = true);
    if new.place == Place::Timed {
        new.place = Place::Ready(cx.order);
    }
    Ok(Step::put(new, Reply::Done { again: false }))
}

impl Header {
    /// Sets the class and the tenant of the job, wherever it is.
    pub(super) fn belong_to(&mut self, create: &Create) {
        let (class, tenant, shared) = (create.class, &create.tenant, create.shared);
        let same = self.class() == class && self.tenant() == tenant.as_ref();
        if !same || self.sharer().is_some() != shared {
            self.with_rare(|rare| {
                (rare.class, rare.tenant, rare.shared) = (class, tenant.clone(), shared);
            });
        }
    }

    pub(super) fn be_pending(&mut self, due_ms: i64, cx: &Context) {
        if self.state() == State::Pending && self.due_ms == due_ms {
            return;
        }
        if self.is_held_until(due_ms, cx) {
            return;
        }
        self.take(Vec::new());
        self.due_ms = due_ms;
        self.place = if due_ms == 0 {
            Place::Ready(cx.order)
        } else {
            Place::Timed
        };
    }

    pub(super) fn be_finished(&mut self, cx: &Context) {
        let kept_ms = match self.retention_ms {
            // Its subscribers have so long.
            Some(0) => Some(FLEETING_MS),
            kept_ms => kept_ms.and_then(|ms| i64::try_from(ms).ok()),
        };
        self.place = Place::Finished {
            at_ms: cx.now_ms,
            expires_ms: kept_ms.map_or(i64::MAX, |ms| cx.now_ms.saturating_add(ms)),
        };
        self.clear_asked();
    }

    /// Kept whatever the retention of finished jobs: an operator has to examine it.
    pub(super) fn be_dead(&mut self, cx: &Context) {
        self.place = Place::Dead { at_ms: cx.now_ms };
        self.clear_asked();
    }

    pub(super) fn end_attempt(&mut self, outcome: Outcome, reason: Option<String>, cx: &Context) {
        if outcome.by_holder() || !cx.planted.is(Bug::StallKeepsSlots) {
            self.take(Vec::new());
        }
        self.cover(None, cx.now_ms);
        if let Some(last) = &mut self.last {
            last.end = Some(End {
                at_ms: cx.now_ms,
                outcome,
                reason: reason.map(shorten),
            });
        }
    }

    pub(super) fn replace_data(&mut self, data: Option<Bytes>) {
        if let Some(data) = data {
            self.data = self.blob(data);
        }
    }

    /// Stores the arrival time of the first signal that no run covers.
    pub(super) fn ask(&mut self, cx: &Context) {
        self.with_rare(|rare| rare.asked_ms = rare.asked_ms.or(Some(cx.now_ms)));
    }

    /// Leaves the signals of this run to the next one: this one did nothing, or its holder went silent.
    pub(super) fn uncover(&mut self) {
        if let Some(covered_ms) = self.covered_ms() {
            self.with_rare(|rare| rare.asked_ms = Some(covered_ms));
        }
    }

    pub(super) fn clear_asked(&mut self) {
        if self.asked_ms().is_some() {
            self.with_rare(|rare| rare.asked_ms = None);
        }
    }

    /// The time of the run that signals have requested, which is handled now.
    pub(super) fn take_signal(&mut self) -> Option<i64> {
        let signal_ms = self.signal_ms()?;
        self.with_rare(|rare| rare.signal_ms = None);
        Some(signal_ms)
    }

    /// The holder requests another run. It can neither delay a run that a creator requested, nor replace the creator's
    /// data, which does not run before its own time.
    pub(super) fn ask_again(&mut self, due_ms: i64, data: Option<Bytes>) {
        let due_ms = due_ms.max(0);
        let data = data.map(|data| self.blob(data));
        self.next = Some(match self.next.take() {
            Some(next) if next.by_creator => Next {
                due_ms: match next.data {
                    Some(_) => next.due_ms,
                    None => next.due_ms.min(due_ms),
                },
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
