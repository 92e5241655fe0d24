//! The same work in bare LMDB.

use std::path::Path;
use std::time::Duration;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvOpenOptions, WithoutTls};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use super::{ROWS, Report, Run, VALUE_BYTES, failed, key, next_value};
use crate::per_second;
use ::store::Result;

/// The base line of all comparisons.
pub(super) struct Bare {
    pub(super) commits_per_s: f64,
    pub(super) reads_per_s: f64,
}

type Table = Database<'static, Bytes, Bytes>;

/// One per CPU.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

pub(super) async fn measure(
    directory: &Path,
    duration: Duration,
    report: &mut Report<'_>,
) -> Result<Bare> {
    let directory = directory.to_owned();
    let measured = tokio::task::spawn_blocking(move || measure_in(&directory, duration));
    let (run, reads_per_s) = (measured.await)
        .map_err(|error| failed("the bare loop", error))?
        .map_err(|error| failed("the bare loop", error))?;
    let commits_per_s = report.commits("bare", &run);
    report.figure("bare", "read_txn_per_s", reads_per_s, "1/s");
    Ok(Bare {
        commits_per_s,
        reads_per_s,
    })
}

fn measure_in(directory: &Path, duration: Duration) -> heed::Result<(Run, f64)> {
    let (env, table) = open(directory)?;
    let run = write(&env, table, duration)?;
    let reads_per_s = read(&env, table, duration)?;
    Ok((run, reads_per_s))
}

#[expect(unsafe_code, reason = "LMDB maps its file")]
fn open(directory: &Path) -> heed::Result<(Env<WithoutTls>, Table)> {
    std::fs::create_dir_all(directory)?;
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(1 << 30);
    // SAFETY: the directory is the benchmark's own; no other process opens its files.
    let env = unsafe { options.open(directory) }?;
    let txn = env.write_txn()?;
    let created = env.create_databases_and_commit(txn, |opener, txn| {
        let table = opener.create_database::<Bytes, Bytes>(txn, None)?;
        for number in 0..ROWS {
            table.put(txn, &key(number), &[0; VALUE_BYTES])?;
        }
        heed::Result::Ok(CommitOrAbort::<_, ()>::Commit(table))
    })?;
    match created.commit() {
        Some(table) => Ok((env, table)),
        None => Err(std::io::Error::other("the table is missing").into()),
    }
}

fn write(env: &Env<WithoutTls>, table: Table, duration: Duration) -> heed::Result<Run> {
    let mut rng = SmallRng::seed_from_u64(0);
    let mut latencies = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < duration {
        let (key, begun) = (key(rng.random_range(0..ROWS)), Instant::now());
        let mut txn = env.write_txn()?;
        let value = next_value(table.get(&txn, &key)?);
        table.put(&mut txn, &key, &value)?;
        txn.commit()?;
        latencies.push(begun.elapsed());
    }
    Ok(Run {
        elapsed: begun.elapsed(),
        latencies,
    })
}

fn read(env: &Env<WithoutTls>, table: Table, duration: Duration) -> heed::Result<f64> {
    let begun = Instant::now();
    let counts = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads() as u64)
            .map(|seed| scope.spawn(move || read_for(env, table, duration, seed)))
            .collect();
        readers
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect::<Vec<_>>()
    });
    let mut count = 0;
    for reader in counts {
        count +=
            reader.unwrap_or_else(|_| Err(std::io::Error::other("a reader panicked").into()))?;
    }
    Ok(per_second(count, begun.elapsed()))
}

fn read_for(
    env: &Env<WithoutTls>,
    table: Table,
    duration: Duration,
    seed: u64,
) -> heed::Result<u64> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < duration {
        for _ in 0..100 {
            let txn = env.read_txn()?;
            let value = table.get(&txn, &key(rng.random_range(0..ROWS)))?;
            // Copied, as the store does.
            std::hint::black_box(value.map(<[u8]>::to_vec));
            count += 1;
        }
    }
    Ok(count)
}
