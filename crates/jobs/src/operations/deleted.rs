//! The last runs whose end deleted their job in this process: the store has nothing left by which a retry after an
//! unknown outcome could recognise that it was done.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::JobLock;

/// Maximum runs remembered: more than end during the retries of one call.
const RUNS: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct Deleted(Mutex<VecDeque<JobLock>>);

impl Deleted {
    pub(crate) fn add(&self, lock: JobLock) {
        let mut runs = self.runs();
        if runs.len() >= RUNS {
            runs.pop_front();
        }
        runs.push_back(lock);
    }

    pub(crate) fn contains(&self, lock: JobLock) -> bool {
        self.runs().contains(&lock)
    }

    fn runs(&self) -> MutexGuard<'_, VecDeque<JobLock>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
