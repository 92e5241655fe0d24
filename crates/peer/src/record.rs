//! Records requests.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::faults::matches;

/// Older requests are dropped.
const REQUESTS_MAX: usize = 200_000;

/// A request that was answered, or whose answer a fault suppressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    pub method: String,
    pub path: String,
    /// As sent, still encoded.
    pub query: String,
    /// 0 if there was no answer.
    pub status: u16,
}

impl Recorded {
    /// Whether it has this method and its path matches the pattern, in which `*` stands for any text.
    pub fn is(&self, method: &str, pattern: &str) -> bool {
        self.method == method && matches(pattern, &self.path)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<VecDeque<Recorded>>);

impl Recorder {
    pub(crate) fn add(&self, request: Recorded) {
        let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.len() == REQUESTS_MAX {
            requests.pop_front();
        }
        requests.push_back(request);
    }

    pub(crate) fn all(&self) -> Vec<Recorded> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .cloned()
            .collect()
    }

    pub(crate) fn clear(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}
