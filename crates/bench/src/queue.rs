//! Performance of the queue. Producers add jobs while workers claim them, do nothing, and finish them; every
//! acknowledgement is durable.

mod backlog;
mod behind;
mod cancel;
pub(crate) mod command;
mod crowd;
mod latency;
mod limited;
mod load;
mod meter;
mod retention;
mod scheduled;
mod second;
mod tenants;
mod turns;

use std::process::Command;
use std::sync::Arc;

use crate::store::Figure;
use ::store::Store;

use jobs::{Clock, Entropy, Error, Holder, JobType, Jobs, Result, Sharing, TypeConfig};
use load::Load;
use meter::Report;

pub(crate) use second::second;

/// Far longer than any run of a job here: no job comes back because of a silent holder.
const TIMEOUT_MS: u64 = 600_000;

#[derive(Debug)]
pub(crate) struct Bench {
    /// The store: empty at first, full of jobs afterwards.
    pub url: String,
    /// Jobs that a case adds and finishes.
    pub jobs: usize,
    /// Tasks that add jobs.
    pub producers: usize,
    /// Tasks that finish jobs.
    pub workers: usize,
    /// Jobs per transaction in the batched case.
    pub batch: usize,
    /// Waiting jobs in the largest backlog.
    pub backlog: usize,
    /// Starts a process that calls [`second`] on the store; `None` skips its cases.
    pub second_process: Option<Command>,
    /// The cases to measure, in this order.
    pub cases: Vec<Case>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    /// Adding, claiming and finishing, one job per acknowledgement.
    OneByOne,
    /// The same with many jobs per acknowledgement.
    Batched,
    /// Claiming and finishing scheduled jobs that are due, next to ready ones.
    Scheduled,
    /// Claiming and finishing jobs with limits that hold none of them back.
    Limited,
    /// Claiming and finishing jobs of tenants that share the type.
    Tenants,
    /// Independent acceptors on one backlog, as if each were a process.
    Crowd,
    /// From adding a job to its start, on an idle queue.
    Latency,
    /// Finishing jobs that are forgotten a second later, and jobs that are deleted when they finish.
    Retention,
    /// Claiming and finishing with few and with many jobs waiting; starting a process and listing with that many in the
    /// store.
    Backlog,
    /// The single jobs of a tenant behind very many of another.
    Behind,
    /// Taking jobs from a holder that has few and many.
    Cancel,
}

impl Case {
    /// All cases, in the order in which they disturb each other least.
    pub(crate) const ALL: [Self; 11] = [
        Self::OneByOne,
        Self::Batched,
        Self::Scheduled,
        Self::Limited,
        Self::Tenants,
        Self::Crowd,
        Self::Latency,
        Self::Cancel,
        Self::Retention,
        Self::Backlog,
        Self::Behind,
    ];
}

/// Measures, and reports each figure as soon as it is known.
pub(crate) async fn run(mut bench: Bench, report: &mut dyn FnMut(Figure)) -> Result<()> {
    if bench.jobs == 0 || bench.producers == 0 || bench.workers == 0 || bench.batch == 0 {
        return Err(Error::Invalid(
            "jobs, producers, workers and the batch size must be at least 1",
        ));
    }
    let mut report = Report(report);
    let store = Store::open(&bench.url).await?;
    let jobs = Jobs::new(store, Clock::system(), Entropy::from_os());
    let load = Load {
        jobs,
        producers: bench.producers,
        workers: bench.workers,
    };
    for case in std::mem::take(&mut bench.cases) {
        match case {
            Case::OneByOne => {
                whole_cycles(&load, "one_by_one", bench.jobs, 1, &mut report).await?;
            }
            Case::Batched => {
                whole_cycles(&load, "batched", bench.jobs, bench.batch, &mut report).await?;
            }
            Case::Scheduled => {
                scheduled::measure(&load, bench.jobs, bench.batch, &mut report).await?;
            }
            Case::Limited => {
                limited::measure(&load, bench.jobs, bench.batch, &mut report).await?;
            }
            Case::Tenants => {
                Box::pin(tenants::measure(
                    &load,
                    bench.jobs,
                    bench.batch,
                    &mut report,
                ))
                .await?;
            }
            Case::Crowd => crowd::measure(&load, bench.jobs, &mut report).await?,
            Case::Latency => latency::measure(&load, &mut bench, &mut report).await?,
            Case::Cancel => cancel::measure(&load, &mut report).await?,
            Case::Retention => {
                retention::measure(&load, bench.jobs, bench.batch, &mut report).await?;
            }
            Case::Backlog => backlog::measure(&load, &mut bench, &mut report).await?,
            Case::Behind => Box::pin(behind::measure(&load, bench.backlog, &mut report)).await?,
        }
    }
    Ok(())
}

/// Adding alone, claiming and finishing alone, and both at once.
async fn whole_cycles(
    load: &Load,
    case: &str,
    count: usize,
    batch: usize,
    report: &mut Report<'_>,
) -> Result<()> {
    let ty = &load.register(case).await?;
    let meter = load.meter();
    load.produce(ty, 0..count, batch).await?;
    report.rate(case, "enqueue_per_s", count, &meter);
    let meter = load.meter();
    load.finish(ty, count, batch).await?;
    report.rate(case, "claim_finish_per_s", count, &meter);
    let meter = load.meter();
    futures::future::try_join(
        load.produce(ty, count..2 * count, batch),
        load.finish(ty, count, batch),
    )
    .await?;
    report.rate(case, "full_cycle_per_s", count, &meter);
    report.costs(case, count, &meter);
    Ok(())
}

impl Load {
    /// A separate job type per case.
    async fn register(&self, case: &str) -> Result<JobType> {
        let ty = JobType::new(&format!("bench/{case}"))?;
        self.jobs.set_type(&ty, TypeConfig::new(TIMEOUT_MS)).await?;
        Ok(ty)
    }

    /// Lets tenants share a type.
    async fn share(&self, ty: &JobType) -> Result<()> {
        let config = TypeConfig {
            sharing: Sharing::On,
            ..TypeConfig::new(TIMEOUT_MS)
        };
        self.jobs.set_type(ty, config).await
    }
}

fn holder() -> Result<Holder> {
    Holder::new("bench")
}

fn failed(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Store(::store::Error::Unavailable {
        message: format!("{what} failed"),
        source: Some(Arc::new(error)),
    })
}

fn joined<T>(ended: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    ended.unwrap_or_else(|error| Err(failed("a task of the benchmark", error)))
}
