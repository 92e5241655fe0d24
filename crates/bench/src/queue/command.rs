//! `davenport bench queue`.

use anyhow::Context;
use clap::{Args, ValueEnum};

use super::{Bench, Case};
use tokio::io::{BufReader, stdin};

#[derive(Debug, Args)]
pub struct QueueBench {
    /// Empty store; default: a new temporary directory
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Number of jobs that each case adds and finishes
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    jobs: usize,
    /// Number of tasks that add jobs concurrently
    #[arg(long, value_name = "P", default_value_t = 16)]
    producers: usize,
    /// Number of tasks that finish jobs concurrently
    #[arg(long, value_name = "W", default_value_t = 16)]
    workers: usize,
    /// Number of jobs per transaction in the batched case
    #[arg(long, value_name = "B", default_value_t = 100)]
    batch: usize,
    /// Number of waiting jobs in the largest backlog, and in the case `behind`; 0 skips both
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    backlog: usize,
    /// Run only this case; can be repeated
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<Part>,
    /// Print one line of JSON per figure
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Part {
    #[value(name = "one_by_one")]
    OneByOne,
    Batched,
    Scheduled,
    Limited,
    Tenants,
    Crowd,
    Latency,
    Retention,
    Backlog,
    Behind,
    Cancel,
}

impl From<Part> for Case {
    fn from(part: Part) -> Self {
        match part {
            Part::OneByOne => Self::OneByOne,
            Part::Batched => Self::Batched,
            Part::Scheduled => Self::Scheduled,
            Part::Limited => Self::Limited,
            Part::Tenants => Self::Tenants,
            Part::Crowd => Self::Crowd,
            Part::Latency => Self::Latency,
            Part::Retention => Self::Retention,
            Part::Backlog => Self::Backlog,
            Part::Behind => Self::Behind,
            Part::Cancel => Self::Cancel,
        }
    }
}

pub(crate) async fn run(bench: QueueBench) -> anyhow::Result<()> {
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let url = crate::url_or_new(bench.store, &directory);
    let cases = match &*bench.cases {
        [] => Case::ALL.to_vec(),
        parts => parts.iter().map(|part| Case::from(*part)).collect(),
    };
    // An in-memory store belongs to one process.
    let second_process = match url.as_str() {
        "memory:" => None,
        url => Some(crate::second_process("queue-second", url)?),
    };
    let measured = Bench {
        url,
        jobs: bench.jobs,
        producers: bench.producers,
        workers: bench.workers,
        batch: bench.batch,
        backlog: bench.backlog,
        second_process,
        cases,
    };
    let mut report = |figure| crate::report("queue", &figure, bench.json);
    Box::pin(super::run(measured, &mut report)).await?;
    Ok(())
}

pub(crate) async fn second(url: &str) -> anyhow::Result<()> {
    let say = |line: &str| {
        crate::print(line);
        Ok(())
    };
    let serving = super::second(url, BufReader::new(stdin()), say);
    Ok(Box::pin(serving).await?)
}
