//! Divides scheduled jobs between acceptors.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::JobId;

/// The acceptors that divide jobs: each job belongs to one of them.
#[derive(Debug, Default)]
pub(crate) struct Division {
    pub(crate) own: u64,
    pub(crate) others: Vec<u64>,
    /// For how long after it falls due a job is left to the acceptor that it belongs to.
    pub(crate) left_ms: i64,
}

impl Division {
    /// Rendezvous hashing: when an acceptor comes or goes, no job moves between the others.
    fn is_own(&self, id: &JobId) -> bool {
        let rank = |acceptor: &u64| {
            let mut hasher = DefaultHasher::new();
            (id.as_bytes(), acceptor).hash(&mut hasher);
            (hasher.finish(), *acceptor)
        };
        let own = rank(&self.own);
        self.others.iter().all(|other| rank(other) <= own)
    }

    /// When a scheduled job may be claimed.
    pub(crate) fn claimable_ms(&self, id: &JobId, due_ms: i64) -> i64 {
        let left_ms = if self.is_own(id) { 0 } else { self.left_ms };
        due_ms.saturating_add(left_ms)
    }
}
