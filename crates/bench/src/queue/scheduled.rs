//! What it costs that jobs are scheduled: the same number, all of them due, ready and scheduled.

use super::load::Load;
use super::meter::Report;
use jobs::{Add, Result};

/// How many jobs one transaction adds.
const FILL: usize = 500;

pub(super) async fn measure(
    load: &Load,
    count: usize,
    batch: usize,
    report: &mut Report<'_>,
) -> Result<()> {
    for (batch, kind) in [(1, "one_by_one"), (batch, "batched")] {
        for (name, scheduled) in [("ready", false), ("scheduled", true)] {
            let case = format!("{name}/{kind}");
            let ty = load.register(&case).await?;
            // Due for a minute, each at another time.
            let begin_ms = load.jobs.clock().now_ms() - 60_000;
            let due = move |number: usize, add: Add| {
                let after_ms = i64::try_from(number * 50_000 / count.max(1)).unwrap_or(0);
                add.due_ms(begin_ms + after_ms)
            };
            if scheduled {
                load.produce_as(&ty, 0..count, FILL, due).await?;
            } else {
                load.produce(&ty, 0..count, FILL).await?;
            }
            load.jobs.store().settle().await?;
            let meter = load.meter();
            load.finish(&ty, count, batch).await?;
            report.rate(&case, "claim_finish_per_s", count, &meter);
            report.costs(&case, count, &meter);
        }
    }
    Ok(())
}
