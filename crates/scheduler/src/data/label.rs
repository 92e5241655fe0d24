//! What jobs are counted as: their state as users see it, in the queue's own counters.

use std::collections::BTreeMap;

use jobs::State;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::JobState;

/// Labels are in the store: never change a number, never use one again.
const PENDING: u8 = 1;
const PAUSED: u8 = 2;
const RUNNING: u8 = 3;
const IDLE: u8 = 4;
const CRASHING: u8 = 5;
const COMPLETED: u8 = 6;
const FAILED: u8 = 7;
const UNREACHABLE: u8 = 8;
/// Data that cannot be read, which no job has.
const UNKNOWN: u8 = 15;

/// The part of a job's data that its label follows from.
#[derive(Deserialize)]
struct Labelled {
    state: JobState,
    #[serde(default)]
    paused: bool,
    #[serde(default)]
    idle: bool,
    #[serde(default)]
    unreachable: Option<IgnoredAny>,
}

/// The label of a job's data.
pub(crate) fn label(data: &[u8]) -> u8 {
    match serde_json::from_slice::<Labelled>(data) {
        Err(_) => UNKNOWN,
        Ok(data) => match data.state {
            JobState::Pending if data.paused => PAUSED,
            JobState::Pending => PENDING,
            JobState::Running if data.unreachable.is_some() => UNREACHABLE,
            JobState::Running if data.idle => IDLE,
            JobState::Running => RUNNING,
            JobState::Crashing => CRASHING,
            JobState::Completed => COMPLETED,
            JobState::Failed => FAILED,
        },
    }
}

/// How many jobs the queue has counted in one of its states.
pub(crate) fn counted(counts: &BTreeMap<(State, u8), u64>, state: State) -> u64 {
    let of_state = counts
        .iter()
        .filter(|((replications, _), _)| *replications == state);
    of_state.map(|(_, count)| count).sum()
}

/// How many jobs there are, as users see them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) pending: u64,
    pub(crate) running: u64,
    pub(crate) crashing: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    /// Of those that run.
    pub(crate) idle: u64,
    /// Of those that run.
    pub(crate) unreachable: u64,
    /// Of those that are pending.
    pub(crate) paused: u64,
}

impl Census {
    /// What the queue has counted; `None` if it has not counted all of it by label.
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
                (IDLE, _) => {
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
}
