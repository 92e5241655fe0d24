//! What a process remembers about limits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::JobType;
use crate::model::limits::Rules;

/// Maximum limits, and slots of each, that are remembered as free.
const LIMITS: usize = 1_000;
const SLOTS: usize = 64;

/// The settings of each type as last read.
#[derive(Debug, Default)]
pub(crate) struct KnownLimits(Mutex<BTreeMap<JobType, Arc<Rules>>>);

impl KnownLimits {
    pub(crate) fn get(&self, ty: &JobType, version: Option<&Bytes>) -> Option<Arc<Rules>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rules = known.get(ty)?;
        (rules.version.as_ref() == version).then(|| Arc::clone(rules))
    }

    pub(crate) fn set(&self, ty: &JobType, rules: Rules) -> Arc<Rules> {
        let rules = Arc::new(rules);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(ty.clone(), Arc::clone(&rules));
        rules
    }
}

/// Slots that runs of this process have freed. Each is offered to one claim, so that claims which run at once do not
/// choose the same one. Whether it is free, the claim reads.
#[derive(Debug, Default)]
pub(crate) struct FreedSlots(Mutex<BTreeMap<(JobType, Bytes), Vec<u32>>>);

impl FreedSlots {
    pub(crate) fn add(&self, ty: &JobType, limit: &Bytes, slot: u32) {
        let mut freed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (ty.clone(), limit.clone());
        if freed.len() >= LIMITS && !freed.contains_key(&key) {
            freed.clear();
        }
        let slots = freed.entry(key).or_default();
        if slots.len() < SLOTS && !slots.contains(&slot) {
            slots.push(slot);
        }
    }

    pub(crate) fn take(&self, ty: &JobType, limit: &Bytes, count: usize) -> Vec<u32> {
        let mut freed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slots) = freed.get_mut(&(ty.clone(), limit.clone())) else {
            return Vec::new();
        };
        let from = slots.len().saturating_sub(count);
        slots.split_off(from)
    }
}
