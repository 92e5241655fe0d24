//! What a process remembers about limits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::JobType;
use crate::model::limits::Rules;

/// Maximum limits, and slots of each, that are remembered as free.
const LIMITS: usize = 1_000;
const SLOTS: usize = 4_096;
/// No transaction reads what is older.
const SNAPSHOT_AGE_MAX: Duration = Duration::from_secs(5);

/// How long a type whose jobs wait for limits is expected to have others that do.
const WAITED: Duration = Duration::from_secs(5);

/// The settings of each type as last read, and when its jobs last waited for limits.
#[derive(Debug, Default)]
pub(crate) struct KnownLimits {
    rules: Mutex<BTreeMap<JobType, Arc<Rules>>>,
    waited: Mutex<BTreeMap<JobType, Instant>>,
}

impl KnownLimits {
    pub(crate) fn get(&self, ty: &JobType) -> Option<Arc<Rules>> {
        let known = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(ty).cloned()
    }

    pub(crate) fn set(&self, ty: &JobType, rules: Rules) -> Arc<Rules> {
        let rules = Arc::new(rules);
        let mut known = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(ty.clone(), Arc::clone(&rules));
        rules
    }

    /// Whether a limit had more than one slot when the settings were last read.
    pub(crate) fn has_several(&self, ty: &JobType, limit: &Bytes) -> bool {
        let known = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        (known.get(ty)).is_some_and(|rules| rules.of(limit).limit.max > 1)
    }

    /// A job of the type waits for a limit.
    pub(crate) fn wait(&self, ty: &JobType) {
        let mut waited = self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        waited.insert(ty.clone(), Instant::now());
    }

    /// Whether jobs of the type have waited for limits a moment ago: then their index is long, or full of deleted rows.
    pub(crate) fn were_waited_for(&self, ty: &JobType) -> bool {
        let waited = self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        waited.get(ty).is_some_and(|at| at.elapsed() < WAITED)
    }
}

/// Slots that calls of this process have freed or taken. Each is offered to one claim, so that claims which run at once do
/// not choose the same one. Whether it is free, the claim reads.
#[derive(Debug, Default)]
pub(crate) struct FreedSlots(Mutex<ByLimit>);

type ByLimit = BTreeMap<(JobType, Bytes), BTreeMap<u32, Offer>>;

/// A slot, and the call that has freed it or takes it.
#[derive(Debug)]
struct Offer {
    call: Weak<()>,
    taken: Option<Instant>,
}

impl Offer {
    fn taken_by(call: &Weak<()>, now: Instant) -> Self {
        Self {
            call: call.clone(),
            taken: Some(now),
        }
    }

    /// Its call has taken it, or gave up.
    fn is_over(&self, now: Instant) -> bool {
        let is_old = |at| now.saturating_duration_since(at) > SNAPSHOT_AGE_MAX;
        self.call.strong_count() == 0 && self.taken.is_some_and(is_old)
    }
}

impl FreedSlots {
    /// Slots are free once `call` has ended.
    pub(crate) fn add(
        &self,
        ty: &JobType,
        limit: &Bytes,
        freed: impl Iterator<Item = u32>,
        call: &Weak<()>,
    ) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = slots_of(&mut known, ty, limit);
        let room = SLOTS.saturating_sub(slots.len());
        slots.extend(freed.take(room).map(|slot| {
            let (call, taken) = (call.clone(), None);
            (slot, Offer { call, taken })
        }));
    }

    /// Slots that ended calls have freed, or this one. A retry of the call gets the same again.
    pub(crate) fn take(
        &self,
        ty: &JobType,
        limit: &Bytes,
        count: usize,
        (call, retried): (&Weak<()>, bool),
    ) -> Vec<u32> {
        let mut freed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slots) = freed.get_mut(&(ty.clone(), limit.clone())) else {
            return Vec::new();
        };
        let (now, mut taken, mut over) = (Instant::now(), Vec::new(), Vec::new());
        for (slot, offer) in slots.iter_mut() {
            let enough = taken.len() >= count;
            // A limit may have thousands of slots, and most claims find theirs among the first.
            if enough && !retried {
                break;
            }
            let (mine, ended) = (offer.call.ptr_eq(call), offer.call.strong_count() == 0);
            if !enough && (mine || (ended && offer.taken.is_none())) {
                taken.push(*slot);
                *offer = Offer::taken_by(call, now);
            } else if (mine && offer.taken.is_some()) || offer.is_over(now) {
                // Of this call's, an attempt that failed has chosen it, and this one has enough others.
                over.push(*slot);
            }
        }
        for slot in over {
            slots.remove(&slot);
        }
        taken
    }

    /// Leaves to other calls the slots that this one took and found in use.
    pub(crate) fn forget(&self, ty: &JobType, limit: &Bytes, slots: &[u32]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = slots_of(&mut known, ty, limit);
        for slot in slots {
            known.remove(slot);
        }
    }

    /// Leaves up to `count` of the slots that this call found free: those that no other call of this process takes, or has
    /// taken since this one began to read.
    pub(crate) fn choose(
        &self,
        ty: &JobType,
        limit: &Bytes,
        found: &mut Vec<u32>,
        count: usize,
        call: &Weak<()>,
    ) {
        let mut freed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = slots_of(&mut freed, ty, limit);
        let is_mine = |offer: &Offer| offer.call.ptr_eq(call);
        found.retain(|slot| slots.get(slot).is_none_or(is_mine));
        found.truncate(count);
        let room = SLOTS.saturating_sub(slots.len());
        let (noted, now) = (found.iter().take(room), Instant::now());
        slots.extend(noted.map(|slot| (*slot, Offer::taken_by(call, now))));
    }
}

fn slots_of<'a>(all: &'a mut ByLimit, ty: &JobType, limit: &Bytes) -> &'a mut BTreeMap<u32, Offer> {
    let key = (ty.clone(), limit.clone());
    if all.len() >= LIMITS && !all.contains_key(&key) {
        all.clear();
    }
    all.entry(key).or_default()
}
