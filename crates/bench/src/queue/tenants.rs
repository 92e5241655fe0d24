//! What it costs that tenants share a type, against a type that they do not share, in one run.

use super::load::Load;
use super::meter::Report;
use jobs::{Add, Result, Tenant};

/// How many jobs one transaction adds.
const FILL: usize = 500;
const MANY: usize = 10_000;

pub(super) async fn measure(
    load: &Load,
    count: usize,
    batch: usize,
    report: &mut Report<'_>,
) -> Result<()> {
    for (batch, kind) in [(1, "one_by_one"), (batch, "batched")] {
        let mut alone = None;
        for (name, tenants) in [("unshared", 0), ("one_tenant", 1), ("many_tenants", MANY)] {
            let case = format!("{name}/{kind}");
            let ty = load.register(&case).await?;
            if tenants > 0 {
                load.share(&ty).await?;
            }
            let of_tenant = move |number: usize, add: Add| {
                let tenant = number.checked_rem(tenants);
                let tenant = tenant.map(|tenant| Tenant::new(format!("tenant-{tenant}")));
                match tenant {
                    Some(Ok(tenant)) => add.tenant(tenant),
                    _ => add,
                }
            };
            load.produce_as(&ty, 0..count, FILL, of_tenant).await?;
            load.jobs.store().settle().await?;
            let meter = load.meter();
            load.finish(&ty, count, batch).await?;
            report.rate(&case, "claim_finish_per_s", count, &meter);
            let took = meter.elapsed();
            let alone = *alone.get_or_insert(took);
            let ratio = alone.div_duration_f64(took);
            report.figure(&case, "of_unshared", ratio, "ratio");
            report.costs(&case, count, &meter);
        }
    }
    Ok(())
}
