//! Compares kinds of jobs that take turns in one run: the store grows meanwhile, and a machine is not always as fast.

use std::sync::Arc;

use super::load::Load;
use super::meter::{Meter, Report};
use jobs::{Add, JobType, Result};

/// Every other round has the reverse order.
const ROUNDS: usize = 20;
/// How many jobs one transaction adds.
const FILL: usize = 500;

/// Changes the job of a number.
pub(super) type Change = Arc<dyn Fn(usize, Add) -> Add + Send + Sync>;

/// A kind of jobs, of a type of its own.
pub(super) struct Kind {
    pub(super) case: String,
    pub(super) ty: JobType,
    pub(super) change: Change,
}

/// How this many jobs of each kind are finished.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub(super) count: usize,
    pub(super) batch: usize,
    /// See [`Load::finish_as`].
    pub(super) turns: bool,
}

/// Reports how fast each kind of jobs is claimed and finished, also as `metric` against the first.
pub(super) async fn compare(
    load: &Load,
    kinds: &[Kind],
    work: Work,
    metric: &'static str,
    report: &mut Report<'_>,
) -> Result<()> {
    let mut meters: Vec<Meter> = kinds.iter().map(|_| load.meter()).collect();
    meters.iter_mut().for_each(Meter::pause);
    for round in 0..ROUNDS {
        let jobs = round * work.count / ROUNDS..(round + 1) * work.count / ROUNDS;
        let mut turns: Vec<_> = kinds.iter().zip(&mut meters).collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for (kind, meter) in turns {
            let change = Arc::clone(&kind.change);
            let change = move |number: usize, add: Add| change(number, add);
            load.produce_as(&kind.ty, jobs.clone(), FILL, change)
                .await?;
            load.jobs.store().settle().await?;
            meter.resume();
            load.finish_as(&kind.ty, jobs.len(), work.batch, work.turns)
                .await?;
            meter.pause();
        }
    }
    for (kind, meter) in kinds.iter().zip(&meters) {
        report.rate(&kind.case, "claim_finish_per_s", work.count, meter);
        let ratio = meters[0].elapsed().div_duration_f64(meter.elapsed());
        report.figure(&kind.case, metric, ratio, "ratio");
        report.costs(&kind.case, work.count, meter);
    }
    Ok(())
}
