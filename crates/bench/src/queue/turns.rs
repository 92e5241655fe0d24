//! Compares kinds of jobs that take turns in one run: the store grows meanwhile, and the speed of the machine varies.

use std::sync::Arc;

use futures::future::try_join;

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

/// The names of the ratios to the first kind: when jobs are only claimed and finished, and when they are also added.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metrics {
    pub(super) claim_finish: &'static str,
    pub(super) full_cycle: &'static str,
}

/// Reports how fast each kind of jobs is claimed and finished, with and without jobs being added at the same time.
pub(super) async fn compare(
    load: &Load,
    kinds: &[Kind],
    work: Work,
    metrics: Metrics,
    report: &mut Report<'_>,
) -> Result<()> {
    let paused = || {
        let mut meter = load.meter();
        meter.pause();
        meter
    };
    let mut meters: Vec<[Meter; 2]> = kinds.iter().map(|_| [paused(), paused()]).collect();
    for round in 0..ROUNDS {
        let jobs = round * work.count / ROUNDS..(round + 1) * work.count / ROUNDS;
        let mut turns: Vec<_> = kinds.iter().zip(&mut meters).collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for (kind, [alone, whole]) in turns {
            let produce = |jobs, batch| {
                let change = Arc::clone(&kind.change);
                load.produce_as(&kind.ty, jobs, batch, move |number, add| {
                    change(number, add)
                })
            };
            let finish = || load.finish_as(&kind.ty, jobs.len(), work.batch, work.turns);
            produce(jobs.clone(), FILL).await?;
            load.jobs.store().settle().await?;
            alone.resume();
            finish().await?;
            alone.pause();
            load.jobs.store().settle().await?;
            whole.resume();
            let others = jobs.start + work.count..jobs.end + work.count;
            try_join(produce(others, work.batch), finish()).await?;
            whole.pause();
        }
    }
    for (kind, [alone, whole]) in kinds.iter().zip(&meters) {
        let of_first = |nth: usize, meter: &Meter| {
            let first = &meters[0][nth];
            first.elapsed().div_duration_f64(meter.elapsed())
        };
        report.rate(&kind.case, "claim_finish_per_s", work.count, alone);
        report.figure(
            &kind.case,
            metrics.claim_finish,
            of_first(0, alone),
            "ratio",
        );
        report.costs(&kind.case, work.count, alone);
        report.rate(&kind.case, "full_cycle_per_s", work.count, whole);
        report.figure(&kind.case, metrics.full_cycle, of_first(1, whole), "ratio");
    }
    Ok(())
}
