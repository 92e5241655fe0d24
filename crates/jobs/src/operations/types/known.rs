//! The types that a process has cached.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::{JobType, TypeConfig};

/// The types as last read by this process.
#[derive(Debug, Default)]
pub(crate) struct KnownTypes(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// How often the cache was invalidated.
    changes: u64,
    types: Option<(Arc<BTreeMap<JobType, TypeConfig>>, Instant)>,
}

impl KnownTypes {
    /// The registration of a type, unless it may have changed.
    pub(crate) fn get(&self, ty: &JobType) -> Option<TypeConfig> {
        let known = self.lock();
        let (types, until) = known.types.as_ref()?;
        let config = types.get(ty).copied();
        config.filter(|_| Instant::now() < *until)
    }

    /// Call this before reading the types that are passed to [`Self::set`].
    pub(crate) fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Caches the types until `until`, unless the cache was invalidated since `changes`.
    pub(crate) fn set(
        &self,
        types: Arc<BTreeMap<JobType, TypeConfig>>,
        changes: u64,
        until: Instant,
    ) {
        let mut known = self.lock();
        if known.changes == changes {
            known.types = Some((types, until));
        }
    }

    pub(crate) fn forget(&self) {
        let mut known = self.lock();
        known.changes += 1;
        known.types = None;
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
