//! Whose turn it is among the lanes of each type, as one process remembers it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::JobType;
use crate::model::ids::LANES;

/// A type that has had no jobs in lanes is looked at for lanes in one of so many claims.
const LOOKS: u32 = 8;

/// What a handle remembers of each type.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<BTreeMap<JobType, Turn>>);

/// Whose turn it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) claims: u32,
    /// There have been jobs in lanes.
    used: bool,
    /// The lane to begin with; [`LANES`] is the jobs without one.
    pub(crate) ready: u16,
    pub(crate) timed: u16,
}

impl Turns {
    /// The turn of the next claim; the first begins with a lane that `seed` chooses.
    pub(crate) fn draw(&self, ty: &JobType, seed: u64) -> Turn {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = turns.entry(ty.clone()).or_insert_with(|| {
            let lane = u16::try_from(seed % u64::from(LANES)).unwrap_or(0);
            Turn {
                claims: 0,
                used: false,
                ready: lane,
                timed: lane,
            }
        });
        turn.claims = turn.claims.wrapping_add(1);
        *turn
    }

    pub(crate) fn set(&self, ty: &JobType, ready: u16, timed: u16) {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get_mut(ty) {
            (turn.used, turn.ready, turn.timed) = (true, ready, timed);
        }
    }
}

impl Turn {
    /// Whether the claim looks for lanes although nothing says that there are any.
    pub(crate) fn looks(&self) -> bool {
        self.used || self.claims.is_multiple_of(LOOKS)
    }
}
