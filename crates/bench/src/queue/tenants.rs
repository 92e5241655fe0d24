//! What it costs that tenants share a type, against a type that they do not share, in one run.

use std::sync::Arc;

use super::load::Load;
use super::meter::Report;
use super::turns::{Kind, Metrics, Work, compare};
use jobs::{Add, Result, Tenant};

const MANY: usize = 10_000;

const METRICS: Metrics = Metrics {
    claim_finish: "of_unshared",
    full_cycle: "full_cycle_of_unshared",
};

pub(super) async fn measure(
    load: &Load,
    count: usize,
    batch: usize,
    report: &mut Report<'_>,
) -> Result<()> {
    for (batch, kind) in [(1, "one_by_one"), (batch, "batched")] {
        let mut kinds = Vec::new();
        for (name, tenants) in [("unshared", 0), ("one_tenant", 1), ("many_tenants", MANY)] {
            let case = format!("{name}/{kind}");
            let ty = load.register(&case).await?;
            if tenants > 0 {
                load.share(&ty).await?;
            }
            let change = Arc::new(move |number: usize, add: Add| {
                let tenant = number.checked_rem(tenants);
                let tenant = tenant.map(|tenant| Tenant::new(format!("tenant-{tenant}")));
                match tenant {
                    Some(Ok(tenant)) => add.tenant(tenant),
                    _ => add,
                }
            });
            kinds.push(Kind { case, ty, change });
        }
        let work = Work {
            count,
            batch,
            turns: false,
        };
        compare(load, &kinds, work, METRICS, report).await?;
    }
    Ok(())
}
