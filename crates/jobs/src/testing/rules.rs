//! The rules of the queue, written a second time and as simply as possible: the state of one job after
//! each operation, and the answer to its caller. Does not use the state machine.
//!
//! Two tests share it, and each adds what the other cannot know:
//!
//! - [`model`](super::model) plays one call after the other on a clock that stands still. It knows every
//!   lock, time and earlier try, and so it predicts answers, histories and listings exactly.
//! - The judge of the [simulation](super::simulation) reads what a fleet has committed, long after the
//!   fact. No actor has seen some of it (a claim whose answer was lost, a job given back by an
//!   acceptor), and times come from wrong clocks. The judge accepts any explanation that the rules
//!   allow. A prediction would need facts that the history lacks; an explanation in the model tests
//!   would accept wrong answers. So only the rules are shared, not their application.
//!
//! The scripts are not shared either: the model's are drawn in advance, so that proptest can shrink
//! them, while actors of the simulation decide what to do by the answers they get. Golden scripts do
//! not use this module, because they compare rows, of which the rules know nothing.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::operations::effects::CHUNK_BYTES;
use crate::{Added, Counts, Finish, JobLock, StallPolicy, State, Verdict};

/// Stands for data, see [`data_of`].
pub(crate) type Token = u64;

/// The predicted state of one job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Job {
    /// `None` if the job does not exist.
    pub(crate) state: Option<State>,
    /// `None` if only the queue knows: a back-off counts from its own clock.
    pub(crate) due_ms: Option<i64>,
    pub(crate) data: Option<Token>,
    pub(crate) attempts: u32,
    pub(crate) stalls: u32,
    pub(crate) kept_ms: Option<u64>,
    pub(crate) next: Option<Next>,
    /// When signals want it to run again after the current run.
    pub(crate) signal_ms: Option<i64>,
    /// Arrival times of the first signal that no run covers yet, and of the first that the last run covers or was to cover.
    pub(crate) asked_ms: Option<i64>,
    pub(crate) covered_ms: Option<i64>,
    /// The lock of the last run, if an actor has seen it.
    pub(crate) lock: Option<JobLock>,
    /// What its subscribers are told since it was first added.
    pub(crate) trail: Vec<Told>,
}

/// A notification to subscribers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    Job {
        state: State,
        attempts: u32,
        data: Option<Token>,
    },
    Removed,
    /// No more notifications follow, which says nothing about the job.
    End,
}

/// The run that was requested while another is in progress.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Next {
    pub(crate) due_ms: Option<i64>,
    data: Option<Token>,
    by_creator: bool,
}

/// A request of a creator.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    /// If the job does not exist: create it, and keep it this long.
    pub(crate) create: Option<Kept>,
    pub(crate) due_ms: Option<i64>,
    pub(crate) data: Option<Token>,
}

/// How a holder ends its run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended {
    pub(crate) failed: bool,
    pub(crate) dead: bool,
    pub(crate) again_ms: Option<i64>,
    pub(crate) data: Option<Token>,
    /// The work did not begin.
    pub(crate) unused: bool,
}

impl Ended {
    /// The end of a run that no worker got: failures before it still count.
    pub(crate) fn unused() -> Self {
        Self {
            unused: true,
            ..Self::default()
        }
    }
}

impl From<&Finish> for Ended {
    fn from(finish: &Finish) -> Self {
        Self {
            failed: finish.failed,
            dead: finish.dead,
            again_ms: finish.again_ms,
            data: finish.data.as_ref().and_then(token_of),
            unused: finish.unused,
        }
    }
}

/// How many milliseconds a finished job is kept; `None` until it is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept(pub(crate) Option<u64>);

impl Job {
    /// Applies a creator's call and returns its answer; `None` if there is no job to resubmit.
    pub(crate) fn ask(&mut self, ask: &Ask) -> Option<Added> {
        let due_ms = ask.due_ms.map(|due_ms| due_ms.max(0));
        let kept_ms = ask.create.map_or(self.kept_ms, |Kept(ms)| ms);
        let same_kept = kept_ms == self.kept_ms;
        self.kept_ms = kept_ms;
        let added = match self.state {
            None => {
                ask.create?;
                *self = Self {
                    due_ms: Some(0),
                    kept_ms,
                    trail: std::mem::take(&mut self.trail),
                    ..Self::default()
                };
                Added::Created
            }
            Some(State::Pending) => {
                let same_data = ask.data.is_none() || ask.data == self.data;
                let same_time = due_ms.is_none() || due_ms == self.due_ms;
                if same_data && same_time && same_kept {
                    return Some(Added::Unchanged);
                }
                Added::Replaced
            }
            Some(State::Running) => {
                let before = self.next.take();
                let signal_ms = self.signal_ms.take();
                let next_ms = before.as_ref().and_then(|next| next.due_ms);
                let wanted_ms = [next_ms, signal_ms].into_iter().flatten().min();
                let next = Next {
                    due_ms: due_ms.or(wanted_ms).or(self.due_ms),
                    data: ask.data.or(before.as_ref().and_then(|next| next.data)),
                    by_creator: true,
                };
                let same = before.as_ref() == Some(&next) && same_kept && signal_ms.is_none();
                self.next = Some(next);
                return Some(if same {
                    Added::Unchanged
                } else {
                    Added::Deferred
                });
            }
            Some(State::Finished | State::Dead) => Added::Revived,
        };
        self.stalls = 0;
        self.due_ms = due_ms.or(self.due_ms);
        self.data = ask.data.or(self.data);
        self.become_state(Some(State::Pending));
        Some(added)
    }

