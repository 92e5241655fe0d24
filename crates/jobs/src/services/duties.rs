//! The duties of a type's monitor besides recovery, each unaffected by failures of the others.
//!
//! Every duty has its own loop, pauses and errors. They share only the leases, which recovery renews: a duty
//! changes only what a lease covers.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::model::header::Order;
use crate::operations::leases::Lease;
use crate::services::pause::{Pause, sleep};
use crate::testing::planted::Bug;
use crate::{JobType, Jobs, Result, telemetry};

/// Interval of updates of the metrics.
pub(crate) const OBSERVE_EVERY: Duration = Duration::from_secs(15);

/// Something that a monitor does repeatedly.
pub(crate) trait Duty: Send {
    /// The name in logs and metrics.
    const NAME: &'static str;

    /// Does what is due; returns how long to wait before the next turn.
    fn turn(&mut self, token: &CancellationToken) -> impl Future<Output = Result<Duration>> + Send;

    /// Called when a turn has failed.
    fn failed(&mut self) {}
}

/// Performs a duty until the token is cancelled.
pub(crate) async fn perform<D: Duty>(
    mut duty: D,
    jobs: &Jobs,
    ty: &JobType,
    token: &CancellationToken,
) {
    let mut pause = Pause::new(jobs.entropy(), jobs.planted());
    loop {
        let wait = match duty.turn(token).await {
            Ok(wait) => {
                pause.reset();
                wait
            }
            Err(error) => {
                tracing::warn!(job.ty = %ty, duty = D::NAME, error = %error.chain(), "a duty of the monitor failed");
                telemetry::duty_failed(ty, D::NAME);
                duty.failed();
                if jobs.planted().is(Bug::DutiesFailTogether) {
                    return token.cancel();
                }
                pause.after_error()
            }
        };
        if !sleep(wait, token).await {
            return;
        }
    }
}

/// The leases that this node holds on a type, and the version at which it read them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held {
    pub(crate) leases: Vec<Lease>,
    pub(crate) order: Option<Order>,
    /// How far this node's clock is ahead of the clock that retention uses.
    pub(crate) ahead_ms: i64,
}

/// The leases, as the other duties see them.
pub(crate) type Leased = watch::Receiver<Held>;

/// Updates the metrics of a type on one node, the holder of the first partition.
pub(crate) struct Observe<'a> {
    pub(crate) jobs: &'a Jobs,
    pub(crate) ty: &'a JobType,
    pub(crate) leased: Leased,
    pub(crate) observed: Option<Instant>,
}

impl Duty for Observe<'_> {
    const NAME: &'static str = "metrics";

    async fn turn(&mut self, _: &CancellationToken) -> Result<Duration> {
        let observes = (self.leased.borrow().leases.iter()).any(|lease| lease.partition == 0);
        if !observes && self.observed.take().is_some() {
            telemetry::not_observed(self.ty);
        }
        let due = (self.observed).is_none_or(|last| last.elapsed() >= OBSERVE_EVERY);
        if observes && due && self.jobs.type_config(self.ty).await?.is_some() {
            self.jobs.observe(self.ty).await?;
            self.observed = Some(Instant::now());
        }
        // A lease may come and go between two observations.
        Ok(OBSERVE_EVERY / 15)
    }
}

/// The type is gone, or the node stops.
impl Drop for Observe<'_> {
    fn drop(&mut self) {
        if self.observed.is_some() {
            telemetry::not_observed(self.ty);
        }
    }
}
