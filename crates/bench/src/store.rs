//! Performance of the store, compared with its disk and bare LMDB. Writers read and rewrite rows, each at its own
//! position among a hundred thousand rows. The bare loop does the same in LMDB, one synced transaction after the other.

mod bare;
pub(crate) mod command;
mod watch;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::Instant;

use ::store::{Error, Result, Store, Transaction};

use crate::per_second;

pub(crate) use watch::echo;

#[derive(Debug)]
pub(crate) struct Bench {
    /// The store: empty at first, full of rows afterwards.
    pub url: String,
    /// An empty directory on the disk to compare with; `None` skips the bare cases.
    pub bare: Option<PathBuf>,
    /// The duration of each case.
    pub duration: Duration,
    /// Starts a process that calls [`echo`] on the store; `None` skips its case.
    pub second_process: Option<Command>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    pub case: String,
    pub metric: &'static str,
    pub value: f64,
    /// What it counts.
    pub unit: &'static str,
}

const ROWS: u64 = 100_000;
const VALUE_BYTES: usize = 100;
const WRITERS: [usize; 3] = [1, 16, 64];

/// Measures everything and reports each figure as soon as it is known.
pub(crate) async fn run(bench: Bench, report: &mut dyn FnMut(Figure)) -> Result<()> {
    let mut report = Report(report);
    let store = Store::open(&bench.url).await?;
    fill(&store).await?;
    let bare = match &bench.bare {
        Some(directory) => Some(bare::measure(directory, bench.duration, &mut report).await?),
        None => None,
    };
    for writers in WRITERS {
        let case = format!("writers={writers}");
        let rate = report.commits(&case, &write(&store, writers, bench.duration).await?);
        if let Some(bare) = &bare {
            report.figure(&case, "commits_to_bare", rate / bare.commits_per_s, "ratio");
        }
    }
    let readers = bare::threads();
    let rate = read(&store, readers, bench.duration).await?;
    report.figure("reads", "read_txn_per_s", rate, "1/s");
    if let Some(bare) = &bare {
        report.figure("reads", "reads_to_bare", rate / bare.reads_per_s, "ratio");
    }
    watch::one_process(&store, bench.duration, &mut report).await?;
    if let Some(process) = bench.second_process {
        watch::two_processes(&store, process, bench.duration, &mut report).await?;
    }
    Ok(())
}

struct Report<'r>(&'r mut dyn FnMut(Figure));

impl Report<'_> {
    fn figure(&mut self, case: &str, metric: &'static str, value: f64, unit: &'static str) {
        (self.0)(Figure {
            case: case.to_owned(),
            metric,
            value,
            unit,
        });
    }

    /// Reports commits per second and their latency.
    fn commits(&mut self, case: &str, run: &Run) -> f64 {
        let rate = per_second(run.latencies.len() as u64, run.elapsed);
        self.figure(case, "commits_per_s", rate, "1/s");
        self.latencies(case, &run.latencies);
        rate
    }

    fn latencies(&mut self, case: &str, latencies: &[Duration]) {
        let metrics = [("latency_ms_p50", 50), ("latency_ms_p99", 99)];
        for (metric, ms) in crate::percentiles(latencies, &metrics) {
            self.figure(case, metric, ms, "ms");
        }
    }
}

/// What happened during one case.
struct Run {
    elapsed: Duration,
    latencies: Vec<Duration>,
}

async fn fill(store: &Store) -> Result<()> {
    for begin in (0..ROWS).step_by(1000) {
        let body = |tx: Transaction| async move {
            for number in begin..begin + 1000 {
                tx.set(&key(number), &[0; VALUE_BYTES]);
            }
            Ok::<_, Error>(())
        };
        store.transact("bench_fill", body).await?;
    }
    Ok(())
}

/// Spreads consecutive keys.
fn key(number: u64) -> [u8; 16] {
    let mut key = *b"bench/..........";
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key[6..14].copy_from_slice(&scattered.to_be_bytes());
    key
}

async fn write(store: &Store, writers: usize, duration: Duration) -> Result<Run> {
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for number in 0..writers {
        let store = store.clone();
        let mut rng = SmallRng::seed_from_u64(number as u64);
        tasks.spawn(async move {
            let mut latencies = Vec::new();
            while begun.elapsed() < duration {
                let (key, begun) = (key(rng.random_range(0..ROWS)), Instant::now());
                let body = |tx: Transaction| async move { rewrite(&tx, &key).await };
                store.transact("bench_write", body).await?;
                latencies.push(begun.elapsed());
            }
            Ok::<_, Error>(latencies)
        });
    }
    let mut latencies = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        latencies.extend(joined(ended)?);
    }
    Ok(Run {
        elapsed: begun.elapsed(),
        latencies,
    })
}

async fn rewrite(tx: &Transaction, key: &[u8]) -> Result<()> {
    let old = tx.get(key).await?;
    tx.set(key, &next_value(old.as_deref()));
    Ok(())
}

fn next_value(old: Option<&[u8]>) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    if let Some(old) = old.filter(|old| old.len() == VALUE_BYTES) {
        value.copy_from_slice(old);
    }
    value[0] = value[0].wrapping_add(1);
    value
}

/// Reads single rows, one per transaction. Returns the number per second.
async fn read(store: &Store, readers: usize, duration: Duration) -> Result<f64> {
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for number in 0..readers {
        let store = store.clone();
        let mut rng = SmallRng::seed_from_u64(number as u64);
        tasks.spawn(async move {
            let mut count = 0_u64;
            while begun.elapsed() < duration {
                for _ in 0..100 {
                    let key = key(rng.random_range(0..ROWS));
                    let body = |tx: Transaction| async move { tx.get(&key).await };
                    store.transact("bench_read", body).await?;
                    count += 1;
                }
            }
            Ok::<_, Error>(count)
        });
    }
    let mut count = 0;
    while let Some(ended) = tasks.join_next().await {
        count += joined(ended)?;
    }
    Ok(per_second(count, begun.elapsed()))
}

fn joined<T>(ended: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    ended.unwrap_or_else(|error| Err(failed("a task of the benchmark", error)))
}

fn failed(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Unavailable {
        message: format!("{what} failed"),
        source: Some(Arc::new(error)),
    }
}
