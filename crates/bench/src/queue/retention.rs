//! Whether forgetting keeps up with finishing.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::load::Load;
use super::meter::Report;
use super::{TIMEOUT_MS, joined};
use futures::future::try_join;
use jobs::{JobType, Maintenance, Options, Result, TypeConfig};

/// How long finished jobs are kept, and how often what is left is counted.
const KEPT: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(super) async fn measure(
    load: &Load,
    count: usize,
    batch: usize,
    report: &mut Report<'_>,
) -> Result<()> {
    for kept in [KEPT, Duration::ZERO] {
        let case = format!("retention={}s", kept.as_secs());
        let ty = &JobType::new(&format!("bench/{case}"))?;
        let config = TypeConfig {
            retention_ms: Some(u64::try_from(kept.as_millis()).unwrap_or(u64::MAX)),
            ..TypeConfig::new(TIMEOUT_MS)
        };
        load.jobs.set_type(ty, config).await?;
        let stop = CancellationToken::new();
        let maintenance = Maintenance::new(load.jobs.clone(), Options::default());
        let running = tokio::spawn(maintenance.serve(ty.clone()).run(stop.clone()));
        let meter = load.meter();
        let work = async {
            try_join(
                load.produce(ty, 0..count, batch),
                load.finish(ty, count, batch),
            )
            .await
        };
        tokio::pin!(work);
        let mut most = 0.0_f64;
        loop {
            tokio::select! {
                worked = &mut work => break worked.map(drop)?,
                () = sleep(LOOK_EVERY) => most = most.max(left(load, ty).await?),
            }
        }
        report.rate(&case, "finish_per_s", count, &meter);
        let finished = Instant::now();
        while left(load, ty).await? > 0.0 {
            sleep(LOOK_EVERY).await;
        }
        let late = finished.elapsed().saturating_sub(kept);
        report.figure(&case, "forgotten_late_s", late.as_secs_f64(), "s");
        report.figure(&case, "kept_most", most, "jobs");
        stop.cancel();
        joined(running.await.map(Ok))?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a count need not be exact")]
async fn left(load: &Load, ty: &JobType) -> Result<f64> {
    Ok(load.jobs.counts(ty).await?.finished as f64)
}
