//! Independent acceptors, as if each were a process.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::holder;
use super::load::{Left, Load, all, end};
use super::meter::Report;
use jobs::Result;

const ACCEPTORS: usize = 64;
/// Jobs per claim.
const TAKE: usize = 10;
/// Jobs per transaction.
const FILL: usize = 500;

pub(super) async fn measure(load: &Load, count: usize, report: &mut Report<'_>) -> Result<()> {
    let case = format!("acceptors={ACCEPTORS}");
    let ty = load.register(&case).await?;
    load.produce(&ty, 0..count, FILL).await?;
    let left = Arc::new(Left::new(count));
    let meter = load.meter();
    let mut tasks = JoinSet::new();
    for _ in 0..ACCEPTORS {
        let (jobs, ty, me) = (load.jobs.clone(), ty.clone(), holder()?);
        let left = Arc::clone(&left);
        tasks.spawn(async move {
            while !left.none.is_cancelled() {
                let claimed = jobs.accept(&ty, &me, TAKE).await?.jobs;
                if claimed.is_empty() {
                    // The rest is held by others.
                    return Ok(());
                }
                let taken = claimed.len();
                end(&jobs, claimed.into_iter().map(|accepted| accepted.job)).await?;
                left.finished(taken);
            }
            Ok(())
        });
    }
    all(tasks).await?;
    report.rate(&case, "claim_finish_per_s", count, &meter);
    report.costs(&case, count, &meter);
    Ok(())
}
