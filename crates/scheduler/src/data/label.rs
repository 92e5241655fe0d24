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
    asleep: Option<IgnoredAny>,
}

/// The label of a job's data.
pub(crate) fn label(data: &[u8]) -> u8 {
    match serde_json::from_slice::<Labelled>(data) {
        Err(_) => UNKNOWN,
        Ok(data) => match data.state {
            JobState::Pending if data.paused => PAUSED,
            JobState::Pending => PENDING,
            JobState::Running if data.asleep.is_some() => ASLEEP,
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
    let asleep = counts.get(&(State::Pending, ASLEEP));
    counted(counts, State::Pending) - asleep.copied().unwrap_or_default()
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
}

impl Census {
    /// `None` if some jobs have no label yet.
    pub(crate) fn of(counts: &BTreeMap<(State, u8), u64>) -> Option<Self> {
        let mut all = Self::default();
        for ((state, label), count) in counts {
            let of_state = match (*label, *state) {
                (PAUSED, _) => {
                    all.paused += count;
                    &mut all.pending
                }
                // The node of those that ran has died.
                (PENDING, _) | (RUNNING | IDLE | UNREACHABLE, State::Pending) => &mut all.pending,
                (RUNNING, _) => &mut all.running,
                (IDLE | ASLEEP, _) => {
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

    /// As summaries have it.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "pending": self.pending, "running": self.running, "crashing": self.crashing,
            "completed": self.completed, "failed": self.failed, "idle": self.idle,
            "paused": self.paused, "unreachable": self.unreachable,
        })
    }
}
