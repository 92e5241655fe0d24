//! Labels by which the queue counts jobs: their state as users see it.

use std::collections::BTreeMap;

use jobs::State;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::JobState;

/// Stored: never change or reuse a number.
const PENDING: u8 = 1;
const PAUSED: u8 = 2;
const RUNNING: u8 = 3;
const IDLE: u8 = 4;
const CRASHING: u8 = 5;
const COMPLETED: u8 = 6;
const FAILED: u8 = 7;
const UNREACHABLE: u8 = 8;
const ASLEEP: u8 = 9;
/// Asleep, with a trigger: until a change, a time, the next look at a server that is not followed, or the next run, because
/// the source has changed.
const UNTIL_CHANGE: u8 = 10;
const UNTIL_TIME: u8 = 11;
const UNTIL_POLL: u8 = 12;
const UNTIL_RUN: u8 = 13;
const SLEEPS: [u8; 5] = [ASLEEP, UNTIL_CHANGE, UNTIL_TIME, UNTIL_POLL, UNTIL_RUN];
/// Undecodable data, which no job should have.
const UNKNOWN: u8 = 15;

/// The members of a job's data that decide its label.
#[derive(Deserialize)]
struct Labelled {
    state: JobState,
    #[serde(default)]
    paused: bool,
    #[serde(default)]
    idle: bool,
    #[serde(default)]
    unreachable: Option<IgnoredAny>,
    #[serde(default)]
    asleep: Option<Sleep>,
    #[serde(default)]
    shown: Trigger,
}

#[derive(Deserialize)]
struct Sleep {
    #[serde(default)]
    watches: Option<IgnoredAny>,
    #[serde(default)]
    polls: bool,
    wake: Wake,
}

#[derive(Deserialize)]
struct Wake {
    #[serde(default)]
    seq: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
struct Trigger {
    #[serde(default)]
    triggered: bool,
}

impl Sleep {
    fn label(&self, triggered: bool) -> u8 {
        match self {
            _ if !triggered => ASLEEP,
            Self { wake, .. } if wake.seq.is_none() => UNTIL_RUN,
            Self { polls: true, .. } => UNTIL_POLL,
            Self { watches: None, .. } => UNTIL_TIME,
            Self {
                watches: Some(_), ..
            } => UNTIL_CHANGE,
        }
    }
}

/// The label of a job's data.
pub(crate) fn label(data: &[u8]) -> u8 {
    match serde_json::from_slice::<Labelled>(data) {
        Err(_) => UNKNOWN,
        Ok(data) => match data.state {
            JobState::Pending if data.paused => PAUSED,
            JobState::Pending => PENDING,
            JobState::Running if let Some(asleep) = &data.asleep => {
                asleep.label(data.shown.triggered)
            }
            JobState::Running if data.unreachable.is_some() => UNREACHABLE,
            JobState::Running if data.idle => IDLE,
            JobState::Running => RUNNING,
            JobState::Crashing => CRASHING,
            JobState::Completed => COMPLETED,
            JobState::Failed => FAILED,
        },
    }
}

/// The number of jobs in one of the queue's states.
pub(crate) fn counted(counts: &BTreeMap<(State, u8), u64>, state: State) -> u64 {
    let of_state = counts
        .iter()
        .filter(|((replications, _), _)| *replications == state);
    of_state.map(|(_, count)| count).sum()
}

/// The number of jobs that wait for a node; those that sleep do not.
pub(crate) fn waiting(counts: &BTreeMap<(State, u8), u64>) -> u64 {
    let asleep = SLEEPS.map(|label| counts.get(&(State::Pending, label)));
    counted(counts, State::Pending) - asleep.into_iter().flatten().sum::<u64>()
}

/// The number of jobs by state, as users see it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) pending: u64,
    pub(crate) running: u64,
    pub(crate) crashing: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    /// Of the running ones.
    pub(crate) idle: u64,
    /// Of the running ones.
    pub(crate) unreachable: u64,
    /// Of the pending ones.
    pub(crate) paused: u64,
    /// Of the idle ones, those with a trigger.
    pub(crate) until_change: u64,
    pub(crate) until_time: u64,
    pub(crate) until_poll: u64,
    pub(crate) until_run: u64,
}

impl Census {
    /// `None` if some jobs have no label yet.
    pub(crate) fn of(counts: &BTreeMap<(State, u8), u64>) -> Option<Self> {
        let mut all = Self::default();
        for ((state, label), count) in counts {
            match (*label, *state) {
                (UNTIL_CHANGE, State::Pending) => all.until_change += count,
                (UNTIL_TIME, State::Pending) => all.until_time += count,
                (UNTIL_POLL, State::Pending) => all.until_poll += count,
                (UNTIL_RUN, State::Pending) => all.until_run += count,
                _ => {}
            }
            let of_state = match (*label, *state) {
                (PAUSED, _) => {
                    all.paused += count;
                    &mut all.pending
                }
                // The node of those that ran has died.
                (PENDING, _) | (RUNNING | IDLE | UNREACHABLE, State::Pending) => &mut all.pending,
                (RUNNING, _) => &mut all.running,
                (label, _) if label == IDLE || SLEEPS.contains(&label) => {
                    all.idle += count;
                    &mut all.running
                }
                (UNREACHABLE, _) => {
                    all.unreachable += count;
                    &mut all.running
                }
                (CRASHING, _) => &mut all.crashing,
                (COMPLETED, _) => &mut all.completed,
                (FAILED, _) => &mut all.failed,
                _ => return None,
            };
            *of_state += count;
        }
        Some(all)
    }

    /// Each job in one state.
    pub(crate) fn by_state(&self) -> [(&'static str, u64); 8] {
        [
            ("pending", self.pending - self.paused),
            ("paused", self.paused),
            ("running", self.running - self.idle - self.unreachable),
            ("idle", self.idle),
            ("unreachable", self.unreachable),
            ("crashing", self.crashing),
            ("completed", self.completed),
            ("failed", self.failed),
        ]
    }

    /// Triggered replications that sleep, by what they wait for.
    pub(crate) fn triggered(&self) -> [(&'static str, u64); 4] {
        [
            ("change", self.until_change),
            ("time", self.until_time),
            ("poll", self.until_poll),
            ("run", self.until_run),
        ]
    }

    /// As summaries have it.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "pending": self.pending, "running": self.running, "crashing": self.crashing,
            "completed": self.completed, "failed": self.failed, "idle": self.idle,
            "paused": self.paused, "unreachable": self.unreachable,
        })
    }
}
