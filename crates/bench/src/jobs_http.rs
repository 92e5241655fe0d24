//! `davenport bench jobs-http`: a frontend in its own process, and producers and workers that use its `/_jobs` in this one.
//!
//! Each has a connection of its own and one request under way, so one by one is what a client without any batching gets.

mod load;
mod waiting;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use http::Method;
use serde_json::json;

use crate::client::{Client, Connection};
use crate::service::{Node, Place};
use crate::store::Figure;

/// The allocator returns pages that have been free for 10 s.
const DECAY: Duration = Duration::from_secs(15);
/// Jobs of a request in the case `batched`.
const BATCH: usize = 100;

#[derive(Debug, Args)]
pub struct JobsHttpBench {
    /// Empty store, lmdb: or fdb:; default: a new temporary directory
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Number of jobs in the cases `one_by_one` and `batched`
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    jobs: usize,
    /// Number of clients that add jobs concurrently
    #[arg(long, value_name = "N", default_value_t = 16)]
    producers: usize,
    /// Number of clients that claim and finish jobs concurrently
    #[arg(long, value_name = "N", default_value_t = 16)]
    workers: usize,
    /// Number of jobs on an idle queue in the case `latency`
    #[arg(long, value_name = "N", default_value_t = 300)]
    rounds: usize,
    /// Number of claims that wait at the same time in the case `waiting`
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    claims: usize,
    /// Number of jobs that are stored in the case `stored`
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    stored: usize,
    /// Run only this case; can be repeated
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<Case>,
    /// Set any configuration option of the frontend
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Print one line of JSON per figure
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Case {
    /// From adding a job on an idle queue to the worker that has it
    Latency,
    /// One job per request
    #[value(name = "one_by_one")]
    OneByOne,
    /// 100 jobs per request
    Batched,
    /// The memory of claims that wait, and how many of them one job wakes
    Waiting,
    /// The memory of a frontend with many jobs in its store
    Stored,
}

/// A frontend and its report.
struct Run<'a> {
    bench: &'a JobsHttpBench,
    node: Node,
    client: Client,
}

pub(crate) async fn run(bench: JobsHttpBench) -> anyhow::Result<()> {
    let counts = [bench.jobs, bench.producers, bench.workers, bench.rounds];
    ensure!(
        counts.iter().all(|count| *count > 0) && bench.claims > 0 && bench.stored > 0,
        "numbers of jobs, clients, rounds and claims must be at least 1"
    );
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let place = Place {
        store: crate::url_or_new(bench.store.clone(), &directory),
        keys: PathBuf::from(directory.path()).join("keys"),
        config: None,
        set: bench.set.clone(),
    };
    let all = [
        Case::Latency,
        Case::OneByOne,
        Case::Batched,
        Case::Waiting,
        Case::Stored,
    ];
    for case in all {
        if !bench.cases.is_empty() && !bench.cases.contains(&case) {
            continue;
        }
        if case == Case::Waiting {
            waiting::allow_descriptors(bench.claims)?;
        }
        // A new one for each case, as memory is measured.
        let run = Run::start(&bench, &place).await?;
        match case {
            Case::Latency => load::latency(&run).await,
            Case::OneByOne => load::cycle(&run, "one_by_one", 1).await,
            Case::Batched => load::cycle(&run, "batched", BATCH).await,
            Case::Waiting => Box::pin(waiting::waiting(&run)).await,
            Case::Stored => waiting::fill(&run).await,
        }
        .with_context(|| format!("case {case:?}"))?;
        run.node.stop().await?;
        if case == Case::Stored {
            let run = Run::start(&bench, &place).await?;
            waiting::read(&run).await.context("case Stored")?;
            run.node.stop().await?;
        }
    }
    Ok(())
}

impl<'a> Run<'a> {
    async fn start(bench: &'a JobsHttpBench, place: &Place) -> anyhow::Result<Self> {
        let node = Node::start(place, "bench", "api_frontend").await?;
        Ok(Self {
            client: node.client()?,
            bench,
            node,
        })
    }

    fn report(&self, case: &str, metric: &'static str, value: f64, unit: &'static str) {
        let figure = Figure {
            case: case.to_owned(),
            metric,
            value,
            unit,
        };
        crate::report("jobs-http", &figure, self.bench.json);
    }

    fn times(&self, case: &str, times: &[Duration]) {
        let metrics = [("start_ms_p50", 50), ("start_ms_p99", 99)];
        for (metric, ms) in crate::percentiles(times, &metrics) {
            self.report(case, metric, ms, "ms");
        }
    }

    /// Makes a job type of its own for a case, and returns its path.
    async fn register(&self, case: &str) -> anyhow::Result<String> {
        let name = case.replace('_', "-");
        let path = format!("_jobs/{name}-{}", &crate::random_hex()[..8]);
        let settings = json!({"retention_sec": 0}).to_string();
        self.client.expect(Method::PUT, &path, &settings).await?;
        Ok(format!("/{path}"))
    }

    async fn connections(&self, count: usize) -> anyhow::Result<Vec<Connection>> {
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count {
            connections.push(self.client.connect().await?);
        }
        Ok(connections)
    }

    /// The private memory of the frontend.
    fn private_mb(&self) -> anyhow::Result<f64> {
        let process = self.node.process();
        let memory = process.and_then(crate::process::Processes::private_mb);
        memory.context("the system does not report the memory of the frontend")
    }

    /// Waits until the frontend is idle, and has returned the memory that it does not use.
    async fn rest(&self) {
        self.settle().await;
        tokio::time::sleep(DECAY).await;
    }

    async fn settle(&self) {
        if let Some(process) = self.node.process() {
            process.settle().await;
        }
    }
}
