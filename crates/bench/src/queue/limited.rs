//! What limits cost that never hold a job back: as high as the number of workers, and another one for each job.

use super::load::Load;
use super::meter::Report;
use jobs::{Add, Limit, LimitName, Result};

/// How many jobs one transaction adds.
const FILL: usize = 500;

pub(super) async fn measure(
    load: &Load,
    count: usize,
    batch: usize,
    report: &mut Report<'_>,
) -> Result<()> {
    let pool = &LimitName::new("pool")?;
    for (batch, kind) in [(1, "one_by_one"), (batch, "batched")] {
        for name in ["unlimited", "pool", "keys"] {
            let case = format!("{name}/{kind}");
            let ty = load.register(&case).await?;
            let max = u32::try_from(load.workers * batch).unwrap_or(u32::MAX);
            let limit = Some(Limit::at_once(max));
            load.jobs.set_limit(&ty, pool, limit).await?;
            let pool = pool.clone();
            let limited = move |number: usize, add: Add| match name {
                "pool" => add.pool(pool.clone()),
                "keys" => match LimitName::new(format!("key|{number}")) {
                    Ok(key) => add.key(key),
                    Err(_) => add,
                },
                _ => add,
            };
            load.produce_as(&ty, 0..count, FILL, limited).await?;
            load.jobs.store().settle().await?;
            let meter = load.meter();
            load.finish_as(&ty, count, batch, batch > 1).await?;
            report.rate(&case, "claim_finish_per_s", count, &meter);
            report.costs(&case, count, &meter);
        }
    }
    Ok(())
}
