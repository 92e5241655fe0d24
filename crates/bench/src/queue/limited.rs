//! What limits cost that never hold a job back: as high as the number of workers, and another one for each job.

use std::sync::Arc;

use super::load::Load;
use super::meter::Report;
use super::turns::{Change, Kind, Metrics, Work, compare};
use jobs::{Limit, LimitName, Result};

const METRICS: Metrics = Metrics {
    claim_finish: "of_unlimited",
    full_cycle: "full_cycle_of_unlimited",
};

pub(super) async fn measure(
    load: &Load,
    count: usize,
    batch: usize,
    report: &mut Report<'_>,
) -> Result<()> {
    let pool = &LimitName::new("pool")?;
    for (batch, kind) in [(1, "one_by_one"), (batch, "batched")] {
        let max = u32::try_from(load.workers * batch).unwrap_or(u32::MAX);
        let mut kinds = Vec::new();
        for name in ["unlimited", "pool", "keys"] {
            let case = format!("{name}/{kind}");
            let ty = load.register(&case).await?;
            let limit = Some(Limit::at_once(max));
            load.jobs.set_limit(&ty, pool, limit).await?;
            let pool = pool.clone();
            let change: Change = match name {
                "pool" => Arc::new(move |_, add| add.pool(pool.clone())),
                "keys" => Arc::new(
                    |number, add| match LimitName::new(format!("key|{number}")) {
                        Ok(key) => add.key(key),
                        Err(_) => add,
                    },
                ),
                _ => Arc::new(|_, add| add),
            };
            kinds.push(Kind { case, ty, change });
        }
        let turns = batch > 1;
        let work = Work {
            count,
            batch,
            turns,
        };
        compare(load, &kinds, work, METRICS, report).await?;
    }
    Ok(())
}
