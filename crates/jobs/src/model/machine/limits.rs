//! Due jobs that wait for slots of their limits.

use bytes::Bytes;

use super::{Context, Reply, Step, Wait};
use crate::model::header::{Header, Place};
use crate::model::limits::{LimitName, Limits, Taken, Which};
use crate::{Class, Error, Result, State};

pub(super) fn hold(
    old: Option<&Header>,
    taken: Vec<Taken>,
    wait: Wait,
    cx: &Context,
) -> Result<Step> {
    let mut new = match old {
        Some(old) if old.state() == State::Pending => old.clone(),
        _ => return Err(Error::NotFound),
    };
    let order = match new.place {
        Place::Ready(order) | Place::Waiting(_, order) => order,
        _ => cx.order,
    };
    if new.place == Place::Timed && !new.taken().is_empty() {
        // Its due time was that of a booked start.
        new.due_ms = new.due_ms.min(cx.now_ms);
    }
    new.take(taken);
    new.place = match wait {
        Wait::No => Place::Ready(order),
        Wait::For(which) => Place::Waiting(which, order),
        Wait::Until(free_ms) => {
            new.due_ms = free_ms;
            Place::Timed
        }
    };
    Ok(Step::put(new, Reply::Done { again: false }))
}

impl Header {
    pub(crate) fn limits(&self) -> Limits {
        let name = |which| self.limit(which).cloned().map(LimitName);
        Limits {
            key: name(Which::Key),
            pool: name(Which::Pool),
        }
    }

    /// Sets the slots that the job has.
    pub(super) fn take(&mut self, taken: Vec<Taken>) {
        if self.taken() != taken {
            self.with_rare(|rare| rare.taken = taken);
        }
    }

    /// Sets the limits of the job's next runs. If they change while it is pending, it starts over without slots.
    pub(super) fn limit_by(&mut self, key: Option<Bytes>, pool: Option<Bytes>, cx: &Context) {
        let same = match &self.rare {
            Some(rare) => rare.key == key && rare.pool == pool,
            None => key.is_none() && pool.is_none(),
        };
        if same {
            return;
        }
        self.with_rare(|rare| (rare.key, rare.pool) = (key, pool));
        if self.state() == State::Pending && self.is_held() {
            self.take(Vec::new());
            self.place = Place::Ready(cx.order);
        }
    }

    /// Whether the job, due at `due_ms`, stays where it is because it waits for a limit or has its slot: it cannot run
    /// earlier, and moving it would lose its turn.
    pub(super) fn is_held_until(&mut self, due_ms: i64, cx: &Context) -> bool {
        if self.state() != State::Pending || !self.is_held() {
            return false;
        }
        match self.place {
            Place::Timed => due_ms <= self.due_ms,
            _ if due_ms <= cx.now_ms => {
                self.due_ms = due_ms;
                true
            }
            _ => false,
        }
    }

    /// A waiting job whose class rises is ready again, so that the next claim takes the slot from a job of a later class.
    pub(super) fn rise_from(&mut self, before: Class) {
        if let Place::Waiting(_, order) = self.place
            && self.class() < before
        {
            self.place = Place::Ready(order);
        }
    }

    /// Whether a pending job has slots, or waits for one.
    fn is_held(&self) -> bool {
        matches!(self.place, Place::Waiting(..)) || !self.taken().is_empty()
    }
}
