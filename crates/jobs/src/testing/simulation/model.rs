//! What a job should be: the state machine as its texts describe it, written a second time, and as
//! simple as it can be.

use std::collections::BTreeMap;
use std::time::Duration;

use super::history::{Ask, Glimpse, Kept, Token, Told, token_of};
use crate::{Added, JobLock, StallPolicy, State, Verdict};

/// One job, as it should be.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// `None` if there is no such job.
    pub(super) state: Option<State>,
    /// `None` if only the queue knows: a back-off is counted from its own clock.
    pub(super) due_ms: Option<i64>,
    pub(super) data: Option<u64>,
    pub(super) attempts: u32,
    pub(super) stalls: u32,
    pub(super) kept_ms: Option<u64>,
    pub(super) next: Option<Next>,
    /// The lock of the last run, if anybody has seen it.
    pub(super) lock: Option<JobLock>,
    /// When the holder was heard of last, or earlier.
    pub(super) heard: Option<Duration>,
    /// All states there were, as subscribers are told.
    pub(super) trail: Vec<Told>,
    /// How often each change of state was made.
    pub(super) changes: BTreeMap<(Option<State>, Option<State>), u64>,
}

#[derive(Debug, Clone)]
pub(super) struct Next {
    due_ms: Option<i64>,
    data: Option<u64>,
    by_creator: bool,
}

impl Model {
    /// A creator's wish, and what it is answered.
    pub(super) fn ask(&mut self, ask: &Ask) -> Result<Added, String> {
        let due_ms = ask.due_ms.map(|due_ms| due_ms.max(0));
        let kept_ms = ask.create.map_or(self.kept_ms, |Kept(ms)| ms);
        let same_kept = kept_ms == self.kept_ms;
        self.kept_ms = kept_ms;
        match self.state {
            None => {
                if ask.create.is_none() {
                    return Err("asked for, and there is none".into());
                }
                self.attempts = 0;
                self.stalls = 0;
                self.lock = None;
                self.data = ask.data;
                self.due_ms = Some(due_ms.unwrap_or(0));
                self.be(Some(State::Pending));
                Ok(Added::Created)
            }
            Some(State::Pending) => {
                let same_data = ask.data.is_none() || ask.data == self.data;
                let same_time = due_ms.is_none() || due_ms == self.due_ms;
                if same_data && same_time && same_kept {
                    return Ok(Added::Unchanged);
                }
                self.stalls = 0;
                self.due_ms = due_ms.or(self.due_ms);
                self.data = ask.data.or(self.data);
                self.be(Some(State::Pending));
                Ok(Added::Replaced)
            }
            Some(State::Running) => {
                let before = self.next.take();
                let asked = before.as_ref().and_then(|next| next.due_ms);
                let next = Next {
                    due_ms: due_ms.or(asked).or(self.due_ms),
                    data: ask.data.or(before.as_ref().and_then(|next| next.data)),
                    by_creator: true,
                };
                let same = before.is_some_and(|before| {
                    before.by_creator && before.due_ms == next.due_ms && before.data == next.data
                });
                self.next = Some(next);
                Ok(if same && same_kept {
                    Added::Unchanged
                } else {
                    Added::Deferred
                })
            }
            Some(State::Finished) => {
                self.stalls = 0;
                self.due_ms = due_ms.or(self.due_ms);
                self.data = ask.data.or(self.data);
                self.be(Some(State::Pending));
                Ok(Added::Revived)
            }
        }
    }

    pub(super) fn accept(&mut self, lock: Option<JobLock>) {
        self.attempts += 1;
        self.lock = lock;
        self.heard = None;
        self.be(Some(State::Running));
    }

    pub(super) fn update(&mut self, data: Option<u64>) -> bool {
        if data.is_some() {
            self.data = data;
            self.be(Some(State::Running));
        }
        self.next.is_some()
    }

    /// The holder's wish for another run.
    pub(super) fn run_again(&mut self, due_ms: Option<i64>, data: Option<u64>) {
        let due_ms = due_ms.map(|due_ms| due_ms.max(0));
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

    /// The end of a run; true when another follows.
    pub(super) fn finish(&mut self, data: Option<u64>) -> bool {
        self.stalls = 0;
        match self.next.take() {
            None => {
                self.data = data.or(self.data);
                self.be(Some(State::Finished));
                false
            }
            Some(next) => {
                self.data = next.data.or(data).or(self.data);
                self.due_ms = next.due_ms;
                self.be(Some(State::Pending));
                true
            }
        }
    }

    /// The holder was silent.
    pub(super) fn stall(&mut self, verdict: &Verdict, policy: &StallPolicy) {
        self.stalls += 1;
        if let Some(next) = self.next.take() {
            self.due_ms = next.due_ms;
            self.data = next.data.or(self.data);
            if next.by_creator {
                if next.data.is_some() {
                    self.stalls = 0;
                }
                return self.be(Some(State::Pending));
            }
        }
        match verdict {
            Verdict::Policy => match policy.wait_ms(self.stalls) {
                None => self.be(Some(State::Finished)),
                Some(0) => self.be(Some(State::Pending)),
                Some(_) => {
                    self.due_ms = None;
                    self.be(Some(State::Pending));
                }
            },
            Verdict::Rerun { due_ms, data } => {
                self.data = data.as_ref().map_or(self.data, token_of);
                self.due_ms = *due_ms;
                self.be(Some(State::Pending));
            }
            Verdict::GiveUp { data, .. } => {
                self.data = data.as_ref().map_or(self.data, token_of);
                self.be(Some(State::Finished));
            }
        }
    }

    /// It is removed, or its time is up.
    pub(super) fn remove(&mut self) {
        self.next = None;
        self.be(None);
    }

    /// How this would look to somebody who looked.
    pub(super) fn differs(&self, seen: &Glimpse) -> Option<String> {
        if self.state != seen.state {
            return Some(format!(
                "is {:?} and should be {:?}",
                seen.state, self.state
            ));
        }
        self.state?;
        if self.attempts != seen.attempts {
            let (is, should) = (seen.attempts, self.attempts);
            return Some(format!(
                "has been run {is} times and should have been {should}"
            ));
        }
        if self.due_ms.is_some_and(|due_ms| due_ms != seen.due_ms) {
            return Some(format!(
                "is due {} and should be {:?}",
                seen.due_ms, self.due_ms
            ));
        }
        match seen.data {
            Some(Token(data)) if data != self.data => {
                Some(format!("has data {data:?} and should have {:?}", self.data))
            }
            _ => None,
        }
    }

    fn be(&mut self, state: Option<State>) {
        if self.state != state {
            *self.changes.entry((self.state, state)).or_default() += 1;
        }
        self.state = state;
        self.trail.push(match state {
            Some(state) => Told::Job {
                state,
                attempts: self.attempts,
                data: self.data,
            },
            None => Told::Removed,
        });
    }
}
