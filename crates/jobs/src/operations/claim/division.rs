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
    /// How long jobs of others are left to them, from when they fall due.
    pub(crate) left_ms: i64,
}

impl Division {
    /// An acceptor that comes or goes changes nothing between the others.
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

    /// When it may take a scheduled job.
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