    /// A signal arrives, of a caller who creates the job or not.
    pub(crate) fn signal(&mut self, signal: &Ask, now_ms: i64) -> Added {
        let due_ms = signal.due_ms.map(|due_ms| due_ms.max(0));
        let (due_before, asked_before) = (self.due_ms, self.asked_ms);
        let added = match self.state {
            None if signal.create.is_some() => {
                self.ask(signal);
                Added::Created
            }
            None | Some(State::Dead) => return Added::Ignored,
            Some(State::Running) => {
                let before = self.signal_ms;
                self.signal_ms = before.min(due_ms).or(due_ms);
                self.asked_ms = asked_before.or(Some(now_ms));
                return if self.signal_ms == before {
                    Added::Unchanged
                } else {
                    Added::Deferred
                };
            }
            Some(State::Pending) => {
                if self.stalls == 0 {
                    self.due_ms = due_before.min(due_ms);
                }
                Added::Replaced
            }
            Some(State::Finished) => {
                self.due_ms = due_ms;
                Added::Revived
            }
        };
        self.asked_ms = asked_before.or(Some(now_ms));
        if added == Added::Replaced && self.due_ms == due_before {
            return if asked_before.is_some() {
                Added::Unchanged
            } else {
                added
            };
        }
        if added != Added::Created {
            self.become_state(Some(State::Pending));
        }
        added
    }

    pub(crate) fn accept(&mut self, lock: Option<JobLock>) {
        self.attempts += 1;
        self.covered_ms = self.asked_ms.take();
        self.lock = lock;
        self.become_state(Some(State::Running));
    }

    /// Whether the job is held under this lock.
    pub(crate) fn is_held_by(&self, lock: JobLock) -> bool {
        self.state == Some(State::Running) && self.lock == Some(lock)
    }

    /// A heartbeat; true if another run is requested.
    pub(crate) fn update(&mut self, data: Option<Token>) -> bool {
        if data.is_some() {
            self.data = data;
            self.become_state(Some(State::Running));
        }
        self.next.is_some()
    }

