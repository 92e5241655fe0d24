//! The time from adding a job to its start on an idle queue: from the call that adds it to the worker that has it.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::load::{Load, job};
use super::meter::Report;
use super::second::Second;
use super::{Bench, holder, joined};
use jobs::{Acceptor, AcceptorHandle, Error, Finish, JobType, Jobs, Result};

const ROUNDS: usize = 150;
/// The pause between two jobs is at least half of this, long enough for the acceptor to fall asleep.
const PAUSE: Duration = Duration::from_millis(80);
/// A job that has not started after this time never will.
const PATIENCE: Duration = Duration::from_mins(1);
const METRICS: [(&str, usize); 2] = [("start_ms_p50", 50), ("start_ms_p99", 99)];

pub(super) async fn measure(load: &Load, bench: &mut Bench, report: &mut Report<'_>) -> Result<()> {
    let case = "latency/one_process";
    let ty = load.register(case).await?;
    let times = one_process(load, &ty).await?;
    report.times(case, &METRICS, &times);
    if let Some(process) = &mut bench.second_process {
        let case = "latency/two_processes";
        let ty = load.register(case).await?;
        let mut second = Second::start(process).await?;
        let times = two_processes(load, &ty, &mut second).await;
        second.stop().await?;
        report.times(case, &METRICS, &times?);
    }
    Ok(())
}

async fn one_process(load: &Load, ty: &JobType) -> Result<Vec<Duration>> {
    let (send, mut started) = mpsc::channel(1);
    let (service, handle) = Acceptor::new(load.jobs.clone(), ty.clone(), holder()?);
    let stop = CancellationToken::new();
    let service = tokio::spawn(service.run(stop.clone()));
    let jobs = load.jobs.clone();
    let worker = tokio::spawn(async move {
        let started = |_: &str| {
            // Each job is awaited before the next one is added, except the last.
            let _ = send.try_send(Instant::now());
            Ok(())
        };
        start_all(&jobs, &handle, started).await
    });
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let added = add(load, ty, round).await?;
        let started = started.recv().await.ok_or(Error::Stopped)?;
        times.push(started.duration_since(added));
    }
    stop.cancel();
    joined(service.await.map(Ok))?;
    match joined(worker.await) {
        Err(Error::Stopped) => Ok(times),
        ended => ended.map(|()| times),
    }
}

async fn two_processes(load: &Load, ty: &JobType, second: &mut Second) -> Result<Vec<Duration>> {
    second.order(&format!("work {ty}"))?;
    second.line().await?;
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let added = add(load, ty, round).await?;
        let (started, _) = second.line().await?;
        times.push(started.duration_since(added));
    }
    Ok(times)
}

/// Waits a little, adds a job, and sends the time.
async fn add(load: &Load, ty: &JobType, number: usize) -> Result<Instant> {
    sleep(PAUSE / 2 + load.jobs.entropy().up_to(PAUSE / 2)).await;
    let add = job(number)?;
    let called = Instant::now();
    load.jobs.add(ty, add).await?;
    Ok(called)
}

/// Finishes one job after the other, and sends when each started.
pub(super) async fn start_all(
    jobs: &Jobs,
    handle: &AcceptorHandle,
    started: impl Fn(&str) -> Result<()>,
) -> Result<()> {
    loop {
        for accepted in handle.accept(1, PATIENCE).await? {
            started(&accepted.job.id.to_string())?;
            let _ = jobs.finish(&accepted.job, Finish::done()).await?;
        }
    }
}
