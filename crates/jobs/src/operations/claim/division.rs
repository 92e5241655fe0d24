//! Divides scheduled jobs between acceptors.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::Claim;
use super::candidates::Candidate;
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
}

impl Claim {
    pub(crate) fn divided(self, division: Division) -> Self {
        Self { division, ..self }
    }

    /// When this claim may take a scheduled job.
    pub(super) fn claimable_ms(&self, job: &Candidate) -> Option<i64> {
        let due_ms = job.due_ms()?;
        let left_ms = if self.division.is_own(&job.id) {
            0
        } else {
            self.division.left_ms
        };
        Some(due_ms.saturating_add(left_ms))
    }
}