    /// The holder requests another run. A creator's request takes precedence, and so does the time of its data.
    pub(crate) fn run_again(&mut self, due_ms: Option<i64>, data: Option<Token>) {
        let due_ms = due_ms.map(|due_ms| due_ms.max(0));
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

    /// The holder ends its run; true when another follows.
    pub(crate) fn finish(&mut self, end: &Ended) -> bool {
        let back_off = end.failed && end.again_ms.is_some();
        let dies = end.dead && end.again_ms.is_none() && self.next.is_none();
        let is_new = |next: &Next| next.by_creator && next.data.is_some();
        if self.next.as_ref().is_some_and(is_new) {
            self.stalls = 0;
        } else if back_off || dies {
            self.stalls += 1;
        } else if !end.unused {
            self.stalls = 0;
        }
        if end.again_ms.is_some() {
            self.run_again(end.again_ms, None);
        }
        let (next, signal_ms) = (self.next.take(), self.signal_ms.take());
        let newer = next.as_ref().and_then(|next| next.data);
        self.data = newer.or(end.data).or(self.data);
        if end.unused {
            self.uncover();
        }
        let due_ms = match &next {
            None if end.dead => None,
            None => signal_ms,
            Some(next) if signal_ms.is_none() => next.due_ms,
            Some(next) if !back_off => next.due_ms.min(signal_ms),
            Some(next) if next.by_creator => next.due_ms,
            Some(next) => next.due_ms.max(signal_ms),
        };
        let again = next.is_some() || due_ms.is_some();
        if again {
            self.due_ms = due_ms;
            self.become_state(Some(State::Pending));
        } else if end.dead {
            self.die();
        } else {
            self.asked_ms = None;
            self.become_state(Some(State::Finished));
        }
        again
    }

    /// Leaves the signals of this run to the next one: this one did nothing, or its holder went silent.
    fn uncover(&mut self) {
        self.asked_ms = self.covered_ms.take().or(self.asked_ms);
    }

    fn die(&mut self) {
        self.asked_ms = None;
        self.become_state(Some(State::Dead));
    }

    /// The holder went silent, after a `healthy` run or not. Back-offs start at `now_ms`, if known.
    pub(crate) fn stall(
        &mut self,
        verdict: &Verdict,
        policy: &StallPolicy,
        healthy: bool,
        now_ms: Option<i64>,
    ) {
        self.stalls = if healthy { 1 } else { self.stalls + 1 };
        let signal_ms = self.signal_ms.take();
        self.uncover();
        if let Some(next) = self.next.take() {
            self.due_ms = next.due_ms;
            self.data = next.data.or(self.data);
            if next.by_creator {
                if next.data.is_some() {
                    self.stalls = 0;
                }
                if signal_ms.is_some() {
                    self.due_ms = self.due_ms.min(signal_ms);
                }
                return self.become_state(Some(State::Pending));
            }
        }
        let after = |wait_ms: u64| Some(now_ms? + i64::try_from(wait_ms).ok()?);
        let dies = match verdict {
            Verdict::Policy => match policy.wait_ms(self.stalls) {
                None => true,
                Some(0) => false,
                Some(wait_ms) => {
                    self.due_ms = after(wait_ms);
                    false
                }
            },
            Verdict::Rerun { due_ms, data } => {
                self.data = data.as_ref().map_or(self.data, token_of);
                let never_given_up = StallPolicy {
                    stalls_max: None,
                    ..*policy
                };
                let wait_ms = never_given_up.wait_ms(self.stalls);
                let due_ms = due_ms.or_else(|| after(wait_ms.unwrap_or(0)));
                self.due_ms = due_ms.map(|due_ms| due_ms.max(0));
                false
            }
            Verdict::GiveUp { data, .. } => {
                self.data = data.as_ref().map_or(self.data, token_of);
                true
            }
        };
        if dies {
            return self.die();
        }
        if signal_ms.is_some() {
            // Still unknown if the back-off is.
            self.due_ms = self.due_ms.and(self.due_ms.max(signal_ms));
        }
        self.become_state(Some(State::Pending));
    }

    /// It is removed, or its retention has expired.
    pub(crate) fn remove(&mut self) {
        (self.next, self.signal_ms, self.asked_ms) = (None, None, None);
        self.become_state(None);
    }

    fn become_state(&mut self, state: Option<State>) {
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

/// The expected counters of a type with these jobs, including removed ones.
pub(crate) fn counts<'a>(jobs: impl Iterator<Item = &'a Job>) -> Counts {
    let mut changes: BTreeMap<(Option<State>, Option<State>), u64> = BTreeMap::new();
    for job in jobs {
        let mut from = None;
        for told in &job.trail {
            let to = match told {
                Told::Job { state, .. } => Some(*state),
                Told::Removed | Told::End => None,
            };
            if from != to {
                *changes.entry((from, to)).or_default() += 1;
            }
            from = to;
        }
    }
    let times = |from, to| changes.get(&(from, to)).copied().unwrap_or(0);
    let all @ [pending, running, finished, dead] = State::ALL.map(Some);
    let mut counts = Counts {
        created_total: times(None, pending),
        accepted_total: times(pending, running),
        finished_total: times(running, finished),
        dead_total: times(running, dead),
        again_total: times(running, pending),
        revived_total: times(finished, pending) + times(dead, pending),
        removed_total: all.map(|state| times(state, None)).iter().sum(),
        ..Counts::default()
    };
    let came = |to| changes.iter().filter(move |((_, state), _)| *state == to);
    let left = |from| changes.iter().filter(move |((state, _), _)| *state == from);
    let now = |state| {
        let came: u64 = came(state).map(|(_, times)| times).sum();
        came - left(state).map(|(_, times)| times).sum::<u64>()
    };
    [counts.pending, counts.running, counts.finished, counts.dead] = all.map(now);
    counts
}

/// The data of a token: empty, small enough for a header, larger, one full chunk, or several chunks.
pub(crate) fn data_of(token: Token) -> Bytes {
    let size = match token {
        0 => 0,
        9 => CHUNK_BYTES,
        token if token == 8 || token.is_multiple_of(499) => 100_000,
        token if token == 7 || token.is_multiple_of(61) => 700,
        _ => 24,
    };
    let digits = token.to_string();
    let digits = &digits[..digits.len().min(size)];
    (" ".repeat(size - digits.len()) + digits).into()
}

/// The token of some data, if any.
pub(crate) fn token_of(data: &Bytes) -> Option<Token> {
    let text = std::str::from_utf8(data).ok()?.trim_start();
    let token = if text.is_empty() {
        0
    } else {
        text.parse().ok()?
    };
    (data_of(token) == *data).then_some(token)
}
