//! How fast the queue is on this machine.
//!
//! Producers add jobs while workers take them, do nothing, and finish them; every acknowledgement is
//! durable. Compare figures of one run: what they are on their own says more about the machine.

mod backlog;
pub(crate) mod command;
mod crowd;
mod latency;
mod load;
mod meter;
mod second;

use std::process::Command;
use std::sync::Arc;

use crate::store::Figure;
use ::store::Store;

use jobs::{Clock, Entropy, Error, Holder, JobType, Jobs, Result, TypeConfig};
use load::Load;
use meter::Report;

pub(crate) use second::second;

/// Far longer than any run of a job here: nothing comes back because its holder was silent.
const TIMEOUT_MS: u64 = 600_000;

/// What is measured, and where.
#[derive(Debug)]
pub(crate) struct Bench {
    /// The store: an empty one, which is left full of jobs.
    pub url: String,
    /// How many jobs a case adds and finishes.
    pub jobs: usize,
    /// How many tasks add jobs side by side.
    pub producers: usize,
    /// How many tasks finish jobs side by side.
    pub workers: usize,
    /// How many jobs one transaction adds, or finishes, where that is more than one.
    pub batch: usize,
    /// How many jobs wait in the largest backlog.
    pub backlog: usize,
    /// Starts a process that calls [`second`] on the store; `None` leaves its cases out.
    pub second_process: Option<Command>,
    /// What is measured, in this order.
    pub cases: Vec<Case>,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    /// Adding, accepting and finishing, one job to an acknowledgement.
    OneByOne,
    /// The same with many jobs to an acknowledgement.
    Batched,
    /// Acceptors that know nothing of each other, as if each were a process, on one backlog.
    Crowd,
    /// From adding a job to its start, on an idle queue.
    Latency,
    /// Accepting and finishing with few and with many jobs waiting; starting a process and listing
    /// with as many in the store.
    Backlog,
}

impl Case {
    /// All of them, in the order in which they disturb each other least.
    pub(crate) const ALL: [Self; 5] = [
        Self::OneByOne,
        Self::Batched,
        Self::Crowd,
        Self::Latency,
        Self::Backlog,
    ];
}

/// Measures, and reports each figure as soon as it is known.
pub(crate) async fn run(mut bench: Bench, report: &mut dyn FnMut(Figure)) -> Result<()> {
    if bench.jobs == 0 || bench.producers == 0 || bench.workers == 0 || bench.batch == 0 {
        return Err(Error::Invalid(
            "a benchmark has at least one job, producer and worker, and one job to a batch",
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
            Case::Crowd => crowd::measure(&load, bench.jobs, &mut report).await?,
            Case::Latency => latency::measure(&load, &mut bench, &mut report).await?,
            Case::Backlog => backlog::measure(&load, &mut bench, &mut report).await?,
        }
    }
    Ok(())
}

/// Adding alone, accepting and finishing alone, and both at once.
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
    /// A type of its own for a case.
    async fn register(&self, case: &str) -> Result<JobType> {
        let ty = JobType::new(&format!("bench/{case}"))?;
        self.jobs.set_type(&ty, TypeConfig::new(TIMEOUT_MS)).await?;
        Ok(ty)
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
