//! The cost of a backlog.

use std::time::Duration;

use tokio::time::Instant;

use super::load::Load;
use super::meter::Report;
use super::second::Second;
use super::{Bench, holder};
use jobs::{Error, JobType, Result};

/// The backlog that larger ones are compared with.
const SMALL: usize = 10_000;
/// Jobs per transaction.
const FILL: usize = 500;
/// Jobs that stay claimed, so that there is a page of each state.
const HELD: usize = 200;

pub(super) async fn measure(load: &Load, bench: &mut Bench, report: &mut Report<'_>) -> Result<()> {
    if bench.backlog == 0 {
        return Ok(());
    }
    let ty = &load.register("backlog").await?;
    let mut added = 0;
    let mut sizes = vec![SMALL.min(bench.backlog), bench.backlog];
    sizes.dedup();
    for size in sizes {
        let case = format!("backlog={size}");
        let (mut finished, mut spent) = (0, Duration::ZERO);
        let mut pending = load.jobs.counts(ty).await?.pending;
        while finished < bench.jobs {
            let missing = size - usize::try_from(pending).unwrap_or(0).min(size);
            load.produce(ty, added..added + missing, FILL).await?;
            added += missing;
            // Only the backlog matters here, not how it was made.
            load.jobs.store().settle().await?;
            // The backlog never gets much smaller than stated.
            let part = (size / 4).max(1).min(bench.jobs - finished);
            let begun = Instant::now();
            load.finish(ty, part, 1).await?;
            spent += begun.elapsed();
            finished += part;
            pending = load.jobs.counts(ty).await?.pending;
        }
        report.figure(
            &case,
            "claim_finish_per_s",
            crate::per_second(finished as u64, spent),
            "1/s",
        );
    }
    if bench.second_process.is_some() {
        load.jobs.accept(ty, &holder()?, HELD).await?;
        open(bench, ty, report).await?;
    }
    Ok(())
}

/// A process that starts with all this in the store: the time until it could work, and until it has listed a first
/// page.
async fn open(bench: &mut Bench, ty: &JobType, report: &mut Report<'_>) -> Result<()> {
    let case = format!("open/{}", bench.backlog);
    let Some(process) = &mut bench.second_process else {
        return Ok(());
    };
    let begun = Instant::now();
    let mut second = Second::start(process).await?;
    report.figure(&case, "open_s", begun.elapsed().as_secs_f64(), "s");
    second.order(&format!("list {ty}"))?;
    let (_, line) = second.line().await?;
    second.stop().await?;
    let numbers: Vec<u64> = line
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    let mut slowest = 0;
    for page in numbers.chunks_exact(2) {
        if page[1] == 0 {
            return Err(Error::Invalid("every state needs jobs"));
        }
        slowest = slowest.max(page[0]);
    }
    let slowest = Duration::from_micros(slowest);
    report.times(&case, &[("list_ms_p50", 50)], &[slowest]);
    Ok(())
}
