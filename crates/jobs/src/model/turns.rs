//! The next lane of each type, as one process remembers it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use crate::model::ids::LANES;
use crate::{Class, JobType};

/// A type without jobs in lanes is searched for lanes in one of this many claims.
const LOOKS: u32 = 8;
/// One in this many claims of many tenants' jobs looks at all turns.
const LOOKS_AT_ALL: u32 = 16;

/// The turns of each type.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<BTreeMap<JobType, Turn>>);

/// The next lanes to serve.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub(crate) claims: u32,
    /// Whether there have been jobs in lanes.
    used: bool,
    /// Whether tenants shared the type when a claim last looked.
    pub(crate) shared: bool,
    /// Whether the last claim of tenants' jobs found as many as it wanted.
    pub(crate) busy: bool,
    /// The class and the key of the first turn that a claim has seen, if there were many.
    first: Option<(Class, Bytes)>,
    /// The lane to start with; [`LANES`] stands for jobs without one.
    pub(crate) ready: u16,
    pub(crate) timed: u16,
}

impl Turns {
    /// The turn of the next claim; the first starts with a lane that `seed` chooses.
    pub(crate) fn draw(&self, ty: &JobType, seed: u64) -> Turn {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = turns.entry(ty.clone()).or_insert_with(|| {
            let lane = u16::try_from(seed % u64::from(LANES)).unwrap_or(0);
            Turn {
                claims: 0,
                used: false,
                shared: false,
                busy: false,
                first: None,
                ready: lane,
                timed: lane,
            }
        });
        turn.claims = turn.claims.wrapping_add(1);
        turn.clone()
    }

    pub(crate) fn set(&self, ty: &JobType, ready: u16, timed: u16) {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get_mut(ty) {
            (turn.used, turn.ready, turn.timed) = (true, ready, timed);
        }
    }

    pub(crate) fn share(&self, ty: &JobType, shared: bool) {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get_mut(ty) {
            turn.shared = shared;
        }
    }

    /// Where turns begin, if there are many.
    pub(crate) fn begin(&self, ty: &JobType, first: Option<(Class, Bytes)>) {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get_mut(ty) {
            turn.first = first;
        }
    }

    pub(crate) fn hurry(&self, ty: &JobType, busy: bool) {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get_mut(ty) {
            turn.busy = busy;
        }
    }
}

impl Turn {
    /// Where the claim may begin to look for turns. Before are those that were removed, which the store may still have to
    /// pass. A tenant that returns seldom comes before it; then a claim that looks at all turns finds it.
    pub(crate) fn first(&self) -> Option<&(Class, Bytes)> {
        (self.first.as_ref()).filter(|_| !self.claims.is_multiple_of(LOOKS_AT_ALL))
    }

    /// Whether the claim searches for lanes although none are known.
    pub(crate) fn looks(&self) -> bool {
        self.used || self.claims.is_multiple_of(LOOKS)
    }
}
