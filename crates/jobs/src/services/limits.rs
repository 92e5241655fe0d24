//! Gives free slots of limits to jobs that wait for them, forgets that limits were higher, and clears rows of limits and tenants
//! that say nothing any more.
//!
//! The transaction that frees a slot gives it to a waiting job at once. Only a node that dies while it raises a limit leaves
//! both: free slots and jobs that wait.

use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::services::duties::{Duty, Leased};
use crate::{JobType, Jobs, Result};

const SERVE_EVERY: Duration = Duration::from_secs(30);

pub(crate) struct Waiting<'a> {
    pub(crate) jobs: &'a Jobs,
    pub(crate) ty: &'a JobType,
    pub(crate) leased: Leased,
    /// The last limit served; the next turn continues there.
    pub(crate) last: Bytes,
    /// Where the next turn clears rows; `None` at the first.
    pub(crate) cold: Option<Bytes>,
    /// Where the next turn forgets tenants.
    pub(crate) gone: Option<Bytes>,
}

impl Duty for Waiting<'_> {
    const NAME: &'static str = "limits";

    async fn turn(&mut self, _: &CancellationToken) -> Result<Duration> {
        let serves = (self.leased.borrow().leases.iter()).any(|lease| lease.partition == 0);
        if serves {
            let limits = (self.jobs)
                .waiting_limits(self.ty, Some(&self.last))
                .await?;
            for limit in &limits {
                self.jobs.serve_waiting(self.ty, limit).await?;
            }
            self.last = limits.last().cloned().unwrap_or_default();
            self.jobs.relax_limits(self.ty).await?;
            self.cold = self.jobs.clear_cold(self.ty, self.cold.as_ref()).await?;
            let gone = self.jobs.forget_tenants(self.ty, self.gone.as_ref());
            self.gone = gone.await?;
        }
        Ok(SERVE_EVERY)
    }
}
