//! How long the single job of a tenant waits behind very many of another, while all workers are busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jobs::{Error, Finish, Result, Task, Tenant, Worker, WorkerOptions};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::load::{Load, job};
use super::meter::Report;
use super::{holder, joined};

/// Jobs per transaction.
const FILL: usize = 500;
/// How long a run takes.
const RUN: Duration = Duration::from_millis(20);
/// Single jobs, one after the other.
const ROUNDS: usize = 200;
/// The pause between two of them is at least half of this.
const PAUSE: Duration = Duration::from_millis(50);
/// A job that has not started after this time never will.
const PATIENCE: Duration = Duration::from_mins(1);

pub(super) async fn measure(load: &Load, backlog: usize, report: &mut Report<'_>) -> Result<()> {
    if backlog == 0 {
        return Ok(());
    }
    let case = format!("behind/{backlog}");
    let ty = load.register(&case).await?;
    load.share(&ty).await?;
    let (large, small) = (Tenant::new("large")?, Tenant::new("small")?);
    let of_large = move |_, add: jobs::Add| add.tenant(large.clone());
    load.produce_as(&ty, 0..backlog, FILL, of_large).await?;
    load.jobs.store().settle().await?;

    let options = WorkerOptions {
        concurrency: load.workers,
        ..WorkerOptions::default()
    };
    let worker = Worker::new(load.jobs.clone(), ty.clone(), holder()?, options);
    let (send, mut started) = mpsc::unbounded_channel();
    let others = Arc::new(AtomicUsize::new(0));
    let (stop, starts) = (CancellationToken::new(), Arc::clone(&others));
    let last = backlog + ROUNDS;
    let singles: Vec<_> = (backlog..last)
        .map(|n| job(n).map(|add| add.id))
        .collect::<Result<_>>()?;
    let handler = move |task: Task<Value>| {
        if singles.contains(&task.id) {
            // Fails if the measurement has stopped early.
            let _ = send.send((Instant::now(), starts.load(Ordering::Relaxed)));
        } else {
            starts.fetch_add(1, Ordering::Relaxed);
        }
        async {
            sleep(RUN).await;
            Ok(Finish::done())
        }
    };
    let working = tokio::spawn(worker.run(stop.clone(), handler));
    let (mut waits, mut before) = (Vec::new(), Vec::new());
    for number in backlog..last {
        sleep(PAUSE / 2 + load.jobs.entropy().up_to(PAUSE / 2)).await;
        load.jobs
            .add(&ty, job(number)?.tenant(small.clone()))
            .await?;
        let (added, starts) = (Instant::now(), others.load(Ordering::Relaxed));
        let first = timeout(PATIENCE, started.recv()).await;
        let (at, later) = first.ok().flatten().ok_or(Error::Stopped)?;
        waits.push(at.saturating_duration_since(added));
        before.push(later.saturating_sub(starts));
    }
    stop.cancel();
    joined(working.await.map(Ok))?;
    report.times(&case, &[("wait_ms_p50", 50), ("wait_ms_p99", 99)], &waits);
    before.sort_unstable();
    for (metric, percent) in [("overtaken_p50", 50), ("overtaken_p99", 99)] {
        let nth = before.get(before.len() * percent / 100);
        let nth = u32::try_from(nth.copied().unwrap_or_default()).unwrap_or(u32::MAX);
        report.figure(&case, metric, f64::from(nth), "jobs");
    }
    Ok(())
}
