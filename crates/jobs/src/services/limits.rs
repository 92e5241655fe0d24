//! Gives free slots of limits to jobs that wait for them, forgets that limits were higher, clears rows of limits and tenants
//! that are obsolete, and frees slots that no job has.
//!
//! The transaction that frees a slot gives it to a waiting job at once. Free slots and jobs that wait are left only by a node
//! that dies while it raises a limit, and where waiting jobs cannot be decoded.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::operations::limits::walk::SERVED_MAX;
use crate::services::duties::{Duty, Leased};
use crate::{JobType, Jobs, Result};

const SERVE_EVERY: Duration = Duration::from_secs(30);
/// The pause within a round.
const MORE: Duration = Duration::from_millis(100);
const ORPHANS_EVERY: Duration = Duration::from_mins(10);

pub(crate) struct Waiting<'a> {
    pub(crate) jobs: &'a Jobs,
    pub(crate) ty: &'a JobType,
    pub(crate) leased: Leased,
    round: Round,
    /// When a round that looks for slots that no job has last began.
    orphans_at: Instant,
}

/// Progress of a round over all rows.
#[derive(Debug, Default)]
struct Round {
    relaxed: bool,
    served: Rest,
    cold: Rest,
    gone: Rest,
    orphans: Rest,
}

#[derive(Debug, Default, PartialEq)]
enum Rest {
    #[default]
    All,
    From(Bytes),
    Nothing,
}

impl Rest {
    fn from(&self) -> Option<&Bytes> {
        match self {
            Self::From(from) => Some(from),
            _ => None,
        }
    }

    fn is_left(&self) -> bool {
        *self != Self::Nothing
    }

    fn after(next: Option<Bytes>) -> Self {
        next.map_or(Self::Nothing, Self::From)
    }
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(jobs: &'a Jobs, ty: &'a JobType, leased: Leased) -> Self {
        Self {
            jobs,
            ty,
            leased,
            round: Round::default(),
            orphans_at: Instant::now(),
        }
    }

    /// Serves some of the limits that jobs wait for.
    async fn serve(&mut self) -> Result<()> {
        let after = self.round.served.from();
        let limits = (self.jobs)
            .waiting_limits(self.ty, after, SERVED_MAX)
            .await?;
        let more = limits.len() == SERVED_MAX;
        for limit in limits {
            let served = self.jobs.serve_waiting(self.ty, &limit).await;
            // If that fails, the next turn goes on with the others.
            self.round.served = Rest::From(limit);
            served?;
        }
        if !more {
            self.round.served = Rest::Nothing;
        }
        Ok(())
    }

    /// Does a part of a round; true if that was the last one.
    async fn advance(&mut self) -> Result<bool> {
        let (jobs, ty) = (self.jobs, self.ty);
        if self.round.served.is_left() {
            self.serve().await?;
        }
        let round = &mut self.round;
        if !std::mem::replace(&mut round.relaxed, true) {
            jobs.relax_limits(ty).await?;
        }
        if round.cold.is_left() {
            round.cold = Rest::after(jobs.clear_cold(ty, round.cold.from()).await?);
        }
        if round.gone.is_left() {
            round.gone = Rest::after(jobs.forget_tenants(ty, round.gone.from()).await?);
        }
        if round.orphans.is_left() {
            round.orphans = Rest::after(jobs.free_orphans(ty, round.orphans.from()).await?);
        }
        let rests = [&round.served, &round.cold, &round.gone, &round.orphans];
        Ok(!rests.iter().any(|rest| rest.is_left()))
    }
}

impl Duty for Waiting<'_> {
    const NAME: &'static str = "limits";

    async fn turn(&mut self, _: &CancellationToken) -> Result<Duration> {
        let serves = (self.leased.borrow().leases.iter()).any(|lease| lease.partition == 0);
        if !serves {
            return Ok(SERVE_EVERY);
        }
        if !self.advance().await? {
            return Ok(MORE);
        }
        let looks = self.orphans_at.elapsed() >= ORPHANS_EVERY;
        if looks {
            self.orphans_at = Instant::now();
        }
        self.round = Round {
            orphans: if looks { Rest::All } else { Rest::Nothing },
            ..Round::default()
        };
        Ok(SERVE_EVERY)
    }
}
