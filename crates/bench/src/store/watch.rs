//! How soon a watch fires: from the call that commits the change to the waiting task.

use std::io::{BufRead, BufReader, Lines};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use tokio::time::Instant;

use super::{Report, failed};
use ::store::{Error, Result, Store, Transaction, Watch};

const KEY: &[u8] = b"bench-watch";

pub(super) async fn one_process(
    store: &Store,
    duration: Duration,
    report: &mut Report<'_>,
) -> Result<()> {
    let (begun, mut latencies) = (Instant::now(), Vec::new());
    while begun.elapsed() < duration {
        let watch = watch(store).await?;
        let waiting = tokio::spawn(async move {
            watch.changed().await?;
            Ok::<_, Error>(Instant::now())
        });
        let changed = Instant::now();
        change(store).await?;
        let fired = waiting
            .await
            .map_err(|error| failed("waiting for a watch", error))??;
        latencies.push(fired.duration_since(changed));
    }
    report.latencies("watch/one_process", &latencies);
    Ok(())
}

pub(super) async fn two_processes(
    store: &Store,
    mut process: Command,
    duration: Duration,
    report: &mut Report<'_>,
) -> Result<()> {
    let fail = |error| failed("the second process", error);
    process.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = process.spawn().map_err(fail)?;
    let Some(output) = process.stdout.take() else {
        return Err(gone("the second process has no output"));
    };
    let mut lines = BufReader::new(output).lines();
    let (begun, mut latencies) = (Instant::now(), Vec::new());
    let result = loop {
        if begun.elapsed() >= duration {
            break Ok(());
        }
        match round(store, lines).await {
            Ok((latency, rest)) => {
                latencies.push(latency);
                lines = rest;
            }
            Err(error) => break Err(error),
        }
    };
    process.kill().map_err(fail)?;
    process.wait().map_err(fail)?;
    result?;
    report.latencies("watch/two_processes", &latencies);
    Ok(())
}

type Output = Lines<BufReader<ChildStdout>>;

async fn round(store: &Store, output: Output) -> Result<(Duration, Output)> {
    let (_, output) = line(output).await?;
    let waiting = tokio::spawn(line(output));
    let changed = Instant::now();
    change(store).await?;
    let fired = waiting
        .await
        .map_err(|error| failed("the second process", error))?;
    let (fired, output) = fired?;
    Ok((fired.duration_since(changed), output))
}

/// Waits for a line; returns its time.
async fn line(mut output: Output) -> Result<(Instant, Output)> {
    let read = tokio::task::spawn_blocking(move || match output.next() {
        Some(Ok(_)) => Ok((Instant::now(), output)),
        Some(Err(error)) => Err(failed("the second process", error)),
        None => Err(gone("the second process has ended")),
    });
    read.await
        .map_err(|error| failed("the second process", error))?
}

/// The second process: prints a line when a watch is armed, and when it has fired. Exits with its parent.
pub(crate) async fn echo(url: &str, say: impl Fn(&str) -> std::io::Result<()>) -> Result<()> {
    let fail = |error| failed("talking to the benchmark", error);
    let store = Store::open(url).await?;
    loop {
        let watch = watch(&store).await?;
        say("armed").map_err(fail)?;
        watch.changed().await?;
        say("fired").map_err(fail)?;
    }
}

async fn watch(store: &Store) -> Result<Watch> {
    let body = |tx: Transaction| async move { tx.watch(KEY).await };
    store.transact("bench_watch", body).await
}

async fn change(store: &Store) -> Result<()> {
    let body = |tx: Transaction| async move {
        tx.add(KEY, 1);
        Ok::<_, Error>(())
    };
    store.transact("bench_change", body).await
}

fn gone(message: &str) -> Error {
    Error::Unavailable {
        message: message.to_owned(),
        source: None,
    }
}
