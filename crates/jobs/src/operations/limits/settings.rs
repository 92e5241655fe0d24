//! What a process remembers about limits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;

use crate::JobType;
use crate::model::limits::Rules;

/// Maximum limits, and slots of each, that are remembered as free.
const LIMITS: usize = 1_000;
const SLOTS: usize = 4_096;

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

/// Slots that calls of this process have freed. Each is offered to one claim, so that claims which run at once do not
/// choose the same one. Whether it is free, the claim reads.
#[derive(Debug, Default)]
pub(crate) struct FreedSlots(Mutex<BTreeMap<(JobType, Bytes), BTreeMap<u32, Offer>>>);

/// A slot, and the call that has freed it or takes it.
#[derive(Debug)]
struct Offer {
    call: Weak<()>,
    taken: bool,
}

impl FreedSlots {
    /// A slot is free once `call` has ended.
    pub(crate) fn add(&self, ty: &JobType, limit: &Bytes, slot: u32, call: Weak<()>) {
        let mut freed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (ty.clone(), limit.clone());
        if freed.len() >= LIMITS && !freed.contains_key(&key) {
            freed.clear();
        }
        let slots = freed.entry(key).or_default();
        if slots.len() < SLOTS {
            let taken = false;
            slots.insert(slot, Offer { call, taken });
        }
    }

    /// Slots that ended calls have freed, or this one. A retry gets the same again.
    pub(crate) fn take(
        &self,
        ty: &JobType,
        limit: &Bytes,
        count: usize,
        call: &Weak<()>,
    ) -> Vec<u32> {
        let mut freed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slots) = freed.get_mut(&(ty.clone(), limit.clone())) else {
            return Vec::new();
        };
        let mut taken = Vec::new();
        slots.retain(|slot, offer| {
            let (mine, ended) = (offer.call.ptr_eq(call), offer.call.strong_count() == 0);
            if taken.len() < count && (mine || (ended && !offer.taken)) {
                taken.push(*slot);
                (offer.call, offer.taken) = (call.clone(), true);
                return true;
            }
            !(ended && offer.taken)
        });
        taken
    }
}
