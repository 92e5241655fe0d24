//! What it costs to take jobs from a holder that has many: until its run is told, and how many transactions that takes.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::load::Load;
use super::meter::Report;
use super::{failed, holder, joined};
use jobs::{Acceptor, AcceptorHandle, Job, JobType, Result};

/// How many jobs the holder has.
const HELD: [usize; 2] = [100, 10_000];
/// How many of them are taken away, one by one.
const CANCELLED: usize = 100;
/// How many jobs one transaction adds or accepts.
const BATCH: usize = 500;
/// A holder that was not told by then never will be.
const PATIENCE: Duration = Duration::from_mins(1);

pub(super) async fn measure(load: &Load, report: &mut Report<'_>) -> Result<()> {
    for held in HELD {
        let case = format!("cancel/{held}");
        let ty = &load.register(&case).await?;
        let (service, acceptor) = Acceptor::new(load.jobs.clone(), ty.clone(), holder()?);
        let stop = CancellationToken::new();
        let service = tokio::spawn(service.run(stop.clone()));
        load.produce(ty, 0..held, BATCH).await?;
        let jobs = accept(&acceptor, held).await?;
        let before = calls(load);
        let times = cancel(load, ty, &jobs[..CANCELLED.min(held)]).await?;
        let spent = calls(load) - before;
        report.times(&case, &[("told_ms_p50", 50), ("told_ms_p99", 99)], &times);
        report.figure(
            &case,
            "transactions_per_cancel",
            ratio(spent, times.len()),
            "",
        );
        stop.cancel();
        joined(service.await.map(Ok))?;
    }
    Ok(())
}

async fn accept(acceptor: &AcceptorHandle, count: usize) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    while jobs.len() < count {
        let accepted = acceptor.accept(BATCH, PATIENCE).await?;
        jobs.extend(accepted.into_iter().map(|accepted| accepted.job));
    }
    Ok(jobs)
}

/// How long after the call that removes each job its run was told.
async fn cancel(load: &Load, ty: &JobType, jobs: &[Job]) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for job in jobs {
        let called = Instant::now();
        load.jobs.remove(ty, &job.id).await?;
        let told = timeout(PATIENCE, job.lost().cancelled()).await;
        told.map_err(|late| failed("telling a holder", late))?;
        times.push(called.elapsed());
    }
    Ok(times)
}

fn calls(load: &Load) -> u64 {
    let stats = load.jobs.store().stats();
    stats.values().map(|stats| stats.calls).sum()
}

#[expect(clippy::cast_precision_loss, reason = "a ratio need not be exact")]
fn ratio(count: u64, of: usize) -> f64 {
    count as f64 / of.max(1) as f64
}
